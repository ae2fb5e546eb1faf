"""A judge of one's own: whatever a person's file does, the run says it and loses nothing."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrl.errors import MrlError
from mrl.reward import Verdict
from mrl.settings.read import checksum
from mrl.verifier import verifier as verifier_module
from mrl.verifier.verifier import BoxVerifier, OwnJudge, make_verifier
from tests.end_to_end.small_run import (
    lines,
    run,
    small,
    stop_after,
)
from tests.sentences import names_it

COUNTDOWN = Path(__file__).parents[1] / "data" / "examples" / "countdown.py"
HONEST = "def judge(answer, text):\n    return text == answer\n"


@pytest.fixture
def own_judge(tmp_path):
    """A function that starts a judge with the given text of its file."""
    started, said = [], []

    def make(text, timeout_s=2.0):
        path = tmp_path / "mine.py"
        path.write_text(text)
        started.append(OwnJudge(str(path), timeout_s, said.append))
        started[-1].start_and_check()
        return started[-1], said

    yield make
    for verifier in started:
        verifier.close()


def test_a_runs_own_judge_is_taken_where_it_names_one(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HONEST)
    assert type(make_verifier("", 2.0, print)) is BoxVerifier
    assert type(make_verifier(str(path), 2.0, print)) is OwnJudge


def test_its_child_has_no_torch_whose_cuda_libraries_are_past_its_memory_limit(own_judge):
    verifier, _ = own_judge("import sys\ndef judge(answer, text): return answer in sys.modules")
    assert verifier.verify("sys", "x") is Verdict.CORRECT
    assert verifier.verify("torch", "x") is Verdict.WRONG
    assert verifier.verify("numpy", "x") is Verdict.WRONG


def test_both_verifiers_take_the_keywords_of_the_protocol(own_judge, verifier):
    mine, _ = own_judge(HONEST)
    assert mine.verify(answer="a", text="a", finished=True) is Verdict.CORRECT
    assert verifier.verify(answer="1", text=r"\boxed{1}", finished=True) is Verdict.CORRECT


def test_it_judges_whole_completions_and_says_which_were_cut(own_judge):
    verifier, said = own_judge(HONEST)
    assert verifier.check_answer("a")
    assert verifier.verify("a", "a") is Verdict.CORRECT
    assert verifier.verify("a", "a", finished=False) is Verdict.CORRECT
    assert verifier.verify("a", "b") is Verdict.WRONG
    assert verifier.verify("a", "b", finished=False) is Verdict.TRUNCATED
    assert said == []


LOADING = {
    "no Python": ("def judge(", "SyntaxError"),
    "raises": ("1 / 0", "ZeroDivisionError"),
    "leaves": ("raise SystemExit(3)", "SystemExit 3"),
    "ends its process": ("import os\nos._exit(0)", "process"),
    "no judge": ("def grade(answer, text): ...", "judge(answer, text)"),
    "judge is no function": ("judge = 3", "judge(answer, text)"),
    "an import that is not there": ("import nothing", "ModuleNotFoundError nothing"),
}


@pytest.mark.parametrize("case", LOADING)
def test_a_judge_that_cannot_be_loaded_is_refused_with_the_reason(own_judge, case):
    text, reason = LOADING[case]
    with pytest.raises(MrlError, match="cannot be loaded") as refusal:
        own_judge(text)
    assert names_it(str(refusal.value), reason)


def test_a_judge_that_loads_for_ever_is_refused(own_judge, monkeypatch):
    monkeypatch.setattr(verifier_module, "START_LIMITS_S", (0.25, 0.5))
    began = time.monotonic()
    with pytest.raises(MrlError) as refusal:
        own_judge("while True: pass")
    assert names_it(str(refusal.value), "0.25") and names_it(str(refusal.value), "0.5")
    assert time.monotonic() - began < 5


def test_a_judge_that_starts_slowly_once_is_waited_for_and_this_is_said(own_judge, monkeypatch):
    monkeypatch.setattr(verifier_module, "START_LIMITS_S", (1, 60))
    verifier, said = own_judge(
        "import pathlib, time\nmark = pathlib.Path('was_here')\nif not mark.exists():\n"
        "    mark.touch()\n    time.sleep(30)\n" + HONEST
    )
    assert verifier.verify("a", "a") is Verdict.CORRECT
    assert len(said) == 1 and names_it(said[0], "1 seconds")


MISTAKES = {  # body of judge -> (verdict, what is said)
    "raises": ("return {}[text]", Verdict.WRONG, "KeyError("),
    "leaves": ("raise SystemExit", Verdict.WRONG, "SystemExit("),
    "returns nothing": ("text == answer", Verdict.WRONG, "NoneType"),
    "returns a number": ("return 1", Verdict.WRONG, "int"),
    "never ends": ("while True: pass", Verdict.TIMEOUT, "0.5 s"),
    "ends its process": ("import os; os._exit(0)", Verdict.TIMEOUT, "its process"),
    "takes all memory": ("return len('x' * 2**40) > 0", Verdict.WRONG, "MemoryError("),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_refused_with_an_empty_text_and_later_counted_and_said_once(own_judge, case):
    body, verdict, sentence = MISTAKES[case]
    verifier, said = own_judge(f"def judge(answer, text):\n    {body}\n", timeout_s=0.5)
    with pytest.raises(MrlError, match="must return False") as refusal:
        verifier.check_answer("a")
    assert sentence in str(refusal.value)
    assert [verifier.verify("a", "x\n\x1b[2J"), verifier.verify("a", "y")] == [verdict, verdict]
    assert len(said) == 1 and sentence in said[0]
    assert f"count as {verdict}" in said[0] and "\x1b" not in said[0]


def test_a_judge_that_calls_an_empty_text_right_is_refused(own_judge):
    verifier, _ = own_judge("def judge(answer, text):\n    return True\n")
    with pytest.raises(MrlError, match="returned True"):
        verifier.check_answer("a")


def test_what_a_judge_prints_changes_no_verdict(own_judge, capfd):
    verifier, said = own_judge(
        "import sys\nprint('loaded')\ndef judge(answer, text):\n    print('correct')\n"
        "    print('wrong', file=sys.stderr)\n    return text == answer\n"
    )
    assert [verifier.verify("a", text) for text in "ab"] == [Verdict.CORRECT, Verdict.WRONG]
    assert said == [] and capfd.readouterr() == ("", "")


def test_a_child_that_died_is_started_again_with_the_text_that_the_file_had(own_judge):
    verifier, _ = own_judge(HONEST)
    Path(verifier.name.removeprefix("judge ")).write_text(HONEST.replace("==", "!="))
    verifier.close()
    assert verifier.verify("a", "a") is Verdict.CORRECT


def test_a_file_may_read_what_lies_beside_it_and_name_its_own_types(own_judge, tmp_path):
    (tmp_path / "right.txt").write_text("a")
    verifier, _ = own_judge(
        "from dataclasses import dataclass\nfrom pathlib import Path\n@dataclass\nclass Right:\n"
        "    text: str\nright = Right(Path(__file__).with_name('right.txt').read_text())\n"
        "def judge(answer, text): return text == right.text"
    )
    assert verifier.verify("", "a") is Verdict.CORRECT


def test_a_file_may_import_and_open_what_lies_beside_it(own_judge, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "helpers_of_mine.py").write_text("def last(text): return text.split()[-1:]")
    (tmp_path / "words.txt").write_text("yes no")
    (tmp_path / "json.py").write_text("raise SystemExit('hides a module of Python')")
    verifier, said = own_judge(
        "import json\nfrom helpers_of_mine import last\nWORDS = open('words.txt').read().split()\n"
        "def judge(answer, text): return last(text) == [answer] and answer in WORDS"
    )
    assert verifier.verify("yes", "I say yes") is Verdict.CORRECT
    assert verifier.verify("yes", "I say no") is Verdict.WRONG
    assert said == []


def test_numpys_true_and_false_are_taken(own_judge):
    verifier, said = own_judge(
        "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'  # each reserves address space\n"
        "import numpy\ndef judge(answer, text): return numpy.bool_(text == answer)"
    )
    assert verifier.check_answer("a")
    assert verifier.verify("a", "a") is Verdict.CORRECT
    assert verifier.verify("a", "b") is Verdict.WRONG
    assert said == []


# ------------------------------------------------------------------------------ a function


def test_a_function_judges_in_this_process():
    asked, said = [], []

    def shout(answer, text):
        asked.append((answer, text))
        return {"a": True, "b": False, "": False}[text]

    with OwnJudge(shout, say=said.append) as verifier:
        assert verifier.check_answer("x")
        assert verifier.verify("x", "a") is Verdict.CORRECT
        assert verifier.verify("x", "b") is Verdict.WRONG
        assert verifier.verify("x", "b", finished=False) is Verdict.TRUNCATED
        assert [verifier.verify("x", "c"), verifier.verify("x", "d")] == [Verdict.WRONG] * 2
    assert asked == [("x", text) for text in ("", "a", "b", "b", "c", "d")]
    assert len(said) == 1 and said[0].startswith("judge shout ") and "KeyError('c')" in said[0]


def test_a_function_that_calls_an_empty_text_right_is_refused():
    with pytest.raises(MrlError, match="judge <lambda> "):
        OwnJudge(lambda answer, text: True).check_answer("a")


# ------------------------------------------------------------------------------ in a run


def test_a_judge_that_does_not_work_ends_a_run_before_it_writes(place, capfd):
    Path("mine.py").write_text("def judge(answer, text): ...")
    assert small("--set", "judge=mine.py") == 2
    assert "NoneType" in capfd.readouterr().err
    assert small("--set", "judge=none.py") == 2
    assert "none.py" in capfd.readouterr().err
    assert not Path("runs").exists()


def test_a_changed_judge_is_refused_by_resume_and_evaluate_and_loses_nothing(
    place, monkeypatch, capfd
):
    Path("mine.py").write_text(HONEST)
    old = checksum("mine.py")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        assert small("--steps", "2", "--set", "judge=mine.py") == 130
    Path("mine.py").write_text(HONEST.replace("==", "!="))
    new = checksum("mine.py")
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    for command in (["resume", "runs/sgt-s0", "--plain"], ["evaluate", "runs/sgt-s0"]):
        assert run(*command) == 2
        said = capfd.readouterr().err
        assert new in said and old in said
    assert before == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    Path("mine.py").write_text(HONEST)
    assert run("resume", "runs/sgt-s0", "--plain") == 0


# ------------------------------------------------------------------------------ the example


def countdown():
    spec = importlib.util.spec_from_file_location("countdown", COUNTDOWN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("box", "right"),
    [
        ("3*(5+2)", True), ("(2+5) * 3", True), (r"(5+2)\times 3", True), ("3*5+2*3", False),
        ("21", False), ("3*7", False), ("3*5+2", False), ("2**5", False), ("(3", False),
        ("no", False), ("", False), ("3*(5+2)+0", False), ("5/(3-3)+2", False), ("03*(5+2)", False),
        ("3*(5+2)=21", False), ("-3*-(5+2)", False), ("__import__('os').abort() or 3*(5+2)", False),
        ("(" * 5000 + "3*(5+2)" + ")" * 5000, False),
    ],
)  # fmt: skip
def test_countdowns_judge(box, right):
    judge = countdown().judge
    assert judge("3 5 2 = 21", f"I think \\boxed{{{box}}}.") is right
    assert judge("3 5 2 = 21", box) is False  # not in a box


@pytest.mark.slow
def test_countdown_writes_problems_that_run_on_the_tiny_pair(place):
    command = [sys.executable, COUNTDOWN, "made"]
    assert subprocess.run(command).returncode == 0
    again = Path("made/train.jsonl").read_bytes()
    assert subprocess.run(command).returncode == 0
    assert Path("made/train.jsonl").read_bytes() == again
    problems = lines("made/train.jsonl") + lines("made/heldout.jsonl")
    assert len({problem["prompt"] for problem in problems}) > 1190
    heldout = Path("made/heldout.jsonl").read_text().splitlines()[:20]
    Path("made/heldout.jsonl").write_text("\n".join(heldout))
    about = ["judge=" + str(COUNTDOWN), "train=made/train.jsonl", 'heldout=["made/heldout.jsonl"]']
    options = [word for text in about for word in ("--set", text)]
    assert small("--steps", "2", *options) == 0
    for line in lines("runs/sgt-s0/metrics.jsonl"):
        assert line["verdict/timeout"] == line["verdict/unparsed"] == 0
        verdicts = ("correct", "wrong", "truncated")
        assert sum(line[f"verdict/{name}"] for name in verdicts) == pytest.approx(1.0)
