import json

import pytest
from rich.console import Console

import mini_mrl
from mrl.config import RunConfig
from mrl.diagnostics import LearningStats
from mrl.modes import TrainingBatch
from mrl.residual import measure
from mrl.runtime.metrics import batch_metrics, group_metrics, meaning, step_metrics
from mrl.runtime.pairs import pair_settings
from mrl.runtime.run import Run
from mrl.runtime.run_directory import read_metrics
from mrl.runtime.summary import residual_sentences
from mrl.runtime.view import View
from mrl.samples import Group, Problem, Rollout, Verdict
from mrl.team import StepResult


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
    result = StepResult(groups, {}, batch, LearningStats(loss=float("nan")))
    figures = step_metrics(result)
    json.dumps(figures, allow_nan=False)
    assert "loss" not in figures and "mode/far" not in figures
    assert figures["mode/near"] == 1.0


def test_the_residual_of_a_run_is_the_sum_over_its_lines():
    one, two = TrainingBatch([]), TrainingBatch([])
    one.residual = measure([b"ab"], [b"a", b"b"])
    two.residual = measure([b"c"], [b"c"], canonical=False)
    two.residual["refused/not_utf8"] += 3
    lines = [{"policy": "a", **batch_metrics(b)} for b in (one, two, TrainingBatch([]))]
    assert "thl/bytes" not in lines[2]
    other = {"policy": "b", "reward": 0.5}
    (sentence,) = residual_sentences([*lines, other])
    assert sentence == (
        "a retokenized 2 peer texts: 1.50 of its tokens for one of the source's, 33% of the bytes "
        "in 1:1 chunks, 50% of the texts sampled in other tokens than their tokenizer's own; 3 "
        "more were refused."
    )


def test_every_metric_of_a_run_is_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["qwen-tiny", "llama-tiny"]
    seen = set()
    for mode in ("sgt", "hacpo", "graft"):
        settings = {"mode": mode, "placement": "resident", "steps": 1, "prompts_per_step": 4}
        config = RunConfig(**pair_settings("tiny") | settings)
        with Run(config, View(Console(quiet=True), names, 1)) as run:
            run.finish_step(1, mini_mrl.train_step(run.team, 1))
        lines = read_metrics(tmp_path / "runs" / f"{mode}-s0")
        assert [line["policy"] for line in lines] == names
        seen |= {key for line in lines for key in line}
    assert all(": " in meaning(key) for key in seen)  # KeyError: it is not in METRICS
    assert {"thl/bytes", "peer/ratio/mean", "time/learn_s", "outcome/taught"} <= seen
