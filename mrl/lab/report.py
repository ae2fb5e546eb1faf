"""`python mini_mrl.py report runs/<name>`: one HTML page about a run, complete in itself.

Pictures are embedded, there is no script and nothing is fetched. Whatever a model wrote is escaped
and its control characters are made visible.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mrl.alignment import ByteCodec, LossyText, align
from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.experiment.checkpoint import newest_checkpoint
from mrl.experiment.run import load_policies
from mrl.experiment.run_directory import (
    read_evaluations,
    read_json_lines,
    read_metrics,
    read_run_config,
    with_weights_of,
)
from mrl.experiment.summary import evaluation_table, learnt_sentence, residual_sentences
from mrl.experiment.view import printable
from mrl.lab import figures
from mrl.policy import load_tokenizer
from mrl.samples import Problem

SHOWN_RESCUES = 5
REFUSALS = ("exchange/refused/", "exchange/not_believed", "thl/refused/", "dropped/")
CHUNK_COLORS = ("#cfe8ff", "#ffe3c2")
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 62rem; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; background: white; }
figcaption, .note { font-size: .875rem; opacity: .8; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
td:first-child, th:first-child { text-align: left; }
.rescue { border-left: 4px solid var(--line); padding: .1rem 1rem; margin: 1rem 0; }
code { overflow-wrap: anywhere; } .tokens { font: .85rem/1.9 monospace; overflow-wrap: anywhere; }
.tokens span { color: black; border: 1px solid #0005; padding: 0 .15em; white-space: pre-wrap; }
"""


def write_report(directory: Path, sample: bool = True) -> Path:
    """Write `report.html` and `figures/*.png` into a run's directory; returns the page's path.

    sample: ask the newest weights again about the rescued problems. Raises MrlError if there is
    no run, or nothing in it yet.
    """
    config = read_run_config(directory)
    lines = read_metrics(directory)
    if not lines:
        raise MrlError(f"{directory}: has no finished step yet, so there is nothing to report.")
    samples = read_json_lines(directory / "samples.jsonl")
    rescues = [{"step": line["step"], **line["rescue"]} for line in samples if "rescue" in line]
    failures = [(line["step"], line["trouble"]) for line in samples if "trouble" in line]
    counts = Counter((r["receiver"], r["source"], r["skill"]) for r in rescues)
    evaluations = read_evaluations(directory)
    sentence = learnt_sentence(evaluations, counts)
    sizes = ", ".join(f"{policy.name} (G = {policy.group_size})" for policy in config.policies)
    note = (
        f"Mode {config.mode}, seed {config.seed}, {lines[-1]['step']} of {config.steps} steps of "
        f"{config.prompts_per_step} prompts; {sizes}. Made by "
    )
    parts = [
        f"<h1>{escape(directory.name)}</h1>",
        f"<p><strong>{escape(sentence)}</strong></p>" if sentence else "",
        f"<p class=note>{escape(note)}<code>python mini_mrl.py report</code>.</p>",
        _table("What went wrong", ("step", "what"), failures),
        _evaluations(evaluations),
        *_pictures(directory, lines),
        _table(
            "Who rescued whom",
            ("receiver", "source", "skill", "rescues"),
            [(*key, number) for key, number in counts.most_common()],
        ),
        _table("Refused and dropped records", ("policy", "reason", "records"), _refusals(lines)),
        *(f"<p>{escape(s)}</p>" for s in residual_sentences(lines)),
        _rescued_problems(directory, config, rescues, sample),
    ]
    title = escape(f"mini-mrl: {directory.name}")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>"
    )
    path = directory / "report.html"
    path.write_text(printable(page, limit=len(page)), encoding="utf-8")
    return path


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table under its heading; nothing where there are no rows."""

    def line(tag: str, cells: Sequence[Any]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    table = f"<div class=wide><table>{line('th', head)}{body}</table></div>"
    return f"<h2>{escape(title)}</h2>{table}" if body else ""


def _evaluations(evaluations: dict[str, list[dict]]) -> str:
    """The table that the terminal shows, in percent."""
    if not evaluations:
        return ""
    columns = evaluation_table(evaluations).columns
    rows = zip(*(column.cells for column in columns), strict=True)
    return _table("Held-out problems, in percent", [column.header for column in columns], rows)


def _refusals(lines: Sequence[dict]) -> list[tuple[str, str, int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for key in (key for key in line if key.startswith(REFUSALS)):
            counts[line["policy"], key] += line[key]
    return [(*about, round(number)) for about, number in counts.items()]


def _pictures(directory: Path, lines: list[dict]) -> list[str]:
    made = []
    for name, title, caption, draw, keys, label in figures.pictures_of(lines):
        path = directory / "figures" / f"{name}.png"
        draw(lines, path, keys, label)
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        made.append(
            f"<h2>{escape(title)}</h2><figure>"
            f'<img alt="{escape(_alt(title, lines, keys))}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption or f'{title}, over steps.')}</figcaption></figure>"
        )
    return made


def _alt(title: str, lines: Sequence[dict], keys: dict[str, str]) -> str:
    """The picture in words: each metric's first and last value."""
    ends = []
    for policy in figures.policies_of(lines):
        for key, label in keys.items():
            _, values = figures.series(lines, policy, key, figures.WINDOW) if label else ([], [])
            if any(values):
                ends.append(f"{policy}, {label}: {values[0]:.3g} to {values[-1]:.3g}")
    return f"{title}, step {lines[0]['step']} to {lines[-1]['step']}. " + "; ".join(ends[:12])


def _rescued_problems(
    directory: Path, config: RunConfig, rescues: Sequence[dict], sample: bool
) -> str:
    """Up to five rescued problems side by side: before, the peer's tokens and one's own, now."""
    shown = list({(r["receiver"], r["skill"]): r for r in rescues}.values())[:SHOWN_RESCUES]
    now = _answers_now(directory, config, shown) if sample else {}
    paths = {policy.name: policy.path for policy in config.policies}
    blocks = ["<h2>Rescued problems, side by side</h2>"] if shown else []
    for rescue in shown:
        receiver, source = rescue["receiver"], rescue["source"]
        answers = {
            f"{receiver} in step {rescue['step']}": rescue["receiver_text"],
            source: rescue["source_text"],
            f"{receiver} now": now.get((receiver, rescue["problem_id"])),
        }
        quotes = "".join(
            f"<p>{escape(who)}: <code>{escape(text)}</code></p>"
            for who, text in answers.items()
            if text is not None
        )
        tokens = _tokens(rescue["source_text"], paths.get(source), paths.get(receiver))
        prompt = escape(rescue["prompt"])
        blocks.append(f"<div class=rescue><h3>{prompt}</h3>{quotes}{tokens}</div>")
    return "".join(blocks)


def _tokens(text: str, source: str | None, receiver: str | None) -> str:
    """One text in both tokenizations, colored by chunk."""
    if source is None or receiver is None:
        return ""  # a peer whose log was read: its tokenizer is not here
    try:
        codecs = [ByteCodec(load_tokenizer(path)) for path in (source, receiver)]
        token_bytes = [codec.token_bytes(codec.encode(text)) for codec in codecs]
    except (LossyText, MrlError):
        return ""
    spans = ["", ""]
    for number, chunk in enumerate(align(*token_bytes)):
        for side, place in enumerate((chunk.source, chunk.receiver)):
            for piece in token_bytes[side][slice(*place)]:
                shown = escape(piece.decode("utf-8", errors="replace"))
                spans[side] += f'<span style="background:{CHUNK_COLORS[number % 2]}">{shown}</span>'
    return f"<div class=tokens>source: {spans[0]}</div><div class=tokens>receiver: {spans[1]}</div>"


def _answers_now(
    directory: Path, config: RunConfig, rescues: Sequence[dict]
) -> dict[tuple[str, str], str]:
    """What the newest weights answer, greedily, to each rescued problem; {} if there are none."""
    import torch

    try:
        trained = with_weights_of(config, newest_checkpoint(directory))
        policies = load_policies(trained.policies, "cpu")
    except MrlError:
        return {}
    found = {}
    for policy in policies:
        asked = [r for r in rescues if r["receiver"] == policy.name]
        problems = [Problem(r["problem_id"], r["prompt"], "") for r in asked]
        if problems:
            groups = policy.rollout(problems, torch.Generator().manual_seed(0), 1, temperature=0.0)
            for group in groups:
                found[policy.name, group.problem.id] = group.rollouts[0].text
    return found
