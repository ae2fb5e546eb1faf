"""Runs in which something goes wrong, or with a mode of one's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mini_mrl
from mrl.config import DATA
from mrl.modes import MODES, Mode
from mrl.run.directory import newest_checkpoint
from tests.end_to_end.small_run import (
    assert_same_run,
    lines,
    run,
    small,
    stop_after,
    without_time,
)
from tests.sentences import names_it

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


BAD_LUCK = {
    "rollout": "mrl.policy.Policy.rollout",
    "verify": "mrl.verifier.verifier.BoxVerifier.verify_groups",
    "learn": "mini_mrl.learn",
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["rollout", "verify", "learn"])
def test_a_turn_that_raises_ends_the_run_and_resume_goes_on(place, monkeypatch, capsys, phase):
    """The last checkpoint is kept, and the resumed run is the one that was to be."""
    assert small("--steps", "4", "--name", "whole") == 0
    train_step = mini_mrl.train_step

    def unlucky(run, step):
        with monkeypatch.context() as patch:
            if step == 4:
                patch.setattr(BAD_LUCK[phase], fail)
            return train_step(run, step)

    def fail(*_):
        raise RuntimeError("out of luck\nand of memory")

    with monkeypatch.context() as patch:
        patch.setattr(mini_mrl, "train_step", unlucky)
        assert small("--steps", "4", "--name", "r") == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):\n")
    *_, message, second, last = error.splitlines()
    assert (message, second) == ("RuntimeError: out of luck", "and of memory")
    line = fail.__code__.co_firstlineno + 1
    assert f"{__file__}, line {line}" in last and "mini_mrl.py resume runs/r" in last
    assert newest_checkpoint(Path("runs/r")).name == "step-000002"
    assert run("resume", "runs/r", "--plain") == 0
    assert_same_run("runs/whole", "runs/r", 4)


def test_out_of_memory_is_one_sentence_that_says_how_to_go_on(place, monkeypatch, capsys):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(mini_mrl, "learn", fail)
    assert small("--steps", "2", "--name", "r") == 1
    error = capsys.readouterr().err
    assert error.startswith("llama-tiny ran out of memory") and len(error.splitlines()) == 1
    assert error.endswith("python mini_mrl.py resume runs/r\n")


OWN = '''
import sys
from dataclasses import dataclass
from mrl.modes.sgt import SGT

@dataclass
class Own(SGT):
    """SGT with a line of one's own."""
    name = "own"

    def training_samples(self, receiver, experiences, rng):
        batch = super().training_samples(receiver, experiences, rng)
        {line}
        return batch
'''


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("raise KeyError('x')", "KeyError x"),
        ("batch.samples.append(receiver.codec.encode(3))", "AttributeError"),  # goes wrong in mrl
        ("rng.choice([])", "IndexError"),  # in a library
    ],
)
def test_a_students_own_exception_keeps_its_traceback_and_names_its_line(place, capsys, line, part):
    Path("own.py").write_text(OWN.format(line=line))
    assert small("--mode", "own.py:Own", "--steps", "2", "--name", "r") == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):\n")
    assert line in error
    assert names_it(error, part)
    last = error.splitlines()[-1]
    assert f"{place}/own.py, line 13" in last
    assert "new run" in last  # `resume` would refuse the corrected file


LEAKY = '''
from dataclasses import dataclass, field
from mrl.modes.own import own_samples
from mrl.modes.solo import Solo

@dataclass
class Leaky(Solo):
    """Consumes nothing, keeps every group that it sees, and learns from other policies' ones."""
    name = "leaky"
    kept: dict = field(default_factory=dict, init=False)

    def training_samples(self, receiver, experiences, rng):
        batch = super().training_samples(receiver, experiences, rng)
        foreign = [g for name, kept in self.kept.items() if name != receiver.name for g in kept]
        batch.samples += [s for group in foreign for s in own_samples(receiver, group)]
        batch.notes = {"foreign": len(foreign), "remembers": len(self.kept)}
        self.kept[receiver.name] = [experience.group for experience in experiences]
        return batch

    def state(self):
        return {"saw": list(self.kept)}

    def restore(self, state):
        self.kept = {name: [] for name in state["saw"]}
'''


@pytest.mark.slow
def test_a_mode_that_keeps_groups_has_none_of_another_policy(place, monkeypatch):
    """Not in a run and not over a checkpoint; one that consumes nothing learns as solo does."""
    Path("leaky.py").write_text(LEAKY)
    leaky = ["--mode", "leaky.py:Leaky", "--steps", "3", "--name", "leaky"]
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert small(*leaky) == 130
    assert run("resume", "runs/leaky") == 0
    assert small("--mode", "solo", "--steps", "3", "--name", "solo") == 0
    metrics = lines("runs/leaky/metrics.jsonl")
    assert [line.pop("mode/foreign") for line in metrics] == [0] * 6
    assert [line.pop("mode/remembers") for line in metrics] == [0, 0, 1, 1, 1, 1]
    solo = lines("runs/solo/metrics.jsonl")
    assert [without_time(line) for line in metrics] == [without_time(line) for line in solo]
    state = json.loads(Path("runs/leaky/checkpoints/step-000003/state.json").read_text())
    saved = {name: kept["mode"] for name, kept in state["policies"].items()}
    assert saved == {name: {"saw": [name]} for name in ("qwen-tiny", "llama-tiny")}


REMEMBERING = [name for name, mode in MODES.items() if mode.state is not Mode.state]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*REMEMBERING, "graft"])  # four updates per step
def test_a_mode_resumes_exactly(place, monkeypatch, mode):
    """A run that is cut under `swap` ends as one that was whole under `resident`."""
    placement = "resident" if mode == "replay" else "swap"
    common = ["--mode", mode, "--steps", "4"]
    assert small(*common, "--name", "whole") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert small(*common, "--name", "cut", "--placement", placement) == 130
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 4)


def test_a_mode_of_ones_own_runs_and_resumes(place, monkeypatch):
    Path("loud.py").write_text(MODE)
    own = ["--mode", "loud.py:Loud", "--set", "loud.imitation_weight=0.2", "--steps", "2"]
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        assert small(*own) == 130
    assert run("resume", "runs/loud-s0") == 0
    assert small("--mode", "sgt", "--set", "sgt.imitation_weight=0.2", "--steps", "2") == 0
    assert_same_run("runs/loud-s0", "runs/sgt-s0", 2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_finite_numbers_and_shares_that_add_up(place, mode):
    assert small("--mode", mode, "--steps", "3", "--name", "r", "--seed", "2") == 0
    for line in lines("runs/r/metrics.jsonl"):
        numbers = [v for v in line.values() if isinstance(v, int | float)]
        assert all(abs(number) < 1e12 for number in numbers)
        outcomes = [value for key, value in line.items() if key.startswith("outcome/")]
        assert sum(outcomes) == pytest.approx(1.0)
        assert line["update_skipped"] == 0


@pytest.mark.slow
def test_a_breakpoint_in_an_own_mode_without_a_keyboard_gets_one_sentence(place):
    """In a process of its own a policy has none, so the debugger quits at once."""
    Path("stops.py").write_text(
        "from mrl.modes.sgt import SGT\n"
        "class Stops(SGT):\n"
        "    name = 'stops'\n"
        "    def training_samples(self, *about):\n"
        "        breakpoint()\n"
        "        return super().training_samples(*about)\n"
    )
    command = [sys.executable, mini_mrl.__file__, "--mode", "stops.py:Stops", "--plain"]
    command += ["--steps", "1", "--set", "eval_samples=1", "--set", "prompts_per_step=2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--debug" in done.stderr
    assert "Traceback" not in done.stderr
