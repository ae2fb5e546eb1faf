"""Placement `parallel`: one process for each policy, started and restarted by torchrun's agent.

A worker that returns has ended the run: it is finished, a person made a mistake, a turn failed, or
Ctrl-C was pressed. A worker that dies (`kill -9`, out of memory) is started again together with the
others, as by `resume`: the run goes on exactly from its last checkpoint.
"""

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

from mrl.config import RunConfig
from mrl.errors import MrlError, PeerLost

MEETING = timedelta(minutes=5)  # for the processes to find each other
PATIENCE = timedelta(days=1)  # for a slower process: no time budget ends an honest turn
RESTARTS = 3  # of a dead worker, before the run ends

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


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_worker() -> bool:
    """Whether torchrun has started this process, with others."""
    return "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def join_processes(names: Sequence[str]) -> str:
    """Meet the other processes under torchrun; returns the name of this process's policy."""
    size = int(os.environ["WORLD_SIZE"])
    if size != len(names):
        raise MrlError(
            f"torchrun started {size} processes for {len(names)} policies; choose "
            f"--nproc-per-node (times --nnodes) so that there are {len(names)}."
        )

    try:
        # torchrun has one store for all its restarts; the prefix hides addresses of dead workers
        store, rank, size = next(dist.rendezvous("env://", timeout=MEETING))
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        # gloo and not NCCL, because text crosses and never a tensor
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except ValueError as error:  # MASTER_ADDR or MASTER_PORT is missing
        raise MrlError(f"The processes of the policies do not meet: {error}") from None
    except RuntimeError as error:  # this worker dies, so torchrun starts all again
        raise SystemExit(f"The processes of the policies do not meet: {error}") from None
    return names[dist.get_rank()]


def launch(
    program: Callable[[list[str]], Ending],
    arguments: Sequence[str],
    directory: Path,
    processes: int,
) -> Ending:
    """Run the program once for each policy, with the same arguments; returns how the run ended.

    directory: where the run writes; nothing may be there that is not this run's.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # torchrun would tell of a worker's end, which our sentence does
    # a fork starts with everything imported; CUDA and macOS do not survive one
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    # the loopback, because no change of network breaks its connections
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    signal.signal(signal.SIGINT, _CtrlC())

    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(os.getpid()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=RESTARTS,
            start_method="fork" if fork else "spawn",
            signals_to_handle="",  # none: torchrun kills a worker that has not saved in 30 s
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )

        try:
            outcomes = elastic_launch(config, _worker)(
                program, list(arguments), str(directory), os.getpid()
            )
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return 1, (
                f"The process of a policy died {RESTARTS + 1} times, at last by "
                f"{failure.signal_name()}. Go on with: python mini_mrl.py resume {directory}"
            )

    # a worker that lost another one does not know why: prefer the outcome of one that does
    reasons = [end for end in outcomes.values() if end[0] not in (0, PeerLost.exit_code)]
    return min(reasons) if reasons else max(outcomes.values())


def terminate(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C, also in a script's background job, where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


class _CtrlC:
    """The launcher's handler of Ctrl-C: workers stop after their step, at a second time at once."""

    sends = signal.SIGINT

    def __call__(self, number: int, frame: object) -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, self.sends)
        if self.sends == signal.SIGKILL:
            raise KeyboardInterrupt
        self.sends = signal.SIGKILL


def _worker(
    program: Callable[[list[str]], Ending], arguments: list[str], directory: str, launcher: int
) -> Ending:
    """Begin a run as one of its processes, or go on with it in the place of one that has died."""
    os.setsid()  # Ctrl-C of the terminal comes through the launcher, once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another worker died: torchrun starts all again
    logging.disable(logging.NOTSET)

    # a run that has written nothing yet begins again
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if restarts and Path(directory, "config.json").exists():
        plain = ["--plain"] if "--plain" in arguments else []
        arguments = ["resume", directory, *plain]
    if restarts and os.environ["LOCAL_RANK"] == "0":
        print(f"The process of a policy has died; restart {restarts} of {RESTARTS}.", flush=True)

    outcome = program(arguments)
    if os.getppid() != launcher:  # the launcher is gone, and torchrun would wait for it
        os._exit(outcome[0])
    return outcome
