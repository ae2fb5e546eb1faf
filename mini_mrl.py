"""mini-mrl: language models of different families train side by side and learn from each other.

The whole method is here: `train_step` is one step in six stages, each with the file that does it,
and `train_loop` repeats it. Below them stands the command line; `python mini_mrl.py --mode sgt`
trains the embedded tiny pair. `mrl/*.py` is the method, `mrl/modes` what may be shared and how;
every other folder serves the method and can be read later.
"""

import random
import signal
import sys

try:
    import torch
    import typer
except ModuleNotFoundError as error:
    print(
        f"{error.name} is not installed for this Python; run the first command of README.md, or "
        "`. .venv/bin/activate` if that was done.",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from mrl.classroom.commands import assignment
from mrl.diagnostics import LearningStats
from mrl.lab.commands import COMMANDS as LAB_COMMANDS
from mrl.learning import learn
from mrl.modes import TrainingBatch
from mrl.runtime import launch, options
from mrl.runtime.commands import COMMANDS as RUNTIME_COMMANDS
from mrl.runtime.commands import carry_out
from mrl.runtime.own_code import checked_batch
from mrl.runtime.pairs import choose_pair
from mrl.runtime.run import Run
from mrl.runtime.run_directory import continued_config
from mrl.runtime.settings import run_config
from mrl.runtime.start import start_run
from mrl.samples import StepResult, derive_seed, problems_of_step


def train_step(run: Run, step: int) -> dict[str, StepResult]:
    """One step of mutual RL: what the policies of this process did, by name."""
    config, allocation, exchange = run.config, run.allocation, run.exchange
    allocation.ledger.clear()  # the times of the last step's turns
    problems = problems_of_step(run.problems, step, config.prompts_per_step, config.seed)
    # of this process's policies; under placement `parallel` that is one, and peers are elsewhere
    results = {policy.name: StepResult() for policy in run.policies}

    # Each turn notes its time. Under placement `swap` it also brings what it needs to the device.

    # 1. sample: each policy writes G completions per prompt                 policy.py, rollout.py
    for policy in run.policies:
        with allocation.turn(policy, "rollout"):
            # all chance comes from run seed, step and policy: no random state has to be saved
            generator = torch.Generator().manual_seed(derive_seed(config.seed, step, policy.index))
            size = policy.config.group_size * run.modes[policy.name].rollout_factor
            results[policy.name].groups = policy.rollout(problems, generator, size)

    # 2. verify: a program judges each completion            rewards.py, runtime/verifier.py
    for policy in run.policies:
        with allocation.turn(policy, "verify"):
            run.verifier.verify_groups(results[policy.name].groups)

    # 3. publish: records of the type that the mode reads                    records.py, exchange.py
    outgoing = {}
    if run.record_type:  # else nothing crosses
        for policy in run.policies:
            name, groups = policy.name, results[policy.name].groups
            records = run.make_records(run.record_type, name, policy.version, groups, policy.codec)
            outgoing[name] = list(records)
    # within a step, policies of different processes meet only here
    published = allocation.gather(outgoing)
    for source, records in published.items():
        for record in records:
            exchange.publish(record, source)  # logged, and forgotten again, in Run.finish_step

    # In reverse order: under placement `swap` the policy that sampled last is still on the device.
    for policy in reversed(run.policies):
        mode, result = run.modes[policy.name], results[policy.name]
        if policy.config.frozen:  # a fixed teacher: what it publishes is all that it does
            result.batch, result.stats = TrainingBatch(), LearningStats()
            continue

        # 4. collect: peers' records of that type; then judge them again           exchange.py
        ids = [problem.id for problem in problems]
        received = exchange.collect(mode.consumes, policy.name, ids)
        result.believed = run.judge_again(policy.name, received)

        with allocation.turn(policy, "learn"):
            # 5. decide: own groups and records become samples  modes/, alignment.py, advantages.py
            # for each prompt: the own group, and the peers' records about it
            prompts = [(group, result.believed[group.problem.id]) for group in result.groups]
            # a seed of its own, so that a mode's draws do not depend on the sampling
            rng = random.Random(derive_seed(config.seed, step, policy.index, "mode"))
            batch = mode.training_samples(policy, prompts, rng)
            result.batch = checked_batch(batch, mode, policy)  # the mode may be your own

            # 6. learn: updates from these samples       learning.py, objectives.py, logprobs.py
            result.stats = learn(policy, result.batch.samples, mode.minibatches)
    return results


def train_loop(run: Run) -> bool:
    """Evaluate, train, evaluate again. Returns False if the run was stopped before its end."""
    signal.signal(signal.SIGINT, run.stop)
    if "before" not in run.evaluations:  # a resumed run has done it
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
    app.command(short_help=command.__doc__.split("\n")[0])(command)  # whole, in the list of all


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
    run_options = {
        "mode": mode, "steps": steps, "seed": seed, "name": name, "placement": placement,
    }  # fmt: skip
    whole_config = run_config(pair, config, run_options, settings or [])
    start_run(
        train_loop, program, context.obj, whole_config, plain, pair=pair or "", why_pair=why_pair
    )


@app.command(short_help="Go on with a run that was stopped.")
def resume(
    context: typer.Context, directory: options.Directory, plain: options.Plain = False
) -> None:
    """Go on with a run that was stopped; on a CPU the result is the same to the last bit."""
    start_run(train_loop, program, context.obj, continued_config(directory), plain, directory)


def program(arguments: list[str]) -> launch.Ending:
    """Run a command, also in a process of its own; returns exit code and last sentence."""
    return carry_out(app, arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, say how it ended, and return the exit code."""
    signal.signal(signal.SIGTERM, launch.terminate)
    code, sentence = program(sys.argv[1:] if arguments is None else arguments)
    if sentence:
        print(sentence, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
