"""What a blind spot is, and when it is closed.

A policy *knows* a skill if its pass@1 on the first held-out file is at least `CLOSED`. A blind spot
of a policy is a skill at which this pass@1 is below `BLIND_SPOT` before training, although a peer
knows the skill. A run closes the blind spot if the policy knows the skill after training. A frozen
policy has no blind spots, because nothing could close them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

BLIND_SPOT, CLOSED = 0.02, 0.25
Rates = dict[str, dict[str, float]]  # policy -> skill -> pass@1 on the first held-out file


def of_first_split(entries: Sequence[dict]) -> list[dict]:
    """The entries of `evaluation.json` about the first held-out file, one per policy."""
    return [entry for entry in entries if entry["split"] == entries[0]["split"]]


def rates_of(entries: Sequence[dict[str, Any]]) -> Rates:
    """The pass@1 of each policy and skill, from the entries of `evaluation.json`."""
    return {
        entry["policy"]: {skill: scores["pass@1"] for skill, scores in entry["skills"].items()}
        for entry in of_first_split(entries)
    }


def learners_of(lines: Iterable[dict[str, Any]]) -> set[str]:
    """The policies that learn: in `metrics.jsonl`, only they have updates."""
    return {line["policy"] for line in lines if line["updates"]}


def knows(rate: float) -> bool:
    """Whether a policy with this pass@1 knows the skill; a blind spot is then closed."""
    return rate >= CLOSED


def blind_spots(before: Rates, learners: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """The blind spots as (policy, skill).

    before: the rates before training. learners: the policies that learn (default: all of them).
    """
    learning = set(before if learners is None else learners)
    found = []
    for policy, rates in before.items():
        for skill, rate in rates.items():
            peers = [of_peer[skill] for name, of_peer in before.items() if name != policy]
            if policy in learning and rate < BLIND_SPOT and any(map(knows, peers)):
                found.append((policy, skill))
    return found
