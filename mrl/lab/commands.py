"""The laboratory's commands, hung into `mini_mrl.py`: torch and matplotlib load inside them."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mrl.errors import MrlError

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"
console = Console()


def compare(
    modes: Annotated[str, typer.Option(help="Modes, with commas.")] = "solo,solo-x2,sgt",
    seeds: Annotated[int, typer.Option(help="How many: seeds 1, 2, ...")] = 3,
    steps: Annotated[int | None, typer.Option(help="Training steps of a run.")] = None,
    pair: Annotated[str | None, typer.Option(help="As for training.")] = None,
    config: Annotated[Path | None, typer.Option(help="As for training.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: one a core.")] = 0,
    out: Annotated[Path, typer.Option(help="Runs, tables and figures.")] = Path("runs/compare"),
    quick: Annotated[bool, typer.Option("--quick", help="solo and sgt, 2 seeds, short.")] = False,
) -> None:
    """Run modes under the same seeds and budget; a table with intervals, words and figures."""
    from mrl.lab import compare_view as view
    from mrl.lab.compare import QUICK, Plan, read_all, run_all

    chosen, numbers = modes.split(","), list(range(1, seeds + 1))
    if quick:
        chosen, numbers, steps = QUICK["modes"], QUICK["seeds"], steps or QUICK["steps"]
    given = {"--steps": steps, "--pair": pair, "--config": config}
    options = [str(x) for key, value in given.items() if value is not None for x in (key, value)]
    plan = Plan(chosen, numbers, out, jobs or os.cpu_count() or 1, options)
    failures = run_all(plan, lambda text: console.print(text, soft_wrap=True, highlight=False))
    results = read_all(plan)
    if not results:
        raise MrlError(f"No run finished: {failures[0] if failures else 'nothing to run'}")
    what = ["--quick"] if quick else ["--modes", modes, "--seeds", str(seeds), *options]
    view.write_tables(results, out, f"python mini_mrl.py compare {' '.join(what)}")
    view.draw_pictures(results, out / "figures")
    part = view.parts_of(results)[0]
    console.print(view.comparison_table(results, part))
    for sentence in [*view.sentences(results, part), *failures]:
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"Written: {out}/table.md, table.csv, figures/", soft_wrap=True)


def bandit(
    png: Annotated[Path, typer.Option(help="The picture.")] = Path("bandit.png"),
) -> None:
    """Why the modes sit where they sit: exact, on contextual bandits; half a minute."""
    from mrl.lab.bandit_view import analyse_all, bandit_sentences, bandit_table, draw_bandit

    with console.status("Summing over every outcome; this takes half a minute."):
        found = analyse_all()
        console.print(bandit_table(found))
        for sentence in bandit_sentences():
            console.print(sentence, highlight=False, soft_wrap=True)
        draw_bandit(found, png)
    console.print(f"Drawn in {png}.")


def report(directory: Annotated[Path, typer.Argument(help="A run: runs/<name>.")]) -> None:
    """Write one HTML page about a run, with its pictures: runs/<name>/report.html."""
    from mrl.lab.report import write_report

    console.print(f"Written: {write_report(directory)}", soft_wrap=True)


def align(
    text: Annotated[str | None, typer.Argument(help="The text; or use --file.")] = None,
    source: Annotated[str, typer.Option(help="Tokenizer: directory or hub name.")] = str(
        TINY / "qwen-tiny"
    ),
    receiver: Annotated[str, typer.Option(help="Tokenizer: directory or hub name.")] = str(
        TINY / "llama-tiny"
    ),
    file: Annotated[Path | None, typer.Option(help="Read the text from a file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it there, too.")] = None,
) -> None:
    """Show one text in two tokenizations, chunk by chunk, and what the difference costs."""
    from mrl.alignment import ByteCodec, LossyText
    from mrl.lab.alignment_view import draw_alignment, render_alignment
    from mrl.policy import load_tokenizer
    from mrl.residual import measure

    if (text is None) == (file is None):
        raise MrlError("Give either a text or --file, not both and not neither.")
    if file is not None:
        try:
            text = file.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MrlError(f"{file}: cannot be read as UTF-8 text ({error}).") from None
    token_bytes = []
    for path in (source, receiver):
        codec = ByteCodec(load_tokenizer(path))
        try:
            token_bytes.append(codec.token_bytes(codec.encode(text)))
        except LossyText as loss:
            raise MrlError(
                f"{path}: its tokenizer cannot write this text exactly ({loss.reason}: {loss}), "
                "so a record with it would be refused."
            ) from None
    names = (Path(source).name, Path(receiver).name)
    residual = measure(*token_bytes)
    console.print(render_alignment(names, *token_bytes, residual, console.width))
    if svg is not None:
        try:
            draw_alignment(names, *token_bytes, residual, svg)
        except OSError as error:
            raise MrlError(f"{svg}: cannot be written ({error.strerror}).") from None
        console.print(f"Drawn in {svg}.")


def warmstart(
    out: Annotated[Path, typer.Option(help="Where the two directories go.")] = Path("data/tiny"),
    seed: Annotated[int, typer.Option(help="Of weights and demonstrations.")] = 0,
    updates: Annotated[int | None, typer.Option(help="Fewer make a weaker pair.")] = None,
    foreign_right: Annotated[
        float, typer.Option(help="How often the peer's skills are shown right: 0.95 makes twins.")
    ] = 0.03,
) -> None:
    """Make the tiny pair from nothing: tokenizers, models, supervised warm start."""
    from mrl.tiny.pair import warm_start_pair

    if not 0 <= foreign_right <= 1:
        raise MrlError(f"--foreign-right is {foreign_right:g}, but must be from 0 to 1.")
    console.print("Making qwen-tiny and llama-tiny; this takes a few minutes on two cores.")
    warm_start_pair(out, seed, updates, foreign_right)
    console.print(f"Saved in {out}.")


def data(
    name: Annotated[str, typer.Argument(help="gsm8k")],
    out: Annotated[Path, typer.Option(help="Where the JSONL files go.")] = TINY.parent / "gsm8k",
) -> None:
    """Fetch a problem set from its authors, with a checksum."""
    from mrl.lab.gsm8k import fetch_gsm8k

    if name != "gsm8k":
        raise MrlError(f"There is no problem set {name!r} to fetch; known is gsm8k.")
    fetch_gsm8k(out, lambda text: console.print(text, highlight=False))
    console.print(f"Written: {out}", soft_wrap=True)


def problems(
    out: Annotated[Path, typer.Option(help="Where the JSONL files go.")] = Path("data/words"),
) -> None:
    """Write the problem sets of data/words again."""
    from mrl.experiment.problems import save_problems
    from mrl.tiny.skills import make_problem_sets

    for part, made in make_problem_sets().items():
        save_problems(out / f"{part}.jsonl", made)
        console.print(f"{out / f'{part}.jsonl'}: {len(made)} problems")


COMMANDS = (compare, bandit, report, align, warmstart, data, problems)
