"""`ask`: what the models answer to a sentence of one's own."""

import os

import pytest

import mini_mrl
from mrl.errors import MrlError
from mrl.lab.ask import ask, newest_run, states_of
from mrl.settings.settings import run_config

QUESTION = "Gus has 5 figs a day for 3 days. How many?"


def shown(table):
    """The cells of a table, row by row."""
    return list(
        zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    )


def test_each_model_answers_and_the_same_question_gives_the_same_answers():
    config = run_config(None, None, {}, [])
    rows = shown(ask(QUESTION, {"before": config, "again": config}, samples=2))
    assert [name for name, *_ in rows] == ["qwen-tiny", "llama-tiny"]
    for _, before, again in rows:
        assert before == again
        assert "of 2" in before
    assert "15: 2 of 2" in rows[1][1]  # a strong skill of llama-tiny, and a blind spot of the other
    assert "15" not in rows[0][1]


def test_the_newest_run_is_the_one_that_saved_last(tmp_path):
    assert newest_run(tmp_path / "runs") is None
    for time, name in enumerate(["older", "newer", "without a checkpoint"]):
        folder = tmp_path / name / "checkpoints" / ("step-000002" if time < 2 else "other")
        folder.mkdir(parents=True)
        os.utime(folder, (time, time))
    assert newest_run(tmp_path) == tmp_path / "newer"


def test_what_cannot_be_asked_is_one_sentence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    config = run_config(None, None, {}, [])
    with pytest.raises(MrlError, match="empty"):
        ask("  ", {"before": config}, samples=2)
    with pytest.raises(MrlError, match="nowhere"):
        states_of(config, tmp_path / "nowhere")
    assert mini_mrl.main(["ask", QUESTION, "--run", "nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err
    assert mini_mrl.main(["ask", "figs " * 2000]) == 2
    assert "Traceback" not in capfd.readouterr().err
