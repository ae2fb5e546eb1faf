"""Runs in which something goes wrong, or somebody brings a mode of their own."""

import json
from pathlib import Path

import pytest

import mini_mrl
from mrl.config import DATA
from mrl.experiment.metrics import without_time
from mrl.lab.report import write_report
from mrl.modes import MODES
from tests.end_to_end.test_main import SMALL, assert_same_run, lines, place, run

__all__ = ["place"]  # a fixture
LLAMA = str(DATA / "tiny" / "llama-tiny")

MODE = '''
from dataclasses import dataclass
from mrl.modes.sgt import SGT

@dataclass
class Loud(SGT):
    """SGT, louder."""
    name = "loud"
    imitation_weight: float = 0.5
'''


def test_a_hanging_policy_is_named_and_the_run_ends_by_itself(place, capsys):
    Path("run.toml").write_text("turn_budget_s = 1.0\n")
    arguments = ["--steps", "6", "--config", "run.toml", "--name", "r", *SMALL]
    assert run(*arguments, "--fault", "hang=llama-tiny@3") == 0
    out = capsys.readouterr().out
    assert "llama-tiny failed in its rollout turn: it did not come back within 1 s" in out
    assert "llama-tiny missed 3 steps in a row; the run goes on without it." in out
    steps = [(line["step"], line["policy"]) for line in lines("runs/r/metrics.jsonl")]
    both = [(s, p) for s in (1, 2) for p in ("qwen-tiny", "llama-tiny")]
    assert steps == both + [(s, "qwen-tiny") for s in (3, 4, 5, 6)]
    saved = sorted(p.name for p in Path("runs/r/checkpoints").iterdir())
    assert saved == ["step-000005", "step-000006"]  # when it was given up, and at the end
    assert sorted(p.name for p in Path("runs/r/checkpoints/step-000005").iterdir()) == [
        "llama-tiny", "qwen-tiny", "state.json"
    ]  # fmt: skip
    after = json.loads(Path("runs/r/evaluation.json").read_text())["after"]
    assert {scores["policy"] for scores in after} == {"qwen-tiny"}
    page = write_report(Path("runs/r")).read_text()
    assert "<td>5</td><td>llama-tiny missed 3 steps in a row; the run goes on" in page


def test_a_crash_costs_one_policy_one_step(place, capsys):
    assert run("--steps", "3", "--name", "r", "--fault", "crash=qwen-tiny@2", *SMALL) == 0
    assert "qwen-tiny failed in its rollout turn: a crash that --fault planted" in (
        capsys.readouterr().out
    )
    steps = [(line["step"], line["policy"]) for line in lines("runs/r/metrics.jsonl")]
    assert (2, "qwen-tiny") not in steps
    assert len(steps) == 5


def test_when_nobody_is_left_the_run_ends_with_a_sentence_and_can_be_resumed(place, capsys):
    alone = ["--mode", "solo", "--pair", LLAMA, "--steps", "6", "--name", "r", *SMALL]
    assert run(*alone, "--fault", "crash=llama-tiny@2+") == 2
    assert "resume runs/r` tries again" in capsys.readouterr().err
    config = Path("runs/r/config.toml")
    config.write_text(config.read_text().replace("crash=llama-tiny@2+", ""))
    assert run("resume", "runs/r") == 0
    assert [line["step"] for line in lines("runs/r/metrics.jsonl")] == [1, 5, 6]


LEAKY = '''
from dataclasses import dataclass, field
from mrl.modes.solo import Solo, own_samples

@dataclass
class Leaky(Solo):
    """Consumes nothing, keeps every group that it sees, and learns from other policies' ones."""
    name = "leaky"
    kept: dict = field(default_factory=dict, init=False)

    def training_samples(self, receiver, groups, peers, rng):
        batch = super().training_samples(receiver, groups, peers, rng)
        foreign = [g for name, kept in self.kept.items() if name != receiver.name for g in kept]
        batch.samples += [s for group in foreign for s in own_samples(receiver, group)]
        batch.notes = {"foreign": len(foreign), "remembers": len(self.kept)}
        self.kept[receiver.name] = groups
        return batch

    def state(self):
        return {"saw": list(self.kept)}

    def restore(self, state):
        self.kept = {name: [] for name in state["saw"]}
'''


def test_a_mode_that_keeps_groups_has_none_of_another_policy(place, monkeypatch):
    """Not in a run and not over a checkpoint; one that consumes nothing learns as solo does."""
    Path("leaky.py").write_text(LEAKY)
    answers = iter([False, True])
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: next(answers))
    leaky = ["--mode", "leaky.py:Leaky", "--steps", "3", "--name", "leaky", *SMALL]
    assert run(*leaky) == 130
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: False)
    assert run("resume", "runs/leaky") == 0
    assert run("--mode", "solo", "--steps", "3", "--name", "solo", *SMALL) == 0
    metrics = lines("runs/leaky/metrics.jsonl")
    assert [line.pop("mode/foreign") for line in metrics] == [0] * 6
    assert [line.pop("mode/remembers") for line in metrics] == [0, 0, 1, 1, 1, 1]
    solo = lines("runs/solo/metrics.jsonl")
    assert [without_time(line) for line in metrics] == [without_time(line) for line in solo]
    saved = json.loads(Path("runs/leaky/checkpoints/step-000003/state.json").read_text())["mode"]
    assert saved == {name: {"saw": [name]} for name in ("qwen-tiny", "llama-tiny")}


@pytest.mark.parametrize("mode", ["hacpo", "graft"])
def test_a_mode_with_a_memory_resumes_exactly_under_any_placement(place, monkeypatch, mode):
    assert run("--mode", mode, "--steps", "4", "--name", "whole", *SMALL) == 0
    answers = iter([False, True])
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: next(answers))
    cut = ["--mode", mode, "--steps", "4", "--name", "cut", "--placement", "swap", *SMALL]
    assert run(*cut) == 130
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: False)
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 4)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["resident", "swap", "spread"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_resumes_exactly_under_every_placement(place, monkeypatch, mode, placement):
    common = ["--mode", mode, "--steps", "3", "--placement", placement, *SMALL]
    assert run(*common, "--name", "whole") == 0
    answers = iter([False, True])
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: next(answers))
    assert run(*common, "--name", "cut") == 130
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: False)
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 3)


def test_graft_learns_from_a_finished_solo_run_that_recorded_its_rollouts(place):
    assert run("--mode", "solo", "--record", "rollout", "--steps", "4", "--name", "s", *SMALL) == 0
    assert {line["kind"] for line in lines("runs/s/exchange.jsonl")} == {"rollout"}
    alone = ["--mode", "graft", "--pair", LLAMA, "--steps", "4", "--name", "g", *SMALL]
    assert run(*alone, "--peer-log", "runs/s/exchange.jsonl") == 0
    metrics = lines("runs/g/metrics.jsonl")
    assert sum(line["rescue_set"] for line in metrics) > 0
    assert all(line["exchange/received_records"] == 24 for line in metrics)  # 6 prompts x 4


def test_a_recorded_solo_run_learns_as_one_that_is_not(place):
    for name, extra in (("one", []), ("two", ["--record", "rollout"])):
        assert run("--mode", "solo", "--steps", "3", "--name", name, *extra, *SMALL) == 0
    one, two = (
        [
            {k: v for k, v in without_time(line).items() if not k.startswith("exchange/")}
            for line in lines(f"runs/{name}/metrics.jsonl")
        ]
        for name in ("one", "two")
    )
    assert one == two


def test_a_mode_of_ones_own_runs_and_resumes(place, monkeypatch, capsys):
    Path("loud.py").write_text(MODE)
    answers = iter([True])
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: next(answers, False))
    own = ["--mode", "loud.py:Loud", "--set", "loud.imitation_weight=0.2", "--steps", "2", *SMALL]
    assert run(*own) == 130
    assert "Mode loud shares success records" in capsys.readouterr().out
    assert run("resume", "runs/loud-s0") == 0
    assert run("--mode", "sgt", "--set", "sgt.imitation_weight=0.2", "--steps", "2", *SMALL) == 0
    assert_same_run("runs/loud-s0", "runs/sgt-s0", 2)


def test_modes_are_listed_with_their_settings(capsys):
    assert run("modes") == 0
    out = capsys.readouterr().out
    for name in MODES:
        assert f" {name} " in out
    assert "imitation_weight" in out


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_finite_numbers_and_shares_that_add_up(place, mode):
    assert run("--mode", mode, "--steps", "5", "--name", "r", "--seed", "2", *SMALL) == 0
    for line in lines("runs/r/metrics.jsonl"):
        numbers = [v for v in line.values() if isinstance(v, int | float)]
        assert all(abs(number) < 1e12 for number in numbers)
        outcomes = [value for key, value in line.items() if key.startswith("outcome/")]
        assert sum(outcomes) == pytest.approx(1.0)
        assert line["update_skipped"] == 0
