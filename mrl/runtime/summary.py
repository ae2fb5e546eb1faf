"""The sentences and tables that a person reads before and after a run."""

import math
from collections import Counter
from itertools import permutations
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from mrl.config import DATA, PolicyConfig
from mrl.policy import Policy
from mrl.runtime.evaluation import FEW, half_width, problems_of, right_share
from mrl.runtime.memory import peak_memory
from mrl.runtime.pairs import SHORT_HELDOUT
from mrl.runtime.run import Run
from mrl.runtime.run_directory import read_rescues
from mrl.runtime.view import bar, cell, growth
from mrl.samples import Problem

GAIN_BAR = 30  # characters of the bar that a run ends with


def first_lines(run: Run, pair: str = "", why: str = "") -> list[str]:
    """Sentences on what is about to happen. pair: its name; why: the reason for its choice."""
    config, team = run.config, run.team
    mode = team.mode

    first_paths = {policy.name: policy.path for policy in config.policies}  # not a checkpoint's

    # gathered, because a process may hold only one of the policies
    of_this_process = {}
    for policy in team.policies:
        learner = f"{policy.name} ({_size_and_rate(policy)})"
        embedded = Path(first_paths[policy.name]).resolve().parent == DATA / "tiny"
        of_this_process[policy.name] = learner, prompt_notes(policy, embedded)
    of_policies = team.allocation.gather(of_this_process).values()

    pair_words = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    learners = " and ".join(learner for learner, _ in of_policies)
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
    for _, notes in of_policies:
        lines += notes
    if str(SHORT_HELDOUT) in config.heldout:
        lines.append(
            "Scored are 72 of the 360 held-out problems, because a CPU takes long; all of them are "
            "scored with --set heldout=data/words/heldout.jsonl."
        )

    # hacpo and graft bring the objective that they were published with
    own_objective = getattr(mode, "own_objective", "")
    default = (PolicyConfig.objective, None, None)
    for policy in config.policies:
        asked = (policy.objective, policy.clip_low, policy.clip_high)
        if own_objective and asked != default:
            lines.append(
                f"{policy.name}: its `objective`, `clip_low` and `clip_high` are not used, because "
                f"mode {mode.name} trains by {own_objective}, as published; "
                f"`--set {mode.name}.own_objective=` (with nothing behind the =) uses them."
            )

    if config.judge:
        lines.append(f"Judge: {config.judge} (checksum {config.judge_checksum}).")
    if config.liar:
        lines.append(
            f"Planted: policies claim {config.liar:.0%} of their failures as successes; records "
            f"are taken with trust={config.trust}."
        )
    return lines


def prompt_notes(policy: Policy, embedded: bool) -> list[str]:
    """A sentence if the model is never shown the system prompt of its settings.

    embedded: it is of the tiny pair, which was made without one.
    """
    system_prompt = policy.config.system_prompt.strip()
    if embedded or not system_prompt or system_prompt in policy.prompt_text(""):
        return []
    return [f"{policy.name}: its template leaves the system prompt out; `template` can hold it."]


def plural(number: int, noun: str) -> str:
    """A number and its noun: `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size_and_rate(policy: Policy) -> str:
    config, size = policy.config, policy.model.num_parameters()
    how = "frozen" if config.frozen else f"learning rate {config.learning_rate:g}"
    if config.lora_rank:  # only its matrices learn
        adapter = policy.model.num_parameters(only_trainable=True)
        size -= adapter
        how = f"LoRA of rank {config.lora_rank} with {_in_millions(adapter)} more, {how}"
    return f"{_in_millions(size)} parameters, {how}"


def _in_millions(number: int) -> str:
    return f"{number / 1e9:.3g} B" if number > 999e6 else f"{number / 1e6:.3g} M"


def last_lines(run: Run, finished: bool) -> list[Table | Text | str]:
    """A table and sentences on what happened; the last line shows the largest gain."""
    if not finished:
        return [f"Saved. Go on with: python mini_mrl.py resume {run.directory}"]

    memory = f"Memory: {peak_memory(run.team.device) / 2**30:.3g} GiB at the peak."
    lines = [evaluation_table(run.evaluations), memory]

    sentence = learnt_sentence(run.evaluations, read_rescues(run.directory))
    if run.team.record_type is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    lines.append(sentence.strip())

    gain = largest_gain(run.evaluations)
    if gain:
        name, skill, before, after = gain
        grown = f"{bar(after, before, GAIN_BAR)}  {growth(before, after)}"
        lines.append(cell(f"{name}, {skill}  {grown}"))
    return lines


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
        many = of_part[0]["problems"] >= FEW  # else a skill has a problem or two
        for skill in ("", *of_part[0]["skills"]) if many else ("",):  # "": the mean over skills
            cells = []
            for now in of_part:
                sides = [side for side in (before.get((now["policy"], part)), now) if side]
                for metric in metrics:
                    shares = [right_share(side, metric, skill).rstrip("%") for side in sides]
                    cells.append(" -> ".join(shares))
                    if metric == "pass@1" and many and not skill:
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
            overall.append(f"{now['policy']} {right_share(then)} -> {right_share(now)}")
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
