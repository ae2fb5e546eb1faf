"""The progress of a comparison: a line per run in a terminal, and now and then a line elsewhere."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from mrl.run.view import cell, printable


@dataclass
class Progress:
    """How far a run of a comparison is."""

    title: str
    steps: int  # of the whole run
    step: int = 0  # the newest step in its log
    pace: float | None = None  # seconds per step; None until its first step

    def seconds_left(self, usual: float) -> float:
        """The time that its remaining steps take. usual: the pace of runs without a step."""
        return (self.steps - self.step) * (usual if self.pace is None else self.pace)

    @property
    def words(self) -> str:
        """What the run does now."""
        if not self.step:
            return "loading, and scoring before training"
        if self.step == self.steps:
            return "scoring after training"
        return f"step {self.step} of {self.steps}"


class Board(AbstractContextManager):
    """Shows a comparison: within `with`, a terminal has a line per run, which is redrawn."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self.live = Live(console=console, auto_refresh=False, transient=True)
        self.tenths = 0  # tenths of all steps, as last printed outside a terminal

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Erase the lines that are redrawn."""
        if self.live and self.live.is_started:
            self.live.stop()
        self.live = None

    def say(self, text: str) -> None:
        """Print a sentence that stays, above the lines that are redrawn."""
        whole = not self.console.is_terminal  # in a file, lines are not wrapped
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=whole)

    def show(self, going_on: Sequence[Progress], runs: Sequence[Progress], jobs: int) -> None:
        """Show the runs that are going on. runs: these and all others; jobs: runs in parallel."""
        paces = [run.pace for run in runs if run.pace is not None]
        usual = fmean(paces) if paces else 0.0
        left = sum(run.seconds_left(usual) for run in runs) / min(jobs, max(1, len(going_on)))
        done, total = sum(run.step for run in runs), sum(run.steps for run in runs)
        whole = f"{100 * done // total}% of all steps"
        if paces:
            whole += f"; about {_clock(left)} left"

        if self.live:
            if not self.live.is_started:
                self.live.start()
            self.live.update(_table(going_on, usual, whole), refresh=True)
        elif 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            self.say(whole)


def _table(going_on: Sequence[Progress], usual: float, whole: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for run in going_on:
        bar = ProgressBar(total=run.steps, completed=run.step, width=20)
        left = f"{_clock(run.seconds_left(usual))} left" if run.pace is not None else ""
        table.add_row(cell(run.title), bar, run.words, left)
    table.add_row("", "", whole)
    return table


def _clock(seconds: float) -> timedelta:
    return timedelta(seconds=int(seconds))
