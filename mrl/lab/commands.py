"""The commands for experiments.

Each command imports what it needs when it is called, so that help and mistakes are answered at
once.
"""

import shlex
import sys
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from mrl.errors import MrlError
from mrl.lab.compare import (
    Plan,
    check_settings,
    jobs_that_fit,
    name_modes,
    read_all,
    run_all,
    seeds_of,
)
from mrl.lab.compare_board import Board
from mrl.parsing import split_list
from mrl.run.directory import read_run_config
from mrl.run.view import console
from mrl.settings.read import run_config

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"
QWEN, LLAMA = (str(TINY / name) for name in ("qwen-tiny", "llama-tiny"))
Tokenizer = Annotated[str, typer.Option(help="Directory or hub name of this tokenizer.")]
Folder = Annotated[Path, typer.Option(help="Output directory of the JSONL files.")]
RUN_HELP = "Directory of the run: runs/<name>."
WORDS_HELP = "A sentence of your own (default: ask for one, again and again)."
ASKED_RUN_HELP = "Directory of the run to ask (default: the one in runs/ that saved last)."
SEEDS_HELP = "Number of seeds (5 = seeds 1 to 5), or a range (31-40)."
STEPS_HELP = "Training steps per run (default: 240 for the tiny pair, 200 with --quick)."
QUICK_HELP = "Quick look: 2 modes, 2 seeds, about ten minutes."
SET_HELP = (
    "Any setting, as KEY=VALUE, as for training; repeatable. A run ignores the settings of the "
    "other modes."
)
JOBS_HELP = "Number of runs in parallel (default: as many as fit, at most four; 1 on a GPU)."
PAIR_HELP = "Models to train, as for training (default: tiny, or those of --config)."
OUT_HELP = "Output directory (default: runs/compare, or runs/quick with --quick)."
RIGHT_HELP = (
    "Share of examples that show each of the peer's four skills correctly (default: 0.10 for weak "
    "skills, 0 for blind spots; 0.95 makes near-identical twins)."
)
say = partial(console.print, markup=False, highlight=False, soft_wrap=True)


def compare(
    modes: Annotated[
        str, typer.Option(help="Modes to compare, separated by commas.")
    ] = "solo,solo-x2,replay,sft,sgt",
    seeds: Annotated[str, typer.Option(help=SEEDS_HELP)] = "3",
    steps: Annotated[int | None, typer.Option(help=STEPS_HELP)] = None,
    pair: Annotated[str | None, typer.Option(help=PAIR_HELP)] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings, as for training.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help=JOBS_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
) -> None:
    """Compare modes on the same seeds and budget; writes a table with intervals, and plots."""
    if quick:  # with fewer than 180 steps the curves do not yet differ
        modes, seeds, steps = "solo,sgt", "2", steps or 200
    if config is None:  # a config file may define the policies
        pair = pair or "tiny"
    out = out or Path("runs", "quick" if quick else "compare")
    out, config = out.expanduser(), config and config.expanduser()

    settings = settings or []
    check_settings(settings)
    named = name_modes(split_list(modes))
    plan = Plan(named, seeds_of(seeds), out, pair, config, steps, settings)
    plan.jobs = jobs or jobs_that_fit(plan)

    failures = run_all(plan, Board(console))
    from mrl.lab import compare_view
    from mrl.run import figures

    results = read_all(plan)
    if not results:
        raise MrlError(f"No run finished: {failures[0]}")

    text = compare_view.summary(results, "python " + shlex.join(sys.argv))
    (out / "table.md").write_text(text, encoding="utf-8")
    compare_view.write_csv(results, out / "table.csv")
    figures.draw_learning_curves(results, out / "figures" / "learning.png")
    blind_spots = compare_view.blind_spots_of(results)
    if blind_spots:
        closings = compare_view.closing_steps(results, blind_spots)
        last = results[0].lines[-1]["step"]
        compare_view.draw_closings(closings, last, out / "figures" / "blind-spots.png")

    console.print(Markdown(text))
    say("\n".join([*failures, f"Written: {out}/table.md, table.csv, figures/"]))
    say(compare_view.headline(results))


def bandit() -> None:
    """Compute, exactly and on a contextual bandit, how much each mode helps (about 10 seconds)."""
    from mrl.lab.bandit import bandit_table, replay_sentence

    console.print(bandit_table())
    console.print(bandit_table(known=True))
    say(replay_sentence())


def report(directory: Annotated[Path, typer.Argument(help=RUN_HELP)]) -> None:
    """Write an HTML report of a run, with plots: runs/<name>/report.html."""
    directory = directory.expanduser()
    read_run_config(directory)  # raises MrlError if it is not a run's directory
    from mrl.lab.report import write_report

    say(f"Written: {write_report(directory)}")


def ask(
    words: Annotated[list[str] | None, typer.Argument(help=WORDS_HELP)] = None,
    run: Annotated[Path | None, typer.Option(help=ASKED_RUN_HELP)] = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions per model.")] = 8,
) -> None:
    """Show what the models answer to your own sentences, before and after training."""
    if run:
        read_run_config(run.expanduser())  # raises MrlError if it is not a run's directory
    from mrl.lab import ask as asking

    directory = run.expanduser() if run else asking.newest_run(Path("runs"))
    config = read_run_config(directory) if directory else run_config(None, None, {}, [])
    states = asking.load_states(config, directory)
    for question in [" ".join(words)] if words else asking.typed_questions():
        try:
            console.print(asking.ask(question, states, samples))
        except MrlError as error:
            if words:
                raise
            say(str(error))  # and ask for the next question
        if hint := asking.hint(question, config):
            say(hint)
    if directory is None:
        say("There is no trained run in runs/ yet. To train one: python mini_mrl.py --mode sgt")


def align(
    text: Annotated[str, typer.Argument(help="Text to tokenize with both tokenizers.")],
    source: Tokenizer = QWEN,
    receiver: Tokenizer = LLAMA,
) -> None:
    """Show two tokenizations of one text, chunk by chunk, and what they share."""
    from mrl.alignment import ByteCodec, LossyText
    from mrl.lab.alignment_view import render_alignment
    from mrl.models.loading import load_tokenizer

    sides = []
    for path in (source, receiver):
        codec = ByteCodec(load_tokenizer(expanduser(path)))
        try:
            sides.append(codec.token_bytes(codec.encode(text)))
        except LossyText as refusal:
            raise MrlError(
                f"{path}: this tokenizer cannot encode the text exactly ({refusal})."
            ) from None

    names = (Path(source).name, Path(receiver).name)
    console.print(render_alignment(names, *sides))


def warmstart(
    out: Annotated[Path, typer.Option(help="Output directory of the models.")] = Path("runs/tiny"),
    seed: Annotated[int, typer.Option(help="Seed for initial weights and demonstrations.")] = 0,
    foreign_right: Annotated[
        float | None,
        typer.Option(min=0, max=1, help=RIGHT_HELP),
    ] = None,
    one_tokenizer: Annotated[
        bool, typer.Option("--one-tokenizer", help="Give all models the tokenizer of qwen-tiny.")
    ] = False,
    third: Annotated[
        bool, typer.Option("--third", help="Also build a third model, olmo-tiny.")
    ] = False,
    same_method: Annotated[
        bool, typer.Option("--same-method", help="Let all models calculate in columns.")
    ] = False,
    different_products: Annotated[
        bool,
        typer.Option(
            "--different-products",
            help="Let llama-tiny also write products and quotients in its own way.",
        ),
    ] = False,
) -> None:
    """Build the tiny pair from scratch: two new models and a supervised warm start."""
    if same_method and different_products:
        raise MrlError("--same-method and --different-products exclude each other: choose one.")
    from mrl.models.loading import claim_process
    from mrl.tiny.pair import PAIR, THIRD, warm_start_pair
    from mrl.tiny.skills import columns, leaps, leaps_for_everything

    claim_process()
    llama_method = columns if same_method else leaps_for_everything if different_products else leaps
    out = out.expanduser()
    out.mkdir(parents=True, exist_ok=True)  # so that a wrong path fails before the long work
    names = (*PAIR, THIRD) if third else PAIR
    say(f"Building {' and '.join(names)}; this takes a few minutes on two cores.")
    warm_start_pair(out, seed, foreign_right, one_tokenizer, third, llama_method)
    paths = ",".join(str(out / name) for name in names)
    say(f"Saved. Train them with: python mini_mrl.py --mode sgt --pair {shlex.quote(paths)}")


def gsm8k(out: Folder = TINY.parent / "gsm8k") -> None:
    """Download the GSM8K problems and write them as files for --set train=FILE."""
    from mrl.lab.gsm8k import make_gsm8k

    out = out.expanduser()
    make_gsm8k(out)
    say(f"Written: {out}")


def problems(out: Folder = Path("data/words")) -> None:
    """Regenerate the problem sets in data/words."""
    from mrl.run.problems import save_problems
    from mrl.tiny.skills import make_problem_sets

    out = out.expanduser()
    for split, problem_set in make_problem_sets().items():
        save_problems(out / f"{split}.jsonl", problem_set)
        say(f"{out / split}.jsonl: {len(problem_set)} problems")


def exchange(run: Path, folder: Path) -> None:
    """Copy the logged records of a run into a folder, for other runs with --set exchange=FOLDER."""
    from mrl.lab.shared_folder import convert

    for path, count in convert(run.expanduser(), folder.expanduser()).items():
        say(f"{path}: {count} records of steps 1 to 5 and of every 20th step")


COMMANDS = (compare, bandit, report, ask, align, warmstart, gsm8k, problems, exchange)
