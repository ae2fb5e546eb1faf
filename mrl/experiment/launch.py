"""Placement `parallel`: one process a policy, started and brought back by torchrun's own agent.

A worker that dies is the agent's to restart; the run then goes on from its last checkpoint by
itself, exactly. A worker that *ends* the run (a person's mistake, a failed turn, Ctrl-C) leaves its
exit code and sentence in the file that OUTCOME names, so that nobody restarts it.
"""

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from mrl.config import RunConfig

OUTCOME = "MRL_OUTCOME"  # environment variable: where a worker leaves how the run ended
RESTARTS = 3  # of dead workers, before the run ends
STOPPING_S = 3600  # for the step that goes on when Ctrl-C is pressed, and its checkpoint


def processes_for(config: RunConfig) -> int:
    """How many processes a run is to be started in: one a policy under `parallel`, else 0."""
    policies = len(config.policies)
    if is_worker() or config.placement not in ("auto", "parallel"):
        return 0
    if config.placement == "parallel":
        return policies
    if config.device == "auto" and torch.cuda.is_available():
        there = torch.cuda.device_count()
    else:  # a core of its own; a device that was named is one device
        there = cores() // config.threads if config.device in ("auto", "cpu") else 1
    return policies if 1 < policies <= there else 0


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checkpointed(config: RunConfig) -> Path | None:
    """For a worker that stands in for a dead one: the run's directory, if it can be resumed."""
    directory = Path(config.runs) / config.name
    return directory if any(directory.glob("checkpoints/step-*/state.json")) else None


def launch(arguments: Sequence[str], processes: int) -> tuple[int, str]:
    """Run this program once a policy, with the same arguments; returns exit code and sentence."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # ours is the sentence
    warnings.filterwarnings("ignore", module="torch.distributed")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    program = Path(__file__).resolve().parents[2] / "mini_mrl.py"
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome"
        os.environ[OUTCOME] = str(outcome)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=str(os.getpid()),
            max_restarts=RESTARTS,
            shutdown_timeout=STOPPING_S,
        )
        try:
            elastic_launch(config, sys.executable)(str(program), *arguments)
        except SignalException:
            pass  # Ctrl-C: the workers have finished their step and saved
        except ChildFailedError as error:
            if not outcome.exists():
                return 1, f"A process died {RESTARTS + 1} times ({error.name})."
        if not outcome.exists():
            return 0, ""
        code, _, sentence = outcome.read_text(encoding="utf-8").partition("\n")
        return int(code), sentence


def is_worker() -> bool:
    """Whether torchrun has started this process, with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def was_restarted() -> bool:
    """Whether this worker stands in for one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def leave_outcome(code: int, sentence: str) -> bool:
    """Note how the run ended, unless it is noted; False if nobody will read it."""
    path = os.environ.get(OUTCOME)
    if not (path and is_worker()):
        return False
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(f"{code}\n{sentence}")
    except FileExistsError:
        pass  # the other worker was faster
    return True


def has_ended() -> bool:
    """Whether another worker has noted the end of the run."""
    return Path(os.environ.get(OUTCOME, "/nonexistent")).exists()
