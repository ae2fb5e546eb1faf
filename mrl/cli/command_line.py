"""The command line of `mini_mrl.py`: it reads options, runs a command, and returns an exit code."""

import os
import sys
import traceback
from bdb import BdbQuit
from dataclasses import fields, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import mrl
from mrl.classroom.commands import assignment
from mrl.cli.start import import_torch
from mrl.cli.usage import usage_sentence
from mrl.config import DATA, HELP, PolicyConfig, RunConfig
from mrl.errors import PROGRAM, MrlError, RunFailed, is_out_of_memory, place_of
from mrl.lab.commands import COMMANDS
from mrl.modes import MODES
from mrl.parsing import split_list
from mrl.run.directory import (
    continued_config,
    newest_checkpoint,
    read_run_config,
    with_checkpoint_paths,
)
from mrl.run.view import console, printable
from mrl.settings.pairs import choose_pair
from mrl.settings.read import check, models_of, run_config

MODE_HELP = f"Sharing mode: {', '.join(MODES)}; or FILE.py:Class for your own."
PAIR_HELP = "Models to train: tiny, qwen-smol, or directories or hub names: DIR_A,DIR_B[,...]."
BEST_PAIR = "tiny, or qwen-smol if there is a GPU and both models and GSM8K were downloaded"
EVALUATE_PAIR_HELP = "Models to score instead of a run: DIR_A,DIR_B, as described above."
EVALUATE_SAMPLES_HELP = "Completions per problem (default: the run's eval_samples)."
EVALUATE_DATA_HELP = "Problem files, separated by commas (default: the run's held-out files)."
Ending = tuple[int, str]  # exit code and last sentence
WORD_HELP = "Only the settings with this word in their name or description (default: all)."
EVALUATE_SET_HELP = "Any setting, as KEY=VALUE, if you name models with --pair; repeatable."


def run_command(arguments: list[str]) -> Ending:
    """Run one command. Returns its exit code (2 for a user's mistake) and a last sentence.

    Raises ModuleNotFoundError if a package that the program needs is not installed.
    """
    # Otherwise a cache that grows token by token would fragment GPU memory. This must be set before
    # the first use of a GPU; the first name is the old one, which the user may have set.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    help_options = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=help_options,
    )
    # a callback instead of a command, so that `python mini_mrl.py --mode sgt` trains
    app.callback(invoke_without_command=True)(train)
    about = "Programming assignments that check themselves."
    app.add_typer(assignment, name="assignment", help=about)
    for command in (evaluate, settings, *COMMANDS, resume):
        # the list of commands shows the whole first line
        summary = (command.__doc__ or "").split("\n")[0]
        app.command(short_help=summary, context_settings=help_options)(command)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack signs such as ±
    try:
        # training needs no command, but many people write one
        arguments = arguments[arguments[:1] == ["train"] :]
        return app(arguments, standalone_mode=False, obj=arguments) or 0, ""
    except SystemExit as end:
        code = end.code or 0  # rich exits when the output is closed, as by `| head`
        return (code, "") if isinstance(code, int) else (1, code)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and place_of(error).startswith(PROGRAM):
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        return _ending(error)


def _ending(error: Exception) -> Ending:
    """The exit code and the last sentence for an error; a bug gets its traceback instead."""
    if isinstance(error, BdbQuit):
        return 1, "You left the debugger. `breakpoint()` works best with --debug, in one process."
    if isinstance(error, MrlError | RunFailed):
        return error.exit_code, printable(error, 2000)
    if is_out_of_memory(error) or isinstance(error, FloatingPointError):
        return 1, printable(str(error).split("\n")[0] or "The machine ran out of memory.", 2000)
    if sentence := usage_sentence(error):
        return 2, printable(sentence, 2000)
    if isinstance(error, FileNotFoundError) and error.filename:
        return 2, printable(f"{error.filename} does not exist.")
    if isinstance(error, OSError) and error.filename:
        return 2, printable(f"{error.filename}: cannot be read or written ({error.strerror}).")

    # a bug, perhaps in the user's own code: show Python's traceback and the place
    if not hasattr(error, "__notes__"):  # an error inside a run already has a note about its place
        error.add_note(f"It happened in {place_of(error)}.")
    return 1, "".join(traceback.format_exception(error)).rstrip()


# ------------------------------------------------------------------------------ a run


def option(text: str, default: object, *names: str) -> Any:
    """An option with its help text and the default that its setting has."""
    sentence = f"{text[0].upper()}{text[1:].removesuffix('.')}."
    return typer.Option(*names, help=f"{sentence}  [default: {default}]")


Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines instead of the live view.")]


def train(
    context: typer.Context,
    mode: Annotated[str | None, option(MODE_HELP, RunConfig.mode)] = None,
    pair: Annotated[str | None, option(PAIR_HELP, BEST_PAIR)] = None,
    steps: Annotated[int | None, option(HELP["steps"], RunConfig.steps)] = None,
    seed: Annotated[int | None, option(HELP["seed"], RunConfig.seed)] = None,
    name: Annotated[
        str | None, option("Name of the run's directory under runs/", "from mode and seed")
    ] = None,
    placement: Annotated[str | None, option(HELP["placement"], RunConfig.placement)] = None,
    config: Annotated[Path | None, option("TOML file with settings", "none")] = None,
    settings: Annotated[
        list[str] | None,
        option("Any setting, as KEY=VALUE; repeatable (`settings` lists all)", "none", "--set"),
    ] = None,
    plain: Plain = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, and run in one process.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of mini-mrl.")
    ] = False,
) -> None:
    """Train language models side by side so that they learn from each other's verified
    solutions.
    """
    if version:
        console.print(f"mini-mrl {mrl.__version__}", highlight=False)
        raise typer.Exit
    if context.invoked_subcommand:
        return

    why_pair = ""
    if pair is None and config is None:
        pair, why_pair = choose_pair()
    if debug:  # a single process without a live view, so that `breakpoint()` in a mode works
        placement, plain = placement or "resident", True
    options = {"mode": mode, "steps": steps, "seed": seed, "name": name, "placement": placement}
    whole_config = run_config(pair, config, options, settings or [])
    import_torch()
    from mrl.cli.carry_out import start_run

    start_run(run_command, context.obj, whole_config, plain, pair=pair or "", why_pair=why_pair)


def resume(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Directory of the run: runs/<name>.")],
    plain: Plain = False,
) -> None:
    """Continue an interrupted run.

    On a CPU the result is bit-for-bit the same as without the interruption.
    """
    directory = directory.expanduser()
    config = continued_config(directory)
    import_torch()
    from mrl.cli.carry_out import start_run

    start_run(run_command, context.obj, config, plain, resumed=directory)


# ------------------------------------------------------------------------------ around runs


def settings(word: Annotated[str, typer.Argument(help=WORD_HELP)] = "") -> None:
    """List the modes, and every setting that --set and --config accept, with its default."""
    tables = {
        "of a run": {"": RunConfig([])},
        "of a policy ([[policy]] in a file)": {"": PolicyConfig("", "")},
        "of the modes": {f"{name}.": mode() for name, mode in MODES.items()},
    }
    found = 0
    for title, holders in tables.items():
        table = Table("setting", "what it is", "default", title=Text(f"settings {title}"))
        for prefix, holder in holders.items():
            if prefix and not word:
                table.add_row(Text(holder.name, "bold"), holder.__doc__.split("\n")[0])
            for entry in fields(holder):
                name, about = prefix + entry.name, entry.metadata.get("help", "")
                if about and word.lower() in f"{name} {about}".lower():
                    shown = str(getattr(holder, entry.name)).replace(f"{DATA.parent}/", "")
                    table.add_row(name, about, Text(shown, overflow="fold"))
        found += table.row_count
        if table.row_count:
            console.print(table)
    if not found:
        raise MrlError(f"No setting has {word!r} in its name or its description.")


def evaluate(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of the run: runs/<name>.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help=EVALUATE_PAIR_HELP)] = None,
    samples: Annotated[int | None, typer.Option(help=EVALUATE_SAMPLES_HELP)] = None,
    data: Annotated[str | None, typer.Option(help=EVALUATE_DATA_HELP)] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help=EVALUATE_SET_HELP)] = None,
) -> None:
    """Score a run on held-out problems, with its initial and its newest weights.

    With --pair DIR_A,DIR_B instead of a run, it scores these models as they are. It also counts,
    per skill, the problems that one model always fails and the other sometimes solves.
    """
    if (directory is None) == (pair is None):
        raise MrlError("Name either a run's directory or models to score (--pair DIR_A,DIR_B).")
    if directory is None:
        config = run_config(pair, None, {}, changes or [])
    elif changes:
        raise MrlError("A run keeps its settings, so --set needs --pair DIR_A,DIR_B.")
    else:
        directory = directory.expanduser()
        config = read_run_config(directory)
    count = config.eval_samples if samples is None else samples
    files = split_list(data) if data else config.heldout
    # only these files affect the scores, so only these must be unchanged
    needed = [config.judge, *files]
    for policy in config.policies:
        needed += models_of(policy)
    config.checksums = {path: then for path, then in config.checksums.items() if path in needed}
    check(replace(config, eval_samples=count))

    states = {"before": config}
    if directory:
        checkpoint = newest_checkpoint(directory)
        if not checkpoint:
            raise MrlError(
                f"{directory} has no complete checkpoint yet; wait for one, or `resume` it."
            )
        states["after"] = with_checkpoint_paths(config, checkpoint)

    import_torch()
    from mrl.cli.carry_out import score

    score(states, files, count, of_pair=pair is not None)
