"""What a person sees of a run: a live view in a terminal, plain lines elsewhere.

A figure is called as in `metrics.jsonl`; runtime/metrics.py says what each means.
"""

import fnmatch
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import cycle

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mrl.config import RunConfig
from mrl.runtime.launch import is_worker

RECENT_STEPS = 10  # figures in the views are means over so many steps
console = Console()  # the person's terminal
SHOWN_CHARS = 300  # of a text in the newest rescue
PATIENCE_S = 30  # between two plain lines about how far the scoring is
COLORS = ("cyan", "dark_orange", "magenta", "green")  # one for each policy, in the order of the run
# the metrics that are shown unless they read 0.00; the first ones are those of a plain line
PLAIN = ("reward", "groups/*", "rescue_set", "rescues", "completions/clipped_ratio")
SHOWN = (
    *PLAIN, "grad_norm", "outcome/*", "exchange/received_bytes", "exchange/refused/*",
    "thl/refused/*", "exchange/not_believed", "time/rollout_s", "time/learn_s",
)  # fmt: skip
SKILLS = ("skill/*",)


def printable(text: object, limit: int | None = None, keep: str = "\n") -> str:
    """Any text, safe for a terminal: control characters become visible escapes.

    keep: control characters that stay as they are.
    """
    text = str(text)
    cut = text[:limit]
    shown = "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in cut)
    return shown + (" [...]" if len(text) > len(cut) else "")


def cell(text: object) -> Text:
    """A table's cell or heading from any text: printable, and without rich's markup."""
    return Text(printable(text))


def silent_view(config: RunConfig) -> "View":
    """A view that shows nothing, for a run from Python and for all processes but the first."""
    return View(Console(quiet=True), [policy.name for policy in config.policies], config.steps)


def make_view(console: Console, config: RunConfig, plain: bool) -> "View":
    """A live view in a terminal, else one of plain lines; a silent one in later processes."""
    if is_worker() and int(os.environ["LOCAL_RANK"]) > 0:
        return silent_view(config)

    names = [policy.name for policy in config.policies]
    live = console.is_terminal and not plain
    title = f"mini-mrl: {config.mode}, seed {config.seed}" if live else ""
    return View(console, names, config.steps, title)


class View(AbstractContextManager):
    """A view of a run: with a title drawn in place, without one a line every few steps."""

    def __init__(self, console: Console, policies: list[str], steps: int, title: str = "") -> None:
        self.console = console
        self.policies = policies
        self.colors = dict(zip(policies, cycle(COLORS), strict=False))
        self.steps = steps
        self.title = title
        # cropped to the terminal's height: what does not fit could not be erased again
        self.live = None
        if title:
            self.live = Live(console=console, transient=True, vertical_overflow="crop")

        self.history: deque[dict[str, dict]] = deque(maxlen=RECENT_STEPS)  # policy -> metrics
        self.now = 0  # the step
        self.rescue: dict | None = None  # the newest
        self.scoring = ""  # a sentence on how far it is
        self.scoring_began = self.last_line = 0.0
        self.scoring_s = 0.0  # it took so long before training, and will after it

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, what: RenderableType) -> None:
        """Print a sentence or a table for the person; above the live view, if there is one.

        A sentence may hold what peers and problem files say; a table's cells are made by `cell`.
        """
        is_sentence = isinstance(what, str)  # a terminal wraps it; a table is cut to fit
        shown = printable(what) if is_sentence else what
        self.console.print(shown, markup=False, highlight=False, soft_wrap=is_sentence)

    def step(self, step: int, lines: dict[str, dict], rescues: list[dict]) -> None:
        """Take in a step's metrics line of every policy and its rescues; show what is due."""
        is_first = not self.history
        self.history.append(lines)
        self.now = step
        self.scoring = ""
        if rescues:
            self.rescue = rescues[-1]

        if self.live:
            self._draw()
        elif is_first or step % max(1, self.steps // 20) == 0 or step == self.steps:
            self.say(self.line())

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far the scoring of held-out problems is: live at once, as a line if it is slow.

        done: 0 at the start of a count.
        """
        now = time.monotonic()
        if not done:
            self.scoring_began = self.last_line = now
        self.scoring = f"Scoring {what}: {done} of {total} problems"
        if done:
            seconds = (now - self.scoring_began) / done * (total - done)
            self.scoring += f", {timedelta(seconds=int(seconds))} left"

        if self.live:
            self._draw()
        elif now - self.last_line > PATIENCE_S:
            self.last_line = now
            self.say(self.scoring)

    def _draw(self) -> None:
        if not self.live.is_started:  # begins with the first figures: a download has its own bars
            self.live.start()
        self.live.update(self.render())

    def line(self) -> str:
        """A plain line with the first figures of every policy."""
        parts = [f"step {self.now}/{self.steps}, {self.time_left()} left"]
        rows = self.rows(PLAIN)
        for number, name in enumerate(self.policies):
            figures = ", ".join(f"{metric} {cells[number]}" for metric, cells in rows)
            parts.append(f"{name}: {figures}")
        return "; ".join(parts)

    def render(self) -> RenderableType:
        """The whole live view: how far it is, the newest rescue, figures, solve rates by skill.

        No frame is around it, because a terminal writes `^C` at its end. So that stands on the last
        line, which is erased with the rest.
        """
        parts: list[RenderableType] = [Text(printable(self.title), style="bold")]
        if self.history:
            head = Table.grid(padding=(0, 2))
            head.add_row(
                f"step {self.now}/{self.steps}",
                ProgressBar(total=self.steps, completed=self.now, width=30),
                f"{self.time_left()} left",
            )
            parts.append(head)
        if self.scoring:
            parts.append(cell(self.scoring))
        if self.rescue:
            parts.append(self._newest_rescue(self.rescue))
        if self.history:  # last, because a low terminal crops it
            parts.append(Text(f"means of the last {len(self.history)} steps", style="dim"))
            parts.append(Columns([self._table(SHOWN), self._table(SKILLS)]))
        return Group(*parts)

    def _table(self, patterns: Sequence[str]) -> Table:
        table = Table("", box=None, padding=(0, 1))
        for name, color in self.colors.items():
            table.add_column(cell(name), justify="right", style=color)

        for metric, figures in self.rows(patterns):
            table.add_row(cell(metric), *figures)
        return table

    def _newest_rescue(self, rescue: dict) -> Text:
        text = Text("newest rescue: ", style="bold")
        text.append(printable(rescue["prompt"], SHOWN_CHARS), style="not bold")
        for side in ("receiver", "source"):
            style = f"not bold {self.colors.get(rescue[side], '')}"
            shown = printable(rescue[f"{side}_text"], SHOWN_CHARS)
            text.append(f"\n{printable(rescue[side])}: {shown}", style=style)
        return text

    def rows(self, patterns: Sequence[str]) -> list[tuple[str, list[str]]]:
        """(metric, a figure for each policy), without the rows that would read 0.00 throughout."""
        logged: set[str] = set()
        for lines in self.history:
            logged.update(*lines.values())  # the metrics of every policy

        shown = []
        for pattern in patterns:
            for metric in fnmatch.filter(sorted(logged), pattern):
                means = [self.mean(name, metric) for name in self.policies]
                figures = [f"{m:,.0f}" if m >= 100 else f"{m:.2f}" for m in means]
                if set(figures) != {"0.00"}:
                    shown.append((metric, figures))
        return shown

    def mean(self, policy: str, metric: str) -> float:
        """The mean over recent steps; a metric that a step does not have is 0 in it.

        Not so a skill: its mean is over the steps that had problems of it.
        """
        values = [lines[policy][metric] for lines in self.history if metric in lines[policy]]
        steps = len(values) if metric.startswith("skill/") else len(self.history)
        return sum(values) / max(steps, 1)

    def time_left(self) -> timedelta:
        """The time that the remaining steps take at the pace of the last ones, and the scoring."""
        seconds = self.mean(self.policies[0], "time/step_s") * (self.steps - self.now)
        return timedelta(seconds=int(seconds + self.scoring_s))
