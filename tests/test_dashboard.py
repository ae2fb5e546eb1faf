import io

from mrl.trainer import StepReport
from rich.console import Console

from mrl.experiment.summary import evaluation_table
from mrl.experiment.view import LiveView, PlainLines, minutes, printable
from mrl.modes import Rescue

NAMES = ["qwen-tiny", "llama-tiny"]
LINE = {
    "reward": 0.25, "reward_std": 0.1, "groups/all_fail": 0.5, "groups/mixed": 0.25,
    "groups/all_pass": 0.25, "rescue_set": 3, "rescues": 2, "completions/clipped_ratio": 0.0,
    "grad_norm": 0.7, "exchange/published_records": 9, "exchange/received_records": 12,
    "exchange/received_bytes": 3456, "time/rollout_s": 0.2, "time/verify_s": 0.01,
    "time/learn_s": 0.3, "time/step_s": 0.6, "skill/eats": 0.5,
}  # fmt: skip


def report(step, **changes):
    rescue = Rescue("p", "Ann eats 3?\x1b[31m", "eats", "llama-tiny", "5+3\x07", "qwen-tiny", "5-3")
    metrics = {name: {**LINE, "step": step, "policy": name, **changes} for name in NAMES}
    return StepReport(step, metrics, {}, [rescue])


def shown(renderable, width=110):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def test_control_characters_never_reach_the_terminal():
    assert printable("a\x1b[31mb\x00\u202e\n") == "a\\x1b[31mb\\x00\\u202e\n"
    assert printable("x" * 400).endswith("x [...]")


def test_minutes():
    assert [minutes(seconds) for seconds in (0, 65, 600.9)] == ["0:00", "1:05", "10:00"]


def test_the_live_view_shows_both_policies_the_exchange_and_the_newest_rescue():
    view = LiveView(Console(file=io.StringIO()), NAMES, 10, "mini-mrl: sgt")
    view.step(report(1))
    view.step(report(2, reward=0.75))
    text = shown(view.render())
    for part in ("step 2/10", "left", "llama-tiny", "50%", "3,456", "eats", "newest rescue",
                 "llama-tiny said 5+3\\x07", "qwen-tiny said 5-3", "mini-mrl: sgt"):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text


def test_refusals_are_named():
    view = LiveView(Console(file=io.StringIO()), NAMES, 10, "t")
    view.step(report(1, **{"exchange/refused/not_utf8": 2, "thl/refused/too_odd": 1}))
    assert "2 not_utf8, 1 too_odd" in shown(view.render())


def test_plain_lines_come_every_few_steps_and_at_the_end():
    console = Console(file=io.StringIO(), width=200)
    view = PlainLines(console, NAMES, 45)
    for step in range(1, 46):
        view.step(report(step))
    text = console.file.getvalue().splitlines()
    assert len(text) == 23  # every second step, and the last
    assert text[-1].startswith("step 45/45, 0:00 left: qwen-tiny solves 25%")


def test_the_evaluation_table_shows_before_and_after():
    def scores(value):
        both = {"pass@1": value, "pass@4": 1.0}
        return [
            {"policy": name, "part": "heldout", "samples": 4, **both, "skills": {"eats": both}}
            for name in NAMES
        ]

    text = shown(evaluation_table({"before": scores(0.05), "after": scores(0.86)}))
    assert "5 -> 86" in text
    assert "before -> after" in text
    assert "86" in shown(evaluation_table({"before": scores(0.86)}))


def test_a_mode_that_grafts_says_how_many_groups_and_not_zero_rescues():
    console = Console(file=io.StringIO(), width=200)
    view = PlainLines(console, NAMES, 1)
    grafted = report(1)
    for line in grafted.metrics.values():
        line |= {"rescues": 0, "rescue_set": 3}
    view.step(grafted)
    assert "3 failed groups that a peer solved)" in console.file.getvalue()
