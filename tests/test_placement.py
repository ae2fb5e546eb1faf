"""Turns, their ledger, and the three places where a policy can live."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from mrl import placement as placement_module
from mrl.config import RunConfig
from mrl.errors import MrlError, RunFailed
from mrl.learning import learn
from mrl.models.loading import claim_device, pick_device
from mrl.placement import BLOCK, Allocation, in_blocks
from mrl.run.metrics import time_metrics
from mrl.samples import TrainingSample
from tests.end_to_end.small_run import without_time
from tests.test_memory_estimate import SHAPES, model_of

NAMES = ["qwen-tiny", "llama-tiny"]


class Worker:
    """All that an allocation without swapping wants of a policy."""

    def __init__(self, name):
        self.name = name


def allocation_of(*names):
    return Allocation([Worker(name) for name in names], names)


# ------------------------------------------------------------------------------ turns


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            MemoryError("x\ny"),
            "^b ran out of memory in its learn turn; .* lower prompts_per_step.*$",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), "^b ran out of memory in its"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "^b ran out of memory in"),
        (torch.AcceleratorError("CUDA error: out of memory\nx"), "^b ran out of memory in its"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), "^b ran out of memory in"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "^b ran out of memory in its"),
        (FloatingPointError("not finite"), r"^b failed in its learn turn: not finite\.$"),
    ],
)
def test_a_turn_without_memory_or_numbers_ends_the_run_with_a_sentence(failure, sentence):
    allocation = allocation_of("a", "b")
    with pytest.raises(RunFailed, match=sentence), allocation.turn(allocation.policies[1], "learn"):
        raise failure
    assert allocation.ledger == []


@pytest.mark.parametrize(
    "bug", [RuntimeError("x"), KeyError("x"), MrlError("The verifier is broken")]
)
def test_a_bug_or_a_plain_error_is_not_taken_for_a_failed_turn(bug):
    allocation = allocation_of("a")
    with pytest.raises(type(bug)), allocation.turn(allocation.policies[0], "rollout"):
        raise bug


def test_alone_everything_is_gathered_in_the_order_of_the_policies():
    gathered = allocation_of("a", "b").gather({"b": 2, "a": [1]})
    assert list(gathered.items()) == [("a", [1]), ("b", 2)]
    assert allocation_of("a", "b").gather({"b": None}) == {"b": None}


def test_the_ledger_says_who_worked_when():
    allocation = allocation_of("a", "b")
    for phase in ("rollout", "evaluate", "evaluate"):
        for policy in allocation.policies:
            with allocation.turn(policy, phase):
                time.sleep(0.02)
    line = time_metrics(allocation.ledger, "a")
    assert line["time/rollout_s"] >= 0.02
    assert line["time/evaluate_s"] >= 0.04
    assert line["time/step_s"] >= 0.12  # of both policies
    turns = [(turn.policy, turn.phase) for turn in allocation.ledger]
    assert turns[:3] == [("a", "rollout"), ("b", "rollout"), ("a", "evaluate")]
    first, second = allocation.ledger[:2]
    assert first.start_s < first.stop_s <= second.start_s
    assert first.moved_bytes == 0
    assert without_time(line) == {}


# ------------------------------------------------------------------------------ placements


def sample(policy, advantage=1.0):
    return TrainingSample([5, 6], [7, 8], advantage=advantage, behavior_logprobs=[-1.0, -1.0])


def sizes(policy):
    weights = sum(p.numel() * 4 for p in policy.model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in policy.model.buffers())
    return weights, buffers


def test_a_swap_moves_only_what_the_phase_needs(make_policy):
    policies = [make_policy(name, i) for i, name in enumerate(NAMES)]
    (weights_a, extra_a), (weights_b, extra_b) = map(sizes, policies)
    whole_a, whole_b = weights_a + extra_a, weights_b + extra_b
    allocation = Allocation(policies, NAMES, placement="swap")

    def moved(phase, name):
        allocation.ledger.clear()
        policy = policies[NAMES.index(name)]
        with allocation.turn(policy, phase):
            learn(policy, [sample(policy)])
        return allocation.ledger[0].moved_bytes

    a, b = NAMES
    assert moved("rollout", a) == whole_a
    assert moved("rollout", b) == whole_a + whole_b  # a goes, b comes; no optimizer state yet
    assert moved("learn", b) == 2 * weights_b  # its two moments; the weights are there
    assert moved("learn", a) == (whole_b + 2 * weights_b) + (whole_a + 2 * weights_a)
    assert moved("rollout", a) == 0  # who learnt last samples first
    assert moved("verify", b) == 0  # needs no device


def test_a_swap_changes_no_number(make_policy):
    policy, other = two_policies(make_policy)
    learn(policy, [sample(policy)])
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    places = [p.data_ptr() for p in policy.model.parameters()]
    moments = [s["exp_avg"].clone() for s in policy.optimizer.state.values()]
    allocation = Allocation([policy, other], NAMES, "swap")
    for turn in (policy, other):
        with allocation.turn(turn, "rollout"):
            pass
    assert places != [p.data_ptr() for p in policy.model.parameters()]  # really copied
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())
    after = [s["exp_avg"] for s in policy.optimizer.state.values()]
    assert all(torch.equal(x, y) for x, y in zip(moments, after, strict=True))
    embeddings = policy.model.get_input_embeddings().weight
    assert embeddings is policy.model.get_output_embeddings().weight  # still tied


def test_host_memory_is_taken_once(make_policy):
    """To pin it takes longer than to copy; and each recorded token would unpin what is free."""
    a, b = policies = two_policies(make_policy)
    allocation = Allocation(policies, [p.name for p in policies], "swap")
    for policy in policies:
        learn(policy, [sample(policy)])
    before = {key: value.clone() for key, value in a.model.state_dict().items()}
    places = []
    for _ in range(3):
        for policy in (a, b):
            with allocation.turn(policy, "learn"):
                pass
        moments = [s[m] for s in a.optimizer.state.values() for m in ("exp_avg", "exp_avg_sq")]
        places.append([t.data_ptr() for t in (*a.model.parameters(), *moments)])
    assert places[0] == places[1] == places[2]
    assert all(torch.equal(v, before[k]) for k, v in a.model.state_dict().items())


def test_on_a_cpu_what_waits_is_not_pinned(make_policy, monkeypatch):
    """A run on the CPU of a machine that has a GPU pinned all of its memory."""
    policies, pinned = two_policies(make_policy), []
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def noted(*about, pin_memory=False, **named):
        pinned.append(pin_memory)
        return empty(*about, **named)

    monkeypatch.setattr(torch, "empty", noted)
    allocation = Allocation(policies, NAMES, "swap")
    for policy in policies:
        with allocation.turn(policy, "rollout"):
            pass
    assert pinned and not any(pinned)


def test_tensors_lie_in_their_blocks_side_by_side():
    sizes = [4, 10, 3 * BLOCK // 2, 64, BLOCK, 100]
    blocks, places = in_blocks(sizes)
    assert all(size == 1 << (size.bit_length() - 1) for size in blocks)  # powers of two
    taken = sorted((block, start, start + sizes[n]) for n, (block, start) in enumerate(places))
    assert all(start % 64 == 0 for _, start, _ in taken)
    assert all(end <= blocks[block] for block, _, end in taken)
    for (block, _, end), (other, start, _) in pairwise(taken):
        assert block != other or end <= start
    assert in_blocks([]) == ([], [])


@pytest.mark.parametrize(("name", "least"), [("qwen2.5", 10.3), ("smollm2", 6.3)])
def test_the_real_pair_is_pinned_in_little_more_than_its_size(name, least):
    """In powers of two a tensor at a time it took 16.8 GiB, which a machine with 16 has not."""
    with torch.device("meta"):
        model = model_of(*SHAPES[name])
    weights = [parameter.nbytes for parameter in model.parameters()]
    moments = [size for size in weights for _ in range(2)]  # they come later: a call of their own
    singly = sum(1 << (size - 1).bit_length() for size in weights + moments)
    assert singly > least * 2**30
    taken = sum(in_blocks(weights)[0]) + sum(in_blocks(moments)[0])
    assert taken < 1.1 * sum(weights + moments)


def test_devices(monkeypatch):
    assert pick_device("cpu") == pick_device("auto") == "cpu"
    with pytest.raises(MrlError, match="device is 'cuda:7', which cannot be used"):
        pick_device("cuda:7")
    for other in ("mps", "meta"):
        place = SimpleNamespace(device=torch.device(other))
        monkeypatch.setattr(torch, "ones", lambda size, device, place=place: place)
        with pytest.raises(MrlError, match=rf"device is '{other}'"):
            pick_device(other)
    current, shares = [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    made = SimpleNamespace(device=torch.device("cuda:1"))
    monkeypatch.setattr(torch, "ones", lambda size, device: made)
    assert pick_device("auto") == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device("auto") == "cuda:1"
    assert current == [made.device] * 2  # else a graph would be recorded on another one
    assert shares == []  # a library leaves the memory alone
    claim_device(RunConfig([]))
    assert shares == [0.95]  # torch's own error of missing memory comes first


def test_a_card_that_this_torch_has_no_kernels_for_gets_one_sentence(monkeypatch):
    """Memory can be had on a V100, but nothing is computed there."""

    def fill(size, device):
        raise RuntimeError(
            "CUDA error: no kernel image is available for execution on the device\nSearch for"
        )

    monkeypatch.setattr(torch, "ones", fill)
    with pytest.raises(MrlError, match=r"'cuda:0', which cannot.*no kernel.*cpu, or cuda"):
        pick_device("cuda:0")


def two_policies(make_policy, **settings):
    return [make_policy(name, i, **settings) for i, name in enumerate(("qwen-tiny", "llama-tiny"))]


def test_the_reference_moves_with_its_policy(make_policy):
    policy, other = two_policies(make_policy, kl_coef=1.0)
    allocation = Allocation([policy, other], NAMES, "swap")
    for phase in ("rollout", "learn"):
        with allocation.turn(policy, phase):
            pass
    whole = sum(sizes(policy))
    assert [turn.moved_bytes for turn in allocation.ledger] == [whole, whole]


def test_what_was_fetched_in_part_is_evicted_all_the_same(make_policy, monkeypatch):
    a, b = policies = two_policies(make_policy)
    allocation, moves = Allocation(policies, [p.name for p in policies], "swap", "device"), []

    def move(policy, parts, device, waiting=None):
        moves.append((policy.name, set(parts), device))
        if moves[-1] == (a.name, {"weights"}, "device"):
            raise MemoryError
        return 0

    monkeypatch.setattr(placement_module, "_move", move)
    with pytest.raises(RunFailed), allocation.turn(a, "rollout"):
        pass
    with allocation.turn(b, "rollout"):
        assert (a.name, {"weights"}, "cpu") in moves


def test_optimizer_state_is_evicted_after_a_rollout_too(make_policy):
    a, b = policies = two_policies(make_policy)
    allocation = Allocation(policies, [p.name for p in policies], "swap")
    for policy, phase in ((a, "rollout"), (a, "learn"), (a, "rollout"), (b, "rollout")):
        with allocation.turn(policy, phase):
            if phase == "learn":
                learn(a, [sample(a)])
    weights = sum(p.numel() * 4 for p in a.model.parameters())
    assert allocation.ledger[3].moved_bytes > 3 * weights  # its moments went with it
