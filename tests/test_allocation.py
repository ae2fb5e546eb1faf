import threading
import time

import pytest
import torch
from mrl.distributed import Company
from mrl.trainer import Trainer

from mrl.allocation import PARTS, PATIENCE, Allocation, _move, pick_device, spread_devices
from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.exchange import Exchange
from mrl.experiment.metrics import without_time
from mrl.learning import learn
from mrl.modes import make_mode
from mrl.samples import TrainingSample, Verdict
from mrl.tiny.skills import SKILLS, generate

NAMES = ["qwen-tiny", "llama-tiny"]
PROBLEMS = [problem for skill in SKILLS for problem, _ in generate(skill, "train", 4, 0)]


class Worker:
    """All that an allocation without swapping wants of a policy."""

    def __init__(self, name):
        self.name = name


def workers(*names):
    return [Worker(name) for name in names or ("a", "b")]


# ------------------------------------------------------------------------------ turns


def test_turns_are_one_after_the_other_in_the_phases_order_and_return_by_name():
    order = []

    def job(policy):
        order.append(policy.name)
        return policy.name * 2

    allocation = Allocation(workers())
    assert allocation.run("rollout", job, ["a", "b"]) == {"a": "aa", "b": "bb"}
    assert list(allocation.run("learn", job, ["a", "b"])) == ["a", "b"]
    assert order == ["a", "b", "b", "a"]
    assert allocation.run("learn", job, ["b"]) == {"b": "bb"}


def test_spread_turns_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=20)
    allocation = Allocation([], placement="resident")
    allocation.policies, allocation.placement = workers(), "spread"
    assert allocation.run("rollout", lambda policy: meeting.wait() >= 0, ["a", "b"]) == {
        "a": True,
        "b": True,
    }


def test_a_worker_that_raises_is_named_and_left_out_and_the_others_go_on():
    allocation = Allocation(workers("a", "b", "c"))

    def job(policy):
        if policy.name == "b":
            raise RuntimeError("no more\nmemory")
        return 1

    assert allocation.run("rollout", job, ["a", "b", "c"]) == {"a": 1, "c": 1}
    assert allocation.failures == ["b failed in its rollout turn: no more"]
    allocation.begin_step(2)
    assert allocation.failures == []
    assert allocation.run("rollout", lambda policy: 2, ["a", "b", "c"])["b"] == 2


@pytest.mark.parametrize("bug", [TypeError("x"), KeyError("x"), MrlError("The verifier is broken")])
def test_a_bug_or_a_plain_error_is_not_taken_for_a_workers_failure(bug):
    def job(policy):
        raise bug

    with pytest.raises(type(bug)):
        Allocation(workers()).run("rollout", job, ["a", "b"])


def test_a_hanging_worker_is_given_up_after_its_budget_and_skipped_while_it_hangs():
    allocation = Allocation(workers(), budget_s=0.3)
    released = threading.Event()

    def job(policy):
        if policy.name == "b":
            released.wait()
        return time.monotonic()

    start = time.monotonic()
    assert list(allocation.run("rollout", job, ["a", "b"])) == ["a"]
    assert 0.2 < time.monotonic() - start < 5
    assert allocation.failures == ["b failed in its rollout turn: it did not come back within 0 s"]
    start = time.monotonic()
    assert list(allocation.run("learn", job, ["a", "b"])) == ["a"]  # not waited for again
    assert time.monotonic() - start < 0.2
    assert "still not come back" in allocation.failures[-1]
    released.set()
    time.sleep(0.1)
    assert list(allocation.run("rollout", job, ["a", "b"])) == ["a", "b"]  # it is back
    assert all(turn.policy != "b" or turn.phase == "rollout" for turn in allocation.ledger)


def test_a_turns_budget_follows_from_the_turns_so_far():
    allocation = Allocation(workers())
    assert allocation.budget_of("rollout") == 600
    allocation.note("a", "rollout", time.perf_counter() - 30)
    assert allocation.budget_of("rollout") == pytest.approx(300, abs=1)
    allocation.note("a", "learn", time.perf_counter() - 0.1)
    assert allocation.budget_of("learn") == 20
    assert Allocation(workers(), budget_s=7).budget_of("learn") == 7
    assert Allocation(workers(), budget_s=7).budget_of("evaluate") > 1e6


def test_the_ledger_says_who_worked_when():
    allocation = Allocation(workers())
    allocation.begin_step(1)
    allocation.run("rollout", lambda policy: time.sleep(0.02), ["a", "b"])
    allocation.note("a", "collect", time.perf_counter())
    line = allocation.ledger_of("a")
    assert line["time/rollout_s"] >= 0.02
    assert [turn[0] for turn in line["time/turns"]] == ["rollout", "collect"]
    (_, start, stop, moved), _ = line["time/turns"]
    assert 0 <= start < stop <= line["time/step_s"]
    assert moved == line["time/moved_bytes"] == 0
    assert allocation.ledger_of("b")["time/turns"][0][1] >= stop  # b came after a
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
    allocation = Allocation(policies, placement="swap")

    def moved(phase, name):
        allocation.begin_step(1)
        allocation.run(phase, lambda policy: learn(policy, [sample(policy)]) and None, [name])
        return allocation.ledger[0].moved_bytes

    a, b = NAMES
    assert moved("rollout", a) == whole_a
    assert moved("rollout", b) == whole_a + whole_b  # a goes, b comes; no optimizer state yet
    assert moved("learn", b) == 2 * weights_b  # its two moments; the weights are there
    assert moved("learn", a) == (whole_b + 2 * weights_b) + (whole_a + 2 * weights_a)
    assert moved("rollout", a) == 0  # who learnt last samples first
    assert moved("verify", b) == 0  # needs no device


def test_a_swap_changes_no_number(make_policy):
    policy = make_policy()
    learn(policy, [sample(policy)])
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    places = [p.data_ptr() for p in policy.model.parameters()]
    moments = [s["exp_avg"].clone() for s in policy.optimizer.state.values()]
    assert _move(policy, PARTS, "cpu") > 0
    assert places != [p.data_ptr() for p in policy.model.parameters()]  # really copied
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())
    after = [s["exp_avg"] for s in policy.optimizer.state.values()]
    assert all(torch.equal(x, y) for x, y in zip(moments, after, strict=True))
    embeddings = policy.model.get_input_embeddings().weight
    assert embeddings is policy.model.get_output_embeddings().weight  # still tied


def make_trainer(make_policy, verifier, placement="resident", mode="sgt", fault=None, **settings):
    sizes = settings.pop("group_sizes", (4, 4))
    policies = [
        make_policy(name, index, group_size=size, max_new_tokens=8, learning_rate=1e-3)
        for index, (name, size) in enumerate(zip(NAMES, sizes, strict=True))
    ]
    config = RunConfig([policy.config for policy in policies], mode=mode, prompts_per_step=3)
    allocation = Allocation(policies, placement, **settings)
    if fault:
        allocation.before_turn = fault
    modes = {name: make_mode(mode, {}) for name in NAMES}
    return Trainer(config, PROBLEMS, modes, Exchange(), verifier, allocation, Company(NAMES))


@pytest.mark.parametrize("mode", ["prp", "hacpo"])
def test_all_placements_learn_the_same_to_the_last_bit(make_policy, verifier, mode):
    found = {}
    for placement in ("resident", "swap", "spread"):
        trainer = make_trainer(make_policy, verifier, placement, mode)
        reports = [trainer.train_step(step) for step in (1, 2)]
        lines = [without_time(r.metrics[name]) for r in reports for name in NAMES]
        weights = [p.clone() for q in trainer.allocation.policies for p in q.model.parameters()]
        found[placement] = lines, weights
    for placement in ("swap", "spread"):
        assert found[placement][0] == found["resident"][0]
        pairs = zip(found[placement][1], found["resident"][1], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_unequal_workers_each_finish_every_step(make_policy, verifier):
    trainer = make_trainer(make_policy, verifier, mode="prp", group_sizes=(2, 16))
    for step in (1, 2, 3):
        report = trainer.train_step(step)
        assert set(report.metrics) == set(NAMES)
        assert report.failures == []
        assert all(report.metrics[name]["time/learn_s"] > 0 for name in NAMES)
        rows = [sum(report.metrics[name][f"verdict/{v}"] for v in Verdict) for name in NAMES]
        assert rows == pytest.approx([1.0, 1.0])


# ------------------------------------------------------------------------------ a step with faults


def crash(name, steps, phase="rollout"):
    def before_turn(policy, now, step):
        if (policy, now) == (name, phase) and step in steps:
            raise RuntimeError("planted")

    return before_turn


@pytest.mark.parametrize("phase", ["rollout", "verify", "learn"])
def test_who_misses_a_step_is_tried_again_in_the_next(make_policy, verifier, phase):
    fault = crash("llama-tiny", {2}, phase)
    trainer = make_trainer(make_policy, verifier, mode="prp", fault=fault)
    reports = [trainer.train_step(step) for step in (1, 2, 3)]
    assert [sorted(r.metrics) for r in reports] == [sorted(NAMES), ["qwen-tiny"], sorted(NAMES)]
    assert reports[1].failures == [
        f"llama-tiny failed in its {phase} turn: planted",
        "llama-tiny missed step 2.",
    ]
    assert reports[2].failures == []
    assert trainer.present == NAMES


def test_after_three_misses_in_a_row_the_run_goes_on_without(make_policy, verifier):
    fault = crash("llama-tiny", {1, 3, 4, 5})
    trainer = make_trainer(make_policy, verifier, fault=fault)
    reports = [trainer.train_step(step) for step in range(1, 8)]
    assert [r.lost for r in reports] == [[], [], [], [], ["llama-tiny"], [], []]
    assert "goes on without it" in reports[4].failures[-1]
    assert reports[6].failures == []
    assert trainer.present == ["qwen-tiny"]
    assert PATIENCE == 3


# ------------------------------------------------------------------------------ memory, devices


def test_devices(monkeypatch):
    assert pick_device("cpu") == "cpu"
    assert spread_devices("cpu", 3) == ["cpu"] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MrlError, match="there is 1; use swap or resident"):
        spread_devices("cuda:0", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert spread_devices("cuda:0", 2) == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == "cuda:1"
