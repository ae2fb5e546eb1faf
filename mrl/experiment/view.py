"""What a person sees of a run: a live view in a terminal, plain lines elsewhere, a final table.

The only module of `mrl` outside the lab that prints.
"""

import os
import time
from collections import defaultdict, deque

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mrl.config import RunConfig
from mrl.experiment.launch import is_worker
from mrl.experiment.metrics import run_residual

REFUSALS = ("exchange/refused/", "exchange/not_believed", "thl/refused/")
OUTCOMES = (
    "taught",
    "rescued",
    "clipped",
    "all_fail",
    "all_pass",
    "not_needed",
    "dropped",
    "refused",
)
RECENT_STEPS = 10  # numbers in the live view are means over so many steps
KINDS = ("all_fail", "mixed", "all_pass")
COLORS = ("cyan", "dark_orange", "magenta", "green")  # one a policy, in the order of the run


def printable(text: str, limit: int = 300) -> str:
    """Text of a policy, safe for a terminal: control characters become visible escapes."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:limit])
    return shown + (" [...]" if len(text) > limit else "")


def minutes(seconds: float) -> str:
    """1:05 for 65 seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def make_view(console: Console, config: RunConfig, plain: bool) -> "PlainLines":
    """The live view in a terminal, else lines; silence in all processes but the first."""
    names = [policy.name for policy in config.policies]
    if is_worker() and int(os.environ["LOCAL_RANK"]) > 0:
        return PlainLines(Console(quiet=True), names, config.steps)
    if plain or not console.is_terminal:
        return PlainLines(console, names, config.steps)
    return LiveView(console, names, config.steps, f"mini-mrl: {config.mode}, seed {config.seed}")


class PlainLines:
    """A line every few steps; for logs, pipes and files."""

    def __init__(self, console: Console, policies: list[str], steps: int) -> None:
        self.console = console
        self.policies = policies
        self.steps = steps
        self.every = max(1, steps // 20)
        self.history: deque[dict[str, dict]] = deque(maxlen=RECENT_STEPS)  # policy -> line
        self.now = 0
        self.started: float | None = None
        self.seen = 0

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        """One line for the person."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, what: RenderableType) -> None:
        """A table for the person."""
        self.console.print(what)

    def step(self, step: int, lines: dict[str, dict], rescues: list[dict]) -> None:
        """Take a step in: every policy's metrics line, and its rescues; print if it is its turn."""
        self.note(step, lines)
        if step % self.every and step != self.steps:
            return
        parts = []
        for name in self.policies:
            means = self.means(name)
            kinds = "/".join(f"{means[f'groups/{kind}']:.0%}" for kind in KINDS)
            rescued, solved = (self.total(name, key) for key in ("rescues", "rescue_set"))
            helped = f"{rescued:.0f} rescues"
            if solved and not rescued:  # a mode that learns from them, but does not imitate
                helped = f"{solved:.0f} failed groups that a peer solved"
            parts.append(
                f"{name} solves {means['reward']:.0%} (all-fail/mixed/all-pass {kinds}, {helped})"
            )
        self.say(f"step {step}/{self.steps}, {self.time_left()} left: " + "; ".join(parts))

    def note(self, step: int, lines: dict[str, dict]) -> None:
        """Remember a step."""
        if self.started is None:
            self.started = time.monotonic() - next(iter(lines.values()))["time/step_s"]
        self.history.append(lines)
        self.now = step
        self.seen += 1

    def means(self, policy: str) -> dict[str, float]:
        """Each metric's mean over the recent steps that have it."""
        values: dict[str, list[float]] = defaultdict(list)
        for lines in self.history:
            for key, value in lines.get(policy, {}).items():
                if isinstance(value, int | float):
                    values[key].append(value)
        return {key: sum(numbers) / len(numbers) for key, numbers in values.items()}

    def total(self, policy: str, key: str) -> float:
        """A metric summed over the recent steps."""
        return sum(lines.get(policy, {}).get(key, 0) for lines in self.history)

    def time_left(self) -> str:
        """Estimated from the mean time of all steps so far."""
        if self.started is None:
            return "?"
        per_step = (time.monotonic() - self.started) / self.seen
        return minutes(per_step * (self.steps - self.now))


class LiveView(PlainLines):
    """The same, drawn over and over in place: both policies, the exchange, the newest rescue."""

    def __init__(self, console: Console, policies: list[str], steps: int, title: str) -> None:
        super().__init__(console, policies, steps)
        self.title = title
        self.live = Live(console=console, refresh_per_second=4, transient=True)
        self.rescue: dict | None = None
        self.colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(policies)}

    def __enter__(self) -> "LiveView":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        """One line above the live view."""
        self.live.console.print(text, markup=False, highlight=False)

    def show(self, what: RenderableType) -> None:
        """A table above the live view."""
        self.live.console.print(what)

    def step(self, step: int, lines: dict[str, dict], rescues: list[dict]) -> None:
        """Take a step in and draw."""
        self.note(step, lines)
        self.rescue = (rescues or [self.rescue])[-1]
        self.live.update(self.render())

    def render(self) -> RenderableType:
        """The whole view."""
        step = self.now
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"step {step}/{self.steps}", style="bold"),
            ProgressBar(total=self.steps, completed=step, width=30),
            Text(f"{self.time_left()} left"),
            Text(f"means over {len(self.history)} steps", style="dim"),
        )
        parts: list[RenderableType] = [head, Columns([self._policies(), self._skills()])]
        if self.rescue:
            parts.append(self._newest_rescue(self.rescue))
        return Panel(Group(*parts), title=self.title)

    def _policies(self) -> Table:
        table = Table(box=None, padding=(0, 1))
        table.add_column("")
        for name in self.policies:
            table.add_column(name, justify="right", style=self.colors[name])
        means = {name: self.means(name) for name in self.policies}
        rows = [
            ("solve rate", "reward", "{:.0%}"),
            ("reward std in a group", "reward_std", "{:.2f}"),
            *((f"{kind.replace('_', '-')} groups", f"groups/{kind}", "{:.0%}") for kind in KINDS),
            ("rescue set, prompts a step", "rescue_set", "{:.1f}"),
            ("cut by the token limit", "completions/clipped_ratio", "{:.0%}"),
            ("gradient norm", "grad_norm", "{:.2f}"),
            ("records published a step", "exchange/published_records", "{:.0f}"),
            ("records received a step", "exchange/received_records", "{:.0f}"),
            ("bytes received a step", "exchange/received_bytes", "{:,.0f}"),
            ("rollout seconds", "time/rollout_s", "{:.2f}"),
            ("verify seconds", "time/verify_s", "{:.2f}"),
            ("learn seconds", "time/learn_s", "{:.2f}"),
        ]
        for label, key, form in rows:
            cells = [
                form.format(means[name][key]) if means[name] else "-" for name in self.policies
            ]
            table.add_row(label, *cells)
        for outcome in OUTCOMES:
            cells = [means[name].get(f"outcome/{outcome}", 0.0) for name in self.policies]
            if any(cells):
                label = f"completions: {outcome.replace('_', '-')}"
                table.add_row(label, *(f"{cell:.0%}" for cell in cells))
        shares = {name: self._share_one_to_one(name) for name in self.policies}
        if any(shares.values()):
            table.add_row("bytes in 1:1 chunks", *(shares[name] for name in self.policies))
        refused = {name: self._refusals(name) for name in self.policies}
        if any(refused.values()):
            table.add_row("records refused", *(refused[name] for name in self.policies))
        return table

    def _share_one_to_one(self, policy: str) -> str:
        residual = run_residual(lines.get(policy, {}) for lines in self.history)
        return f"{residual.share_one_to_one:.0%}" if residual.records else ""

    def _refusals(self, policy: str) -> str:
        reasons: dict[str, float] = defaultdict(float)
        for lines in self.history:
            for key, value in lines.get(policy, {}).items():
                if key.startswith(REFUSALS):
                    reasons[key.rsplit("/", 1)[1]] += value
        return ", ".join(f"{number:.0f} {reason}" for reason, number in reasons.items())

    def _skills(self) -> Table:
        table = Table(box=None, padding=(0, 1))
        table.add_column("solve rate of")
        for name in self.policies:
            table.add_column(name, justify="right", style=self.colors[name])
        means = {name: self.means(name) for name in self.policies}
        keys = sorted({key for name in self.policies for key in means[name]})
        for key in (key for key in keys if key.startswith("skill/")):
            cells = [means[name].get(key) for name in self.policies]
            table.add_row(key[6:], *("-" if c is None else f"{c:.0%}" for c in cells))
        return table

    def _newest_rescue(self, rescue: dict) -> RenderableType:
        body = Text()
        body.append(printable(rescue["prompt"]) + "\n", style="bold")
        body.append(f"{rescue['receiver']}: ", style=self.colors.get(rescue["receiver"], ""))
        body.append(printable(rescue["receiver_text"]) + "\n")
        body.append(f"{rescue['source']}: ", style=self.colors.get(rescue["source"], ""))
        body.append(printable(rescue["source_text"]))
        return Panel(body, title="newest rescue", title_align="left", border_style="dim")
