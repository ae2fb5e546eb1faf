"""What the end-to-end tests share: a small run, in this process or as a program of its own."""

import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import chdir
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file

import mini_mrl
from mrl.run.problems import save_problems
from mrl.run.run import Run
from mrl.tiny.skills import SKILLS, generate

ROOT = Path(mini_mrl.__file__).parent
NAMES = ("qwen-tiny", "llama-tiny")
SMALL = ["--pair", "tiny", "--plain", "--set", "prompts_per_step=6", "--set", "group_size=4"]
SMALL += ["--set", "train=train.jsonl", "--set", 'heldout=["heldout.jsonl"]']
SMALL += ["--set", "eval_samples=1", "--set", "checkpoint_every=2"]
HERE = ["--placement", "resident"]

# One process imports what the program needs, and each `Forked` is a fork of it.
IMPORTED = multiprocessing.get_context("forkserver")
IMPORTED.set_forkserver_preload([__name__, "mrl.cli.carry_out"])
LOCK = threading.Lock()


def without_time(line):
    """A metrics line without its timing fields: what a repeated run must reproduce."""
    return {key: value for key, value in line.items() if not key.startswith(("time/", "memory/"))}


def write_problems(place):
    for part, count in (("train", 2), ("heldout", 1)):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, count, 0)]
        save_problems(place / f"{part}.jsonl", made)


def run(*arguments):
    """The program in this process."""
    return mini_mrl.main([*arguments])


def small(*arguments):
    """A small run in this process, in one process."""
    return run(*SMALL, *HERE, *arguments)


def start(cwd, *arguments, before=(), **options):
    """The program in a session of its own, so that `interrupt` reaches it alone."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(
        [sys.executable, *before, str(ROOT / "mini_mrl.py"), *map(str, arguments)],
        cwd=cwd, env=environment, start_new_session=True, **options,
    )  # fmt: skip


@cache
def import_once():
    """Start the process that imports, in the folder where it finds this file."""
    with chdir(ROOT):
        forkserver.ensure_running()


class Forked:
    """The program as `start` runs it, but without its imports, which take most of a short run.

    It has the methods of `subprocess.Popen` that the tests use. What it prints goes into two files.
    """

    def __init__(self, cwd, *arguments):
        self.folder = TemporaryDirectory()
        self.printed = [Path(self.folder.name, name) for name in ("output", "error")]
        about = cwd, [*map(str, arguments)], self.printed
        self.process = IMPORTED.Process(target=be_the_program, args=about)
        with LOCK:  # all threads share one working directory
            import_once()
        self.process.start()
        self.pid, self.kill = self.process.pid, self.process.kill
        atexit.register(self.kill)  # a failed test may leave it, and Python would wait for its end

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.returncode

    def communicate(self, timeout=None):
        self.process.join(timeout)
        assert self.returncode is not None, f"still running after {timeout} seconds"
        return [path.read_text(encoding="utf-8") for path in self.printed]


def be_the_program(cwd, arguments, printed):
    """What a `Forked` does in its process."""
    os.setsid()
    os.chdir(cwd)
    for stream, path in zip((sys.stdout, sys.stderr), printed, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
    torch.set_num_threads(1)
    sys.exit(mini_mrl.main(arguments))


def interrupt(program):
    """Ctrl-C, as a terminal sends it: to the whole process group."""
    os.killpg(program.pid, signal.SIGINT)


def wait_for(condition, program=None, seconds=120):
    """Until condition() is true; fails if that takes too long, or if the program ends before."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        assert program is None or program.poll() is None, program.communicate()
        time.sleep(0.01)
    return value


def saved(directory):
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name[5:]) for path in directory.glob("checkpoints/step-*")), default=0)


def stop_after(monkeypatch, step):
    """Ctrl-C during a step, for a run in this process."""
    finish_step = Run.finish_step

    def stopped(self, now, results):
        self.stopping |= now == step
        return finish_step(self, now, results)

    monkeypatch.setattr(Run, "finish_step", stopped)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def assert_same_run(one, two, steps, policies=NAMES):
    """Two run directories hold the same, bit by bit, apart from times."""
    one, two = Path(one), Path(two)
    metrics = [[without_time(line) for line in lines(d / "metrics.jsonl")] for d in (one, two)]
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) == 2 * steps
    for name in ("exchange.jsonl", "samples.jsonl", "evaluation.json", "start.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    for policy in policies:
        folders = [d / "checkpoints" / f"step-{steps:06d}" / policy for d in (one, two)]
        a, b = (load_file(folder / "model.safetensors") for folder in folders)
        assert a.keys() == b.keys()
        assert all(a[key].equal(b[key]) for key in a)
        a, b = (torch.load(folder / "optimizer.pt", weights_only=True) for folder in folders)
        assert a["param_groups"] == b["param_groups"]
        assert a["state"].keys() == b["state"].keys()
        for key, moments in a["state"].items():
            assert all(value.equal(b["state"][key][name]) for name, value in moments.items())
