"""The front door: the method from Python, without a directory, an option or a file."""

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

import mini_mrl
from mini_mrl import load_team, train_step
from mrl.config import setting
from mrl.errors import MrlError
from mrl.modes import Mode
from mrl.modes.sgt import SGT

SMALL = {"prompts_per_step": 2, "group_size": 2}


def test_a_team_is_loaded_trained_scored_and_saved_without_another_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = Path(mini_mrl.__file__).parent / "data" / "words" / "test.jsonl"
    few = tmp_path / "few.jsonl"
    few.write_text("".join(problems.read_text().splitlines(keepends=True)[::60]))

    team = load_team("tiny", mode="sgt", seed=3, **SMALL)
    for step in (1, 2):
        results = train_step(team, step)
        assert {0 <= result.reward <= 1 for result in results.values()} == {True}
    scores = team.evaluate(few, samples=1)
    assert list(scores) == ["qwen-tiny", "llama-tiny"]
    assert all(0 <= value <= 1 for by_skill in scores.values() for value in by_skill.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.jsonl"]

    policy = team.policies[0]
    policy.save("my-model")
    again = AutoModelForCausalLM.from_pretrained("my-model")
    for name, value in policy.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert len(AutoTokenizer.from_pretrained("my-model")) == len(policy.tokenizer)


def test_a_step_that_was_interrupted_leaves_nothing_for_the_next_one():
    """As when a cell of a notebook is stopped: its records would be of older weights."""
    whole, cut = (load_team("tiny", seed=1, **SMALL) for _ in range(2))

    def interrupted(*_):
        raise KeyboardInterrupt

    mode = cut.modes["llama-tiny"]
    mode.training_samples = interrupted
    with pytest.raises(KeyboardInterrupt):
        train_step(cut, 1)
    assert cut.exchange.records
    del mode.training_samples

    for step in (1, 2):
        results = [train_step(team, step) for team in (whole, cut)]
        for name in ("qwen-tiny", "llama-tiny"):
            one, other = (result[name] for result in results)
            assert one.stats.metrics() == other.stats.metrics()
            assert one.experiences == other.experiences


def test_a_function_may_judge_and_is_called_in_this_process():
    seen = []

    def judge(answer, text):
        seen.append(text)
        return "7" in text

    team = load_team("tiny", judge=judge, **SMALL)
    results = train_step(team, 1)
    for group in results["qwen-tiny"].groups:
        for rollout in group.rollouts:
            assert rollout.reward == ("7" in rollout.text)
    assert len(seen) >= 8


def test_values_go_in_as_they_are(tmp_path):
    words = Path(mini_mrl.__file__).parent / "data" / "words"
    texts = {"system_prompt": 'Réponds 😀 "bien"', "template": "😀\n{prompt}\n"}
    team = load_team(
        "tiny", train=words / "train.jsonl", heldout=[words / "validation_wording.jsonl"],
        temperature=0.5, seed=3, **texts, **SMALL,
    )  # fmt: skip
    for policy in team.policies:
        assert {name: getattr(policy.config, name) for name in texts} == texts
        assert policy.config.temperature == 0.5
        assert policy.config.learning_rate == 3e-5  # the tiny pair's
    assert team.seed == 3
    with pytest.raises(MrlError, match="group_size"):
        load_team("tiny", group_size="8")


def test_no_system_prompt_and_that_of_the_problems_are_two_things(tmp_path):
    words = Path(mini_mrl.__file__).parent / "data" / "words"
    train = tmp_path / "train.jsonl"
    train.write_text("".join((words / "train.jsonl").read_text().splitlines(True)[:4]))
    (tmp_path / "system_prompt.txt").write_text("Box it.")
    for given, want in (
        ({}, "Box it."),
        ({"system_prompt": ""}, ""),
        ({"system_prompt": "A"}, "A"),
    ):
        team = load_team("tiny", train=train, **given, **SMALL)
        assert {policy.config.system_prompt for policy in team.policies} == {want}


def test_a_mode_may_be_a_name_a_class_or_an_object():
    weights = {}
    given = SGT(imitation_weight=0.3)
    settings = {"sgt": {"imitation_weight": 0.4}}
    for label, mode, more in (
        ("name", "sgt", {"settings": settings}),
        ("class", SGT, {"settings": settings}),
        ("object", given, {}),
        ("object and settings", given, {"settings": settings}),
        ("default", SGT, {}),
    ):
        team = load_team("tiny", mode=mode, **more, **SMALL)
        one, other = team.modes.values()
        assert len({id(one), id(other), id(given)}) == 3  # each policy has its own
        weights[label] = one.imitation_weight
    assert list(weights.values()) == [0.4, 0.4, 0.3, 0.4, 0.1]
    assert given.imitation_weight == 0.3

    for wrong in (3, Mode, int, load_team):
        with pytest.raises(MrlError, match="mode"):
            load_team("tiny", mode=wrong, **SMALL)
    for wrong in ({"sgt": 3}, {"stg": {}}, {"sgt": {"imitation": 1.0}}, 3):
        with pytest.raises(MrlError, match="settings"):
            load_team("tiny", settings=wrong, **SMALL)


def test_a_mode_that_is_written_in_a_cell_of_a_notebook_trains(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    cell = type("Mine", (SGT,), {"__module__": "__main__", "name": "mine"})
    team = load_team("tiny", mode=cell, **SMALL)
    assert set(train_step(team, 1)) == {"qwen-tiny", "llama-tiny"}
    team.modes = {name: cell() for name in team.modes}
    assert set(train_step(team, 2)) == {"qwen-tiny", "llama-tiny"}


def test_settings_without_dataclass_are_named():
    class Mine(SGT):
        name = "mine"
        strength: float = setting(0.5, "how much")

    class Child(Mine):
        pass

    for mode in (Mine, Child):
        with pytest.raises(MrlError, match=r"Mine.*strength.*@dataclass"):
            load_team("tiny", mode=mode, settings={"mine": {"strength": 0.1}}, **SMALL)
    assert load_team("tiny", mode=dataclass(Mine), **SMALL).mode.strength == 0.5


@pytest.mark.slow
def test_the_process_stays_as_it_was(tmp_path):
    """Importing and every call leave threads, cuDNN, the allocator and messages alone."""
    code = """
import os, torch
from transformers.utils import logging

def settings():
    return (torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled(),
            os.environ.get("PYTORCH_ALLOC_CONF"), logging.get_verbosity(),
            logging.is_progress_bar_enabled())

torch.set_num_threads(2)
before = settings()
from mini_mrl import load_team, train_step
assert settings() == before, settings()
torch.cuda.set_per_process_memory_fraction = None
team = load_team("tiny", prompts_per_step=2, group_size=2)
assert settings() == before, settings()
inside = []
verify = team.verifier.verify_groups
team.verifier.verify_groups = lambda groups: (inside.append(settings()[:2]), verify(groups))
train_step(team, 1)
assert settings() == before, settings()
team.evaluate("few.jsonl", samples=1)
assert settings() == before, settings()
assert set(inside) == {(1, False)}, inside
"""
    root = Path(mini_mrl.__file__).parent
    lines = (root / "data" / "words" / "test.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(lines[:2]))
    environment = os.environ | {"PYTHONPATH": str(root)}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_installed_package_without_data_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("mrl.settings.read.DATA", tmp_path / "data")
    with pytest.raises(MrlError, match="data does not exist"):
        load_team("tiny", train=tmp_path / "data" / "words" / "train.jsonl", **SMALL)


def in_memory(name):
    path = Path(mini_mrl.__file__).parent / "data" / "tiny" / name
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def test_models_in_memory_make_the_same_team_as_their_directories():
    qwen, llama = in_memory("qwen-tiny"), in_memory("llama-tiny")
    llama[0].config._name_or_path = ""  # made in this program, from nothing
    llama[0].name_or_path = ""
    team = load_team([qwen, llama], seed=3, **SMALL)
    assert [policy.name for policy in team.policies] == ["qwen-tiny", "model-1"]
    before = {name: value.clone() for name, value in qwen[0].state_dict().items()}

    results = train_step(team, 1)["qwen-tiny"]
    same = train_step(load_team("tiny", seed=3, **SMALL), 1)["qwen-tiny"]
    assert [g.rollouts for g in results.groups] == [g.rollouts for g in same.groups]
    assert results.stats.metrics() == same.stats.metrics()
    for name, value in qwen[0].state_dict().items():  # a copy was trained
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("twice", r"models\[1\]"),
        ("swapped", r"models\[1\]"),
        ("own class", r"models\[1\]"),
        ("nan", "qwen-tiny .*not finite"),
        ("embedding", "do not belong together"),
        ("encoder", r"models\[1\]"),
    ],
)
def test_models_in_memory_get_the_checks_of_loaded_ones(damage, sentence):
    model, tokenizer = in_memory("qwen-tiny")
    first = in_memory("llama-tiny")
    if damage == "twice":
        first = model, tokenizer
    elif damage == "swapped":
        model, tokenizer = tokenizer, model
    elif damage == "own class":
        model.__class__ = type("Mine", (type(model),), {})
    elif damage == "nan":
        model.model.norm.weight.data.fill_(math.nan)
    elif damage == "embedding":
        model.resize_token_embeddings(4 * len(tokenizer))
    else:
        model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(MrlError, match=sentence):
        load_team([first, (model, tokenizer)], **SMALL)
    with pytest.raises(MrlError, match=r"models\[0\]"):
        load_team(first, **SMALL)  # without the list


@pytest.mark.slow
def test_the_front_door_loads_neither_the_command_line_nor_what_draws():
    code = "import sys, mini_mrl; print(*sys.modules)"
    root = Path(mini_mrl.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not {"typer", "rich", "matplotlib", "peft", "transformers.modeling_utils"} & loaded
