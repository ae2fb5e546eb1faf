"""Means with confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Z_95 = 1.96  # two-sided 95% quantile of the normal distribution
# Two-sided 95% quantiles of Student's t for 2 to 30 degrees of freedom. For more, we use Z_95.
T_95 = (
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052,
    2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """One value per seed, their mean, and the half width of its 95% interval.

    With fewer than three seeds `half` is NaN, because two values may agree by chance.
    """

    values: Sequence[float]
    mean: float
    half: float

    def __str__(self) -> str:
        if math.isnan(self.half):
            return ", ".join(f"{value:.1f}" for value in self.values)
        return f"{self.mean:z.1f} ± {self.half:.1f}"  # z: never "-0.0"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over seeds with a Student-t interval."""
    half = math.nan
    if len(values) >= 3:
        quantile = T_95[len(values) - 3] if len(values) - 3 < len(T_95) else Z_95
        half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(values, fmean(values), half)


def wilson(count: float, total: float, z: float = Z_95) -> tuple[float, float]:
    """The confidence interval of a share that was observed as `count` of `total` (Wilson 1927).

    z: the quantile of the normal distribution (default: for 95%).
    """
    center = (count + z**2 / 2) / (total + z**2)
    half = z / (total + z**2) * math.sqrt(count * (total - count) / total + z**2 / 4)
    return max(0.0, center - half), min(1.0, center + half)


def half_width(scores: dict, skill: str = "", z: float = Z_95) -> float:
    """Half the width of the confidence interval of an evaluation entry's pass@1, as a share.

    pass@1 is uncertain because the problems are only a sample. For a single skill, the result is
    the distance to the farther end of Wilson's interval: for example, eight solved problems of
    eight show only that the share is at least 68%. For the mean over skills, it is
    sqrt(sum of the skills' squares) / number of skills. We assume one completion per problem; with
    several, the true interval is narrower.
    skill: the name of a skill, or "" for the mean over all skills. z: as for `wilson`.
    """
    widths = []
    for name in [skill] if skill else scores["skills"]:
        of_skill = scores["skills"][name]
        share, problems = of_skill["pass@1"], of_skill["problems"]
        low, high = wilson(share * problems, problems, z)
        widths.append(max(high - share, share - low))
    return math.hypot(*widths) / len(widths)
