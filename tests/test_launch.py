"""One process a policy: the same learning, and where a process dies, nothing is lost.

Whole programs, each in a session of its own. Most of them are forked from a process that has
imported torch already (`Forked`). What a terminal shows is looked at through a pty.
"""

import os
import pty
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrl.cli import carry_out
from mrl.config import RunConfig
from mrl.errors import MrlError, PeerLost
from mrl.run import launch
from mrl.run.directory import newest_checkpoint, read_state
from mrl.run.run import Run
from mrl.settings.pairs import pair_settings
from mrl.settings.read import complete
from tests.end_to_end.small_run import (
    HERE,
    ROOT,
    SMALL,
    Forked,
    assert_same_run,
    interrupt,
    lines,
    saved,
    start,
    wait_for,
    write_problems,
)

STEPS = 6
ONE_UPDATE = [*SMALL, "--set", "updates_per_step=1"]  # so that a version tells the step
PARALLEL = [*ONE_UPDATE, "--placement", "parallel", "--steps", str(STEPS), "--name", "r"]
LONG = ["--steps", "5000", "--set", "checkpoint_every=1"]
# a step that takes a minute and more
SLOW = ["--steps", "9", "--set", "prompts_per_step=18", "--set", "group_size=600"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Directory of the undisturbed run, in one process."""
    place = tmp_path_factory.mktemp("whole")
    write_problems(place)
    program = Forked(place, *ONE_UPDATE, *HERE, "--steps", STEPS, "--name", "r")
    output, error = program.communicate(timeout=240)
    assert (program.returncode, error) == (0, ""), output
    return place / "runs" / "r"


def workers(program):
    """Process ids of the launcher's workers, in the order of the policies."""
    found = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    return [int(pid) for pid in found] if len(found) == 2 else []


def gone(pids):
    def ended(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z"
        except OSError:
            return True

    return all(map(ended, pids))


def end_of(program, seconds=240):
    """Exit code and what the person saw, normal output and errors."""
    output, error = program.communicate(timeout=seconds)
    return program.returncode, output, error


# ------------------------------------------------------------------------------ how many


def test_auto_takes_a_process_a_policy_where_each_has_a_core(monkeypatch):
    config = complete(pair_settings("tiny"))

    def processes(cores=2, **settings):
        monkeypatch.setattr(launch, "cores", lambda: cores)
        return launch.processes_for(complete(pair_settings("tiny") | settings))

    assert processes() == 2
    assert processes(cores=1) == 0
    assert processes(cores=3, threads=2) == 0
    assert processes(device="cuda:1") == 0
    assert processes(placement="swap") == processes(placement="resident") == 0
    assert processes(cores=1, placement="parallel") == 2
    for placement in ("auto", "parallel"):  # of one policy: else a worker would start the next
        one = RunConfig(config.policies[:1], placement=placement)
        assert launch.processes_for(one) == 0
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for devices, wanted in ((1, 0), (2, 2)):
        monkeypatch.setattr("torch.cuda.device_count", lambda there=devices: there)
        assert processes() == wanted
    monkeypatch.setenv(launch.MEETING, "file:///place")
    assert processes(placement="parallel") == 0  # it is one already


@pytest.mark.usefixtures("pythons_handlers")
def test_signals_end_a_run_at_once_while_it_is_loaded_and_later_after_a_step(monkeypatch, tmp_path):
    """A model of 3 B took 78 s more: threads read its weights, whatever is raised."""
    seen = []

    def look():
        seen.append([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)])

    class Loaded(Run):
        def __init__(self, *about):
            look()
            super().__init__(*about)

    def loop(run):
        look()
        seen.append(run.stop)
        raise MrlError("that is enough")

    monkeypatch.setattr(carry_out, "Run", Loaded)
    monkeypatch.setattr(carry_out, "first_lines", lambda *about: [])
    monkeypatch.setattr(carry_out, "train_loop", loop)
    config = complete(pair_settings("tiny") | {"placement": "resident", "runs": str(tmp_path)})
    with pytest.raises(MrlError, match="that is enough"):
        carry_out.start_run(lambda words: (0, ""), [], config, True)
    loading, training, stop = seen
    assert loading == [signal.SIG_DFL] * 2
    assert training == [stop] * 2


def test_only_a_second_ctrl_c_ends_a_run_at_once(monkeypatch):
    """A comparison also sends SIGTERM, which may come while Ctrl-C is handled."""
    run, said = Run.__new__(Run), []
    run.interrupts, run.stopping, run.scoring, run.how_to_resume = 0, False, False, ""
    run.view = SimpleNamespace(close=lambda: None, say=said.append)
    monkeypatch.setattr("mrl.run.run.drop_closed_terminal", lambda: run.stop(signal.SIGTERM, None))
    run.stop(signal.SIGINT, None)
    run.stop(signal.SIGHUP, None)
    assert run.stopping and len(said) == 1
    with pytest.raises(KeyboardInterrupt):
        run.stop(signal.SIGINT, None)


# Each of these programs runs in two processes.


def fails_before_the_meeting(arguments):
    if os.environ["LOCAL_RANK"] == "0":
        return 2, "the mistake"
    launch.join_processes(["a", "b"])
    return 0, ""


def leaves_while_the_other_connects(arguments):
    """As a process does that finds the mistake first."""
    if os.environ["LOCAL_RANK"] == "1":
        return 2, "the mistake"
    raise_lost = lambda *about, **more: (_ for _ in ()).throw(RuntimeError("Gloo failed"))  # noqa: E731
    launch.dist.init_process_group = raise_lost  # of this process alone
    try:
        launch.join_processes(["a", "b"])
    except PeerLost as error:
        return error.exit_code, str(error)
    return 1, "the processes have met"


def says_it_late(arguments):
    """The other process has lost it, and has ended, before its sentence is written."""
    launch.join_processes(["a", "b"])
    launch.dist.destroy_process_group()
    if os.environ["LOCAL_RANK"] == "0":
        return PeerLost.exit_code, "another process has ended"
    time.sleep(1)
    return 2, "the mistake"


@pytest.fixture
def pythons_handlers():
    """Python's own handlers of signals, during a test and after it: a launcher sets others.

    Processes that it starts inherit the handlers, also those that an earlier test left behind.
    """
    usual = {signal.SIGINT: signal.default_int_handler}
    usual |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP), signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def connects_slowly(arguments):
    """And the other process goes on only when it is done."""
    done = Path(os.environ[launch.MEETING]).with_name("done")
    if os.environ["LOCAL_RANK"] == "0":
        connect = launch.dist.init_process_group

        def slowly(*about, **more):
            connect(*about, **more)
            time.sleep(1)
            done.touch()

        launch.dist.init_process_group = slowly
    launch.join_processes(["a", "b"])
    return (2, "the mistake") if done.exists() else (2, "it was left alone")


@pytest.mark.parametrize(
    "program",
    [
        fails_before_the_meeting,
        leaves_while_the_other_connects,
        says_it_late,
        connects_slowly,
    ],
)
@pytest.mark.usefixtures("pythons_handlers")
def test_a_mistake_is_said_by_the_process_that_finds_it(tmp_path, program):
    started = time.monotonic()
    assert launch.launch(program, [], tmp_path, 2) == (2, "the mistake")
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("pythons_handlers")
def test_processes_meet_in_a_folder_of_any_name(tmp_path, monkeypatch):
    place = tmp_path / "t#mp %20?x"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    for _ in range(2):  # a path that is cut off would have left a file for the second one
        assert launch.launch(meets, [], tmp_path, 2) == (0, "")
    assert not list(tmp_path.glob("t#mp*/*")) and len(list(tmp_path.iterdir())) == 1


def meets(arguments):
    launch.join_processes(["a", "b"])
    launch.dist.barrier()
    return 0, ""


# ------------------------------------------------------------------------------ whole runs


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["swap", "parallel"])
def test_all_placements_learn_the_same(place, whole, placement):
    program = Forked(place, *PARALLEL, "--placement", placement)
    code, output, error = end_of(program)
    assert (code, error) == (0, "")
    assert output.count("held-out problems, before -> after") == 1  # by one of them
    assert f"Placement {placement}" in output
    assert_same_run(whole, "runs/r", STEPS)


SPAWNS = """
import sys
sys.path.insert(0, {root!r})
import torch
import mini_mrl

if __name__ == "__main__":
    torch.cuda.is_available = lambda: True  # of the launcher alone, which computes nothing
    sys.exit(mini_mrl.main(sys.argv[2:]))
print("spawned:", __name__, flush=True)
"""


@pytest.mark.slow
def test_processes_that_are_spawned_learn_the_same(place, whole):
    """As where there is CUDA: they import everything again and get the program by its name."""
    script = place / "spawns.py"
    script.write_text(SPAWNS.format(root=str(ROOT)))
    code, output, error = end_of(start(place, *PARALLEL, before=[script]))
    assert (code, error) == (0, ""), output
    assert output.count("spawned: __mp_main__") == 2
    assert_same_run(whole, "runs/r", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_killed_ends_the_run_and_resume_loses_nothing(place, whole, rank):
    """And a run of that name that is there is left alone."""
    program = Forked(place, *PARALLEL)
    directory = place / "runs" / "r"
    wait_for(lambda: saved(directory) >= 2, program)
    pids = wait_for(lambda: workers(program), program)
    os.kill(pids[rank], signal.SIGKILL)
    code, output, error = end_of(program)
    assert code == 1, output
    assert "SIGKILL" in error and len(error.splitlines()) == 1
    assert error.endswith("python mini_mrl.py resume runs/r\n")
    assert gone(pids)
    assert 2 <= saved(directory) < STEPS

    before = (directory / "metrics.jsonl").read_bytes()
    code, output, error = end_of(Forked(place, *PARALLEL))
    assert (code, output) == (2, "")
    assert error.startswith("runs/r already exists")
    assert (directory / "metrics.jsonl").read_bytes() == before

    code, output, error = end_of(Forked(place, "resume", "runs/r", "--plain"))
    assert (code, error) == (0, ""), output
    assert_same_run(whole, directory, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_after_the_step_and_the_run_goes_on_exactly(place, whole, number):
    program = Forked(place, *PARALLEL)
    directory = place / "runs" / "r"
    wait_for(lambda: saved(directory) >= 2, program)
    os.killpg(program.pid, number)
    code, output, error = end_of(program)
    assert (code, error) == (130, ""), output
    assert output.count("Stopping after this step") == 1
    assert output.count("Continue with: python mini_mrl.py resume runs/r") == 1
    step = saved(directory)
    assert 2 <= step < STEPS
    assert len(lines(directory / "metrics.jsonl")) == 2 * step
    code, output, error = end_of(Forked(place, "resume", "runs/r", "--plain"))
    assert (code, error) == (0, "")
    assert f"Continuing after step {step} of {STEPS}." in output
    assert_same_run(whole, directory, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["resident", "parallel"])
def test_a_second_ctrl_c_ends_at_once(place, placement):
    program = Forked(place, *PARALLEL, *SLOW, "--placement", placement)
    wait_for(lambda: (place / "runs" / "r" / "evaluation.json").exists(), program)
    pids = workers(program) if placement == "parallel" else []
    time.sleep(2)
    interrupt(program)
    time.sleep(2)
    assert program.poll() is None  # the step goes on
    interrupt(program)
    code, output, error = end_of(program, seconds=20)
    assert (code, error) == (130, ""), output
    assert "Saved" not in output
    assert gone(pids)


@pytest.mark.slow
def test_workers_without_their_launcher_save_and_end(place):
    program = Forked(place, *PARALLEL, *LONG)
    directory = place / "runs" / "r"
    wait_for(lambda: saved(directory) >= 1, program)
    pids = workers(program)
    program.kill()
    wait_for(lambda: gone(pids), seconds=60)
    program.communicate()
    state = read_state(newest_checkpoint(directory))
    assert len(lines(directory / "metrics.jsonl")) == 2 * state["step"]


MODE = '''
import os
from dataclasses import dataclass
from mrl.modes.sgt import SGT

@dataclass
class Broken(SGT):
    """SGT, until one policy is at its fourth step and luck is bad."""
    name = "broken"

    def training_samples(self, receiver, experiences, rng):
        if receiver.name == "llama-tiny" and receiver.version == 3 and os.path.exists("bad luck"):
            raise RuntimeError("out of luck")
        return super().training_samples(receiver, experiences, rng)
'''


@pytest.mark.slow
def test_a_turn_that_raises_ends_the_run_and_keeps_the_checkpoint(place, whole):
    mode = place / "fails.py"
    mode.write_text(MODE)
    (place / "bad luck").touch()
    code, _, error = end_of(Forked(place, *PARALLEL, "--mode", "fails.py:Broken"))
    assert code == 1
    assert error.startswith("Traceback (most recent call last):\n")
    assert "RuntimeError: out of luck\n" in error
    assert "mini_mrl.py resume runs/r" in error.splitlines()[-1]
    assert error.count("It happened in") == 1 and "fails.py, line 13" in error
    assert saved(place / "runs" / "r") == 2
    (place / "bad luck").unlink()  # and not by changing the mode: a run goes on with the same files
    code, _, error = end_of(Forked(place, "resume", "runs/r", "--plain"))
    assert (code, error) == (0, "")
    assert_same_run(whole, "runs/r", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (["--set", "train=none.jsonl"], "none.jsonl"),  # found by both
        (["--set", f"train={ROOT}/README.md"], f"{ROOT}/README.md:1: "),  # by one a little later
        (["--pair", f"{ROOT}/data/tiny/qwen-tiny,nowhere"], "nowhere: "),  # by one
    ],
)
def test_a_persons_mistake_is_said_once(place, mistake, sentence):
    code, output, error = end_of(Forked(place, *PARALLEL, *mistake))
    assert (code, output) == (2, "")
    assert error.startswith(sentence)
    assert error.count(sentence) == 1
    assert not (place / "runs").exists()


# ------------------------------------------------------------------------------ a terminal


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "SIGKILL"])
def test_a_terminal_shows_the_live_view_and_nothing_of_its_processes(place, end):
    """Also where one of them dies, which leaves no cursor hidden."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        try:
            while chunk := os.read(ours, 65536):
                shown.extend(chunk)
        except OSError:  # the terminal is closed
            pass

    live = [argument for argument in PARALLEL if argument != "--plain"]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    program = start(place, *live, *LONG, **streams)
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    directory = place / "runs" / "r"
    wait_for(lambda: saved(directory) >= 1, program)
    if end == "Ctrl-C":
        interrupt(program)
    else:
        os.kill(workers(program)[0], signal.SIGKILL)
    assert program.wait(timeout=120) == (130 if end == "Ctrl-C" else 1)
    reader.join(timeout=20)
    os.close(ours)
    text = shown.decode()
    assert f"/{LONG[1]}" in text  # the live view
    assert "groups/all_fail" in text
    assert text.count("Continue with: python mini_mrl.py resume runs/r") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    for noise in ("Traceback", "elastic", "torch/", "WARNING", "Warning", "Terminating", "rank"):
        assert noise not in text
