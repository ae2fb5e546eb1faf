"""one_file.py computes what the program computes, with a plain loop."""

import importlib.util
import json
import runpy
import sys

import pytest

from mrl.config import DATA
from mrl.run.problems import load_problems
from tests.end_to_end.small_run import run
from tests.test_layout import imported

PATH = DATA.parent / "one_file.py"
STEPS, SEED = 3, 1


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_imports_nothing_of_the_program():
    assert not [name for name in imported(PATH) if name.startswith(("mrl", "mini_mrl"))]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("47-38: 17-8=9, 4-1-3=0. \\boxed{9}", 1),
        ("\\boxed{8} or \\boxed{9}", 1),
        ("\\boxed{9} or \\boxed{8}", 0),
        ("9", 0),
        ("\\boxed{9", 0),
        ("\\boxed{}", 0),
        ("\\boxed{-9}", 0),
    ],
)
def test_its_judge_takes_the_last_box(one_file, text, reward):
    assert one_file.judge("9", text) == reward


@pytest.mark.parametrize("words", [["sft"], ["--help"], ["sgt", "many"]])
def test_it_refuses_what_it_does_not_know(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", [str(PATH), *words])
    with pytest.raises(SystemExit, match="sgt"):
        runpy.run_path(str(PATH), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["solo", "sgt"])
def test_it_gives_the_rewards_rescues_and_losses_of_the_program(
    one_file, mode, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = load_problems(DATA / "words" / "validation.jsonl")[:1]
    (tmp_path / "few.jsonl").write_text(json.dumps(vars(few[0])) + "\n")
    settings = ["--set", "heldout=few.jsonl", "--set", "placement=resident"]
    settings += ["--set", "learning_rate=1e-4", "--set", "updates_per_step=1"]  # as in the file
    arguments = ["--mode", mode, "--steps", str(STEPS), "--seed", str(SEED), "--name", "r"]
    assert run("--pair", "tiny", "--plain", *arguments, *settings) == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").open()]
    wanted = {(line["step"], line["policy"]): line for line in lines}

    learners = [one_file.load("qwen-tiny", 0), one_file.load("llama-tiny", 1)]
    train = one_file.load_problems(DATA / "words" / "train.jsonl")
    rescues = 0
    for step in range(1, STEPS + 1):
        problems = one_file.problems_of_step(train, step, SEED)
        for name, numbers in one_file.train_step(learners, problems, mode, SEED, step).items():
            line = wanted[step, name]
            assert numbers["reward"] == pytest.approx(line["reward"])
            assert numbers["rescues"] == line["rescues"]
            assert numbers["loss"] == pytest.approx(line["loss"], abs=1e-4)
            assert numbers["loss_nll"] == pytest.approx(line["loss_nll"], rel=1e-3)
            assert numbers["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-2)
            rescues += numbers["rescues"]
    assert (rescues > 0) == (mode == "sgt")
