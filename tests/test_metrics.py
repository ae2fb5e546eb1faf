import json
from dataclasses import replace

import pytest
from rich.console import Console

import mini_mrl
from mrl.diagnostics import LearningStats
from mrl.exchange import experience_of, receive
from mrl.modes import TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.peers import peer_sample
from mrl.reward import Verdict
from mrl.run.directory import read_metrics
from mrl.run.metrics import (
    group_metrics,
    meaning,
    outcome_metrics,
    sample_lines,
    step_metrics,
    transfer_metrics,
)
from mrl.run.run import Run
from mrl.run.view import View
from mrl.samples import Group, Problem, Rollout
from mrl.settings.pairs import pair_settings
from mrl.settings.read import complete
from mrl.team import StepResult
from tests.fakes import success
from tests.test_modes import group


def rollout(verdict, length=2, finished=True):
    return Rollout([1] * length, [-0.5] * length, finished, "", verdict)


def test_group_metrics_by_hand():
    right, wrong, cut = Verdict.CORRECT, Verdict.WRONG, Verdict.TRUNCATED
    groups = [
        Group(Problem("a", "", "1", "x"), [], [rollout(right), rollout(wrong)]),
        Group(Problem("b", "", "1", "x"), [], [rollout(wrong), rollout(cut, 6, False)]),
        Group(Problem("c", "", "1", "y"), [], [rollout(right), rollout(right)]),
        Group(Problem("d", "", "1", "y"), [], [rollout(wrong), rollout(wrong)]),
    ]
    got = group_metrics(groups)
    assert got["reward"] == 3 / 8
    assert got["reward_std"] == 0.5 / 4
    assert [got[f"groups/{k}"] for k in ("all_fail", "mixed", "all_pass")] == [0.5, 0.25, 0.25]
    assert (got["verdict/wrong"], got["verdict/truncated"]) == (4 / 8, 1 / 8)
    assert got["completions/mean_length"] == 20 / 8
    assert got["completions/clipped_ratio"] == 1 / 8
    assert got["entropy"] == pytest.approx(0.5)
    assert (got["skill/x"], got["skill/y"]) == (1 / 4, 2 / 4)


def test_a_figure_that_is_not_finite_is_left_out_of_the_log():
    groups = [Group(Problem("a", "", "1"), [], [rollout(Verdict.WRONG)])]
    batch = TrainingBatch(notes={"far": float("inf"), "near": 1.0})
    result = StepResult(groups, [], batch, LearningStats(loss=float("nan")))
    figures = step_metrics(None, result)  # nothing was received
    json.dumps(figures, allow_nan=False)
    assert "loss" not in figures and "mode/far" not in figures
    assert figures["mode/near"] == 1.0


@pytest.fixture
def imitation_samples(make_policy):
    """A receiver that failed on "x" and not on "y" and imitates there; and what it was given."""
    receiver = make_policy(max_new_tokens=20)
    groups = [group("x", [0, 0]), group("y", [1, 0]), group("z", [0, 0])]
    groups[1].prompt_ids, groups[2].prompt_ids = [7], [8]
    right = success("x", "1 \\boxed{1}")  # one source token of 11 bytes
    odd, long = success("x", "cafe\u0301 \\boxed{1}"), success("x", "1" * 40)
    records = [odd, right, replace(right), long], [success("y"), success("y", "<|end|>")], []
    made = [experience_of(receiver, *pair) for pair in zip(groups, records, strict=True)]
    samples = own_samples(receiver, groups[0])
    for number in (0, 1):
        samples.append(peer_sample(groups[number], made[number].usable[0], "imitation"))
    return receiver, StepResult(groups, made, TrainingBatch(samples))


def test_what_was_received_and_what_alignment_cost_is_counted_from_the_samples(imitation_samples):
    receiver, result = imitation_samples
    tokens = [len(receiver.codec.encode(text)) for text in ("1 \\boxed{1}", "\\boxed{1}")]
    assert transfer_metrics(receiver, result) == {
        "rescue_set": 1,  # "x": failed, and solved by a peer; no peer solved "z"
        "imitated": 2,
        "rescues": 1,
        "dropped/too_long": 1,  # whether the mode drew it or not
        "thl/refused/not_round_trippable": 1,
        "thl/refused/special_token": 1,
        "thl/records": 2,  # of two equal texts on "x" one was drawn
        "thl/bytes": 11 + 9,
        "thl/bytes_one_to_one": 0,
        "thl/source_tokens": 2,
        "thl/receiver_tokens": sum(tokens),
    }
    ((failed, record),) = result.rescues  # not "y", where an own attempt was right
    assert (failed.problem.id, record.text) == ("x", "1 \\boxed{1}")


def test_rescues_of_two_problems_with_one_prompt_belong_to_their_own_problem(make_policy):
    receiver = make_policy(max_new_tokens=20)
    groups = [group("x", [0, 0]), group("y", [0, 0])]
    groups[1].prompt_ids = list(groups[0].prompt_ids)
    received = [receive(receiver, success(one.problem.id)) for one in groups]
    pairs = zip(groups, received, strict=True)
    samples = [peer_sample(*pair, "imitation") for pair in pairs]
    result = StepResult(groups, [], TrainingBatch(samples[::-1]))
    assert [one.problem.id for one, _ in result.rescues] == ["y", "x"]


def test_a_solution_that_is_imitated_for_another_prompt_is_no_rescue(make_policy):
    receiver = make_policy(max_new_tokens=20)
    groups = [group("x", [0, 0]), group("y", [0, 0])]
    groups[1].prompt_ids = [7]
    misplaced = peer_sample(groups[0], receive(receiver, success("y")), "imitation")
    result = StepResult(groups, [], TrainingBatch([misplaced]))
    assert (len(result.imitated), result.rescues) == (1, [])


@pytest.mark.parametrize(
    ("verdicts", "names"),
    [
        (["truncated", "truncated"], "max_new_tokens"),
        (["unparsed", "truncated"], "boxed"),
        (["unparsed", "unparsed"], "boxed"),
        (["wrong", "truncated"], ""),
        (["timeout", "unparsed"], ""),
    ],
)
def test_a_first_step_without_an_answer_gets_one_sentence(make_policy, verdicts, names):
    policy = make_policy()
    rollouts = [rollout(Verdict(verdict)) for verdict in verdicts]
    result = StepResult([Group(Problem("x", "1+1?", "2"), [5], rollouts)])
    said = [e["failure"] for e in sample_lines(1, policy, result) if "failure" in e]
    assert len(said) == bool(names)
    assert all(names in text and policy.name in text for text in said)
    assert not any("failure" in e for e in sample_lines(2, policy, result))


def test_an_own_sample_of_an_earlier_step_is_not_one_of_this_steps_completions(make_policy):
    now = group("x", [1, 0])
    for rollout in now.rollouts:
        rollout.version = 3
    own, kept = (own_samples(make_policy(), one) for one in (now, group("x", [1, 0])))
    with_kept = StepResult([now], [], TrainingBatch(kept))
    assert outcome_metrics(with_kept)["outcome/not_needed"] == 1
    with_kept.batch.samples = own
    with_kept.stats.sample_outcomes["taught"] = 2
    assert outcome_metrics(with_kept)["outcome/not_needed"] == 0


def test_a_rescue_in_the_log_has_the_peers_text_without_the_end_token(imitation_samples):
    receiver, result = imitation_samples
    (rescue,) = (e["rescue"] for e in sample_lines(1, receiver, result) if "rescue" in e)
    assert (rescue["source"], rescue["source_text"]) == ("b", "1 \\boxed{1}")
    assert (rescue["problem_id"], rescue["receiver_text"]) == ("x", "try 0")


def test_a_solution_of_weight_0_is_no_rescue(imitation_samples):
    _, result = imitation_samples
    for sample, _ in result.imitated:
        sample.weight = 0.0  # then nothing is learnt from it
    assert result.imitated == result.rescues == []


def test_a_text_used_twice_or_cut_to_fit_leaves_shares_that_add_up_to_1(imitation_samples):
    receiver, result = imitation_samples
    long = result.experiences[0].received[3]
    cut = replace(result.batch.samples[2], record=long.record)  # by a mode of one's own
    result.batch.samples += [result.batch.samples[2]] * 5 + [cut] * 3
    result.stats.sample_outcomes.update(all_fail=2, imitated=10)
    assert transfer_metrics(receiver, result)["thl/records"] == 2
    shares = outcome_metrics(result)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0.0


def test_every_metric_of_a_run_is_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["qwen-tiny", "llama-tiny"]
    seen = set()
    for mode in ("sgt", "hint", "hacpo", "graft"):
        settings = {"mode": mode, "placement": "resident", "steps": 1, "prompts_per_step": 4}
        config = complete(pair_settings("tiny") | settings)
        with Run(config, View(Console(quiet=True), names, 1)) as run:
            run.finish_step(1, mini_mrl.train_step(run.team, 1))
        lines = read_metrics(tmp_path / "runs" / f"{mode}-s0")
        assert [line["policy"] for line in lines] == names
        seen |= {key for line in lines for key in line}
    assert all(meaning(key) for key in seen)  # KeyError: it is not in METRICS
    assert {"thl/bytes", "ratio/mean", "time/learn_s", "outcome/taught", "second/recut"} <= seen
