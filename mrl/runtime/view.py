"""What a person sees of a run: a live view in a terminal, plain lines elsewhere.

The only module of `mrl` outside the lab that prints. Both views take their rows from one table.
"""

import os
import termios
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from itertools import cycle

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mrl.config import RunConfig
from mrl.runtime.launch import is_worker

RECENT_STEPS = 10  # figures in the views are means over so many steps
console = Console()  # the person's terminal
SHOWN = 300  # characters of a text in the newest rescue
PATIENCE_S = 30  # between two plain lines about how far a long count is
COLORS = ("cyan", "dark_orange", "magenta", "green")  # one a policy, in the order of the run
ROWS = (  # (label, metric, format); a metric that ends with / is a family, one row each
    ("solve rate", "reward", "{:.0%}"),
    ("all-fail groups", "groups/all_fail", "{:.0%}"),
    ("mixed", "groups/mixed", "{:.0%}"),
    ("all-pass", "groups/all_pass", "{:.0%}"),
    ("rescue set", "rescue_set", "{:.1f}"),
    ("rescues", "rescues", "{:.1f}"),
    ("cut by the token limit", "completions/clipped_ratio", "{:.0%}"),
    ("gradient norm", "grad_norm", "{:.2f}"),
    ("completions:", "outcome/", "{:.0%}"),
    ("records received", "exchange/received_records", "{:.0f}"),
    ("bytes received", "exchange/received_bytes", "{:,.0f}"),
    ("refused:", "exchange/refused/", "{:.1f}"),
    ("refused:", "thl/refused/", "{:.1f}"),
    ("refused: not believed", "exchange/not_believed", "{:.1f}"),
    ("rollout, seconds", "time/rollout_s", "{:.2f}"),
    ("learn, seconds", "time/learn_s", "{:.2f}"),
)
PLAIN_ROWS = 6  # so many of them make a plain line
SKILL_ROWS = (("", "skill/", "{:.0%}"),)
COUNTERS = ("exchange/", "thl/refused/")  # metrics that are not logged where they are 0
Rows = Sequence[tuple[str, str, str]]


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


def _set_control_echo(console: Console, on: bool) -> None:
    """Set whether a terminal writes `^C` where a person types it.

    Behind the last line of the live view it would add a line, and one would stay on the screen.
    """
    with suppress(OSError, termios.error):  # no terminal
        terminal = console.file.fileno()
        with suppress(OSError):  # a process of its own session may change it always
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return  # in the background: the terminal would stop this process

        modes = termios.tcgetattr(terminal)
        if on:
            modes[3] |= termios.ECHOCTL
        else:
            modes[3] &= ~termios.ECHOCTL
        termios.tcsetattr(terminal, termios.TCSANOW, modes)


class View(AbstractContextManager):
    """A view of a run: with a title drawn in place, without one a line every few steps."""

    def __init__(self, console: Console, policies: list[str], steps: int, title: str = "") -> None:
        self.console = console
        self.policies = policies
        self.colors = dict(zip(policies, cycle(COLORS), strict=False))
        self.steps = steps
        self.title = title
        self.live = Live(console=console, transient=True) if title else None

        self.history: deque[dict[str, dict]] = deque(maxlen=RECENT_STEPS)  # policy -> metrics
        self.now = 0  # the step
        self.seen = 0  # steps that this view has seen: fewer than `now` after a resume
        self.began = self.count_began = self.last_line = time.monotonic()
        self.scoring = ""  # a sentence on how far it is
        self.scoring_s = 0.0  # scoring took so long before training, and will after it
        self.rescue: dict | None = None  # the newest

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
            _set_control_echo(self.console, on=True)

    def say(self, what: RenderableType) -> None:
        """Print a sentence or a table for the person; above the live view, if there is one.

        A sentence may hold what peers and problem files say; a table's cells are made by `cell`.
        """
        is_sentence = isinstance(what, str)  # a terminal wraps it; a table is cut to fit
        shown = printable(what) if is_sentence else what
        self.console.print(shown, markup=False, highlight=False, soft_wrap=is_sentence)

    def step(self, step: int, lines: dict[str, dict], rescues: list[dict]) -> None:
        """Take in a step's metrics line of every policy and its rescues; show what is due."""
        if not self.seen:
            self.began = time.monotonic() - max(line["time/step_s"] for line in lines.values())
        self.seen += 1
        self.now = step
        self.history.append(lines)
        self.scoring = ""
        if rescues:
            self.rescue = rescues[-1]

        if self.live:
            self._draw()
        elif self.seen == 1 or step % max(1, self.steps // 20) == 0 or step == self.steps:
            self.say(self.line())

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far the scoring of held-out problems is: live at once, as a line if it is slow.

        done: 0 at the start of a count.
        """
        now = time.monotonic()
        if not done:
            self.count_began = now
        left = ""
        if done:
            seconds = int((now - self.count_began) / done * (total - done))
            left = f", {timedelta(seconds=seconds)} left"

        self.scoring = f"Scoring {what}: {done} of {total} problems{left}."
        if self.live:
            self._draw()
        elif now - max(self.count_began, self.last_line) > PATIENCE_S:
            self.last_line = now
            self.say(self.scoring)

    def _draw(self) -> None:
        if not self.live.is_started:  # begins with the first figures: a download has its own bars
            _set_control_echo(self.console, on=False)
            self.live.start()
        self.live.update(self.render())

    def line(self) -> str:
        """A plain line with the first rows of every policy."""
        parts = [f"step {self.now}/{self.steps}, {self.time_left()} left"]
        rows = self.cells(ROWS[:PLAIN_ROWS])
        for number, name in enumerate(self.policies):
            figures = ", ".join(f"{label} {cells[number]}" for label, cells in rows)
            parts.append(f"{name}: {figures}")
        return "; ".join(parts)

    def render(self) -> RenderableType:
        """The whole live view: all rows, the skills, the newest rescue."""
        parts: list[RenderableType] = []
        if self.history:
            head = Table.grid(padding=(0, 2))
            head.add_row(
                Text(f"step {self.now}/{self.steps}", style="bold"),
                ProgressBar(total=self.steps, completed=self.now, width=30),
                Text(f"{self.time_left()} left"),
                Text(f"mean of the last {len(self.history)} steps", style="dim"),
            )
            tables = [self._table("", ROWS), self._table("solve rate of", SKILL_ROWS)]
            parts += [head, Columns(tables)]
        if self.rescue:
            parts.append(self._newest_rescue(self.rescue))
        if self.scoring:
            parts.append(cell(self.scoring))
        return Panel(Group(*parts), title=cell(self.title))

    def _table(self, title: str, rows: Rows) -> Table:
        table = Table(title, box=None, padding=(0, 1))
        for name, color in self.colors.items():
            table.add_column(cell(name), justify="right", style=color)

        for label, figures in self.cells(rows):
            table.add_row(cell(label), *figures)
        return table

    def _newest_rescue(self, rescue: dict) -> RenderableType:
        body = Text(printable(rescue["prompt"], SHOWN))
        for who in ("receiver", "source"):
            name = printable(rescue[who], SHOWN)
            body.append(f"\n{name}: ", style=self.colors.get(name, ""))
            body.append(printable(rescue[f"{who}_text"], SHOWN))
        return Panel(body, title="newest rescue", title_align="left", border_style="dim")

    def cells(self, rows: Rows) -> list[tuple[str, list[str]]]:
        """(label, a cell for each policy) of the rows in which a policy's figure is not 0."""
        logged: set[str] = set()
        for lines in self.history:
            logged.update(*lines.values())

        shown = []
        for label, metric, form in rows:
            keys = [metric]
            if metric.endswith("/"):  # a family
                keys = sorted(key for key in logged if key.startswith(metric))
            for key in keys:
                means = [self.mean(name, key) for name in self.policies]
                if any(means):
                    member = key.removeprefix(metric).replace("_", "-")
                    cells = ["-" if mean is None else form.format(mean) for mean in means]
                    shown.append((f"{label} {member}".strip(), cells))
        return shown

    def mean(self, policy: str, key: str) -> float | None:
        """The mean over recent steps that have a metric, or None; a counter is 0 in the others."""
        values = [lines[policy][key] for lines in self.history if key in lines.get(policy, {})]
        counted = len(self.history) if key.startswith(COUNTERS) else len(values)
        return sum(values) / counted if values else None

    def time_left(self) -> str:
        """The time left, from the mean time of all steps so far, with the scoring at the end."""
        per_step = (time.monotonic() - self.began) / max(self.seen, 1)
        return str(timedelta(seconds=int(per_step * (self.steps - self.now) + self.scoring_s)))
