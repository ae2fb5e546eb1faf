"""README.md and the pages that it links: what they name exists, and what they measured is kept.

.ci/run runs README's two commands.
"""

import ast
import re
import shlex
from pathlib import Path

import pytest

import mini_mrl
from mrl.settings.read import check, complete, load_config
from mrl.tiny.pair import PAIR

ROOT = Path(mini_mrl.__file__).parent
PAGES = {
    place: (ROOT / place).read_text(encoding="utf-8")
    for place in (
        "README.md", "mrl/cli/RUNNING.md", "tests/bench/README.md", "data/README.md",
        "data/results/README.md", "mrl/classroom/TEACHING.md", "TUTORIAL.md", "TUTORIAL_2.md",
        "CONTRIBUTING.md",
    )
}  # fmt: skip
README, RUNNING = PAGES["README.md"], PAGES["mrl/cli/RUNNING.md"]
WORDS = " ".join(README.split())
PYTHON = re.findall(r"```python\n(.*?)```", README + RUNNING, re.DOTALL)
FOUND = re.findall(r"`python (mini_mrl\.py[^`]*)`", "".join(PAGES.values()))
COMMANDS = sorted({" ".join(command.split()) for command in FOUND})


# ------------------------------------------------------------------------ what is named exists


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_the_program_knows(command, capsys):
    assert mini_mrl.main([*shlex.split(command)[1:], "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 20


def test_the_two_commands_that_ci_runs_are_printed_and_not_silent():
    lines = [line for line in README.splitlines() if "python3 -m venv .venv" in line]
    for command in ("mini_mrl.py --mode sgt", "pytest"):  # .ci/run looks for the line with each
        assert len([line for line in lines if command in line]) == 1
    assert not any(" -q" in line for line in lines)


def test_the_toml_example_is_a_valid_run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", RUNNING, re.DOTALL)[1])
    config = complete(load_config(path))
    check(config)
    assert all((ROOT / policy.path).is_dir() for policy in config.policies)


@pytest.mark.parametrize("place", PAGES)
def test_every_path_exists_and_every_link_leads_somewhere(place):
    page = re.sub(r"^```.*?^```$", "", PAGES[place], flags=re.M | re.S)
    for path in re.findall(r"`((?:mrl|data|tests)/[\w/.]+)`", page):
        assert (ROOT / path).exists() or "NAME" in path, path
    for link in re.findall(r"\]\(([^)]+)\)", page):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / place).parent / path if path else ROOT / place
        assert target.exists(), link
        if anchor:
            text = target.read_text(encoding="utf-8")
            headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
            names = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            names |= set(re.findall(r'<a id="([^"]+)"></a>', text))  # what a heading was called
            assert anchor in names, link


def test_the_lines_that_load_a_trained_policy_do(capsys):
    saved = "runs/sgt-s0/checkpoints/step-000240/qwen-tiny"
    (lines,) = (lines for lines in PYTHON if saved in lines)
    exec(lines.replace(saved, str(ROOT / "data" / "tiny" / "qwen-tiny")), {})
    assert "\\boxed{" in capsys.readouterr().out


def test_the_lines_that_train_from_python_do(capsys, tmp_path, monkeypatch):
    (lines,) = (lines for lines in PYTHON if "load_team" in lines)
    problems = "data/words/test.jsonl"
    few = tmp_path / "few.jsonl"
    few.write_text("".join((ROOT / problems).read_text().splitlines(keepends=True)[::60]))
    shorter = lines.replace("range(1, 241)", "range(1, 2)").replace(problems, str(few))
    assert shorter.count("range(1, 2)") == shorter.count(str(few)) == 1
    monkeypatch.chdir(tmp_path)

    exec(shorter, {})
    step, scores = capsys.readouterr().out.splitlines()
    assert step.startswith("1 ")
    for said in (step.removeprefix("1 "), scores):
        by_name = ast.literal_eval(said)
        assert by_name.keys() == set(PAIR)
        assert all(0 <= value <= 1 for value in by_name.values())
    assert {path.name for path in tmp_path.iterdir()} == {"few.jsonl", "my-model"}
    assert (tmp_path / "my-model" / "model.safetensors").exists()


def test_the_citation_has_the_papers_of_the_readme():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^title: mini-mrl$", citation, re.MULTILINE)
    papers = re.findall(r'- type: article\n    title: "(.+)"', citation)
    numbers = re.findall(r'url: "(https://arxiv.org/abs/\d+\.\d+)"', citation)
    assert len(papers) == len(numbers) == 2
    for paper, number in zip(papers, numbers, strict=True):
        assert re.search(rf"\*{paper}\*, \[arXiv \S+\]\({number}\)", WORDS)
