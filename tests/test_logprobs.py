import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrl import logprobs as module
from mrl.config import DATA
from mrl.logprobs import cut_by_tokens, pack, packed_logprobs
from mrl.models.loading import load_model, packing_problem

PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [8, 9], [5, 6, 7]]
COMPLETIONS = [[10, 11], [12], [13, 14, 15, 16], [17, 18, 19], [20]]


def test_completions_of_one_prompt_share_a_row_and_do_not_see_each_other():
    packed = pack(PROMPTS, COMPLETIONS)
    assert packed.token_ids.tolist() == [
        [5, 6, 7, 10, 11, 13, 14, 15, 16, 20],
        [8, 9, 12, 17, 18, 19, 0, 0, 0, 0],
    ]
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 3]
    assert packed.segments.tolist() == [
        [0, 0, 0, 1, 1, 2, 2, 2, 2, 3], [4, 4, 5, 6, 6, 6, -1, -1, -1, -1]
    ]  # fmt: skip
    assert packed.contexts[1].tolist() == [4] * 6 + [-1] * 4
    # of completion 2 (13, 14, 15, 16): the prompt's last token, then its own tokens
    assert packed.predictors[packed.targets.tolist().index(13) :][:4].tolist() == [2, 5, 6, 7]
    assert packed.mask.sum(1).tolist() == [2, 1, 4, 3, 1]


def test_short_prompts_share_a_row_and_do_not_see_each_other(make_policy):
    """Three prompts take two rows; each completion has the log-probs that it has alone."""
    prompts, completions = [[5, 6, 7], [8, 9], [3] * 6], [[10, 11], [12, 13], [14] * 4]
    assert pack(prompts, completions).token_ids.tolist() == [
        [3, 3, 3, 3, 3, 3, 14, 14, 14, 14],
        [5, 6, 7, 10, 11, 8, 9, 12, 13, 0],
    ]
    policy = make_policy()
    together, mask = policy.score(prompts, completions)
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        alone, _ = policy.score([prompt], [completion])
        torch.testing.assert_close(together[number][mask[number]], alone[0], atol=2e-5, rtol=0)


tokens = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=9))
def test_unpacking_gives_back_what_was_packed(pairs):
    """Each completion token once, with the tokens before it, in the place that is its own."""
    prompts, completions = [list(pair) for pair in zip(*pairs, strict=True)]
    packed = pack(prompts, completions)
    ids, width = packed.token_ids.flatten(), packed.token_ids.shape[1]
    unpacked = torch.zeros(packed.mask.numel(), dtype=torch.int64)
    unpacked[packed.destinations] = packed.targets
    for row, mask, want in zip(
        unpacked.view_as(packed.mask), packed.mask, completions, strict=True
    ):
        assert row[mask].tolist() == want

    for predictor, place in zip(
        packed.predictors.tolist(), packed.destinations.tolist(), strict=True
    ):
        number, t = divmod(place, packed.mask.shape[1])
        row = slice(predictor // width * width, predictor + 1)  # causal: up to the predictor
        segments, own = packed.segments.flatten()[row], packed.segments.flatten()[predictor]
        visible = (segments == own) | (segments == packed.contexts.flatten()[predictor])
        assert ids[row][visible].tolist() == prompts[number] + completions[number][:t]
        positions = packed.positions.flatten()[row][visible].tolist()
        assert positions == list(range(len(prompts[number]) + t))


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
@pytest.mark.parametrize("chunk", [1024, 3])
def test_packed_logprobs_and_gradients_are_those_of_plain_rows(
    make_policy, monkeypatch, name, chunk
):
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", chunk)
    policy = make_policy(name)
    weights = torch.rand(5, 4)

    logprobs, mask = packed_logprobs(policy.model, PROMPTS, COMPLETIONS, policy.suppressed, 0.7)
    (logprobs * weights * mask).sum().backward()
    got = [p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad()
    total = 0.0
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        logits = policy.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logits = (logits / 0.7).masked_fill(policy.suppressed, -torch.inf)
        plain = torch.log_softmax(logits, -1)[torch.arange(len(completion)), completion]
        torch.testing.assert_close(logprobs[row, : len(completion)], plain, atol=2e-5, rtol=0)
        total = total + (plain * weights[row, : len(completion)]).sum()
    total.backward()
    for mine, parameter in zip(got, policy.model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_attention_gets_one_mask_as_it_wants_it(make_policy, monkeypatch, dtype):
    """In another dtype, or with rows not 8 apart, CUDA would keep a copy of it in every layer."""
    policy, masks = make_policy(dtype=dtype), []
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention",
        lambda *a, attn_mask=None, **k: masks.append(attn_mask)
        or original(*a, attn_mask=attn_mask, **k),
    )  # fmt: skip
    policy.score(PROMPTS, COMPLETIONS)
    assert len(masks) == policy.model.config.num_hidden_layers
    assert len({mask.data_ptr() for mask in masks}) == 1
    want = torch.float32 if dtype == "float32" else torch.bfloat16
    assert (masks[0].dtype, masks[0].shape[-1]) == (want, 10)
    assert all(step % 8 == 0 for step in masks[0].stride()[:-1])


def test_a_model_that_ignores_the_mask_is_found_out(make_policy, monkeypatch):
    policy = make_policy()
    assert not packing_problem(policy.model)
    decoder = policy.model.get_decoder()
    forward = decoder.forward

    def deaf(*args, attention_mask=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    monkeypatch.setattr(decoder, "forward", deaf)
    assert "log-probs" in packing_problem(policy.model)


@pytest.mark.parametrize("fault", ["positions", "head"])
def test_a_wrong_computation_of_a_trained_model_is_found(monkeypatch, fault):
    model = load_model(str(DATA / "tiny" / "qwen-tiny")).eval()
    assert not packing_problem(model)
    if fault == "head":  # a scale that this program does not know
        model.lm_head.register_forward_hook(lambda layer, given, made: made * 1.1)
        monkeypatch.setattr(module, "head_logits", lambda model, x: x @ model.lm_head.weight.T)
    else:  # counted by places in the row
        decoder = model.get_decoder()
        forward = decoder.forward
        ignore = lambda *a, position_ids=None, **k: forward(*a, **k)  # noqa: E731
        monkeypatch.setattr(decoder, "forward", ignore)
    assert "log-probs" in packing_problem(model)


def test_cutting_by_tokens_counts_what_is_packed_and_loses_nobody():
    prompts = [[1] * 10] * 3 + [[2] * 10] * 2
    completions = [[0] * 5] * 5
    assert list(cut_by_tokens(prompts, completions, 20)) == [
        slice(0, 2), slice(2, 3), slice(3, 5)
    ]  # fmt: skip
    for most, want in ((49, [slice(0, 3), slice(3, 5)]), (50, [slice(0, 5)])):  # 25 + 20 + padding
        assert list(cut_by_tokens(prompts, completions, most)) == want
    assert list(cut_by_tokens(prompts, completions, 1)) == [slice(n, n + 1) for n in range(5)]
    assert list(cut_by_tokens(prompts, completions, 1000)) == [slice(0, 5)]
    assert list(cut_by_tokens([], [], 10)) == []


@pytest.mark.parametrize("most", [1, 40, 100, 150, 333, 5000])
def test_a_slice_is_as_large_as_agreed_and_parts_no_group_that_fits(most):
    rng = random.Random(most)
    groups = [([number] * rng.randint(1, 30), rng.randint(1, 8)) for number in range(40)]
    prompts = [prompt for prompt, size in groups for _ in range(size)]
    completions = [[0] * rng.randint(1, 40) for _ in prompts]
    slices = list(cut_by_tokens(prompts, completions, most))
    assert [n for part in slices for n in range(*part.indices(len(prompts)))] == [
        *range(len(prompts))
    ]
    for part, after in itertools.zip_longest(slices, slices[1:]):
        packed = pack(prompts[part], completions[part])
        assert packed.token_ids.numel() <= most or len(completions[part]) == 1
        if after and prompts[after.start] == prompts[part.stop - 1]:
            number = prompts[after.start]
            together = [c for p, c in zip(prompts, completions, strict=True) if p == number]
            assert len(number) + sum(map(len, together)) > most


def test_scoring_is_cut_into_micro_batches(make_policy, monkeypatch):
    policy, calls = make_policy(max_tokens_per_forward=1), []

    score = policy.score

    def counted(prompts, completions):
        calls.append(len(completions))
        return score(prompts, completions)

    monkeypatch.setattr(policy, "score", counted)
    scored = policy.logprobs_of(PROMPTS, COMPLETIONS)
    assert calls == [1] * 5
    assert [len(row) for row in scored] == [2, 1, 4, 3, 1]


def test_logits_are_made_in_slices(make_policy, monkeypatch):
    monkeypatch.setattr("mrl.logprobs.TOKENS_AT_ONCE", 3)
    policy, sizes = make_policy(), []
    head = policy.model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, made: sizes.append(len(made)))
    policy.score(PROMPTS, COMPLETIONS)
    assert max(sizes) <= 3


def test_a_wide_row_does_not_narrow_later_slices():
    prompts, completions = [[1] * 30, [2] * 3, [3] * 3], [[0] * 2] * 3
    assert list(cut_by_tokens(prompts, completions, 32)) == [slice(0, 1), slice(1, 3)]
