"""Carries out what a command line asks for: a run, or scores of models.

This file imports torch and the method. command_line.py imports it only when all options are right,
so that help and mistakes are answered at once.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from mini_mrl import train_loop
from mrl.config import RunConfig
from mrl.models.loading import claim_device, claim_process, load_policies
from mrl.run import launch
from mrl.run.directory import new_directory
from mrl.run.evaluation import load_heldout, score_entries, solve_heldout
from mrl.run.run import Run
from mrl.run.summary import evaluation_table, first_lines, last_lines, pair_table
from mrl.run.view import View, console, make_view
from mrl.verifier.verifier import make_verifier


def start_run(
    program: Callable[[list[str]], launch.Ending],
    arguments: Sequence[str],
    config: RunConfig,
    plain: bool,
    resumed: Path | None = None,
    pair: str = "",
    why_pair: str = "",
) -> None:
    """Carry out a run, from its settings to its last sentence.

    program, arguments: what each process does under placement `parallel`: the same command line.
    resumed: the directory of the run to continue; None starts a new run.
    pair, why_pair: the name of the pair and a sentence about its choice, for the first lines.
    Raises typer.Exit if the run was interrupted.
    """
    claim_process()
    processes = launch.processes_for(config)
    if processes:
        # chosen here, so that the last sentence can name it if a process dies
        directory = resumed or new_directory(config)
        name = [] if resumed else ["--name", directory.name]
        code, sentence = launch.launch(program, [*arguments, *name], directory, processes)
        console.show_cursor()  # if a process died, its live view has left the cursor hidden
        if sentence:
            print(sentence, file=sys.stderr)
        raise typer.Exit(code)

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


def score(states: dict[str, RunConfig], files: Sequence[str], samples: int, of_pair: bool) -> None:
    """Score models on held-out problems, and print a table.

    states: the models, as settings, with "before" and perhaps "after" training.
    files, samples: the held-out problems, and the completions per problem.
    of_pair: also print what the models could learn from each other.
    """
    claim_process()
    results: dict[str, list[dict]] = {}
    view = View(console, [], 0)
    config = states["before"]
    with make_verifier(config.judge, config.verify_timeout_s, view.say) as verifier:
        splits = load_heldout(list(files), verifier)
        for when, state in states.items():
            policies = load_policies(state, claim_device(config))
            about = policies, splits, verifier, samples, config.seed
            solved = solve_heldout(*about, progress=view.progress)
            results[when] = score_entries(solved, splits, samples)
            del policies, about  # free the memory before the newest weights are loaded

    console.print(evaluation_table(results))
    if of_pair:
        console.print(pair_table(splits, solved))
