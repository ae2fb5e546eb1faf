"""mini-mrl, the command line. `python mini_mrl.py --mode sgt` trains the tiny pair.

Training's arguments are parsed here, the laboratory's in `mrl/lab/commands.py`; what they do is in
`mrl/`. torch and transformers are imported inside the commands, so that `--help` and a mistyped
option answer at once.
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
from mrl.lab.commands import COMMANDS

if TYPE_CHECKING:
    from mrl.config import PolicyConfig, RunConfig
    from mrl.distributed import Company
    from mrl.run import Run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(assignment, name="assignment", help="Assignments for a class, that check themselves.")
console = Console()

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


for command in COMMANDS:
    app.command()(command)


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
