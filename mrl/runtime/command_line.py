"""The command line of `mini_mrl.py`: options in, exit code out. What it runs stands elsewhere."""

from collections.abc import Callable, Sequence

import typer

from mrl.runtime import launch, options
from mrl.runtime.commands import COMMANDS, carry_out
from mrl.runtime.pairs import choose_pair
from mrl.runtime.run import Run
from mrl.runtime.run_directory import continued_config
from mrl.runtime.settings import run_config
from mrl.runtime.start import start_run


def run_command(
    arguments: list[str],
    train_loop: Callable[[Run], bool],
    program: Callable[[list[str]], launch.Ending],
    more_commands: Sequence[Callable],
    assignment: typer.Typer,
) -> launch.Ending:
    """Run one command; returns its exit code (2 for a person's mistake) and a last sentence.

    program: what each process calls if the policies get a process of their own.
    more_commands, assignment: of lab/ and classroom/, which nothing in runtime/ may import.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    about = "Assignments for a class, that check themselves."
    app.add_typer(assignment, name="assignment", help=about)
    for command in (*COMMANDS, *more_commands):
        # the first line whole, in the list of all
        app.command(short_help=command.__doc__.split("\n")[0])(command)

    # a callback and no command: `python mini_mrl.py --mode sgt` trains without another word
    @app.callback(invoke_without_command=True)
    def train(
        context: typer.Context,
        mode: options.Mode = None,
        pair: options.Pair = None,
        steps: options.Steps = None,
        seed: options.Seed = None,
        name: options.Name = None,
        placement: options.Placement = None,
        config: options.Config = None,
        settings: options.Settings = None,
        plain: options.Plain = False,
        debug: options.Debug = False,
    ) -> None:
        """Train language models side by side that learn from each other's verified experience."""
        if context.invoked_subcommand:
            return

        why_pair = ""
        if pair is None and config is None:
            pair, why_pair = choose_pair()
        if debug:  # one process without a live view, so that `breakpoint()` in a mode works
            placement, plain = placement or "resident", True
        run_options = {
            "mode": mode, "steps": steps, "seed": seed, "name": name, "placement": placement,
        }  # fmt: skip
        whole_config = run_config(pair, config, run_options, settings or [])
        start_run(
            train_loop, program, context.obj, whole_config, plain, pair=pair or "",
            why_pair=why_pair,
        )  # fmt: skip

    @app.command(short_help="Go on with a run that was stopped.")
    def resume(
        context: typer.Context, directory: options.Directory, plain: options.Plain = False
    ) -> None:
        """Go on with a run that was stopped; on a CPU the result is the same to the last bit."""
        start_run(train_loop, program, context.obj, continued_config(directory), plain, directory)

    return carry_out(app, arguments)
