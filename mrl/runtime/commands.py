"""Commands of `mini_mrl.py` around runs: score one again, list modes and settings."""

from dataclasses import MISSING, fields, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.modes import MODES
from mrl.runtime.evaluation import count_solved, load_heldout, score_entries
from mrl.runtime.judge import make_verifier
from mrl.runtime.loading import load_policies, pick_device
from mrl.runtime.problems import longest_prompt
from mrl.runtime.run_directory import newest_checkpoint, read_run_config, with_checkpoint_paths
from mrl.runtime.settings import check, mode_class, run_config
from mrl.runtime.summary import evaluation_table, pair_table
from mrl.runtime.view import View, console


def modes(mode: Annotated[str | None, typer.Argument(help="FILE.py:Class")] = None) -> None:
    """List the sharing modes, or one: what each does, what crosses, its settings."""
    title = "sharing modes (--mode NAME, --set NAME.SETTING=VALUE)"
    table = Table("mode", "what the receiver learns from", "crosses", "settings", title=title)
    for each in [mode_class(mode)] if mode else MODES.values():
        defaults = ", ".join(f"{f.name}={f.default!r}" for f in fields(each) if f.init)
        does = Text((each.__doc__ or "").strip().split("\n")[0])
        table.add_row(each.name, does, getattr(each.consumes, "kind", "nothing"), defaults)
    console.print(table)


def settings() -> None:
    """List all settings of a run, a policy and the modes, for `--set` and `--config`."""
    parts = [("a run", RunConfig), ("a policy (a [[policy]] table in a file)", PolicyConfig)]
    parts += [(f"mode {name} (--set {name}.SETTING=VALUE)", mode) for name, mode in MODES.items()]

    for title, holder in parts:
        table = Table("setting", "what it is", "default", title=Text(f"settings of {title}"))
        for entry in fields(holder):
            if "help" in entry.metadata:
                default = entry.default if entry.default is not MISSING else entry.default_factory()
                shown = str(default).replace(f"{DATA.parent}/", "")
                table.add_row(entry.name, entry.metadata["help"], Text(shown))
        console.print(table)


def evaluate(
    directory: Annotated[Path | None, typer.Argument(help="A run: runs/<name>.")] = None,
    pair: Annotated[str | None, typer.Option(help="Models, in place of a run: see below.")] = None,
    samples: Annotated[int | None, typer.Option(help="Of a problem; none: the run's.")] = None,
    data: Annotated[str | None, typer.Option(help="JSONL[,JSONL]; none: the run's.")] = None,
) -> None:
    """Score a run's held-out problems again, with the first and with the newest weights.

    With --pair DIR_A,DIR_B: can these models help each other? For each skill, how many problems
    one of them fails at every try while the other solves them sometimes.
    """
    if (directory is None) == (pair is None):
        raise MrlError("Name what to score: a run's directory, or models with --pair DIR_A,DIR_B.")
    config = run_config(pair, None, {}, []) if pair else read_run_config(directory)
    count = config.eval_samples if samples is None else samples
    check(replace(config, eval_samples=count))

    states = {"before": config}
    if directory:
        checkpoint = newest_checkpoint(directory)
        if not checkpoint:
            raise MrlError(f"{directory}: holds no complete checkpoint yet.")
        states["after"] = with_checkpoint_paths(config, checkpoint)

    results: dict[str, list[dict]] = {}
    view = View(console, [], 0)
    with make_verifier(config, view.say) as verifier:
        parts = load_heldout(data.split(",") if data else config.heldout, verifier)
        problems = list(chain.from_iterable(parts.values()))
        for when, state in states.items():
            results[when], solved = [], {}
            policies = load_policies(state, pick_device(config.device))
            for policy in policies:
                longest_prompt(policy, problems)  # MrlError if one is too long
                counts = count_solved(policy, parts, verifier, count, config.seed, view.progress)
                solved[policy.name] = counts
                results[when] += score_entries(policy.name, parts, counts, count)
            del policies, policy  # before the newest weights are loaded

    console.print(pair_table(parts, solved) if pair else evaluation_table(results))


COMMANDS = (evaluate, modes, settings)
