"""What `--help` says, at the 80 columns of a small terminal."""

import re

import pytest

import mini_mrl
from mrl.cli.command_line import evaluate, resume, settings
from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.lab.commands import COMMANDS as LAB_COMMANDS
from mrl.modes import MODES
from mrl.settings.read import run_config


@pytest.fixture
def help_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert mini_mrl.main(["--help"]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_summary_of_the_help_is_whole(help_lines):
    text = " ".join(" ".join(help_lines).split())
    for command in (evaluate, settings, *LAB_COMMANDS, resume):
        assert f"{command.__name__} {command.__doc__.splitlines()[0]}" in text
    assert not re.search(r"\w\.\.\. ", text)  # where a summary was cut
    assert max(map(len, help_lines)) <= 80


def test_the_help_names_the_modes_and_the_default_of_each_option(help_lines):
    text = " ".join(" ".join(help_lines).split())
    options = dict(re.findall(r"--(\w+) <(.*?)(?= --|$)", text))
    assert ", ".join(MODES) in options["mode"]
    for name in ("mode", "steps", "seed", "placement"):
        assert f"[default: {getattr(RunConfig, name)}]" in options[name]
    assert all("[default: " in words for words in options.values())


def test_settings_are_filtered_by_a_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert mini_mrl.main(["settings"]) == 0
    whole = capsys.readouterr().out
    assert mini_mrl.main(["settings", "Imitation"]) == 0
    some = capsys.readouterr().out
    assert "sgt.imitation_weight" in some and "learning_rate" in whole
    assert "learning_rate" not in some and "settings of a run" not in some
    assert mini_mrl.main(["settings", "nonsense"]) == 2
    assert "'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("lr", "learning_rate"), ("groupsize", "group_size"), ("qwen-tiny.lr", "learning_rate")],
)
def test_an_unknown_setting_gets_the_one_that_was_meant(wrong, right):
    with pytest.raises(MrlError, match=f"did you mean `{right}`"):
        run_config("tiny", None, {}, [f"{wrong}=4"])
