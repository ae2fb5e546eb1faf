from mrl.experiment.collapse import WINDOW, CollapseWatch


def feed(values, **others):
    watch, warnings = CollapseWatch(), []
    for value in values:
        line = {"reward": 0.5, "entropy": 0.5, "completions/mean_length": 20.0, **others}
        line |= value if isinstance(value, dict) else {"reward": value}
        warnings += watch.notice({"a": line})
    return warnings


def test_a_solve_rate_that_falls_off_a_cliff_is_said_once():
    (warning,) = feed([0.8] * WINDOW + [0.1] * 3 * WINDOW)
    assert warning.startswith("Warning: a's solve rate has fallen from 0.80 to 0.")
    assert "learning rate" in warning


def test_noise_slow_decline_and_a_bad_start_are_no_cliff():
    assert feed([0.8, 0.6] * 20) == []
    assert feed([0.1] * 30) == []
    assert feed([0.0] * 20 + [0.5] * 20) == []
    assert feed([0.8] * 3 + [0.1] * 5) == []  # too few steps to say


def test_entropy_may_fall_where_the_answers_are_right():
    fall = [{"entropy": 0.5}] * WINDOW + [{"entropy": 0.01}] * WINDOW
    assert len(feed(fall)) == 1
    assert feed([{**line, "reward": 0.95} for line in fall]) == []
    rewards = [0.95] * (2 * WINDOW - 1) + [0.85]  # one step is no reason: the mean counts
    pairs = zip(fall, rewards, strict=True)
    assert feed([{**line, "reward": reward} for line, reward in pairs]) == []
    (warning,) = feed([{}] * WINDOW + [{"completions/mean_length": 2.0}] * WINDOW)
    assert "completion length" in warning
