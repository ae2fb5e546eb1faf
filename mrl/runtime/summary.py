"""The sentences and tables that a person reads before and after a run."""

import math
from collections import Counter
from itertools import permutations
from pathlib import Path

from rich.table import Column, Table

from mrl.config import DATA
from mrl.policy import Policy
from mrl.runtime.evaluation import half_width, problems_of
from mrl.runtime.memory import peak_memory
from mrl.runtime.run import Run
from mrl.runtime.run_directory import read_rescues
from mrl.runtime.view import cell
from mrl.samples import Problem

FEW = 20  # a gain on fewer problems of a skill is not called one


def first_lines(run: Run, pair: str = "", why: str = "") -> list[str]:
    """Sentences on what is about to happen. pair: its name; why: the reason for its choice."""
    config, team = run.config, run.team
    mode = team.mode

    # gathered, because a process may hold only one of the policies
    of_this_process = {}
    for policy in team.policies:
        learner = f"{policy.name} ({_size_and_rate(policy)})"
        of_this_process[policy.name] = learner, unseen_prompt(policy)
    of_policies = team.allocation.gather(of_this_process).values()
    learners = " and ".join(learner for learner, _ in of_policies)
    pair_words = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    groups = ", ".join(f"{p.name} {p.group_size * mode.rollout_factor}" for p in config.policies)
    problems = "/".join(Path(config.train).parts[-2:])
    crosses = f"{team.record_type.kind} records" if team.record_type else "nothing"
    lines = [
        f"Training {pair_words}{learners}, on {team.device}{why}.",
        f"Mode {mode.name} shares {crosses}; {plural(config.steps, 'step')} of "
        f"{plural(config.prompts_per_step, 'prompt')} from {problems}; completions per prompt: "
        f"{groups}; seed {config.seed}; writing {run.directory}.",
        team.why_placed,
    ]
    embedded = {Path(policy.path).resolve().parent for policy in config.policies} == {DATA / "tiny"}
    if not embedded:  # the tiny pair was made without a system prompt
        lines += [note for _, note in of_policies if note]

    # hacpo and graft bring the objective that they were published with
    own_objective = getattr(mode, "own_objective", "")
    if own_objective:
        lines.append(
            f"Each policy trains by {own_objective}, as {mode.name} was published. Its own "
            "`objective`, `clip_low` and `clip_high` are used with "
            f"`--set {mode.name}.own_objective=` (nothing behind the =)."
        )
    if config.judge:
        lines.append(f"Judge: {config.judge} (checksum {config.judge_checksum}).")
    if config.liar:
        lines.append(
            f"Planted: policies claim {config.liar:.0%} of their failures as successes; records "
            f"are taken with trust={config.trust}."
        )
    return lines


def plural(number: int, noun: str) -> str:
    """A number and its noun: `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unseen_prompt(policy: Policy) -> str:
    """A sentence if the model is never shown the system prompt of its settings, else ""."""
    system_prompt = policy.config.system_prompt.strip()
    if not system_prompt or system_prompt in policy.prompt_text(""):
        return ""
    return f"{policy.name}: its template leaves the system prompt out; `template` can hold it."


def _size_and_rate(policy: Policy) -> str:
    config, millions = policy.config, policy.model.num_parameters() / 1e6
    size = f"{millions:.3g} M" if millions < 1000 else f"{millions / 1000:.3g} B"
    lora = f"LoRA of rank {config.lora_rank}, " if config.lora_rank else ""
    how = "frozen" if config.frozen else f"{lora}learning rate {config.learning_rate:g}"
    return f"{size} parameters, {how}"


def last_lines(run: Run, finished: bool) -> list[Table | str]:
    """A table and sentences on what happened."""
    if not finished:
        return [f"Saved. Go on with: python mini_mrl.py resume {run.directory}"]

    memory = f"Memory: {peak_memory(run.team.device) / 2**30:.3g} GiB at the peak."

    sentence = learnt_sentence(run.evaluations, read_rescues(run.directory))
    if run.team.record_type is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    return [evaluation_table(run.evaluations), memory, sentence.strip()]


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """A table of pass@1 and pass@k per policy and skill, before -> after, by held-out part."""
    last = evaluations.get("after") or evaluations["before"]
    first = evaluations["before"] if "after" in evaluations else []
    before = {(scores["policy"], scores["part"]): scores for scores in first}
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]

    title = "held-out problems, before -> after" if first else "held-out problems"
    table = Table(Column("part", no_wrap=True), Column("skill", no_wrap=True), title=title)
    for name in dict.fromkeys(scores["policy"] for scores in last):
        for metric in metrics:
            table.add_column(cell(f"{name}\n{metric}"), justify="right")

    for part in dict.fromkeys(scores["part"] for scores in last):
        of_part = [scores for scores in last if scores["part"] == part]
        for skill in ("", *of_part[0]["skills"]):  # "": the mean over skills
            cells = []
            for now in of_part:
                sides = [side for side in (before.get((now["policy"], part)), now) if side]
                for metric in metrics:
                    shares = [side["skills"][skill] if skill else side for side in sides]
                    cells.append(" -> ".join(f"{100 * rates[metric]:.0f}" for rates in shares))
                    if metric == "pass@1" and not skill:
                        cells[-1] += f"±{100 * half_width(now):.0f}"  # 80 columns hold no more
            _add_skill(table, part, skill, cells)
        table.add_section()
    return table


def _add_skill(table: Table, part: str, skill: str, cells: list[str]) -> None:
    """Add a skill's row, or the bold first row of a part, which is over all skills."""
    if skill:
        table.add_row("", cell(skill), *cells)
    else:
        table.add_row(cell(part), "overall", *cells, style="bold")


def pair_table(heldout: dict[str, list[Problem]], solved: dict[str, dict[str, list[int]]]) -> Table:
    """A table of how many problems a policy failed at every try and another one did not.

    solved: by policy and part, how many completions of each problem are right.
    """
    directions = list(permutations(solved, 2))
    table = Table("part", "skill", "problems", title="what one policy could learn from another")
    for receiver, source in directions:
        table.add_column(f"{receiver} never,\n{source} sometimes", justify="right")

    for part, problems in heldout.items():
        for skill in ("", *dict.fromkeys(problem.skill for problem in problems)):
            places = [i for i, problem in enumerate(problems) if skill in ("", problem.skill)]
            cells = [str(len(places))]
            for receiver, source in directions:
                own, theirs = solved[receiver][part], solved[source][part]
                cells.append(str(sum(own[i] == 0 and theirs[i] > 0 for i in places)))
            _add_skill(table, part, skill, cells)
    return table


def both_ends(evaluations: dict[str, list[dict]]) -> list[tuple[dict, dict]]:
    """Each policy's entries for the first part, before and after; [] unless both were scored."""
    before, after = evaluations.get("before", []), evaluations.get("after", [])
    ends = []
    for then, now in zip(before, after, strict=False):  # in one order
        if now["part"] == after[0]["part"]:
            ends.append((then, now))
    return ends


def largest_gain(evaluations: dict[str, list[dict]]) -> tuple[str, str, float, float] | None:
    """Policy, skill, and its solve rates before and after, of the largest gain on the first part.

    None if none is beyond its 95 % interval on at least 20 problems.
    """
    best, most = None, 0.0
    for then, now in both_ends(evaluations):
        for skill in now["skills"]:
            before, after = then["skills"][skill]["pass@1"], now["skills"][skill]["pass@1"]
            chance = math.hypot(half_width(then, skill), half_width(now, skill))
            if problems_of(now, skill) >= FEW and after - before > max(chance, most):
                best, most = (now["policy"], skill, before, after), after - before
    return best


def learnt_sentence(evaluations: dict[str, list[dict]], rescues: list[dict]) -> str:
    """A sentence on what was learnt, plain enough for a first reader.

    It names the largest gain and the peers that rescued that policy, or says what happened overall.
    Empty if the held-out problems were not scored at both ends.
    """
    gain, ends = largest_gain(evaluations), both_ends(evaluations)
    if not ends:
        return ""
    if not gain:
        overall = []
        for then, now in ends:
            overall.append(f"{now['policy']} {then['pass@1']:.0%} -> {now['pass@1']:.0%}")
        return (
            f"No policy got better at any skill beyond chance (95 %, at least {FEW} problems); "
            f"right attempts at held-out problems, before -> after: {', '.join(overall)}."
        )

    name, skill, before, after = gain
    sentence = (
        f'{name} solved "{skill}" problems {before:.0%} of the time before, {after:.0%} after'
    )
    own_rescues = [rescue for rescue in rescues if rescue["receiver"] == name]
    if own_rescues:
        sources = Counter(rescue["source"] for rescue in own_rescues)
        shares = " and ".join(f"{number} from {source}" for source, number in sources.items())
        on_skill = sum(rescue["skill"] == skill for rescue in own_rescues)
        sentence += f"; it was rescued {plural(len(own_rescues), 'time')} ({shares}), "
        sentence += f'{on_skill} of them on "{skill}"'
    return sentence + "."
