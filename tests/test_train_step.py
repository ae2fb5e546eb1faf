"""One step as it is written in mini_mrl.py: what crosses between two policies, and what cannot.

Above all: whatever numbers and strings a peer says, its receiver stays finite and its own.
"""

import math
import random

import pytest
import torch

from mini_mrl import train_step
from mrl.alignment import LossyText
from mrl.exchange import Exchange
from mrl.records import RewardStats, SuccessRecord
from mrl.reward import Verdict
from mrl.samples import derive_seed
from mrl.verifier.verifier import BoxVerifier
from tests.end_to_end.small_run import without_time
from tests.fakes import NAMES, PROBLEMS, one_step, weights_of


def test_seeds_depend_on_every_part():
    seeds = {derive_seed(0, 1, 2), derive_seed(0, 1, 3), derive_seed(0, 2, 2), derive_seed(1, 1, 2)}
    assert len(seeds) == 4
    assert derive_seed(0, 1) == derive_seed(0, 1)
    assert derive_seed(1, 11) != derive_seed(11, 1)


@pytest.mark.parametrize("mode", ["prp", "hacpo"])
def test_the_same_seed_gives_the_same_step_to_the_last_bit_under_swap_too(
    small_team, verifier, mode
):
    found = []
    for placement in ("resident", "resident", "swap"):
        team = small_team(mode, verifier, placement=placement, learning_rate=1e-3)
        lines = [without_time(line) for step in (1, 2) for line in one_step(team, step)[0].values()]
        found.append(
            (
                lines,
                {**weights_of(team, 0), **{f"b.{k}": v for k, v in weights_of(team, 1).items()}},
            )
        )
    (lines, weights), *others = found
    for other_lines, other_weights in others:
        assert other_lines == lines
        assert all(torch.equal(value, weights[key]) for key, value in other_weights.items())


def test_who_samples_last_learns_first(small_team, verifier):
    """So that under `swap` the policy that is on the device stays there."""
    team = small_team("solo", verifier)
    for step in (1, 2):
        one_step(team, step)
        found = [(turn.phase, NAMES.index(turn.policy)) for turn in team.allocation.ledger]
        sampled, verified, learnt = found[:2], found[2:4], found[5::2]
        assert (sampled, learnt) == ([("rollout", 0), ("rollout", 1)], [("learn", 1), ("learn", 0)])
        assert [phase for phase, _ in found[4::2]] == ["judge", "judge"]
        assert len(found) == 8 and verified[0][0] == "verify"


def test_unequal_policies_each_finish_every_step(small_team, verifier):
    team = small_team("prp", verifier, sizes=(2, 16))
    for step in (1, 2, 3):
        lines, _ = one_step(team, step)
        for name in NAMES:
            assert lines[name]["time/learn_s"] > 0
            assert sum(lines[name][f"verdict/{v}"] for v in Verdict) == pytest.approx(1.0)


class Scripted:
    """A verifier: the second policy is always right, the first never."""

    def __init__(self, group=3 * 4):
        self.judged = -1
        self.group = group

    verify_groups = BoxVerifier.verify_groups

    def verify(self, answer, text, finished):
        self.judged += 1
        return Verdict.CORRECT if self.judged // self.group % 2 else Verdict.WRONG


def test_a_rescue_goes_from_the_policy_that_solved_to_the_one_that_failed(small_team):
    team = small_team("sgt", Scripted())
    team.trust = "claim"  # the script knows no texts
    lines, rescues = one_step(team, 1)
    failed, solved = (lines[name] for name in NAMES)
    collected = team.exchange.collect(SuccessRecord, NAMES[0], [p.id for p in PROBLEMS])
    published = {prompt for prompt, found in collected.items() if found}
    team.exchange.take_traffic(NAMES[0])
    assert (failed["rescue_set"], solved["rescue_set"]) == (len(published), 0)
    assert 1 <= len(published) <= 3  # random text may be refused
    assert {(r["receiver"], r["source"]) for r in rescues} <= {NAMES}
    lost = sum(v for k, v in failed.items() if k.startswith(("dropped/", "thl/refused/")))
    assert failed["rescues"] <= len(published) <= failed["rescues"] + lost
    assert failed.get("thl/records", 0) == failed["rescues"]
    assert failed["exchange/published_records"] == 0  # it had no success to publish
    assert solved["exchange/published_records"] == failed["exchange/received_records"]
    assert solved["exchange/received_records"] == 0


def test_solo_publishes_and_receives_nothing(small_team):
    lines, rescues = one_step(small_team("solo", Scripted()), 1)
    for line in lines.values():
        assert line["exchange/published_records"] == line["exchange/received_bytes"] == 0
    assert rescues == []


# ------------------------------------------------------------------------------ a hostile peer


class EverySecond:
    """A verifier that accepts every second completion, and of peers' texts none with an X."""

    judged = 0
    verify_groups = BoxVerifier.verify_groups

    def verify(self, answer, text, finished):
        if "X" in text:
            return Verdict.WRONG
        self.judged += 1
        return Verdict.WRONG if self.judged % 2 else Verdict.CORRECT


class Never(EverySecond):
    """All own attempts fail: sgt and graft learn from a peer only then."""

    def verify(self, answer, text, finished):
        return Verdict.WRONG


def hostile_records(record_type, policy, groups, step):
    """Three hundred records a step: lies, terminal codes, megabytes, malformed ones."""
    source, version = policy.name, policy.version
    for group in groups if source == "llama-tiny" else ():
        for index in range(100):
            text = ("X\x1b[2J\x00", "X" * 5000, "X\u202e\\boxed{1}")[index % 3]
            yield SuccessRecord(
                prompt_id=group.problem.id, source=source, version=version, index=index,
                text=text, finished=True, token_lengths=(len(text.encode()),), canonical=True,
                answer=group.problem.answer, verdict="correct",
            )  # fmt: skip
            yield LossyText("malformed")
        yield SuccessRecord(  # in the receiver's own name
            prompt_id=group.problem.id, source="qwen-tiny", version=version, text="X",
            finished=True, token_lengths=(1,), canonical=True, answer="1", verdict="correct",
        )  # fmt: skip


def test_a_peer_that_floods_and_lies_changes_nothing_of_the_receivers_own_learning(small_team):
    """Against the same run with a silent peer; and with trust=claim it does harm."""
    weights, lines = {}, {}
    for name, make, trust, verifier in (
        ("silent", lambda *_: (), "verify", EverySecond()),
        ("hostile", hostile_records, "verify", EverySecond()),
        ("believed", hostile_records, "claim", Never()),  # so that the gate opens
    ):
        team = small_team("sgt", verifier, learning_rate=1e-3)
        team.trust, team.records_of = trust, make
        for step in (1, 2):
            both = one_step(team, step)[0]
            lines[name], of_peer = both["qwen-tiny"], both["llama-tiny"]
            # in the receiver's own name a sample would count as own, so it is not taken in
            in_its_name = 0 if name == "silent" else 3  # one for each prompt
            assert of_peer.get("exchange/refused/wrong_source", 0) == in_its_name
        weights[name] = weights_of(team, 0)
    theirs = ("time/", "exchange/", "outcome/", "dropped/")
    silent, hostile = (
        {key: value for key, value in lines[name].items() if not key.startswith(theirs)}
        for name in ("silent", "hostile")
    )
    assert silent == hostile
    assert silent["grad_norm"] > 0
    assert all(torch.equal(value, weights["hostile"][k]) for k, value in weights["silent"].items())
    refused = lines["hostile"]["exchange/not_confirmed"]
    assert refused == lines["hostile"]["exchange/received_records"] == 3 * 100  # for each prompt
    assert lines["believed"]["rescues"] > 0  # so it was the check that kept them out


# ------------------------------------------------------------------------------ any record at all

STRINGS = ("", " ", "7", "\\boxed{1}", "9" * 300, "ж😀", "<end>")
NUMBERS = (
    0.0,
    1.0,
    -1.0,
    0.5,
    -1e4,
    -1e5,
    1e9,
    -1e308,
    1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
)


def random_record(rng, record_type, prompt_id, index, version):
    """A sound record of a made-up text, with up to three of its values replaced."""
    pieces = [
        rng.choice(("1", " 2", "ab", "", "é", "\\boxed{1}")) for _ in range(rng.randint(0, 4))
    ]
    right, finished = rng.random() < 0.5, rng.random() < 0.5
    lengths = tuple(len(piece.encode()) for piece in pieces)
    origin = {"prompt_id": prompt_id, "source": "llama-tiny", "version": version, "index": index}
    text = {
        "text": "".join(pieces), "finished": finished, "canonical": rng.random() < 0.5,
        "token_lengths": lengths, "verdict": "correct" if right else "wrong",
    }  # fmt: skip
    if record_type is RewardStats:
        mean = rng.random()
        values = {"count": rng.randint(1, 4), "mean": mean, "std": math.sqrt(mean * (1 - mean))}
    elif record_type is SuccessRecord:
        values = text | {"answer": "1", "verdict": "correct"}
    else:
        values = text | {
            "logprobs": tuple(-(10 ** rng.uniform(-3, 4)) for _ in lengths),
            "end_logprob": -(10 ** rng.uniform(-3, 4)) if finished else None,
            "reward": float(right),
        }

    lies = {
        "text": lambda: rng.choice(STRINGS),
        "verdict": lambda: rng.choice(("correct", "wrong", "maybe")),
        "finished": lambda: not finished,
        "token_lengths": lambda: tuple(rng.randint(-1, 9) for _ in range(rng.randint(0, 4))),
        "logprobs": lambda: tuple(rng.choice(NUMBERS) for _ in lengths),
        "end_logprob": lambda: rng.choice((None, *NUMBERS)),
        "reward": lambda: rng.choice(NUMBERS),
        "mean": lambda: rng.choice(NUMBERS),
        "std": lambda: rng.choice(NUMBERS),
    }
    fields = sorted(values.keys() & lies.keys())
    for name in rng.sample(fields, min(len(fields), rng.choice((0, 0, 1, 1, 2, 3)))):
        values[name] = lies[name]()
    return record_type(**origin, **values)


@pytest.mark.parametrize("mode", ["xgrpo", "sgt", "prp", "naive", "hacpo", "graft"])
def test_whatever_a_peer_says_its_receiver_stays_finite(small_team, mode):
    """Twice over: all that it says; and what of it is refused, which changes nothing at all."""
    rng, weights, lines = random.Random(mode), {}, {}
    for case in ("silent", "refused", "all"):
        settings = {"graft": {"balanced": False, "min_compatibility": 0.0}}
        verifier = Never() if mode in ("sgt", "graft") else EverySecond()
        team = small_team(mode, verifier, settings, learning_rate=1e-3)
        team.trust = "claim"

        def records(record_type, policy, groups, step, case=case):
            source, version = policy.name, policy.version
            if source != "llama-tiny" or case == "silent":
                return
            for group in groups:
                for number in range(24):
                    place = (group.problem.id, number % 4, version)
                    record = random_record(rng, record_type, *place)
                    if case == "all" or Exchange().publish(record, source):  # refused
                        yield record

        team.records_of = records
        for step in (1, 2):
            lines[case] = one_step(team, step)[0]["qwen-tiny"]
            assert lines[case]["update_skipped"] == 0
        weights[case] = weights_of(team, 0)
        assert all(bool(torch.isfinite(value).all()) for value in weights[case].values())

    same = {}
    for case in ("refused", "all"):
        pairs = [(value, weights[case][name]) for name, value in weights["silent"].items()]
        same[case] = all(torch.equal(one, other) for one, other in pairs)
    assert same == {"refused": True, "all": False}  # what was sound did teach
    assert lines["refused"]["exchange/received_records"] == 0
    assert lines["all"]["exchange/received_records"] >= 3


def test_no_two_draws_have_the_same_seed(small_team):
    seeds, drawn = [], []
    for seed in (0, 1):
        team = small_team("solo", EverySecond())
        team.seed = seed
        for policy in team.policies:

            def rollout(problems, generator, size, policy=policy, real=policy.rollout):
                seeds.append(generator.initial_seed())
                return real(problems, generator, size)

            def training_samples(
                policy, prompts, rng, real=team.modes[policy.name].training_samples
            ):
                drawn.append(rng.random())
                return real(policy, prompts, rng)

            policy.rollout = rollout
            team.modes[policy.name].training_samples = training_samples
        for step in (1, 2):
            one_step(team, step)
    assert len(seeds) == len(set(seeds)) == len(set(drawn)) == 8


def test_solo_x2_samples_and_updates_twice(small_team):
    team = small_team("solo-x2", EverySecond())
    for result in train_step(team, 1).values():
        assert [len(made.rollouts) for made in result.groups] == [8] * 3
        assert result.stats.updates == 2
