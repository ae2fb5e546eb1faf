"""mini-mrl, the command line. `python mini_mrl.py --mode sgt` trains the tiny pair.

Arguments are parsed here and nowhere else; what they do is in `mrl/`. torch and transformers are
imported inside the commands, so that `--help` and a mistyped option answer at once.
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as error:
    print(
        f"{error.name} is not installed for this Python; run the first command of README.md, or "
        "`. .venv/bin/activate` if that was done.",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from mrl.errors import MrlError
from mrl.lab.classroom.commands import assignment

if TYPE_CHECKING:
    from mrl.config import PolicyConfig, RunConfig
    from mrl.distributed import Company
    from mrl.run import Run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(assignment, name="assignment", help="Assignments for a class, that check themselves.")
console = Console()

TINY = Path(__file__).resolve().parent / "data" / "tiny"
Directory = Annotated[Path, typer.Argument(help="A run: runs/<name>.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]


@app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    mode: Annotated[
        str | None, typer.Option(help="What is shared: see `modes`; or your own, file.py:Class.")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen-smol, or hub names or directories: DIR_A,DIR_B[,...]."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    name: Annotated[str | None, typer.Option(help="Directory under runs/.")] = None,
    runs: Annotated[str | None, typer.Option(help="Another place than runs/.")] = None,
    data: Annotated[str | None, typer.Option(help="Training problems, JSONL.")] = None,
    heldout: Annotated[str | None, typer.Option(help="Held-out problems, JSONL[,JSONL].")] = None,
    prompts_per_step: Annotated[int | None, typer.Option(help="Prompts a step.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Completions a prompt.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of every policy.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="mode.setting=value, repeatable.")
    ] = None,
    trust: Annotated[str | None, typer.Option(help="verify a peer's success, or claim.")] = None,
    peer_log: Annotated[
        str | None, typer.Option(help="exchange.jsonl of a finished run, as the peer.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="auto, resident, swap or spread: who is on the device when.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="Log rollout, rewards or success records in any case.")
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(help="Planted on purpose: liar=RATE, crash=POLICY@STEP, hang=POLICY@STEP."),
    ] = None,
    plain: Plain = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Train language models side by side that learn from each other's verified experience."""
    if context.invoked_subcommand:
        return
    from mrl.config import check
    from mrl.distributed import find_company
    from mrl.loading import choose_pair
    from mrl.run import Run
    from mrl.run_directory import unused_name
    from mrl.words import first_lines, memory_table

    options = {
        "mode": _absolute(mode),
        "steps": steps,
        "seed": seed,
        "name": name,
        "runs": runs,
        "train": data,
        "heldout": heldout.split(",") if heldout else None,
        "prompts_per_step": prompts_per_step,
        "threads": threads,
        "device": device,
        "trust": trust,
        "peer_log": peer_log,
        "placement": placement,
        "record": record,
        "fault": fault,
    }
    policy_options = {"group_size": group_size, "learning_rate": learning_rate}
    why = ""
    if pair is None and config is None:
        pair, why = choose_pair()
    run_config = _run_config(pair, config, options, policy_options, settings or [])
    check(run_config)
    names = [policy.name for policy in run_config.policies]
    company = find_company(names, run_config.turn_budget_s)
    if not run_config.name:  # the first process decides
        mine = dict.fromkeys(company.local, unused_name(run_config))
        run_config.name = company.share("name", mine, names)[names[0]]
    if set(run_config.name) & set("/\\\0") or run_config.name.startswith("."):
        raise MrlError(f"--name is {run_config.name!r}; give a plain directory name.")
    directory = Path(run_config.runs) / run_config.name
    if company.writes and directory.exists():
        raise MrlError(
            f"{directory}: exists already; give another --name, or go on with "
            f"`python mini_mrl.py resume {directory}`."
        )
    with (
        _watcher(run_config, plain, company) as watcher,
        Run(run_config, directory, watcher, company) as run,
    ):
        for line in first_lines(run, pair, why):
            watcher.say(line)
        watcher.show(memory_table(run.estimates, run.placement, run.why))
        finished = run.start(_stop_on_ctrl_c())
    _last_words(run, finished)


@app.command()
def modes() -> None:
    """List the sharing modes: what each does, what crosses, its settings."""
    from mrl.modes import MODES, mode_class
    from mrl.words import modes_table

    console.print(modes_table([mode_class(name) for name in MODES]))


@app.command()
def resume(directory: Directory, plain: Plain = False) -> None:
    """Go on with a run that was stopped."""
    from mrl.checkpoint import newest_checkpoint, read_state
    from mrl.distributed import find_company
    from mrl.run import Run
    from mrl.run_directory import read_evaluations, read_run_config, with_weights_of

    run_config = read_run_config(directory)
    checkpoint = newest_checkpoint(directory)
    trained = read_state(checkpoint)["step"] >= run_config.steps
    if trained and "after" in read_evaluations(directory):
        raise MrlError(
            f"{directory}: is finished ({run_config.steps} steps); "
            f"`python mini_mrl.py evaluate {directory}` shows its result."
        )
    continued = with_weights_of(run_config, checkpoint)
    names = [policy.name for policy in run_config.policies]
    company = find_company(names, run_config.turn_budget_s)
    with (
        _watcher(run_config, plain, company) as watcher,
        Run(continued, directory, watcher, company) as run,
    ):
        finished = run.resume(_stop_on_ctrl_c())
    _last_words(run, finished)


@app.command()
def evaluate(
    directory: Directory,
    samples: Annotated[int | None, typer.Option(help="Completions a problem.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token.")] = False,
    data: Annotated[str | None, typer.Option(help="Other problems: JSONL[,JSONL].")] = None,
) -> None:
    """Score a run's held-out problems again, with the first and with the newest weights."""
    from mrl.allocation import pick_device
    from mrl.checkpoint import newest_checkpoint
    from mrl.config import check
    from mrl.evaluate import evaluate_all, load_heldout
    from mrl.rewards import Verifier
    from mrl.run import load_policies, set_threads
    from mrl.run_directory import read_run_config, with_weights_of
    from mrl.words import evaluation_table

    run_config = read_run_config(directory)
    samples = run_config.eval_samples if samples is None else samples
    samples = 1 if greedy else samples
    check(replace(run_config, eval_samples=samples))
    trained = with_weights_of(run_config, newest_checkpoint(directory))
    set_threads(run_config.threads)
    results: dict[str, list[dict]] = {}
    with Verifier(timeout_s=run_config.verify_timeout_s) as verifier:
        verifier.canary()
        parts = load_heldout(data.split(",") if data else run_config.heldout, verifier)
        for when, chosen in (("before", run_config), ("after", trained)):
            policies = load_policies(chosen.policies, pick_device(run_config.device))
            temperature = 0.0 if greedy else None
            scores = evaluate_all(policies, parts, verifier, samples, run_config.seed, temperature)
            results[when] = [score.to_dict() for score in scores]
    console.print(evaluation_table(results))


@app.command()
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
    from mrl.lab.compare import QUICK, Plan, default_jobs, read_all, run_all

    chosen, numbers = modes.split(","), list(range(1, seeds + 1))
    if quick:
        chosen, numbers, steps = QUICK["modes"], QUICK["seeds"], steps or QUICK["steps"]
    given = {"--steps": steps, "--pair": pair, "--config": config}
    options = [str(x) for key, value in given.items() if value is not None for x in (key, value)]
    plan = Plan(list(map(_absolute, chosen)), numbers, out, jobs or default_jobs(), options)
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


@app.command()
def bandit(
    png: Annotated[Path, typer.Option(help="The picture.")] = Path("bandit.png"),
) -> None:
    """Why the modes sit where they sit: exact, on contextual bandits; takes a minute."""
    from mrl.lab.bandit_view import bandit_sentences, bandit_table, draw_bandit

    with console.status("Summing over every outcome; this takes a minute."):
        console.print(bandit_table())
        for sentence in bandit_sentences():
            console.print(sentence, highlight=False, soft_wrap=True)
        draw_bandit(png)
    console.print(f"Drawn in {png}.")


@app.command()
def report(directory: Directory) -> None:
    """Write one HTML page about a run, with its pictures: runs/<name>/report.html."""
    from mrl.lab.report import write_report

    console.print(f"Written: {write_report(directory)}", soft_wrap=True)


@app.command()
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
    from mrl.loading import load_tokenizer
    from mrl.residual import measure

    if (text is None) == (file is None):
        raise MrlError("Give either a text or --file, not both and not neither.")
    if file is not None:
        try:
            text = file.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MrlError(f"{file}: cannot be read as UTF-8 text ({error}).") from None
    pieces = []
    for path in (source, receiver):
        codec = ByteCodec(load_tokenizer(path))
        try:
            pieces.append(codec.pieces(codec.encode(text)))
        except LossyText as loss:
            raise MrlError(
                f"{path}: its tokenizer cannot write this text exactly ({loss.reason}: {loss}), "
                "so a record with it would be refused."
            ) from None
    names = (Path(source).name, Path(receiver).name)
    residual = measure(*pieces)
    console.print(render_alignment(names, *pieces, residual, console.width))
    if svg is not None:
        try:
            draw_alignment(names, *pieces, residual, svg)
        except OSError as error:
            raise MrlError(f"{svg}: cannot be written ({error.strerror}).") from None
        console.print(f"Drawn in {svg}.")


@app.command()
def warmstart(
    out: Annotated[Path, typer.Option(help="Where the two directories go.")] = Path("data/tiny"),
    seed: Annotated[int, typer.Option(help="Of weights and demonstrations.")] = 0,
    updates: Annotated[int | None, typer.Option(help="Fewer make a weaker pair.")] = None,
    foreign_right: Annotated[
        float, typer.Option(help="How often the peer's skills are shown right: 0.95 makes twins.")
    ] = 0.03,
) -> None:
    """Make the tiny pair from nothing: tokenizers, models, supervised warm start."""
    from mrl.tiny import warm_start_pair

    if not 0 <= foreign_right <= 1:
        raise MrlError(f"--foreign-right is {foreign_right:g}, but must be from 0 to 1.")

    console.print("Making qwen-tiny and llama-tiny; this takes a few minutes on two cores.")
    warm_start_pair(out, seed, updates, foreign_right)
    console.print(f"Saved in {out}.")


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="gsm8k")],
    out: Annotated[Path | None, typer.Option(help="Where the JSONL files go.")] = None,
) -> None:
    """Fetch a problem set from its authors, with a checksum."""
    from mrl.config import DATA
    from mrl.lab.gsm8k import fetch_gsm8k

    if name != "gsm8k":
        raise MrlError(f"There is no problem set {name!r} to fetch; known is gsm8k.")
    folder = out or DATA / "gsm8k"
    fetch_gsm8k(folder, lambda text: console.print(text, highlight=False))
    console.print(f"Written: {folder}", soft_wrap=True)


@app.command()
def problems(
    out: Annotated[Path, typer.Option(help="Where the JSONL files go.")] = Path("data/words"),
) -> None:
    """Write the problem sets of data/words again."""
    from mrl.tasks import make_problem_sets, save_problems

    for part, made in make_problem_sets().items():
        save_problems(out / f"{part}.jsonl", made)
        console.print(f"{out / f'{part}.jsonl'}: {len(made)} problems")


# ------------------------------------------------------------------------------ helpers


def _run_config(
    pair: str | None,
    file: Path | None,
    options: dict[str, Any],
    policy_options: dict[str, Any],
    settings: list[str],
) -> "RunConfig":
    """Defaults < the pair's preset < --config file < command line."""
    from mrl.config import RunConfig, load_config, parse_settings
    from mrl.modes import mode_class

    chosen = load_config(file) if file else {}
    values = {}
    if pair or "policies" not in chosen:
        values["policies"], preset = _policies(pair or "tiny")
        values |= preset
        chosen.pop("policies", None)
    values |= chosen
    values |= {key: value for key, value in options.items() if value is not None}
    values["settings"] = parse_settings(settings, values.get("settings", {}))
    given = {key: value for key, value in policy_options.items() if value is not None}
    values["policies"] = [replace(policy, **given) for policy in values["policies"]]
    made = RunConfig(**values)
    for text in settings:
        if text.partition(".")[0] != mode_class(made.mode).name:
            raise MrlError(f"--set {text}: is not for this run's mode, {made.mode}.")
    return made


def _policies(pair: str) -> "tuple[list[PolicyConfig], dict[str, Any]]":
    from mrl.config import PAIRS, policies_from_paths

    if pair in PAIRS:
        make, preset = PAIRS[pair]
        return make(), preset
    return policies_from_paths(pair.split(",")), {}


def _absolute(mode: str | None) -> str | None:
    """A mode from a file, with its whole path: the run may be resumed from anywhere."""
    if mode is None or ".py" not in mode:
        return mode
    path, _, class_name = mode.partition(":")
    return f"{Path(path).resolve()}:{class_name}"


def _watcher(config: "RunConfig", plain: bool, company: "Company") -> Any:
    from mrl.dashboard import LiveView, PlainLines

    if not company.writes:
        return PlainLines(Console(quiet=True), [], config.steps)
    names = [policy.name for policy in config.policies]
    if plain or not console.is_terminal or len(company.local) < len(names):
        return PlainLines(console, names, config.steps)
    return LiveView(console, names, config.steps, f"mini-mrl: {config.mode}, seed {config.seed}")


def _stop_on_ctrl_c() -> Any:
    """A function that tells whether Ctrl-C was pressed; a second Ctrl-C ends the program at once.

    A step is never cut in the middle: its policies would be at different versions.
    """
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        console.print("Stopping after this step; Ctrl-C again stops at once.")

    signal.signal(signal.SIGINT, note)
    return lambda: bool(pressed)


def _last_words(run: "Run", finished: bool) -> None:
    from mrl.run_directory import read_metrics
    from mrl.words import evaluation_table, learnt_sentence, memory_sentence, residual_sentences

    if not run.company.writes:
        return
    if not finished:
        console.print(f"Saved. Go on with: python mini_mrl.py resume {run.directory}")
        raise typer.Exit(130)
    console.print(evaluation_table(run.evaluations))
    for sentence in residual_sentences(read_metrics(run.directory)):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    console.print(memory_sentence(run.estimates, run.placement, run.memory_before))
    sentence = learnt_sentence(run.evaluations, run.rescues)
    if run.mode.consumes is None:
        sentence += " Nothing was shared in this mode."
    elif run.config.trust == "claim":
        sentence += " Peers' claims were believed without a check."
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a person's mistake becomes one sentence and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return app(arguments, standalone_mode=False) or 0
    except MrlError as error:
        if "--debug" in arguments:
            raise
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("Stopped.", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of the command line
            raise
        message = error.format_message().rstrip(".")
        return _complain(f"{message}; `python mini_mrl.py --help` shows all options.")


def _complain(sentence: str, code: int = 2) -> int:
    from mrl.dashboard import printable

    print(printable(sentence, limit=2000), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
