"""data/examples/one_file.py computes what the program computes, with a plain loop."""

import importlib.util
import json

import pytest

from mrl.config import DATA
from mrl.run.problems import load_problems
from mrl.samples import problems_of_step
from mrl.verifier.verifier import Verifier
from tests.end_to_end.small_run import run
from tests.test_layout import code_lines

PATH = DATA / "examples" / "one_file.py"
STEPS, SEED = 3, 1


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_stands_alone():
    assert len(code_lines(PATH)) <= 250
    imports = [line for line in PATH.read_text().splitlines() if line.startswith("from mrl")]
    assert {line.split()[1] for line in imports} == {
        "mrl.run.problems", "mrl.verifier.verifier", "mrl.samples"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["solo", "sgt"])
def test_it_gives_the_rewards_rescues_and_losses_of_the_program(
    one_file, mode, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = load_problems(DATA / "words" / "heldout.jsonl")[:1]
    (tmp_path / "few.jsonl").write_text(json.dumps(vars(few[0])) + "\n")
    settings = ["--set", "heldout=few.jsonl", "--set", "placement=resident"]
    settings += ["--set", "learning_rate=1e-4", "--set", "updates_per_step=1"]  # as in the file
    arguments = ["--mode", mode, "--steps", str(STEPS), "--seed", str(SEED), "--name", "r"]
    assert run("--pair", "tiny", "--plain", *arguments, *settings) == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").open()]
    wanted = {(line["step"], line["policy"]): line for line in lines}

    learners = [one_file.load("qwen-tiny", 0), one_file.load("llama-tiny", 1)]
    train = load_problems(DATA / "words" / "train.jsonl")
    rescues = 0
    with Verifier() as verifier:
        for step in range(1, STEPS + 1):
            problems = problems_of_step(train, step, one_file.PROMPTS_PER_STEP, SEED)
            figures = one_file.train_step(learners, verifier, problems, mode, SEED, step)
            for name, numbers in figures.items():
                line = wanted[step, name]
                assert numbers["reward"] == pytest.approx(line["reward"])
                assert numbers["rescues"] == line["rescues"]
                assert numbers["loss"] == pytest.approx(line["loss"], abs=1e-4)
                assert numbers["loss_nll"] == pytest.approx(line["loss_nll"], rel=1e-3)
                assert numbers["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-2)
                rescues += numbers["rescues"]
    assert (rescues > 0) == (mode == "sgt")
