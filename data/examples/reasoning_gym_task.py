r"""Any task of reasoning-gym (Apache-2.0), as problem files and a judge, in one file.

    pip install reasoning-gym
    python data/examples/reasoning_gym_task.py DIR chain_sum gcd:max_value=50,size=400
    python mini_mrl.py --set judge=data/examples/reasoning_gym_task.py \
        --set train=DIR/train.jsonl --set heldout=DIR/heldout.jsonl

A task is a name, or a name with arguments of its generator. DIR/tasks.json records the arguments
and the version of the package, so that the same problems can be made again. A problem's `answer` is
the whole entry as JSON, because that is what the task's own scorer needs.

Use tasks whose answer is a single integer. Some other tasks have wrong answers (`syllogism`).
"""

import ast
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import reasoning_gym  # takes seconds; the judge's process imports it before its first verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mrl.reward import Verdict
from mrl.verifier import formulas
from mrl.verifier.plain import last_box

SIZES = {"train": (300, 1), "heldout": (60, 2)}  # file -> problems per task, seed
# in half of their failures, small models do not write a box, so the prompt shows the format twice
SYSTEM_PROMPT = r"""Answer with a short calculation and put the final answer into \boxed{}.
Example: 12 + 5 - 3 = ? -> 12 + 5 = 17, 17 - 3 = 14. \boxed{14}
Example: What is 6 times 7? -> 6 * 7 = 42. \boxed{42}
"""


def judge(answer: str, text: str) -> bool:
    r"""Whether the task's own scorer gives the last \boxed{} of a completion full credit.

    A scorer compares texts. So if the answer is an integer, a box that mini-mrl reads as the same
    integer (`42.0`, `1,234`, `\text{42}`) is also correct.
    """
    box, entry = last_box(text), json.loads(answer)
    if not box:
        return False
    right = str(entry["answer"]).strip()
    if re.fullmatch("[+-]?[0-9]+", right) and formulas.judge(right, box) is Verdict.CORRECT:
        box = right
    score = reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])
    return score(box, entry) == 1.0  # an incorrect answer can get partial credit, such as 0.01


def parse_task(text: str) -> tuple[str, dict[str, Any]]:
    """`gcd:max_value=50,size=400` -> the task's name and the arguments of its generator."""
    name, _, rest = text.partition(":")
    arguments = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value  # a word without quotes
    return name, arguments


def problems(name: str, arguments: dict[str, Any], size: int, seed: int) -> list[dict[str, str]]:
    """The problems of one task. If its scorer rejects an entry's answer, the entry is left out."""
    made = []
    arguments = {"size": size, "seed": seed} | arguments
    for number, entry in enumerate(reasoning_gym.create_dataset(name, **arguments)):
        # through JSON, as the judge will read it; metadata may hold fractions and other objects
        answer = json.dumps(entry, default=str)
        if judge(answer, rf"\boxed{{{entry['answer']}}}"):
            prompt = entry["question"] + r" Put the final answer into \boxed{}."
            identity = f"{name}-{arguments['seed']}-{number}"
            made.append({"id": identity, "prompt": prompt, "answer": answer, "skill": name})
    return made


def main(folder: Path, tasks: list[str]) -> None:
    """Write the problem files, a system prompt and the arguments into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    parsed = [parse_task(task) for task in tasks]
    for file, (size, seed) in SIZES.items():
        lines = []
        for name, arguments in parsed:
            lines += [
                json.dumps(problem) + "\n" for problem in problems(name, arguments, size, seed)
            ]
        (folder / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")

    (folder / "system_prompt.txt").write_text(SYSTEM_PROMPT, encoding="utf-8")
    record = {"reasoning-gym": version("reasoning-gym"), "sizes": SIZES, "tasks": dict(parsed)}
    (folder / "tasks.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
