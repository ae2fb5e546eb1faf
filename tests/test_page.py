"""The kept page is the one that `python data/page/make.py` makes, and its script is right."""

import importlib.util
import json
import re
import shutil
import subprocess
from html import escape

import pytest
import torch
from PIL import Image

from mrl.advantages import group_advantages
from mrl.config import DATA
from mrl.lab.bandit import analyse, bandit_modes, complementary
from mrl.runtime.run_directory import read_evaluations, read_rescues
from mrl.runtime.summary import learnt_sentence

FOLDER = DATA / "page"
KEPT = (FOLDER / "index.html").read_text(encoding="utf-8")
FACTS = json.loads(re.search(r'id="facts">(.*?)</script>', KEPT, re.DOTALL)[1])
FORMULAS = re.search(r'<script id="formulas">(.*?)</script>', KEPT, re.DOTALL)[1]


AGAIN = "run `python data/page/make.py`"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(make):
    assert make.page() == KEPT, AGAIN


def test_the_report_is_the_kept_runs_and_small(make):
    report = (FOLDER / "report.html").read_text(encoding="utf-8")
    run = make.KEPT_RUN
    sentence = learnt_sentence(read_evaluations(run), read_rescues(run))
    assert f"<strong>{escape(sentence)}</strong>" in report
    assert len(make.EMBEDDED.findall(report)) == 9
    assert len(report) < 400_000

    part = make.part_of(report)
    assert sentence.split(";")[0] in part.replace("&quot;", '"')
    assert re.findall("<h2>(.+?)</h2>", part) == [
        "Solve rate by skill", "Rescued problems, side by side"
    ]  # fmt: skip
    assert len(make.EMBEDDED.findall(part)) == 1


@pytest.mark.slow
def test_the_report_is_current(make):
    report = (FOLDER / "report.html").read_text(encoding="utf-8")
    assert make.EMBEDDED.sub("", make.report()) == make.EMBEDDED.sub("", report), AGAIN


@pytest.mark.slow
def test_a_browser_photographs_the_report(make, tmp_path):
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium is installed")
    report = (FOLDER / "report.html").read_text(encoding="utf-8")
    make.photograph(report, tmp_path / "report.png")
    kept, made = (Image.open(folder / "report.png") for folder in (FOLDER, tmp_path))
    assert "{},{}".format(*kept.size) == "{},{}".format(*made.size) == make.SIZE


def test_its_modes_are_the_bandits():
    contexts = complementary()
    modes = bandit_modes(contexts)
    rows = {name: figures for name, *figures in FACTS["bandit"]["modes"]}
    assert set(rows) == set(modes)
    exact = analyse(modes["sgt"], contexts[1])
    shown = [float(text.rstrip("%°")) for text in rows["sgt"]]
    assert shown == pytest.approx([100 * exact.support, exact.angle, exact.groups], rel=0.03)


def test_its_examples_are_the_programs():
    assert [sum(row["rewards"]) for row in FACTS["examples"]] == list(range(9))
    for row in FACTS["examples"]:
        rewards = torch.tensor([row["rewards"]])
        for key, by_std in (("scaled", True), ("plain", False)):
            assert row[key] == pytest.approx(
                group_advantages(rewards, by_std)[0].tolist(), abs=1e-4
            )


def test_its_script_computes_the_same():
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed, so the page's script cannot be run")
    asked = """
    const rows = EXAMPLES.map(({ rewards }) => [true, false].map((by) => advantages(rewards, by)));
    const holes = [holeChance(0.25, 2), holeChance(0, 8), holeChance(0.02, 8)];
    console.log(JSON.stringify({ rows, holes, losses: rows.flat().map(loss) }));
    """.replace("EXAMPLES", json.dumps(FACTS["examples"]))
    done = subprocess.run(
        [node, "-e", FORMULAS + asked], capture_output=True, check=True, timeout=60
    )
    answer = json.loads(done.stdout)
    for (scaled, plain), row in zip(answer["rows"], FACTS["examples"], strict=True):
        assert scaled == pytest.approx(row["scaled"], abs=1e-4)
        assert plain == pytest.approx(row["plain"], abs=1e-4)
    assert answer["holes"] == pytest.approx([0.5625, 1.0, 0.98**8])
    assert answer["losses"] == pytest.approx([0.0] * 18, abs=1e-9)


def test_it_fetches_nothing_and_every_control_has_a_name():
    assert not re.search(r"https?://|src=|@import|url\(", KEPT)
    for tag in re.findall(r"<button[^>]*>", KEPT):
        assert 'type="button"' in tag
    assert KEPT.count("<input") == KEPT.count("<label")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1000])
def test_a_browser_runs_it(tmp_path, width):
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    # the copy presses buttons as a person would, and writes down how wide the page is
    pressed = """<script>
    at("answers").querySelector("button").click(); at("modes").querySelector("button").click();
    at("p").value = 0; at("p").dispatchEvent(new Event("input"));
    document.title = `${document.documentElement.scrollWidth} of ${window.innerWidth}`;
    </script></body>"""
    page = tmp_path / "page.html"
    page.write_text(KEPT.replace("</body>", pressed), encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},1600",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], check=True, timeout=120, capture_output=True
    )
    shown = done.stdout.decode()
    needed, given = map(int, re.search(r"<title>(\d+) of (\d+)", shown).groups())
    assert needed <= given
    assert "The 3 right answers are" in shown
    assert "solo: a group gives an update with a chance of 5%" in shown
    assert "Every group fails" in shown
