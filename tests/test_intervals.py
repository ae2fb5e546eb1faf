import math

import pytest

from mrl.run.intervals import T_95, estimate, half_width, wilson


def test_the_interval_over_seeds_by_hand():
    one = estimate([1.0, 2.0, 3.0])  # std 1, t = 4.303 with two degrees of freedom
    assert one.mean == 2.0
    assert one.half == pytest.approx(4.303 / math.sqrt(3))
    assert str(estimate([10.0, 10.0, 10.0])) == "10.0 ± 0.0"
    assert (T_95[0], T_95[2], T_95[8], T_95[28]) == (4.303, 2.776, 2.228, 2.042)


def test_a_mean_that_rounds_to_zero_has_no_sign():
    assert str(estimate([-0.04, -0.02, -0.03])).startswith("0.0 ±")


@pytest.mark.parametrize("values", [[10.0], [10.0, 10.0]])
def test_under_three_seeds_there_is_no_interval(values):
    few = estimate(values)
    assert math.isnan(few.half)
    assert str(few) == ", ".join(["10.0"] * len(values))


def test_wilsons_interval_by_hand():
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)
    assert wilson(3, 10) == (pytest.approx(0.1078, abs=1e-4), pytest.approx(0.6032, abs=1e-4))


def test_the_interval_over_problems_by_hand():
    # Wilson's interval of 8 of 8: 8 / (8 + 1.96^2) to 1
    all_of_8 = {"pass@1": 1.0, "problems": 8}
    alone = {"skills": {"x": all_of_8}}
    assert half_width(alone) == pytest.approx(1 - 8 / (8 + 1.96**2))
    none_of_8 = {"pass@1": 0.0, "problems": 8}
    assert half_width({"skills": {"x": none_of_8}}) == half_width(alone)
    # at one half it is symmetric; 400 problems: nearly 1.96 sqrt(0.25 / 400)
    half_of_400 = {"pass@1": 0.5, "problems": 400}
    want = 1.96 * 0.025 / (1 + 1.96**2 / 400) ** 0.5
    assert half_width({"skills": {"x": half_of_400}}) == pytest.approx(want)
    both = {"skills": {"x": all_of_8, "y": none_of_8}}
    assert half_width(both) == pytest.approx(half_width(alone) / 2**0.5)
    uneven = {"skills": {"x": all_of_8, "y": half_of_400}}
    assert half_width(both, "x") == half_width(uneven, "x") == half_width(alone)
