"""`python mini_mrl.py report runs/<name>`: writes a self-contained HTML page about a run.

The page loads nothing from the network. Its frame is data/page/report.part.html, and its only
script is the replay, data/page/replay.part.html. All text from models is escaped, and control
characters are made visible.
"""

import base64
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from mrl.alignment import ByteCodec, LossyText
from mrl.config import DATA, RunConfig
from mrl.errors import MrlError
from mrl.lab.alignment_view import visible
from mrl.models.loading import load_tokenizer
from mrl.run import directory as run_directory
from mrl.run import figures
from mrl.run.blind_spots import CLOSED, blind_spots, knows, rates_of
from mrl.run.metrics import meaning
from mrl.run.summary import evaluation_table, learned_sentence
from mrl.run.view import printable
from mrl.settings.read import mode_class


def write_report(directory: Path) -> Path:
    """Write `report.html` and `figures/*.png` into a run's directory; returns the page's path.

    Raises MrlError if the directory is not a run, or if the run has no finished step.
    """
    config = run_directory.read_run_config(directory)
    lines = run_directory.read_metrics(directory)
    if not lines:
        raise MrlError(
            f"{directory} has no finished step yet, so there is nothing to report. Try again later."
        )

    evaluations = run_directory.read_evaluations(directory)
    samples = run_directory.read_samples(directory)
    failures = [(line["step"], line["failure"]) for line in samples if "failure" in line]

    rewards, *others = _plots(directory, lines)
    parts = [
        f"<h1>mini-mrl: run {escape(directory.name)}</h1>",
        f"<p>{escape(about(config, lines[-1]['step']))}</p>",
        f"<p><strong>{headline(directory)}</strong></p>",
        rewards,
        _table("Warnings", ("step", "warning"), failures),
        replay(directory),
        "<details><summary>Diagnostics: tables and curves</summary>",
        _scores(evaluations),
        *others,
        "</details>",
    ]

    page = (DATA / "page" / "report.part.html").read_text(encoding="utf-8")
    page = page.replace("{{title}}", escape(f"mini-mrl: {directory.name}"))
    # the body is filled in last, because a model may have written {{title}}
    page = page.replace("{{body}}", "".join(parts))

    path = directory / "report.html"
    path.write_text(printable(page), encoding="utf-8")
    return path


def about(config: RunConfig, steps: int) -> str:
    """Sentences for a reader who knows nothing about the run. steps: how many it has made."""
    names = [policy.name for policy in config.policies]
    learned = "was trained" if len(names) == 1 else "were trained side by side"
    sentences = [
        f"{' and '.join(names)} {learned} by mini-mrl, in which language models learn from each "
        "other's verified solutions."
    ]
    with suppress(MrlError, OSError):  # the file of the user's own mode may no longer exist
        mode = mode_class(config.mode)
        doc = inspect.getdoc(mode) or ""
        if doc:
            sentences.append(f"How each of them learned is called mode {mode.name}: {_lower(doc)}")
    sizes = sorted({policy.group_size for policy in config.policies})
    sentences += [
        f"In each step, each model answers {config.prompts_per_step} prompts, and it makes "
        f"{' or '.join(map(str, sizes))} attempts at each of them (the group size G).",
        f"This run is called {config.name}, its random numbers have the seed {config.seed}, and it "
        f"has made {steps} of {config.steps} steps.",
    ]
    return " ".join(sentences)


def _lower(doc: str) -> str:
    """The first sentence of a docstring, to stand after a colon."""
    first = " ".join(doc.split("\n\n")[0].split())
    return first if first[:2].isupper() else first[:1].lower() + first[1:]


def headline(directory: Path) -> str:
    """The sentences about what a run learned, as HTML; they begin with its blind spots."""
    evaluations = run_directory.read_evaluations(directory)
    text = learned_sentence(evaluations, run_directory.read_metrics(directory))
    text = escape(text).replace("-&gt;", "→")
    return re.sub("`([^`]+)`", r"<code>\1</code>", text)


# ------------------------------------------------------------------------------------ the replay


def replay(directory: Path) -> str:
    """The part of the page that replays a run: style, markup, data and script."""
    component = (DATA / "page" / "replay.part.html").read_text(encoding="utf-8")
    data = json.dumps(replay_data(directory), separators=(",", ":"))
    # without "<", the data cannot contain a tag
    return component.replace("{{run}}", data.replace("<", "\\u003c"))


def replay_data(directory: Path) -> dict[str, Any]:
    """The data of the replay: rescues, and each policy's solve rates as [step, percent].

    "closed" has the blind spots that held-out problems after training show as closed, or None if
    the run has no such evaluation.
    """
    lines = run_directory.read_metrics(directory)
    evaluations = run_directory.read_evaluations(directory)
    before, after = (rates_of(evaluations.get(when, ())) for when in ("before", "after"))
    config = run_directory.read_run_config(directory)
    found = blind_spots(before, {policy.name for policy in config.policies if not policy.frozen})
    keys = sorted({key for line in lines for key in line if key.startswith("skill/")})

    policies = []
    colors = cycle(color for color, _ in figures.POLICY_LINES)
    for name, color in zip(figures.policies_of(lines), colors, strict=False):
        rates = {}
        for key in keys:
            steps, means = figures.series(lines, name, key, figures.WINDOW)
            percents = [round(100 * mean) for mean in means]
            rates[key.removeprefix("skill/")] = list(zip(steps, percents, strict=True))

        of_policy = [skill for owner, skill in found if owner == name]
        closed = None
        if name in after:
            closed = [skill for skill in of_policy if knows(after[name][skill])]
        policy = {"name": name, "color": color, "rates": rates}
        policies.append(policy | {"blind_spots": of_policy, "closed": closed})

    rescues = list(_rescues(directory, config))
    return {
        "steps": lines[-1]["step"],
        "closed": round(100 * CLOSED),
        "policies": policies,
        "rescues": rescues,
    }


def _rescues(directory: Path, config: RunConfig) -> Iterator[dict[str, Any]]:
    """A run's rescues, with the peer's solution as tokens of the source and of the receiver.

    "again": the receiver's last completion for the problem, if it met the problem in a later step.
    """
    last = {}
    for line in run_directory.read_samples(directory):
        if "problem" in line:
            last[line["policy"], line["problem"]] = line

    codecs = {}
    with suppress(MrlError):  # the models may no longer exist
        for policy in config.policies:
            codecs[policy.name] = ByteCodec(load_tokenizer(policy.path))

    for rescue in run_directory.read_rescues(directory):
        later = last.get((rescue["receiver"], rescue.pop("problem_id")))
        if later and later["step"] > rescue["step"]:
            rescue["again"] = later["step"], later["verdict"], later["text"]

        with suppress(LossyText, KeyError):  # KeyError if there are no codecs
            tokens = []
            for side in ("source", "receiver"):
                codec = codecs[rescue[side]]
                pieces = codec.token_bytes(codec.encode(rescue["source_text"]))
                tokens.append(" ".join(map(visible, pieces)))  # `visible` shows a space as a dot
            rescue["tokens"] = tokens

        yield rescue


# ----------------------------------------------------------------------------------- diagnostics


def _scores(evaluations: dict) -> str:
    """The table of scores as HTML; empty if nothing was scored."""
    if not evaluations:
        return ""
    columns = evaluation_table(evaluations).columns

    # rich stores columns, but HTML needs rows
    head, *rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
    return _table("Held-out problems, in percent", head, rows)


def _plots(directory: Path, lines: list[dict]) -> Iterator[str]:
    """A plot per kind of metric as HTML, first the mean reward."""
    for name, title, pattern, unit in figures.PICTURES:
        keys = figures.keys_of(lines, pattern)
        if not keys and name != "reward":  # a run without a correct completion has this plot too
            continue
        keys = keys or [pattern]
        path = directory / "figures" / f"{name}.png"
        figures.draw_curves(lines, path, keys, unit)
        data = base64.b64encode(path.read_bytes()).decode("ascii")

        # explain the metrics below the plot
        meanings = dict.fromkeys(map(meaning, keys))
        caption = escape(
            f"Mean over {figures.WINDOW} steps. {'. '.join(map(_capitalized, meanings))}."
        )
        yield f"<h2>{title}</h2><p>{caption}</p>"
        yield f'<img alt="{title} {caption}" src="data:image/png;base64,{data}">'


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table below its heading; empty if there are no rows."""

    def line(tag: str, cells: Sequence[Any]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    table = f"<div class=wide><table>{line('th', head)}{body}</table></div>"
    return f"<h2>{escape(title)}</h2>{table}" if body else ""
