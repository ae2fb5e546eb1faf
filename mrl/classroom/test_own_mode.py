"""Assignment 6: how much a student's mode gains by its idea alone.

The mode is compared with the best of three controls: `solo`, the same mode with its records
shuffled across problems, and the same mode without records. The last two are needed because a mode
can gain without sharing: a mode that replays its own earlier successes ends 20 points above `solo`.
"""

import random
from collections.abc import Callable
from statistics import fmean
from types import ModuleType

from mrl.classroom.letters import mode_of, train
from mrl.modes.solo import Solo
from mrl.run.intervals import estimate

PAIRS = 20  # with five pairs, small gains were sometimes missed; 20 pairs take a few seconds
GAINS = {0.5: 6, 2: 1, 10: 1, 20: 1}  # smallest gain -> points for it
SULKS = 10  # points; a mode that, without records, is so far below `solo` learns nothing alone


def test_runs(submission: ModuleType) -> None:
    """1 point: it runs, and its samples are valid"""
    train(mode_of(submission), seed=0)


def test_gains(submission: ModuleType, rng: random.Random, record_property: Callable) -> None:
    """9 points: its gain with a peer that knows what the receiver does not"""
    mode_class, seeds = mode_of(submission), rng.sample(range(10**6), PAIRS)
    solo = [train(Solo, seed) for seed in seeds]
    own = [train(mode_class, seed) for seed in seeds]
    exchanged = [train(mode_class, seed, "exchanged") for seed in seeds]
    nothing = [train(mode_class, seed, "nothing") for seed in seeds]

    lag = fmean(solo) - fmean(nothing)
    assert lag < SULKS, (
        f"without any records it ends {lag:.0f} points below `solo`. It must also learn from its "
        "own attempts; otherwise its gain from records cannot be measured"
    )

    controls = {
        "solo": solo,
        "itself with exchanged records": exchanged,
        "itself without records": nothing,
    }
    name = max(controls, key=lambda name: fmean(controls[name]))
    gains = [mine - other for mine, other in zip(own, controls[name], strict=True)]
    of_gains = estimate(gains)
    gain, half = of_gains.mean, of_gains.half

    # an interval that contains 0 gives no points, even for a large gain
    points = sum(GAINS[least] for least in GAINS if gain >= least and gain - half > 0)
    words = f"{gain:+.1f} ± {half:.1f} points of reward over {PAIRS} pairs, against {name}"
    record_property("points", points)
    record_property("message", words)
    assert points == sum(GAINS.values()), (
        f"{words}. A gain of at least 0.5 whose interval is above 0 gives six points. Each of the "
        "gains 2, 10 and 20 gives one more point. The checker sets the length of updates, so only "
        "their direction matters: on which problems does the receiver learn nothing by itself?"
    )
