"""The command line of `mini_mrl.py`: it reads options, runs a command, and returns an exit code."""

import sys
import traceback
from bdb import BdbQuit
from collections.abc import Sequence
from dataclasses import fields, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import mrl
from mrl.classroom.commands import assignment
from mrl.cli.usage import usage_sentence
from mrl.config import DATA, HELP, PolicyConfig, RunConfig
from mrl.errors import PROGRAM, MrlError, RunFailed, is_out_of_memory, place_of
from mrl.lab.commands import COMMANDS
from mrl.models.loading import claim_device, claim_process, load_policies
from mrl.modes import MODES
from mrl.parsing import split_list
from mrl.run import launch
from mrl.run.directory import (
    continued_config,
    new_directory,
    newest_checkpoint,
    read_run_config,
    with_checkpoint_paths,
)
from mrl.run.evaluation import load_heldout, score_entries, solve_heldout
from mrl.run.run import Run
from mrl.run.summary import evaluation_table, first_lines, last_lines, pair_table
from mrl.run.view import View, console, make_view, printable
from mrl.settings.pairs import choose_pair
from mrl.settings.settings import check, run_config
from mrl.verifier.verifier import make_verifier

MODE_HELP = f"Sharing mode: {', '.join(MODES)}; or FILE.py:Class for your own."
PAIR_HELP = "Models to train: tiny, qwen-smol, or directories or hub names: DIR_A,DIR_B[,...]."
BEST_PAIR = "tiny, or qwen-smol if there is a GPU and both models and GSM8K were downloaded"
EVALUATE_PAIR_HELP = "Models to score instead of a run: DIR_A,DIR_B, as described above."
EVALUATE_SAMPLES_HELP = "Completions per problem (default: the run's eval_samples)."
EVALUATE_DATA_HELP = "Problem files, separated by commas (default: the run's held-out files)."
EVALUATE_SET_HELP = "Any setting, as KEY=VALUE, if you name models with --pair; repeatable."


def run_command(arguments: list[str]) -> launch.Ending:
    """Run one command. Returns its exit code (2 for a user's mistake) and a last sentence.

    Raises ModuleNotFoundError if a package that the program needs is not installed.
    """
    claim_process()
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


def _ending(error: Exception) -> launch.Ending:
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
    start_run(context.obj, whole_config, plain, pair=pair or "", why_pair=why_pair)


def resume(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Directory of the run: runs/<name>.")],
    plain: Plain = False,
) -> None:
    """Continue an interrupted run.

    On a CPU the result is bit-for-bit the same as without the interruption.
    """
    directory = directory.expanduser()
    start_run(context.obj, continued_config(directory), plain, resumed=directory)


def start_run(
    arguments: Sequence[str],
    config: RunConfig,
    plain: bool,
    resumed: Path | None = None,
    pair: str = "",
    why_pair: str = "",
) -> None:
    """Carry out a run, from its settings to its last sentence.

    arguments: the command line, which each process repeats under placement `parallel`.
    resumed: the directory of the run to continue; None starts a new run.
    pair, why_pair: the name of the pair and a sentence about its choice, for the first lines.
    Raises typer.Exit if the run was interrupted.
    """
    processes = launch.processes_for(config)
    if processes:
        # chosen here, so that the last sentence can name it if a process dies
        directory = resumed or new_directory(config)
        name = [] if resumed else ["--name", directory.name]
        code, sentence = launch.launch(run_command, [*arguments, *name], directory, processes)
        console.show_cursor()  # if a process died, its live view has left the cursor hidden
        if sentence:
            print(sentence, file=sys.stderr)
        raise typer.Exit(code)

    from mini_mrl import train_loop  # here, because mini_mrl.py is also the program

    launch.end_at_once()  # nothing can be lost yet
    with make_view(console, config, plain) as view, Run(config, view, resumed) as run:
        launch.stop_by_signals(run.stop)
        for line in first_lines(run, pair, why_pair):
            view.say(line)
        finished = train_loop(run)

    # the live view is closed by now, so these lines stay on the screen
    for line in last_lines(run, finished):
        view.say(line)
    if finished and run.writes_files:
        from mrl.run.figures import save_curves  # matplotlib takes a while to import

        view.say(save_curves(run.directory))
    if not finished:
        raise typer.Exit(130)  # the exit code that shells use after Ctrl-C


# ------------------------------------------------------------------------------ around runs


def settings() -> None:
    """List the modes, and every setting that --set and --config accept, with its default."""
    tables = {
        "of a run": {"": RunConfig([])},
        "of a policy ([[policy]] in a file)": {"": PolicyConfig("", "")},
        "of the modes": {f"{name}.": mode() for name, mode in MODES.items()},
    }
    for title, holders in tables.items():
        table = Table("setting", "what it is", "default", title=Text(f"settings {title}"))
        for prefix, holder in holders.items():
            if prefix:
                table.add_row(Text(holder.name, "bold"), holder.__doc__.split("\n")[0])
            for entry in fields(holder):
                if "help" in entry.metadata:
                    shown = str(getattr(holder, entry.name)).replace(f"{DATA.parent}/", "")
                    table.add_row(prefix + entry.name, entry.metadata["help"], Text(shown))
        console.print(table)


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
    needed = (config.judge, *files)
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

    results: dict[str, list[dict]] = {}
    view = View(console, [], 0)
    with make_verifier(config.judge, config.verify_timeout_s, view.say) as verifier:
        splits = load_heldout(files, verifier)
        for when, state in states.items():
            policies = load_policies(state, claim_device(config))
            about = policies, splits, verifier, count, config.seed
            solved = solve_heldout(*about, progress=view.progress)
            results[when] = score_entries(solved, splits, count)
            del policies, about  # free the memory before the newest weights are loaded

    console.print(evaluation_table(results))
    if pair:
        console.print(pair_table(splits, solved))
