"""The command line of `mini_mrl.py`: options in, a run or another command, an exit code out."""

import signal
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from mrl.config import DATA, HELP, PolicyConfig, RunConfig
from mrl.errors import MrlError, RunFailed, is_out_of_memory
from mrl.models.loading import claim_device, claim_process, load_policies
from mrl.modes import MODES
from mrl.modes.check import place_of
from mrl.parsing import split_list
from mrl.run import launch
from mrl.run.directory import (
    continued_config,
    new_directory,
    newest_checkpoint,
    read_run_config,
    with_checkpoint_paths,
)
from mrl.run.evaluation import count_solved, load_heldout, score_entries
from mrl.run.problems import longest_prompt
from mrl.run.run import Run
from mrl.run.summary import evaluation_table, first_lines, last_lines, pair_table
from mrl.run.view import View, console, make_view, printable
from mrl.settings.pairs import choose_pair
from mrl.settings.settings import check, run_config
from mrl.verifier.verifier import make_verifier

MODE_HELP = f"what is shared: {', '.join(MODES)}; or your own, FILE.py:Class"
PAIR_HELP = "tiny, qwen-smol, or hub names or directories: DIR_A,DIR_B[,...]"
BEST_PAIR = "tiny; qwen-smol where a GPU, both models and GSM8K are at hand"


class Program(NamedTuple):
    """What a run is started with, besides its settings."""

    arguments: list[str]
    train_loop: Callable[[Run], bool]
    main: Callable[[list[str]], launch.Ending]  # for each policy, if it gets a process of its own


def run_command(
    program: Program, more_commands: Sequence[Callable], assignment: typer.Typer
) -> launch.Ending:
    """Run one command; returns its exit code (2 for a person's mistake) and a last sentence.

    more_commands, assignment: of lab/ and classroom/, which nothing in cli/ may import.
    """
    claim_process()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    # a callback and no command: `python mini_mrl.py --mode sgt` trains without another word
    app.callback(invoke_without_command=True)(train)
    about = "Assignments for a class, that check themselves."
    app.add_typer(assignment, name="assignment", help=about)
    for command in (evaluate, settings, *more_commands, resume):
        # the first line whole, in the list of all
        app.command(short_help=command.__doc__.split("\n")[0])(command)

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may have no ± and no umlaut
    try:
        return app(program.arguments, standalone_mode=False, obj=program) or 0, ""
    except SystemExit as end:
        return end.code or 0, ""  # rich ends so where nothing reads the output any more
    except Exception as error:
        if "--debug" in program.arguments:
            traceback.print_exc()
        return _ending(error)


def _ending(error: Exception) -> launch.Ending:
    """How an error ends the program: one sentence for what a person or the machine has caused."""
    if isinstance(error, BdbQuit):
        return 1, "The debugger was left; with --debug `breakpoint()` has a process to itself."
    if isinstance(error, MrlError | RunFailed):
        return error.exit_code, printable(error, 2000)
    if is_out_of_memory(error) or isinstance(error, FloatingPointError):
        return 1, printable(str(error).split("\n")[0] or "Memory has run out.", 2000)
    if hasattr(error, "format_message"):  # a usage error of the command line
        hint = "add --help to see the options; a run's settings change with --set KEY=VALUE"
        return 2, printable(f"{error.format_message().rstrip('.')}; {hint}.", 2000)
    if isinstance(error, OSError) and error.filename:
        return 2, printable(f"{error.filename}: cannot be read or written ({error.strerror}).")

    # a bug, perhaps in code of one's own: Python's traceback and the place
    if not hasattr(error, "__notes__"):  # a run has added its own note
        error.add_note(f"It happened in {place_of(error)}.")
    return 1, "".join(traceback.format_exception(error)).rstrip()


# ------------------------------------------------------------------------------ a run


def option(text: str, default: object, *names: str) -> Any:
    """An option with its help and its default, which the settings have and not the command."""
    return typer.Option(*names, help=f"{text}  [default: {default}]")


Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]


def train(
    context: typer.Context,
    mode: Annotated[str | None, option(MODE_HELP, RunConfig.mode)] = None,
    pair: Annotated[str | None, option(PAIR_HELP, BEST_PAIR)] = None,
    steps: Annotated[int | None, option(HELP["steps"], RunConfig.steps)] = None,
    seed: Annotated[int | None, option(HELP["seed"], RunConfig.seed)] = None,
    name: Annotated[str | None, option("directory under `runs`", "made from mode and seed")] = None,
    placement: Annotated[str | None, option(HELP["placement"], RunConfig.placement)] = None,
    config: Annotated[Path | None, option("a TOML file with settings", "none")] = None,
    settings: Annotated[
        list[str] | None,
        option("KEY=VALUE for any setting (`settings` lists all), repeatable", "none", "--set"),
    ] = None,
    plain: Plain = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    compared: Annotated[str, typer.Option(hidden=True)] = "",  # modes of a comparison
) -> None:
    """Train language models side by side that learn from each other's verified experience."""
    if context.invoked_subcommand:
        return

    why_pair = ""
    if pair is None and config is None:
        pair, why_pair = choose_pair()
    if debug:  # one process without a live view, so that `breakpoint()` in a mode works
        placement, plain = placement or "resident", True
    options = {"mode": mode, "steps": steps, "seed": seed, "name": name, "placement": placement}
    whole_config = run_config(pair, config, options, settings or [], split_list(compared))
    start_run(context.obj, whole_config, plain, pair=pair or "", why_pair=why_pair)


def resume(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="A run: runs/<name>.")],
    plain: Plain = False,
) -> None:
    """Go on with a run that was stopped.

    On a CPU the result is the same to the last bit.
    """
    directory = directory.expanduser()
    start_run(context.obj, continued_config(directory), plain, resumed=directory)


def start_run(
    program: Program,
    config: RunConfig,
    plain: bool,
    resumed: Path | None = None,
    pair: str = "",
    why_pair: str = "",
) -> None:
    """Take a run from its settings to its last sentence; typer.Exit if it is not finished then.

    pair, why_pair: the name of the models and the reason for them, for the first sentence.
    """
    processes = launch.processes_for(config)
    if processes:
        # decided here, so that the last sentence can name it if a process dies
        directory = resumed or new_directory(config)
        name = [] if resumed else ["--name", directory.name]
        arguments = [*program.arguments, *name]
        code, sentence = launch.launch(program.main, arguments, directory, processes)
        console.show_cursor()  # a live view that died has hidden it
        if sentence:
            print(sentence, file=sys.stderr)
        raise typer.Exit(code)

    # Nothing can be lost while a run is loaded, and the threads that read weights would read on
    # after an exception, so SIGTERM ends the process itself until then.
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with make_view(console, config, plain) as view, Run(config, view, resumed) as run:
        signal.signal(signal.SIGTERM, handler)
        for line in first_lines(run, pair, why_pair):
            view.say(line)
        finished = program.train_loop(run)

    # the logs are closed and the live view is gone: what is said now stays on the screen
    for line in last_lines(run, finished):
        view.say(line)
    if not finished:
        raise typer.Exit(130)  # as shells do after Ctrl-C


# ------------------------------------------------------------------------------ around runs


def settings() -> None:
    """List the modes, and all settings of a run, a policy and a mode, for --set and --config."""
    splits = {
        "a run": {"": RunConfig([])},
        "a policy ([[policy]] in a file)": {"": PolicyConfig("", "")},
        "the modes": {f"{name}.": mode() for name, mode in MODES.items()},
    }
    for title, holders in splits.items():
        table = Table("setting", "what it is", "default", title=Text(f"settings of {title}"))
        for prefix, holder in holders.items():
            if prefix:
                table.add_row(Text(holder.name, "bold"), holder.__doc__.split("\n")[0])
            for entry in fields(holder):
                if "help" in entry.metadata:
                    shown = str(getattr(holder, entry.name)).replace(f"{DATA.parent}/", "")
                    table.add_row(prefix + entry.name, entry.metadata["help"], Text(shown))
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
    directory = directory and directory.expanduser()
    config = run_config(pair, None, {}, []) if pair else read_run_config(directory)
    count = config.eval_samples if samples is None else samples
    files = split_list(data) if data else config.heldout
    # only the files that decide these scores have to be those of the run
    needed = (config.judge, *files)
    config.checksums = {path: then for path, then in config.checksums.items() if path in needed}
    check(replace(config, eval_samples=count))

    states = {"before": config}
    if directory:
        checkpoint = newest_checkpoint(directory)
        if not checkpoint:
            raise MrlError(f"{directory}: holds no complete checkpoint yet.")
        states["after"] = with_checkpoint_paths(config, checkpoint)

    results: dict[str, list[dict]] = {}
    view = View(console, [], 0)
    with make_verifier(config.judge, config.verify_timeout_s, view.say) as verifier:
        splits = load_heldout(files, verifier)
        for when, state in states.items():
            results[when], solved = [], {}
            policies = load_policies(state, claim_device(config))
            for policy in policies:
                for split in splits.values():
                    longest_prompt(policy, split)  # MrlError if one is too long
                counts = count_solved(policy, splits, verifier, count, config.seed, view.progress)
                solved[policy.name] = counts
                results[when] += score_entries(policy.name, splits, counts, count)
            del policies, policy  # before the newest weights are loaded

    console.print(pair_table(splits, solved) if pair else evaluation_table(results))
