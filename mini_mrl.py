"""mini-mrl: language models of different families train side by side and learn from each other.

The whole method is here: `train_step` is one step in six stages, each with the file that does it,
and `train_loop` repeats it. `python mini_mrl.py --mode sgt` trains the embedded tiny pair, except
on a machine with a GPU that has the real pair's models and problems (there `--pair tiny` does).
From Python, `load_team` makes what a step takes. `mrl/*.py` is the method, `mrl/modes` what may be
shared and how; every other folder serves the method and can be read later.
"""

import random
import signal
import sys
from typing import TYPE_CHECKING

try:
    if __name__ == "__main__":  # Ctrl-C during the imports, which take seconds: no traceback
        pythons_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    import torch
except ModuleNotFoundError as error:
    print(
        f"{error.name} is not installed for this Python; run the first command of README.md, or "
        "`. .venv/bin/activate` if that was done.",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from mrl.learning import learn
from mrl.modes.check import checked_batch
from mrl.run import launch
from mrl.run.load_team import load_team
from mrl.samples import derive_seed, problems_of_step
from mrl.team import StepResult, Team

if TYPE_CHECKING:  # the step needs no run, and a Python program none of the terminal's packages
    from mrl.run.run import Run

__all__ = ["load_team", "main", "train_loop", "train_step"]


def train_step(team: Team, step: int) -> dict[str, StepResult]:
    """One step of mutual RL: what the policies of this process did, by name."""
    team.forget_last_step()
    problems = problems_of_step(team.problems, step, team.prompts_per_step, team.seed)
    # of this process's policies; under placement `parallel` that is one, and peers are elsewhere
    results = {policy.name: StepResult() for policy in team.policies}

    # Each turn notes its time. Under placement `swap` it also brings what it needs to the device.

    # 1. sample: each policy writes G completions per prompt                 policy.py, rollout.py
    for policy in team.policies:
        with team.turn(policy, "rollout"):
            # all chance comes from seed, step and policy: no random state has to be saved
            generator = torch.Generator().manual_seed(derive_seed(team.seed, step, policy.index))
            size = policy.config.group_size * team.modes[policy.name].rollout_factor
            results[policy.name].groups = policy.rollout(problems, generator, size)

    # 2. verify: a program judges each completion                                         verifier/
    for policy in team.policies:
        with team.turn(policy, "verify"):
            team.verifier.verify_groups(results[policy.name].groups)

    # 3. publish: records of the type that the mode consumes                 records.py, exchange.py
    team.share(step, results)  # within a step, policies of different processes meet only here

    # In reverse order: under placement `swap` the policy that sampled last is still on the device.
    for policy in reversed(team.policies):
        if policy.config.frozen:  # a fixed teacher: what it publishes is all that it does
            continue
        mode, result = team.modes[policy.name], results[policy.name]

        # 4. collect: peers' records of that type, judged again: one may lie           exchange.py
        received = team.exchange.collect(mode.consumes, policy.name, [p.id for p in problems])
        with team.turn(policy, "judge"):
            for problem in problems:
                records = received[problem.id]
                confirmed = [record for record in records if team.confirms(record, problem)]
                team.exchange.count_not_confirmed(policy.name, len(records) - len(confirmed))
                result.confirmed[problem.id] = confirmed

        with team.turn(policy, "learn"):
            # 5. decide: own groups and records become samples  modes/, alignment.py, advantages.py
            groups_and_records = []  # for each prompt: the own group, and the peers' records
            for group in result.groups:
                groups_and_records.append((group, result.confirmed[group.problem.id]))
            # chance of its own, so that a mode's draws do not depend on the sampling
            rng = random.Random(derive_seed(team.seed, step, policy.index, "mode"))
            batch = mode.training_samples(policy, groups_and_records, rng)
            result.batch = checked_batch(batch, mode, policy)  # the mode may be your own

            # 6. learn: updates from these samples       learning.py, objectives.py, logprobs.py
            updates = mode.updates_per_step(policy.config)
            result.stats = learn(policy, result.batch.samples, updates)
    return results


def train_loop(run: "Run") -> bool:
    """Evaluate, train, evaluate again. Returns False if the run was stopped before its end."""
    signal.signal(signal.SIGINT, run.stop)
    if run.first_step == 1:  # a run that goes on from a checkpoint has done it
        run.evaluate("before")
    for step in range(run.first_step, run.config.steps + 1):
        results = train_step(run.team, step)
        if run.finish_step(step, results):  # log, live view, checkpoint; true after Ctrl-C
            return False
    run.evaluate("after")
    return True


def program(arguments: list[str]) -> launch.Ending:
    """Run a command line, also in a process of its own; returns exit code and a last sentence."""
    # imported here, because a Python program that imports this file needs none of it
    from mrl.classroom.commands import assignment
    from mrl.cli.command_line import Program, run_command
    from mrl.lab.commands import COMMANDS

    return run_command(Program(arguments, train_loop, program), COMMANDS, assignment)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, say how it ended, and return the exit code."""
    signal.signal(signal.SIGTERM, launch.terminate)
    code, sentence = program(sys.argv[1:] if arguments is None else arguments)
    if sentence:
        print(sentence, file=sys.stderr)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGINT, pythons_handler)
    sys.exit(main())
