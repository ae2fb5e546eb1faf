"""`python mini_mrl.py report runs/<name>`: one HTML page about a run, complete in itself.

Pictures are embedded, there is no script and nothing is fetched. Whatever a model wrote is escaped
and its control characters are made visible.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.lab import figures
from mrl.lab.alignment_view import alignment_svg
from mrl.runtime import run_directory
from mrl.runtime.loading import load_tokenizer
from mrl.runtime.metrics import meaning
from mrl.runtime.summary import evaluation_table, learnt_sentence, residual_sentences
from mrl.runtime.view import printable

SHOWN_RESCUES = 5
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 62rem; }
img { max-width: 100%; height: auto; background: white; } .wide { overflow-x: auto; }
.note, table { font-size: .9rem; } table { border-collapse: collapse; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; } td:first-child, th:first-child { text-align: left; }
.rescue { border-left: 4px solid var(--line); padding: .1rem 1rem; margin: 1rem 0; }
code { overflow-wrap: anywhere; } svg { width: 40rem; }
@media (max-width: 40rem) { .wide img { max-width: 44rem; } }
"""


def write_report(directory: Path) -> Path:
    """Write `report.html` and `figures/*.png` into a run's directory; returns the page's path.

    Raises MrlError if there is no run, or nothing in it yet.
    """
    config = run_directory.read_run_config(directory)
    lines = run_directory.read_metrics(directory)
    if not lines:
        raise MrlError(f"{directory}: has no finished step yet, so there is nothing to report.")
    samples = run_directory.read_samples(directory)
    failures = [(line["step"], line["failure"]) for line in samples if "failure" in line]
    rescues = run_directory.read_rescues(directory)
    evaluations = run_directory.read_evaluations(directory)

    sizes = ", ".join(f"{policy.name} (G = {policy.group_size})" for policy in config.policies)
    note = (
        f"Mode {config.mode}, seed {config.seed}, {lines[-1]['step']} of {config.steps} steps of "
        f"{config.prompts_per_step} prompts; {sizes}. Made by python mini_mrl.py report."
    )
    parts = [
        f"<h1>{escape(directory.name)}</h1>",
        f"<p><strong>{escape(learnt_sentence(evaluations, rescues))}</strong></p>",
        f"<p class=note>{escape(note)}</p>",
        _table("What went wrong", ("step", "what"), failures),
    ]
    if evaluations:
        columns = evaluation_table(evaluations).columns
        # rich keeps columns, HTML wants rows
        head, *rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
        parts.append(_table("Held-out problems, in percent", head, rows))
    for picture, keys in figures.pictures_of(lines):
        parts.append(_picture(directory, lines, picture, keys))

    counts = Counter((r["receiver"], r["source"], r["skill"]) for r in rescues)
    rows = [(*key, number) for key, number in counts.most_common()]
    parts.append(_table("Who rescued whom", ("receiver", "source", "skill", "rescues"), rows))
    for sentence in residual_sentences(lines):
        parts.append(f"<p>{escape(sentence)}</p>")
    parts += _rescued_problems(rescues, samples, {p.name: p.path for p in config.policies})

    title = escape(f"mini-mrl: {directory.name}")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>"
    )
    path = directory / "report.html"
    path.write_text(printable(page), encoding="utf-8")
    return path


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table under its heading; nothing where there are no rows."""

    def line(tag: str, cells: Sequence[Any]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    table = f"<div class=wide><table>{line('th', head)}{body}</table></div>"
    return f"<h2>{escape(title)}</h2>{table}" if body else ""


def _picture(
    directory: Path, lines: list[dict], picture: figures.Picture, keys: Sequence[str]
) -> str:
    """Draw one; its caption says what the metrics mean, its alternative text where they went."""
    path = directory / "figures" / f"{picture.name}.png"
    picture.draw(lines, path, keys, picture.unit)

    ends = [picture.title]
    for policy in figures.policies_of(lines):
        for key in keys:
            values = figures.series(lines, policy, key, figures.WINDOW)[1]
            if any(values):
                label = figures.label_of(key)
                ends.append(f"{policy}, {label}: {values[0]:.3g} to {values[-1]:.3g}")

    data = base64.b64encode(path.read_bytes()).decode("ascii")
    img = f'<img alt="{escape("; ".join(ends))}" src="data:image/png;base64,{data}">'
    caption = ". ".join(dict.fromkeys(map(meaning, keys)))
    return f"<h2>{escape(picture.title)}</h2><p class=wide>{img}<p class=note>{escape(caption)}."


def _rescued_problems(
    rescues: Sequence[dict], samples: Sequence[dict], paths: dict[str, str]
) -> Iterator[str]:
    """Up to five rescued problems: before, the peer's tokens and one's own, and met again."""
    last = {(line["policy"], line["problem"]): line for line in samples if "problem" in line}

    def met_again(rescue: dict) -> dict | None:
        line = last.get((rescue["receiver"], rescue["problem_id"]))
        return line if line and line["step"] > rescue["step"] else None

    # the last rescue of each skill; sorted, so that one whose problem was met again comes last
    shown = {
        (r["receiver"], r["skill"]): r for r in sorted(rescues, key=lambda r: bool(met_again(r)))
    }
    if shown:
        yield "<h2>Rescued problems, side by side</h2>"
    for rescue in list(shown.values())[:SHOWN_RESCUES]:
        receiver, source = rescue["receiver"], rescue["source"]
        answers = [
            (f"{receiver} in step {rescue['step']}, wrong", rescue["receiver_text"]),
            (f"{source}, correct", rescue["source_text"]),
        ]
        later = met_again(rescue)
        if later:
            name = f"{receiver} in step {later['step']}, {later['verdict']}"
            answers.append((name, later["text"]))

        yield f"<div class=rescue><h3>{escape(rescue['prompt'])}</h3>"
        for name, text in answers:
            yield f"<p>{escape(name)}: <code>{escape(text)}</code></p>"
        with suppress(LossyText, MrlError):  # MrlError: the models are not here any more
            codecs = [ByteCodec(load_tokenizer(paths[name])) for name in (source, receiver)]
            tokens = [c.token_bytes(c.encode(rescue["source_text"])) for c in codecs]
            yield f"<div class=wide>{alignment_svg(('source', 'receiver'), *tokens)}</div>"
        yield "</div>"
