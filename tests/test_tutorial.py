"""TUTORIAL.md does what it says: its examples, its commands, its names and its pictures."""

import doctest
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

import mini_mrl
from mrl.classroom import ASSIGNMENTS
from mrl.objectives import OBJECTIVES
from mrl.runtime.metrics import METRICS
from mrl.runtime.summary import learnt_sentence

ROOT = Path(mini_mrl.__file__).parent
TUTORIAL = (ROOT / "TUTORIAL.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d+)\. (.*?)(?=^## )", TUTORIAL, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"```bash\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
INLINE = [" ".join(text.split()) for text in re.findall(r"`(python mini_mrl\.py[^`]*)`", TUTORIAL)]


def test_every_example_gives_what_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = doctest.DocTestParser().get_doctest(TUTORIAL, {}, "TUTORIAL.md", None, 0)
    result = doctest.DocTestRunner().run(examples)
    assert result.failed == 0
    assert result.attempted >= 60


def test_every_command_is_one_that_the_program_knows(capsys):
    assert len(COMMANDS) >= 12
    assert len(INLINE) >= 6
    for command in COMMANDS + INLINE:
        words = shlex.split(command)
        assert words[:2] == ["python", "mini_mrl.py"], command
        assert mini_mrl.main([*words[2:], "--help"]) == 0, command
    assert "Usage" in capsys.readouterr().out


def test_every_function_that_is_named_exists():
    named = re.findall(r"(mrl/[\w/]+)\.py: (\w+)", TUTORIAL)
    assert len(named) >= 40
    for path, name in named:
        assert hasattr(import_module(path.replace("/", ".")), name), (path, name)
    for path in re.findall(r"`((?:mrl|data|tests)/[\w/.]+\.\w+)`", TUTORIAL):
        assert (ROOT / path).exists(), path


def test_every_file_of_the_method_is_named():
    files = [path for path in (ROOT / "mrl").glob("*.py") if path.name != "__init__.py"]
    assert len(files) >= 10
    for path in files:
        assert f"`mrl/{path.name}: " in TUTORIAL, path.name


def test_every_picture_and_every_section_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TUTORIAL)
    assert len(pictures) >= 7
    for path in pictures:
        assert (ROOT / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    headings = re.findall(r"^## (.+)$", TUTORIAL, re.MULTILINE)
    assert headings[-1] == "Glossary"
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TUTORIAL)) <= anchors
    assert TUTORIAL.count("**Exercise.**") == len(SECTIONS) == TUTORIAL.count("</details>")


def test_the_text_stays_short():
    """Words outside code and folded solutions: 450 a section, 4,800 in all."""
    text = re.sub(r"```.*?```|<details>.*?</details>|<!--.*?-->", "", TUTORIAL, flags=re.DOTALL)
    counts = {
        section.split("\n")[0]: len([w for w in section.split() if re.search(r"\w", w)])
        for section in re.split(r"^## ", text, flags=re.MULTILINE)
    }
    assert max(counts.values()) <= 450, counts
    assert sum(counts.values()) <= 4800, counts


def test_a_section_that_has_an_assignment_ends_with_it():
    ends = {}
    for number, section in SECTIONS.items():
        last = section.strip().rpartition("\n\n")[2]
        if name := re.match(
            r"\*\*Assignment (\d)\b.*`python mini_mrl\.py assignment start ([\w-]+)`",
            last,
            re.DOTALL,
        ):
            ends[name[2]] = int(name[1]), number
    places = {name: number for name, (number, _) in ends.items()}
    assert places == {name: number for number, name in enumerate(ASSIGNMENTS, start=1)}
    assert TUTORIAL.count("assignment start") == len(ASSIGNMENTS)
    teaching = (ROOT / "mrl" / "classroom" / "TEACHING.md").read_text(encoding="utf-8")
    for name, (number, section) in ends.items():
        (row,) = re.findall(rf"^\| {number} \| `{name}` \| (.+?) \|", teaching, re.MULTILINE)
        assert str(section) in re.findall(r"\d+", row), name


def test_the_table_of_objectives_is_the_programs():
    for name, objective in OBJECTIVES.items():
        band = f"{objective.clip_low:.9f}".rstrip("0"), f"{objective.clip_high:.9f}".rstrip("0")
        cells = name, objective.ratio_level, objective.aggregation, ", ".join(band)
        assert f"| {' | '.join(cells)} | {'yes' if objective.scale_by_std else 'no'} |" in TUTORIAL


def test_the_glossary_names_what_is_in_the_log():
    known = {key for keys in METRICS for key in keys.split(", ")}
    known |= {f"thl/{figure}" for figure in re.findall(r"\w+", METRICS["thl/<figure>"])}
    glossary = TUTORIAL.split("## Glossary")[1]
    rows = [line.strip("|").split(" | ") for line in glossary.splitlines() if "`mrl/" in line]
    assert len(rows) == 16
    for _, _, _, key in rows:
        assert key.strip("` ") in known, key


def test_the_sentence_of_the_run_has_the_kept_scores():
    kept = ROOT / "data" / "results" / "sgt-s0" / "evaluation.json"
    evaluations = json.loads(kept.read_text(encoding="utf-8"))
    assert learnt_sentence(evaluations, Counter()).removesuffix(".") in TUTORIAL


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
