"""What README.md says exists and is spelt right; .ci/run runs its two commands."""

import re
import shlex
from pathlib import Path

import pytest

import mini_mrl
from mrl.config import RunConfig, check, load_config
from mrl.modes import MODES

ROOT = Path(mini_mrl.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA_README = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`python (mini_mrl\.py[^`\n]*)`", README + DATA_README)))


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


def test_every_module_is_in_the_readme():
    for path in [*(ROOT / "mrl").glob("*.py"), *(ROOT / "mrl" / "lab").glob("*.py")]:
        if path.name not in ("__init__.py", "errors.py"):
            assert path.relative_to(ROOT).as_posix() in README, path.name


def test_the_core_touches_the_lab_in_three_places_only():
    touched = set()
    for path in [*(ROOT / "mrl").glob("*.py"), *(ROOT / "mrl" / "modes").glob("*.py")]:
        for module in re.findall(
            r"^ *from (mrl\.lab\S*|mini_mrl) import",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            touched.add((path.name, module))
    assert touched == {
        ("run.py", "mrl.lab.collapse"),
        ("run.py", "mrl.lab.faults"),
        ("run.py", "mrl.lab.tensorboard"),
    }


def test_every_mode_is_in_the_readme_and_every_path_there_exists():
    for name in MODES:
        assert f"| `{name}` |" in README, name
    for path in re.findall(r"`((?:mrl|data|tests)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), path
