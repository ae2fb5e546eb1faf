"""Does a change leave the numbers alone? Runs two states of the program and compares every number.

    python tests/tools/same_metrics.py            # the last commit against the working tree
    python tests/tools/same_metrics.py COMMIT     # another commit against the working tree

Ten modes over four steps, two other placements and a resume, all with seed 1 on the tiny pair:
every figure of `metrics.jsonl` but those of LEFT_OUT, the evaluations, and the records that
crossed. A commit's runs are kept in `runs/same-metrics`, so they are made once. Takes three minutes
on two cores; exits with 1 if a number differs.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "runs" / "same-metrics"
MODES = ("solo", "solo-x2", "replay", "sft", "naive", "prp", "xgrpo", "sgt", "hint", "hacpo")
MODES += ("graft", "rft")
CASES = [*((mode, "resident") for mode in MODES), ("sgt", "swap"), ("hacpo", "parallel")]
CASES += [("graft", "resume")]
# keys that differ between machines, those of version 0.1 that are no longer logged, and new ones
LEFT_OUT = ("time/", "memory/", "peer/", "logprob_gap_mean", "thl/sampled_otherwise", "imitated")
LEFT_OUT += ("kl_to_start",)
# older keys -> their names today, so that a commit from before can be compared
RENAMED = {"exchange/not_believed": "exchange/not_confirmed", "part": "split"}
RENAMED |= {"outcome/rescued": "outcome/imitated"}


def run_case(tree: Path, out: Path, mode: str, how: str) -> None:
    """One short run of the program in `tree`."""
    name = f"{mode}-{how}"
    if (out / name / "done").exists():
        return
    config = out / f"{name}.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rm", "-rf", out / name], check=True)
    placement = how if how in ("swap", "parallel") else "resident"
    config.write_text(
        f'mode = "{mode}"\nsteps = {2 if how == "resume" else 4}\nseed = 1\nname = "{name}"\n'
        f'runs = "{out}"\nheldout = ["{heldout()}"]\neval_samples = 2\ncheckpoint_every = 2\n'
        f'placement = "{placement}"\n',
        encoding="utf-8",
    )
    start = [sys.executable, "mini_mrl.py", "--plain", "--config", str(config)]
    commands = [start]
    if how == "resume":
        commands.append([sys.executable, "mini_mrl.py", "resume", str(out / name), "--plain"])
    for number, command in enumerate(commands):
        if number:  # two more steps than at first
            for kept in (out / name).glob("config.*"):
                text = kept.read_text("utf-8")
                kept.write_text(re.sub(r'(\bsteps"?\s*[=:]\s*)2\b', r"\g<1>4", text), "utf-8")
        done = subprocess.run(
            command, cwd=tree, capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{name} failed in {tree}:\n{done.stdout[-900:]}{done.stderr[-2000:]}")
    (out / name / "done").touch()


def heldout() -> Path:
    """Two held-out problems of each skill: an evaluation in a second."""
    path = KEPT / "heldout.jsonl"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        lines = (ROOT / "data" / "words" / "validation.jsonl").read_text("utf-8").splitlines()
        path.write_text("\n".join(lines[::20]) + "\n", encoding="utf-8")
    return path


def figures(directory: Path) -> dict[str, object]:
    """Every number of a run by a name that says where it stands."""
    found: dict[str, object] = {}
    for line in map(json.loads, (directory / "metrics.jsonl").read_text("utf-8").splitlines()):
        for key, value in line.items():
            if not key.startswith(LEFT_OUT):
                name = RENAMED.get(key, key)
                found[f"step {line['step']} {line['policy']} {name}"] = value
    for when, scores in json.loads((directory / "evaluation.json").read_text("utf-8")).items():
        for score in scores:
            kept = {key: value for key, value in score.items() if not key.startswith(LEFT_OUT)}
            renamed = {RENAMED.get(key, key): value for key, value in kept.items()}
            found[f"{when} {score['policy']}"] = renamed
    found["records"] = (directory / "exchange.jsonl").read_text("utf-8")
    return found


def run_all(tree: Path, out: Path) -> None:
    """All cases of one state, two at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda case: run_case(tree, out, *case), CASES))


def git(*arguments: str) -> str:
    """What a git command prints."""
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    """Compare; the number of differences decides the exit code."""
    commit = git("rev-parse", "--short", sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    base, now = KEPT / commit, KEPT / "now"
    tree = KEPT / f"tree-{commit}"
    if not all((base / f"{mode}-{how}" / "done").exists() for mode, how in CASES):
        subprocess.run(["rm", "-rf", tree], check=True)
        git("worktree", "prune")
        git("worktree", "add", "--detach", str(tree), commit)
        run_all(tree, base)
        git("worktree", "remove", "--force", str(tree))
    subprocess.run(["rm", "-rf", now], check=True)
    run_all(ROOT, now)
    differences, compared = [], 0
    for mode, how in CASES:
        old, new = (figures(side / f"{mode}-{how}") for side in (base, now))
        compared += len(old.keys() & new.keys())
        for key in sorted(old.keys() | new.keys()):
            if old.get(key, "absent") != new.get(key, "absent"):
                was, is_now = (str(side.get(key, "absent"))[:60] for side in (old, new))
                differences.append(f"{mode}-{how}, {key}: {was} -> {is_now}")
    print("\n".join(differences[:40]))
    print(f"{compared} figures of {len(CASES)} runs compared with {commit}, ", end="")
    print(f"{len(differences)} differ." if differences else "all are equal.")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
