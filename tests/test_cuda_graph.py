"""The sampling loop that CUDA records, here unrecorded: the same completions as the plain loop."""

import logging

import pytest
import torch
from transformers import DynamicCache, Qwen2Config
from transformers.cache_utils import DynamicSlidingWindowLayer

from mrl.config import DATA, PolicyConfig
from mrl.logprobs import scaled_logprobs
from mrl.runtime import cuda_graph
from mrl.runtime.cuda_graph import RECORD_AFTER, _recorded, can_record
from mrl.runtime.loading import load_policy
from mrl.runtime.problems import load_problems
from mrl.samples import Problem

PROBLEM = [Problem("a", "7*8?", "56")]


@pytest.fixture(scope="module")
def problems(verifier):
    return load_problems(DATA / "words" / "heldout.jsonl", verifier.check_answer)[::45]


def sampled(policy, problems, temperature=1.0):
    generator = torch.Generator().manual_seed(5)
    groups = policy.rollout(problems, generator, temperature=temperature)
    return [rollout for group in groups for rollout in group.rollouts]


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_every_completion_is_that_of_the_plain_loop(monkeypatch, problems, name, dtype):
    policy = load_policy(PolicyConfig(name, str(DATA / "tiny" / name), dtype=dtype))
    policy.graph_decode = cuda_graph.decode
    for temperature in (1.0, 0.0, 0.7):
        want = sampled(policy, problems, temperature)
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graph, "can_record", lambda cache, device: True)
            got = sampled(policy, problems, temperature)
        assert [r.completion_ids for r in got] == [r.completion_ids for r in want]
        assert [r.finished for r in got] == [r.finished for r in want]
        assert len({len(r.completion_ids) for r in got}) > 3
        for a, b in zip(got, want, strict=True):
            close = 1e-4 if dtype == "float32" else 0.1
            assert a.logprobs == pytest.approx(b.logprobs, abs=close)


def test_a_row_that_has_ended_lets_the_others_go_on_to_the_limit(monkeypatch, make_policy):
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: True)
    policy = make_policy(max_new_tokens=20)
    policy.graph_decode = cuda_graph.decode
    policy.end_ids = list(range(0, len(policy.tokenizer), 40))
    (group,) = policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=32)
    lengths = [len(rollout.completion_ids) for rollout in group.rollouts]
    assert min(lengths) < 10
    assert max(lengths) == 20
    for rollout in group.rollouts:
        ends = [token in policy.end_ids for token in rollout.completion_ids]
        assert not any(ends[:-1])
        assert ends[-1] == rollout.finished
    policy.end_ids = list(range(len(policy.tokenizer)))
    calls = []
    policy.model.register_forward_hook(lambda *a: calls.append(1))
    policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=2)
    assert len(calls) == 1 + cuda_graph.LOOK_EVERY  # the prompt; then all had ended


def test_nothing_moves_or_grows_while_a_step_repeats(monkeypatch, make_policy):
    """A graph writes to the addresses that it was recorded with."""
    policy, seen = make_policy(max_new_tokens=RECORD_AFTER + 9), []
    policy.graph_decode = cuda_graph.decode
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: True)

    def watch(part, arguments, named):
        cache = named["past_key_values"]
        if isinstance(cache, cuda_graph.FixedCache):
            tensors = [named["attention_mask"], named["position_ids"], cache.place]
            tensors += [tensor for layer in cache.layers for tensor in layer]
            seen.append([(t.data_ptr(), t.shape) for t in tensors])

    policy.model.register_forward_pre_hook(watch, with_kwargs=True)
    policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=4)
    assert len(seen) == RECORD_AFTER + 9
    assert all(now == seen[0] for now in seen)
    assert seen[0][0][1][-1] % 8 == 0


def test_what_cannot_be_recorded_is_done_plainly_with_a_sentence(monkeypatch, caplog):
    calls = []

    def broken(graph, **options):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", broken)
    with caplog.at_level(logging.WARNING):
        again = _recorded(lambda: calls.append(1))
        assert _recorded(again) is again  # said once
    again()
    assert calls == [1]
    (record,) = caplog.records
    assert "no CUDA graph of this model (operation not permitted when stream is capturing)" in (
        record.getMessage()
    )


def test_only_caches_that_keep_all_are_recorded():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    plain = DynamicCache(config=Qwen2Config(num_hidden_layers=2))
    assert can_record(plain, cuda)
    assert not can_record(plain, cpu)
    plain.layers[1] = DynamicSlidingWindowLayer(sliding_window=8)
    assert not can_record(plain, cuda)


def test_no_division_at_temperature_one_changes_no_bit():
    logits, nothing = torch.randn(4, 50), torch.zeros(50, dtype=torch.bool)
    assert torch.equal(scaled_logprobs(logits, nothing, 1), torch.log_softmax(logits / 1.0, -1))
