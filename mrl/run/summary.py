"""The sentences and tables that a person reads before and after a run."""

import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import NormalDist

from rich.table import Column, Table

from mrl.policy import Policy
from mrl.run.directory import read_rescues
from mrl.run.evaluation import half_width, of_first_split
from mrl.run.run import Run
from mrl.run.view import cell
from mrl.samples import Problem


def first_lines(run: Run, pair: str = "", why: str = "") -> list[str]:
    """Sentences on what is about to happen. pair: its name; why: the reason for its choice."""
    config, team = run.config, run.team
    mode = team.mode

    # gathered, because a process may hold only one of the policies
    learners = team.allocation.gather({p.name: _size_and_rate(p) for p in team.policies})
    pair_words = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    groups = ", ".join(f"{p.name} {p.group_size * mode.rollout_factor}" for p in config.policies)
    problems = "/".join(Path(config.train).parts[-2:])
    crosses = f"{team.record_type.kind} records" if team.record_type else "nothing"
    lines = [
        f"Training {pair_words}{' and '.join(learners.values())}, on {team.device}{why}.",
        f"Mode {mode.name} shares {crosses}; {config.steps} steps of {config.prompts_per_step} "
        f"prompts from {problems}; completions per prompt: {groups}; seed {config.seed}; "
        f"writing {run.directory}.",
        team.why_placed,
    ]

    # hacpo and graft bring the objective that they were published with
    if getattr(mode, "own_objective", ""):
        also = f"`--set {mode.name}.own_objective=` takes that of each policy"
        lines.append(f"Objective: {mode.own_objective}, as {mode.name} was published; {also}.")
    return lines


def _size_and_rate(policy: Policy) -> str:
    config, millions = policy.config, policy.model.num_parameters() / 1e6
    size = f"{millions:.3g} M" if millions < 1000 else f"{millions / 1000:.3g} B"
    lora = f"LoRA of rank {config.lora_rank}, " if config.lora_rank else ""
    how = "frozen" if config.frozen else f"{lora}learning rate {config.learning_rate:g}"
    return f"{policy.name} ({size} parameters, {how})"


def last_lines(run: Run, finished: bool) -> list[Table | str]:
    """A table and sentences on what happened."""
    if not finished:
        return [f"Saved. {run.how_to_resume}"]
    sentence = learnt_sentence(run.evaluations, read_rescues(run.directory))
    return [evaluation_table(run.evaluations), sentence]


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """A table of pass@1 and pass@k per policy and skill, before -> after, by held-out part."""
    *_, last = evaluations.values()
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]

    title = f"held-out problems, {' -> '.join(evaluations)}"
    # 80 columns are full: the name of a set may wrap at its `_`
    table = Table(Column("split", min_width=10), Column("skill", no_wrap=True), title=title)
    for name in dict.fromkeys(scores["policy"] for scores in last):
        for metric in metrics:
            table.add_column(cell(f"{name}\n{metric}"), justify="right")

    for split in dict.fromkeys(scores["split"] for scores in last):
        # one of each policy, in the same order before and after
        of_part = [[e for e in entries if e["split"] == split] for entries in evaluations.values()]
        for skill in ("", *of_part[0][0]["skills"]):  # "": the mean over skills
            cells = []
            for sides in zip(*of_part, strict=True):
                for metric in metrics:
                    shares = [side["skills"][skill] if skill else side for side in sides]
                    cells.append(" -> ".join(f"{100 * rates[metric]:.0f}" for rates in shares))
                    if metric == "pass@1" and not skill:
                        cells[-1] += f"±{100 * half_width(sides[-1]):.0f}"  # 80 columns are full
            _add_skill(table, split, skill, cells)
        table.add_section()
    return table


def _add_skill(table: Table, split: str, skill: str, cells: list[str]) -> None:
    """Add a skill's row, or the bold first row of a part, which is over all skills."""
    if skill:
        table.add_row("", cell(skill), *cells)
    else:
        table.add_row(cell(split.replace("_", " ")), "overall", *cells, style="bold")


def pair_table(heldout: dict[str, list[Problem]], solved: dict[str, dict[str, list[int]]]) -> Table:
    """A table of how many problems a policy failed at every try and another one did not.

    solved: by policy and part, how many completions of each problem are right.
    """
    directions = list(permutations(solved, 2))
    table = Table("split", "skill", "problems", title="what one policy could learn from another")
    for receiver, source in directions:
        table.add_column(f"{receiver} never,\n{source} sometimes", justify="right")

    for split, problems in heldout.items():
        for skill in ("", *dict.fromkeys(problem.skill for problem in problems)):
            places = [i for i, problem in enumerate(problems) if skill in ("", problem.skill)]
            cells = [str(len(places))]
            for receiver, source in directions:
                own, theirs = solved[receiver][split], solved[source][split]
                cells.append(str(sum(own[i] == 0 and theirs[i] > 0 for i in places)))
            _add_skill(table, split, skill, cells)
    return table


def largest_gain(ends: Sequence[tuple[dict, dict]]) -> tuple[str, str, float, float] | None:
    """Policy, skill, and its solve rates before and after, of the largest gain.

    ends: each policy's entries before and after. None if no gain is beyond its interval. The
    intervals hold for all candidates together with 95 %, because the largest gain is chosen from
    them (Bonferroni).
    """
    candidates = sum(len(now["skills"]) for _, now in ends)
    z = NormalDist().inv_cdf(1 - 0.05 / 2 / candidates)
    best, most = None, 0.0
    for then, now in ends:
        for skill in now["skills"]:
            before, after = then["skills"][skill]["pass@1"], now["skills"][skill]["pass@1"]
            chance = math.hypot(half_width(then, skill, z), half_width(now, skill, z))
            if after - before > max(chance, most):
                best, most = (now["policy"], skill, before, after), after - before
    return best


def learnt_sentence(evaluations: dict[str, list[dict]], rescues: list[dict]) -> str:
    """A sentence on what was learnt, plain enough for a first reader.

    It names the largest gain, and how often that policy was rescued.
    Empty if the held-out problems were not scored at both ends.
    """
    before, after = (of_first_split(evaluations.get(when, ())) for when in ("before", "after"))
    ends = list(zip(before, after, strict=False))  # in one order
    if not ends:
        return ""

    gain = largest_gain(ends)
    if not gain:
        return "No policy got better at any skill beyond chance (95 %)."

    name, skill, before, after = gain
    sentence = (
        f'{name} solved "{skill}" problems {before:.0%} of the time before, {after:.0%} after'
    )
    own_rescues = [rescue for rescue in rescues if rescue["receiver"] == name]
    if own_rescues:
        on_skill = sum(rescue["skill"] == skill for rescue in own_rescues)
        sentence += f'; it was rescued {len(own_rescues)} times, {on_skill} of them on "{skill}"'
    return sentence + "."
