"""TUTORIAL.md does what it says: its examples, its commands, its names and its pictures."""

import csv
import doctest
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest

import mini_mrl
from mrl.lab.compare_view import estimate

ROOT = Path(mini_mrl.__file__).parent
TUTORIAL = (ROOT / "TUTORIAL.md").read_text(encoding="utf-8")
MEASURED = TUTORIAL.replace(" †", "")  # the mark of what is being measured again
BLOCKS = re.findall(r"```bash\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]


def test_every_example_gives_what_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = doctest.DocTestParser().get_doctest(TUTORIAL, {}, "TUTORIAL.md", None, 0)
    result = doctest.DocTestRunner().run(examples)
    assert result.failed == 0
    assert result.attempted >= 30


def test_every_command_is_one_that_the_program_knows(capsys):
    assert len(COMMANDS) >= 12
    for command in COMMANDS:
        words = shlex.split(command)
        assert words[:2] == ["python", "mini_mrl.py"], command
        assert mini_mrl.main([*words[2:], "--help"]) == 0, command
    assert "Usage" in capsys.readouterr().out


def test_every_function_that_is_named_exists():
    named = re.findall(r"(mrl/[\w/]+)\.py: (\w+)", TUTORIAL)
    assert len(named) >= 8
    for path, name in named:
        assert hasattr(import_module(path.replace("/", ".")), name), (path, name)
    for path in re.findall(r"`((?:mrl|data|tests)/[\w/.]+\.\w+)`", TUTORIAL):
        assert (ROOT / path).exists(), path


def test_every_file_of_the_method_is_named():
    files = [path for path in (ROOT / "mrl").glob("*.py") if path.name != "__init__.py"]
    assert len(files) >= 10
    for path in files:
        assert f"`mrl/{path.name}" in TUTORIAL, path.name


def test_every_picture_and_every_section_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TUTORIAL)
    assert len(pictures) >= 8
    for path in pictures:
        assert (ROOT / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    headings = re.findall(r"^## (.+)$", TUTORIAL, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TUTORIAL)) <= anchors
    assert TUTORIAL.count("**Exercise.**") == len(headings) == TUTORIAL.count("</details>")


def test_the_pictures_of_the_run_come_from_its_kept_metrics(tmp_path):
    from mrl.lab.report import write_report

    kept = ROOT / "data" / "results" / "sgt-s0"
    directory = tmp_path / "sgt-s0"
    shutil.copytree(kept, directory, ignore=shutil.ignore_patterns("figures"))
    write_report(directory)
    drawn = {path.name for path in (directory / "figures").iterdir()}
    assert drawn == {path.name for path in (kept / "figures").iterdir()}


@pytest.mark.parametrize("document", ["README.md", "TUTORIAL.md"])
def test_the_table_of_modes_is_the_measured_one(document):
    text = (ROOT / document).read_text(encoding="utf-8").replace(" †", "")
    results = ROOT / "data" / "results" / "tiny-pair" / "table.md"
    heldout = results.read_text(encoding="utf-8").split("## newtemplates")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in heldout.splitlines()
        if line.startswith("|")
    )
    shown = next(line for line in text.splitlines() if line.startswith("| mode | pass@1"))
    columns = [head.index(cell.strip()) for cell in shown.strip("|").split("|")]
    for row in rows:
        assert f"| {' | '.join(row[column] for column in columns)} |" in text
    for gain in re.findall(r"beats `(?:solo|hacpo)` by ([\d.]+ ± [\d.]+)", text):
        assert gain in heldout


CLOSED = {("qwen-tiny", "sold"), ("llama-tiny", "eats")}  # what `solo` never gets right


def kept_scores(path, mode, wanted=lambda policy, skill: skill == "all"):
    """Held-out pass@1 by seed, mean over what is wanted, from a table under data/results."""
    scores = {}
    with (ROOT / "data" / "results" / path).open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            of = line["mode"], line["part"], line["metric"]
            if of == (mode, "heldout", "pass@1") and wanted(line["policy"], line["skill"]):
                scores.setdefault(line["seed"], []).append(float(line["value"]))
    return [mean(values) for values in scores.values()]


def open_skill(policy, skill):
    """Neither closed nor the mean of all."""
    return skill != "all" and (policy, skill) not in CLOSED


def above(one, two, wanted=open_skill):
    """How far one (path, mode) is above another, paired by the seeds that both have."""
    pairs = zip(kept_scores(*one, wanted), kept_scores(*two, wanted), strict=False)
    return estimate([a - b for a, b in pairs])


def test_the_table_of_lies_is_the_measured_one():
    for weight, honest, believed in (
        ("0.1", "tiny-pair/table.csv", "liar/believed.csv"),
        ("1.0", "liar/honest-w1.csv", "liar/believed-w1.csv"),
    ):
        two = kept_scores(honest, "sgt")[:3], kept_scores(believed, "sgt")
        cost = estimate([b - a for a, b in zip(*two, strict=True)])
        cells = (", ".join(f"{value:.1f}" for value in values) for values in two)
        assert f"| {weight} | {' | '.join(cells)} | {cost} |" in TUTORIAL
    solo = "tiny-pair/table.csv", "solo"
    for path, place in (("liar/believed-w1.csv", "below"), ("liar/honest-w1.csv", "above")):
        apart = above((path, "sgt"), solo, lambda policy, skill: skill == "all")
        assert (apart.mean < 0) == (place == "below")
        assert str(apart).removeprefix("-") in TUTORIAL
    for path, mode, learnt in (
        ("liar/believed-w1.csv", "sgt", False), ("liar/honest-w1.csv", "sgt", True), (*solo, True)
    ):  # fmt: skip
        shares = kept_scores(path, mode, lambda policy, skill: skill == "loses")
        assert min(shares) > 40 if learnt else max(shares) < 1


@pytest.mark.parametrize(
    ("changed", "path", "modes"),
    [
        ("nothing", "tiny-pair/table.csv", ("solo", "sgt", "graft")),
        ("a group of 4", "sweeps/group4.csv", ("solo", "sgt", "graft")),
        ("a warm start", "sweeps/foreign10.csv", ("solo", "sgt", "graft")),
        ("`sgt.imitation_weight`", "liar/honest-w1.csv", ("", "sgt", "")),
        ("`graft.minibatches`", "sweeps/one-update.csv", ("", "", "graft")),
        ("`solo.minibatches`", "sweeps/four-updates.csv", ("solo", "", "")),
    ],
)
def test_the_table_of_what_was_changed_is_the_measured_one(changed, path, modes):
    (row,) = (line for line in TUTORIAL.splitlines() if line.startswith(f"| {changed}"))
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    scores = [kept_scores(path, mode) if mode else [] for mode in modes]
    seeds = max(len(values) for values in scores)
    assert cells == [str(seeds), *(str(estimate(values)) if values else "" for values in scores)]


def test_the_curves_in_bfloat16_stand_beside_those_in_float32():
    for dtype, folder in (("float32", "tiny-pair"), ("bfloat16", "mixed")):
        with (ROOT / "data" / "results" / folder / "curves.csv").open(encoding="utf-8") as file:
            rate = {(row["mode"], row["step"]): float(row["mean"]) for row in csv.DictReader(file)}
        for mode in ("solo", "sgt"):
            cells = (f"{rate[mode, step]:.1%}" for step in ("60", "120", "180", "240"))
            assert f"| {mode}, {dtype} | {' | '.join(cells)} |" in TUTORIAL
    sgt, solo = (estimate(kept_scores("mixed/table.csv", mode)) for mode in ("sgt", "solo"))
    assert f"(held-out `sgt` {sgt}, `solo` {solo})" in " ".join(TUTORIAL.split())


def test_what_each_mode_opens_and_pays_is_measured():
    table = "tiny-pair/table.csv"
    for mode in ("solo", "xgrpo", "solo-x2", "prp", "naive", "hacpo", "graft", "sgt"):
        cells = [
            str(estimate(kept_scores(table, mode, lambda *of, closed=closed: of == closed)))
            for closed in sorted(CLOSED, reverse=True)
        ]
        cells.append("" if mode == "solo" else str(above((table, mode), (table, "solo"))))
        assert f"| {mode} | {' | '.join(cells)} |" in MEASURED


def test_the_control_with_four_updates_is_the_measured_one():
    four, table = ("sweeps/four-updates.csv", "solo"), "tiny-pair/table.csv"
    text = " ".join(MEASURED.split())

    def all_skills(policy, skill):
        return skill == "all"

    costs = str(above(four, (table, "solo"), all_skills))
    gains = [str(above((table, mode), four, all_skills)) for mode in ("hacpo", "graft")]
    alone = str(estimate(kept_scores(*four)))
    assert f"ends at {alone}, {costs.removeprefix('-')} below `solo` with one" in text
    assert f"it ends at {alone} with four" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"`hacpo` gains {gains[0]}, and `graft` {gains[1]}" in text
    graft = "sweeps/one-update.csv", "graft"
    level, kept = above(graft, (table, "solo"), all_skills), above(graft, (table, "solo"))
    assert f"level with it ({level}, seeds 1 to 4), keeps the other skills ({kept})" in text
    sgt = above(("sweeps/foreign10.csv", "sgt"), ("sweeps/foreign10.csv", "solo"), all_skills)
    assert f"({sgt} with the other warm start)" in text


@pytest.mark.slow
def test_every_command_runs(tmp_path):
    """All of them in order, shortened: six steps, few held-out problems, no long comparison."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    heldout = (ROOT / "data" / "words" / "heldout.jsonl").read_text().splitlines()[::30]
    (tmp_path / "few.jsonl").write_text("\n".join(heldout) + "\n")
    snippets = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (own_mode,) = (snippet for snippet in snippets if "class Shortest" in snippet)
    (tmp_path / "my_mode.py").write_text(own_mode)

    def outcome(command):
        words = shlex.split(command)[2:]
        if "--mode" in words:
            words += ["--steps", "6", "--set", 'heldout=["few.jsonl"]']
            if "--placement" not in words:  # `auto` would take both cores for one of two runs
                words += ["--placement", "resident"]
        done = subprocess.run(
            [sys.executable, str(ROOT / "mini_mrl.py"), *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    printed = {}
    chosen = [command for command in COMMANDS if "compare" not in command]  # tests/test_compare.py
    for reads_a_run in (False, True):  # these after all others, and two at a time
        batch = [command for command in chosen if ("runs/" in command) == reads_a_run]
        with ThreadPoolExecutor(2) as pool:
            printed |= zip(batch, pool.map(outcome, batch), strict=True)
    aligned = next(text for command, text in printed.items() if " align " in command)
    assert "12 chunks, 2 of them 1:1 (6% of the bytes)" in aligned
    assert "12 chunks, 2 of them 1:1 (6% of the bytes)" in TUTORIAL
    lines = next(text for command, text in printed.items() if "bandit" in command).splitlines()
    table = [line for line in lines if line.startswith("│")]
    assert len(table) == 7
    assert all(line in TUTORIAL for line in table)
