"""The control modes of data/results: what each one changes, and nothing else."""

import json
import random

import pytest
import torch

from mrl.advantages import group_advantages
from mrl.config import DATA
from mrl.exchange import experience_of
from mrl.modes.hint import Hint
from mrl.modes.rft import RFT
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.records import validation_error
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout, SecondAttempt
from mrl.settings.read import mode_class
from tests.fakes import success

Cells = mode_class(f"{DATA}/results/cells.py:Cells")
HINTS = {
    name: mode_class(f"{DATA}/results/hints.py:{name}")
    for name in ("Anew", "Elsewhere", "Whole", "Members")
}
PROTECT = {
    name: mode_class(f"{DATA}/results/protect.py:{name}") for name in ("OtherSkills", "Stale")
}
BARE = {
    name: mode_class(f"{DATA}/results/bare.py:Bare{name}") for name in ("SFT", "RFT", "SGT", "Hint")
}


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


# ------------------------------------------------------------------------------ the nine cells


@pytest.mark.parametrize(
    ("own", "peer", "mode"),
    [
        ("none", "always", SFT()),
        ("correct", "always", RFT()),
        ("grpo", "none", Solo()),
        ("grpo", "gate", SGT()),
        ("none", "none", None),
    ],
)
def test_each_cell_that_is_a_mode_makes_its_samples(receiver, step, own, peer, mode):
    for seed in range(5):
        made = run(Cells(own=own, peer=peer), receiver, step, seed).samples
        assert made == (run(mode, receiver, step, seed).samples if mode else [])


def test_the_other_cells_combine_own_and_peer_samples(receiver, step):
    def kinds(own, peer):
        samples = run(Cells(own=own, peer=peer), receiver, step).samples
        return sorted((s.loss, s.imitates, s.weight) for s in samples)

    own = {name: kinds(name, "none") for name in ("none", "correct", "grpo")}
    peer = {name: kinds("none", name) for name in ("none", "gate", "always", "always-0.1")}
    assert peer["gate"] == [("imitation", "imitated", 0.1)] * 3  # "g" was solved
    assert peer["always"] == [("imitation", "imitated", 1.0)] * 4
    assert peer["always-0.1"] == [("imitation", "imitated", 0.1)] * 4
    assert own["correct"] == [("imitation", "replayed", 1.0)]
    for name, of_own in own.items():
        for other, of_peer in peer.items():
            assert kinds(name, other) == sorted(of_own + of_peer)


# -------------------------------------------------------------------- own completions, changed


def imitated(samples):
    return [(s.prompt_ids, s.completion_ids, s.weight, s.imitates) for s in samples]


def test_other_skills_leaves_out_the_own_completions_of_sums_and_differences(receiver):
    step = [
        (group("a", "sold", Verdict.WRONG), [success("a", "A", "b")]),
        (group("c", "bags", Verdict.CORRECT), [success("c", "C", "b")]),
        (group("e", "sold", Verdict.CORRECT), [success("e", "E", "b")]),
        (group("g", "loses", Verdict.CORRECT), []),
        (group("i", "packs", Verdict.CORRECT), []),
    ]
    made = run(PROTECT["OtherSkills"](), receiver, step).samples
    cell = run(Cells(own="correct", peer="gate"), receiver, step).samples
    left_out = [[ord("e")], [ord("g")]]
    assert imitated(made) == imitated(s for s in cell if s.prompt_ids not in left_out)
    assert len(cell) - len(made) == 2


def test_stale_learns_nothing_at_first_and_then_imitates_what_it_sampled_then(receiver):
    def solved(name, skill, token):
        made = group(name, skill, Verdict.CORRECT)
        made.rollouts[:] = [Rollout([token, 0], [-1.0] * 2, True, "", Verdict.CORRECT)]
        return made

    failed = (group("a", "y", Verdict.WRONG), [success("a", "A", "b")])
    mode = PROTECT["Stale"](collect=2)
    for name, token in ("c", 7), ("d", 8):
        assert not run(mode, receiver, [failed, (solved(name, "x", token), [])]).samples

    again = PROTECT["Stale"](collect=2)
    again.restore(json.loads(json.dumps(mode.state())))
    gate = imitated(run(Cells(own="none", peer="gate"), receiver, [failed]).samples)
    now = [failed, (solved("e", "x", 9), []), (solved("f", "z", 9), [])]  # z was never solved
    seen = []
    for seed in range(10):
        first, *own = imitated(run(again, receiver, now, seed).samples)
        assert [first] == gate
        seen += own
    old = [([ord("c")], [7, 0], 1.0, "replayed"), ([ord("d")], [8, 0], 1.0, "replayed")]
    assert len(seen) == 10
    assert all(each in seen for each in old)
    assert all(each in old for each in seen)


# ------------------------------------------------------------------------------ controls of hint


def attempts_of(mode, receiver, experiences):
    """As if each prompt's last second attempt were correct, and no other."""
    for experience, named in zip(
        experiences, mode.beginnings(receiver, experiences, random.Random(0)), strict=True
    ):
        for number, beginning in enumerate(named, start=1):
            verdict = Verdict.CORRECT if number == len(named) else Verdict.WRONG
            ids, given = [*beginning.token_ids, 9, 0], len(beginning.token_ids)
            experience.second_attempts.append(
                SecondAttempt(ids, [-1.0] * 2, True, "", verdict, 3, given, beginning.record)
            )
    return mode.training_samples(receiver, experiences, random.Random(0)).samples


@pytest.fixture
def hinted(receiver):
    """A function: experiences of three prompts, of which the last one was solved."""

    def make():
        pairs = [("a", "ABCDEF", Verdict.WRONG), ("c", "CDEFGH", Verdict.WRONG)]
        pairs.append(("g", "GHIJKL", Verdict.CORRECT))
        return [
            experience_of(receiver, group(name, "x", verdict), [success(name, text)])
            for name, text, verdict in pairs
        ]

    return make


def test_anew_tries_as_often_as_hint_and_gives_nothing(receiver, hinted):
    counts = {}
    for mode in (Hint(), HINTS["Anew"]()):
        experiences = hinted()
        samples = attempts_of(mode, receiver, experiences)
        counts[mode.name] = [len(one.second_attempts) for one in experiences]
        kind = {sample.imitates for sample in samples if sample.imitates}
        assert kind == ({"hinted"} if mode.name == "hint" else {"replayed"})
    assert counts["hint"] == counts["hint-anew"] == [8, 8, 0]
    assert all(tried.given == 0 for one in experiences for tried in one.second_attempts)


def test_elsewhere_begins_with_a_solution_to_another_prompt(receiver, hinted):
    experiences = hinted()
    attempts_of(HINTS["Elsewhere"](), receiver, experiences)
    for experience in experiences[:2]:
        asked = {tried.record.prompt_id for tried in experience.second_attempts}
        assert len(experience.second_attempts) == 8
        assert len(asked) == 1 and experience.group.problem.id not in asked
    assert experiences[2].second_attempts == []


def test_whole_imitates_the_peers_text_where_hint_imitates_the_own_one(receiver, hinted):
    one, other = hinted(), hinted()
    hints = [s for s in attempts_of(Hint(), receiver, one) if s.imitates]
    wholes = [s for s in attempts_of(HINTS["Whole"](), receiver, other) if s.imitates]
    assert [s.prompt_ids for s in wholes] == [s.prompt_ids for s in hints]
    assert {s.imitates for s in wholes} == {"imitated"}
    assert [s.completion_ids for s in wholes] == [one.usable[0].token_ids for one in other[:2]]
    assert {s.weight for s in wholes} == {1.0}
    for experience in other:  # without a success, nothing is imitated
        experience.second_attempts = experience.second_attempts[:-1]
    made = HINTS["Whole"]().training_samples(receiver, other, random.Random(0)).samples
    assert not any(sample.imitates for sample in made)


def test_members_join_the_group_and_what_was_given_is_part_of_the_prompt(receiver, hinted):
    experiences = hinted()
    samples = attempts_of(HINTS["Members"](), receiver, experiences)
    assert {sample.loss for sample in samples} == {"policy"}
    of_first = samples[:10]  # two first attempts, eight second ones; one of ten is correct
    want = group_advantages(torch.tensor([[0.0] * 9 + [1.0]]))[0].tolist()
    assert [sample.advantage for sample in of_first] == pytest.approx(want)
    for sample, tried in zip(of_first[2:], experiences[0].second_attempts, strict=True):
        assert sample.prompt_ids + sample.completion_ids == [ord("a"), *tried.completion_ids]
        assert sample.completion_ids == [9, 0]
        assert (sample.behavior_logprobs, sample.sampled_version) == ([-1.0, -1.0], 3)
        assert sample.rollout is tried and sample.record is None
    solo = run(Solo(), receiver, [(experiences[2].group, [])]).samples
    assert samples[20:] == solo


def test_rft_imitates_a_peers_solution_and_an_own_correct_completion_of_each_prompt(receiver, step):
    rollouts = [Rollout([n, 0], [-1.0] * 2, True, "", Verdict.CORRECT) for n in (5, 6)]
    rollouts.insert(1, Rollout([7, 0], [-1.0] * 2, True, "", Verdict.WRONG))
    mixed = Group(Problem("m", "prompt m", "1", "x"), [ord("m")], rollouts)
    seen = set()
    for seed in range(30):
        samples = run(RFT(), receiver, [*step, (mixed, [])], seed).samples
        prompts = [chr(sample.prompt_ids[0]) for sample in samples]
        assert prompts == ["a", "c", "e", "g", "g", "m"]
        assert [s.imitates for s in samples] == ["imitated"] * 4 + ["replayed"] * 2
        assert {s.weight for s in samples} == {1.0}
        seen.add(tuple(samples[-1].completion_ids))
        assert samples[-1].rollout in rollouts
    assert seen == {(5, 0), (6, 0)}


# ------------------------------------------------------------------------------ bare boxes


@pytest.fixture
def worked():
    """Two prompts with a worked solution: one that failed, and one that was solved."""
    solution = "6*2=12. \\boxed{12}"
    return [
        (group("a", "x", Verdict.WRONG), [success("a", solution)]),
        (group("g", "w", Verdict.CORRECT), [success("g", "2+2=4. \\boxed{4}.", "z")]),
    ]


@pytest.mark.parametrize(("name", "mode"), [("SFT", SFT), ("RFT", RFT), ("SGT", SGT)])
def test_a_mode_with_bare_boxes_imitates_the_box_alone_and_keeps_its_other_samples(
    receiver, worked, name, mode
):
    bare, full = run(BARE[name](), receiver, worked), run(mode(), receiver, worked)
    assert len(bare.samples) == len(full.samples)
    cut = {}
    for ours, theirs in zip(bare.samples, full.samples, strict=True):
        if ours.record is None:
            assert ours == theirs
            continue
        cut[ours.record.prompt_id] = receiver.codec.decode(ours.completion_ids[:-1])
        assert ours.completion_ids[-1] == receiver.eos_id
        assert (ours.source, ours.weight, ours.loss) == (theirs.source, theirs.weight, theirs.loss)
    boxes = {"a": "\\boxed{12}", "g": "\\boxed{4}"}
    assert cut == (boxes if name != "SGT" else {"a": boxes["a"]})


def test_what_a_mode_with_bare_boxes_leaves_behind_is_a_valid_record_of_the_box(receiver, worked):
    experiences = [experience_of(receiver, *pair) for pair in worked]
    BARE["SFT"]().training_samples(receiver, experiences, random.Random(0))
    for experience in experiences:
        (record,) = experience.records
        assert validation_error(record) is None
        assert record.text.startswith("\\boxed{")


def test_hint_with_bare_boxes_is_never_helped_and_has_the_samples_of_solo(receiver, worked):
    experiences = [experience_of(receiver, *pair) for pair in worked]
    mode = BARE["Hint"]()
    assert mode.beginnings(receiver, experiences, random.Random(0)) == [[], []]
    made = mode.training_samples(receiver, experiences, random.Random(0))
    assert made.samples == run(Solo(), receiver, worked).samples
    named = Hint().beginnings(receiver, [experience_of(receiver, *worked[0])], random.Random(0))
    assert len(named[0]) == 8  # with the worked solution, it is helped
