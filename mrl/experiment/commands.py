"""Commands around runs, hung into `mini_mrl.py`: score a run again, list modes and settings."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mrl.allocation import pick_device
from mrl.config import PolicyConfig, RunConfig
from mrl.experiment.checkpoint import newest_checkpoint
from mrl.experiment.evaluation import evaluate_all, load_heldout
from mrl.experiment.run import load_policies
from mrl.experiment.run_directory import read_run_config, with_weights_of
from mrl.experiment.settings import check
from mrl.experiment.summary import evaluation_table, modes_table
from mrl.modes import MODES
from mrl.rewards import Verifier

console = Console()


def modes() -> None:
    """List the sharing modes: what each does, what crosses, its settings."""
    console.print(modes_table(list(MODES.values())))


def settings() -> None:
    """List all settings of a run and of a policy, for `--set` and `--config`."""
    for kind, title in ((RunConfig, "a run"), (PolicyConfig, "a policy ([[policy]] in a file)")):
        table = Table("setting", "what it is", "default", title=f"settings of {title}")
        for entry in fields(kind):
            if "help" in entry.metadata:
                default = "" if callable(entry.default) else str(entry.default)
                table.add_row(entry.name, entry.metadata["help"], default)
        console.print(table)
    console.print("Settings of a mode are listed by `modes`.")


def evaluate(
    directory: Annotated[Path, typer.Argument(help="A run: runs/<name>.")],
    samples: Annotated[int | None, typer.Option(help="Completions a problem.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token.")] = False,
    data: Annotated[str | None, typer.Option(help="Other problems: JSONL[,JSONL].")] = None,
) -> None:
    """Score a run's held-out problems again, with the first and with the newest weights."""
    config = read_run_config(directory)
    count = config.eval_samples if samples is None else samples
    count = 1 if greedy else count
    check(replace(config, eval_samples=count))
    trained = with_weights_of(config, newest_checkpoint(directory))
    results: dict[str, list[dict]] = {}
    with Verifier(timeout_s=config.verify_timeout_s) as verifier:
        verifier.canary()
        parts = load_heldout(data.split(",") if data else config.heldout, verifier)
        for when, chosen in (("before", config), ("after", trained)):
            policies = load_policies(chosen.policies, pick_device(config.device), config.threads)
            temperature = 0.0 if greedy else None
            scores = evaluate_all(policies, parts, verifier, count, config.seed, temperature)
            results[when] = [score.to_dict() for score in scores]
    console.print(evaluation_table(results))


COMMANDS = (evaluate, modes, settings)
