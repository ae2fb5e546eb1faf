"""The skills of the tiny pair, and the generator of the problems in `data/words`.

The problems are short word problems. Each skill has a cue word. To have the skill means to know the
*interpretation* of this word: the operation that it stands for. The tiny pair (pair.py) can
calculate from the start, but each policy misreads half of the cue words, and its peer misreads the
other half.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mrl.samples import SEED_LABELS, Problem


@dataclass(frozen=True)
class Skill:
    """One skill: `operation` is what the cue word means, and `misread_as` is a tempting mistake."""

    name: str
    operation: str
    misread_as: str
    templates: tuple[str, ...]  # {n} is a name, {o} objects, {a} {b} {c} numbers
    new_templates: tuple[str, ...]  # for validation_wording; never used for training
    third_templates: tuple[str, ...]  # for test; never used to choose a setting


# fmt: off
SKILLS = (
    Skill("finds", "a+b", "a-b",
          ("{n} has {a} {o} and finds {b} more.", "{n} had {a} {o}. Now {n} finds {b}."),
          ("{n} had {a} {o} and finds {b} more.", "{n} has {a} {o}. Now {n} finds {b}."),
          ("{n} has {a} {o}. Then {n} finds {b} more.",
           "{n} had {a} {o}. Then {n} finds {b}.")),
    Skill("given", "a+b", "a-b",
          ("{n} had {a} {o} and was given {b}.", "{n} has {a} {o}. Then {n} is given {b}."),
          ("{n} has {a} {o} and was given {b}.", "{n} had {a} {o}. Then {n} is given {b}."),
          ("{n} has {a} {o} and is given {b} more.",
           "{n} had {a} {o}. Now {n} was given {b}.")),
    Skill("eats", "a-b", "a+b",
          ("{n} has {a} {o} and eats {b}.", "{n} had {a} {o}. Now {n} eats {b}."),
          ("{n} had {a} {o} and eats {b}.", "{n} has {a} {o}. Then {n} eats {b}."),
          ("{n} has {a} {o}. Now {n} eats {b}.",
           "{n} had {a} {o}. Then {n} eats {b}.")),
    Skill("sold", "a-b", "a+b",
          ("{n} had {a} {o} and sold {b}.", "{n} has {a} {o}. Then {b} are sold."),
          ("{n} has {a} {o} and sold {b}.", "{n} had {a} {o}. Now {b} are sold."),
          ("{n} had {a} {o}. Then {b} are sold.",
           "{n} has {a} {o}. Now {n} sold {b}.")),
    Skill("bags", "a*b", "a+b",
          ("{n} fills {a} bags with {b} {o} each.", "{n} has {a} bags with {b} {o}."),
          ("{n} has {a} bags with {b} {o} each.", "{n} fills {a} bags with {b} {o}."),
          ("{n} had {a} bags with {b} {o} each.",
           "{n} fills {a} bags, {b} {o} each.")),
    Skill("days", "a*b", "a+b",
          ("{n} picks {a} {o} on each of {b} days.", "{n} has {a} {o} a day for {b} days."),
          ("{n} has {a} {o} on each of {b} days.", "{n} picks {a} {o} a day for {b} days."),
          ("{n} had {a} {o} on each of {b} days.",
           "{n} picks {a} {o} each day for {b} days.")),
    Skill("shares", "a/b", "a-b",
          ("{n} shares {a} {o} among {b}.", "{n} has {a} {o} and shares with {b}."),
          ("{n} shares {a} {o} with {b}.", "{n} has {a} {o} and shares among {b}."),
          ("{n} had {a} {o} and shares with {b}.",
           "{n} shares {a} {o} with each of {b}.")),
    Skill("packs", "a/b", "a-b",
          ("{n} packs {a} {o} in boxes of {b}.", "{n} has {a} {o} and packs {b} a box."),
          ("{n} has {a} {o} and packs boxes of {b}.", "{n} packs {a} {o}, {b} a box."),
          ("{n} had {a} {o} and packs boxes of {b}.",
           "{n} had {a} {o} and packs {b} a box.")),
    # Two steps; before training, both policies stop after the first step.
    Skill("loses", "a*b-c", "a*b",
          ("{n} fills {a} boxes with {b} {o} and loses {c}.",
           "{n} has {a} boxes with {b} {o}. Then {n} loses {c}."),
          ("{n} has {a} boxes with {b} {o} and loses {c}.",
           "{n} fills {a} boxes with {b} {o}. Then {n} loses {c}."),
          ("{n} has {a} boxes with {b} {o} each and loses {c}.",
           "{n} had {a} boxes with {b} {o}. Then {n} loses {c}.")),
)
# fmt: on
# "a*b" ignores a third number, because a misread two-step problem stops after its first step
OPERATIONS: dict[str, Callable[..., int]] = {
    "a+b": lambda a, b: a + b,
    "a-b": lambda a, b: a - b,
    "a*b": lambda a, b, c=0: a * b,
    "a/b": lambda a, b: a // b,
    "a*b-c": lambda a, b, c: a * b - c,
}
SMALL = range(2, 10)
SUMS = [(a, b) for a in range(12, 60) for b in range(11, a)]
# operation -> its numbers; for all of them, the misreading gives another answer
NUMBERS: dict[str, list[tuple[int, ...]]] = {
    "a+b": SUMS,
    "a-b": SUMS,
    "a*b": [(a, b) for a in SMALL for b in SMALL if a * b != a + b],
    "a/b": [(a * b, b) for a in SMALL for b in SMALL if a != a * b - b],
    "a*b-c": [(a, b, c) for a in SMALL for b in SMALL for c in range(2, min(10, a * b))],
}
QUESTION = " How many?"  # follows every template
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jan")
OBJECTS = ("apples", "books", "coins", "eggs", "figs", "nuts", "pears", "shells", "stamps", "cups")
HELD_OUT_SHARE = 0.2  # share of a skill's number combinations that training does not use
# problems per skill
PROBLEM_SETS = {"train": 160, "validation": 40, "validation_wording": 20, "test": 40}
DATA_SEED = 2026


Method = Callable[[str, int, int], str]  # sign, a, b -> the calculation with its steps


def columns(sign: str, a: int, b: int) -> str:
    """A sum or difference below 100 in columns, units first: `47-38: 17-8=9, 4-1-3=0. `.

    Products and quotients are written at once, as in `6*7=42. `.
    """
    if sign in "*/":
        return f"{a}{sign}{b}={_result(sign, a, b)}. "
    (tens_a, units_a), (tens_b, units_b) = divmod(a, 10), divmod(b, 10)

    if sign == "+":
        units = units_a + units_b
        carries = units > 9
        carry = "+1" if carries else ""
        tens = tens_a + tens_b + int(carries)
        return f"{a}+{b}: {units_a}+{units_b}={units}, {tens_a}+{tens_b}{carry}={tens}. "

    borrows = units_a < units_b
    borrow = ""
    if borrows:  # borrow ten units from the tens
        borrow = "-1"
        units_a += 10
    units = units_a - units_b
    tens = tens_a - tens_b - int(borrows)
    return f"{a}-{b}: {units_a}-{units_b}={units}, {tens_a}{borrow}-{tens_b}={tens}. "


def leaps(sign: str, a: int, b: int) -> str:
    """A sum or difference in two leaps, tens first: `47-38: 47-30=17, 17-8=9. `.

    One leap is enough if `b` has no tens or no units, as in `42-5=37. `. Products and quotients
    are written at once, as in `6*7=42. `.
    """
    tens, units = b // 10 * 10, b % 10
    if sign in "*/" or not tens or not units:
        return f"{a}{sign}{b}={_result(sign, a, b)}. "
    middle = _result(sign, a, tens)
    end = _result(sign, middle, units)
    return f"{a}{sign}{b}: {a}{sign}{tens}={middle}, {middle}{sign}{units}={end}. "


def leaps_for_everything(sign: str, a: int, b: int) -> str:
    """As `leaps`, but products and quotients also have steps.

    A product leaps from the next smaller one, `9*9: 9*8=72, 72+9=81. `, and a quotient is found
    as the factor of a product, `72/8: 8*9=72. `.
    """
    if sign == "*":
        smaller = a * (b - 1)
        return f"{a}*{b}: {a}*{b - 1}={smaller}, {smaller}+{a}={a * b}. "
    if sign == "/":
        return f"{a}/{b}: {b}*{a // b}={a}. "
    return leaps(sign, a, b)


def _result(sign: str, a: int, b: int) -> int:
    return OPERATIONS[f"a{sign}b"](a, b)


def solution(operation: str, numbers: tuple[int, ...], method: Method = columns) -> str:
    """A short worked solution, for example `47-38: 17-8=9, 4-1-3=0. \\boxed{9}`.

    method: how each calculation is written.
    """
    a, b = numbers[:2]
    work = method(operation[1], a, b)
    if operation == "a*b-c":
        work += method("-", a * b, numbers[2])
    return f"{work}\\boxed{{{OPERATIONS[operation](*numbers)}}}"


def draw_words(numbers: tuple[int, ...], rng: random.Random) -> dict[str, int | str]:
    """Draw the name and the objects for a template; returns them with the numbers."""
    letters = dict(zip("abc", numbers, strict=False))
    return letters | {"n": rng.choice(NAMES), "o": rng.choice(OBJECTS)}


def generate(skill: Skill, split: str, count: int, seed: int) -> Iterator[tuple[Problem, tuple]]:
    """Yield `count` different pairs (problem, numbers) of one skill.

    split: "train", "validation" (numbers that training does not use), "validation_wording" (these
    numbers in new sentences) or "test" (these numbers in other new sentences).
    """
    numbers = NUMBERS[skill.operation].copy()
    random.Random(f"{seed}/numbers/{skill.name}").shuffle(numbers)  # the same for all splits
    held_out = round(len(numbers) * HELD_OUT_SHARE)
    numbers = numbers[held_out:] if split == "train" else numbers[:held_out]

    of_new_sentences = {"validation_wording": skill.new_templates, "test": skill.third_templates}
    templates = of_new_sentences.get(split, skill.templates)

    rng = random.Random(f"{seed}/{SEED_LABELS.get(split, split)}/{skill.name}")
    seen: set[str] = set()
    while len(seen) < count:
        operands = rng.choice(numbers)
        words = draw_words(operands, rng)
        prompt = rng.choice(templates).format(**words) + QUESTION
        if prompt not in seen:
            seen.add(prompt)
            answer = str(OPERATIONS[skill.operation](*operands))
            name = f"{split}-{skill.name}-{len(seen):03d}"
            yield Problem(name, prompt, answer, skill.name), operands


def make_problem_sets() -> dict[str, list[Problem]]:
    """All problems of `data/words`, by the name of their file without `.jsonl`."""
    problem_sets: dict[str, list[Problem]] = {}
    for split, count in PROBLEM_SETS.items():
        problem_sets[split] = []
        for skill in SKILLS:
            for problem, _ in generate(skill, split, count, DATA_SEED):
                problem_sets[split].append(problem)
    # a shorter set for pretrained models on a CPU
    problem_sets["validation-72"] = problem_sets["validation"][::5]
    return problem_sets
