"""Placement `parallel`: one process per policy, connected over the loopback device.

When a process returns, the run has ended: it is finished, or there was an error, or Ctrl-C was
pressed. Each process saves how it ended, so that the launcher can print the reason. A process that
fails, or dies (`kill -9`, out of memory), ends the others as well. `resume` then continues exactly
from the last checkpoint.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from mrl.config import RunConfig
from mrl.errors import PeerLost
from mrl.run.view import drop_closed_terminal
from mrl.settings.pairs import cores

MEETING = "MINI_MRL_MEETING"  # environment variable: the file where the processes find each other
PATIENCE = timedelta(days=1)  # how long to wait for a slower process

Handler = Callable[[int, Any], object]  # of a signal
Ending = tuple[int, str]  # how a program ended: its exit code, and a last sentence for the user


def processes_for(config: RunConfig) -> int:
    """The number of processes to start, one per policy; 0 if this process runs everything."""
    policies = len(config.policies)
    if is_worker() or policies == 1 or config.placement not in ("auto", "parallel"):
        return 0
    if config.placement == "parallel":
        return policies

    # under `auto`, each process needs its own GPU, or enough CPU cores
    room = 1  # the user named a single GPU
    if config.device == "auto" and torch.cuda.is_available():
        room = torch.cuda.device_count()
    elif config.device in ("auto", "cpu"):
        room = cores() // config.threads
    return policies if policies <= room else 0


def is_worker() -> bool:
    """Whether `launch` has started this process."""
    return MEETING in os.environ


def end_at_once() -> None:
    """Let SIGTERM and a closed terminal end this process at once, because it only loads a run.

    Nothing can be lost yet, and an exception would not stop the threads that read weights.
    """
    _handle(signal.SIG_DFL, signal.SIGTERM, signal.SIGHUP)


def stop_by_signals(stop: Handler) -> None:
    """From now on, Ctrl-C, SIGTERM and a closed terminal call `stop`.

    That includes Ctrl-C in the background job of a script, which ignores SIGINT.
    """
    signal.signal(signal.SIGINT, stop)
    _handle(stop, signal.SIGHUP)
    if not is_worker():  # torch ends workers with SIGTERM
        _handle(stop, signal.SIGTERM)


def _handle(handler: Handler | int, *numbers: int) -> None:
    """Set the handler of signals, except of those that are ignored, as SIGHUP by `nohup`."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def join_processes(names: Sequence[str]) -> str:
    """Connect to the other processes; returns the name of this process's policy.

    Raises PeerLost if that fails, for example because another process has already failed.
    """
    rank = int(os.environ["LOCAL_RANK"])
    # a FileStore instead of a file:// URL, in which `#` or `?` would end the path
    # (torch documents the class, but does not list it as public)
    store = dist.FileStore(  # pyright: ignore[reportPrivateImportUsage]
        os.environ[MEETING], len(names)
    )
    store.set_timeout(PATIENCE)
    meeting = {"store": store, "rank": rank, "world_size": len(names), "timeout": PATIENCE}

    # Python handles no signals while Gloo waits, so while connecting, Ctrl-C must end the process
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # Gloo instead of NCCL, because the processes exchange text and never tensors
        dist.init_process_group("gloo", **meeting)
        # wait for all: if one left while another is still connecting, Gloo would print messages
        store.set(f"connected {rank}", "")
        store.wait([f"connected {number}" for number in range(len(names))], PATIENCE)
    except RuntimeError as error:
        raise PeerLost(f"The processes of the policies could not connect ({error}).") from error
    finally:
        signal.signal(signal.SIGINT, handler)
    return names[rank]


def launch(
    program: Callable[[list[str]], Ending],
    arguments: Sequence[str],
    directory: Path,
    processes: int,
) -> Ending:
    """Run the program once per policy, with the same arguments; returns how the run ended.

    directory: the directory of the run.
    """
    # a fork is faster, because everything is imported already; CUDA and macOS do not support it
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    # the loopback device, because a change of network does not break its connections
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    # `launch` itself says which process died, so torch's warning is not needed
    logging.getLogger("torch.multiprocessing").setLevel("ERROR")
    signal.signal(signal.SIGINT, _pass_on)
    _handle(_pass_on, signal.SIGTERM, signal.SIGHUP)
    _handle(_pause, signal.SIGTSTP)

    with tempfile.TemporaryDirectory() as folder:
        about = (program, list(arguments), folder)
        died = None
        try:
            start_processes(_worker, about, processes, start_method="fork" if fork else "spawn")
        except ProcessExitedException as error:
            died = error
        outcomes = [json.loads(file.read_text("utf-8")) for file in Path(folder).glob("*.json")]

    # a worker that lost another one does not know why, so prefer the outcome of the one that failed
    reasons = [end for end in outcomes if end[0] not in (0, PeerLost.exit_code)]
    if died and not reasons and died.signal_name not in ("SIGINT", "SIGHUP"):
        return 1, (
            f"The process of a policy died ({died.signal_name or died.exit_code}); perhaps the "
            f"machine ran out of memory. Continue with: python mini_mrl.py resume {directory}"
        )
    code, sentence = min(reasons) if reasons else max(outcomes, default=(130, ""))
    return code, sentence


def _signal_workers(number: int) -> None:
    for worker in multiprocessing.active_children():
        if worker.pid is not None:  # it has started
            os.kill(worker.pid, number)


def _pass_on(number: int, frame: object) -> None:
    """Tell the workers to stop: SIGINT for Ctrl-C, else SIGHUP (see Run.stop).

    SIGTERM itself is not passed on, because torch ends the workers with it.
    """
    drop_closed_terminal()
    _signal_workers(number if number == signal.SIGINT else signal.SIGHUP)


def _pause(number: int, frame: object) -> None:
    """Handle Ctrl-Z, which does not reach the workers: also stop them, until the run goes on."""
    _signal_workers(signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)  # returns after `fg` or `bg`
    _signal_workers(signal.SIGCONT)


def _worker(
    rank: int, program: Callable[[list[str]], Ending], arguments: list[str], folder: str
) -> None:
    """Run the program as one of the processes, and save how it ended.

    If it failed before it was connected, the others may be waiting for it. In that case it exits
    with an error, so that the launcher stops the others.
    """
    os.setsid()  # so that signals of the terminal reach this process once, through the launcher
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # torch sends SIGTERM if another worker dies; `_pass_on` sends SIGHUP
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)

    os.environ["LOCAL_RANK"] = str(rank)
    os.environ[MEETING] = f"{folder}/meeting"
    outcome = program(arguments)
    partial = Path(folder, f"{rank}.partial")  # a process may be killed while it writes
    partial.write_text(json.dumps(outcome), encoding="utf-8")
    partial.replace(partial.with_suffix(".json"))
    if outcome[0] not in (0, PeerLost.exit_code) and not dist.is_initialized():
        sys.exit(outcome[0])
