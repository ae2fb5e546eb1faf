"""The laboratory's commands, part of `mini_mrl.py`; matplotlib is loaded by those that draw."""

import shlex
import sys
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.lab.alignment_view import render_alignment
from mrl.lab.compare import Plan, jobs_that_fit, name_modes, read_all, run_all, seeds_of
from mrl.lab.gsm8k import make_gsm8k
from mrl.models.loading import load_tokenizer
from mrl.parsing import split_list
from mrl.run.problems import save_problems
from mrl.run.view import console
from mrl.tiny.pair import warm_start_pair
from mrl.tiny.skills import make_problem_sets

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"
QWEN, LLAMA = (str(TINY / name) for name in ("qwen-tiny", "llama-tiny"))
Tokenizer = Annotated[str, typer.Option(help="Tokenizer: directory or hub name.")]
Folder = Annotated[Path, typer.Option(help="Where the JSONL files go.")]
JOBS_HELP = "Runs in parallel (default: as many as fit, at most 4; 1 on a GPU)."
say = partial(console.print, markup=False, highlight=False, soft_wrap=True)


def compare(
    modes: Annotated[str, typer.Option(help="With commas.")] = "solo,solo-x2,replay,sft,sgt",
    seeds: Annotated[str, typer.Option(help="5: seeds 1 to 5; or which: 31-40.")] = "3",
    steps: Annotated[int | None, typer.Option(help="Training steps of a run.")] = None,
    pair: Annotated[str | None, typer.Option(help="As for training; none: tiny.")] = None,
    config: Annotated[Path | None, typer.Option(help="As for training.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help=JOBS_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="none: runs/compare or runs/quick")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="2 modes, 2 seeds: a look.")] = False,
    tune: Annotated[list[str] | None, typer.Option(help="KEY=VALUE,VALUE: a grid.")] = None,
) -> None:
    """Run modes under the same seeds and budget; a table with intervals, and figures."""
    from mrl.lab import compare_view, figures

    if quick:  # below 180 steps the curves have not parted yet
        modes, seeds, steps = "solo,sgt", "2", steps or 200
    if config is None:  # which may name the policies
        pair = pair or "tiny"
    out = out or Path("runs", "quick" if quick else "compare")
    out, config = out.expanduser(), config and config.expanduser()

    options: list[str] = []
    for option, value in {"--steps": steps, "--pair": pair, "--config": config}.items():
        if value is not None:
            options += [option, str(value)]
    plan = Plan(name_modes(split_list(modes), options, tune or ()), seeds_of(seeds), out)
    plan.jobs = jobs or jobs_that_fit(plan, pair, config)

    failures = run_all(plan, say)
    results = read_all(plan)
    if not results:
        raise MrlError(f"No run finished: {failures[0]}")

    text = compare_view.summary(results, "python " + shlex.join(sys.argv))
    (out / "table.md").write_text(text, encoding="utf-8")
    compare_view.write_csv(results, out / "table.csv")
    figures.draw_learning_curves(results, out / "figures" / "learning.png")
    blind_spots = compare_view.blind_spots_of(results)
    if blind_spots:
        compare_view.draw_closings(results, blind_spots, out / "figures" / "blind-spots.png")

    console.print(Markdown(text))
    say("\n".join([*failures, f"Written: {out}/table.md, table.csv, figures/"]))


def bandit() -> None:
    """Show exactly, on contextual bandits, how far each mode helps; takes some five seconds."""
    from mrl.lab.bandit import bandit_table, replay_sentence

    console.print(bandit_table())
    say(replay_sentence())


def report(directory: Annotated[Path, typer.Argument(help="A run: runs/<name>.")]) -> None:
    """Write one HTML page about a run, with its pictures: runs/<name>/report.html."""
    from mrl.lab.report import write_report

    say(f"Written: {write_report(directory.expanduser())}")


def align(
    text: Annotated[str, typer.Argument(help="What both tokenize.")],
    source: Tokenizer = QWEN,
    receiver: Tokenizer = LLAMA,
) -> None:
    """Show one text in two tokenizations, chunk by chunk, and what the difference costs."""
    sides = []
    for path in (source, receiver):
        codec = ByteCodec(load_tokenizer(expanduser(path)))
        try:
            sides.append(codec.token_bytes(codec.encode(text)))
        except LossyText as refusal:
            raise MrlError(f"{path}: cannot write this text exactly ({refusal}).") from None

    names = (Path(source).name, Path(receiver).name)
    console.print(render_alignment(names, *sides))


def warmstart(
    out: Annotated[Path, typer.Option(help="Where the two directories go.")] = Path("data/tiny"),
    seed: Annotated[int, typer.Option(help="Of weights and demonstrations.")] = 0,
    foreign_right: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="One share for all of the peer's skills; 0.95: twins."),
    ] = None,
) -> None:
    """Make the tiny pair from nothing: tokenizers, models, supervised warm start."""
    out = out.expanduser()
    out.mkdir(parents=True, exist_ok=True)  # before the work, if it cannot be
    say("Making qwen-tiny and llama-tiny; this takes a few minutes on two cores.")
    warm_start_pair(out, seed, foreign_right)
    say(f"Saved in {out}.")


def gsm8k(out: Folder = TINY.parent / "gsm8k") -> None:
    """Fetch GSM8K, and make it ready for --set train=FILE."""
    out = out.expanduser()
    make_gsm8k(out)
    say(f"Written: {out}")


def problems(out: Folder = Path("data/words")) -> None:
    """Write the problem sets of data/words again."""
    out = out.expanduser()
    for split, problem_set in make_problem_sets().items():
        save_problems(out / f"{split}.jsonl", problem_set)
        say(f"{out / split}.jsonl: {len(problem_set)} problems")


COMMANDS = (compare, bandit, report, align, warmstart, gsm8k, problems)
