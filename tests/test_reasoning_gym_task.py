"""data/examples/reasoning_gym_task.py: a public task. Skipped if reasoning-gym is not installed."""

import importlib.util
import json

import pytest

from mrl.config import DATA
from mrl.run.problems import load_problems
from mrl.verifier.verifier import make_verifier

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.slow
PATH = DATA / "examples" / "reasoning_gym_task.py"


@pytest.fixture(scope="module")
def task():
    spec = importlib.util.spec_from_file_location("reasoning_gym_task", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_task_may_have_arguments(task):
    assert task.parse_task("gcd") == ("gcd", {})
    found = task.parse_task("gcd:max_value=50,whitespace=single")
    assert found == ("gcd", {"max_value": 50, "whitespace": "single"})


def test_the_files_can_be_read_and_judged(task, tmp_path):
    task.main(tmp_path, ["chain_sum:max_terms=3,size=12", "gcd:max_value=50,size=7"])
    record = json.loads((tmp_path / "tasks.json").read_text())
    assert record["tasks"]["gcd"] == {"max_value": 50, "size": 7}
    with make_verifier(str(PATH), 2.0, print) as verifier:
        problems = load_problems(tmp_path / "train.jsonl", verifier.check_answer)
        assert [problem.skill for problem in problems] == ["chain_sum"] * 12 + ["gcd"] * 7
        for problem in problems:
            correct = json.loads(problem.answer)["answer"]
            text = rf"first \boxed{{-77777}}, then \boxed{{{correct}}}"
            assert verifier.verify(problem.answer, text, True) == "correct"
            assert verifier.verify(problem.answer, r"\boxed{-77777}", True) != "correct"
            assert verifier.verify(problem.answer, f"{correct}", True) != "correct"
    train = {p.prompt for p in problems}
    heldout = {p.prompt for p in load_problems(tmp_path / "heldout.jsonl")}
    assert train != heldout


@pytest.mark.parametrize("box", ["1234.", "$1234$", r"\text{1234}", "1234.0", "1,234", "1234 cm"])
def test_an_integer_may_be_written_in_any_notation(task, monkeypatch, box):
    entry = {"question": "?", "answer": "1234", "metadata": {"source_dataset": "x"}}
    monkeypatch.setattr(
        task.reasoning_gym,
        "get_score_answer_fn",
        lambda name: lambda text, entry: text == entry["answer"],
    )
    assert task.judge(json.dumps(entry), rf"\boxed{{{box}}}")
    assert not task.judge(json.dumps(entry | {"answer": "1235"}), rf"\boxed{{{box}}}")


def test_partial_credit_and_entries_that_fail_their_own_answer_do_not_count(task, monkeypatch):
    entry = {"question": "?", "answer": "7", "metadata": {"source_dataset": "x"}}
    scores = {"7": 1.0, "8": 0.01}
    monkeypatch.setattr(
        task.reasoning_gym, "get_score_answer_fn", lambda name: lambda text, _: scores[text]
    )
    assert task.judge(json.dumps(entry), r"\boxed{7}")
    assert not task.judge(json.dumps(entry), r"\boxed{8}")
    made = [entry, entry | {"answer": "8"}]
    monkeypatch.setattr(task.reasoning_gym, "create_dataset", lambda name, **settings: made)
    assert len(task.problems("x", {}, 2, 0)) == 1
