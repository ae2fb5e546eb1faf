import io

import pytest
from rich.console import Console
from rich.text import Text

from mrl.config import PolicyConfig, RunConfig
from mrl.runtime import view as views
from mrl.runtime.metrics import meaning
from mrl.runtime.summary import evaluation_table
from mrl.runtime.view import View, make_view, printable

NAMES = ["qwen-tiny", "llama-tiny"]
LINE = {
    "reward": 0.25, "reward_std": 0.1, "groups/all_fail": 0.5, "groups/mixed": 0.25,
    "groups/all_pass": 0.25, "rescue_set": 3, "rescues": 2, "completions/clipped_ratio": 0.0,
    "grad_norm": 0.7, "exchange/published_records": 9, "exchange/received_records": 12,
    "exchange/received_bytes": 3456, "outcome/not_needed": 0.125, "time/rollout_s": 0.2,
    "time/step_s": 0.6, "skill/eats [/b]": 0.5,
}  # fmt: skip
RESCUE = {
    "prompt": "Ann eats 3?\x1b[31m", "receiver": "llama-tiny", "receiver_text": "5+3\x07",
    "source": "qwen-tiny", "source_text": "5-3",
}  # fmt: skip


def lines(**changes):
    return {name: {**LINE, **changes} for name in NAMES}


def quiet():
    return Console(file=io.StringIO(), width=100)


def shown(view):
    view.console.print(view.render())
    return view.console.file.getvalue()


def test_control_characters_never_reach_the_terminal():
    assert printable("a\x1b[31mb\x00\u202e\n") == "a\\x1b[31mb\\x00\\u202e\n"
    assert printable("x" * 400, 300).endswith("x [...]")
    assert printable("a\nb", keep="") == "a\\nb"


HOSTILE = "\x1b]0;owned\x07[/b]"
HARMLESS = "\\x1b]0;owned\\x07[/b]"


def test_no_source_skill_or_part_reaches_the_terminal_as_it_is():
    view = View(quiet(), NAMES, 10, HOSTILE)
    figures = {"skill/" + HOSTILE: 0.5, "exchange/refused/" + HOSTILE: 1}
    view.step(1, lines(**figures), [{**RESCUE, "source": HOSTILE}])
    view.say(f"it was rescued 2 times (2 from {HOSTILE})")
    scores = {"policy": HOSTILE, "part": HOSTILE, "problems": 1, "samples": 1, "pass@1": 1.0}
    scores["skills"] = {HOSTILE: {"pass@1": 1.0}}
    view.say(evaluation_table({"before": [scores]}))
    text = shown(view)
    assert "\x1b" not in text and "\x07" not in text
    assert text.count(HARMLESS) >= 5


def test_the_live_view_shows_both_policies_the_exchange_and_the_newest_rescue():
    view = View(quiet(), NAMES, 10, "mini-mrl: sgt")
    view.step(1, lines(), [])
    view.step(2, lines(reward=0.75), [{**RESCUE, "source_text": "older"}, RESCUE])
    text = shown(view)
    for part in ("step 2/10", "left", "llama-tiny", "0.50", "3,456", "eats", "newest rescue",
                 "outcome/not_needed", "llama-tiny: 5+3\\x07", "qwen-tiny: 5-3",
                 "mini-mrl: sgt"):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text
    assert "clipped_ratio" not in text  # a row of zeros

    view.step(3, lines(**{"completions/clipped_ratio": 0.01}), [])
    assert "clipped_ratio" not in shown(view)  # a mean of 0.003 would read 0.00
    assert "grad_norm" in shown(view)
    assert "eats [/b]" in text  # no markup
    assert max(map(len, text.splitlines())) <= 100


def test_what_is_refused_is_named_and_a_step_without_counts_as_zero():
    view = View(quiet(), NAMES, 10, "t")
    view.step(1, lines(), [])
    view.step(2, lines(**{"exchange/refused/not_utf8": 3, "thl/refused/too_odd": 1}), [])
    rows = dict(view.rows(views.SHOWN))
    assert rows["exchange/refused/not_utf8"] == ["1.50", "1.50"]
    assert rows["thl/refused/too_odd"] == ["0.50", "0.50"]


def test_a_skill_that_only_some_steps_have_is_averaged_over_those():
    view = View(quiet(), NAMES, 10, "t")
    view.step(1, {"qwen-tiny": {**LINE, "skill/sold": 0.5}, "llama-tiny": LINE}, [])
    view.step(2, lines(), [])
    assert ("skill/sold", ["0.50", "0.00"]) in view.rows(views.SKILLS)


def test_every_metric_that_is_shown_is_one_that_the_program_explains():
    for pattern in (*views.SHOWN, *views.SKILLS):
        assert meaning(pattern.replace("*", "any"))


def test_plain_lines_come_every_few_steps_and_at_the_end_from_the_same_rows():
    view = View(Console(file=io.StringIO(), width=200), NAMES, 45)
    for step in range(1, 46):
        view.step(step, lines(rescues=0), [])
    text = view.console.file.getvalue().splitlines()
    assert len(text) == 24  # the first step, every second one, and the last
    assert text[-1].startswith("step 45/45, 0:00:00 left; qwen-tiny: reward 0.25, groups/all_f")
    assert "rescue_set 3.00" in text[-1]
    assert "rescues" not in text[-1]  # a mode that grafts does not imitate


@pytest.mark.parametrize("title", ["", "live"])
def test_a_long_scoring_says_how_far_it_is(monkeypatch, title):
    now = [100.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    view = View(quiet(), NAMES, 10, title)
    texts = []
    for done in (0, 64, 128, 192):
        view.progress("qwen on heldout", done, 256)
        texts.append(shown(view) if title else view.console.file.getvalue())
        now[0] += 20
    if title:  # at once
        assert "Scoring qwen on heldout: 0 of 256 problems\n" in texts[0]
        assert "64 of 256 problems, 0:01:00 left" in texts[1]
    else:  # a line after 30 seconds
        assert texts[1] == ""
        assert texts[3] == "Scoring qwen on heldout: 128 of 256 problems, 0:00:40 left\n"
    view.step(1, lines(), [])
    assert view.scoring == ""


def test_only_the_first_worker_of_a_machine_speaks_and_only_a_terminal_is_drawn_in(monkeypatch):
    config = RunConfig([PolicyConfig(name, name) for name in NAMES])
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert make_view(terminal, config, plain=False).live
    assert not make_view(terminal, config, plain=True).live
    assert not make_view(quiet(), config, plain=False).live
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert make_view(terminal, config, plain=False).console.quiet


def test_the_time_left_is_that_of_the_remaining_steps_at_the_pace_of_the_last_ones():
    view = View(quiet(), NAMES, 10)
    view.step(1, lines(**{"time/step_s": 5.0}), [])
    view.step(2, lines(**{"time/step_s": 3.0}), [])
    assert str(view.time_left()) == "0:00:32"
    view.scoring_s = 60.0  # as it took before training
    assert str(view.time_left()) == "0:01:32"


def test_a_live_view_leaves_nothing_behind_where_control_c_was_echoed():
    """The terminal writes ^C behind the view; that must not begin a line of its own."""
    view = View(Console(file=io.StringIO(), width=60, force_terminal=True), NAMES, 10, "live")
    for step in (1, 2):
        view.step(step, lines(), [])
        *_, last = Text.from_ansi(shown(view)).plain.splitlines()
        assert len(last.rstrip()) < 58
