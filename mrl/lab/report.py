"""`python mini_mrl.py report runs/<name>`: one HTML page about a run, complete in itself.

Pictures are embedded, there is no script and nothing is fetched. Whatever a model wrote is escaped
and its control characters are made visible.
"""

import base64
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
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
from mrl.experiment.summary import learnt_sentence, residual_sentences
from mrl.experiment.view import printable
from mrl.lab import figures
from mrl.modes import make_mode
from mrl.policy import load_tokenizer
from mrl.samples import Problem

SHOWN_RESCUES = 5
WINDOW = 10  # steps that curves are averaged over
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
    rescues = read_rescues(directory)
    evaluations = read_evaluations(directory)
    sentence = learnt_sentence(evaluations, rescue_counts(rescues))
    parts = [
        f"<h1>{escape(directory.name)}</h1>",
        f"<p><strong>{escape(sentence)}</strong></p>" if sentence else "",
        f"<p class=note>{escape(_settings(config, lines))}</p>",
        _troubles(directory),
        _evaluation_table(evaluations),
        *_pictures(directory, lines, config),
        _who_rescued_whom(rescues),
        _refusals(lines),
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
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def read_rescues(directory: Path) -> list[dict[str, Any]]:
    """The rescues of a run, in order, each with its step."""
    lines = read_json_lines(directory / "samples.jsonl")
    return [{"step": line["step"], **line["rescue"]} for line in lines if "rescue" in line]


def rescue_counts(rescues: Sequence[dict]) -> Counter[tuple[str, str, str]]:
    """(receiver, source, skill) -> rescues."""
    return Counter((r["receiver"], r["source"], r["skill"]) for r in rescues)


# ------------------------------------------------------------------------------ parts


def _settings(config: RunConfig, lines: Sequence[dict]) -> str:
    base = ""
    with suppress(MrlError):  # a mode's file may be gone by now
        base = getattr(make_mode(config.mode, config.settings), "base", "")
    policies = ", ".join(
        f"{p.name} ({base or p.objective}, G = {p.group_size})" for p in config.policies
    )
    return (
        f"Mode {config.mode}, seed {config.seed}, {lines[-1]['step']} of {config.steps} steps of "
        f"{config.prompts_per_step} prompts; {policies}."
    )


def _troubles(directory: Path) -> str:
    lines = read_json_lines(directory / "samples.jsonl")
    rows = [[str(line["step"]), line["trouble"]] for line in lines if "trouble" in line]
    return f"<h2>What went wrong</h2>{_table(('step', 'what'), rows)}" if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(text))}</td>" for text in row) + "</tr>"
        for row in rows
    )
    return f"<div class=wide><table><tr>{cells}</tr>{body}</table></div>"


def _evaluation_table(evaluations: dict[str, list[dict]]) -> str:
    last = evaluations.get("after") or evaluations.get("before") or []
    first = {(s["policy"], s["part"]): s for s in evaluations.get("before", [])}
    cells: dict[tuple[str, str], dict[str, str]] = {}  # (part, skill) -> policy -> text
    for scores in last:
        old = first.get((scores["policy"], scores["part"]), scores)
        about = [("all skills", old, scores)]
        about += [(k, old["skills"].get(k, v), v) for k, v in scores["skills"].items()]
        for skill, before, after in about:
            text = f"{100 * before['pass@1']:.0f} \u2192 {100 * after['pass@1']:.0f}"
            cells.setdefault((scores["part"], skill), {})[scores["policy"]] = text
    policies = list(dict.fromkeys(scores["policy"] for scores in last))
    rows = [[*about, *(row.get(p, "") for p in policies)] for about, row in cells.items()]
    title = "Held-out problems, pass@1 in percent before \u2192 after"
    return f"<h2>{title}</h2>{_table(('part', 'skill', *policies), rows)}" if rows else ""


def _pictures(directory: Path, lines: list[dict], config: RunConfig) -> list[str]:
    skills = {k: k.split("/")[1] for line in lines for k in line if k.startswith("skill/")}
    traffic = {
        key: f"bytes of {key.split('/')[1]} records from {key.split('/')[2]}"
        for line in lines
        for key in line
        if key.startswith("exchange/") and key.endswith("/bytes")
    }
    ratios = {
        "ratio/max": "largest own ratio",
        "clip_ratio/low_mean": "own tokens clipped below",
        "clip_ratio/high_mean": "own tokens clipped above",
        "peer/ratio/mean": "peers' mean ratio",
        "peer/ratio/max": "peers' largest ratio",
        "peer/clip_ratio/low_mean": "peers' tokens clipped below",
        "peer/weight_mean": "peers' effective weight",
    }
    gradients = {
        "gradient/own_norm": "gradient norm, own part",
        "gradient/peer_norm": "gradient norm, peers' part",
        "gradient/cosine": "cosine between them",
    }
    rescues = {"rescue_set": "rescue set", "rescues": "rescues"}
    thl = {"thl/share_one_to_one": "bytes in 1:1 chunks", "thl/length_ratio": "length ratio"}

    def curves(keys: dict[str, str], label: str, window: int = WINDOW, zero: bool = True) -> Any:
        return lambda lines, path: figures.draw_curves(lines, path, keys, label, window, zero)

    reward = {"reward": "solve rate of the sampled completions"}
    wanted = [
        ("solve_rate", "Solve rate", curves(reward, "share"), reward),
        ("skills", "Solve rate by skill", curves(skills, "share"), skills),
        ("kinds", "Kinds of groups", figures.draw_kinds, {"groups/mixed": ""}),
        ("outcomes", "Where did my gradient go?", figures.draw_fates, {"outcome/taught": ""}),
        ("rescues", "The rescue set", curves(rescues, "prompts a step"), rescues),
        ("traffic", "What crossed", curves(traffic, "bytes a step"), traffic),
        ("timeline", "Who worked when", figures.draw_timeline, {"time/turns": ""}),
        ("ratios", "Ratios and clipping", curves(ratios, ""), ratios),
        ("gradients", "Own and peers' gradients", curves(gradients, "", 1, False), gradients),
        ("alignment", "What alignment cost", curves(thl, ""), thl),
    ]
    made = []
    for name, title, draw, keys in wanted:
        if not any(line.get(key) for line in lines for key in keys):
            continue
        path = directory / "figures" / f"{name}.png"
        draw(lines, path)
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        meaning = (draw.__doc__ or f"{title}, over steps.").split("\n")[0]
        caption = (
            f"{meaning} Drawn by <code>python mini_mrl.py report</code>; mode "
            f"{escape(config.mode)}, seed {config.seed}."
        )
        made.append(
            f"<h2>{escape(title)}</h2><figure>"
            f'<img alt="{escape(_alt(title, lines, keys))}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return made


def _alt(title: str, lines: Sequence[dict], keys: dict[str, str]) -> str:
    """The picture in words: each metric's first and last value."""
    ends = []
    for policy in figures.policies_of(lines):
        for key, label in keys.items():
            steps, values = figures.series(lines, policy, key, WINDOW) if label else ([], [])
            if steps:
                ends.append(f"{policy}, {label}: {values[0]:.3g} to {values[-1]:.3g}")
    return f"{title}, step {lines[0]['step']} to {lines[-1]['step']}. " + "; ".join(ends[:12])


def _who_rescued_whom(rescues: Sequence[dict]) -> str:
    if not rescues:
        return ""
    rows = [[*key, str(number)] for key, number in rescue_counts(rescues).most_common()]
    head = ("receiver", "source", "skill", "rescues")
    return f"<h2>Who rescued whom</h2>{_table(head, rows)}"


def _refusals(lines: Sequence[dict]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for key, number in line.items():
            if key.startswith(REFUSALS):
                counts[line["policy"], key] += number
    rows = [[policy, reason, f"{number:.0f}"] for (policy, reason), number in counts.items()]
    head = ("policy", "reason", "records")
    return f"<h2>Refused and dropped records</h2>{_table(head, rows)}" if rows else ""


def _rescued_problems(
    directory: Path, config: RunConfig, rescues: Sequence[dict], sample: bool
) -> str:
    """Up to five rescued problems side by side: before, the peer's tokens and one's own, now."""
    shown = list({(r["receiver"], r["skill"]): r for r in rescues}.values())[:SHOWN_RESCUES]
    if not shown:
        return ""
    paths = {policy.name: policy.path for policy in config.policies}
    now = _answers_now(directory, config, shown) if sample else {}
    blocks = ["<h2>Rescued problems, side by side</h2>"]
    for rescue in shown:
        receiver, source = rescue["receiver"], rescue["source"]
        said = [
            (f"{receiver} said in step {rescue['step']}", rescue["receiver_text"]),
            (f"{source} said", rescue["source_text"]),
        ]
        if (receiver, rescue["problem_id"]) in now:
            said.append((f"{receiver} says now", now[receiver, rescue["problem_id"]]))
        quotes = "".join(
            f"<p>{escape(who)}: <code>{escape(printable(text))}</code></p>" for who, text in said
        )
        tokens = _tokens(rescue["source_text"], paths.get(source), paths.get(receiver))
        prompt = escape(printable(rescue["prompt"]))
        blocks.append(f"<div class=rescue><h3>{prompt}</h3>{quotes}{tokens}</div>")
    return "".join(blocks)


def _tokens(text: str, source: str | None, receiver: str | None) -> str:
    """One text in both tokenizations, coloured by chunk."""
    if source is None or receiver is None:
        return ""  # a peer whose log was read: its tokenizer is not here
    try:
        codecs = [ByteCodec(load_tokenizer(path)) for path in (source, receiver)]
        token_bytes = [codec.token_bytes(codec.encode(text)) for codec in codecs]
    except (LossyText, MrlError):
        return ""
    rows = []
    for side, label in enumerate(("source", "receiver")):
        spans = []
        for number, chunk in enumerate(align(*token_bytes)):
            start, stop = (chunk.source, chunk.receiver)[side]
            for piece in token_bytes[side][start:stop]:
                shown = escape(printable(piece.decode("utf-8", errors="replace")))
                color = CHUNK_COLORS[number % 2]
                spans.append(f'<span style="background:{color}">{shown}</span>')
        rows.append(f"<div class=tokens>{label}: {''.join(spans)}</div>")
    return "".join(rows)


def _answers_now(
    directory: Path, config: RunConfig, rescues: Sequence[dict]
) -> dict[tuple[str, str], str]:
    """What the newest weights say, greedily, to each rescued problem; {} if there are none."""
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
