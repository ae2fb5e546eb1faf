"""Notices when a policy falls off a cliff (sure and right is none); says what usually did it."""

from collections import defaultdict, deque
from collections.abc import Iterator

WINDOW = 10  # steps whose mean is compared with the best mean so far
FALL = 0.4  # of the best mean: below this it is a cliff
SIGNS = {  # metric -> (its name for people, below it is no height to fall from, the usual causes)
    "reward": ("solve rate", 0.2, "a learning rate too high, or imitation of wrong solutions"),
    "entropy": ("entropy", 0.02, "a policy that became sure too early: lower the learning rate"),
    "completions/mean_length": ("completion length", 8.0, "an end token rewarded too early"),
}


class CollapseWatch:
    """Keeps recent means of every policy; warns of each kind of fall once."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], deque] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._best: dict[tuple[str, str], float] = defaultdict(float)
        self._warned: set[tuple[str, str]] = set()

    def notice(self, lines: dict[str, dict]) -> Iterator[str]:
        """A sentence for each cliff that this step shows."""
        for policy, line in lines.items():
            for metric, (what, least, cause) in SIGNS.items():
                key = policy, metric
                recent = self._recent[key]
                recent.append(line[metric])
                mean = sum(recent) / len(recent)
                if len(recent) < WINDOW or key in self._warned:
                    continue
                best = self._best[key] = max(self._best[key], mean)
                solved = metric == "entropy" and sum(self._recent[policy, "reward"]) > 0.9 * WINDOW
                if best >= least and mean < FALL * best and not solved:
                    self._warned.add(key)
                    fall = f"from {best:.2f} to {mean:.2f} (means of {WINDOW} steps)"
                    yield f"Warning: {policy}'s {what} has fallen {fall}; the usual cause: {cause}."
