"""Shows the progress of a run: growing bars in a terminal, plain lines elsewhere.

Metrics have the same names as in `metrics.jsonl`; run/metrics.py describes them.
"""

import json
import os
import stat
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from itertools import cycle
from textwrap import wrap

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mrl.config import RunConfig
from mrl.run.blind_spots import blind_spots, rates_of

RECENT_STEPS = 10
OTHER_ROWS = 15  # rows of the live view that are not bars
LEAST_BAR = 4  # characters; a shorter bar says nothing
# One per policy, in the run's order: blue, orange, purple, olive. Each has a contrast of at least
# 3.5 on a white and on a black background.
COLORS = ("color(32)", "color(166)", "color(133)", "color(100)")
FIGURES = ("reward", "groups/all_fail", "rescues", "completions/clipped_ratio")
MEAN = f"mean of the last {RECENT_STEPS} steps"  # every number shown is such a mean

# In a notebook, `!` gives the program a terminal whose output cannot be erased.
in_notebook = "inline" in os.environ.get("MPLBACKEND", "")  # IPython kernels set this variable
console = Console(force_terminal=False if in_notebook else None)  # the user's terminal
FRAMES = "MRL_FRAMES"  # set by the notebooks, whose first cell draws the lines of `Frames`


def printable(text: object, limit: int | None = None, keep: str = "\n") -> str:
    """Make any text safe for a terminal: control characters become visible escapes.

    limit: largest number of characters. keep: control characters that are not escaped.
    """
    text = str(text)
    cut = text[:limit]
    shown = "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in cut)
    return shown + (" [...]" if len(text) > len(cut) else "")


def drop_closed_terminal() -> None:
    """If the terminal was closed, print to nowhere, because printing to it would fail."""
    with open(os.devnull, "r+") as nowhere:
        for stream in (0, 1, 2):
            with suppress(OSError):  # the stream itself was closed
                if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                    os.dup2(nowhere.fileno(), stream)


def cell(text: object) -> Text:
    """A table cell for any text, which is made printable and which rich does not read as markup."""
    return Text(printable(text))


def excerpt(text: str, width: int, lines: int) -> Text:
    """The beginning of a text, made printable and wrapped to at most `lines` lines."""
    cut = wrap(
        printable(text), width, max_lines=lines, placeholder=" [...]", break_on_hyphens=False
    )
    return Text("\n".join(cut))


def bar(share: float, began: float | None, size: int, was_blind: bool = False) -> str:
    """A bar of `size` characters, with a mark at the share before training.

    began: the share before training; None draws no mark. was_blind: whether the skill was a blind
    spot, so that the bar is shaded.
    """
    full, empty = "▓░" if was_blind else "█·"

    filled = round(share * size)
    cells = full * filled + empty * (size - filled)
    if began is not None:
        place = min(int(began * size), size - 1)
        cells = cells[:place] + "│" + cells[place + 1 :]
    return cells


def make_view(console: Console, config: RunConfig, plain: bool) -> "View":
    """A live view in a terminal, plain lines elsewhere. Only the first process shows anything."""
    from mrl.run.launch import is_worker  # here, because it imports torch

    if is_worker() and int(os.environ["LOCAL_RANK"]) > 0:
        console, plain = Console(quiet=True), True

    names = [policy.name for policy in config.policies]
    drawn = FRAMES in os.environ or (console.is_terminal and not console.is_dumb_terminal)
    live = drawn and not plain
    title = f"mini-mrl: {config.mode}, seed {config.seed}" if live else ""
    return View(console, names, config.steps, title)


class Frames(Live):
    """A live view for a notebook, which has no terminal: each frame is one line of JSON.

    The line begins with a form feed, which tells the notebook that it is a frame.
    """

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Print a frame as a line; an empty frame is not printed, so that the last one stays."""
        if renderable:
            drawing = Console(width=self.console.width, color_system="256")
            with drawing.capture() as drawn:
                drawing.print(renderable)
            print(f"\f{json.dumps(drawn.get())}", file=self.console.file, flush=True)


class View(AbstractContextManager):
    """The view of a run. With a title it is redrawn in place; without a title it prints lines."""

    def __init__(self, console: Console, policies: list[str], steps: int, title: str = "") -> None:
        self.console = console
        self.policies = policies
        self.colors = dict(zip(policies, cycle(COLORS), strict=False))
        self.steps = steps
        self.title = title
        self.live = self._new_live() if title else None
        self.said: list[RenderableType] = []  # what was printed above the live view
        self.drawn_in = console.size  # the size of the terminal when the view was drawn

        self.history: deque[dict[str, dict]] = deque(maxlen=RECENT_STEPS)  # policy -> metrics
        self.began: dict[tuple[str, str], float] = {}  # (policy, skill) -> score before training
        self.blind_spots: set[tuple[str, str]] = set()
        self.now = 0  # the current step
        self.first_step: int | None = None  # of this process
        self.rescue: dict | None = None  # the newest rescue
        self.scoring = ""  # progress of the scoring, as a sentence

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_live(self) -> Live:
        # each step redraws the view, so it needs no thread
        kind = Frames if FRAMES in os.environ else Live
        return kind(
            console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )

    def close(self) -> None:
        """Erase and end the live view; whatever is shown later is printed as lines."""
        if self.live and self.live.is_started:
            # empty the view first: when rich stops, it draws all lines but erases one screen only
            self.live.update("", refresh=True)
            self.live.stop()
        self.live = None

    def say(self, what: RenderableType) -> None:
        """Print a sentence or a table, above the live view if there is one.

        Control characters of a sentence are escaped; the cells of a table must be made by `cell`.
        """
        # in a file, lines are not wrapped
        whole = isinstance(what, str) and not self.console.is_terminal
        shown = printable(what) if isinstance(what, str) else what
        if self.live:
            self.said.append(what)
        self.console.print(shown, markup=False, highlight=False, soft_wrap=whole)

    # ------------------------------------------------------------------------------ what happens

    def scored(self, scores: list[dict]) -> None:
        """Store the scores from before training, which the marks on the bars show."""
        before = rates_of(scores)
        for policy, rates in before.items():
            for skill, rate in rates.items():
                self.began[policy, skill] = rate
        self.blind_spots = set(blind_spots(before))

    def recall(self, logged: Sequence[dict]) -> None:
        """Store the metrics of earlier steps, so that the means of a resumed run continue.

        logged: lines of `metrics.jsonl`, one per policy and step.
        """
        steps: dict[int, dict[str, dict]] = {}
        for line in logged:
            steps.setdefault(line["step"], {})[line["policy"]] = line
        self.history.extend(steps.values())
        self.now = max(steps, default=0)

    def step(self, step: int, lines: dict[str, dict], rescues: list[dict]) -> None:
        """Store a step's metrics of every policy and its rescues, and update the view."""
        is_first = self.first_step is None
        self.first_step = self.first_step or step
        self.history.append(lines)
        self.now = step
        self.scoring = ""
        if rescues:
            self.rescue = rescues[-1]

        if self.live:
            self._draw(self.live)
        elif is_first or step % max(1, self.steps // 20) == 0 or step == self.steps:
            self.say(self.line())

    def progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of scoring held-out problems; in plain lines, only that it begins."""
        self.scoring = f"Scoring {what}: {done} of {total} problems"
        if self.live:
            self._draw(self.live)
        elif not done:
            self.say(f"Scoring {what}: {total} problems")

    def _draw(self, live: Live) -> None:
        if not live.is_started:  # it starts this late because downloads show their own bars
            live.start()
        elif self.console.size != self.drawn_in:
            # The terminal may have wrapped the lines of the old view, so that rich does not know
            # how many rows to erase. So the screen is cleared and everything is printed again.
            self.close()
            self.console.clear()
            for what in self.said:
                self.say(what)
            live = self.live = self._new_live()
            live.start()
        self.drawn_in = self.console.size
        live.update(self.render(), refresh=True)

    # ------------------------------------------------------------------------------ how it looks

    def line(self) -> str:
        """The plain line about a step."""
        rewards = [f"{name} {self.mean(name, 'reward'):.2f}" for name in self.policies]
        line = f"step {self.now}/{self.steps}, {self.time_left()} left; {MEAN}: reward "
        line += ", ".join(rewards)
        if self.rescue:
            receiver, source = self.rescue["receiver"], self.rescue["source"]
            skill = "" if self.rescue["skill"] == "all" else f" on {self.rescue['skill']}"
            line += f"; newest rescue: {receiver} imitated a solution of {source}{skill}"
        return printable(line, keep="")

    def render(self) -> RenderableType:
        """The whole live view: progress, the newest rescue, a bar for every skill, and metrics.

        It has no frame: a terminal writes `^C` at the end of the last line, which is erased with
        the rest.
        """
        step = f"step {self.now}/{self.steps}"
        left = f"{self.time_left()} left" if self.history else ""
        head = cell("  ".join((self.title, step, left)))
        if not self.is_narrow:
            share = ProgressBar(total=self.steps, completed=self.now, width=20)
            head = Table.grid(padding=(0, 2))
            head.add_row(cell(self.title), step, share, left)

        rows: list[RenderableType] = [head]
        if self.scoring:
            rows.append(cell(self.scoring))
        if not self.history:
            return Group(*rows)

        # as many skills as fit, and the newest rescue if at least one skill fits below it
        skills = self._skills()
        most = min(len(skills), max(1, self.console.height - OTHER_ROWS))
        rescue = self._newest_rescue(self.rescue) if self.rescue else []
        choices = [(rescue, number) for number in range(most, 0, -1)]
        for shown, number in [*choices, *(([], number) for number in range(most, 0, -1))]:
            frame = Group(*rows, *shown, *self._bars(skills, number))
            if len(self.console.render_lines(frame)) < self.console.height:
                break
        return frame

    @property
    def is_narrow(self) -> bool:
        """Whether the terminal has fewer columns than the whole view needs."""
        return self.console.width < 80

    def _skills(self) -> list[str]:
        skills = {skill for _, skill in self.began}
        for lines in self.history:
            for line in lines.values():
                skills |= {key.removeprefix("skill/") for key in line if key.startswith("skill/")}
        return sorted(skills)

    def _newest_rescue(self, rescue: dict) -> list[RenderableType]:
        """The prompt, and below it both completions, in the order of the table below them."""
        width = self.console.width // 2 - 2
        sides = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        texts = []
        # "answer", because a verdict says nothing about the steps before the answer
        verdicts = {"receiver": "incorrect answer", "source": "correct answer"}
        order = {name: place for place, name in enumerate(self.policies)}
        for side in sorted(verdicts, key=lambda side: order.get(rescue[side], len(order))):
            name = rescue[side]
            sides.add_column(
                cell(f"{name}, {verdicts[side]}"), width=width, style=self.colors.get(name)
            )
            texts.append(excerpt(rescue[f"{side}_text"], width, 3))

        sides.add_row(*texts)
        prompt = excerpt(f"newest rescue: {rescue['prompt']}", self.console.width - 1, 2)
        return [prompt, sides]

    def _bars(self, skills: Sequence[str], number: int) -> list[RenderableType]:
        """A bar for every policy and skill, the metrics in `FIGURES`, and what the signs mean.

        number: how many of the skills are shown.
        """
        labels = {metric: metric for metric in FIGURES}
        if self.is_narrow:  # only the last part of a name leaves room for bars
            labels = {metric: metric.rpartition("/")[2] for metric in FIGURES}
        # The column of labels is as wide as the longest label; the other columns share the rest.
        room = self.console.width - max(map(len, [*skills[:number], *labels.values()])) - 2
        # next to each bar, the percentage and spaces take 9 columns
        size = min(40, room // len(self.policies) - 9)
        has_bars = size >= LEAST_BAR
        table = Table("", box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name, color in self.colors.items():
            width = size + 6 if has_bars else None
            table.add_column(cell(name), justify="right", style=color, min_width=width)

        for skill in skills[:number]:
            bars = []
            for name in self.policies:
                rate, began = self.mean(name, f"skill/{skill}"), self.began.get((name, skill))
                percent = "-" if rate is None else f"{100 * rate:.0f}%"
                was_blind = (name, skill) in self.blind_spots
                drawn = f"{bar(rate or 0.0, began, size, was_blind)} " if has_bars else ""
                bars.append(f"{drawn}{percent:>5}")
            table.add_row(cell(skill), *bars)

        for metric, label in labels.items():
            means = [self.mean(name, metric) or 0.0 for name in self.policies]
            table.add_row(label, *(f"{mean:.2f}" for mean in means))

        left_out = f"{len(skills) - number} more skills" if number < len(skills) else ""
        left_out = " and ".join(filter(None, [left_out, "" if has_bars else "the bars"]))
        legend = MEAN + ("; │ score before training; ░ was a blind spot" if has_bars else "")
        notes = [f"not shown: {left_out}"] if left_out else []
        return [table, *(Text(note, style="dim") for note in [*notes, legend])]

    # ------------------------------------------------------------------------------ the numbers

    def mean(self, policy: str, metric: str) -> float | None:
        """The mean of a metric over the recent steps that have it, or None without such a step."""
        values = [lines[policy][metric] for lines in self.history if metric in lines[policy]]
        return sum(values) / len(values) if values else None

    def time_left(self) -> timedelta:
        """The time that the remaining steps will take at the recent pace."""
        pace = self.mean(self.policies[0], "time/step_s") or 0.0
        return timedelta(seconds=int(pace * (self.steps - self.now)))
