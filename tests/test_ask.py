"""`ask`: what the models answer to a sentence of one's own."""

import io
import os
import re

import pytest

import mini_mrl
from mrl.errors import MrlError
from mrl.lab.ask import ask, hint, load_states, newest_run
from mrl.settings.read import run_config
from mrl.tiny.skills import make_problem_sets

QUESTION = "Gus has 5 figs a day for 3 days. How many?"


@pytest.fixture(scope="module")
def config():
    return run_config(None, None, {}, [])


@pytest.fixture(scope="module")
def policies(config):
    (policies,) = load_states(config, None).values()
    return policies


def shown(table):
    """The cells of a table, row by row."""
    return list(
        zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    )


def test_each_model_answers_and_the_same_question_gives_the_same_answers(policies):
    rows = shown(ask(QUESTION, {"before": policies, "again": policies}, samples=2))
    assert [name for name, *_ in rows] == ["qwen-tiny", "llama-tiny"]
    for _, before, again in rows:
        assert before == again
        assert "of 2" in before
    assert "15: 2 of 2" in rows[1][1]  # a strong skill of llama-tiny, and a blind spot of the other
    assert "15" not in rows[0][1]


def test_the_counts_add_up_and_a_cut_completion_is_marked(policies, monkeypatch):
    rows = shown(ask("What is the capital of France?", {"before": policies}, samples=16))
    for _, cell in rows:
        counts = [int(count) for count in re.findall(r": (\d+) of 16$", cell, re.MULTILINE)]
        assert len(counts) == 4 and sum(counts) == 16

    finished = ask(QUESTION, {"before": policies[1:]}, samples=2)
    assert f"{policies[1].max_new_tokens} tokens" not in shown(finished)[0][1]
    monkeypatch.setattr(policies[1], "max_new_tokens", 5)
    cut = ask(QUESTION, {"before": policies[1:]}, samples=2)
    assert "5 tokens" in shown(cut)[0][1]


def test_a_person_is_told_what_the_tiny_models_know(config):
    for problems in make_problem_sets().values():
        assert not any(hint(problem.prompt, config) for problem in problems)
    for question in ("capital of France", "Gus has 5 figs.", "你好", ""):
        assert "How many?" in hint(question, config)
    config = run_config("tiny", None, {}, [])
    config.policies[0].path = "some/model"
    assert hint("capital of France", config) == ""


def test_without_a_sentence_it_asks_for_one_again_and_again(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    typed = f"{QUESTION}\n{'figs ' * 2000}\nEva had 46 cups and sold 14. How many?\n\nnever read\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert mini_mrl.main(["ask", "--samples", "1"]) == 0
    said = capfd.readouterr().out
    assert said.count("before training") == 2  # a question that is too long ends nothing
    assert "max_new_tokens" not in said
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert mini_mrl.main(["ask"]) == 0


def test_the_words_of_a_sentence_need_no_quotation_marks(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert mini_mrl.main(["ask", *QUESTION.split(), "--samples", "1"]) == 0
    assert QUESTION in capfd.readouterr().out


def test_the_newest_run_is_the_one_that_saved_last(tmp_path):
    assert newest_run(tmp_path / "runs") is None
    for time, name in enumerate(["older", "newer", "without a checkpoint"]):
        folder = tmp_path / name / "checkpoints" / ("step-000002" if time < 2 else "other")
        folder.mkdir(parents=True)
        os.utime(folder, (time, time))
    assert newest_run(tmp_path) == tmp_path / "newer"


def test_what_cannot_be_asked_is_one_sentence(tmp_path, monkeypatch, capfd, config, policies):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MrlError, match="empty"):
        ask("  ", {"before": policies}, samples=2)
    with pytest.raises(MrlError, match="nowhere"):
        load_states(config, tmp_path / "nowhere")
    assert mini_mrl.main(["ask", QUESTION, "--run", "nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err
    assert mini_mrl.main(["ask", "figs " * 2000]) == 2
    assert "Traceback" not in capfd.readouterr().err
