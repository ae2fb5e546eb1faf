"""What a person reads before and after a run: sentences and tables."""

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from mrl.config import DATA, PolicyConfig
from mrl.policy import Policy
from mrl.residual import Residual
from mrl.runtime.evaluation import half_width
from mrl.runtime.memory import peak_memory
from mrl.runtime.run_directory import read_metrics, read_rescues
from mrl.runtime.view import cell
from mrl.samples import Problem

if TYPE_CHECKING:
    from mrl.runtime.run import Run


def first_lines(run: "Run", pair: str = "", why: str = "") -> list[str]:
    """What is about to happen, in words. pair: its name; why: it was chosen."""
    config, mode = run.config, run.mode
    what = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    groups = ", ".join(f"{p.name} {p.group_size * mode.rollout_factor}" for p in config.policies)
    problems = "/".join(Path(config.train).parts[-2:])
    crosses = f"{mode.consumes.kind} records" if mode.consumes else "nothing"
    # gathered: a process may hold only one of them
    about = run.allocation.gather(
        {p.name: (p.model.num_parameters(), _how_it_learns(p.config)) for p in run.policies}
    )
    learners = " and ".join(
        f"{name} ({size / 1e6:.3g} M parameters, {how})" for name, (size, how) in about.items()
    )
    tiny = [p.name for p in config.policies if Path(p.path).resolve().parent == DATA / "tiny"]
    mine = {p.name: policy_notes(p, embedded=p.name in tiny) for p in run.policies}
    lines = [
        f"Training {what}{learners}, on {run.device}{why}.",
        f"Mode {mode.name} shares {crosses}; {config.steps} steps of {config.prompts_per_step} "
        f"prompts from {problems}; completions a prompt: {groups}; seed {config.seed}; writing "
        f"{run.directory}, up to {run.disk_bytes / 1e9:.2g} GB of checkpoints.",
        run.why_placed,
    ]
    lines += [note for notes in run.allocation.gather(mine).values() for note in notes]
    if config.judge:
        lines.append(f"Judge: {config.judge} (checksum {config.judge_checksum}).")
    if config.liar:
        lines.append(
            f"Planted: policies claim {config.liar:.0%} of their failures as successes; records "
            f"are taken with trust={config.trust}."
        )
    return lines


def policy_notes(policy: Policy, embedded: bool) -> list[str]:
    """Where a policy is asked or computed otherwise than its settings suggest.

    embedded: it is of the tiny pair, which was made without a system prompt.
    """
    notes, config = [], policy.config
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
    wanted = config.dtype != "float32" and policy.model.device.type == "cuda"
    if wanted and not policy.mixed_precision:
        notes.append(
            f"{policy.name}: is computed in float32; this card has no bfloat16 of its own."
        )
    return notes


def _how_it_learns(config: PolicyConfig) -> str:
    if config.frozen:
        return "frozen"
    lora = f"LoRA of rank {config.lora_rank}, " if config.lora_rank else ""
    return f"{lora}learning rate {config.learning_rate:g}"


def last_lines(run: "Run", finished: bool) -> list[Table | str]:
    """What happened, in a table and a few sentences; the last one says what was learnt."""
    if not finished:
        return [f"Saved. Go on with: python mini_mrl.py resume {run.directory}"]
    lines = [evaluation_table(run.evaluations), *residual_sentences(read_metrics(run.directory))]
    lines.append(f"Memory: {peak_memory(run.device) / 2**30:.1f} GiB at the peak.")
    sentence = learnt_sentence(run.evaluations, read_rescues(run.directory))
    if run.mode.consumes is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    return [*lines, sentence]


def residual_sentences(lines: list[dict]) -> list[str]:
    """What alignment cost each receiver over a whole run, from the run's metrics."""
    sentences = []
    for name in dict.fromkeys(line["policy"] for line in lines):
        residual = Residual()
        for line in (line for line in lines if line["policy"] == name):
            residual.update({key[4:]: line[key] for key in line if key.startswith("thl/")})
        if residual:
            sentences.append(
                f"{name} retokenized {residual['records']} peer texts: "
                f"{residual.length_ratio:.2f} of its tokens for one of the source's, "
                f"{residual.share_one_to_one:.0%} of the bytes in 1:1 chunks, "
                f"{residual.non_canonical_share:.0%} of the texts sampled in other tokens than "
                f"their tokenizer's own, {residual.refused} of them refused."
            )
    return sentences


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """pass@1 and pass@k per policy and skill, before -> after; one block a held-out part."""
    last = evaluations.get("after") or evaluations["before"]
    first = evaluations["before"] if "after" in evaluations else []
    before = {(scores["policy"], scores["part"]): scores for scores in first}
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]
    table = Table("part", "skill", title="held-out problems" + ", before -> after" * bool(first))
    for name in dict.fromkeys(scores["policy"] for scores in last):
        for metric in metrics:
            table.add_column(cell(f"{name}\n{metric}"), justify="right")
    for part in dict.fromkeys(scores["part"] for scores in last):
        chosen = [scores for scores in last if scores["part"] == part]
        for skill in (None, *chosen[0]["skills"]):  # None: the mean over skills
            cells = []
            for now in chosen:
                sides = [before.get((now["policy"], part)), now]
                sides = [side["skills"][skill] if skill else side for side in sides if side]
                for metric in metrics:
                    cells.append(" -> ".join(f"{100 * side[metric]:.0f}" for side in sides))
                    if metric == "pass@1" and not skill:
                        cells[-1] += f"±{100 * half_width(now):.0f}"  # 80 columns hold no more
            first_two = ("", cell(skill)) if skill else (cell(part), "all skills")
            table.add_row(*first_two, *cells, style="" if skill else "bold")
        table.add_section()
    return table


def pair_table(heldout: dict[str, list[Problem]], solved: dict[str, dict[str, list[int]]]) -> Table:
    """On how many problems of each skill a policy failed at every try and another one did not.

    solved: by policy and part, the right completions of each problem.
    """
    directions = list(permutations(solved, 2))
    table = Table("part", "skill", "problems", title="what one policy could learn from another")
    for receiver, source in directions:
        table.add_column(f"{receiver} never,\n{source} sometimes", justify="right")
    for part, problems in heldout.items():
        for skill in (None, *dict.fromkeys(problem.skill for problem in problems)):
            places = [i for i, problem in enumerate(problems) if skill in (None, problem.skill)]
            cells = []
            for receiver, source in directions:
                tries = [(solved[receiver][part][i], solved[source][part][i]) for i in places]
                cells.append(str(sum(own == 0 and theirs > 0 for own, theirs in tries)))
            head = ("", cell(skill)) if skill else (cell(part), "all skills")
            table.add_row(*head, str(len(places)), *cells, style="" if skill else "bold")
    return table


def learnt_sentence(evaluations: dict[str, list[dict]], rescues: list[dict]) -> str:
    """What was learnt, for somebody who sees this for the first time.

    The skill that improved most, of any policy, and who rescued that policy how often. Empty if
    the held-out problems were not scored at both ends.
    """
    if not evaluations.get("before") or not evaluations.get("after"):
        return ""
    before, after = (
        {
            (scores["policy"], skill): found["pass@1"]
            for scores in evaluations[when]
            if scores["part"] == evaluations["after"][0]["part"]
            for skill, found in scores["skills"].items()
        }
        for when in ("before", "after")
    )
    name, skill = best = max(after, key=lambda key: after[key] - before[key])
    if after[best] <= before[best]:
        return "No policy got better at any skill of the held-out problems."
    sentence = f'{name} solved "{skill}" problems {before[best]:.0%} of the time before, '
    sentence += f"{after[best]:.0%} after"
    if helped := [rescue for rescue in rescues if rescue["receiver"] == name]:
        sources = Counter(rescue["source"] for rescue in helped)
        rescued = " and ".join(f"{number} from {source}" for source, number in sources.items())
        about = sum(rescue["skill"] == skill for rescue in helped)
        sentence += f"; it was rescued {len(helped)} times ({rescued}), {about} of them on "
        sentence += f'"{skill}"'
    return sentence + "."
