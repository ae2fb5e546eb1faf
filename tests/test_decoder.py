"""decoder.py against transformers' own forward pass: equal bit for bit in float32 on a CPU."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mrl import rollout
from mrl.config import DATA, PolicyConfig
from mrl.decoder import OneTokenDecoder, one_token_decoder, quarter_turn
from mrl.logprobs import attention_bias
from mrl.models.loading import load_policy
from mrl.run.problems import load_problems

PAIR = ["qwen-tiny", "llama-tiny"]


def tiny(name, **settings):
    return load_policy(PolicyConfig(name, str(DATA / "tiny" / name), **settings))


def random_model(family, attention="sdpa", **changes):
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        family, vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, head_dim=16, **changes,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@torch.no_grad()
def next_logits(model, rows, padded, decoder):
    """Logits of three tokens after a prompt whose first places are padding in some rows."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(200, (rows, 7 + 3), generator=generator)
    mask = torch.ones(rows, 7, dtype=torch.bool)
    if padded:
        mask[::2, :2] = False
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = rollout._Cache(config=model.config)
    bias = rollout._prompt_mask(model, mask, cache)
    rollout._last_logits(model, ids[:, :7], bias, positions, cache)

    positions, found = positions[:, -1:], []
    for t in range(7, 10):
        mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
        positions = positions + 1
        if decoder:
            bias = attention_bias(mask[:, None, :], model) if padded else None
            found.append(decoder(ids[:, t], positions, bias, cache))
        else:
            found.append(rollout._last_logits(model, ids[:, t : t + 1], mask, positions, cache))
    return torch.stack(found)


@pytest.mark.parametrize("turns_weights", [False, True])
@pytest.mark.parametrize("name", PAIR)
def test_the_tiny_pair_is_equal_bit_for_bit_at_any_number_of_rows(name, turns_weights):
    model = tiny(name).model
    for rows in (1, 2, 3, 7, 16, 61, 128):
        for padded in (False, True):
            want = next_logits(model, rows, padded, None)
            got = next_logits(model, rows, padded, OneTokenDecoder(model, turns_weights))
            assert torch.equal(got, want), (rows, padded)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("padded", [False, True])
def test_heads_wider_than_the_hidden_size_and_biases_that_are_not_zero(family, padded):
    model = random_model(family)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    want = next_logits(model, 5, padded, None)
    assert one_token_decoder(model)
    for turns_weights in (False, True):
        got = next_logits(model, 5, padded, OneTokenDecoder(model, turns_weights))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIR)
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_whole_completions_are_the_same_with_and_without(monkeypatch, name, dtype):
    policy = tiny(name, dtype=dtype)
    problems = load_problems(DATA / "words" / "train.jsonl")[:400:50]

    def completions():
        groups = policy.rollout(problems, torch.Generator().manual_seed(1), 4)
        return [(r.completion_ids, r.logprobs) for group in groups for r in group.rollouts]

    own = completions()
    monkeypatch.setattr(rollout, "one_token_decoder", lambda model: None)
    if dtype == "float32":
        assert own == completions()
    else:  # rounding of bfloat16 may differ between processors, and decide a draw
        equal = [a[0] == b[0] for a, b in zip(own, completions(), strict=True)]
        assert sum(equal) >= 0.9 * len(equal)


def test_the_decoder_follows_the_weights_of_the_last_update():
    policy = tiny("qwen-tiny")
    before = next_logits(policy.model, 3, False, one_token_decoder(policy.model))
    for parameter in policy.model.parameters():
        parameter.data.mul_(1.01)
    after = next_logits(policy.model, 3, False, one_token_decoder(policy.model))
    assert not torch.allclose(before, after)
    assert torch.equal(after, next_logits(policy.model, 3, False, None))


def test_a_quarter_turn_of_a_matrix_is_that_of_its_product():
    """A pair is (i, i + size / 2); a turn by 90 degrees makes (-second, first) of it."""
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    assert quarter_turn(heads, dim=2).tolist() == [[[-3.0, -4.0, 1.0, 2.0]]]
    matrix, hidden = torch.randn(2 * 4, 5), torch.randn(3, 5)  # two heads of size 4
    turned = quarter_turn(matrix.view(2, 4, 5), dim=1).reshape(2 * 4, 5)
    want = quarter_turn((hidden @ matrix.T).view(3, 2, 4), dim=2)
    torch.testing.assert_close((hidden @ turned.T).view(3, 2, 4), want)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {}),
        ("gemma", {}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"hidden_act": "gelu"}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("llama", {"attention": "eager"}),
    ],
)
def test_models_that_compute_something_else_are_left_to_transformers(family, changes):
    assert one_token_decoder(random_model(family, **changes)) is None


def test_a_policy_with_adapters_is_left_to_transformers():
    assert one_token_decoder(tiny("qwen-tiny", lora_rank=4).model) is None


@pytest.mark.parametrize("name", PAIR)
def test_one_kernel_for_a_norm_changes_no_bit(name):
    """Of the norm, and of its gradients, against the class of transformers."""
    norm = tiny(name).model.model.norm
    assert "forward" in vars(norm)
    for shape in ((128, 128), (3, 50, 128), (1, 128)):
        results = []
        for forward in (norm.forward, lambda x: type(norm).forward(norm, x)):
            hidden = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            hidden.requires_grad_()
            out = forward(hidden)
            results.append((out, *torch.autograd.grad(out.sin().sum(), (hidden, norm.weight))))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
