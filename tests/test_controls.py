"""The control modes in data/examples: what each one takes away from SGT, and nothing else."""

import random

import pytest

from mrl.config import DATA
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.samples import Group, Problem, Rollout, Verdict
from mrl.settings.settings import mode_class
from tests.fakes import success

EXAMPLES = DATA / "examples"
Placebo = mode_class(f"{EXAMPLES}/placebo.py:Placebo")
PlaceboSameSkill = mode_class(f"{EXAMPLES}/placebo.py:PlaceboSameSkill")
Sequence = mode_class(f"{EXAMPLES}/sequence.py:Sequence")


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
    return mode.training_samples(receiver, step, random.Random(seed))


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
