"""The sampling loop that CUDA records, here unrecorded: the same completions as the plain loop."""

import gc
import logging
import weakref
from weakref import WeakSet

import pytest
import torch
from transformers import DynamicCache, Qwen2Config
from transformers.cache_utils import DynamicSlidingWindowLayer

from mrl.config import DATA, PolicyConfig
from mrl.decoder import OneTokenDecoder
from mrl.logprobs import scaled_logprobs
from mrl.models import cuda_graph
from mrl.models.cuda_graph import COMPARED, RECORD_AFTER, can_record
from mrl.models.loading import load_policy
from mrl.run.problems import load_problems
from mrl.samples import Problem

PROBLEM = [Problem("a", "7*8?", "56")]


@pytest.fixture(scope="module")
def problems(verifier):
    return load_problems(DATA / "words" / "validation.jsonl", verifier.check_answer)[::45]


def sampled(policy, problems, temperature=1.0):
    generator = torch.Generator().manual_seed(5)
    policy.config.temperature = temperature
    groups = policy.rollout(problems, generator)
    return [rollout for group in groups for rollout in group.rollouts]


@pytest.fixture
def forced(monkeypatch):
    """Without CUDA: a function that says what a recording of a step does; at first, the step."""
    monkeypatch.setattr(cuda_graph, "_failures", [])
    monkeypatch.setattr(cuda_graph, "_compared", WeakSet())
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: not cuda_graph._failures)

    def recorded_as(capture):
        monkeypatch.setattr(cuda_graph, "_capture", capture)

    recorded_as(lambda step: step)
    return recorded_as


@pytest.fixture
def decoded(monkeypatch):
    """The arguments of every one-token forward pass from now on."""
    calls = []
    forward = OneTokenDecoder.__call__

    def watch(decoder, *arguments):
        calls.append(arguments)
        return forward(decoder, *arguments)

    monkeypatch.setattr(OneTokenDecoder, "__call__", watch)
    return calls


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed", marks=pytest.mark.slow)])
def test_every_completion_is_that_of_the_plain_loop(forced, problems, name, dtype):
    policy = load_policy(PolicyConfig(name, str(DATA / "tiny" / name), dtype=dtype))
    for temperature in (1.0, 0.7):
        policy.graph_decode = None
        want = sampled(policy, problems, temperature)
        policy.graph_decode = cuda_graph.decode
        got = sampled(policy, problems, temperature)
        assert [r.completion_ids for r in got] == [r.completion_ids for r in want]
        assert [r.finished for r in got] == [r.finished for r in want]
        assert len({len(r.completion_ids) for r in got}) > 3
        for a, b in zip(got, want, strict=True):
            close = 1e-4 if dtype == "float32" else 0.2  # turned weights round differently
            assert a.logprobs == pytest.approx(b.logprobs, abs=close)


def test_second_attempts_are_those_of_the_plain_loop(forced, problems):
    """Prompts of different lengths, with beginnings of different lengths, in one batch."""
    policy = load_policy(PolicyConfig("qwen-tiny", str(DATA / "tiny" / "qwen-tiny")))
    prompts = [policy.prompt_ids(problem.prompt) for problem in problems]
    ids = policy.codec.encode("47-38: 17-8=9")
    beginnings = [ids[: number % len(ids)] for number in range(len(prompts))]
    found = []
    for loop in (None, cuda_graph.decode):
        policy.graph_decode = loop
        generator = torch.Generator().manual_seed(5)
        attempts = policy.continue_from(prompts, beginnings, generator)
        found.append([(one.completion_ids, one.finished, one.text) for one in attempts])
    assert found[0] == found[1]


def test_a_row_that_has_ended_lets_the_others_go_on_to_the_limit(forced, make_policy, decoded):
    policy = make_policy(max_new_tokens=20)
    policy.graph_decode = cuda_graph.decode
    policy.eos_ids = list(range(0, len(policy.tokenizer), 40))
    (group,) = policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=32)
    lengths = [len(rollout.completion_ids) for rollout in group.rollouts]
    assert min(lengths) < 10
    assert max(lengths) == 20
    for rollout in group.rollouts:
        ends = [token in policy.eos_ids for token in rollout.completion_ids]
        assert not any(ends[:-1])
        assert ends[-1] == rollout.finished
    policy.eos_ids = list(range(len(policy.tokenizer)))
    decoded.clear()
    policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=2)
    assert len(decoded) == cuda_graph.LOOK_EVERY  # then all had ended


@pytest.mark.parametrize("tokens", [RECORD_AFTER + 9, RECORD_AFTER + 10])
def test_nothing_moves_or_grows_while_a_step_repeats(forced, make_policy, decoded, tokens):
    """A graph writes to the addresses that it was recorded with."""
    policy = make_policy(max_new_tokens=tokens)
    policy.graph_decode = cuda_graph.decode
    decoded.clear()  # loading a model samples from it, too
    policy.rollout(PROBLEM, torch.Generator().manual_seed(0), group_size=4)

    seen = []
    for _, positions, bias, cache in decoded:
        tensors = [positions, bias, cache.place]
        tensors += cache.layers
        seen.append([(t.data_ptr(), t.shape) for t in tensors])
    assert len(seen) == tokens + 2 * COMPARED
    assert all(now == seen[0] for now in seen)
    # whatever the length of the prompt and of the completion together
    assert seen[0][1][1][-1] % 8 == 0


def wrong_at_once(step):
    return lambda: None


def with_an_old_number(step):
    """As if the host had read a number while it was recorded: right once, then not."""
    calls = []

    def replay():
        calls.append(1)
        if len(calls) == 1:
            step()

    return replay


def that_raises(step):
    def replay():
        step()  # the state has changed already
        raise RuntimeError("an illegal instruction was encountered\nmore")

    return replay


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (wrong_at_once, "logits"),
        (with_an_old_number, "logits"),
        (that_raises, "an illegal instruction was encountered)"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed", marks=pytest.mark.slow)])
def test_a_recording_that_is_wrong_is_not_believed(
    forced, problems, caplog, capture, reason, dtype
):
    policy = load_policy(PolicyConfig("a", str(DATA / "tiny" / "qwen-tiny"), dtype=dtype))
    want = sampled(policy, problems)
    policy.graph_decode = cuda_graph.decode
    tried = []
    forced(lambda step: tried.append(1) or capture(step))
    with caplog.at_level(logging.WARNING):
        got = sampled(policy, problems)
        again = sampled(policy, problems)
    for found in (got, again):
        assert [r.completion_ids for r in found] == [r.completion_ids for r in want]
    assert len(tried) == 1
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_a_model_is_compared_once(forced, make_policy, decoded):
    calls = []
    policy = make_policy(max_new_tokens=20)
    policy.graph_decode = cuda_graph.decode
    forced(lambda step: lambda: calls.append(1) or step())
    numbers = []
    for _ in range(2):
        decoded.clear()
        sampled(policy, PROBLEM)
        numbers.append(len(decoded))
    assert numbers[0] - numbers[1] == 2 * COMPARED


def test_logits_that_are_no_numbers_are_not_close(forced, make_policy, caplog):
    policy = make_policy(max_new_tokens=20)
    policy.graph_decode = cuda_graph.decode
    policy.model.get_decoder().norm.weight.data[:] = torch.nan
    with pytest.raises(FloatingPointError), caplog.at_level(logging.WARNING):
        sampled(policy, PROBLEM)
    assert "by nan" in caplog.text


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
    RuntimeError("CUDA error: out of memory"),
])  # fmt: skip
def test_memory_that_runs_out_while_recording_is_no_fault_of_the_model(
    forced, make_policy, caplog, error
):
    def capture(step):
        raise error

    forced(capture)
    policy = make_policy(max_new_tokens=20)
    policy.graph_decode = cuda_graph.decode
    with caplog.at_level(logging.WARNING), pytest.raises(type(error)):
        sampled(policy, PROBLEM)
    assert not caplog.records
    recorded = []
    forced(lambda step: recorded.append(1) or step)  # there is memory again
    sampled(policy, PROBLEM)
    assert recorded == [1]


def test_only_one_recording_lives_at_a_time(forced, make_policy):
    """When one dies, torch frees what cuBLAS keeps for the stream of all: pytorch issue 193402."""
    alive = []

    class Recording:
        def __init__(self, step):
            self.step = step

        def replay(self):
            self.step()

    def capture(step):
        assert all(earlier() is None for earlier in alive)
        recording = Recording(step)
        alive.append(weakref.ref(recording))
        return recording.replay

    forced(capture)
    policies = [make_policy(name, max_new_tokens=20) for name in ("qwen-tiny", "llama-tiny")]
    gc.disable()
    try:
        for policy in policies * 2:
            policy.graph_decode = cuda_graph.decode
            sampled(policy, PROBLEM)
    finally:
        gc.enable()
    assert len(alive) == 4


def test_only_caches_that_keep_all_are_recorded(monkeypatch):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    plain = DynamicCache(config=Qwen2Config(num_hidden_layers=2))
    assert can_record(plain, cuda)
    assert not can_record(plain, cpu)
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graph, "_failures", ["out of memory"])
        assert not can_record(plain, cuda)
    plain.layers[1] = DynamicSlidingWindowLayer(sliding_window=8)
    assert not can_record(plain, cuda)


def test_no_division_at_temperature_one_changes_no_bit():
    logits, nothing = torch.randn(4, 50), torch.tensor([], dtype=torch.int64)
    assert torch.equal(scaled_logprobs(logits, nothing, 1), torch.log_softmax(logits / 1.0, -1))
