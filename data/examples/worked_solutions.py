"""A peer that is only a file: worked solutions as records in a shared folder.

    python data/examples/worked_solutions.py runs/folder
    python mini_mrl.py --pair data/tiny/qwen-tiny --mode sgt --set exchange=runs/folder

The second command trains a team of one. Where all attempts of `qwen-tiny` at a problem fail, it
imitates the solution in the file. In the same way, a file may hold the solutions of a data set or
of a model behind an API; data/README.md describes its lines.

This script writes the solutions in the way of `llama-tiny`, or, with a third word `columns`, in the
way of `qwen-tiny` itself:

    python data/examples/worked_solutions.py runs/columns columns
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mrl.exchange_folder import FORMAT, question_hash
from mrl.tiny.skills import DATA_SEED, PROBLEM_SETS, SKILLS, columns, generate, leaps, solution

METHODS = {"leaps": leaps, "columns": columns}


def main(folder: str, method: str = "leaps") -> None:
    """Write one line for each training problem of data/words."""
    lines = []
    for skill in SKILLS:
        for problem, numbers in generate(skill, "train", PROBLEM_SETS["train"], DATA_SEED):
            question = question_hash(problem.prompt)
            text = solution(skill.operation, numbers, METHODS[method])
            line = {"format": FORMAT, "kind": "success", "question": question, "text": text}
            lines.append(json.dumps(line) + "\n")

    path = Path(folder, "worked.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines)} solutions")


if __name__ == "__main__":
    main(*sys.argv[1:])
