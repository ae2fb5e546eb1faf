"""Assignment 6: what a mode of one's own gains by its idea, everything else being equal.

The control is the best of three: `solo`, the same mode with its records exchanged between problems,
and the same mode without any records. What a mode gains whatever the records say is its own: a mode
that replays its own earlier successes gains 20 points on `solo`, and shares nothing.
"""

import random
from collections.abc import Callable
from statistics import fmean, stdev
from types import ModuleType

from mrl.classroom.letters import mode_of, train
from mrl.modes.solo import Solo

OTHERS = ("graft", "hacpo", "naive", "prp", "replay", "sft", "sgt", "xgrpo")
HIDDEN = tuple(f"mrl.modes.{name}" for name in OTHERS)
PAIRS = 20  # with five, a small gain sometimes looked like none; 20 take some seconds
T = 2.093  # Student's t for 95 % and PAIRS - 1 degrees of freedom
GAINS = {0.5: 6, 2: 1, 10: 1, 20: 1}  # a gain of at least so much -> points for it
SULKS = 10  # so many points below `solo` without records: it does not learn from its own tries


def test_runs(submission: ModuleType) -> None:
    """1 point: it runs, and its samples can be learnt from"""
    train(mode_of(submission), seed=0)


def test_gains(submission: ModuleType, rng: random.Random, record_property: Callable) -> None:
    """9 points: what it gains with a peer that knows what you do not"""
    mode_class, seeds = mode_of(submission), rng.sample(range(10**6), PAIRS)
    solo = [train(Solo, seed) for seed in seeds]
    own = [train(mode_class, seed) for seed in seeds]
    exchanged = [train(mode_class, seed, "exchanged") for seed in seeds]
    nothing = [train(mode_class, seed, "nothing") for seed in seeds]

    lag = fmean(solo) - fmean(nothing)
    assert lag < SULKS, (
        f"without any records it ends {lag:.0f} points below `solo`: it has to learn from its own "
        "tries as well, or what it gains by records cannot be separated from what it does by "
        "itself"
    )

    controls = {"solo": solo, "itself with others' records": exchanged, "itself alone": nothing}
    name = max(controls, key=lambda name: fmean(controls[name]))
    gains = [mine - other for mine, other in zip(own, controls[name], strict=True)]
    gain, half = fmean(gains), T * stdev(gains) / PAIRS**0.5

    # an interval that holds 0 gives no points, however large the gain
    points = sum(GAINS[least] for least in GAINS if gain >= least and gain - half > 0)
    words = f"{gain:+.1f} ± {half:.1f} points of reward over {PAIRS} pairs, against {name}"
    record_property("points", points)
    record_property("message", words)
    assert points == sum(GAINS.values()), (
        f"{words}; a gain of 0.5 whose interval is above 0 gives six points, and 2, 10 and 20 give "
        "one more each. The updates' length is the checker's, so only what the peer's records "
        "change can gain: on which problems does the receiver learn nothing by itself?"
    )
