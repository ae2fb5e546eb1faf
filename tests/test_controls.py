"""The control modes: what each one takes away from SGT, or adds to PRP, and nothing else."""

import math
import random

import pytest

from mrl.config import DATA
from mrl.modes.peers import experience_of
from mrl.modes.prp import PRP
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.records import RolloutRecord
from mrl.samples import Group, Problem, Rollout, Verdict
from mrl.settings.settings import mode_class
from tests.fakes import success

EXAMPLES = DATA / "examples"
Placebo = mode_class(f"{EXAMPLES}/placebo.py:Placebo")
PlaceboSameSkill = mode_class(f"{EXAMPLES}/placebo.py:PlaceboSameSkill")
Sequence = mode_class(f"{EXAMPLES}/sequence.py:Sequence")
OwnCorrect = mode_class(f"{DATA}/results/controls/own_correct.py:OwnCorrect")
Floor = mode_class(f"{DATA}/results/controls/prp_floor.py:Floor")


def group(name, skill, verdict):
    rollout = Rollout([5, 6, 0], [-1.0] * 3, True, "", verdict)
    return Group(Problem(name, f"prompt {name}", "1", skill), [ord(name)], [rollout, rollout])


@pytest.fixture
def step():
    """Three prompts that failed, of two skills, and one that was solved. Two peers."""
    return [
        (group("a", "x", Verdict.WRONG), [success("a", "A", "b")]),
        (group("c", "x", Verdict.WRONG), [success("c", "C", "b"), success("c", "Z", "z")]),
        (group("e", "y", Verdict.WRONG), [success("e", "E", "b")]),
        (group("g", "w", Verdict.CORRECT), [success("g", "G", "b")]),
    ]


def run(mode, receiver, step, seed=0):
    experiences = [experience_of(receiver, *pair) for pair in step]
    return mode.training_samples(receiver, experiences, random.Random(seed))


def imitations(receiver, batch):
    """Prompt -> what is imitated after it."""
    return {
        chr(sample.prompt_ids[0]): receiver.codec.decode(sample.completion_ids[:-1])
        for sample in batch.samples
        if sample.loss == "imitation"
    }


def test_a_placebo_imitates_only_solutions_of_another_skill_by_the_same_peer(receiver, step):
    seen = {"a": set(), "c": set(), "e": set()}
    for seed in range(60):
        batch = run(Placebo(), receiver, step, seed)
        found = imitations(receiver, batch)
        assert batch.notes == {"rescuable": 3, "imitated": len(found)}
        for prompt, text in found.items():
            seen[prompt].add(text)
    assert seen["a"] == {"E", "G"}
    assert seen["c"] == {"E", "G"}  # peer z has no solution to another prompt
    assert seen["e"] == {"A", "C", "G"}


def test_a_placebo_of_the_same_skill_imitates_nothing_if_there_is_no_other_prompt(receiver, step):
    found = set()
    for seed in range(60):
        batch = run(PlaceboSameSkill(), receiver, step, seed)
        found |= set(imitations(receiver, batch).items())
        assert batch.notes["rescuable"] == 3
    assert found == {("a", "C"), ("c", "A")}


def test_a_placebo_has_sgts_gate_weight_and_own_samples(receiver, step):
    ours, sgts = run(Placebo(), receiver, step[:1] + step[3:]), run(SGT(), receiver, step)
    weights = {sample.weight for sample in ours.samples if sample.loss == "imitation"}
    assert weights == {0.1} == {s.weight for s in sgts.samples if s.loss == "imitation"}
    assert "g" not in imitations(receiver, ours)
    own = [sample for sample in ours.samples if sample.loss == "policy"]
    assert own == run(Solo(), receiver, step[:1] + step[3:]).samples


def test_own_correct_adds_to_sft_one_own_correct_completion_of_each_prompt(receiver, step):
    rollouts = [Rollout([n, 0], [-1.0] * 2, True, "", Verdict.CORRECT) for n in (5, 6)]
    rollouts.insert(1, Rollout([7, 0], [-1.0] * 2, True, "", Verdict.WRONG))
    mixed = Group(Problem("m", "prompt m", "1", "x"), [ord("m")], rollouts)
    seen = set()
    for seed in range(30):
        samples = run(OwnCorrect(), receiver, [*step, (mixed, [])], seed).samples
        sfts, (solved, own) = samples[:-2], samples[-2:]
        assert sfts == run(SFT(), receiver, step, seed).samples
        assert (solved.prompt_ids, own.prompt_ids) == ([ord("g")], [ord("m")])
        assert {(each.loss, each.weight, each.source) for each in (solved, own)} == {
            ("imitation", 1.0, "")
        }
        seen.add(tuple(own.completion_ids))
    assert seen == {(5, 0), (6, 0)}


def test_a_sequence_is_sft_up_to_its_switch_and_solo_after_it(receiver, step):
    mode = Sequence(switch=2)
    for _ in range(2):
        assert run(mode, receiver, step).samples == run(SFT(), receiver, step).samples
    assert run(mode, receiver, step).samples == run(Solo(), receiver, step).samples


def test_a_resumed_sequence_switches_at_the_same_step(receiver, step):
    mode = Sequence(switch=2)
    run(mode, receiver, step)
    resumed = Sequence(switch=2)
    resumed.restore(mode.state())
    assert run(resumed, receiver, step).samples == run(SFT(), receiver, step).samples
    assert run(resumed, receiver, step).samples == run(Solo(), receiver, step).samples


def test_a_floor_raises_the_low_ratios_of_a_peers_chunks_and_changes_nothing_else(receiver):
    receiver.logprob = -3.0  # of each token of the peer's text, among them the end
    record = RolloutRecord(
        prompt_id="a", source="b", version=0, index=0, text="12", finished=True, canonical=True,
        token_lengths=(1, 1), logprobs=(-0.1, -5.0), end_logprob=-3.0, verdict="correct",
        reward=1.0,
    )  # fmt: skip
    step = [(group("a", "x", Verdict.WRONG), [record])]
    batch, prps = run(Floor(), receiver, step), run(PRP(), receiver, step)

    (theirs,) = [sample for sample in batch.samples if sample.source]
    # the ratios are exp(-3 + 0.1) = 0.06, exp(-3 + 5) = 7.4 and 1
    assert theirs.behavior_logprobs == pytest.approx([-3.0 - math.log(0.5), -5.0, -3.0])
    (unchanged,) = [sample for sample in prps.samples if sample.source]
    assert unchanged.behavior_logprobs == pytest.approx([-0.1, -5.0, -3.0])
    theirs.behavior_logprobs = unchanged.behavior_logprobs
    assert batch.samples == prps.samples


def test_a_floor_counts_a_chunk_once_however_many_tokens_it_has(receiver):
    """A peer with one token for the whole text, so that the receiver's tokens form one chunk."""
    receiver.logprob = -3.0
    record = RolloutRecord(
        prompt_id="a", source="b", version=0, index=0, text="123", finished=True, canonical=True,
        token_lengths=(3,), logprobs=(-0.3,), end_logprob=-3.0, verdict="correct", reward=1.0,
    )  # fmt: skip
    batch = run(Floor(), receiver, [(group("a", "x", Verdict.WRONG), [record])])
    (theirs,) = [sample for sample in batch.samples if sample.source]
    *chunk, end = theirs.behavior_logprobs
    assert len(chunk) == 3
    assert sum(chunk) == pytest.approx(3 * -3.0 - math.log(0.5))  # its ratio is 0.5
    assert end == -3.0
