"""LoRA by peft: what learns is small, the rest stays, and a run with it goes on exactly."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models.loading import (
    load_model,
    load_policies,
    load_policy,
    load_tokenizer,
    shape_of,
)
from mrl.models.lora import base_of, save_adapters
from mrl.placement import Allocation
from tests.end_to_end.small_run import (
    NAMES,
    assert_same_run,
    lines,
    run,
    small,
    stop_after,
)
from tests.fakes import one_step, weights_of
from tests.test_families import gap_of
from tests.test_policy import own
from tests.test_rollout import PROBLEMS, generator

UP = "model.layers.0.mlp.up_proj.lora_A.default.weight"
LORA = ("--set", "qwen-tiny.lora_rank=4")


def taught(policy, rate=None):
    """The policy after two updates on two completions."""
    for _ in range(2):
        samples = [own(policy, text, advantage) for text, advantage in (("5", 1.0), ("77", -1.0))]
        learn(policy, samples)
    return policy


def state(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def test_only_adapters_learn_and_the_optimizer_keeps_state_of_them_alone(make_policy):
    policy = make_policy(lora_rank=4, learning_rate=1e-2)
    before = state(policy)
    taught(policy)
    after = state(policy)
    changed = {name for name in after if not after[name].equal(before[name])}
    assert changed == {name for name in after if ".lora_" in name}
    # q, k, v, o and gate, up, down of each layer, two matrices each
    assert len(changed) == 14 * policy.model.config.num_hidden_layers
    kept = [p for p in policy.model.parameters() if p in policy.optimizer.state]
    assert {id(p) for p in kept} == {id(p) for p in policy.model.parameters() if p.requires_grad}


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_what_learns_is_in_float32_and_a_frozen_matrix_in_mixed_precision_in_bfloat16(
    make_policy, dtype
):
    policy = taught(make_policy(lora_rank=4, learning_rate=1e-2, dtype=dtype))
    frozen, learnt = set(), set()
    for parameter in policy.model.parameters():
        (learnt if parameter.requires_grad else frozen).add(parameter.dtype)
    assert learnt == {torch.float32}
    assert frozen == {torch.float32 if dtype == "float32" else torch.bfloat16}
    assert policy.version == 2


def test_a_policy_begins_as_its_base_with_the_same_numbers_in_every_run(make_policy):
    plain, one, two = make_policy(), make_policy(lora_rank=4), make_policy(lora_rank=4)
    sample = own(plain, "12-11: 2-1=1", 1.0)
    about = [sample.prompt_ids], [sample.completion_ids]
    assert one.logprobs_of(*about) == plain.logprobs_of(*about)
    a, b = state(one), state(two)
    assert all(a[name].equal(b[name]) for name in a)
    assert len({float(a[name].sum()) for name in a if ".lora_A" in name}) > 10  # each its own


def test_twins_of_one_base_and_runs_of_other_seeds_begin_with_matrices_of_their_own(random_pair):
    twins = [
        PolicyConfig(name, str(random_pair / "qwen-tiny"), lora_rank=4) for name in ("one", "two")
    ]
    drawn = {}  # (seed of the run, policy) -> one A
    for seed in (0, 1):
        for policy in load_policies(RunConfig(twins, seed=seed), "cpu"):
            drawn[seed, policy.name] = state(policy)[UP]
    assert len({tuple(matrix.flatten().tolist()) for matrix in drawn.values()}) == 4

    (alone,) = load_policies(RunConfig(twins, seed=1), "cpu", ["two"])  # as under `parallel`
    assert state(alone)[UP].equal(drawn[1, "two"])


def test_the_reference_of_a_kl_term_is_the_base_and_takes_no_memory(make_policy):
    policy = make_policy(lora_rank=4, kl_coef=0.1, learning_rate=1e-2)
    own_tensors = {id(p) for p in policy.model.parameters()}
    assert {id(p) for p in policy.reference.parameters()} < own_tensors
    sample = own(policy, "12-11: 2-1=1", 1.0)
    about = [sample.prompt_ids], [sample.completion_ids]
    first, _ = policy.score(*about)
    taught(policy)
    with torch.no_grad():
        reference, _ = policy.score(*about, policy.reference)
        now, _ = policy.score(*about)
    assert reference.equal(first)
    assert not now.equal(first)


def test_saved_adapters_give_the_same_numbers_again_whatever_rank_is_asked_for(
    make_policy, tmp_path
):
    policy = taught(make_policy(lora_rank=4, learning_rate=1e-2))
    save_adapters(policy.model, tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    assert base_of(str(tmp_path)) == policy.config.path
    assert sum(path.stat().st_size for path in tmp_path.glob("adapter*")) < 250_000
    sample = own(policy, "12-11: 2-1=1", 1.0)
    about = [sample.prompt_ids], [sample.completion_ids]
    for rank in (0, 2, 4):
        again = load_policy(PolicyConfig("again", str(tmp_path), lora_rank=rank))
        assert again.config.lora_rank == 4
        assert again.logprobs_of(*about) == policy.logprobs_of(*about)


def test_a_base_that_is_gone_is_named(tmp_path):
    base = tmp_path / "moved"
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(MrlError, match=f"^{base}: its config.json cannot be loaded"):
        load_policy(PolicyConfig("a", str(tmp_path)))
    config["base_model_name_or_path"] = "some/hub-name"
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert base_of(str(tmp_path)) == "some/hub-name"


def test_the_base_of_a_moved_run_is_where_the_run_began(make_policy, tmp_path):
    policy = make_policy(lora_rank=4)
    save_adapters(policy.model, tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(file.read_text().replace(policy.config.path, "/gone/qwen-tiny"))
    moved = PolicyConfig("again", str(tmp_path), reference=policy.config.path)
    assert load_policy(moved).model.name_or_path == policy.config.path


@pytest.fixture
def foreign(random_pair, tmp_path):
    """A function that trains adapters with peft alone; returns peft's model and the folder."""

    def train(**options):
        base = str(random_pair / "qwen-tiny")
        torch.manual_seed(0)
        settings = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]} | options
        config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
        theirs = peft.get_peft_model(load_model(base), config).eval()
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        theirs.save_pretrained(tmp_path)
        load_tokenizer(base).save_pretrained(tmp_path)
        return theirs, tmp_path

    return train


KINDS = {
    "plain": {},
    "half of the layers": {"layers_to_transform": [0]},
    "another scale": {"lora_alpha": 5},
    "rslora": {"use_rslora": True},
    "ranks": {"rank_pattern": {"q_proj": 4}},
    "dora": {"use_dora": True},
    "head": {"modules_to_save": ["lm_head"]},
    "embedding": {"modules_to_save": ["embed_tokens"]},
    "adapters of the embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "norms": {"modules_to_save": ["input_layernorm", "norm"]},
    "tokens": {"trainable_token_indices": [1, 40]},
    "bias": {"bias": "all"},
    "pissa": {"init_lora_weights": "pissa"},
    "dropout": {"lora_dropout": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_that_others_trained_are_computed_learnt_and_saved_as_peft_does(
    foreign, tmp_path, kind
):
    theirs, folder = foreign(**KINDS[kind])
    config = PolicyConfig("it", str(folder), learning_rate=1e-2, kl_coef=0.1, max_new_tokens=8)
    policy = load_policy(config)
    token_ids = torch.tensor([policy.prompt_ids("1+1?")])

    def logits(model):
        with torch.no_grad():
            return model(token_ids).logits.log_softmax(-1)

    torch.testing.assert_close(logits(policy.model), logits(theirs), atol=1e-5, rtol=1e-5)
    base = logits(load_model(theirs.peft_config["default"].base_model_name_or_path))
    torch.testing.assert_close(logits(policy.reference), base, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(base, logits(policy.model), atol=1e-2)

    # after an update, sampling and scoring agree, the reference stays, and peft loads what is saved
    taught(policy)
    assert gap_of(policy, policy.rollout(PROBLEMS[:2], generator(), 2)) < 1e-4
    torch.testing.assert_close(logits(policy.reference), base, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(policy.model), logits(theirs), atol=1e-3)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_adapters(policy.model, saved)
    again = peft.PeftModel.from_pretrained(load_model(policy.model.name_or_path), saved).eval()
    torch.testing.assert_close(logits(policy.model), logits(again), atol=1e-5, rtol=1e-5)
    policy.tokenizer.save_pretrained(saved)
    resumed = load_policy(replace(config, path=str(saved)))
    assert logits(resumed.model).equal(logits(policy.model))


def test_adapters_that_others_trained_learn_without_dropout(foreign):
    _, folder = foreign(lora_dropout=0.5)
    policy = load_policy(PolicyConfig("it", str(folder), gradient_checkpointing=True))
    sample = own(policy, "12-11: 2-1=1", 1.0)
    about = [sample.prompt_ids], [sample.completion_ids]
    scored, _ = policy.score(*about)  # with gradients, so in training mode
    assert policy.model.training
    assert scored[0].tolist() == pytest.approx(policy.logprobs_of(*about)[0], abs=1e-5)


DAMAGE = {  # which tensors are left; a lost head is noticed first, so only one case loses it alone
    "nothing": lambda name: False,
    "only the head": lambda name: "lora" not in name,
    "no B": lambda name: "lora_B" not in name,
    "one of two layers": lambda name: ".layers.1." not in name,
    "no head": lambda name: "lm_head" not in name,
}


@pytest.mark.parametrize("kept", DAMAGE)
def test_adapters_that_have_lost_tensors_are_refused(foreign, kept):
    """As after an interrupted save, or one of DeepSpeed's third stage."""
    _, folder = foreign(modules_to_save=["lm_head"])
    weights = folder / "adapter_model.safetensors"
    whole = load_file(weights)
    save_file({name: t for name, t in whole.items() if DAMAGE[kept](name)}, weights)
    with pytest.raises(MrlError, match=re.escape(str(weights))):
        load_policy(PolicyConfig("it", str(folder)))


def test_adapters_that_do_not_fit_or_cannot_be_read_are_refused(foreign):
    _, folder = foreign()
    weights, file = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole, config = load_file(weights), json.loads(file.read_text())

    def refused(part):
        with pytest.raises(MrlError, match=part) as caught:
            load_policy(PolicyConfig("it", str(folder)))
        assert "\n" not in str(caught.value)

    save_file(whole | {"other": torch.zeros(3)}, weights)
    refused("other")
    save_file({name: tensor[:1].clone() for name, tensor in whole.items()}, weights)
    refused("size mismatch")
    weights.write_bytes(b"x")
    refused("adapter_model.safetensors")
    save_file(whole, weights)
    for change in ({"target_modules": ["nothing"]}, {"peft_type": "IA3"}, {"peft_type": "no"}):
        file.write_text(json.dumps(config | change))
        refused(f"{folder}|nothing")
    file.write_text(json.dumps(config | {"base_model_name_or_path": None}))
    refused("base_model_name_or_path")
    file.write_text("{")
    refused("adapter_config.json")


def test_a_full_model_next_to_an_old_adapter_is_refused(foreign):
    """As after merging, saving into the same folder, and more training of all weights."""
    theirs, folder = foreign()
    theirs.merge_and_unload().save_pretrained(folder)
    assert (folder / "adapter_config.json").exists()
    for look in (load_policy, shape_of):
        with pytest.raises(MrlError, match=re.escape(f"{folder} holds")):
            look(PolicyConfig("it", str(folder)))


def test_without_peft_lora_is_one_sentence(make_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    make_policy()
    with pytest.raises(MrlError, match="pip install") as caught:
        make_policy(lora_rank=4)
    assert "peft" in str(caught.value) and "\n" not in str(caught.value)


def test_swap_moves_adapters_and_their_moments_only(make_policy):
    policy = taught(make_policy(lora_rank=4, learning_rate=1e-2))
    learnt = [p for p in policy.model.parameters() if p.requires_grad]
    places = {name: p.data_ptr() for name, p in policy.model.named_parameters()}
    allocation = Allocation([policy], [policy.name], "swap")
    with allocation.turn(policy, "learn"):
        pass
    assert allocation.ledger[0].moved_bytes == 3 * sum(p.nbytes for p in learnt)
    for name, p in policy.model.named_parameters():
        assert (p.data_ptr() != places[name]) == (".lora_" in name)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["resident", "swap"])
def test_one_policy_with_and_one_without_go_on_exactly_with_a_small_checkpoint(
    place, monkeypatch, capfd, placement
):
    options = [*LORA, "--set", "kl_coef=0.01", "--steps", "4", "--placement", placement]
    assert small("--name", "whole", *options) == 0
    said = capfd.readouterr().out
    size = r"0.8\d+ M parameters, LoRA of rank 4, learning rate 3e-05\)"
    assert re.search(size, said)
    assert "and llama-tiny (0.725 M parameters, learning rate" in said
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert small("--name", "stopped", *options) == 130
    assert run("resume", "runs/stopped", "--plain") == 0
    assert_same_run("runs/whole", "runs/stopped", 4, policies=NAMES[1:])
    folders = [
        Path("runs", name, "checkpoints/step-000004/qwen-tiny") for name in ("whole", "stopped")
    ]
    one, two = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    one, two = (
        torch.load(folder / "optimizer.pt", weights_only=True)["state"] for folder in folders
    )
    assert len(one) == len(two) > 0
    assert all(one[n]["exp_avg"].equal(two[n]["exp_avg"]) for n in one)
    assert not (folders[0] / "model.safetensors").exists()
    assert {line["updates"] for line in lines("runs/whole/metrics.jsonl")} <= {1, 2, 3, 4}
    assert run("evaluate", "runs/whole", "--samples", "1") == 0


@pytest.mark.slow
def test_a_lora_runs_checkpoint_can_be_the_next_runs_teacher_or_start(place):
    assert small("--steps", "2", "--name", "first", "--mode", "solo", *LORA) == 0
    folder = place / "runs/first/checkpoints/step-000002"
    pair = f"{folder}/qwen-tiny,{folder}/llama-tiny"
    frozen = ("--set", "qwen-tiny.frozen=true")
    assert small("--steps", "2", "--name", "second", "--pair", pair, *frozen) == 0
    assert small("--steps", "2", "--name", "third", "--pair", pair) == 0
    third = Path("runs/third/checkpoints/step-000002/qwen-tiny")
    assert base_of(str(third)) == str(DATA / "tiny" / "qwen-tiny")


def test_every_turn_of_a_step_works_with_lora_for_both(small_team, verifier):
    team = small_team("hacpo", verifier, lora_rank=2)
    before = weights_of(team, 0)
    one_step(team, 1)
    now = weights_of(team, 0)
    assert all(now[name].equal(before[name]) for name in now if ".lora_" not in name)
