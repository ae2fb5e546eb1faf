"""mini-mrl: language models of different families train side by side and learn from each other.

The whole method is here: `train_step` is one step in six stages, each with the file that does it,
and `train_loop` repeats it. Below them stands the command line; `python mini_mrl.py --mode sgt`
trains the embedded tiny pair. `mrl/*.py` is the method, `mrl/modes` what may be shared and how;
every other folder serves the method and can be read later.
"""

import random
import signal
import sys
from pathlib import Path
from typing import Annotated

try:
    import torch
    import typer
    from rich.console import Console
except ModuleNotFoundError as error:
    print(
        f"{error.name} is not installed for this Python; run the first command of README.md, or "
        "`. .venv/bin/activate` if that was done.",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from mrl.classroom.commands import assignment
from mrl.config import HELP, RunConfig
from mrl.lab.commands import COMMANDS as LAB_COMMANDS
from mrl.lab.faults import lying_records
from mrl.learning import learn
from mrl.rollout import derive_seed
from mrl.runtime import launch
from mrl.runtime.commands import COMMANDS as RUNTIME_COMMANDS
from mrl.runtime.commands import carry_out
from mrl.runtime.metrics import StepResult
from mrl.runtime.pairs import choose_pair
from mrl.runtime.problems import problems_of_step
from mrl.runtime.run import Run
from mrl.runtime.run_directory import continued_config, new_directory
from mrl.runtime.settings import run_config
from mrl.runtime.summary import first_lines, last_lines
from mrl.runtime.view import make_view


def train_step(run: Run, step: int) -> dict[str, StepResult]:
    """One step of mutual RL: what the policies of this process did, by name."""
    config, allocation, exchange = run.config, run.allocation, run.exchange
    allocation.ledger.clear()  # of the step before
    problems = problems_of_step(run.problems, step, config.prompts_per_step, config.seed)
    # of this process's policies; under placement `parallel` that is one, and peers are elsewhere
    results = {policy.name: StepResult() for policy in run.policies}

    # 1. sample: each policy, in its turn, writes G completions a prompt     policy.py, rollout.py
    for policy in run.policies:
        with allocation.turn(policy, "rollout"):
            # all chance comes from run seed, step and policy: a resumed run has no state to restore
            generator = torch.Generator().manual_seed(derive_seed(config.seed, step, policy.index))
            size = policy.config.group_size * run.modes[policy.name].rollout_factor
            results[policy.name].groups = policy.rollout(problems, generator, size)

    # 2. verify: a program judges each completion            rewards.py, runtime/verifier.py
    for policy in run.policies:
        with allocation.turn(policy, "verify"):
            run.verifier.verify_groups(results[policy.name].groups)

    # 3. publish: records of the one type that the mode consumes             records.py, exchange.py
    kind, made = run.published, {}
    for policy in run.policies if kind else ():  # nothing crosses that no mode asks for
        name, groups = policy.name, results[policy.name].groups
        made[name] = list(run.make_records(kind, name, policy.version, groups, policy.codec))
    # the one place where policies of different processes meet
    with run.writing():  # the log of what crosses: a full disk ends the run with one sentence
        for source, records in allocation.gather(made).items():
            for record in records:
                exchange.publish(record, source)  # until the end of the step: Run.finish_step

    # B A after A B: under placement `swap` the one that is on the device stays there
    for policy in reversed(run.policies):
        mode, result = run.modes[policy.name], results[policy.name]
        if policy.config.frozen:
            continue  # a fixed teacher: what it publishes is all that it does

        # 4. collect: peers' records of that type, judged again              exchange.py
        ids = [problem.id for problem in problems]
        result.received = exchange.collect(mode.consumes, policy.name, ids, run.believes)

        with allocation.turn(policy, "learn"):
            # 5. decide: own groups and records become samples  modes/, alignment.py, advantages.py
            prompts = [(group, result.received[group.problem.id]) for group in result.groups]
            # not the sampling's seed: what a mode draws says nothing about what was sampled
            rng = random.Random(derive_seed(config.seed, step, policy.index, "mode"))
            result.batch = mode.training_samples(policy, prompts, rng)

            # 6. learn: one pass of updates              learning.py, objectives.py, logprobs.py
            result.stats = learn(policy, result.batch.samples, mode.minibatches)
    return results


def train_loop(run: Run) -> bool:
    """Score, train, score again. Returns whether the run got to its end (False: it was stopped)."""
    signal.signal(signal.SIGINT, run.stop)
    if "before" not in run.evaluations:
        run.evaluate("before")
    for step in range(run.first_step, run.config.steps + 1):
        results = train_step(run, step)
        if run.finish_step(step, results):  # log, live view, checkpoint; true after Ctrl-C
            return False
    run.evaluate("after")
    return True


# ------------------------------------------------------------------------------ command line

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(assignment, name="assignment", help="Assignments for a class, that check themselves.")
for command in (*RUNTIME_COMMANDS, *LAB_COMMANDS):
    app.command()(command)
console = Console()
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]


# a callback and no command: `python mini_mrl.py --mode sgt` trains without another word
@app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    mode: Annotated[str | None, typer.Option(help=HELP["mode"])] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen-smol, or hub names or directories: DIR_A,DIR_B[,...]"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help=HELP["steps"])] = None,
    seed: Annotated[int | None, typer.Option(help=HELP["seed"])] = None,
    name: Annotated[str | None, typer.Option(help=HELP["name"])] = None,
    placement: Annotated[str | None, typer.Option(help=HELP["placement"])] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML file with settings")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for any setting (`settings` lists all), repeatable"),
    ] = None,
    plain: Plain = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Train language models side by side that learn from each other's verified experience."""
    if context.invoked_subcommand:
        return
    why = ""
    if pair is None and config is None:
        pair, why = choose_pair()
    given = {"mode": mode, "steps": steps, "seed": seed, "name": name, "placement": placement}
    chosen = run_config(pair, config, given, settings or [])
    _train(context, chosen, plain, None, pair or "", why)


@app.command()
def resume(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="A run: runs/<name>.")],
    plain: Plain = False,
) -> None:
    """Go on with a run that was stopped; on a CPU the result is the same to the last bit."""
    _train(context, continued_config(directory), plain, directory)


def _train(
    context: typer.Context, config: RunConfig, plain: bool, resumed: Path | None, *pair: str
) -> None:
    """A run from its settings to its last sentence; in processes of their own where that pays."""
    if processes := launch.processes_for(config):
        # found once, here: a process that is started again must not take another free name
        directory = resumed or new_directory(config)
        name = [] if resumed else ["--name", directory.name]
        code, sentence = launch.launch(outcome, [*context.obj, *name], directory, processes)
        if sentence:
            print(sentence, file=sys.stderr)
        raise typer.Exit(code)
    with make_view(console, config, plain) as view, Run(config, view, resumed) as run:
        if config.liar:  # planted on purpose: the loop does not know
            run.make_records = lying_records(config.liar, config.seed)
        for line in first_lines(run, *pair):
            view.say(line)
        finished = train_loop(run)
    # the logs are closed and the live view is gone: what is said now stays on the screen
    for line in last_lines(run, finished):
        view.say(line)
    if not finished:
        raise typer.Exit(130)  # as shells do after Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, say how it ended, and return the exit code."""
    signal.signal(signal.SIGTERM, launch.terminate)
    code, sentence = outcome(sys.argv[1:] if arguments is None else arguments)
    if sentence:
        print(sentence, file=sys.stderr)
    return code


def outcome(arguments: list[str]) -> launch.Outcome:
    """Exit code and last sentence of a command, also in a process of its own."""
    return carry_out(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
