"""The sentences and tables that a person reads before and after a run."""

from collections import Counter
from itertools import permutations
from pathlib import Path

from rich.table import Table

from mrl.config import DATA, PolicyConfig
from mrl.policy import Policy
from mrl.residual import Residual
from mrl.runtime.evaluation import half_width
from mrl.runtime.memory import peak_memory
from mrl.runtime.pairs import SHORT_HELDOUT
from mrl.runtime.run import Run
from mrl.runtime.run_directory import read_metrics, read_rescues
from mrl.runtime.view import cell
from mrl.samples import Problem


def first_lines(run: Run, pair: str = "", why: str = "") -> list[str]:
    """Sentences on what is about to happen. pair: its name; why: the reason for its choice."""
    config, team = run.config, run.team
    mode = team.mode

    first_paths = {policy.name: policy.path for policy in config.policies}  # not a checkpoint's

    # gathered, because a process may hold only one of the policies
    of_this_process = {}
    for policy in team.policies:
        size = f"{policy.model.num_parameters() / 1e6:.3g} M parameters"
        learner = f"{policy.name} ({size}, {_how_it_learns(policy.config)})"
        embedded = Path(first_paths[policy.name]).resolve().parent == DATA / "tiny"
        of_this_process[policy.name] = learner, policy_notes(policy, embedded)
    of_policies = team.allocation.gather(of_this_process).values()

    pair_words = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    learners = " and ".join(learner for learner, _ in of_policies)
    groups = ", ".join(f"{p.name} {p.group_size * mode.rollout_factor}" for p in config.policies)
    problems = "/".join(Path(config.train).parts[-2:])
    crosses = f"{team.record_type.kind} records" if team.record_type else "nothing"
    lines = [
        f"Training {pair_words}{learners}, on {team.device}{why}.",
        f"Mode {mode.name} shares {crosses}; {config.steps} steps of {config.prompts_per_step} "
        f"prompts from {problems}; completions per prompt: {groups}; seed {config.seed}; writing "
        f"{run.directory}, up to {run.disk_bytes / 1e9:.2g} GB of checkpoints.",
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


def policy_notes(policy: Policy, embedded: bool) -> list[str]:
    """Sentences on where a policy is prompted or computed otherwise than its settings suggest.

    embedded: it is of the tiny pair, which was made without a system prompt.
    """
    notes: list[str] = []
    config = policy.config

    system_prompt = "" if embedded else config.system_prompt.strip()
    if system_prompt and system_prompt not in policy.prompt_text(""):
        notes.append(
            f"{policy.name}: its template leaves the system prompt out; `template` can hold it."
        )
    elif system_prompt and policy.tokenizer.chat_template is None and not config.template:
        notes.append(
            f"{policy.name}: has no chat template, so the system prompt stands before each "
            "problem; `template` writes it in another way."
        )

    wants_half = config.dtype != "float32" and policy.model.device.type == "cuda"
    if wants_half and not policy.mixed_precision:
        notes.append(
            f"{policy.name}: is computed in float32; this card has no bfloat16 of its own."
        )
    return notes


def _how_it_learns(config: PolicyConfig) -> str:
    if config.frozen:
        return "frozen"
    lora = f"LoRA of rank {config.lora_rank}, " if config.lora_rank else ""
    return f"{lora}learning rate {config.learning_rate:g}"


def last_lines(run: Run, finished: bool) -> list[Table | str]:
    """A table and sentences on what happened; the last sentence says what was learnt."""
    if not finished:
        return [f"Saved. Go on with: python mini_mrl.py resume {run.directory}"]

    lines = [evaluation_table(run.evaluations), *residual_sentences(read_metrics(run.directory))]
    lines.append(f"Memory: {peak_memory(run.team.device) / 2**30:.1f} GiB at the peak.")

    sentence = learnt_sentence(run.evaluations, read_rescues(run.directory))
    if run.team.record_type is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    return [*lines, sentence]


def residual_sentences(lines: list[dict]) -> list[str]:
    """Sentences on what alignment cost each receiver in a whole run, from the run's metrics."""
    by_receiver: dict[str, Residual] = {}
    for line in lines:
        residual = by_receiver.setdefault(line["policy"], Residual())
        for key, number in line.items():
            if key.startswith("thl/"):
                residual[key.removeprefix("thl/")] += number

    sentences = []
    for name, residual in by_receiver.items():
        if residual:
            sentences.append(
                f"{name} retokenized {residual['records']} peer texts: "
                f"{residual.length_ratio:.2f} of its tokens for one of the source's, "
                f"{residual.share_one_to_one:.0%} of the bytes in 1:1 chunks, "
                f"{residual.non_canonical_share:.0%} of the texts sampled in other tokens than "
                f"their tokenizer's own; {residual.refused} more were refused."
            )
    return sentences


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """A table of pass@1 and pass@k per policy and skill, before -> after, by held-out part."""
    last = evaluations.get("after") or evaluations["before"]
    first = evaluations["before"] if "after" in evaluations else []
    before = {(scores["policy"], scores["part"]): scores for scores in first}
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]

    title = "held-out problems, before -> after" if first else "held-out problems"
    table = Table("part", "skill", title=title)
    for name in dict.fromkeys(scores["policy"] for scores in last):
        for metric in metrics:
            table.add_column(cell(f"{name}\n{metric}"), justify="right")

    for part in dict.fromkeys(scores["part"] for scores in last):
        of_part = [scores for scores in last if scores["part"] == part]
        for skill in (None, *of_part[0]["skills"]):  # None: the mean over skills
            cells = []
            for now in of_part:
                sides = [before.get((now["policy"], part)), now]
                sides = [side["skills"][skill] if skill else side for side in sides if side]
                for metric in metrics:
                    cells.append(" -> ".join(f"{100 * side[metric]:.0f}" for side in sides))
                    if metric == "pass@1" and not skill:
                        cells[-1] += f"±{100 * half_width(now):.0f}"  # 80 columns hold no more
            _add_skill(table, part, skill, cells)
        table.add_section()
    return table


def _add_skill(table: Table, part: str, skill: str | None, cells: list[str]) -> None:
    """Add a skill's row, or the bold first row of a part, which is over all skills."""
    if skill:
        table.add_row("", cell(skill), *cells)
    else:
        table.add_row(cell(part), "all skills", *cells, style="bold")


def pair_table(heldout: dict[str, list[Problem]], solved: dict[str, dict[str, list[int]]]) -> Table:
    """A table of how many problems a policy failed at every try and another one did not.

    solved: by policy and part, how many completions of each problem are right.
    """
    directions = list(permutations(solved, 2))
    table = Table("part", "skill", "problems", title="what one policy could learn from another")
    for receiver, source in directions:
        table.add_column(f"{receiver} never,\n{source} sometimes", justify="right")

    for part, problems in heldout.items():
        for skill in (None, *dict.fromkeys(problem.skill for problem in problems)):
            places = [i for i, problem in enumerate(problems) if skill in (None, problem.skill)]
            cells = [str(len(places))]
            for receiver, source in directions:
                own, theirs = solved[receiver][part], solved[source][part]
                cells.append(str(sum(own[i] == 0 and theirs[i] > 0 for i in places)))
            _add_skill(table, part, skill, cells)
    return table


def learnt_sentence(evaluations: dict[str, list[dict]], rescues: list[dict]) -> str:
    """A sentence on what was learnt, plain enough for a first reader.

    It names the skill that improved most, of any policy, and the peers that rescued that policy.
    Empty if the held-out problems were not scored at both ends.
    """
    if not evaluations.get("before") or not evaluations.get("after"):
        return ""

    first_part = evaluations["after"][0]["part"]
    before = _solve_rates(evaluations["before"], first_part)
    after = _solve_rates(evaluations["after"], first_part)
    name, skill = best = max(after, key=lambda key: after[key] - before[key])
    if after[best] <= before[best]:
        return "No policy got better at any skill of the held-out problems."

    sentence = f'{name} solved "{skill}" problems {before[best]:.0%} of the time before, '
    sentence += f"{after[best]:.0%} after"
    own_rescues = [rescue for rescue in rescues if rescue["receiver"] == name]
    if own_rescues:
        sources = Counter(rescue["source"] for rescue in own_rescues)
        shares = " and ".join(f"{number} from {source}" for source, number in sources.items())
        on_skill = sum(rescue["skill"] == skill for rescue in own_rescues)
        sentence += f"; it was rescued {len(own_rescues)} times ({shares}), {on_skill} of them on "
        sentence += f'"{skill}"'
    return sentence + "."


def _solve_rates(entries: list[dict], part: str) -> dict[tuple[str, str], float]:
    """(policy, skill) -> pass@1 on one held-out part."""
    rates = {}
    for scores in entries:
        if scores["part"] == part:
            for skill, of_skill in scores["skills"].items():
                rates[scores["policy"], skill] = of_skill["pass@1"]
    return rates
