"""`python mini_mrl.py report runs/<name>`: one HTML page about a run, complete in itself.

It fetches nothing. Its frame is data/page/report_template.html; its one script is the replay,
replay.html beside that. Whatever a model wrote is escaped there and here, and its control
characters are made visible.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from mrl.alignment import ByteCodec, LossyText
from mrl.config import DATA, RunConfig
from mrl.errors import MrlError
from mrl.lab import figures
from mrl.lab.alignment_view import visible
from mrl.models.loading import load_tokenizer
from mrl.run import directory as run_directory
from mrl.run.evaluation import of_first_split
from mrl.run.metrics import meaning
from mrl.run.summary import evaluation_table, learnt_sentence
from mrl.run.view import HOLE, printable


def write_report(directory: Path) -> Path:
    """Write `report.html` and `figures/*.png` into a run's directory; returns the page's path.

    Raises MrlError if there is no run, or nothing in it yet.
    """
    config = run_directory.read_run_config(directory)
    lines = run_directory.read_metrics(directory)
    if not lines:
        raise MrlError(f"{directory}: has no finished step yet, so there is nothing to report.")

    evaluations = run_directory.read_evaluations(directory)
    samples = run_directory.read_samples(directory)
    failures = [(line["step"], line["failure"]) for line in samples if "failure" in line]
    sentence = learnt_sentence(evaluations, run_directory.read_rescues(directory))

    sizes = ", ".join(f"{policy.name} (G = {policy.group_size})" for policy in config.policies)
    note = (
        f"Mode {config.mode}, seed {config.seed}, {lines[-1]['step']} of {config.steps} steps of "
        f"{config.prompts_per_step} prompts; {sizes}. Made by python mini_mrl.py report."
    )
    parts = [
        f"<h1>{escape(directory.name)}</h1>",
        f"<p><strong>{escape(sentence)}</strong></p>",
        f"<p class=note>{escape(note)}</p>",
        _table("What went wrong", ("step", "what"), failures),
        replay(directory),
        "<details><summary>Diagnostics: tables and curves</summary>",
        *_diagnostics(directory, lines, evaluations),
        "</details>",
    ]

    page = (DATA / "page" / "report_template.html").read_text(encoding="utf-8")
    page = page.replace("{{title}}", escape(f"mini-mrl: {directory.name}"))
    page = page.replace("{{body}}", "".join(parts))  # last: a model may write {{title}}

    path = directory / "report.html"
    path.write_text(printable(page), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------ the replay


def replay(directory: Path) -> str:
    """The component that plays a run again: its style, markup, data and script."""
    component = (DATA / "page" / "replay.html").read_text(encoding="utf-8")
    data = json.dumps(replay_data(directory), separators=(",", ":"))
    return component.replace("{{run}}", data.replace("<", "\\u003c"))  # no tag begins in there


def replay_data(directory: Path) -> dict[str, Any]:
    """How often each policy solves each skill, as [step, percent], and the rescues of a run."""
    lines = run_directory.read_metrics(directory)
    entries = run_directory.read_evaluations(directory).get("before", [])
    before = {entry["policy"]: entry["skills"] for entry in of_first_split(entries)}
    keys = sorted({key for line in lines for key in line if key.startswith("skill/")})

    policies = []
    colors = cycle(color for color, _ in figures.POLICY_LINES)
    for name, color in zip(figures.policies_of(lines), colors, strict=False):
        rates = {}
        for key in keys:
            steps, means = figures.series(lines, name, key, figures.WINDOW)
            percents = [round(100 * mean) for mean in means]
            rates[key.removeprefix("skill/")] = list(zip(steps, percents, strict=True))

        blind_spots = []
        for skill, scores in before.get(name, {}).items():
            if scores["pass@1"] < HOLE:
                blind_spots.append(skill)
        policies.append({"name": name, "color": color, "rates": rates, "blind_spots": blind_spots})

    config = run_directory.read_run_config(directory)
    rescues = list(_rescues(directory, config))
    return {"steps": lines[-1]["step"], "policies": policies, "rescues": rescues}


def _rescues(directory: Path, config: RunConfig) -> Iterator[dict[str, Any]]:
    """A run's rescues, with the peer's text in the tokens of its source and of its receiver.

    "again" is the receiver's last attempt, if it met the problem in a later step.
    """
    last = {}
    for line in run_directory.read_samples(directory):
        if "problem" in line:
            last[line["policy"], line["problem"]] = line

    codecs = {}
    with suppress(MrlError):  # the models are not here any more
        for policy in config.policies:
            codecs[policy.name] = ByteCodec(load_tokenizer(policy.path))

    for rescue in run_directory.read_rescues(directory):
        later = last.get((rescue["receiver"], rescue.pop("problem_id")))
        if later and later["step"] > rescue["step"]:
            rescue["again"] = later["step"], later["verdict"], later["text"]

        with suppress(LossyText, KeyError):  # KeyError: without codecs
            tokens = []
            for side in ("source", "receiver"):
                codec = codecs[rescue[side]]
                pieces = codec.token_bytes(codec.encode(rescue["source_text"]))
                tokens.append(" ".join(map(visible, pieces)))  # in them a space is shown as a dot
            rescue["tokens"] = tokens

        yield rescue


# ----------------------------------------------------------------------------------- diagnostics


def _diagnostics(directory: Path, lines: list[dict], evaluations: dict) -> Iterator[str]:
    """Tables and curves."""
    if evaluations:
        columns = evaluation_table(evaluations).columns

        # rich keeps columns, HTML wants rows
        head, *rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
        yield _table("Held-out problems, in percent", head, rows)

    for name, title, pattern, unit in figures.PICTURES:
        keys = figures.keys_of(lines, pattern)
        if not keys:
            continue
        path = directory / "figures" / f"{name}.png"
        figures.draw_curves(lines, path, keys, unit)
        data = base64.b64encode(path.read_bytes()).decode("ascii")

        # the words behind a metric's name
        meanings = dict.fromkeys(map(meaning, keys))
        caption = escape(f"Mean of {figures.WINDOW} steps; {'; '.join(meanings)}.")
        yield f"<h2>{title}</h2><p>{caption}</p>"
        yield f'<img alt="{title} {caption}" src="data:image/png;base64,{data}">'


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table under its heading; nothing where there are no rows."""

    def line(tag: str, cells: Sequence[Any]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    table = f"<div class=wide><table>{line('th', head)}{body}</table></div>"
    return f"<h2>{escape(title)}</h2>{table}" if body else ""
