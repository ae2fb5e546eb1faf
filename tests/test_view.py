import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from mrl.config import PolicyConfig, RunConfig
from mrl.run.launch import MEETING
from mrl.run.summary import evaluation_table
from mrl.run.view import FRAMES, View, bar, make_view, printable

NAMES = ["qwen-tiny", "llama-tiny"]
LINE = {
    "reward": 0.25, "groups/all_fail": 0.5, "rescues": 2, "completions/clipped_ratio": 0.0,
    "grad_norm": 0.7, "time/step_s": 0.6, "skill/eats [/b]": 0.5,
}  # fmt: skip
RESCUE = {
    "prompt": "Ann eats 3?\x1b[31m", "receiver": "llama-tiny", "receiver_text": "5+3\x07",
    "source": "qwen-tiny", "source_text": "5-3",
    "skill": "eats",
}  # fmt: skip
SKILLS = ("bags", "days", "eats", "finds", "given", "loses", "packs", "shares", "sold")


def lines(**changes):
    return {name: {**LINE, **changes} for name in NAMES}


def entries(split="validation", **rates):
    """Scores from before training; rates: of a skill, for each policy."""
    scores = []
    for number, name in enumerate(NAMES):
        skills = {skill: {"pass@1": of_each[number]} for skill, of_each in rates.items()}
        scores.append({"policy": name, "split": split, "skills": skills})
    return scores


def quiet(width=80):
    return Console(file=io.StringIO(), width=width, height=24)


def shown(view):
    view.console.print(view.render())
    return view.console.file.getvalue()


def fed(view):
    """A view after 24 steps: each policy has two blind spots, and one of each fills up."""
    starts = {
        skill: (0.9, 0.1) if number % 2 else (0.1, 0.9) for number, skill in enumerate(SKILLS)
    }
    starts |= {"sold": (0.0, 0.95), "days": (0.01, 0.97), "eats": (0.94, 0.0), "bags": (0.92, 0.0)}
    view.scored(entries(**starts))
    prompt = "Maria had 57 figs and 12 plums in her basket. Now Maria eats 51 of the figs that she "
    prompt += "had, and Finn finds 3 more plums behind the house. How many figs are left to Maria?"
    rescue = {
        "prompt": prompt, "receiver": "llama-tiny",
        "receiver_text": "57+51: 7+1=8, 5+5=10. \\boxed{108}", "source": "qwen-tiny",
        "skill": "eats",
        "source_text": "57-51 is 7-1=6 and 5-5=0, so that " + "nothing but six figs are left " * 9,
    }  # fmt: skip
    for step in range(1, 25):
        of_step = lines(reward=step / 48, rescues=step / 8)
        for number, name in enumerate(NAMES):
            del of_step[name]["skill/eats [/b]"]
            for skill, rates in starts.items():
                grows = rates[number] < 0.5 and skill not in ("eats", "sold")
                of_step[name][f"skill/{skill}"] = rates[number] + (step / 30 if grows else 0)
        view.step(step, of_step, [rescue])
    view.scoring = "Scoring llama-tiny on validation_wording: 64 of 360 problems"


def test_control_characters_never_reach_the_terminal():
    assert printable("a\x1b[31mb\x00\u202e\n") == "a\\x1b[31mb\\x00\\u202e\n"
    assert printable("x" * 400, 300).endswith("x [...]")
    assert printable("a\nb", keep="") == "a\\nb"


HOSTILE = "\x1b]0;owned\x07[/b]"
HARMLESS = "\\x1b]0;owned\\x07[/b]"


def test_no_source_skill_or_part_reaches_the_terminal_as_it_is():
    view = View(quiet(100), NAMES, 10, HOSTILE)
    view.scored(entries(**{HOSTILE: (0.0, 0.9)}))
    view.step(1, lines(**{"skill/" + HOSTILE: 0.5}), [{**RESCUE, "source": HOSTILE}])
    view.say(f"it was rescued 2 times (2 from {HOSTILE})")
    view.say(view.line())
    skills = {HOSTILE: {"pass@1": 1.0, "problems": 1}}
    scores = {"policy": HOSTILE, "split": HOSTILE, "problems": 1, "samples": 1, "pass@1": 1.0}
    view.say(evaluation_table({"before": [scores | {"skills": skills}]}))
    text = shown(view)
    assert "\x1b" not in text and "\x07" not in text
    assert text.count(HARMLESS) >= 6


def test_at_80_by_24_the_live_view_shows_every_skill_and_the_newest_rescue():
    terminal = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = View(terminal, NAMES, 240, "mini-mrl: sgt, seed 0")
    view.live = None  # one picture is enough
    view.say = lambda what: None
    fed(view)
    now = [line.rstrip() for line in Text.from_ansi(shown(view)).plain.splitlines()]
    assert len(now) < 24 and max(map(len, now)) <= 80
    text = "\n".join(now)
    assert all(f"{skill} " in text for skill in SKILLS)
    assert text.count("│") == 2 * 9 + 1  # a mark in each bar, and in the legend
    outlined = [line.split()[0] for line in now if "░" in line or "▓" in line][:-1]
    assert outlined == ["bags", "days", "eats", "sold"]
    words = {word for line in text.replace("[...]", "").splitlines() for word in line.split()}
    assert not {word for word in words if word.endswith("…")}
    assert {"figs", "nothing", "newest", "rescue:"} <= words


def test_a_bar_is_as_long_as_its_share_has_a_mark_where_it_began_and_a_blind_spot_is_outlined():
    assert bar(0.5, None, 4) == "██··"
    assert bar(1.0, 0.5, 4) == "██│█"
    assert bar(0.0, 1.0, 4) == "···│"
    assert bar(0.5, 0.0, 4, was_blind=True) == "│▓░░"


def test_with_three_policies_or_a_narrow_terminal_nothing_is_wider_than_it():
    for width, names in ((80, [*NAMES, "smol-tiny"]), (60, NAMES), (40, NAMES), (200, NAMES)):
        view = View(quiet(width), names, 10, "mini-mrl: sgt, seed 0")
        view.step(1, {name: LINE for name in names}, [RESCUE])
        text = shown(view)
        assert max(map(len, text.splitlines())) <= width
        for split in ("all_fail", "clipped_ratio", "0.25", "50%"):
            assert split in text, (width, split)
        assert ("completions/clipped_ratio" in text) == (width >= 80)  # room for bars is better


def test_a_tall_terminal_shows_more_skills_and_a_low_one_those_that_fit():
    rates = {f"skill{number:02}": (0.1, 0.2) for number in range(40)}
    for height, bars in ((24, 9), (50, 35), (10, 1)):
        view = View(Console(file=io.StringIO(), width=80, height=height), NAMES, 10, "t")
        view.scored(entries(**rates))
        view.step(1, {name: {"reward": 0.5} for name in NAMES}, [])
        text = shown(view)
        assert sum(line.startswith("skill") for line in text.splitlines()) == bars
        assert f"{40 - bars} more skills" in text


@pytest.mark.parametrize("width", [100, 80, 60, 40])
@pytest.mark.parametrize("height", [40, 24, 16])
def test_the_view_says_what_it_left_out(width, height):
    view = View(Console(file=io.StringIO(), width=width, height=height), NAMES, 240, "mini-mrl")
    view.say = lambda what: None
    fed(view)
    text = shown(view)
    assert len(text.splitlines()) < height and max(map(len, text.splitlines())) <= width
    hidden = [skill for skill in SKILLS if not any(
        line.startswith(f"{skill} ") for line in text.splitlines())]  # fmt: skip
    assert (f"{len(hidden)} more skills" in text) == bool(hidden)
    assert ("the bars" in text) == ("░" not in text)


def test_the_means_of_a_resumed_run_continue():
    whole, resumed = (View(quiet(), NAMES, 40) for _ in range(2))
    log = []
    for step in range(1, 15):
        of_step = {name: LINE | {"reward": step / 20} for name in NAMES}
        whole.step(step, of_step, [])
        log += [{"step": step, "policy": name, **line} for name, line in of_step.items()]
    resumed.recall(log[:-2])
    assert resumed.now == 13
    resumed.step(14, of_step, [])
    assert resumed.mean("qwen-tiny", "reward") == whole.mean("qwen-tiny", "reward")
    assert resumed.line().split("; newest")[0] == whole.line()
    assert "step 14/40" in resumed.console.file.getvalue()  # the first line comes at once


def test_only_the_first_part_tells_where_the_bars_began():
    view = View(quiet(), NAMES, 10, "t")
    view.scored([*entries(eats=(0.5, 0.0)), *entries("validation_wording", eats=(0.1, 0.1))])
    assert view.began == {("qwen-tiny", "eats"): 0.5, ("llama-tiny", "eats"): 0.0}


def test_a_skill_that_only_some_steps_have_is_averaged_over_those():
    view = View(quiet(), NAMES, 10, "t")
    view.step(1, {"qwen-tiny": {**LINE, "skill/sold": 0.5}, "llama-tiny": LINE}, [])
    view.step(2, lines(), [])
    assert view.mean("qwen-tiny", "skill/sold") == 0.5
    assert view.mean("llama-tiny", "skill/sold") is None
    (row,) = [line for line in shown(view).splitlines() if line.startswith("sold")]
    assert row.count("%") == 1
    assert row.rstrip().endswith("     -")  # its bar keeps its place


def test_plain_lines_come_every_few_steps_and_name_each_reward():
    view = View(quiet(), NAMES, 240)
    for step in range(1, 241):
        view.step(step, lines(), [])
    text = view.console.file.getvalue().splitlines()
    assert len(text) == 21  # the first step, every twelfth one, the last
    assert text[-1] == (
        "step 240/240, 0:00:00 left; mean of the last 10 steps: reward qwen-tiny 0.25, "
        "llama-tiny 0.25"
    )


def test_a_notebook_gets_each_frame_as_a_line_and_keeps_the_last(monkeypatch):
    monkeypatch.setenv(FRAMES, "1")
    config = RunConfig([PolicyConfig(name, name) for name in NAMES], steps=2)
    with make_view(quiet(), config, plain=False) as view:
        view.step(1, lines(), [])
        view.step(2, lines(), [])
    view.say("The end.")
    *frames, last, _ = view.console.file.getvalue().split("\n")
    assert last == "The end."
    assert all(frame.startswith("\f") for frame in frames)
    first, second = (json.loads(frame[1:]) for frame in frames)
    assert "step 1/2" in first and "step 2/2" in second


@pytest.mark.parametrize("title", ["", "live"])
def test_a_scoring_says_that_it_begins_and_in_the_live_view_how_far_it_is(title):
    view = View(quiet(), NAMES, 10, title)
    texts = []
    for done in (0, 64, 128, 192):
        view.progress("qwen on heldout", done, 256)
        texts.append(shown(view) if title else view.console.file.getvalue())
    if title:
        assert "Scoring qwen on heldout: 0 of 256 problems\n" in texts[0]
        assert "64 of 256 problems\n" in texts[1]
    else:  # one line
        assert set(texts) == {"Scoring qwen on heldout: 256 problems\n"}
    view.live = None
    view.step(1, lines(), [])
    assert view.scoring == ""


def test_only_the_first_worker_speaks_and_only_a_terminal_is_drawn_in(monkeypatch):
    config = RunConfig([PolicyConfig(name, name) for name in NAMES])
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert make_view(terminal, config, plain=False).live
    assert not make_view(terminal, config, plain=True).live
    assert not make_view(quiet(), config, plain=False).live
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert not make_view(dumb, config, plain=False).live  # Emacs: the cursor cannot move
    monkeypatch.setenv(MEETING, "file:///place")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert make_view(terminal, config, plain=False).console.quiet


@pytest.mark.slow
def test_in_a_notebook_whose_shell_is_a_terminal_nothing_is_drawn():
    code = "import sys; from mrl.run.view import console; sys.exit(not console.is_terminal)"
    for backend, is_terminal in (("", 1), ("module://matplotlib_inline.backend_inline", 0)):
        ours, theirs = os.openpty()
        environment = os.environ | {"MPLBACKEND": backend, "TERM": "xterm-color"}
        program = subprocess.run([sys.executable, "-c", code], stdout=theirs, env=environment)
        os.close(ours), os.close(theirs)
        assert program.returncode == (not is_terminal)


def test_a_sentence_breaks_between_words_in_a_terminal_and_stays_whole_in_a_file():
    sentence = "The learning rate is 0.0001 here."
    for terminal, printed in ((True, "The learning rate is\n0.0001 here.\n"), (False, sentence)):
        console = Console(file=io.StringIO(), width=24, force_terminal=terminal)
        View(console, NAMES, 1).say(sentence)
        assert console.file.getvalue().replace(" \n", "\n").strip() == printed.strip()


def test_the_time_left_is_that_of_the_remaining_steps_at_the_pace_of_the_last_ones():
    view = View(quiet(), NAMES, 10)
    view.step(1, lines(**{"time/step_s": 5.0}), [])
    view.step(2, lines(**{"time/step_s": 3.0}), [])
    assert str(view.time_left()) == "0:00:32"


def test_a_live_view_leaves_nothing_behind_where_control_c_was_echoed():
    """The terminal writes ^C behind the view; that must not begin a line of its own."""
    view = View(Console(file=io.StringIO(), width=80, force_terminal=True), NAMES, 10, "live")
    for step in (1, 2):
        view.step(step, lines(), [])
        *_, last = Text.from_ansi(shown(view)).plain.splitlines()
        assert len(last.rstrip()) < 78


def test_a_view_that_was_closed_goes_on_in_lines():
    """A second Ctrl-C may kill the process, and what is drawn then would stay."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with View(console, NAMES, 10, "live") as view:
        view.step(1, lines(), [])
        view.close()
        drawn = console.file.getvalue()
        view.step(2, lines(), [])
        view.say("Stopping.")
    more = console.file.getvalue().removeprefix(drawn)
    assert more.startswith("step 2/10, ") and more.endswith("Stopping.\n")
    assert "\x1b" not in more
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor is back


TERMINAL = """
import sys, time
sys.path.insert(0, {root!r})
from tests.test_view import *

with View(Console(), NAMES, 240, "mini-mrl: sgt, seed 0") as view:
    view.say("The first line.")
    try:
        fed(view)
        view._draw(view.live)
        time.sleep(60)
    except KeyboardInterrupt:
        view.say("Stopping after this step.")
print("The last line.")
time.sleep(60)
"""


class Tmux:
    """A real terminal that runs a script of the text `TERMINAL`."""

    def __init__(self, tmp_path, width, height, text):
        script = tmp_path / "script.py"
        script.write_text(text.format(root=str(Path(__file__).parents[1])), encoding="utf-8")
        self.tmux = ["tmux", "-u", "-L", f"mrl-{os.getpid()}-{width}-{height}"]
        start = ["new-session", "-d", "-x", str(width), "-y", str(height), sys.executable, script]
        # without the sizes that pytest's workers are given: the terminal says how large it is
        environment = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
        subprocess.run([*self.tmux, *start], check=True, env=environment | {"LC_ALL": "C.UTF-8"})

    def tell(self, *command):
        return subprocess.run([*self.tmux, *command], check=True, capture_output=True, text=True)

    def screen_with(self, *words):
        """The lines of the screen and above it, once they have all these words."""
        return self.screen_when(lambda text: all(word in text for word in words), "-S", "-200")

    def screen_when(self, is_ready, *more):
        """The lines of the screen, once its text is ready. A busy machine may take a minute."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            text = self.tell("capture-pane", "-p", *more).stdout
            if is_ready(text):
                return [line.rstrip() for line in text.rstrip().splitlines()]
            time.sleep(0.1)
        raise AssertionError(text)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
def test_a_resized_terminal_leaves_no_pieces(tmp_path):
    text = TERMINAL.replace(
        "        time.sleep(60)\n    except",
        "        while not time.sleep(0.2):\n            view._draw(view.live)\n    except",
    )
    terminal = Tmux(tmp_path, 120, 40, text)
    parts = ("The first line.", "mini-mrl:", "newest rescue", "all_fail", "mean of the")

    def is_whole(screen):  # a piece that was left behind would show a part twice
        return [screen.count(part) for part in parts] == [1] * len(parts)

    try:
        terminal.screen_with("64 of 360", "was a blind spot")
        for width, height in ((100, 30), (60, 24), (40, 24), (80, 24), (120, 40)):
            terminal.tell("resize-window", "-x", str(width), "-y", str(height))
            time.sleep(2)  # the script has drawn again, unless the machine is busy
            assert len(terminal.screen_when(is_whole)) <= height
    finally:
        terminal.tell("kill-server")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
@pytest.mark.parametrize(
    ("width", "height"),
    [
        (80, 24),
        (80, 16),
        (80, 9),
        (120, 40),
    ],
)
def test_in_a_real_terminal_it_fits_and_leaves_nothing_behind(tmp_path, width, height):
    terminal = Tmux(tmp_path, width, height, TERMINAL)
    try:
        first, *view = terminal.screen_with("64 of 360", "all_fail")
        assert first == "The first line."
        assert len(view) <= height
        terminal.tell("send-keys", "C-c")
        end = ["The first line.", "Stopping after this step.", "The last line."]
        assert terminal.screen_with("The last line.") == end
    finally:
        terminal.tell("kill-server")
