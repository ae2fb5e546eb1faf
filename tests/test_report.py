import json
import re
import shutil
import subprocess

import pytest

import mini_mrl
from mrl.errors import MrlError
from mrl.lab import figures
from mrl.lab.report import write_report
from mrl.runtime.problems import save_problems
from mrl.runtime.run_directory import read_metrics, read_samples
from mrl.runtime.summary import learnt_sentence
from mrl.tiny.skills import SKILLS, generate

HOSTILE = '<script>alert(1)</script>\x1b[31m "quoted" & \\boxed{2}'


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """A run that has sampled, exchanged and ended; a step has a third of its problems."""
    folder = tmp_path_factory.mktemp("report")
    settings = {"runs": folder, "prompts_per_step": 6, "group_size": 4}
    for part in ("train", "heldout"):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, 2, 0)]
        save_problems(folder / f"{part}.jsonl", made)
        path = str(folder / f"{part}.jsonl")
        settings[part] = path if part == "train" else f'["{path}"]'
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    place = ["--placement", "resident", "--pair", "tiny"]
    assert mini_mrl.main(["--steps", "4", "--name", "r", "--plain", *place, *sets]) == 0
    return folder / "r"


@pytest.fixture
def finished(one_run, tmp_path):
    """A copy of that run."""
    return shutil.copytree(one_run, tmp_path / "r")


def test_the_page_tells_the_run_and_needs_nothing_from_elsewhere(finished, capsys):
    assert mini_mrl.main(["report", str(finished)]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (finished / "report.html").read_text()
    for part in (
        "Held-out problems", "Where did my gradient go?", "Who worked when", "The rescue set",
        "Who rescued whom", "What crossed", "Entropy", "Length of completions", "side by side",
        "retokenized", "better at any skill", "<svg",
    ):  # fmt: skip
        assert part in page, part
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    images = re.findall(r"<img ([^>]*)>", page)
    assert len(images) == 9
    assert all(re.search(r'alt="[^"]{20,}"', image) for image in images)
    assert all(path.stat().st_size > 5000 for path in (finished / "figures").glob("*.png"))
    assert page.count("skill/&lt;skill&gt;: solve rate of the step&#x27;s prompts") == 1  # METRICS
    assert '<html lang="en">' in page
    assert "width=device-width" in page


def test_what_a_model_wrote_cannot_do_anything_in_the_page(finished):
    rescue = {
        "problem_id": "p", "prompt": HOSTILE, "skill": HOSTILE, "receiver": "qwen-tiny",
        "receiver_text": HOSTILE, "source": "llama-tiny", "source_text": HOSTILE,
    }  # fmt: skip
    (finished / "samples.jsonl").write_text(json.dumps({"step": 1, "rescue": rescue}) + "\n")
    page = write_report(finished).read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\x1b[31m" in page


def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is(finished):
    for file in ("metrics.jsonl", "samples.jsonl", "config.json"):
        text = (finished / file).read_text()
        for name, odd in (("qwen-tiny", "m$x^$"), ("llama-tiny", "$\\\\frac$")):
            text = text.replace(f'"{name}"', f'"{odd}"').replace(f"/{name}/", f"/{odd}/")
        (finished / file).write_text(text)
    assert "m$x^$" in write_report(finished).read_text()


def test_an_unfinished_run_with_a_torn_line_has_a_report_too(finished):
    evaluations = json.loads((finished / "evaluation.json").read_text())
    del evaluations["after"]
    (finished / "evaluation.json").write_text(json.dumps(evaluations))
    with (finished / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "pol')
    assert "4 of 4 steps" in write_report(finished).read_text()


def test_a_rescued_problem_is_shown_as_it_was_met_again(finished):
    samples = read_samples(finished)
    rescue = next(line["rescue"] | {"step": line["step"]} for line in samples if "rescue" in line)
    again = {"step": 99, "policy": rescue["receiver"], "problem": rescue["problem_id"]}
    with (finished / "samples.jsonl").open("a") as log:
        log.write(json.dumps(again | {"text": "now I know", "verdict": "correct"}) + "\n")
        log.write(json.dumps({"step": 99, "failure": "the verifier was slow"}) + "\n")
    page = write_report(finished).read_text()
    assert f"<p>{rescue['receiver']} in step 99, correct: <code>now I know</code></p>" in page
    assert "<td>99</td><td>the verifier was slow</td>" in page


def test_no_run_gets_one_sentence(tmp_path, finished):
    with pytest.raises(MrlError, match="is no run directory"):
        write_report(tmp_path)
    (finished / "metrics.jsonl").write_text("")
    with pytest.raises(MrlError, match="no finished step"):
        write_report(finished)


def test_panels_have_the_order_of_their_names_not_of_their_first_problems():
    met = ("skill/sold", "skill/eats", "skill/bags")
    lines = [{"step": step, "policy": "a", key: 0.5} for step, key in enumerate(met, 1)]
    ((picture, keys),) = figures.pictures_of(lines)
    assert (picture.name, keys) == ("skills", sorted(met))


def test_a_label_is_the_name_without_its_first_part_whatever_a_skill_is_called():
    names = ["skill/add/sub", "skill/a/b/c", "entropy", "exchange/success/qwen/bytes"]
    labels = [figures.label_of(name) for name in [*names, "completions/mean_length"]]
    assert labels == ["add/sub", "a/b/c", "entropy", "success from qwen", "mean length"]


def test_a_series_is_averaged_over_the_steps_before(finished):
    lines = [{"step": s, "policy": "a", "x": v} for s, v in ((1, 1.0), (2, 3.0), (4, 5.0))]
    assert figures.series(lines, "a", "x") == ([1, 2, 4], [1.0, 3.0, 5.0])
    assert figures.series(lines, "a", "x", window=2) == ([1, 2, 4], [1.0, 2.0, 4.0])
    assert figures.series(lines, "b", "x") == ([], [])
    assert len(read_metrics(finished)) == 8


def test_the_sentence_names_the_largest_gain():
    def scores(policy, value):
        return {
            "policy": policy,
            "part": "heldout",
            "problems": 40,
            "pass@1": value,
            "skills": {"eats": {"pass@1": value}},
        }

    before = [scores("a", 0.1), scores("b", 0.5)]
    after = [scores("a", 0.7), scores("b", 0.6)]
    times = {("a", "b", "eats"): 3, ("a", "b", "sold"): 1, ("b", "a", "eats"): 9}
    keys = ("receiver", "source", "skill")
    rescues = [dict(zip(keys, key, strict=True)) for key, n in times.items() for _ in range(n)]
    assert learnt_sentence({"before": before, "after": after}, rescues) == (
        'a solved "eats" problems 10% of the time before, 70% after; it was rescued 4 times '
        '(4 from b), 3 of them on "eats".'
    )
    assert learnt_sentence({"before": before}, rescues) == ""
    same = {"before": before, "after": before}
    assert learnt_sentence(same, rescues).startswith("No policy got better at any skill")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it(finished, tmp_path, width, dark):
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        pytest.skip("no Chromium here")
    page, picture = write_report(finished), tmp_path / "shot.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}"]
    command += [f"--window-size={width},1600", "--disable-javascript"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    subprocess.run([*command, page.as_uri()], check=True, timeout=120, capture_output=True)
    assert picture.stat().st_size > 20_000
