"""LoRA: what learns is small, the rest stays, and a run with it goes on exactly."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mrl.allocation import Allocation
from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models.loading import (
    load_model,
    load_policies,
    load_policy,
    load_tokenizer,
)
from mrl.models.lora import LoraLinear, add_adapters, base_of, save_adapters
from mrl.settings.pairs import usual_learning_rate
from tests.end_to_end.small_run import (
    NAMES,
    assert_same_run,
    lines,
    run,
    small,
    stop_after,
)
from tests.fakes import one_step, weights_of
from tests.test_policy import own

UP = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
LORA = ("--set", "qwen-tiny.lora_rank=4")


def taught(policy, rate=None):
    """The policy after two updates on two completions."""
    for _ in range(2):
        samples = [own(policy, text, advantage) for text, advantage in (("5", 1.0), ("77", -1.0))]
        learn(policy, samples)
    return policy


def state(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def test_a_layer_by_hand():
    base = nn.Linear(2, 3)
    layer = LoraLinear(base, 1, seed=0)
    x = torch.tensor([[1.0, 2.0]])
    assert layer(x).equal(base(x))  # B is 0 at first
    layer.lora_A.weight.data = torch.tensor([[3.0, 4.0]])
    layer.lora_B.weight.data = torch.tensor([[1.0], [0.0], [-1.0]])
    # A x = 3 + 8 = 11, and twice B times that
    assert torch.allclose(layer(x) - base(x), torch.tensor([[22.0, 0.0, -22.0]]))


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
            drawn[seed, policy.name] = state(policy)[UP.removeprefix("base_model.model.")]
    assert len({tuple(matrix.flatten().tolist()) for matrix in drawn.values()}) == 4

    (alone,) = load_policies(RunConfig(twins, seed=1), "cpu", ["two"])  # as under `parallel`
    assert state(alone)[UP.removeprefix("base_model.model.")].equal(drawn[1, "two"])


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_gradients_are_those_of_the_merged_weights(make_policy, gradient_checkpointing):
    """dL/dB = 2 dL/dW (A)^T, and dL/dA = 2 B^T dL/dW."""
    policy = make_policy(
        lora_rank=4, learning_rate=1e-2, gradient_checkpointing=gradient_checkpointing
    )
    taught(policy)
    full = make_policy()
    with torch.no_grad():
        for name, layer in policy.model.named_modules():
            if isinstance(layer, LoraLinear):
                change = 2 * layer.lora_B.weight @ layer.lora_A.weight
                full.model.get_submodule(name).weight += change
    sample = own(policy, "12-11: 2-1=1", 1.0)
    for one in (policy, full):
        logprobs, _ = one.score([sample.prompt_ids], [sample.completion_ids])
        logprobs.sum().backward()
    name = "model.layers.0.mlp.up_proj"
    layer, weight = policy.model.get_submodule(name), full.model.get_submodule(name).weight
    want = 2 * weight.grad @ layer.lora_A.weight.T
    torch.testing.assert_close(layer.lora_B.weight.grad, want, atol=1e-4, rtol=1e-3)
    want = 2 * layer.lora_B.weight.T @ weight.grad
    torch.testing.assert_close(layer.lora_A.weight.grad, want, atol=1e-4, rtol=1e-3)


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
    save_adapters(policy.model, tmp_path, 4)
    policy.tokenizer.save_pretrained(tmp_path)
    assert base_of(str(tmp_path)) == (policy.config.path, 4)
    assert sum(path.stat().st_size for path in tmp_path.glob("adapter*")) < 250_000
    sample = own(policy, "12-11: 2-1=1", 1.0)
    about = [sample.prompt_ids], [sample.completion_ids]
    for rank in (0, 2, 4):
        again = load_policy(PolicyConfig("again", str(tmp_path), lora_rank=rank))
        assert again.config.lora_rank == 4
        assert again.logprobs_of(*about) == policy.logprobs_of(*about)


def test_a_base_that_is_gone_is_named(tmp_path):
    base = tmp_path / "moved"
    config = {"base_model_name_or_path": str(base), "r": 4, "lora_alpha": 8}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(MrlError, match=f"^{base}: its config.json cannot be loaded"):
        load_policy(PolicyConfig("a", str(tmp_path)))
    config["base_model_name_or_path"] = "some/hub-name"
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert base_of(str(tmp_path)) == ("some/hub-name", 4)


def test_foreign_adapters_are_refused_and_damaged_ones_are_not_loaded(make_policy, tmp_path):
    policy = make_policy(lora_rank=4)
    save_adapters(policy.model, tmp_path, 4)
    policy.tokenizer.save_pretrained(tmp_path)

    weights, whole = tmp_path / "adapter_model.safetensors", PolicyConfig("again", str(tmp_path))
    save_file({"other": torch.zeros(3)}, weights)
    with pytest.raises(MrlError, match="does not fit its base"):
        load_policy(whole)
    save_file({UP: torch.zeros(3)}, weights)
    with pytest.raises(MrlError, match=r"does not fit its base.*size mismatch for"):
        load_policy(whole)
    weights.write_bytes(b"x")
    with pytest.raises(MrlError, match="does not fit its base"):
        load_policy(whole)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for name in ("r", "lora_alpha", "base_model_name_or_path"):
        less = {key: value for key, value in config.items() if key != name}
        (tmp_path / "adapter_config.json").write_text(json.dumps(less))
        with pytest.raises(MrlError, match=rf"adapter_config\.json.*{name} is None"):
            load_policy(whole)


def test_the_base_of_a_moved_run_is_where_the_run_began(make_policy, tmp_path):
    policy = make_policy(lora_rank=4)
    save_adapters(policy.model, tmp_path, 4)
    policy.tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(file.read_text().replace(policy.config.path, "/gone/qwen-tiny"))
    moved = PolicyConfig("again", str(tmp_path), reference=policy.config.path)
    assert load_policy(moved).model.name_or_path == policy.config.path


# what peft writes -> does this program compute the same, or refuse it?
KINDS = {
    "plain": ({}, True),
    "half of the layers": ({"layers_to_transform": [0]}, True),
    "another scale": ({"lora_alpha": 5}, True),
    "rslora": ({"use_rslora": True}, True),
    "gaussian": ({"init_lora_weights": "gaussian"}, True),
    "head": ({"modules_to_save": ["lm_head"]}, False),
    "embedding": ({"modules_to_save": ["embed_tokens"]}, False),
    "ranks": ({"rank_pattern": {"q_proj": 4}}, False),
    "alphas": ({"alpha_pattern": {"q_proj": 4}}, False),
    "dora": ({"use_dora": True}, False),
    "bias": ({"bias": "all"}, False),
    "bias of B": ({"lora_bias": True}, False),
    "pissa": ({"init_lora_weights": "pissa"}, False),
    "tokens": ({"trainable_token_indices": [1]}, False),
    "doubled layers": ({"layer_replication": [[0, 1], [0, 1]]}, False),
    "parameters": ({"target_parameters": ["o_proj.weight"]}, False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_adapters_are_computed_as_peft_does_or_refused(random_pair, tmp_path, kind):
    peft = pytest.importorskip("peft")
    options, computed = KINDS[kind]
    base = str(random_pair / "qwen-tiny")
    torch.manual_seed(0)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]} | options
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    theirs = peft.get_peft_model(load_model(base), config).eval()
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    load_tokenizer(base).save_pretrained(tmp_path)

    whole = PolicyConfig("again", str(tmp_path))
    if not computed:
        with pytest.raises(MrlError, match=r"adapter_config\.json: "):
            load_policy(whole)
        return
    policy = load_policy(whole)
    token_ids = torch.tensor([policy.prompt_ids("1+1?")])
    with torch.no_grad():
        ours, wanted = (model(token_ids).logits.log_softmax(-1) for model in (policy.model, theirs))
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(load_model(base)(token_ids).logits.log_softmax(-1), ours, atol=1e-2)


def test_peft_loads_what_was_saved_and_computes_the_same(make_policy, tmp_path):
    peft = pytest.importorskip("peft")
    policy = taught(make_policy(lora_rank=4, learning_rate=1e-2))
    save_adapters(policy.model, tmp_path, 4)
    theirs = peft.PeftModel.from_pretrained(load_model(policy.config.path), tmp_path)
    token_ids = torch.tensor([policy.prompt_ids("1+1?")])
    with torch.no_grad():
        ours, plain = (model(token_ids).logits for model in (policy.model, theirs))
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    base = load_model(policy.config.path)
    assert not torch.allclose(base(token_ids).logits, ours, atol=1e-3)


def test_the_usual_rate_is_ten_times_that_of_all_weights():
    for size in (1e6, 135e6, 494e6, 1.5e9):
        assert usual_learning_rate(size, lora=True) == pytest.approx(10 * usual_learning_rate(size))


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
    assert base_of(str(third)) == (str(DATA / "tiny" / "qwen-tiny"), 4)


def test_every_turn_of_a_step_works_with_lora_for_both(small_team, verifier):
    team = small_team("hacpo", verifier, lora_rank=2)
    before = weights_of(team, 0)
    one_step(team, 1)
    now = weights_of(team, 0)
    assert all(now[name].equal(before[name]) for name in now if ".lora_" not in name)


def test_a_model_without_linear_layers_is_refused():
    class Bare(nn.Module):
        config = type("Config", (), {"model_type": "bare"})
        get_output_embeddings = lambda self: None  # noqa: E731

    with pytest.raises(MrlError, match="bare has no linear layers for LoRA"):
        add_adapters(Bare(), 4)
