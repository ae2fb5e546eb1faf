"""One process a policy: `torchrun --nproc-per-node 2 mini_mrl.py --mode sgt`.

Every process runs the same loop with one policy of its own; what crosses is text: exchange records
and log lines. It travels through torch.distributed's key-value store (torchrun's rendezvous), not
through collectives: a collective that has lost a member hangs or fails for all, a missing key is
only waited for so long. So a lost process is a policy that misses its steps, as in allocation.py,
and tensors never cross, on one machine or on several.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from mrl.errors import MrlError

FIRST_PATIENCE_S = 600.0  # for the first word of a step, before it is known how long one takes
LEAST_PATIENCE_S = 30.0
PATIENCE_FACTOR = 10  # times the longest wait so far
UNREAD = 8  # own words that are kept in the store for those who have not read them yet


class Company:
    """The policies of a run that are all in this process: nothing has to travel."""

    writes = True  # this process keeps the run's logs

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.local = self.names  # the policies of this process

    def share(
        self,
        topic: str,
        mine: dict[str, Any],
        names: Iterable[str],
        encode: Callable[[Any], Any] = lambda value: value,
        decode: Callable[[Any], Any] = lambda value: value,
        patience_s: float = 0.0,
    ) -> dict[str, Any]:
        """What each of `names` has to say on a topic, in their order; who says nothing is left out.

        encode, decode: to JSON values and back, for what has to travel. patience_s: how long to
        wait for one that is slow; 0: as long as experience says.
        """
        return {name: mine[name] for name in names if mine.get(name) is not None}

    def close(self) -> None:
        """Say good-bye."""


class Processes(Company):
    """One policy a process, in the order of the ranks."""

    def __init__(self, names: Sequence[str], turn_budget_s: float = 0.0) -> None:
        super().__init__(names)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.size != len(self.names):
            raise MrlError(
                f"torchrun started {self.size} processes for {len(self.names)} policies; choose "
                f"--nproc-per-node (times --nnodes) so that there are {len(self.names)}."
            )
        self.local = [self.names[self.rank]]
        self.writes = int(os.environ.get("LOCAL_RANK", 0)) == 0  # one process of each machine
        self._fixed_s = 3 * turn_budget_s  # a step has three turns: rollout, verify, learn
        self._longest_s: float | None = None
        self._unread: list[str] = []
        timeout = timedelta(seconds=FIRST_PATIENCE_S)
        self._store, _, _ = next(torch.distributed.rendezvous("env://", timeout=timeout))

    def share(
        self,
        topic: str,
        mine: dict[str, Any],
        names: Iterable[str],
        encode: Callable[[Any], Any] = lambda value: value,
        decode: Callable[[Any], Any] = lambda value: value,
        patience_s: float = 0.0,
    ) -> dict[str, Any]:
        """As above; a process that does not say anything in time is left out, too."""
        for name in self.local:
            value = mine.get(name)
            self._say(f"{topic}/{name}", None if value is None else encode(value))
        said = dict(mine)
        for name in names:
            if name not in self.local:
                heard = self._hear(f"{topic}/{name}", patience_s)
                said[name] = None if heard is None else decode(heard)
        return super().share(topic, said, names)

    def _say(self, key: str, value: Any) -> None:
        try:
            self._store.set(key, json.dumps(value))
            self._unread.append(key)
            if len(self._unread) > UNREAD:
                self._store.delete_key(self._unread.pop(0))
        except RuntimeError:
            pass  # the store was in a process that is gone: there is nobody to tell

    def _hear(self, key: str, patience_s: float) -> Any:
        start = time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=patience_s or self._patience_s()))
            heard = json.loads(self._store.get(key))
        except (RuntimeError, ValueError):  # what the store raises when time is up or it is gone
            return None
        if not patience_s:
            self._longest_s = max(self._longest_s or 0.0, time.monotonic() - start)
        return heard

    def _patience_s(self) -> float:
        if self._fixed_s or self._longest_s is None:
            return self._fixed_s or FIRST_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENCE_FACTOR * self._longest_s)

    def close(self) -> None:
        """Leave last if the store may be in this process, so that the others can still read."""
        try:
            self._store.set(f"left/{self.rank}", "1")
            if self.rank == 0:
                others = [f"left/{rank}" for rank in range(1, self.size)]
                self._store.wait(others, timedelta(seconds=LEAST_PATIENCE_S))
        except RuntimeError:
            pass


def find_company(names: Sequence[str], turn_budget_s: float = 0.0) -> Company:
    """One process a policy if torchrun has started several, else all in this one."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    return Processes(names, turn_budget_s) if several else Company(names)
