"""Killed at any moment, a full disk, numbers that are not finite: nothing lost, nothing doubled."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mini_mrl
from mrl.experiment.checkpoint import newest_checkpoint, read_state
from tests.end_to_end.test_main import ROOT, SMALL, assert_same_run, lines, place, run

__all__ = ["place"]  # a fixture
STEPS, KILLS = 12, 25
OFTEN = "checkpoint_every = 1\neval_samples = 1\n"


def start(command, cwd):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "mini_mrl.py"), *command],
        cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished_steps(directory):
    checkpoints = sorted(directory.glob("checkpoints/step-*"))
    return int(checkpoints[-1].name[5:]) if checkpoints else 0


def kill_and_resume(place, common, name):
    """Kills follow a checkpoint that has just been made by a random time of up to one step, so
    that they fall into rollouts, learning, logging and the writing of the next checkpoint."""
    directory, rng, kills = place / "runs" / name, random.Random(7), 0
    inside_a_checkpoint = 0
    program = start([*common, "--name", name], place)
    while kills < KILLS:
        base = finished_steps(directory)
        deadline = time.monotonic() + 60
        wait_for = min(base + (kills % 2), STEPS - 1)  # every second kill lets a step pass
        while program.poll() is None and finished_steps(directory) < max(1, wait_for):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        if kills % 3 == 0:  # into the writing of a checkpoint
            while program.poll() is None and not list(directory.glob("checkpoints/.partial-*")):
                time.sleep(0.0005)
                if time.monotonic() > deadline:
                    break
        else:
            time.sleep(rng.random() * 0.4)
        if program.poll() is not None:
            break  # it got to the end
        program.send_signal(signal.SIGKILL)
        program.communicate()
        kills += 1
        inside_a_checkpoint += bool(list(directory.glob("checkpoints/.partial-*")))
        read_state(newest_checkpoint(directory))  # the last good one is whole
        program = start(["resume", f"runs/{name}", "--plain"], place)
    _, error = program.communicate(timeout=120)
    assert program.returncode == 0, error
    return kills, inside_a_checkpoint


@pytest.mark.slow
def test_killed_at_many_random_moments_a_run_ends_as_if_nothing_had_been(place):
    """One run of each mode, the two side by side: most of the time a program starts again."""
    (place / "run.toml").write_text(OFTEN)
    of_mode = {
        mode: ["--mode", mode, "--steps", str(STEPS), "--config", "run.toml", *SMALL]
        for mode in ("sgt", "hacpo")
    }
    for mode, common in of_mode.items():
        assert run(*common, "--name", f"whole-{mode}") == 0
    with ThreadPoolExecutor() as pool:
        cut = {
            mode: pool.submit(kill_and_resume, place, common, f"cut-{mode}")
            for mode, common in of_mode.items()
        }
    for mode, done in cut.items():
        kills, inside_a_checkpoint = done.result()
        assert kills >= 10
        assert inside_a_checkpoint > 0
        assert_same_run(f"runs/whole-{mode}", f"runs/cut-{mode}", STEPS)
        print(f"{mode}: {kills} kills, {inside_a_checkpoint} of them inside a checkpoint")


def test_a_full_disk_ends_the_run_with_a_sentence_and_keeps_the_last_checkpoint(
    place, monkeypatch, capsys
):
    (place / "run.toml").write_text(OFTEN)
    saved = []
    original = mini_mrl.sys.modules.get("mrl.experiment.run") or __import__(
        "mrl.experiment.run", fromlist=["x"]
    )
    save_policies = original.save_policies

    def fill_up(directory, step, policies):
        if step == 3:
            (directory / "checkpoints" / ".partial-000003").mkdir()
            raise OSError(28, "No space left on device")
        saved.append(step)
        return save_policies(directory, step, policies)

    monkeypatch.setattr(original, "save_policies", fill_up)
    common = ["--steps", "4", "--config", "run.toml", "--name", "r", *SMALL]
    assert run(*common) == 2
    error = capsys.readouterr().err
    assert "cannot be written any more (No space left on device); make room" in error
    assert "Traceback" not in error
    monkeypatch.setattr(original, "save_policies", save_policies)
    assert run("resume", "runs/r") == 0
    assert [line["step"] for line in lines("runs/r/metrics.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.slow
def test_a_really_full_disk(place):
    """A small tmpfs, where this may be mounted."""
    disk = place / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        (place / "run.toml").write_text(OFTEN)
        common = ["--steps", "4", "--config", "run.toml", "--name", "r", "--runs", "disk", *SMALL]
        program = start(common, place)
        _, error = program.communicate(timeout=120)
        assert program.returncode == 2, error
        assert "cannot be written any more" in error
        assert "Traceback" not in error
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_deleted_run_folder_ends_with_a_sentence(place, monkeypatch, capsys):
    from mrl import run as module

    original = module.save_policies

    def vanish(directory, step, policies):
        shutil.rmtree(directory)
        return original(directory, step, policies)

    monkeypatch.setattr(module, "save_policies", vanish)
    monkeypatch.setattr(module, "finish_checkpoint", lambda *a: (_ for _ in ()).throw(
        FileNotFoundError(2, "No such file or directory")))  # fmt: skip
    assert run("--steps", "2", "--name", "r", *SMALL) == 2
    assert "cannot be written any more" in capsys.readouterr().err


def test_a_read_only_place_gets_a_sentence_before_anything_is_done(place, capsys):
    (place / "file").write_text("")
    assert run("--steps", "2", "--name", "r", "--runs", "file/runs", *SMALL) == 2
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text"),
    [("state.json", "{"), ("state.json", ""), ("qwen-tiny/optimizer.safetensors", "x"),
     ("qwen-tiny/model.safetensors", "x")],
)  # fmt: skip
def test_a_damaged_checkpoint_gets_a_sentence(place, capsys, file, text):
    (place / "run.toml").write_text(OFTEN)
    answers = iter([False, True])
    stop = mini_mrl._stop_on_ctrl_c
    mini_mrl._stop_on_ctrl_c = lambda: lambda: next(answers)
    try:
        assert run("--steps", "4", "--config", "run.toml", "--name", "r", *SMALL) == 130
    finally:
        mini_mrl._stop_on_ctrl_c = stop
    newest = newest_checkpoint(Path("runs/r"))
    (newest / file).write_text(text)
    capsys.readouterr()
    assert run("resume", "runs/r") == 2
    error = capsys.readouterr().err
    assert "step-000002" in error
    assert "Traceback" not in error
    shutil.rmtree(newest)  # as it says
    assert run("resume", "runs/r") == 0


@pytest.fixture
def stopped(place, capsys):
    """A run of four steps that was stopped after the second."""
    answers = iter([False, True])
    stop = mini_mrl._stop_on_ctrl_c
    mini_mrl._stop_on_ctrl_c = lambda: lambda: next(answers)
    try:
        assert run("--steps", "4", "--name", "r", "--plain", *SMALL) == 130
    finally:
        mini_mrl._stop_on_ctrl_c = stop
    capsys.readouterr()
    return Path("runs/r")


def test_what_has_changed_since_the_checkpoint_is_said_and_the_run_goes_on(stopped, capsys):
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("prompts_per_step = 6", "prompts_per_step = 4"))
    state = newest_checkpoint(stopped) / "state.json"
    document = json.loads(state.read_text())
    document["origin"]["versions"]["torch"] = "0.4.1"
    state.write_text(json.dumps(document))
    assert run("resume", "runs/r", "--plain") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "config.toml has changed since the checkpoint: prompts_per_step = 4." in said
    assert "This run was made with torch 0.4.1, here is" in said
    assert said.count("This run was made with") == 1


def test_an_unchanged_run_is_resumed_without_such_words(stopped, capsys):
    assert run("resume", "runs/r", "--plain") == 0
    said = capsys.readouterr().out
    assert "Going on after step 2 of 4." in said
    assert "has changed" not in said
    assert "was made with" not in said


def test_a_checkpoint_of_other_policies_gets_a_sentence(stopped, capsys):
    newest = newest_checkpoint(stopped)
    (newest / "qwen-tiny").rename(newest / "somebody-else")
    assert run("resume", "runs/r") == 2
    error = capsys.readouterr().err
    assert "qwen-tiny" in error
    assert "Traceback" not in error


def test_a_run_that_ended_while_it_scored_is_scored_when_it_is_resumed(place, capsys):
    assert run("--steps", "2", "--name", "r", "--plain", *SMALL) == 0
    path = Path("runs/r/evaluation.json")
    whole = path.read_bytes()
    path.write_text(json.dumps({"before": json.loads(whole)["before"]}, indent=1))
    assert run("resume", "runs/r", "--plain") == 0
    assert path.read_bytes() == whole
    assert run("resume", "runs/r") == 2
    assert "is finished" in capsys.readouterr().err


def test_five_updates_in_a_row_that_are_not_finite_stop_the_run(place, monkeypatch, capsys):
    from mrl import learning

    original = learning._policy_loss

    def broken(policy, *about):
        loss = original(policy, *about)
        return loss * float("nan") if policy.name == "qwen-tiny" else loss

    monkeypatch.setattr(learning, "_policy_loss", broken)
    many = ["--mode", "prp", "--steps", "30", "--name", "r", *SMALL]
    assert run(*many) == 2
    captured = capsys.readouterr()
    assert "qwen-tiny: 5 steps in a row had a gradient that is not finite" in captured.err
    noted = [json.loads(line) for line in Path("runs/r/not_finite.jsonl").read_text().splitlines()]
    assert len(noted) >= 5
    assert {"seed", "step", "policy", "grad_norm"} <= noted[0].keys()
    assert all(line["policy"] == "qwen-tiny" for line in noted)
    skipped = [ln["version"] for ln in lines("runs/r/metrics.jsonl") if ln["policy"] == "qwen-tiny"]
    assert set(skipped) == {0}  # its weights were left alone
    assert os.path.exists("runs/r/config.toml")
