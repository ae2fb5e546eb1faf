"""Killed at any moment, a full disk, numbers that are not finite: nothing lost, nothing doubled."""

import fcntl
import json
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mrl.run import run as run_module
from mrl.run.directory import checkpoints, newest_checkpoint, read_state, step_of
from tests.end_to_end.small_run import (
    HERE,
    SMALL,
    Forked,
    assert_same_run,
    lines,
    run,
    saved,
    small,
    stop_after,
    wait_for,
    write_problems,
)
from tests.sentences import names_it

STEPS, KILLS = 9, 6
OFTEN = ["--set", "checkpoint_every=1"]


def kill_and_resume(place, mode):
    """Kills follow a checkpoint that has just been made by a random time of up to one step, so
    that they fall into rollouts, learning, logging and the writing of the next checkpoint."""
    directory, rng, kills, inside = place / "runs" / f"cut-{mode}", random.Random(7), 0, 0
    common = [*SMALL, *HERE, *OFTEN, "--mode", mode, "--steps", STEPS]
    program = Forked(place, *common, "--name", directory.name)
    while kills < KILLS:
        target = min(saved(directory) + kills % 2, STEPS - 1)  # every second kill lets a step pass
        wait_for(lambda: program.poll() is not None or saved(directory) >= max(1, target))  # noqa: B023
        if kills % 3 == 0:  # into the writing of a checkpoint
            partial = wait_for(
                lambda: program.poll() is not None or [*directory.glob("checkpoints/.partial-*")]  # noqa: B023
            )
        else:
            time.sleep(rng.random() * 0.4)
        if program.poll() is not None:
            break  # it got to the end
        program.kill()
        program.communicate()
        kills += 1
        partial = list(directory.glob("checkpoints/.partial-*"))
        inside += bool(partial)
        read_state(newest_checkpoint(directory))  # the last good one is whole
        program = Forked(place, "resume", directory, "--plain")
    _, error = program.communicate(timeout=120)
    assert program.returncode == 0, error
    return kills, inside


@pytest.mark.slow
def test_killed_at_many_random_moments_a_run_ends_as_if_nothing_had_been(place):
    """One run of each mode, the two side by side: most of the time a program starts again."""
    modes = ("sgt", "hacpo")
    for mode in modes:
        whole = ["--mode", mode, "--steps", str(STEPS), "--name", f"whole-{mode}"]
        assert small(*OFTEN, *whole) == 0
    with ThreadPoolExecutor() as pool:
        counted = pool.map(lambda mode: kill_and_resume(place, mode), modes)
        for mode, (kills, inside) in zip(modes, counted, strict=True):
            assert kills >= 4  # a fast machine gets to the end earlier
            assert inside > 0
            assert_same_run(f"runs/whole-{mode}", f"runs/cut-{mode}", STEPS)
            print(f"{mode}: {kills} kills, {inside} of them inside a checkpoint")


# ------------------------------------------------------------------------------ the disk


def test_a_full_disk_ends_the_run_with_a_sentence_and_keeps_the_last_checkpoint(
    place, monkeypatch, capsys
):
    save_policies = run_module.save_policies

    def fill_up(directory, step, policies):
        if step == 3:
            (directory / "checkpoints" / ".partial-000003").mkdir()
            raise OSError(28, "No space left on device")
        return save_policies(directory, step, policies)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_policies", fill_up)
        assert small(*OFTEN, "--steps", "4", "--name", "r") == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and "python mini_mrl.py resume runs/r" in error
    assert "Traceback" not in error
    assert run("resume", "runs/r") == 0
    assert [line["step"] for line in lines("runs/r/metrics.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [step_of(folder) for folder in checkpoints(Path("runs/r"))] == [3, 4]  # the newest


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["resident", "parallel"])
def test_a_really_full_disk(place, placement):
    """A small tmpfs, where this may be mounted."""
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:
        arguments = [*SMALL, *OFTEN, "--steps", "4", "--name", "r", "--set", "runs=disk"]
        program = Forked(place, *arguments, "--placement", placement)
        wait_for((disk / "r" / "config.json").exists, program)  # there was room for checkpoints
        with suppress(OSError), (disk / "other").open("wb") as file:
            file.write(bytes(100 * 2**20))
        _, error = program.communicate(timeout=120)
        assert program.returncode == 1, error
        assert "Continue with: python mini_mrl.py resume disk/r" in error
        assert error.count("\n") == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("what", ["optimizer.pt", "exchange.jsonl"])
def test_a_disk_that_is_full_for_one_file_alone_ends_the_run_with_a_sentence(
    place, monkeypatch, capsys, what
):
    if what == "optimizer.pt":

        def fail(*arguments):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1 vs 0")

        monkeypatch.setattr("torch.save", fail)
    else:  # what a full buffer meets
        log = run_module.Run._log

        def full(run, name, lines):
            if name == what:
                raise OSError(28, "No space left on device")
            log(run, name, lines)

        monkeypatch.setattr(run_module.Run, "_log", full)
    assert small("--steps", "2", "--name", "r") == 1
    error = capsys.readouterr().err
    assert "Continue with: python mini_mrl.py resume runs/r" in error
    assert "Traceback" not in error


def test_a_deleted_run_folder_ends_with_a_sentence(place, monkeypatch, capsys):
    save_policies = run_module.save_policies

    def vanish(directory, step, policies):
        partial = save_policies(directory, step, policies)
        shutil.rmtree(directory)
        return partial

    monkeypatch.setattr(run_module, "save_policies", vanish)
    assert small("--steps", "2", "--name", "r") == 1
    error = capsys.readouterr().err
    assert error.startswith("[Errno 2] No such file or directory: ")
    assert "Traceback" not in error


def test_a_read_only_place_gets_a_sentence_before_anything_is_done(place, capsys):
    (place / "file").write_text("")
    assert small("--steps", "2", "--name", "r", "--set", "runs=file/runs") == 2
    assert "file/runs/r" in capsys.readouterr().err


# ------------------------------------------------------------------------------ going on


@pytest.fixture(scope="module")
def stopped_place(tmp_path_factory):
    """Where a run of four steps was stopped after the second; checkpoints at 1 and 2."""
    place = tmp_path_factory.mktemp("stopped")
    write_problems(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        stop_after(patch, 2)
        assert small(*OFTEN, "--steps", "4", "--name", "r") == 130
    return place


@pytest.fixture
def stopped(stopped_place, tmp_path, monkeypatch, capsys):
    """A copy of that run, which a test may damage."""
    shutil.copytree(stopped_place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return Path("runs/r")


DAMAGE = {  # of a file of the newest checkpoint: its bytes -> other ones; None: the file is gone
    "state.json": [
        lambda text: text[:-10],
        lambda text: b"{}",
        lambda text: b"[2]",
        lambda text: text.replace(b'"step": 2', b'"step": "2"'),
        lambda text: text.replace(b'"mode"', b'"modus"'),
        lambda text: text.replace(b'"logs"', b'"log"'),
    ],
    "qwen-tiny/model.safetensors": [
        lambda weights: weights[:-4] + bytes([weights[-4] ^ 1]) + weights[-3:],
        lambda weights: weights[: len(weights) // 2],
        None,
    ],
    "qwen-tiny/optimizer.pt": [lambda text: b"x"],
    "qwen-tiny/config.json": [lambda text: text[:50]],
    "llama-tiny/tokenizer.json": [lambda text: text[:500]],
    "llama-tiny": [None],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, changes in DAMAGE.items() for change in changes]
)
def test_a_damaged_checkpoint_gets_a_sentence_that_names_the_file(stopped, capsys, name, change):
    newest = newest_checkpoint(stopped)
    damaged = newest / name
    if change:
        damaged.write_bytes(change(damaged.read_bytes()))
    else:
        damaged.rename(stopped / "elsewhere")
    assert_refused(stopped, str(newest / name), capsys)


@pytest.mark.slow
def test_behind_a_damaged_checkpoint_the_one_before_it_is_used(stopped):
    shutil.copytree("runs/r", "runs/undamaged")
    shutil.rmtree(newest_checkpoint(stopped))  # as the sentence about a damaged one says
    for directory in ("runs/r", "runs/undamaged"):
        assert run("resume", directory) == 0
    assert_same_run("runs/undamaged", "runs/r", 4)  # from step 1 on as from step 2 on


def test_checksums_are_those_that_sha256sum_checks(stopped):
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        capture_output=True, text=True, cwd=newest_checkpoint(stopped),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "llama-tiny/optimizer.pt: OK" in done.stdout
    assert "state.json: OK" in done.stdout


def test_a_checkpoint_without_checksums_is_refused(stopped, capsys):
    (newest_checkpoint(stopped) / "SHA256SUMS").unlink()
    assert_refused(stopped, "SHA256SUMS", capsys)


def test_a_run_that_somebody_writes_is_not_resumed_beside_it(stopped, capsys):
    before = (stopped / "metrics.jsonl").read_bytes() + b"more"
    (stopped / "metrics.jsonl").write_bytes(before)
    with (stopped / "metrics.jsonl").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_SH)  # so that only an exclusive lock is refused
        assert run("resume", "runs/r") == 2
    assert "runs/r: another process" in capsys.readouterr().err
    assert (stopped / "metrics.jsonl").read_bytes() == before  # nothing was cut back
    assert run("resume", "runs/r") == 0


@pytest.mark.slow
def test_a_run_without_a_checkpoint_is_resumed_from_its_beginning(place, monkeypatch):
    rarely = ["--set", "checkpoint_every=2", "--steps", "4"]
    assert small(*rarely, "--name", "whole") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert small(*rarely, "--name", "r") == 130
    shutil.rmtree("runs/r/checkpoints")  # as if it had been killed while it wrote the first one
    assert run("resume", "runs/r", "--plain") == 0
    assert_same_run("runs/whole", "runs/r", 4)


def assert_refused(directory, path, capsys):
    """Resume says in one sentence which file is wrong, and leaves the run as it is."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert run("resume", str(directory)) == 2
    error = capsys.readouterr().err
    assert names_it(error, path)
    assert len(error.splitlines()) == 1
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("how", ["deleted", "moved away"])
def test_checkpoints_that_are_not_there_do_not_begin_a_long_run_again(stopped, capsys, how):
    folder = stopped / "checkpoints"
    folder.rename(stopped.parent / "elsewhere")
    if how == "moved away":
        folder.mkdir()
    assert_refused(stopped, "runs/r/checkpoints", capsys)


DEEP = "[" * 3000
DAMAGED = {  # file of a run -> what stands in it (None: the file is gone)
    "config.json": [None, "", "[]", "{}", '{"policies": []}', DEEP],
    "evaluation.json": ["", "[]", DEEP],
    "metrics.jsonl": ["", "null\n"],
    "start.json": ["", "[]"],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DAMAGED.items() for text in texts]
)
def test_a_run_with_a_damaged_file_is_refused(stopped, capsys, name, text):
    (stopped / name).unlink() if text is None else (stopped / name).write_text(text)
    assert_refused(stopped, name, capsys)


def test_scores_from_before_training_that_are_lost_are_not_made_up(stopped, capsys):
    (stopped / "evaluation.json").unlink()
    assert run("resume", "runs/r", "--plain") == 0
    assert "held-out problems, after" in capsys.readouterr().out
    assert set(json.loads((stopped / "evaluation.json").read_text())) == {"after"}


def test_a_run_of_a_version_that_kept_no_start_goes_on_without_kl(stopped):
    (stopped / "start.json").unlink()
    assert run("resume", "runs/r", "--plain") == 0
    after = json.loads((stopped / "evaluation.json").read_text())["after"]
    assert after and not any("kl_to_start" in entry for entry in after)


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl", "exchange.jsonl"])
def test_a_log_that_is_shorter_than_at_its_checkpoint_is_not_filled_up(stopped, capsys, name):
    (stopped / name).write_bytes((stopped / name).read_bytes()[:10])
    assert_refused(stopped, name, capsys)


@pytest.mark.parametrize("name", ["train.jsonl", "heldout.jsonl"])
def test_a_run_does_not_go_on_with_other_problems(stopped, capsys, name):
    whole = Path(name).read_text()
    Path(name).write_text("".join(whole.splitlines(keepends=True)[1:]))
    assert_refused(stopped, name, capsys)
    assert run("evaluate", "runs/r", "--samples", "1") == (2 if name == "heldout.jsonl" else 0)
    Path(name).write_text(whole)
    assert run("resume", "runs/r", "--plain") == 0


OWN = """
from mrl.modes.solo import Solo
class Own(Solo):
    name = "own"
"""


def test_a_run_does_not_go_on_with_another_version_of_its_mode(place, monkeypatch, capsys):
    Path("own.py").write_text(OWN)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        assert small("--steps", "3", "--name", "r", "--mode", "own.py:Own") == 130
    capsys.readouterr()
    Path("own.py").write_text(OWN + "    consumes = None\n")
    assert_refused(place / "runs" / "r", "own.py", capsys)


@pytest.mark.slow
def test_a_persons_copies_of_checkpoints_are_neither_deleted_nor_taken(place):
    assert small("--steps", "1", "--name", "r", *OFTEN) == 0
    folder = Path("runs/r/checkpoints")
    copies = [
        folder / name for name in ("step-000001-keep", "step-best", "step-1", "step-0000001x")
    ]
    for copy in copies:
        shutil.copytree(folder / "step-000001", copy)
    assert newest_checkpoint(Path("runs/r")).name == "step-000001"
    settings = json.loads(Path("runs/r/config.json").read_text())
    Path("runs/r/config.json").write_text(json.dumps(settings | {"steps": 5}))
    evaluation = Path("runs/r/evaluation.json")
    evaluation.write_text(json.dumps({"before": json.loads(evaluation.read_text())["before"]}))
    assert run("resume", "runs/r", "--plain") == 0
    assert all(copy.is_dir() for copy in copies)
    assert len(list(folder.iterdir())) == 2 + len(copies)

    (folder / "step-1000000").mkdir()  # more digits, but the newest
    assert newest_checkpoint(Path("runs/r")).name == "step-1000000"


@pytest.mark.slow
def test_the_log_of_the_exchange_is_bounded(place, monkeypatch):
    monkeypatch.setattr(run_module, "FIRST_EXCHANGES", 1)
    monkeypatch.setattr(run_module, "EXCHANGES_EVERY", 3)
    assert small("--steps", "4", "--name", "r", "--mode", "prp") == 0
    records = lines("runs/r/exchange.jsonl")
    published = {}
    for line in lines("runs/r/metrics.jsonl"):
        number = line["exchange/published_records"]
        published[line["step"]] = published.get(line["step"], 0) + number
    assert min(published.values()) > 0
    assert len(records) == published[1] + published[3]


def test_a_mode_that_lacks_a_file_is_named_with_its_line(place, capsys):
    Path("own.py").write_text(
        OWN
        + """
    def training_samples(self, receiver, prompts, rng):
        open("none.txt")
"""
    )
    assert small("--steps", "1", "--name", "r", "--mode", "own.py:Own") == 1
    said = capsys.readouterr().err
    assert "none.txt" in said and "own.py, line 7" in said and "resume runs/r" in said


# ------------------------------------------------------------------------------ numbers


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_skipped_and_the_run_goes_on(place, monkeypatch, capsys):
    from mrl import learning

    original = learning.policy_loss

    def broken(policy, *about):
        loss, diagnostics = original(policy, *about)
        factor = float("nan") if policy.name == "qwen-tiny" else 1.0
        return loss * factor, diagnostics

    monkeypatch.setattr(learning, "policy_loss", broken)
    assert small("--mode", "prp", "--steps", "12", "--name", "r") == 0
    mine = [line for line in lines("runs/r/metrics.jsonl") if line["policy"] == "qwen-tiny"]
    skipped = sum(line["update_skipped"] > 0 for line in mine)
    assert skipped >= 2
    said = capsys.readouterr().out.count("was not finite, so its update was skipped")
    assert said == skipped
    assert {line["version"] for line in mine} == {0}  # its weights were left alone
