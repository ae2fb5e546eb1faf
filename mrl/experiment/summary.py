"""What a person reads before and after a run: sentences and tables."""

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from mrl.experiment.metrics import run_residual
from mrl.experiment.run_directory import read_metrics
from mrl.modes import Mode

if TYPE_CHECKING:
    from mrl.experiment.run import Run

HIGH_LEARNING_RATE = 3e-4  # on the tiny pair a policy trained with it fell apart within 40 steps


def modes_table(modes: list[type[Mode]]) -> Table:
    """One line a mode: what it does, what crosses, its settings with their defaults."""
    table = Table(title="sharing modes (--mode NAME, --set NAME.SETTING=VALUE)")
    for column in ("mode", "what the receiver learns from", "crosses", "settings"):
        table.add_column(column)
    for mode in modes:
        settings = [f"{f.name}={f.default!r}" for f in fields(mode) if f.init]
        crosses = mode.consumes.kind if mode.consumes else "nothing"
        summary = (mode.__doc__ or "").strip().split("\n")[0]
        table.add_row(mode.name, summary, crosses, ", ".join(settings))
    return table


def first_lines(run: "Run", pair: str, why: str) -> list[str]:
    """What is about to happen, in words."""
    config = run.config
    names = " and ".join(run.names)
    what = {"tiny": "the embedded tiny pair: ", "qwen-smol": "the real pair: "}.get(pair, "")
    factor = run.mode.rollout_factor
    sizes = ", ".join(
        f"{policy.name} {policy.group_size * factor} = "
        f"{policy.group_size * factor * config.prompts_per_step} completions a step"
        for policy in config.policies
    )
    shares = "nothing" if run.mode.consumes is None else f"{run.mode.consumes.kind} records"
    lines = [
        f"Training {what}{names}, on {run.device}{why}.",
        f"Mode {run.mode.name} shares {shares}; {config.steps} steps of {config.prompts_per_step} "
        f"prompts; group sizes: {sizes}; seed {config.seed}; writing {run.directory}.",
        run.placement.sentence,
    ]
    if config.peer_log:
        left_out = sum(run.left_out.values())
        lines.append(
            f"Peer: {len(run.stored)} stored records of {config.peer_log}"
            + (f"; {left_out} broken lines left out." if left_out else ".")
        )
    if config.liar:
        lines.append(
            f"Planted: policies claim {config.liar:.0%} of their failures as successes; records "
            f"are taken with trust={config.trust}."
        )
    lines += [
        f"Warning: {policy.name} learns at {policy.learning_rate:g}; above "
        f"{HIGH_LEARNING_RATE:g} even the tiny pair tends to fall apart."
        for policy in config.policies
        if policy.learning_rate > HIGH_LEARNING_RATE
    ]
    return lines


def last_lines(run: "Run", finished: bool) -> list[Table | str]:
    """What happened, in a table and a few sentences; the last one says what was learnt."""
    if not finished:
        return [f"Saved. Go on with: python mini_mrl.py resume {run.directory}"]
    lines = [evaluation_table(run.evaluations), *residual_sentences(read_metrics(run.directory))]
    if run.device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated(run.device) / 2**30
        lines.append(f"Memory: {peak:.1f} GiB of tensors on {run.device} at the peak.")
    sentence = learnt_sentence(run.evaluations, run.rescues)
    if run.mode.consumes is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    return [*lines, sentence]


def residual_sentences(lines: list[dict]) -> list[str]:
    """What alignment cost each receiver over a whole run, from the run's metrics."""
    sentences = []
    for name in dict.fromkeys(line["policy"] for line in lines):
        residual = run_residual(line for line in lines if line["policy"] == name)
        if residual.records or residual.refused:
            refused = sum(residual.refused.values())
            sentences.append(
                f"{name} retokenized {residual.records} peer texts: {residual.length_ratio:.2f} of "
                f"its tokens for one of the source's, {residual.share_one_to_one:.0%} of the bytes "
                f"in 1:1 chunks, {residual.non_canonical_share:.0%} of the texts sampled in other "
                f"tokens than their tokenizer's own, {refused} of them refused."
            )
    return sentences


def evaluation_table(evaluations: dict[str, list[dict]]) -> Table:
    """pass@1 and pass@k per policy and skill, before -> after; one block a held-out part."""
    last = evaluations.get("after") or evaluations["before"]
    first = evaluations["before"] if "after" in evaluations else []
    before = {(scores["policy"], scores["part"]): scores for scores in first}
    metrics = [f"pass@{k}" for k in sorted({1, last[0]["samples"]})]
    table = Table(title="held-out problems" + (", before -> after" if before else ""))
    table.add_column("part")
    table.add_column("skill")
    policies = list(dict.fromkeys(scores["policy"] for scores in last))
    for name in policies:
        for metric in metrics:
            table.add_column(f"{name}\n{metric}", justify="right")

    def cell(scores: dict, metric: str, skill: str | None) -> str:
        pick = (lambda s: s["skills"][skill]) if skill else (lambda s: s)
        now = f"{100 * pick(scores)[metric]:.0f}"
        old = before.get((scores["policy"], scores["part"]))
        return f"{100 * pick(old)[metric]:.0f} -> {now}" if old else now

    for part in dict.fromkeys(scores["part"] for scores in last):
        chosen = [scores for scores in last if scores["part"] == part]
        rows = [(part, "all skills", None)]
        rows += [("", skill, skill) for skill in chosen[0]["skills"]]
        for place, label, skill in rows:
            cells = [cell(scores, metric, skill) for scores in chosen for metric in metrics]
            table.add_row(place, label, *cells, style="bold" if skill is None else "")
        table.add_section()
    return table


def learnt_sentence(
    evaluations: dict[str, list[dict]], rescues: Counter[tuple[str, str, str]]
) -> str:
    """What was learnt, for somebody who sees this for the first time.

    The skill that improved most, of any policy, and who rescued that policy how often. Empty if
    the held-out problems were not scored at both ends.
    """
    if not evaluations.get("before") or not evaluations.get("after"):
        return ""
    before = {(s["policy"], s["part"]): s["skills"] for s in evaluations["before"]}
    gains = [
        (scores["pass@1"] - before[s["policy"], s["part"]][skill]["pass@1"], s, skill)
        for s in evaluations["after"]
        for skill, scores in s["skills"].items()
        if s["part"] == evaluations["after"][0]["part"]
    ]
    gained, scores, skill = max(gains, key=lambda entry: entry[0])
    if gained <= 0:
        return "No policy got better at any skill of the held-out problems."
    name = scores["policy"]
    old = before[name, scores["part"]][skill]["pass@1"]
    new = scores["skills"][skill]["pass@1"]
    sentence = f'{name} solved "{skill}" problems {old:.0%} of the time before, {new:.0%} after'
    helpers: Counter[str] = Counter()
    for (receiver, source, _), number in rescues.items():
        if receiver == name:
            helpers[source] += number
    if helpers:
        rescued = " and ".join(f"{number} from {source}" for source, number in helpers.items())
        about = sum(n for (who, _, what), n in rescues.items() if (who, what) == (name, skill))
        sentence += f"; it was rescued {sum(helpers.values())} times ({rescued}), {about} of "
        sentence += f'them on "{skill}"'
    return sentence + "."
