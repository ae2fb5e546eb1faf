"""A frozen policy: it samples and publishes, it never learns, and a run with it resumes exactly."""

import json
from pathlib import Path

import pytest

from mrl.modes import MODES
from mrl.placement import Allocation
from mrl.run.evaluation import count_solved
from mrl.run.metrics import OUTCOMES
from tests.end_to_end.small_run import (
    assert_same_run,
    lines,
    run,
    small,
    stop_after,
)
from tests.fakes import NAMES, one_step, weights_of

FROZEN = ("--set", "llama-tiny.frozen=true")
FIGURES = {"grad_norm", "updates", "reward", "entropy", "exchange/published_records"}


@pytest.mark.parametrize("placement", ["resident", pytest.param("swap", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_leaves_a_frozen_policy_as_it_is_and_writes_its_lines(
    small_team,
    verifier,
    mode,
    placement,
):
    team = small_team(mode, verifier, placement=placement, learning_rate=1e-3)
    team.policies[1].config.frozen = True
    before = weights_of(team, 1)
    for step in (1, 2):
        metrics, _ = one_step(team, step)
        line = metrics["llama-tiny"]
        assert line.keys() > FIGURES
        assert line["version"] == line["updates"] == line["exchange/received_records"] == 0
        assert sum(line[f"outcome/{name}"] for name in OUTCOMES) == pytest.approx(1.0)
    assert all(value.equal(before[key]) for key, value in weights_of(team, 1).items())
    assert not team.policies[1].optimizer.state


@pytest.mark.slow
def test_a_run_with_a_frozen_policy_goes_on_exactly_and_keeps_no_weights_of_it(
    place,
    monkeypatch,
    capfd,
):
    scored = []

    def noting(policy, *about, **how):
        scored.append(policy.name)
        return count_solved(policy, *about, **how)

    with monkeypatch.context() as patch:
        patch.setattr("mrl.run.evaluation.count_solved", noting)
        assert small("--steps", "4", "--name", "whole", *FROZEN) == 0
    assert sorted(scored) == ["llama-tiny", "llama-tiny", "qwen-tiny", "qwen-tiny"]
    assert "llama-tiny (0.725 M parameters, frozen)" in capfd.readouterr().out
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert small("--steps", "4", "--name", "stopped", *FROZEN) == 130
    assert run("resume", "runs/stopped", "--plain") == 0
    assert_same_run("runs/whole", "runs/stopped", 4, policies=NAMES[:1])
    checkpoint = Path("runs/whole/checkpoints/step-000004")
    assert {path.name for path in checkpoint.iterdir()} == {"qwen-tiny", "state.json", "SHA256SUMS"}
    rescues = [line["rescue"] for line in lines("runs/whole/samples.jsonl") if "rescue" in line]
    assert {(rescue["receiver"], rescue["source"]) for rescue in rescues} == {NAMES}
    updates = {name: set() for name in NAMES}
    for line in lines("runs/whole/metrics.jsonl"):
        updates[line["policy"]].add(line["updates"])
    assert updates["llama-tiny"] == {0} and max(updates["qwen-tiny"]) == 4  # per step
    scores = json.loads(Path("runs/whole/evaluation.json").read_text())
    before, after = ([s for s in scores[when] if s["policy"] == "llama-tiny"] for when in scores)
    assert after[0].pop("kl_to_start") == 0
    assert before == after
    assert run("evaluate", "runs/whole", "--samples", "1") == 0


@pytest.mark.slow
def test_a_finished_runs_checkpoint_can_be_the_teacher(place):
    assert small("--steps", "2", "--name", "first", "--mode", "solo") == 0
    teacher = "runs/first/checkpoints/step-000002/llama-tiny"
    pair = f"runs/first/checkpoints/step-000002/qwen-tiny,{teacher}"
    assert small("--steps", "1", "--name", "second", "--pair", pair, *FROZEN) == 0
    kept = json.loads(Path("runs/second/config.json").read_text())["policies"][1]
    assert kept["frozen"] and kept["path"] == teacher


@pytest.mark.slow
def test_placement_parallel_takes_a_frozen_policy_in_the_process_that_writes(place):
    frozen = ("--set", "qwen-tiny.frozen=true", "--placement", "parallel")
    assert small("--steps", "2", "--name", "one", *frozen) == 0
    assert small("--steps", "2", "--name", "two", "--set", "qwen-tiny.frozen=true") == 0
    assert_same_run("runs/one", "runs/two", 2, policies=NAMES[1:])


def test_a_run_in_which_all_are_frozen_is_refused_before_it_writes(place, capfd):
    assert small("--set", "frozen=true") == 2
    assert "frozen" in capfd.readouterr().err
    assert not Path("runs").exists()


def test_a_frozen_policy_has_no_reference_and_no_gradient(make_policy):
    policy = make_policy(frozen=True, kl_coef=0.1)
    assert policy.reference is None
    assert not any(parameter.requires_grad for parameter in policy.model.parameters())
    Allocation([policy], [policy.name], "swap")
