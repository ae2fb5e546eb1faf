"""A run from its settings to its last sentence; in several processes where that pays."""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from mrl.config import RunConfig
from mrl.runtime import launch
from mrl.runtime.run import Run
from mrl.runtime.run_directory import new_directory
from mrl.runtime.summary import first_lines, last_lines
from mrl.runtime.view import console, make_view


def start_run(
    train_loop: Callable[[Run], bool],
    program: Callable[[list[str]], launch.Ending],
    arguments: Sequence[str],
    config: RunConfig,
    plain: bool,
    resumed: Path | None = None,
    pair: str = "",
    why_pair: str = "",
) -> None:
    """Make a run and take it through `train_loop`; typer.Exit if it is not finished then.

    program, arguments: what each process calls if the policies get a process of their own.
    pair, why_pair: the name of the models and the reason for them, for the first sentence.
    """
    if processes := launch.processes_for(config):
        # decided here, once: a process that is started again must not take another free name
        directory = resumed or new_directory(config)
        name = [] if resumed else ["--name", directory.name]
        code, sentence = launch.launch(program, [*arguments, *name], directory, processes)
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
        finished = train_loop(run)

    # the logs are closed and the live view is gone: what is said now stays on the screen
    for line in last_lines(run, finished):
        view.say(line)
    if not finished:
        raise typer.Exit(130)  # as shells do after Ctrl-C
