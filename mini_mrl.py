"""mini-mrl: language models of different families train side by side and learn from each other.

The whole method starts here. `train_step` is one training step in six stages, and each stage names
the files that do it. `train_loop` repeats the step.

    python mini_mrl.py --mode sgt

If the machine has a GPU, both real models and their problems, this command trains the real pair.
Otherwise it trains the embedded tiny pair, which `--pair tiny` chooses on any machine. In Python,
`load_team` builds the team that `train_step` takes.

`mrl/*.py` is the method, and `mrl/modes/` says what is shared and how it is learned. Every other
folder serves the method and can be read later.
"""

import sys

from mrl.cli.start import main

if __name__ == "__main__":
    # First of all, because help and mistakes are answered before torch is loaded. A run imports
    # this file for its `train_loop`.
    sys.exit(main())

import random
from typing import TYPE_CHECKING

import torch

from mrl.learning import learn
from mrl.modes.check import check_batch
from mrl.run.load_team import load_team
from mrl.samples import derive_seed, problems_of_step
from mrl.team import StepResult, Team

if TYPE_CHECKING:  # only for a type hint: importing this file must not load the terminal packages
    from mrl.run.run import Run

__all__ = ["load_team", "main", "train_loop", "train_step"]


def train_step(team: Team, step: int) -> dict[str, StepResult]:
    """Run one step of mutual RL. Returns one result per policy held by this process, by name."""
    team.forget_last_step()
    problems = problems_of_step(team.problems, step, team.prompts_per_step, team.seed)
    # one result per policy held by this process (exactly one under placement `parallel`)
    results = {policy.name: StepResult() for policy in team.policies}

    # Each `turn` records its duration. Under placement `swap`, it first puts on the device what the
    # policy needs there.
    # 1. sample: each policy writes G completions per prompt                 policy.py, rollout.py
    for policy in team.policies:
        with team.turn(policy, "rollout"):
            # seeds derive from the run's seed, step and policy, so no random state has to be saved
            generator = torch.Generator().manual_seed(derive_seed(team.seed, step, policy.index))
            size = policy.config.group_size * team.modes[policy.name].rollout_factor
            results[policy.name].groups = policy.rollout(problems, generator, size)

    # 2. verify: a program judges each completion                                         verifier/
    for policy in team.policies:
        with team.turn(policy, "verify"):
            team.verifier.verify_groups(results[policy.name].groups)

    # 3. publish: records of the type that the mode consumes                 records.py, exchange.py
    team.share(step, results)  # the only communication between processes within a step

    # In reverse order, because under `swap` the policy that sampled last is still on the device.
    for policy in reversed(team.policies):
        if policy.config.frozen:  # a fixed teacher: it publishes records and never learns
            continue
        mode, result = team.modes[policy.name], results[policy.name]

        # 4. collect: peers' records, judged again and in own tokens                  exchange.py
        result.experiences = team.collect(policy, result.groups)
        team.try_again(policy, step, result.experiences)  # only if the mode asks for it, as `hint`

        with team.turn(policy, "learn"):
            # 5. decide: experiences become samples              modes/, alignment.py, advantages.py
            # a separate seed, so that the mode's random choices do not depend on the sampling
            rng = random.Random(derive_seed(team.seed, step, policy.index, "mode"))
            batch = mode.training_samples(policy, result.experiences, rng)
            result.batch = check_batch(batch, mode, policy)  # finds mistakes in a mode of your own

            # 6. learn: updates from these samples       learning.py, objectives.py, logprobs.py
            updates = mode.updates_per_step(policy.config)
            result.stats = learn(policy, result.batch.samples, updates)
    return results


def train_loop(run: "Run") -> bool:
    """Evaluate, train, evaluate again. Returns False if the run was stopped before its end."""
    if run.first_step == 1:  # a resumed run has done this already
        run.evaluate("before")
    for step in range(run.first_step, run.config.steps + 1):
        results = train_step(run.team, step)
        if run.finish_step(step, results):  # writes log, view and checkpoint; True after Ctrl-C
            return False
    run.evaluate("after")
    return True
