"""What README.md says exists and is spelt right; .ci/run runs its two commands."""

import re
import shlex
from pathlib import Path

import pytest

import mini_mrl
from mrl.config import RunConfig
from mrl.modes import MODES
from mrl.runtime.settings import check, load_config

ROOT = Path(mini_mrl.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README]
PAGES += [(ROOT / place / "README.md").read_text("utf-8") for place in ("data", "data/results")]
FOUND = re.findall(r"`python (mini_mrl\.py[^`]*)`", "".join(PAGES))
COMMANDS = sorted({" ".join(command.split()) for command in FOUND})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_the_program_knows(command, capsys):
    assert mini_mrl.main([*shlex.split(command)[1:], "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 8
    assert README.count("python3 -m venv .venv") == 2


def test_the_toml_example_is_a_valid_run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1])
    config = RunConfig(**load_config(path))
    check(config)
    assert all((ROOT / policy.path).is_dir() for policy in config.policies)


def files_of_the_tree():
    """The files under mrl/ that README's tree names; those of a folder are indented by four."""
    tree = re.search(r"^mrl/\n(.*?)^data/", README, re.DOTALL | re.MULTILINE)[1]
    folder = ""
    for indent, names in re.findall(r"^( +)((?:\w+(?:\.py|/) ?)+)", tree, re.MULTILINE):
        if names.strip().endswith("/"):
            folder = names.strip()
            continue
        yield from (f"mrl/{folder if len(indent) == 4 else ''}{name}" for name in names.split())


def test_the_tree_has_every_module_once():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mrl").rglob("*.py")}
    assignments = {path for path in there if path.startswith("mrl/classroom/")}
    named = list(files_of_the_tree())
    assert len(named) == len(set(named)) >= 40
    assert set(named) == {p for p in there - assignments if not p.endswith("__init__.py")}


def test_every_mode_is_in_the_readme_and_every_path_there_exists():
    for name in MODES:
        assert f"| `{name}` |" in README, name
    for path in re.findall(r"`((?:mrl|data|tests)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), path
