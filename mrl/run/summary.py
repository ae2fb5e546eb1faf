"""The sentences and tables that a user reads before and after a run."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import NormalDist

from rich.table import Column, Table

from mrl.policy import Policy
from mrl.run.blind_spots import blind_spots, knows, learners_of, of_first_split, rates_of
from mrl.run.directory import read_metrics
from mrl.run.intervals import half_width
from mrl.run.run import Run
from mrl.run.view import cell
from mrl.samples import Problem

LISTED = 8  # largest number of blind spots that a sentence names


def first_lines(run: Run, pair: str = "", why: str = "") -> list[str]:
    """Sentences about the run that is starting.

    pair: the name of the pair. why: a sentence about its choice, or "".
    """
    config, team = run.config, run.team
    mode = team.mode

    # gathered, because a process may hold only one of the policies
    learners = team.allocation.gather({p.name: _size_and_rate(p) for p in team.policies})
    pair_words = {"tiny": "the tiny pair: ", "qwen-smol": "the pretrained pair: "}.get(pair, "")
    groups = ", ".join(f"{p.name} {p.group_size * mode.rollout_factor}" for p in config.policies)
    problems = "/".join(Path(config.train).parts[-2:])
    shared = f"{team.record_type.kind} records" if team.record_type else "nothing"
    lines = [
        f"Training {pair_words}{' and '.join(learners.values())}, on {team.device}.",
        why,
        f"Mode {mode.name} shares {shared}. {config.steps} steps of {config.prompts_per_step} "
        f"prompts from {problems}; completions per prompt: {groups}; seed {config.seed}.",
        _alone(mode.name) if mode.consumes and not team.record_type else "",
        f"The run is saved in {run.directory}.",
        team.why_placed,
    ]

    # hacpo and graft use the objective of their papers
    if objective := mode.objective_of_paper:
        also = f'--set {mode.name}.own_objective="" uses the objective of each policy instead'
        lines.append(f"Objective: {objective}, as in the paper of {mode.name} ({also}).")
    return [line for line in lines if line]


def _alone(mode: str) -> str:
    """A sentence about a mode that shares, in a team of one."""
    return (
        f"There is only one policy, so no peer sends anything, and `{mode}` can do no more than "
        "`solo` does: learn from the policy's own completions. To train with a peer, name two "
        "models: --pair DIR_A,DIR_B."
    )


def _size_and_rate(policy: Policy) -> str:
    config, millions = policy.config, policy.model.num_parameters() / 1e6
    size = f"{millions:.3g} M" if millions < 1000 else f"{millions / 1000:.3g} B"
    lora = f"LoRA of rank {config.lora_rank}, " if config.lora_rank else ""
    how = "frozen" if config.frozen else f"{lora}learning rate {config.learning_rate:g}"
    return f"{policy.name} ({size} parameters, {how})"


def last_lines(run: Run, finished: bool) -> list[Table | str]:
    """A table and sentences about the result of the run."""
    if not finished:
        return [f"Saved. {run.how_to_resume}"]
    return [
        evaluation_table(run.evaluations),
        learned_sentence(run.evaluations, read_metrics(run.directory)),
        f"For a report with plots: python mini_mrl.py report {run.directory}",
        f"To ask the models sentences of your own: python mini_mrl.py ask --run {run.directory}",
    ]


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """A table of pass@1 and pass@k in percent, before and after training.

    It has a row per file and skill, and columns per policy.
    """
    *_, last = evaluations.values()
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]

    title = f"held-out problems, {' -> '.join(evaluations)}"
    # the table must fit into 80 columns, so a long file name may wrap
    first = Column("split", "split", min_width=10), Column("skill", "skill", no_wrap=True)
    # the columns' names also stand below, because in a small terminal those above scroll away
    table = Table(*first, title=title, show_footer=True)
    table.caption = "pass@1: percent of problems that one attempt solves, ± a 95% interval"
    if len(metrics) > 1:
        table.caption += f"; {metrics[1]}: by at least one of {last[0]['samples']} attempts"
    for name in dict.fromkeys(scores["policy"] for scores in last):
        for metric in metrics:
            words = cell(f"{name}\n{metric}")
            table.add_column(words, words, justify="right")

    for split in dict.fromkeys(scores["split"] for scores in last):
        # one entry per policy, in the same order before and after
        of_split = [[e for e in entries if e["split"] == split] for entries in evaluations.values()]
        for skill in ("", *of_split[0][0]["skills"]):  # "" stands for the mean over skills
            cells = []
            for sides in zip(*of_split, strict=True):
                for metric in metrics:
                    shares = [side["skills"][skill] if skill else side for side in sides]
                    cells.append(" -> ".join(f"{100 * rates[metric]:.0f}" for rates in shares))
                    if metric == "pass@1" and not skill:
                        # no spaces, so that the table fits into 80 columns
                        cells[-1] += f"±{100 * half_width(sides[-1]):.0f}"
            _add_skill(table, split, skill, cells)
        table.add_section()
    return table


def _add_skill(table: Table, split: str, skill: str, cells: list[str]) -> None:
    """Add the row of a skill; an empty skill adds the bold row for the mean over all skills."""
    if skill:
        table.add_row("", cell(skill), *cells)
    else:
        table.add_row(cell(split.replace("_", " ")), "overall", *cells, style="bold")


def pair_table(heldout: dict[str, list[Problem]], solved: dict[str, dict[str, list[int]]]) -> Table:
    """A table that counts the problems that one policy always fails and another sometimes solves.

    solved: policy -> file -> number of correct completions of each problem.
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
    """The largest gain: policy, skill, and solve rates before and after.

    None if every gain may be due to chance.

    ends: each policy's entries before and after training. Because the largest of many gains is
    chosen, the intervals hold jointly for all of them at 95% (Bonferroni).
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


def learned_sentence(evaluations: dict[str, list[dict]], lines: list[dict]) -> str:
    """One sentence for newcomers about what was learned, measured on the first held-out file.

    It names the blind spots that were closed and those that were not. If there was no blind spot,
    it names the largest gain instead, although RL without a peer may reach the same. The sentence
    is empty if the held-out problems were not scored both before and after training.

    lines: those of the run's `metrics.jsonl`.
    """
    before, after = (of_first_split(evaluations.get(when, ())) for when in ("before", "after"))
    ends = list(zip(before, after, strict=False))  # both have the policies in the same order
    if not ends:
        return ""

    closed, left = _blind_spots(evaluations, lines)
    if closed or left:
        sentences = [f"Blind spots closed: {_listed(closed)}."]
        if left:
            sentences.append(f"Not closed: {_listed(left)}.")
        return " ".join([*sentences, *_imitations(lines)])

    gain = largest_gain(ends)
    if not gain:
        return "No policy improved at any skill by more than chance explains (95%)."
    name, skill, share_before, share_after = gain
    return (
        f"Largest gain: `{skill}` of {name}: {share_before:.0%} -> {share_after:.0%}. RL without "
        "a peer may gain as much; `python mini_mrl.py compare` measures that."
    )


def _blind_spots(
    evaluations: dict[str, list[dict]], lines: Sequence[dict]
) -> tuple[list[str], list[str]]:
    """The blind spots that were closed, and the others, in words."""
    before, after = (rates_of(evaluations[when]) for when in ("before", "after"))
    closed, left = [], []
    for policy, skill in blind_spots(before, learners_of(lines)):
        ends = before[policy][skill], after[policy][skill]
        words = f"`{skill}` of {policy}: {ends[0]:.0%} -> {ends[1]:.0%}"
        (closed if knows(ends[1]) else left).append(words)
    return closed, left


def _imitations(lines: Sequence[dict]) -> list[str]:
    """How many peers' solutions each policy imitated, and how many of these were rescues."""
    imitated: Counter[str] = Counter()
    rescues: Counter[str] = Counter()
    for line in lines:
        rescues[line["policy"]] += line["rescues"]
        imitated[line["policy"]] += line.get("imitated", line["rescues"])  # absent in version 0.2
    hinted: Counter[str] = Counter()
    for line in lines:
        hinted[line["policy"]] += line.get("hinted", 0)
    if hinted.total():
        return [f"Own completions of a peer's beginning imitated: {_counted(hinted)}."]
    if not imitated.total():
        return []

    sentences = [f"Peers' solutions imitated: {_counted(imitated)}."]
    if rescues != imitated:
        where = "Of these, after all attempts at the prompt had failed"
        sentences.append(f"{where}: {_counted(rescues)}.")
    return sentences


def _counted(counts: Counter[str]) -> str:
    """The counts that are not 0, for example `qwen-tiny 3, llama-tiny 5`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def _listed(blind_spots: Sequence[str]) -> str:
    more = len(blind_spots) - LISTED
    words = [*blind_spots[:LISTED], *([f"and {more} more"] if more > 0 else [])]
    return ", ".join(words) or "none"
