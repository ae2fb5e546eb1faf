import json
from statistics import fmean

import pytest
import torch

from mini_mrl import load_team, train_step
from mrl.errors import MrlError
from mrl.reward import Verdict
from mrl.run.evaluation import (
    PROBLEMS_AT_ONCE,
    count_solved,
    kl_to_start,
    load_heldout,
    problems_at_once,
    problems_for_kl,
    sample_start,
    score_entries,
)
from mrl.samples import Problem


def scores_of(correct, samples):
    """The entry of a part with these (skill, right completions) of each problem."""
    problems = [
        Problem(str(number), "1+1?", "2", skill) for number, (skill, _) in enumerate(correct)
    ]
    solved = {"split": [count for _, count in correct]}
    (entry,) = score_entries({"p": solved}, {"split": problems}, samples)
    return entry


def test_pass_at_k_by_hand():
    scores = scores_of([("x", 1), ("x", 4), ("x", 0), ("x", 0)], samples=4)
    assert (scores["pass@1"], scores["pass@4"]) == (0.3125, 0.5)


def test_an_evaluation_averages_over_skills_not_over_problems():
    scores = scores_of([("x", 2), ("x", 2), ("x", 2), ("y", 0)], samples=2)
    assert scores["skills"]["x"] == {"pass@1": 1.0, "pass@2": 1.0, "problems": 3}
    assert scores["pass@1"] == 0.5
    assert scores["skills"]["y"] == {"pass@1": 0.0, "pass@2": 0.0, "problems": 1}
    one = {"pass@1": 1.0, "problems": 1}
    about = {"policy": "p", "split": "split", "problems": 1, "samples": 1}
    assert scores_of([("x", 1)], samples=1) == about | {"pass@1": 1.0, "skills": {"x": one}}


def test_evaluating_twice_gives_the_same_changes_nothing_and_says_how_far_it_is(
    make_policy, verifier
):
    policy, noted = make_policy(max_new_tokens=4), []
    problems = [Problem(str(number), "1+1?", "2", "x") for number in range(PROBLEMS_AT_ONCE + 3)]
    splits = {"a": problems, "b": problems[:5]}
    one = count_solved(policy, splits, verifier, 2, 0, progress=lambda *about: noted.append(about))
    two = count_solved(policy, splits, verifier, 2, 0)
    assert one == two
    assert {split: len(counts) for split, counts in one.items()} == {"a": 67, "b": 5}
    assert policy.version == 0
    assert noted == [
        ("qwen-tiny on a", 0, 67),
        ("qwen-tiny on a", 64, 67),
        ("qwen-tiny on b", 0, 5),
    ]
    more = policy.config.group_size + 1
    assert count_solved(policy, {"b": problems[:5]}, Lenient(), more, 0) == {"b": [more] * 5}


class Lenient:
    """What `mrl.team.Verifier` asks for, and nothing else."""

    def verify(self, answer, text, finished):
        return Verdict.CORRECT

    def verify_groups(self, groups):
        for group in groups:
            for rollout in group.rollouts:
                rollout.verdict = self.verify(group.problem.answer, rollout.text, rollout.finished)


def test_a_verifier_that_only_fulfils_the_protocol_trains_and_evaluates(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": "2024-05-01"}\n')  # the shipped one refuses it
    team = load_team("tiny", prompts_per_step=2, group_size=2, max_new_tokens=4)
    team.verifier = Lenient()
    assert [result.reward for result in train_step(team, 1).values()] == [1.0, 1.0]
    assert [scores["all"] for scores in team.evaluate(path, samples=1).values()] == [1.0, 1.0]


def test_a_verifier_with_check_answer_refuses_what_it_cannot_judge(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": "3"}\n{"prompt": "2?", "answer": "2"}\n')
    picky = Lenient()
    picky.check_answer = lambda answer: answer != "2"
    with pytest.raises(MrlError) as refusal:
        load_heldout([str(path)], picky)
    assert f"{path}:2" in str(refusal.value) and "'2'" in str(refusal.value)


def test_where_memory_runs_out_fewer_problems_are_scored_at_once(
    make_policy, verifier, monkeypatch
):
    policy, sizes = make_policy(max_new_tokens=4), []
    problems = [Problem(str(n), f"{n}+1?", str(n + 1)) for n in range(70)]
    rollout = policy.rollout

    def small(batch, *rest):
        if len(batch) > 20:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCr")
        sizes.append(len(batch))
        return rollout(batch, *rest)

    monkeypatch.setattr(policy, "rollout", small)
    solved = count_solved(policy, {"split": problems}, verifier, 1, 0)
    assert sizes == [16, 16, 16, 16, 6]
    assert len(solved["split"]) == 70
    monkeypatch.setattr("mrl.run.evaluation.PROBLEMS_AT_ONCE", 1)

    def never(batch, *rest):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(policy, "rollout", never)
    with pytest.raises(torch.OutOfMemoryError):  # one problem does not fit: the turn says so
        count_solved(policy, {"split": problems}, verifier, 1, 0)


def test_a_gpu_scores_as_many_completions_at_once_with_one_sample_as_with_four():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [problems_at_once(cpu, n) for n in (1, 4, 16)] == [64] * 3
    assert [problems_at_once(cuda, n) for n in (1, 4, 16)] == [256, 64, 64]


def token_logprobs(policy, prompt, completion):
    """The log-probs of a completion, from one plain forward pass."""
    logits = policy.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logits = logits.masked_fill(policy.suppressed, -torch.inf) / policy.config.temperature
    return logits.log_softmax(-1)[range(len(completion)), completion].tolist()


def test_kl_to_the_start_is_the_mean_difference_over_the_tokens_of_the_start(make_policy):
    policy = make_policy(max_new_tokens=6, temperature=0.7)
    problems = [Problem(str(number), f"{number}+1?", "2") for number in range(5)]
    start = sample_start(policy, problems, 2, seed=0)
    assert start == sample_start(policy, problems, 2, seed=0)
    kept = json.loads(json.dumps(start))  # as a resumed run reads it
    assert kl_to_start(policy, problems, kept) == 0

    def all_logprobs():
        pairs = zip(problems, start["completions"], strict=True)
        scored = [token_logprobs(policy, policy.prompt_ids(p.prompt), ids) for p, ids in pairs]
        return [logprob for row in scored for logprob in row]

    with torch.no_grad():
        before = all_logprobs()
        generator = torch.Generator().manual_seed(1)
        for weight in policy.model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
        now = all_logprobs()
    differences = [then - today for then, today in zip(before, now, strict=True)]
    assert len(differences) > 10 and sum(differences) > 0
    assert kl_to_start(policy, problems, kept) == pytest.approx(fmean(differences), rel=1e-4)


def test_kl_is_measured_on_as_many_problems_of_each_skill():
    problems = [Problem(f"{skill}{n}", "1+1?", "2", skill) for n in range(50) for skill in "abc"]
    want = [f"{s}{n}" for s in "abc" for n in range(21)]
    assert [problem.id for problem in problems_for_kl(problems)] == want
    many = [Problem(str(n), "1+1?", "2", f"skill {n // 2}") for n in range(200)]
    assert problems_for_kl(many) == many[::2]
