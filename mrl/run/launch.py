"""Placement `parallel`: one process for each policy, which meet over the loopback.

A process that returns has ended the run: it is finished, a person made a mistake, a turn failed, or
Ctrl-C was pressed. It has written down how it ended, so that the launcher can say the reason, and a
process that fails ends the others. A process that dies (`kill -9`, out of memory) also ends the
others; `resume` goes on exactly from the last checkpoint.
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

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, start_processes

from mrl.config import RunConfig
from mrl.errors import PeerLost
from mrl.settings.pairs import cores

MEETING = "MINI_MRL_MEETING"  # variable: the file where the processes find each other
PATIENCE = timedelta(days=1)  # for a slower process: no time budget ends an honest turn

Ending = tuple[int, str]  # how a program ended: exit code, and a last sentence for the person


def processes_for(config: RunConfig) -> int:
    """The number of processes that a run is started in: one for each policy; 0: only this one."""
    policies = len(config.policies)
    if is_worker() or policies == 1 or config.placement not in ("auto", "parallel"):
        return 0
    if config.placement == "parallel":
        return policies

    # under `auto` each process must have a device, or enough cores, to itself
    room = 1  # a GPU that was named is one device
    if config.device == "auto" and torch.cuda.is_available():
        room = torch.cuda.device_count()
    elif config.device in ("auto", "cpu"):
        room = cores() // config.threads
    return policies if policies <= room else 0


def is_worker() -> bool:
    """Whether `launch` has started this process, with others."""
    return MEETING in os.environ


def join_processes(names: Sequence[str]) -> str:
    """Meet the other processes; returns the name of this process's policy.

    PeerLost if they cannot meet, as when another process has failed before.
    """
    rank = int(os.environ["LOCAL_RANK"])
    # a file and not a URL, in which `#` or `?` would end the path
    store = dist.FileStore(os.environ[MEETING], len(names))
    store.set_timeout(PATIENCE)
    meeting = {"store": store, "rank": rank, "world_size": len(names), "timeout": PATIENCE}

    # Python handles no signal while Gloo waits, so Ctrl-C ends the process itself until they meet
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # gloo and not NCCL, because text crosses and never a tensor
        dist.init_process_group("gloo", **meeting)
        # who leaves while another process still connects makes Gloo print lines of its own there
        store.set(f"connected {rank}", "")
        store.wait([f"connected {number}" for number in range(len(names))], PATIENCE)
    except RuntimeError as error:
        raise PeerLost(f"The processes of the policies could not meet ({error}).") from error
    finally:
        signal.signal(signal.SIGINT, handler)
    return names[rank]


def launch(
    program: Callable[[list[str]], Ending],
    arguments: Sequence[str],
    directory: Path,
    processes: int,
) -> Ending:
    """Run the program once for each policy, with the same arguments; returns how the run ended.

    directory: where the run writes.
    """
    # a fork starts with everything imported; CUDA and macOS do not survive one
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    # the loopback, because no change of network breaks its connections
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    logging.getLogger("torch.multiprocessing").setLevel("ERROR")  # our sentence says who died
    signal.signal(signal.SIGINT, _pass_on)

    with tempfile.TemporaryDirectory() as folder:
        about = (program, list(arguments), folder)
        died = None
        try:
            start_processes(_worker, about, processes, start_method="fork" if fork else "spawn")
        except ProcessExitedException as error:
            died = error
        outcomes = [json.loads(file.read_text("utf-8")) for file in Path(folder).glob("*.json")]

    # a worker that lost another one does not know why: prefer the outcome of one that does
    reasons = [end for end in outcomes if end[0] not in (0, PeerLost.exit_code)]
    if died and not reasons and died.signal_name != "SIGINT":
        return 1, (
            f"The process of a policy died ({died.signal_name or died.exit_code}), as when "
            f"memory runs out. Go on with: python mini_mrl.py resume {directory}"
        )
    code, sentence = min(reasons) if reasons else max(outcomes, default=(130, ""))
    return code, sentence


def terminate(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C, also in a script's background job, where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _pass_on(number: int, frame: object) -> None:
    """Hand Ctrl-C on: workers stop after their step, and at a second time at once (Run.stop)."""
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGINT)


def _worker(
    rank: int, program: Callable[[list[str]], Ending], arguments: list[str], folder: str
) -> None:
    """Run the program as one of its processes, and write down how it ended.

    It exits with an error if its policy failed while no connection tells the others: they may be
    waiting for it, and the launcher ends them then.
    """
    os.setsid()  # Ctrl-C of the terminal comes through the launcher, once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another worker died

    os.environ["LOCAL_RANK"] = str(rank)
    os.environ[MEETING] = f"{folder}/meeting"
    outcome = program(arguments)
    partial = Path(folder, f"{rank}.partial")  # the launcher may end this process while it writes
    partial.write_text(json.dumps(outcome), encoding="utf-8")
    partial.replace(partial.with_suffix(".json"))
    if outcome[0] not in (0, PeerLost.exit_code) and not dist.is_initialized():
        sys.exit(outcome[0])
