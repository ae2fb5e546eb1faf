import json
import math
import random

import pytest
import torch
from mrl.distributed import Company
from mrl.trainer import Trainer, derive_seed

from mrl.alignment import LossyText
from mrl.allocation import Allocation
from mrl.config import RunConfig
from mrl.exchange import Exchange
from mrl.experiment.metrics import (
    without_time,
)
from mrl.modes import make_mode
from mrl.records import RewardStats, RolloutRecord, SuccessRecord, unpack
from mrl.samples import Verdict
from mrl.tiny.skills import SKILLS, generate

PROBLEMS = [problem for skill in SKILLS for problem, _ in generate(skill, "train", 4, 0)]


def test_seeds_depend_on_every_part():
    seeds = {derive_seed(0, 1, 2), derive_seed(0, 1, 3), derive_seed(0, 2, 2), derive_seed(1, 1, 2)}
    assert len(seeds) == 4
    assert derive_seed(0, 1) == derive_seed(0, 1)
    assert derive_seed(1, 11) != derive_seed(11, 1)


def make_trainer(make_policy, verifier, mode="sgt", exchange=None, modes=None, **settings):
    policies = [
        make_policy(name, index, group_size=4, max_new_tokens=8, **settings)
        for index, name in enumerate(("qwen-tiny", "llama-tiny"))
    ]
    config = RunConfig([policy.config for policy in policies], mode=mode, prompts_per_step=3)
    modes = modes or {policy.name: make_mode(mode, {}) for policy in policies}
    return Trainer(
        config, PROBLEMS, modes, exchange or Exchange(), verifier,
        Allocation(policies), Company([policy.name for policy in policies]),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["solo", "xgrpo", "sgt"])
def test_the_same_seed_gives_the_same_metrics_to_the_last_bit(make_policy, verifier, mode):
    runs = []
    for _ in range(2):
        trainer = make_trainer(make_policy, verifier, mode, learning_rate=1e-3)
        reports = [trainer.train_step(step) for step in (1, 2)]
        runs.append([without_time(r.metrics[name]) for r in reports for name in r.metrics])
    assert runs[0] == runs[1]


class Scripted:
    """A verifier for the trainer: the second policy is always right, the first never."""

    def __init__(self):
        self.calls = 0

    def verify_batch(self, items):
        self.calls += 1
        return [Verdict.CORRECT if self.calls % 2 == 0 else Verdict.WRONG] * len(items)


def test_a_rescue_goes_from_the_policy_that_solved_to_the_one_that_failed(make_policy):
    exchange = Exchange()
    trainer = make_trainer(make_policy, Scripted(), exchange=exchange)
    trainer.config.trust = "claim"  # the script knows no texts
    report = trainer.train_step(1)
    failed, solved = report.metrics["qwen-tiny"], report.metrics["llama-tiny"]
    told = {json.loads(line)["prompt_id"] for line in exchange.window()}  # random text is refused
    assert (failed["rescue_set"], solved["rescue_set"]) == (len(told), 0)
    assert 1 <= len(told) <= 3
    assert {(r.receiver, r.source) for r in report.rescues} <= {("qwen-tiny", "llama-tiny")}
    lost = sum(v for k, v in failed.items() if k.startswith(("dropped/", "thl/refused/")))
    assert failed["rescues"] + lost == len(told)
    assert failed.get("thl/records", 0) == failed["rescues"]
    assert failed["exchange/published_records"] == 0  # it had no success to tell of
    assert solved["exchange/published_records"] == failed["exchange/received_records"]
    assert solved["exchange/received_records"] == 0


class EverySecond:
    """A verifier that accepts every second completion, and no text with an X."""

    def verify_batch(self, items):
        return [Verdict.CORRECT if n % 2 else Verdict.WRONG for n in range(len(items))]

    def verify(self, answer, text, finished):
        return Verdict.WRONG if "X" in text else Verdict.CORRECT


def hostile_records(kind, source, version, groups, codec):
    """A thousand records a step and more: lies, terminal codes, megabytes, malformed ones."""
    for group in groups if source == "llama-tiny" else ():
        for index in range(400):
            text = ("X\x1b[2J\x00", "X" * 5000, "X\u202e\\boxed{1}")[index % 3]
            yield SuccessRecord(
                prompt_id=group.problem.id, source=source, version=version, index=index,
                text=text, finished=True, token_lengths=(len(text.encode()),), canonical=True,
                answer=group.problem.answer, verdict="correct",
            )  # fmt: skip
            yield LossyText("malformed")
        yield SuccessRecord(  # in somebody else's name
            prompt_id=group.problem.id, source="qwen-tiny", version=version, text="X",
            finished=True, token_lengths=(1,), canonical=True, answer="1", verdict="correct",
        )  # fmt: skip


def test_a_peer_that_floods_and_lies_changes_nothing_of_the_receivers_own_learning(make_policy):
    """Against the same run with a peer that says nothing; and with trust=claim it does harm."""
    weights, lines = {}, {}
    for name, tell, trust in (
        ("silent", lambda *_: (), "verify"),
        ("hostile", hostile_records, "verify"),
        ("believed", hostile_records, "claim"),
    ):
        exchange = Exchange(largest_group=4)
        trainer = make_trainer(make_policy, EverySecond(), exchange=exchange, learning_rate=1e-3)
        trainer.config.trust = trust
        trainer.make_records = tell
        if name == "believed":  # the gate opens only where all attempts failed
            trainer.verifier.verify_batch = lambda items: [Verdict.WRONG] * len(items)
        for step in (1, 2):
            lines[name] = trainer.train_step(step).metrics["qwen-tiny"]
        weights[name] = trainer.allocation.policies[0].model.state_dict()
    said = ("time/", "exchange/", "outcome/", "dropped/")
    silent, hostile = (
        {key: value for key, value in lines[name].items() if not key.startswith(said)}
        for name in ("silent", "hostile")
    )
    assert silent == hostile
    assert silent["grad_norm"] > 0
    for key, value in weights["silent"].items():
        assert torch.equal(value, weights["hostile"][key])
    believed, refused = lines["believed"], lines["hostile"]["exchange/not_believed"]
    assert refused == lines["hostile"]["exchange/received_records"] == 3 * 4  # prompts, group
    assert believed["rescues"] > 0  # so it was the check that kept them out


# ------------------------------------------------------------------------------ any record at all

STRINGS = (
    "",
    "correct",
    "wrong",
    "\ud800",
    "e\u0301",
    "\x00\x1b[2J",
    "\\boxed{1}",
    "9" * 300,
    "ж😀",
)
NUMBERS = (
    0, 1, -1, 2, 0.5, -0.5, -1e4, -1e5, 1e9, 10**400, -(10**400), 10**5000, 1e30, 1e308, -1e308,
    5e-324, 2**63, -0.0, math.nan, math.inf, -math.inf, True, None,
)  # fmt: skip


def random_value(rng, like):
    """Some JSON value; half of the time of the type of what stands there."""
    if isinstance(like, list) and rng.random() < 0.6:
        changed = [v if rng.random() < 0.7 else random_value(rng, v) for v in like]
        return changed if rng.random() < 0.8 else changed + like
    if isinstance(like, str) and rng.random() < 0.5:
        return rng.choice(STRINGS) if rng.random() < 0.7 else like + rng.choice(STRINGS)
    if rng.random() < 0.6:
        return rng.choice((rng.uniform(-1, 1), -(10 ** rng.uniform(-5, 5)), *NUMBERS))
    return rng.choice((*STRINGS, [], {}, [0], [[0]], {"x": 1}))


def random_record(rng, kind, prompt_id, index, version):
    """A sound record of a made-up text with one to three fields replaced, as JSON values."""
    pieces = [
        rng.choice(("1", " 2", "ab", "", "é", "\\boxed{1}")) for _ in range(rng.randint(0, 4))
    ]
    right, finished = rng.random() < 0.5, rng.random() < 0.5
    values = {"prompt_id": prompt_id, "source": "llama-tiny", "version": version, "index": index}
    if kind is RewardStats:
        mean = rng.random()
        values |= {"index": 0, "count": rng.randint(1, 4), "mean": mean}
        values["std"] = rng.random() * math.sqrt(mean * (1 - mean))
    else:
        lengths = [len(piece.encode()) for piece in pieces]
        values |= {"text": "".join(pieces), "finished": finished, "canonical": rng.random() < 0.5}
        values |= {"token_lengths": lengths, "verdict": "correct" if right else "wrong"}
    if kind is SuccessRecord:
        values |= {"answer": "1", "verdict": "correct"}
    if kind is RolloutRecord:
        values |= {"logprobs": [-(10 ** rng.uniform(-3, 4)) for _ in lengths]}
        values |= {"end_logprob": -(10 ** rng.uniform(-3, 4)) if finished else None}
        values |= {"reward": float(right)}
    for name in rng.sample(sorted(values.keys() - {"prompt_id"}), rng.choice((0, 0, 1, 1, 2, 3))):
        values[name] = random_value(rng, values[name])
    if rng.random() < 0.05:
        values["prompt_id"] = random_value(rng, prompt_id)
    return values


def as_record(kind, values):
    """As another process would hear it, or (if JSON can't say it) as an object of this one."""
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    try:
        return unpack([json.dumps({"kind": kind.kind, **values})])[0]
    except ValueError:  # an integer with more digits than Python writes
        return kind(**fields)


@pytest.mark.parametrize("mode", ["xgrpo", "sgt", "prp", "naive", "hacpo", "graft"])
def test_whatever_numbers_and_strings_a_peer_says_its_receiver_stays_finite(make_policy, mode):
    """Twice over: all that it says; and what of it is refused, which changes nothing at all."""
    rng, weights, lines = random.Random(mode), {}, {}
    for case in ("silent", "refused", "all"):
        settings = {"graft": {"balanced": False, "least": 0.0}}
        names = ("qwen-tiny", "llama-tiny")
        trainer = make_trainer(
            make_policy, EverySecond(), mode, Exchange(largest_group=4), learning_rate=1e-3,
            modes={name: make_mode(mode, settings) for name in names},
        )  # fmt: skip
        trainer.config.trust = "claim"

        def tell(kind, source, version, groups, codec, case=case):
            for group in groups if source == "llama-tiny" and case != "silent" else ():
                for number in range(100):
                    about = (group.problem.id, number % 4, version)
                    told = as_record(kind, random_record(rng, kind, *about))
                    if case == "all" or not Exchange(largest_group=4).publish(told, source):
                        yield told

        trainer.make_records = tell
        if mode in ("sgt", "graft"):  # they learn from a peer only where all own attempts failed
            trainer.verifier.verify_batch = lambda items: [Verdict.WRONG] * len(items)
        for step in (1, 2):
            report = trainer.train_step(step)
            assert report.failures == []
            lines[case] = report.metrics["qwen-tiny"]
            assert lines[case]["update_skipped"] == 0
        weights[case] = trainer.allocation.policies[0].model.state_dict()
        assert all(bool(torch.isfinite(value).all()) for value in weights[case].values())
    same = {case: all(torch.equal(value, weights[case][key]) for key, value in
                      weights["silent"].items()) for case in ("refused", "all")}  # fmt: skip
    assert same == {"refused": True, "all": False}  # what was sound did teach
    assert lines["refused"]["exchange/received_records"] == 0
    assert 3 <= lines["all"]["exchange/received_records"] <= 3 * 4


def test_solo_publishes_and_receives_nothing(make_policy):
    report = make_trainer(make_policy, Scripted(), mode="solo").train_step(1)
    for line in report.metrics.values():
        assert line["exchange/published_records"] == line["exchange/received_bytes"] == 0
    assert report.rescues == []


def test_they_sample_a_b_and_learn_b_a(make_policy, verifier):
    trainer = make_trainer(make_policy, verifier)
    names = [[p.name for p in trainer.allocation.order(phase)] for phase in ("rollout", "learn")]
    assert names == [["qwen-tiny", "llama-tiny"], ["llama-tiny", "qwen-tiny"]]
