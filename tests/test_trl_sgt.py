"""data/examples/trl_sgt.py: SGT in TRL's trainer. Skipped without `pip install -e ".[trl]"`."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from mrl.config import DATA, PolicyConfig
from mrl.exchange_folder import Folder, question_hash
from mrl.learning import add_gradients
from mrl.models.loading import load_policy
from mrl.modes.own import own_samples
from mrl.objectives import OBJECTIVES
from mrl.run.problems import load_problems
from mrl.samples import TrainingSample
from tests.end_to_end.small_run import lines
from tests.fakes import success

pytest.importorskip("trl")
SCRIPT = DATA / "examples" / "trl_sgt.py"
QWEN = str(DATA / "tiny" / "qwen-tiny")
SKILLS = ("days", "sold", "finds", "shares", "loses", "packs")  # two of them are blind spots


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("trl_sgt", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["trl_sgt"] = module  # dataclasses look the module up by its name
    spec.loader.exec_module(module)
    yield module
    del sys.modules["trl_sgt"]


def write_solutions(folder, problems):
    """A peer that has solved all problems."""
    entries = []
    for problem in problems:
        question = question_hash(problem.prompt)
        text = f"\\boxed{{{problem.answer}}}"
        entries.append({"format": 1, "kind": "success", "question": question, "text": text})
    folder.mkdir()
    path = folder / "peer.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.slow
def test_one_step_of_the_trainer_has_the_gradient_of_sgt(example, verifier, tmp_path):
    all_problems = load_problems(DATA / "words" / "train.jsonl")
    problems = [next(p for p in all_problems if p.skill == skill) for skill in SKILLS]
    write_solutions(tmp_path / "folder", problems)
    folder = Folder(tmp_path / "folder", ["qwen-tiny"], problems)
    folder.open("qwen-tiny")
    settings = example.defaults() | {
        "output_dir": str(tmp_path / "out"), "max_steps": 1, "steps_per_generation": 1,
        "per_device_train_batch_size": 8 * len(SKILLS), "scale_rewards": "none", "use_cpu": True,
    }  # fmt: skip
    rows = [
        {"prompt": [{"role": "user", "content": p.prompt}], "problem": vars(p)} for p in problems
    ]
    trainer = example.SGTTrainer(
        "qwen-tiny", folder, verifier, 0.1,
        model=example.AutoModelForCausalLM.from_pretrained(QWEN, dtype=torch.float32),
        processing_class=example.AutoTokenizer.from_pretrained(QWEN),
        args=example.GRPOConfig(**settings), train_dataset=example.Dataset.from_list(rows),
    )  # fmt: skip
    trainer.model.train()
    batch = trainer._generate_and_score_completions([row for row in rows for _ in range(8)])
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, batch).backward()
    theirs = {name: weight.grad for name, weight in trainer.model.named_parameters()}

    policy = load_policy(PolicyConfig("qwen-tiny", QWEN, learning_rate=1e-5))
    objective = replace(OBJECTIVES["grpo"], scale_by_std=False)
    samples = []
    for number, group in enumerate(trainer.groups):
        row = 8 * number
        group.prompt_ids = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        for rollout in group.rollouts:
            rollout.logprobs, rollout.version = [0.0] * len(rollout.completion_ids), 0
        samples += own_samples(policy, group, objective)
        rescue = batch["peer_ids"][row][batch["peer_mask"][row].bool()].tolist()
        if rescue:
            record = success(group.problem.id)
            about = {"loss": "imitation", "weight": 0.1, "record": record}
            samples.append(TrainingSample(group.prompt_ids, rescue, **about))
    assert {group.outcome for group in trainer.groups} >= {"all_fail", "mixed"}
    assert sum(sample.loss == "imitation" for sample in samples) == trainer.rescues > 0

    add_gradients(policy, samples, 0)
    largest = 0.0
    for name, weight in policy.model.named_parameters():
        assert torch.allclose(weight.grad, theirs[name], rtol=1e-3, atol=1e-6), name
        largest = max(largest, float(weight.grad.abs().max()))
    assert largest > 1e-3
    folder.close()


@pytest.mark.slow
def test_the_script_trains_publishes_and_is_rescued(tmp_path):
    problems = load_problems(DATA / "words" / "train.jsonl")
    write_solutions(tmp_path / "folder", problems)
    command = [
        sys.executable, str(SCRIPT), "--model", QWEN, "--folder", str(tmp_path / "folder"),
        "--output_dir", str(tmp_path / "out"), "--max_steps", "8", "--use_cpu", "true",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    published = lines(tmp_path / "folder" / "qwen-tiny.jsonl")
    assert [entry["step"] for entry in published if entry["kind"] == "step"] == [1, 2]
    assert len(published) > 20
    assert int(done.stdout.rsplit("qwen-tiny: ", 1)[1].split()[0]) > 0  # rescues
    assert (tmp_path / "out" / "model.safetensors").is_file()
