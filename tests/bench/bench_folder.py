"""What a shared folder costs: bytes and seconds per step for 2 to 1,000 simulated peers.

    python tests/bench/bench_folder.py

Each peer appends its solutions of a step to its own file, as 16 prompts of the tiny pair give them
(half of the 128 completions are correct). Then one policy reads what is new and looks up the
problems of its step. The last column shows the same after the files have grown tenfold: a
step must not cost more because files are long.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mrl.config import DATA
from mrl.exchange_folder import Folder
from mrl.records import SuccessRecord
from mrl.run.problems import load_problems
from mrl.samples import Problem, problems_of_step

PROMPTS, SOLUTIONS = 16, 4  # per step, and per prompt of a step
TEXT = "47-38: 17-8=9, 4-1-3=0. \\boxed{9}"
STEPS, GROWN = 2, 20  # steps that are timed at first, and the last one that is timed


def solutions(problems: list[Problem], source: str) -> list[SuccessRecord]:
    """The records of one peer about the problems of a step."""
    about = {"source": source, "version": 0, "text": TEXT, "finished": True, "canonical": True}
    about |= {"token_lengths": (1,) * len(TEXT), "verdict": "correct"}
    return [
        SuccessRecord(prompt_id=problem.id, answer=problem.answer, index=index, **about)
        for problem in problems
        for index in range(SOLUTIONS)
    ]


def timed_steps(folder: Folder, writer: Folder, names: list[str], steps: range) -> list[float]:
    """Seconds that one policy needs in each step to read and to look up, without the writing."""
    problems = load_problems(DATA / "words" / "train.jsonl")
    seconds = []
    for step in steps:
        now = problems_of_step(problems, step, PROMPTS, 0)
        for name in names:
            writer.publish(name, solutions(now, name), step)
        start = time.perf_counter()
        folder.read(step)
        found = sum(1 for _ in folder.records_about(now))
        seconds.append(time.perf_counter() - start)
        assert found >= len(names) * PROMPTS * SOLUTIONS
    return seconds


def main() -> None:
    """Print one row per number of peers."""
    problems = load_problems(DATA / "words" / "train.jsonl")
    print("peers   MB per step   seconds per step   the same, files ten times as long")
    for count in (2, 10, 100, 1000):
        with tempfile.TemporaryDirectory() as directory:
            names = [f"peer-{number:04d}" for number in range(count)]
            writer = Folder(directory, names, problems)
            for name in names:
                writer.open(name)
            reader = Folder(directory, ["reader"], problems)
            early = median(timed_steps(reader, writer, names, range(1, STEPS + 1)))
            size = sum(path.stat().st_size for path in Path(directory).iterdir()) / STEPS
            timed_steps(reader, writer, names, range(STEPS + 1, GROWN - STEPS + 1))
            late = median(timed_steps(reader, writer, names, range(GROWN - STEPS + 1, GROWN + 1)))
            writer.close()
        print(f"{count:5d}   {size / 1e6:11.2f}   {early:16.3f}   {late:16.3f}")


if __name__ == "__main__":
    main()
