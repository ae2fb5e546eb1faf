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
from mrl.tiny.pair import HOLES

ROOT = Path(mini_mrl.__file__).parent
TUTORIAL = (ROOT / "TUTORIAL.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d+)\. (.*?)(?=^## )", TUTORIAL, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"```bash\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
INLINE = [" ".join(text.split()) for text in re.findall(r"`(python mini_mrl\.py[^`]*)`", TUTORIAL)]


def test_every_example_gives_what_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = re.sub(r"^```$", "", TUTORIAL, flags=re.MULTILINE)  # an empty line ends an example
    examples = doctest.DocTestParser().get_doctest(text, {}, "TUTORIAL.md", None, 0)
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
    assert set(re.findall(r"\]\(#([^)]+)\)", TUTORIAL)) == anchors  # the list of contents has all
    assert TUTORIAL.count("**Exercise.**") == len(SECTIONS) == TUTORIAL.count("</details>")


def test_the_text_stays_short():
    """Words outside code, formulas, tables and folded solutions: 750 per section, 7,000 in all."""
    text = re.sub(r"<details>.*?</details>|<!--.*?-->", "", without_code(TUTORIAL), flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    counts = {
        section.split("\n")[0]: len([w for w in section.split() if re.search(r"\w", w)])
        for section in re.split(r"^## ", text, flags=re.MULTILINE)
    }
    assert max(counts.values()) <= 750, counts
    assert sum(counts.values()) <= 7000, counts


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


# what GitHub is known to render; \operatorname, for one, it refuses
MACROS = {
    "alpha", "begin", "cdot", "cr", "end", "ell", "exp", "frac", "lambda", "left", "log", "mathbb",
    "mathrm", "mid", "min", "mu", "nabla", "pi", "qquad", "rho", "right", "sigma", "sim", "sum",
    "text", "theta", "underbrace", "in",
}  # fmt: skip


def test_formulas_are_written_as_github_renders_them():
    text = without_code(TUTORIAL)
    displayed = re.findall(r"\$\$(.*?)\$\$", text, re.DOTALL)
    rest = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    inline = re.findall(r"(?<![\w$])\$([^$\n]+)\$(?![\w$])", rest)
    assert len(displayed) >= 8
    assert len(inline) >= 25
    assert rest.count("$") == 2 * len(inline)  # each sign opens or closes a formula
    for formula in displayed + inline:
        assert set(re.findall(r"\\([A-Za-z]+)", formula)) <= MACROS, formula
        assert formula.count("{") == formula.count("}"), formula
        assert "}_{" not in formula, formula  # Markdown may take it for emphasis
        assert formula.count(r"\left") == formula.count(r"\right"), formula
    for (
        formula
    ) in inline:  # Markdown takes a backslash before a sign, and a bar ends a table's cell
        assert not re.search(r"\\[^A-Za-z]|\|", formula), formula
        assert formula == formula.strip(), formula


def test_what_the_models_write_in_section_1_is_what_section_4_samples():
    (shown,) = re.findall(r"```text\n(qwen-tiny  .*?)\n```", SECTIONS["1"], re.DOTALL)
    assert len(shown.splitlines()) == 2
    for line in shown.splitlines():
        name, text = line.split(maxsplit=1)
        assert re.search(rf"^{name} +True {re.escape(text)} \[", SECTIONS["4"], re.MULTILINE)


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


def glossary_rows():
    """Word, meaning, sections, file and name in the log of each row."""
    lines = TUTORIAL.split("## Glossary")[1].splitlines()
    rows = [re.split(r" *\| *", line)[1:-1] for line in lines if line.startswith("|")]
    return rows[2:]  # the first two are the table's head


def test_the_glossary_names_what_is_in_the_log():
    known = {key for keys in METRICS for key in keys.split(", ")}
    known |= {f"thl/{figure}" for figure in re.findall(r"\w+", METRICS["thl/<figure>"])}
    keys = [key.strip("`") for *_, key in glossary_rows() if key]
    assert len(keys) >= 16
    assert set(keys) <= known


def test_the_glossary_has_every_bold_word_and_the_section_that_explains_it():
    bold = {
        section: {" ".join(word.split()) for word in re.findall(r"\*\*([^*]+)\*\*", text)}
        for section, text in SECTIONS.items()
    }
    headings = (".", ":", "?")  # what ends so is a sentence or the name of a paragraph
    words = {word for found in bold.values() for word in found if not word.endswith(headings)}
    explained = {
        word: re.findall(r"\d+", sections)
        for several, _, sections, *_ in glossary_rows()
        for word in several.split(", ")
    }
    assert len(words) >= 30
    assert set(explained) == words
    for word, sections in explained.items():
        assert any(word in bold[section] for section in sections), word


def test_the_sentence_of_the_run_has_the_kept_scores():
    kept = ROOT / "data" / "results" / "sgt-s0" / "evaluation.json"
    evaluations = json.loads(kept.read_text(encoding="utf-8"))
    assert learnt_sentence(evaluations, Counter()).removesuffix(".") in TUTORIAL


@pytest.mark.slow
def test_twenty_steps_give_what_the_tables_say(tmp_path):
    """The commands of sections 5, 6 and 9 at full length; other machines differ a little."""
    shown = ["solo", "replay", "sgt", "sft"]
    modes = [*shown, "xgrpo", "prp"]
    commands = [
        next(line for line in COMMANDS if f"--mode {mode} --steps 20 --seed 1" in line)
        for mode in modes
    ]

    def scores(command):
        words = [*shlex.split(command)[2:], "--placement", "resident", "--set", f"runs={tmp_path}"]
        subprocess.run(
            [sys.executable, str(ROOT / "mini_mrl.py"), *words],
            cwd=ROOT, check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        kept = tmp_path / f"{words[words.index('--mode') + 1]}-s1" / "evaluation.json"
        return json.loads(kept.read_text(encoding="utf-8"))

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(modes, pool.map(scores, commands), strict=True))

    def percent(mode, when, policy, skill):
        (scored,) = (
            scored
            for scored in found[mode][when]
            if (scored["policy"], scored["part"]) == (policy, "heldout")
        )
        return 100 * scored["skills"][skill]["pass@1"]

    before, after = re.findall(r'"eats" from (\d+) to (\d+) %', SECTIONS["5"])[0]
    assert percent("solo", "before", "qwen-tiny", "eats") == pytest.approx(int(before), abs=10)
    assert percent("solo", "after", "qwen-tiny", "eats") == pytest.approx(int(after), abs=15)

    numbers = r"(\d+) \| " * 5  # before, and after each mode
    rows = re.findall(
        rf"^\| `(\S+)`, \w+ \| (\w+) \| {numbers.strip()}$",
        SECTIONS["6"], re.MULTILINE,
    )  # fmt: skip
    assert len(rows) == 8
    for policy, skill, before, *after in rows:
        assert percent("solo", "before", policy, skill) == pytest.approx(int(before), abs=10)
        for mode, said in zip(shown, after, strict=True):
            assert percent(mode, "after", policy, skill) == pytest.approx(int(said), abs=15)

        if skill in HOLES[policy]:  # section 9: what is shared there does not fill them
            assert percent("xgrpo", "after", policy, skill) < 10
            assert percent("prp", "after", policy, skill) < 10

        # section 5 says the same of the run alone
        assert f"{skill} | {before} | {after[0]} |" in SECTIONS["5"]


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
