r"""Countdown, a task of your own in one file: reach a number with three others, each used once.

    python data/examples/countdown.py DIR     # writes DIR/train.jsonl and DIR/heldout.jsonl
    python mini_mrl.py --set judge=data/examples/countdown.py \
        --set train=DIR/train.jsonl --set heldout=DIR/heldout.jsonl

A problem has many correct solutions, so its `answer` is what `judge` must know: "3 5 2 = 21".
"""

import ast
import json
import operator
import random
import re
import sys
from fractions import Fraction
from pathlib import Path

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction}


def judge(answer: str, text: str) -> bool:
    r"""Whether the last \boxed{} of a completion reaches the goal and uses all numbers."""
    numbers, goal = answer.split(" = ")
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
    expression = boxes[-1].replace("\\times", "*").strip() if boxes else ""
    if sorted(re.findall("[0-9]+", expression)) != sorted(numbers.split()):
        return False
    try:
        return value(ast.parse(expression, mode="eval").body) == int(goal)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return False


def value(node: ast.AST) -> Fraction:
    """The value of an expression of whole numbers, + - * / and brackets.

    Raises ValueError for anything else. No code of the completion is ever run.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("no such expression")


def problem(rng: random.Random) -> dict[str, str]:
    """A problem that has a solution, because its goal is the value of a random expression."""
    goal = Fraction(0)
    while goal <= 0 or goal.denominator > 1:
        numbers = [rng.randint(1, 30) for _ in range(3)]
        goal = Fraction(numbers[0])
        for number in numbers[1:]:
            goal = rng.choice([*SIGNS.values()])(goal, Fraction(number))
    rng.shuffle(numbers)
    shown = " ".join(map(str, numbers))
    task = f"Make {goal} of {shown}, each used once, with + - * / and brackets."
    prompt = task + r" Put the expression into \boxed{}."
    return {"prompt": prompt, "answer": f"{shown} = {goal}"}


if __name__ == "__main__":
    for part, count in (("train", 1000), ("heldout", 200)):
        rng = random.Random(part)
        lines = [json.dumps(problem(rng)) + "\n" for _ in range(count)]
        path = Path(sys.argv[1], f"{part}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
