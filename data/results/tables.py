"""Write the tables of results: `TABLES` has a function for each, and `DOCUMENTS` the pages.

    python data/results/tables.py            # rewrites the tables from the files of this folder
    python data/results/tables.py --check    # names stale tables; exit code 1 if there are any

A table stands between `<!-- table: NAME -->` and `<!-- end: NAME -->`. `scores`, `difference` and
`cases` compute single numbers for the tables, the pictures and the tests. What is not measured yet
has no file, or no row in its file. A table then says "not yet".
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import mean

from mrl.run.blind_spots import CLOSED
from mrl.run.intervals import Estimate, estimate
from mrl.tiny.pair import BLIND_SPOTS, PAIR, STRONG_SKILLS, WEAK_SKILLS

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parents[1]
DOCUMENTS = (
    "README.md", "TUTORIAL.md", "TUTORIAL_2.md", "data/results/README.md", "tests/bench/README.md",
)  # fmt: skip
CLOSED_FROM = 100 * CLOSED  # percent on the validation set
NOT_YET = "not yet"
SPOTS = {policy: BLIND_SPOTS[policy] for policy in PAIR}
REAL_SEEDS = (1, 2, 3)
REAL_MODES = ("solo", "replay", "sgt")
REAL_BLIND_SPOTS = {"qwen": ("sold", "days"), "smol": ("eats", "bags")}  # in both-ways/

# ------------------------------------------------------------------------------ scores by seed

# Name of a comparison -> the `table.csv` that `compare` wrote (REPRODUCE.md has the commands)
FILES = {
    "result 1": "tiny-pair/modes.csv",  # seeds 81 to 90
    "modes": "tiny-pair/modes.csv",  # the seeds 81 to 85 of these runs, as in all other results
    "hint controls": "tiny-pair/hint-controls.csv",
    "twins": "tiny-pair/twins.csv",  # result 3
    "everything": "tiny-pair/everything.csv",
    "bare": "tiny-pair/bare.csv",
    "frozen llama-tiny": "tiny-pair/frozen-llama-tiny.csv",  # result 4
    "frozen qwen-tiny": "tiny-pair/frozen-qwen-tiny.csv",
    "believed": "tiny-pair/believed-liars.csv",  # result 5
    "protect": "tiny-pair/protect.csv",  # result 8
    "long": "tiny-pair/long.csv",  # result 9: 720 steps, 16 attempts per held-out problem
    "choices": "tiny-pair/hint-choices.csv",  # pilot seed 61
    "both ways": "both-ways/five-seeds.csv",
    "frozen smol": "both-ways/frozen-smol.csv",
}
# modes with another setting
NO_LOWER = "hacpo without its lower clip bound"
LEVEL = "prp sequence"  # one ratio per completion
WEIGHT_1, WEIGHT_001 = "sgt, weight 1", "sgt, weight 0.01"
TWO_OBJECTIVES = "sgt, `dr_grpo` for llama-tiny"
LESS_WEIGHT = "sgt, `dr_grpo` for llama-tiny, weight 0.01"

CELLS = {  # (own learning, learning from a peer) -> its comparison and mode; result 2
    ("none", "always"): ("modes", "sft"),
    ("correct", "always"): ("modes", "rft"),
    ("grpo", "none"): ("modes", "solo"),
    ("grpo", "gate"): ("modes", "sgt"),
}
CELLS["grpo", "gate, weight 1"] = "modes", WEIGHT_1  # beside the nine, and so are two below
CELLS["grpo", "gate, weight 0.01"] = "modes", WEIGHT_001
for own, peer in (
    ("none", "gate"), ("correct", "none"), ("correct", "gate"), ("grpo", "always"),
    ("grpo", "always-0.1"),
):  # fmt: skip
    CELLS[own, peer] = f"cells {own} {peer}", "cells"
    FILES[f"cells {own} {peer}"] = f"tiny-pair/cells-{own}-{peer}.csv"

# the pair of version 0.2, whose models write alike
DIAL = (0, 1, 3, 10, 30)  # percent of the demonstrations that show a foreign skill correctly
FILES |= {
    "ten": "version-0.2/ten-seeds.csv",  # seeds 31 to 40
    "five": "version-0.2/five-seeds.csv",  # all modes, seeds 1 to 5
    "frozen 71": "version-0.2/frozen-peer.csv",  # qwen-tiny, llama-tiny frozen, seeds 71 to 75
    "liars": "version-0.2/liars.csv",  # seeds 31 to 35
    "prp levels": "version-0.2/prp-levels.csv",  # and `solo`, seeds 71 to 75
} | {f"dial {shown}": f"version-0.2/right-{shown}.csv" for shown in DIAL}
ELSEWHERE = {  # (comparison, mode) -> the file that has these runs, their mode, how many seeds
    **{
        ("modes", mode): (FILES["modes"], mode, 5)
        for mode in ("solo", "replay", "sft", "rft", "sgt", "hint", "hint-anew")
    },
    # modes of the shipped pair that were run later, with the seeds 81 to 85
    **{
        ("modes", mode): ("tiny-pair/other-modes.csv", mode, None)
        for mode in ("naive", "prp", "xgrpo", "hacpo", "graft", "solo-x2")
    },
    ("modes", LEVEL): ("tiny-pair/prp-per-completion.csv", "prp", None),
    ("modes", NO_LOWER): ("tiny-pair/hacpo-no-lower-bound.csv", "hacpo", None),
    ("modes", WEIGHT_1): ("tiny-pair/sgt-weight-1.csv", "sgt", None),
    ("modes", WEIGHT_001): ("tiny-pair/sgt-weight-0.01.csv", "sgt", None),
    ("modes", TWO_OBJECTIVES): ("tiny-pair/two-objectives.csv", "sgt", None),
    ("modes", LESS_WEIGHT): ("tiny-pair/two-objectives-weight-0.01.csv", "sgt", None),
    ("modes", "cells"): ("tiny-pair/cells-correct-gate.csv", "cells", None),
    ("twins", WEIGHT_001): ("tiny-pair/twins-sgt-weight-0.01.csv", "sgt", None),
    ("everything", WEIGHT_001): ("tiny-pair/everything-sgt-weight-0.01.csv", "sgt", None),
    ("long", WEIGHT_001): ("tiny-pair/long-sgt-weight-0.01.csv", "sgt", None),
    ("twins", "cells"): ("tiny-pair/twins-cells-correct-gate.csv", "cells", None),
    ("everything", LEVEL): ("tiny-pair/everything-prp-per-completion.csv", "prp", None),
    ("everything", NO_LOWER): ("tiny-pair/everything-hacpo-no-lower-bound.csv", "hacpo", None),
    ("five", NO_LOWER): ("version-0.2/five-seeds-no-lower-end.csv", "hacpo", None),
    # the runs with honest peers
    **{("liars", mode): (FILES["ten"], mode, 5) for mode in ("solo", "sft", "sgt")},
    ("liars", "rft"): (FILES["liars"], "sft-own", None),
    ("liars", "rft believed"): (FILES["liars"], "sft-own believed", None),
}

SUMS = ("finds", "given", "eats", "sold")  # sums and differences
KINDS = {
    "strong": STRONG_SKILLS,
    "strong-sums": {
        policy: [skill for skill in skills if skill in SUMS]
        for policy, skills in STRONG_SKILLS.items()
    },
    "strong-products": {  # and quotients
        policy: [skill for skill in skills if skill not in SUMS]
        for policy, skills in STRONG_SKILLS.items()
    },
    "weak": WEAK_SKILLS,
    "blind": BLIND_SPOTS | REAL_BLIND_SPOTS,
    "foreign": {  # all four strong skills of the peer
        "qwen-tiny": STRONG_SKILLS["llama-tiny"],
        "llama-tiny": STRONG_SKILLS["qwen-tiny"],
    },
}


class NotMeasured(Exception):
    """A comparison, or a mode of it, that was not run yet."""


def is_meant(of: str, policy: str, skill: str) -> bool:
    """Whether `of` includes a skill of a policy.

    of: a kind of skills or a single skill; it may begin with the name of a policy, and otherwise
    includes both policies. For example: "all", "weak", "others" (all skills except the blind
    spots), "qwen-tiny all", "qwen-tiny blind" or "qwen-tiny eats".
    """
    *policies, kind = of.split()
    if policies and policy != policies[0]:
        return False
    if kind in KINDS:
        return skill in KINDS[kind].get(policy, ())
    if kind == "others":
        return skill != "all" and skill not in BLIND_SPOTS[policy]
    return skill == kind


@cache
def kept_rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file of this folder. NotMeasured if there is no such file yet."""
    if not (RESULTS / path).is_file():
        raise NotMeasured(path)
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def kept_values(
    path: str, mode: str, metric: str, of: str = "", split: str = "", column: str = "value"
) -> list[float]:
    """A metric of a mode, one value per seed: the mean over all that `of` includes.

    of, split: as in the file; costs have neither. NotMeasured if the file has no such value.
    """
    by_seed: dict[str, list[float]] = {}
    for line in kept_rows(path):
        if (line["mode"], line["split"], line["metric"]) == (mode, split, metric) and (
            not of or is_meant(of, line["policy"], line["skill"])
        ):
            by_seed.setdefault(line["seed"], []).append(float(line[column]))
    if not by_seed:
        raise NotMeasured(f"{path}: {metric} of {mode!r} for {of!r} on {split!r}")
    return [mean(values) for values in by_seed.values()]


def scores(
    source: str, mode: str, of: str = "all", split: str = "test", column: str = "value"
) -> list[float]:
    """pass@1 of a mode in one of the comparisons of `FILES`, in percent, one value per seed.

    column: "value", or "before" for the scores before training.
    """
    return values_of(source, mode, "pass@1", of, split, column)


def values_of(source: str, mode: str, metric: str, *which: str) -> list[float]:
    """Any metric of a mode in one of the comparisons, one value per seed, as in `kept_values`."""
    path, mode, seeds = ELSEWHERE.get((source, mode), (FILES[source], mode, None))
    return kept_values(path, mode, metric, *which)[:seeds]


class Gap(Estimate):
    """A mean of differences, with its interval."""

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half < abs(self.mean)


def gap(ones: Sequence[float], others: Sequence[float]) -> Gap:
    """How far some scores are above others, paired by seed."""
    found = estimate([one - other for one, other in zip(ones, others, strict=True)])
    return Gap(found.values, found.mean, found.half)


def difference(source: str, one: str, two: str, of: str = "all", split: str = "test") -> Gap:
    """How many points mode `one` ends above mode `two`."""
    return gap(scores(source, one, of, split), scores(source, two, of, split))


def end(source: str, mode: str, of: str = "all", split: str = "test") -> Estimate:
    """Where a mode ends: the mean over seeds, with its interval."""
    return estimate(scores(source, mode, of, split))


def cases(
    source: str,
    mode: str,
    of: str = "blind",
    split: str = "validation",
    least: float = CLOSED_FROM,
) -> list[list[bool]]:
    """For each skill that `of` includes, per seed: whether it ends at `least` percent or more."""
    names = dict.fromkeys(
        (line["policy"], line["skill"])
        for line in kept_rows(FILES[source])
        if is_meant(of, line["policy"], line["skill"])
    )
    ends = [scores(source, mode, f"{policy} {skill}", split) for policy, skill in names]
    return [[score >= least for score in of_skill] for of_skill in ends]


def closed(
    source: str,
    mode: str,
    of: str = "blind",
    split: str = "validation",
    least: float = CLOSED_FROM,
) -> str:
    """In how many cases (a skill with a seed) the skill is closed, for example `11 of 40`."""
    found = [case for of_skill in cases(source, mode, of, split, least) for case in of_skill]
    return f"{sum(found)} of {len(found)}"


def count(text: str) -> int:
    """11 from `11 of 40`."""
    return int(text.split()[0])


# ----------------------------------------------------------------------------------- the logs


@cache
def lines_of(folder: str) -> dict[str, list[dict]]:
    """The metrics of a kept run: policy -> its lines, one per step."""
    of: dict[str, list[dict]] = {}
    for line in (RESULTS / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        of.setdefault(values["policy"], []).append(values)
    return of


def total(lines: Iterable[dict], key: str) -> float:
    """The sum of a metric over steps."""
    return sum(line.get(key, 0) for line in lines)


def solve_rate(folder: str, policy: str, first: int, last: int) -> float:
    """Percent of correct completions, as a mean over the training steps `first` to `last`."""
    return 100 * mean(line["reward"] for line in lines_of(folder)[policy][first - 1 : last])


def final_scores(folder: str, when: str = "after") -> dict[str, dict]:
    """Policy -> its scores in a kept evaluation."""
    kept = json.loads((RESULTS / folder / "evaluation.json").read_text(encoding="utf-8"))
    return {entry["policy"]: entry for entry in kept[when]}


def percent(folder: str, policy: str, when: str = "after") -> float:
    """pass@1 of a kept evaluation in percent, with one decimal."""
    return round(100 * final_scores(folder, when)[policy]["pass@1"], 1)


def peak_gib(lines: Iterable[dict]) -> float:
    """The peak memory of a process, in GiB."""
    return max(line["memory/peak_bytes"] for line in lines) / 2**30


def gpu() -> dict[str, dict]:
    """What was measured on a GPU: part of the session -> its numbers."""
    kept = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))
    return {name: part["figures"] for name, part in kept.items() if name != "real"}


def solved_by_peer(runs: Iterable[str], policy: str, prompts: int) -> str:
    """Percent of a policy's all-fail groups whose prompt a peer solved."""
    lines = [line for run in runs for line in lines_of(run)[policy]]
    return f"{100 * total(lines, 'rescue_set') / (prompts * total(lines, 'groups/all_fail')):.0f}"


# ---------------------------------------------------------------------------------- the tables


def row(*cells: object) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [
        row(*header).replace("|  |", "| |"),
        "|" + "---|" * len(header),
        *(row(*cells) for cells in rows),
    ]


def cell(compute: Callable[..., object], *arguments: object) -> str:
    """What a function gives for a cell of a table, or `NOT_YET`."""
    try:
        return str(compute(*arguments))
    except NotMeasured:
        return NOT_YET


# ------------------------------------------------------------------------------ the front page

TRAINED_WITH = {
    "solo": "RL alone",
    "replay": "RL + its own earlier solutions",
    "sft": "only imitate the peer",
    "rft": "only imitate the peer and itself",
    "sgt": "RL + imitate the peer",
    "hint": "RL + a hint from the peer",
}


def before(of: str) -> float:
    """The shipped pair's pass@1 on the test set before training, in percent."""
    return mean(
        score for mode in TRAINED_WITH for score in scores("result 1", mode, of, column="before")
    )


def readme_headline() -> list[str]:
    """What is solved after training: problems of the blind spots, the others, and all problems."""
    kinds = ("blind", "others", "all")
    rows = [("before training", *(f"{before(of):.1f}%" for of in kinds), "")]
    for mode, words in TRAINED_WITH.items():
        ends = [f"{end('result 1', mode, of)}%" for of in kinds]
        ends.append(f"{end('long', mode)}%" if mode in LONG else "")
        rows.append((f"{words} (`{mode}`)", *ends))
    header = (
        "training",
        "blind-spot problems",
        "other problems",
        "all problems",
        "all problems, 720 steps",
    )
    return table(header, rows)


MODES_SHOWN = {  # mode -> its name, where it is from, and what is shared
    "solo": ("`solo`", "GRPO", "nothing"),
    "solo-x2": ("`solo-x2`", "control", "nothing; twice the attempts"),
    "replay": ("`replay`", "control", "nothing; the policy's own earlier solutions come back"),
    "sft": ("`sft`", "control", "solutions; no RL"),
    "rft": ("`rft`", "control", "solutions; the policy also imitates its own; no GRPO"),
    "cells": (
        "`rft` with the gate of `sgt`",
        "control",
        "solutions, used where all attempts failed; no GRPO",
    ),
    "sgt": ("`sgt`", "MRL", "solutions, used where all attempts failed"),
    WEIGHT_001: (
        "`sgt` with weight 0.01",
        "MRL",
        "solutions, used where all attempts failed",
    ),
    "hint": (
        "`hint`",
        "ours, close to [HINT](https://arxiv.org/abs/2510.09388)",
        "beginnings of solutions, used where all attempts failed",
    ),
    "xgrpo": ("`xgrpo`", "MRL*", "mean rewards, no text"),
    "prp": ("`prp`", "MRL*", "completions and their probabilities"),
    LEVEL: ("`prp`, one ratio per completion", "MRL*", "completions and their probabilities"),
    "naive": ("`naive`", "HACPO", "completions, treated as the model's own"),
    "hacpo": ("`hacpo`", "HACPO", "completions and their probabilities"),
    NO_LOWER: (
        "`hacpo` without its lower clip bound",
        "HACPO",
        "completions and their probabilities",
    ),
    "graft": ("`graft`", "GRAFT", "whole groups"),
}
PAPERS = {"MRL": "2605.07244", "HACPO": "2603.02604", "GRAFT": "2609.37868"}


def readme_modes() -> list[str]:
    """Each mode with its gain over `solo`, on the shipped pair and among models that write alike.

    Sorted by the first gain, and then by the second.
    """
    rows = []
    for mode, (name, paper, shared) in MODES_SHOWN.items():
        key, _, rest = paper.partition("*")
        if key in PAPERS:
            paper = f"[{key}](https://arxiv.org/abs/{PAPERS[key]})"
            paper += ", *reconstructed*" if rest or "*" in MODES_SHOWN[mode][1] else ""
        gains = [gain_over_solo("modes", mode), gain_among_twins(mode)]
        order = [gain.mean if gain else -1000.0 for gain in gains]
        shown = ["" if mode == "solo" else gain or "not measured" for gain in gains]
        rows.append((order, (name, *shown, shared, paper)))
    rows.sort(key=lambda row: row[0], reverse=True)
    header = (
        "mode", "gain, models that write differently", "gain, models that write alike",
        "what is shared", "paper",
    )  # fmt: skip
    return table(header, [cells for _, cells in rows])


def gain_over_solo(source: str, mode: str) -> Gap | None:
    """How far a mode ends above `solo` in the same comparison; None if it was not run there."""
    try:
        return difference(source, mode, "solo")
    except NotMeasured:
        return None


def gain_among_twins(mode: str) -> Gap | None:
    """The gain of a mode among twins; that of version 0.2 if it was not run since."""
    if mode == LEVEL:
        return gain_over_solo("prp levels", mode)
    return gain_over_solo("twins", mode) or gain_over_solo("five", mode)


# --------------------------------------------------------------------- results 1 to 3, 7 and 8


def result_1() -> list[str]:
    """Scores on the test set, and in how many runs each blind spot is closed."""
    spots = [f"{policy} {skill}" for policy, skills in SPOTS.items() for skill in skills]
    kinds = ("blind", "strong", "all")
    rows: list[list[object]] = [
        ["before training", *(f"{before(of):.1f}" for of in kinds), *[""] * len(spots)],
        ["better untrained model", *(f"{oracle(of):.1f}" for of in kinds), *[""] * len(spots)],
    ]
    for mode in (*TRAINED_WITH, "hint-anew"):
        ends = [end("result 1", mode, of) for of in kinds]
        rows.append([f"`{mode}`", *ends, *(closed("result 1", mode, spot) for spot in spots)])
    names = (f"`{spot.split()[1]}`" for spot in spots)
    return table(("", "blind spots", "strong skills", "all skills", *names), rows)


def oracle(of: str) -> float:
    """pass@1 before training if the better of both models answers for each skill, in percent."""
    start: dict[tuple[str, str], list[float]] = {}  # (policy, skill) -> one score per run
    for line in kept_rows(FILES["result 1"]):
        if (line["split"], line["metric"]) == ("test", "pass@1"):
            start.setdefault((line["policy"], line["skill"]), []).append(float(line["before"]))
    best = []
    for policy, skill in start:
        if skill != "all" and (of == "all" or is_meant(of, policy, skill)):
            best.append(max(mean(start[name, skill]) for name in PAIR))
    return mean(best)


DIFFERENCES = (
    ("hint", "solo"), ("hint", "hint-anew"), ("hint-anew", "solo"),
    ("hint", "sgt"), ("sgt", "solo"), ("sgt", "sft"), ("rft", "sft"), ("replay", "solo"),
)  # fmt: skip


def result_1_differences() -> list[str]:
    """How far modes of the shipped pair are apart."""
    rows = [
        (f"`{one}` above `{two}`", *(difference("result 1", one, two, of) for of in KINDS_COMPARED))
        for one, two in DIFFERENCES
    ]
    header = ("points on the test set", "all skills", "blind spots", "strong skills", "weak skills")
    return table(header, rows)


KINDS_COMPARED = ("all", "blind", "strong", "weak")


CHOICES = {  # settings of `hint` -> the mode in hint-choices.csv
    "weight 1, 8 attempts, 10 to 50% of the text (default)": "default",
    "weight 0.3": "weight-0.3",
    "weight 0.1": "weight-0.1",
    "2 attempts": "attempts-2",
    "16 attempts": "attempts-16",
    "10 to 20% of the text": "short",
    "50 to 90% of the text": "long",
}


def hint_choices() -> list[str]:
    """What the settings of `hint` do, with one pilot seed."""
    rows = []
    tokens = values_of("choices", "default", "sampled tokens")
    for words, mode in CHOICES.items():
        ends = [f"{end('choices', mode, of).mean:.1f}" for of in ("all", "blind", "strong")]
        sampled = values_of("choices", mode, "sampled tokens")
        ratio = mean(one / other for one, other in zip(sampled, tokens, strict=True))
        rows.append((words, *ends, closed("choices", mode), f"{ratio:.2f}"))
    header = (
        "what differs", "all skills", "blind spots", "strong skills", "closed", "sampled tokens",
    )  # fmt: skip
    return table(header, rows)


def cost() -> list[str]:
    """What a run costs, relative to `sgt` with the same seed."""
    rows = []
    for mode in (*TRAINED_WITH, "hint-anew"):
        shares = []
        for metric in ("sampled tokens", "seconds"):
            of_mode, of_sgt = (values_of("result 1", m, metric) for m in (mode, "sgt"))
            ratios = [one / other for one, other in zip(of_mode, of_sgt, strict=True)]
            shares.append(f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        received = mean(values_of("result 1", mode, "bytes received"))
        rows.append((f"`{mode}`", *shares, f"{received / 1e6:.1f}"))
    return table(("", "sampled tokens", "seconds", "MB received"), rows)


HINTS = {  # `hint` and its controls -> the comparison, and how the other second attempts differ
    "hint": ("modes", ""),
    "hint-anew": ("modes", "no beginning"),
    "hint-elsewhere": ("hint controls", "a beginning of another problem's solution"),
    "hint-whole": ("hint controls", "the peer's whole solution is imitated"),
    "hint-members": ("hint controls", "they join the group; nothing is imitated"),
}


def correct_share(mode: str) -> float:
    """Percent of the second attempts that are correct, as a mean over the seeds 81 to 85."""
    shares = [
        100 * int(row["correct"]) / int(row["second attempts"])
        for row in kept_rows("tiny-pair/second-attempts.csv")
        if row["mode"] == mode and int(row["seed"]) <= 85
    ]
    if not shares:
        raise NotMeasured(mode)
    return mean(shares)


def hint_controls() -> list[str]:
    """`hint` and its controls, each of which changes one thing, over the seeds 81 to 85."""
    rows = []
    for mode, (source, words) in HINTS.items():
        ends = [cell(end, source, mode, of) for of in ("all", "blind", "strong")]
        share = cell(lambda mode: f"{correct_share(mode):.0f}%", mode)
        rows.append((f"`{mode}`", words, *ends, share))
    header = (
        "", "what differs", "all skills", "blind spots", "strong skills", "correct second attempts",
    )  # fmt: skip
    return table(header, rows)


HALVES = {  # column of the table -> kind of skills, and whether they are sums and differences
    "blind: `days`, `bags`": ("blind", False),
    "blind: `sold`, `eats`": ("blind", True),
    "strong: products, quotients": ("strong", False),
    "strong: sums, differences": ("strong", True),
}


def right_shares(
    pair: str, mode: str, kind: str, sums: bool, until: int = 240
) -> tuple[float, float]:
    """Percent of attempts with the right operation, and percent of these that are correct.

    until: the last of the 40 steps that are counted.
    """
    attempts = right = correct = 0
    for row in kept_rows("tiny-pair/operations.csv"):
        meant = is_meant(kind, row["policy"], row["skill"]) and (row["skill"] in SUMS) == sums
        if meant and (row["pair"], row["mode"], row["until step"]) == (pair, mode, str(until)):
            attempts += int(row["attempts"])
            right += int(row["right operation"])
            correct += int(row["correct"])
    if not attempts:
        raise NotMeasured(f"{mode!r} on {pair!r}")
    return 100 * right / attempts, 100 * correct / right if right else 0.0


def operations() -> list[str]:
    """What attempts get right in the last 40 steps: the operation, and the calculation."""
    rows = []
    for pair, modes in (
        ("twins", LINES),
        ("sums and differences", (*LINES, "hint-whole")),
        ("everything", LINES),
    ):
        for mode in modes:
            cells = []
            for kind, sums in HALVES.values():
                try:
                    operation, calculation = right_shares(pair, mode, kind, sums)
                except NotMeasured:
                    break
                cells.append(f"{operation:.0f}%, {calculation:.0f}%" if operation else "0%")
            if cells:
                rows.append((pair, f"`{mode}`", *cells))
    return table(("the peer differs in", "mode", *HALVES), rows)


def hotter() -> list[str]:
    """What a higher temperature does before training, from hotter.csv."""
    measured = {  # of skills -> the column that matters
        "blind": "groups with a success",
        "strong": "correct",
    }
    rows = []
    for temperature in ("1.0", "1.5"):
        cells = []
        for kind, column in measured.items():
            shares = [
                100 * float(row[column])
                for row in kept_rows("hotter.csv")
                if row["temperature"] == temperature and is_meant(kind, row["policy"], row["skill"])
            ]
            cells.append(f"{min(shares):.0f} to {max(shares):.0f}%")
        rows.append((temperature, *cells))
    return table(
        ("temperature", "blind spots: groups with a success", "strong skills: correct attempts"),
        rows,
    )


def trl() -> list[str]:
    """What `qwen-tiny` solves after 100 rounds in TRL, from trl.csv."""
    teams = {
        "alone": "alone",
        "pair": "with `llama-tiny` in TRL",
        "mixed": "with `llama-tiny` in mini-mrl",
    }
    rows = []
    for team, words in teams.items():
        cells = [words]
        for of in ("days", "sold", "all"):
            kept = [
                row for row in kept_rows("trl.csv") if (row["team"], row["skill"]) == (team, of)
            ]
            cells.append(", ".join(f"{100 * float(row['pass@1']):.0f}" for row in kept))
        rows.append(cells)
    return table(("`qwen-tiny`, trained by TRL", "`days`", "`sold`", "all skills"), rows)


def cell_of(own: str, peer: str) -> str:
    """Where one of the nine cells ends, and how many blind spots it closes, over five seeds."""
    source, mode = CELLS[own, peer]
    return f"{end(source, mode)} ({closed(source, mode)})"


OWNS = {"none": "nothing", "correct": "own correct completions", "grpo": "GRPO"}


def result_2() -> list[str]:
    """Own learning and learning from a peer: nine cells."""
    peers = {
        "none": "nothing",
        "gate": "a solution, weight 0.1, if all attempts failed",
        "always": "a solution, weight 1, always",
    }
    rows = []
    for own, words in OWNS.items():
        cells = [f"{before('all'):.1f} (untrained)"] if own == "none" else []
        for peer in peers:
            if (own, peer) in CELLS:
                cells.append(cell(cell_of, own, peer))
        rows.append((words, *cells))
    return table(("from itself / from a peer", *peers.values()), rows)


def gate_or_weight() -> list[str]:
    """GRPO beside imitation: what do the gate and the small weight contribute?"""
    gated = ("gate, weight 0.01", "gate", "gate, weight 1")
    rows = [
        ("if all attempts failed", *(cell(cell_of, "grpo", peer) for peer in gated)),
        ("always", "", *(cell(cell_of, "grpo", peer) for peer in ("always-0.1", "always"))),
    ]
    return table(("a solution is imitated", "weight 0.01", "weight 0.1", "weight 1"), rows)


STRANGENESS = {  # how differently the peer writes -> its comparison
    "twins": "twins",
    "sums and differences": "modes",
    "everything": "everything",
    "only the box": "bare",
}
LINES = ("solo", "sft", "rft", "sgt", "hint")  # the modes of result 3


def by_strangeness(mode: str, how: str, of: str = "all") -> Estimate:
    """Where a mode ends with a peer that writes in this way, over the seeds 81 to 85.

    The models of the column "only the box" are the shipped pair, so there `solo` is the same. A box
    has no beginning, so `hint` makes the samples of `solo` there (tests/test_controls.py).
    """
    source = STRANGENESS[how]
    if source == "bare":
        alone = mode in ("solo", "hint")
        source, mode = ("modes", "solo") if alone else (source, f"{mode}-bare")
    return end(source, mode, of)


def result_3() -> list[str]:
    """Each mode by how differently the peer writes."""
    pairs = ("modes" if how == "only the box" else source for how, source in STRANGENESS.items())
    starts = [mean(scores(pair, "solo", column="before")) for pair in pairs]
    rows = [("before training", *(f"{start:.1f}" for start in starts))]
    for mode in LINES:
        rows.append((f"`{mode}`", *(cell(by_strangeness, mode, how) for how in STRANGENESS)))
        if mode == "sgt":
            pairs = [how for how in STRANGENESS if how != "only the box"]
            ends = [cell(by_strangeness, WEIGHT_001, how) for how in pairs]
            rows.append((MODES_SHOWN[WEIGHT_001][0], *ends, "not measured"))
    return table(("the peer differs in", *STRANGENESS), rows)


IMITATING = ("sft", "rft", "sgt", "hint")  # the modes of results 4 and 5


def next_to(mode: str, is_frozen: bool, *learners: str) -> list[float]:
    """Scores by seed, as a mean over learners, each with a peer that is frozen or learns."""
    scored = []
    for learner in learners or PAIR:
        peer = next(name for name in PAIR if name != learner)
        source = f"frozen {peer}" if is_frozen else "modes"
        scored.append(scores(source, mode, f"{learner} all"))
    return [mean(of_seed) for of_seed in zip(*scored, strict=True)]


def gain_from_mutual(mode: str, *learners: str) -> Gap:
    """What learners (both, if none is named) gain if their peers learn as well."""
    return gap(next_to(mode, False, *learners), next_to(mode, True, *learners))


def result_4() -> list[str]:
    """Each mode next to a peer that learns, and next to a peer that never learns."""
    rows = []
    for mode in IMITATING:
        ends = [estimate(next_to(mode, is_frozen)) for is_frozen in (False, True)]
        gains = (gain_from_mutual(mode, *learners) for learners in ((), *zip(PAIR, strict=True)))
        rows.append((f"`{mode}`", *ends, *gains))
    header = (
        "", "the peer learns", "the peer is frozen", "gain from a peer that learns",
        *(f"the same, `{name}` alone" for name in PAIR),
    )  # fmt: skip
    return table(header, rows)


def lost_to_liars(mode: str) -> Gap:
    """How far a mode ends below itself if wrong solutions are believed."""
    return gap(scores("modes", mode), scores("believed", mode))


def result_5() -> list[str]:
    """Each mode with checked solutions, and with wrong ones that nobody checks."""
    rows = []
    for mode in IMITATING:
        try:
            ends = end("modes", mode), end("believed", mode)
        except NotMeasured:
            continue
        rows.append((f"`{mode}`", *ends, lost_to_liars(mode)))
    return table(("", "checked", "believed", "lost"), rows)


def result_6_everything() -> list[str]:
    """The two softened forms in the shipped pair, and in the one that differs in everything."""
    rows = []
    for mode in ("solo", LEVEL, NO_LOWER, "hint"):
        cells = []
        for source in ("modes", "everything"):
            cells += [end(source, mode), closed(source, mode)]
        rows.append((MODES_SHOWN[mode][0], *cells))
    header = (
        "", "sums and differences in two ways", "closed", "everything in two ways", "closed",
    )  # fmt: skip
    return table(header, rows)


def result_6() -> list[str]:
    """All modes that were run on the shipped pair with the seeds 81 to 85, the best gain first."""
    rows = []
    for mode, (name, *_) in MODES_SHOWN.items():
        try:
            ends = [end("modes", mode, of) for of in ("all", "blind", "strong")]
        except NotMeasured:
            continue
        gain = difference("modes", mode, "solo")
        received = mean(values_of("modes", mode, "bytes per prompt"))
        cells = (name, *ends, "" if mode == "solo" else gain, f"{received / 1e3:.1f}")
        rows.append((gain.mean, cells))
    rows.sort(key=lambda row: row[0], reverse=True)
    header = (
        "mode", "all skills", "blind spots", "strong skills", "all skills, above `solo`",
        "kB received per prompt",
    )  # fmt: skip
    return table(header, [cells for _, cells in rows])


def two_objectives() -> list[str]:
    """`sgt` if `llama-tiny` has another objective than `qwen-tiny`: scores of each model."""
    rows = []
    for mode, objective, weight in (
        ("sgt", "`grpo`", 0.1), (TWO_OBJECTIVES, "`dr_grpo`", 0.1),
        (LESS_WEIGHT, "`dr_grpo`", 0.01),
    ):  # fmt: skip
        ends = [cell(end, "modes", mode, f"{policy} all") for policy in PAIR]
        rows.append((objective, weight, *ends))
    header = ("objective of `llama-tiny`", "weight of imitation", *(f"`{name}`" for name in PAIR))
    return table(header, rows)


def result_7() -> list[str]:
    """How likely a peer's solutions in the blind spots are for the receiver before training."""
    counts = ("solutions", "tokens", "tokens below 0.01")
    rows = []
    for line in kept_rows("tiny-pair/ratios.csv"):
        spot = f"`{line['skill']}` of `{line['policy']}`"
        whole = f"{float(line['whole completion']):.3f}"
        rows.append((line["pair"], spot, *(line[column] for column in counts), whole))
    return table(("the peer differs in", "blind spot", *counts, "whole completion"), rows)


def kl(mode: str) -> list[float]:
    """KL from the start to the end of training, in nats per token, one value per seed."""
    return values_of("modes", mode, "kl_to_start", "all", "validation")


def strong_skills_gained(mode: str) -> Gap:
    """The points that the strong skills gained from training."""
    scored = ("modes", mode, "strong")
    return gap(scores(*scored), scores(*scored, column="before"))


def nearest_first() -> list[str]:
    """All modes that were run on the shipped pair, the smallest KL to the start first."""
    run = []
    for mode in (*MODES_SHOWN, "hint-anew"):
        try:
            run.append((mean(kl(mode)), mode))
        except NotMeasured:
            continue
    return [mode for _, mode in sorted(run)]


def result_8() -> list[str]:
    """How far each mode moved from the start, and what became of the skills that were strong."""
    rows = []
    for mode in nearest_first():
        distance = estimate(kl(mode))
        name = MODES_SHOWN.get(mode, (f"`{mode}`",))[0]
        shown = f"{distance.mean:.2f} ± {distance.half:.2f}"
        rows.append((name, shown, strong_skills_gained(mode)))
    return table(("", "KL to the start, nats per token", "strong skills, points gained"), rows)


BEST_CELL, NO_OWN = CELLS["correct", "gate"], CELLS["none", "gate"]
PROTECTED_BY = {  # which own completions are imitated beside the gate -> the comparison and mode
    "none": NO_OWN,
    "of all skills, sampled in each step": BEST_CELL,
    "of products and quotients only, sampled in each step": ("protect", "other-skills"),
    "of all skills, sampled before training": ("protect", "stale"),
}


def protection() -> list[str]:
    """What own completions keep of the strong skills, next to imitation with a gate."""
    kinds = ("strong-sums", "strong-products", "all")
    rows = [("before training", *(f"{before(of):.1f}" for of in kinds), "", "")]
    for words, (source, mode) in PROTECTED_BY.items():
        moved = mean(values_of(source, mode, "kl_to_start", "all", "validation"))
        ends = (end(source, mode, of) for of in kinds)
        rows.append((words, *ends, closed(source, mode), f"{moved:.2f}"))
    header = (
        "own completions that are imitated", "strong: sums, differences",
        "strong: products, quotients", "all skills", "closed", "KL to the start",
    )  # fmt: skip
    return table(header, rows)


def above_the_best_cell(mode: str, of: str) -> Gap:
    """How far a control of result 8 ends above the cell that it changes."""
    return gap(scores("protect", mode, of), scores(*BEST_CELL, of))


LONG = ("solo", "rft", "sgt", WEIGHT_001, "hint")  # the modes of result 9


def pass_at_16(mode: str) -> Estimate:
    """The percentage of problems that at least one of 16 attempts solves, after 720 steps."""
    return estimate(values_of("long", mode, "pass@16", "all", "test"))


def result_9() -> list[str]:
    """Where modes end after 720 steps, and where the same seeds were after 240."""
    rows = []
    for mode in LONG:
        ends = [cell(end, "long", mode, of) for of in ("all", "blind", "strong")]
        ends += [cell(closed, "long", mode), cell(pass_at_16, mode)]
        rows.append((MODES_SHOWN[mode][0], end("modes", mode), *ends))
    header = (
        "", "all skills, 240 steps", "all skills, 720 steps", "blind spots", "strong skills",
        "closed", "all skills, pass@16",
    )  # fmt: skip
    return table(header, rows)


# ---------------------------------------------------------------------- predicted and seen

Seen = tuple[str, bool]  # what was seen, and whether the prediction held


def ends_between(source: str, mode: str, low: float, high: float) -> Seen:
    """The mean score of a mode, which was predicted to lie between two numbers."""
    found = end(source, mode)
    return str(found), low <= found.mean <= high


def is_above(
    source: str, one: str, two: str, least: float, most: float = 100, of: str = "all"
) -> Seen:
    """How far a mode ends above another one, which was predicted to lie between two numbers."""
    found = difference(source, one, two, of)
    return str(found), least <= found.mean <= most


def of_five(mode: str) -> list[float]:
    """The scores of `hint`, of one of its controls or of another mode of the shipped pair."""
    source = HINTS.get(mode, ("modes", ""))[0]
    return scores(source, mode)


def hint_is_above(one: str, two: str, least: float, most: float = 100) -> Seen:
    """The same as `is_above` for `hint` and its controls."""
    found = gap(of_five(one), of_five(two))
    return str(found), least <= found.mean <= most


def helps_rarely(mode: str, most: float) -> Seen:
    """How many second attempts are correct; at most so many percent were predicted."""
    found = correct_share(mode)
    return f"{found:.0f}%", found < most


def cell_is_above(one: tuple[str, str], two: tuple[str, str], least: float, most: float) -> Seen:
    """How far one of the nine cells ends above another one, which was predicted to lie between."""
    found = gap(*(scores(*CELLS[each]) for each in (one, two)))
    return str(found), least <= found.mean <= most


def leads() -> Seen:
    """How far `hint` ends above the best of the other modes; it was predicted to lead."""
    if missing := [mode for mode in MODES_SHOWN if gain_over_solo("modes", mode) is None]:
        raise NotMeasured(missing[0])
    others = [mode for mode in MODES_SHOWN if mode != "hint"]
    best = max(others, key=lambda mode: mean(of_five(mode)))
    found = gap(of_five("hint"), of_five(best))
    return f"{found} above {MODES_SHOWN[best][0]}", found.mean > 0


def closes(mode: str, least: float, most: float, source: str = "modes") -> Seen:
    """How many blind spots a mode closes; the numbers are the shares that were predicted."""
    found = closed(source, mode)
    share = count(found) / int(found.split()[-1])
    return found, least <= share <= most


def closes_two(spots: str, least: int, most: int) -> Seen:
    """In how many of ten cases `sgt` with weight 0.01 closes two blind spots in 720 steps."""
    found = closed_spots("long", WEIGHT_001, spots)
    return found, least <= count(found) <= most


def gap_lies(compute: Callable[[], Gap], least: float, most: float) -> Seen:
    """A difference that was predicted to lie between two numbers."""
    found = compute()
    return str(found), least <= found.mean <= most


def lies_between(low: Sequence[float], found: Sequence[float], high: Sequence[float]) -> Seen:
    """Where a mode ends, which was predicted to lie between two others."""
    return str(estimate(found)), mean(low) <= mean(found) <= mean(high)


def members_lie_between() -> Seen:
    """Where `hint-members` ends: between `sgt` and `hint`."""
    return lies_between(*(of_five(mode) for mode in ("sgt", "hint-members", "hint")))


def always_lies_between() -> Seen:
    """Where imitating always with weight 0.1 ends: between `sgt` with weight 1 and `sgt`."""
    cells = (("grpo", "gate, weight 1"), ("grpo", "always-0.1"), ("grpo", "gate"))
    return lies_between(*(scores(*CELLS[each]) for each in cells))


def closes_none_of(mode: str, *spots: str) -> Seen:
    """How many of some blind spots a mode closes; none was predicted."""
    counts = [count(closed("result 1", mode, spot)) for spot in spots]
    return str(sum(counts)), not any(counts)


def within(source: str, points: float) -> Seen:
    """The lowest and the highest of four modes."""
    ends = [end(source, mode).mean for mode in ("sft", "rft", "sgt", "hint")]
    return f"{min(ends):.1f} to {max(ends):.1f}", max(ends) - min(ends) <= points


def ratios_between(how: str, column: str, low: float, high: float) -> Seen:
    """A column of ratios.csv in each blind spot, of which all were predicted to lie between."""
    rows = [line for line in kept_rows("tiny-pair/ratios.csv") if line["pair"] == how]
    if not rows:
        raise NotMeasured(how)
    found = {line["skill"]: float(line[column]) for line in rows}
    seen = ", ".join(f"`{skill}` {number:.2g}" for skill, number in found.items())
    return seen, all(low <= number <= high for number in found.values())


def lead_of_hint(metric: str) -> tuple[Gap, str]:
    """How far `hint` ends above the best of the other modes after 720 steps, and its name."""
    ends = {mode: values_of("long", mode, metric, "all", "test") for mode in LONG}
    best = max((mode for mode in LONG if mode != "hint"), key=lambda mode: mean(ends[mode]))
    return gap(ends["hint"], ends[best]), MODES_SHOWN[best][0]


def leads_at_the_end(least: float) -> Seen:
    """The lead of `hint` at pass@1."""
    found, best = lead_of_hint("pass@1")
    return f"{found} above {best}", found.mean >= least


def leads_by_less() -> Seen:
    """The lead of `hint` at pass@16; less than at pass@1 was predicted."""
    found, best = lead_of_hint("pass@16")
    return f"{found} above {best}", 0 <= found.mean < lead_of_hint("pass@1")[0].mean


def kl_orders() -> Seen:
    """In how many pairs of modes the one that moved further from the start kept less."""
    gained = [strong_skills_gained(mode).mean for mode in nearest_first()]
    pairs = list(combinations(gained, 2))
    right = sum(near > far for near, far in pairs)
    return f"so in {right} of {len(pairs)} pairs of modes", right == len(pairs)


def stale_keep(least: float) -> Seen:
    """Old own completions: the share that they keep of what fresh ones keep of strong skills."""
    stale, fresh, none = (
        end(*which, "strong").mean for which in (("protect", "stale"), BEST_CELL, NO_OWN)
    )
    share = (stale - none) / (fresh - none)
    return f"{100 * share:.0f}%", share >= least


UNLIKELY = "tokens below 0.01"
PREDICTIONS: tuple[tuple[str, str, Callable[[], Seen]], ...] = (
    ("1", "`solo` ends at 58 to 64", partial(ends_between, "result 1", "solo", 58, 64)),
    ("1", "`replay` ends at 58 to 64", partial(ends_between, "result 1", "replay", 58, 64)),
    ("1", "`sft` ends below 45", partial(ends_between, "result 1", "sft", 0, 45)),
    ("1", "`rft` ends below 52", partial(ends_between, "result 1", "rft", 0, 52)),
    (
        "1",
        "`sgt` ends above `solo`, by at most 6",
        partial(is_above, "result 1", "sgt", "solo", 0, 6),
    ),
    ("1", "`hint` ends at least 8 above `solo`", partial(is_above, "result 1", "hint", "solo", 8)),
    ("1", "`hint` ends at least 5 above `sgt`", partial(is_above, "result 1", "hint", "sgt", 5)),
    ("1", "`solo` closes no blind spot", partial(closes, "solo", 0, 0, "result 1")),
    ("1", "`sgt` closes half of the blind spots", partial(closes, "sgt", 0.5, 0.5, "result 1")),
    ("1", "`hint` closes at least 35 of 40", partial(closes, "hint", 35 / 40, 1, "result 1")),
    (
        "1a",
        "`hint-anew` closes none of `sold`, `days` and `eats`",
        partial(closes_none_of, "hint-anew", "qwen-tiny sold", "qwen-tiny days", "llama-tiny eats"),
    ),
    (
        "1a",
        "`hint` ends at least 8 above `hint-anew`",
        partial(is_above, "result 1", "hint", "hint-anew", 8),
    ),
    (
        "1b",
        "`hint-elsewhere`: less than 25% of the second attempts are correct",
        partial(helps_rarely, "hint-elsewhere", 25),
    ),
    (
        "1b",
        "`hint-elsewhere` ends within 4 points of `hint-anew`",
        partial(hint_is_above, "hint-elsewhere", "hint-anew", -4, 4),
    ),
    (
        "1b",
        "`hint` ends at least 4 above `hint-whole`",
        partial(hint_is_above, "hint", "hint-whole", 4),
    ),
    ("1b", "`hint-members` ends between `sgt` and `hint`", members_lie_between),
    *(
        (
            "2",
            f"from itself {words}: the gate ends above imitating always",
            partial(cell_is_above, (own, "gate"), (own, "always"), 0, 100),
        )
        for own, words in OWNS.items()
    ),
    (
        "2",
        "own correct completions alone end within 4 points of `solo`",
        partial(cell_is_above, ("correct", "none"), ("grpo", "none"), -4, 4),
    ),
    (
        "2",
        "`sgt` ends at least 8 above `sgt` with weight 1",
        partial(is_above, "modes", "sgt", WEIGHT_1, 8),
    ),
    (
        "2",
        "always imitating, with weight 0.1, ends below `sgt` and above `sgt` with weight 1",
        always_lies_between,
    ),
    (
        "2",
        "twins: `rft` with the gate ends within 3 points of `rft`",
        partial(is_above, "twins", "cells", "rft", -3, 3),
    ),
    ("3", "twins: four modes end within 5 points", partial(within, "twins", 5)),
    ("3", "everything: `sft` ends below 20", partial(ends_between, "everything", "sft", 0, 20)),
    ("3", "everything: `rft` ends below 35", partial(ends_between, "everything", "rft", 0, 35)),
    (
        "3",
        "everything: `sgt` ends within 4 points of `solo`",
        partial(is_above, "everything", "sgt", "solo", -4, 4),
    ),
    (
        "3",
        "everything: `hint` ends at least 8 above `solo`",
        partial(is_above, "everything", "hint", "solo", 8),
    ),
    ("3", "only the box: `sft` ends below 10", partial(ends_between, "bare", "sft-bare", 0, 10)),
    ("3", "only the box: `rft` ends below 10", partial(ends_between, "bare", "rft-bare", 0, 10)),
    ("3", "only the box: `sgt` ends below 55", partial(ends_between, "bare", "sgt-bare", 0, 55)),
    (
        "4",
        "`hint` gains less than 2 from a peer that learns",
        partial(gap_lies, partial(gain_from_mutual, "hint"), -100, 2),
    ),
    (
        "4",
        "`sft` loses from a peer that learns",
        partial(gap_lies, partial(gain_from_mutual, "sft"), -100, 0),
    ),
    ("5", "`hint` loses at most 2", partial(gap_lies, partial(lost_to_liars, "hint"), -100, 2)),
    ("5", "`sgt` loses at most 3", partial(gap_lies, partial(lost_to_liars, "sgt"), -100, 3)),
    ("5", "`sft` loses at least 5", partial(gap_lies, partial(lost_to_liars, "sft"), 5, 100)),
    ("6", "`hint` leads", leads),
    (
        "6",
        "`prp` with one ratio per completion ends within 3 points of `solo`",
        partial(is_above, "modes", LEVEL, "solo", -3, 3),
    ),
    (
        "6",
        "`naive` ends above `prp` with one ratio per completion in blind spots",
        partial(is_above, "modes", "naive", LEVEL, 0, 100, "blind"),
    ),
    (
        "6",
        "`hacpo` ends within 3 points of `solo`",
        partial(is_above, "modes", "hacpo", "solo", -3, 3),
    ),
    (
        "6",
        "`hacpo` without its lower clip bound ends below `solo`",
        partial(is_above, "modes", NO_LOWER, "solo", -100, 0),
    ),
    (
        "2",
        "`sgt` with `dr_grpo` for `llama-tiny` ends within 3 points of `sgt`",
        partial(is_above, "modes", TWO_OBJECTIVES, "sgt", -3, 3),
    ),
    (
        "2",
        "`sgt` with weight 0.01 ends at least 2 above `sgt`",
        partial(is_above, "modes", WEIGHT_001, "sgt", 2),
    ),
    (
        "2",
        "`sgt` with weight 0.01 closes half of the blind spots",
        partial(closes, WEIGHT_001, 0.5, 1),
    ),
    (
        "2",
        "the same with weight 0.01: `llama-tiny` ends within 5 points of `sgt`",
        partial(is_above, "modes", LESS_WEIGHT, "sgt", -5, 5, "llama-tiny all"),
    ),
    *(
        ("3", f"{how}: `sgt` with weight 0.01 {words}", look)
        for how, words, look in (
            (
                "twins",
                "ends within 3 points of `sgt`",
                partial(is_above, "twins", WEIGHT_001, "sgt", -3, 3),
            ),
            ("twins", "closes all four blind spots", partial(closes, WEIGHT_001, 1, 1, "twins")),
            (
                "everything",
                "ends at least 2 above `sgt`",
                partial(is_above, "everything", WEIGHT_001, "sgt", 2),
            ),
            (
                "everything",
                "ends above `solo`",
                partial(is_above, "everything", WEIGHT_001, "solo", 0),
            ),
            (
                "everything",
                "closes half of the blind spots",
                partial(closes, WEIGHT_001, 0.5, 1, "everything"),
            ),
        )
    ),
    *(
        ("6", f"everything: {name} {words}", look)
        for mode, name in (
            (LEVEL, "`prp` with one ratio per completion"),
            (NO_LOWER, MODES_SHOWN[NO_LOWER][0]),
        )
        for words, look in (
            ("closes no blind spot", partial(closes, mode, 0, 0, "everything")),
            (
                "ends within 3 points of `solo`",
                partial(is_above, "everything", mode, "solo", -3, 3),
            ),
        )
    ),
    (
        "7",
        "shipped pair: more than five tokens of a solution have a ratio below 0.01",
        partial(ratios_between, "sums and differences", UNLIKELY, 5.5, 100),
    ),
    (
        "7",
        "everything: more than five tokens of a solution have a ratio below 0.01",
        partial(ratios_between, "everything", UNLIKELY, 5.5, 100),
    ),
    (
        "7",
        "twins: one or two tokens have a ratio below 0.01",
        partial(ratios_between, "twins", UNLIKELY, 1, 2),
    ),
    (
        "7",
        "shipped pair: the ratio of a whole completion is below 0.05",
        partial(ratios_between, "sums and differences", "whole completion", 0, 0.05),
    ),
    (
        "7",
        "everything: the ratio of a whole completion is below 0.05",
        partial(ratios_between, "everything", "whole completion", 0, 0.05),
    ),
    ("8", "the KL to the start orders the modes by what they forget", kl_orders),
    (
        "8",
        "own products and quotients only: strong sums and differences end at least 15 lower",
        partial(gap_lies, partial(above_the_best_cell, "other-skills", "strong-sums"), -100, -15),
    ),
    (
        "8",
        "own products and quotients only: strong products and quotients end within 3 points",
        partial(gap_lies, partial(above_the_best_cell, "other-skills", "strong-products"), -3, 3),
    ),
    (
        "8",
        "own completions from before training keep at least half of what fresh ones keep",
        partial(stale_keep, 0.5),
    ),
    (
        "9",
        "`hint` ends at least 5 above the others at pass@1",
        partial(leads_at_the_end, 5),
    ),
    (
        "9",
        "`hint` ends above the others at pass@16, by less than at pass@1",
        leads_by_less,
    ),
    ("9", "`sgt` ends above `solo`", partial(is_above, "long", "sgt", "solo", 0)),
    (
        "9",
        "`sgt` with weight 0.01 ends at least 2 below `sgt`",
        partial(is_above, "long", WEIGHT_001, "sgt", -100, -2),
    ),
    (
        "9",
        "`sgt` with weight 0.01 closes `days` and `bags` in every run",
        partial(closes_two, "days bags", 10, 10),
    ),
    (
        "9",
        "`sgt` with weight 0.01 closes `sold` and `eats` in fewer than five of ten cases",
        partial(closes_two, "sold eats", 0, 4),
    ),
)


def predictions() -> list[str]:
    """Each prediction of PLAN.md whose runs can be told by a number, beside what was seen."""
    rows = []
    for result, predicted, look in PREDICTIONS:
        try:
            seen, held = look()
            rows.append((result, predicted, seen, "yes" if held else "**no**"))
        except NotMeasured:
            rows.append((result, predicted, NOT_YET, ""))
    return table(("result", "predicted", "seen", "as predicted"), rows)


# ------------------------------------------------------------------------ twins of version 0.2


def twins_peers() -> list[str]:
    """Honest peers, a peer that never learns, and peers whose wrong claims nobody checks."""
    rows = []
    for mode in ("solo", "sft", "rft", "sgt"):
        unchecked = end("liars", mode if mode == "solo" else f"{mode} believed")
        frozen = [end("frozen 71", mode, f"qwen-tiny {of}") for of in ("all", "eats")]
        rows.append((f"`{mode}`", end("liars", mode), unchecked, *frozen))
    header = ("", "honest peers", "unchecked claims", "frozen peer", "frozen peer, `eats`")
    return table(header, rows)


def twins_modes() -> list[str]:
    """All modes that were run with five seeds, the best gain first."""
    runs = [("five", NO_LOWER), ("prp levels", LEVEL)]
    runs += [("five", mode) for mode in dict.fromkeys(x["mode"] for x in kept_rows(FILES["five"]))]
    rows = []
    for source, mode in runs:
        gain = difference(source, mode, "solo")
        cells = (MODES_SHOWN[mode][0], end(source, mode), "" if mode == "solo" else gain)
        rows.append((gain.mean, (*cells, end(source, mode, "blind"))))
    rows.sort(reverse=True)
    header = ("mode", "all skills", "above `solo`", "blind spots")
    return table(header, [cells for _, cells in rows])


def twins_dial() -> list[str]:
    """Five pairs that were shown more or less of their peers' skills."""
    pairs = ("sgt", "solo"), ("sgt", "replay"), ("sft", "replay")
    rows = [
        (f"{shown}%", *(difference(f"dial {shown}", one, other) for one, other in pairs))
        for shown in DIAL
    ]
    header = ("shown correctly", *(f"`{one}` above `{other}`" for one, other in pairs))
    return table(header, rows)


# -------------------------------------------------------------------------- the papers' claims


def told_by(found: Gap) -> str:
    """What a difference says about a claim that it is above 0."""
    if not found.clear:
        return "not told apart"
    return "holds" if found.mean > 0 else "does not hold"


def apart(source: str, one: str, two: str, of: str = "all") -> str:
    """How far a mode ends from another one, in words: "1.0 ± 2.0 below `solo`"."""
    found = difference(source, one, two, of)
    side = "below" if found.mean < 0 else "above"
    name = MODES_SHOWN[two][0]
    return f"{str(found).removeprefix('-')} {side} {name}"


PAIRS = {"shipped pair": "modes", "twins": "five"}  # the pairs that the papers' modes were run with


def on_both(one: str, two: str, of: str = "all") -> str:
    """How far a mode ends from another one, on the shipped pair and among twins."""
    return "; ".join(
        f"{pair}: {cell(apart, source, one, two, of)}" for pair, source in PAIRS.items()
    )


def told_by_both(one: str, two: str, of: str = "all") -> str:
    """What both pairs say about the claim that mode `one` ends above mode `two`."""

    def told(source: str) -> str:
        return told_by(difference(source, one, two, of))

    verdicts = {pair: cell(told, source) for pair, source in PAIRS.items()}
    if len(set(verdicts.values())) == 1:
        return verdicts["twins"]
    return "; ".join(f"{pair}: {verdict}" for pair, verdict in verdicts.items())


def waiting(folder: str) -> str:
    """Percent of a run's time in which each policy waited for the turns of the other one."""
    shares = []
    for policy, lines in lines_of(folder).items():
        own = sum(
            total(lines, f"time/{turn}_s") for turn in ("rollout", "verify", "judge", "learn")
        )
        share = 100 * (1 - own / total(lines, "time/step_s"))
        shares.append(f"`{policy}` {share:.0f}%")
    return " and ".join(shares)


def claims_of_mrl() -> Iterator[tuple[object, ...]]:
    """The claims of Mutual Reinforcement Learning. The toy's numbers: TUTORIAL_2, section 13."""
    yield "**MRL**, arXiv 2605.07244", "", ""
    ends = {
        of: ", ".join(
            f"`{mode}` {apart('modes', mode, 'solo', of)}" for mode in ("sgt", "xgrpo", "prp")
        )
        + f", with one ratio per completion {apart('modes', LEVEL, 'solo', of)}"
        + f", `sgt` with weight 0.01 {apart('modes', WEIGHT_001, 'solo', of)}"
        for of in ("all", "blind")
    }
    yield (
        "sharing solutions (SGT) lies at the favorable point between sharing rewards (XGRPO) and "
        "sharing completions (PRP)",
        f"shipped pair, all skills: {ends['all']}; blind spots: {ends['blind']}. Twins: `sgt` "
        f"{apart('five', 'sgt', 'solo')}, `xgrpo` "
        f"{apart('five', 'xgrpo', 'solo')}, `prp` {apart('five', 'prp', 'solo')}, but with one "
        f"ratio per completion {apart('prp levels', LEVEL, 'solo')}",
        "holds in the blind spots of both pairs, but over all skills of the shipped pair only with "
        "a smaller weight; does not hold for `prp` with one ratio per completion",
    )
    yield (
        "SGT teaches when all of a policy's own attempts fail",
        f"shipped pair, blind spots: {apart('modes', 'sgt', 'replay', 'blind')}",
        told_by(difference("modes", "sgt", "replay", "blind")),
    )
    yield (
        "SGT is more than fine-tuning on the peer's solutions",
        f"shipped pair: {apart('modes', 'sgt', 'sft')}; twins: {apart('ten', 'sgt', 'sft')}",
        f"shipped pair: {told_by(difference('modes', 'sgt', 'sft'))}; "
        f"twins: {told_by(difference('ten', 'sgt', 'sft'))}",
    )
    yield (
        "SGT does so with little noise",
        "toy: 0.95 groups needed, RL alone 30",
        "holds in the toy",
    )
    yield (
        "XGRPO gives a gradient there, but reaches only what the policy samples itself",
        "toy: 100% of groups give an update; blind spots, shipped pair: "
        f"{apart('modes', 'xgrpo', 'solo', 'blind')}; blind spots, twins: they end at "
        f"{end('five', 'xgrpo', 'blind')}",
        "holds",
    )
    yield (
        "XGRPO has little noise",
        "toy: its updates have a spread of 0.257, those of RL alone 0.136; 73 groups needed, "
        "RL alone 30",
        "does not hold in the toy's blind spot",
    )
    yield (
        "PRP has the noise of its ratios",
        "toy: the ratio lowers the spread of the updates from 0.236 (`naive`) to 0.220, and "
        "their mean to a nineteenth",
        "does not hold in the toy, where signal is lost instead",
    )
    yield (
        "retokenizing has a cost, the residual",
        "`sgt` uses no log-probs of the peer, so it aligns nothing",
        "not measured",
    )
    yield (
        "the order of turns (MWRA) has no deadlock",
        "by construction: the policies take turns in one fixed order; in the kept run of `sgt` "
        f"(`resident`), each waits for the other: {waiting('sgt-s0')} of the time",
        "holds; not compared with another order",
    )


def claims_of_others() -> Iterator[tuple[object, ...]]:
    """The claims of HACPO and GRAFT, with the twins of version 0.2."""
    yield "**HACPO**, arXiv 2603.02604", "", ""
    alone, twice = on_both("hacpo", "solo"), on_both("hacpo", "solo-x2")
    yield (
        "HACPO gains over RL alone with half of its rollouts",
        f"{alone}. {twice[0].upper()}{twice[1:]}",
        told_by_both("hacpo", "solo-x2"),
    )
    yield (
        "completions that the receiver finds unlikely are better left out",
        f"`hacpo`, {on_both('hacpo', NO_LOWER)}",
        told_by_both("hacpo", NO_LOWER),
    )
    yield (
        "pooling without correction (`naive`) ends below RL alone",
        f"{on_both('naive', 'solo')}, but on strong skills "
        f"{apart('five', 'naive', 'solo', 'strong')}",
        "shipped pair: holds; twins: holds on strong skills only",
    )
    yield (
        "HACPO's mixed baseline has no bias if the ratio of abilities is the true one",
        "toy, two prompts: bias of 0.00, 0.00 with a copy as peer, of -0.44, +0.44 with a peer "
        "that knows the other prompt",
        "holds, but the condition fails if the models have different skills",
    )
    yield (
        "a peer's gradient points uphill if its confidence matches its quality",
        "toy: a correct and an incorrect peer (`tests/test_bandit.py`)",
        "holds; a peer that is sure of a mistake points downhill",
    )
    yield "**GRAFT**, arXiv 2609.37868", "", ""
    for other, words in (("solo", "GRPO"), ("sgt", "SGT")):
        yield f"GRAFT ends above {words}", on_both("graft", other), told_by_both("graft", other)
    yield "HACPO ends below GRPO in five of six cases", alone, told_by_both("solo", "hacpo")
    tiny = [solved_by_peer(["sgt-s0"], policy, 16) for policy in PAIR]
    runs = [f"real-pair/sgt-s{seed}" for seed in REAL_SEEDS]
    real = [solved_by_peer(runs, policy, 8) for policy in ("smol", "qwen")]
    yield (
        "a peer solves some of the prompts on which all of the receiver's attempts fail "
        "(there 47.9% and 18.7%)",
        f"{tiny[0]}% and {tiny[1]}% of such groups of the shipped pair (seed 0), {real[0]}% and "
        f"{real[1]}% of those of `smol` and `qwen`",
        "holds",
    )


def claims() -> list[str]:
    """What the papers claim, what was seen, and what that says about these models."""
    rows = [*claims_of_mrl(), *claims_of_others()]
    return table(("claim", "what was seen", "here"), rows)


# --------------------------------------------------------------------------- pretrained models


def real_gain(one: str, two: str, training: bool) -> Gap:
    """By how many points `smol` is better with mode `one` than with `two`, in training or after."""
    found = []
    for mode in (one, two):
        runs = [f"real-pair/{mode}-s{seed}" for seed in REAL_SEEDS]
        found.append(
            [solve_rate(run, "smol", 1, 60) if training else percent(run, "smol") for run in runs]
        )
    return gap(*found)


def real_gains() -> list[str]:
    """What the smaller of two pretrained models gains."""
    pairs = ("sgt", "solo"), ("sgt", "replay"), ("replay", "solo")
    rows = [
        [name, *(real_gain(*pair, training) for pair in pairs)]
        for name, training in (
            ("while training, steps 1 to 60", True),
            ("held out, after 60 steps", False),
        )
    ]
    return table(("points of `smol`", *(f"{one} above {two}" for one, two in pairs)), rows)


def both_ways() -> list[str]:
    """Two pretrained models with two blind spots each."""
    starts = [
        estimate(scores("both ways", "sgt", f"{policy} all", "validation", "before"))
        for policy in REAL_BLIND_SPOTS
    ]
    rows: list[list[object]] = [["before training", 0, *starts]]
    for mode in ("solo", "replay", "sft", "sgt"):
        ends = [end("both ways", mode, f"{name} all", "validation") for name in REAL_BLIND_SPOTS]
        rows.append([f"`{mode}`", count(closed("both ways", mode)), *ends])
    for mode in ("sft", "sgt"):
        qwen = end("frozen smol", mode, "qwen all", "validation")
        rows.append([f"`{mode}`, next to a frozen `smol`", "", qwen, ""])
    return table(("", "blind spots closed, of 20", "`qwen`", "`smol`"), rows)


def pilots() -> list[str]:
    """What was tried once with the two pretrained models."""
    first = lines_of("real-pair/sgt-s3")["smol"][:20]
    lora = peak_gib(lines_of("lora")["smol"][:20])
    rates = [
        " and ".join(f"{solve_rate(run, policy, 16, 20):.0f}" for policy in ("qwen", "smol"))
        for run in ("lora", "real-pair/sgt-s3")
    ]
    found, completions, cut = [], 0.0, []
    for lines in lines_of("countdown").values():
        sizes = [line["num_tokens"] / line["completions/mean_length"] for line in lines]
        found.append(sum(line["reward"] * size for line, size in zip(lines, sizes, strict=True)))
        completions += sum(sizes)
        cut.append(100 * mean(line["verdict/truncated"] for line in lines))
    public = kept_rows("public-task/easy.csv")
    best = max(public, key=lambda line: int(line["correct"]))
    rows = [
        (
            "LoRA beside full training, `sgt`, 20 steps",
            f"{lora:.1f} instead of {peak_gib(first):.1f} GiB; in steps 16 to 20, `qwen` and "
            f"`smol` solve {rates[0]}% instead of {rates[1]}%",
        ),
        (
            "countdown, a public task, `sgt`, 20 steps",
            f"{sum(found):.0f} of {completions:,.0f} completions are correct; "
            f"{cut[0]:.0f}% and {cut[1]:.0f}% were cut off at 64 tokens",
        ),
        (
            "the easiest problems of six tasks of reasoning-gym, without training",
            f"the best case is {best['model']} on `{best['task']}`, with {best['correct']} of "
            f"{best['completions']} completions correct",
        ),
    ]
    return table(("tried once", "what came out"), rows)


def gpu_models() -> list[str]:
    """What was measured on a GPU with two models."""
    figures = gpu()
    names = ("qwen2.5", "smollm2")
    decode, memory, update = (
        [figures[f"{part}-{name}"] for name in names] for part in ("decode", "memory", "update")
    )
    rows = [
        ["milliseconds per token of 128 rows, recorded"]
        + [f"{d['recorded_ms']:.1f}" for d in decode],
        ["the same, one kernel started after the other"] + [f"{d['plain_ms']:.1f}" for d in decode],
        ["mean gap between sampled and scored log-probs, nats"]
        + [f"{d['gap_recorded']:.3f}" for d in decode],
        ["seconds of a step's learning, 128 completions"]
        + [f"{u['seconds_4096']:.1f}" for u in update],
        ["GiB at the peak of learning, measured"] + [f"{m['peak']:.1f}" for m in memory],
    ]
    return table(("", "Qwen2.5-0.5B", "SmolLM2-360M"), rows)


# --------------------------------------------------------------------------------- the course


def course_rows(modes: dict[str, tuple], blanks: int) -> list[list[object]]:
    """The rows of a table of the course, without intervals; the first one is before training.

    modes: name -> its comparison, its mode, and some cells that describe it; blanks: their number.
    """
    starts = [f"{before(of):.0f}" for of in ("strong", "all")]
    rows: list[list[object]] = [["before training", *[""] * (blanks + 2), *starts]]
    for name, (source, mode, *described) in modes.items():
        counts = [cell(closed_spots, source, mode, spots) for spots in ("days bags", "sold eats")]
        ends = [cell(rounded, source, mode, of) for of in ("strong", "all")]
        rows.append([name, *described, *counts, *ends])
    return rows


ENDS = ("`days` and `bags` closed", "`sold` and `eats` closed", "strong skills", "all skills")
GRPO, NOTHING, OWN_CORRECT = "GRPO", "nothing", "imitates correct ones, weight 1"
FAILED = "if all attempts failed"
PEER = {  # name -> its comparison and mode, and what it learns from
    "`solo`": ("modes", "solo", "its own attempts"),
    "`replay`": ("modes", "replay", "its own attempts and its own earlier solutions"),
    "`sgt`": ("modes", "sgt", "its own attempts and the peer's solutions"),
    "`sft`": ("modes", "sft", "the peer's solutions"),
}
CONTROLS = {  # what the parts of SGT do: name -> its comparison and mode, and three parts
    "`sgt`": ("modes", "sgt", GRPO, FAILED, 0.1),
    "weight 1": ("modes", WEIGHT_1, GRPO, FAILED, 1),
    "weight 0.01": ("modes", WEIGHT_001, GRPO, FAILED, 0.01),
    "without a gate": (*CELLS["grpo", "always-0.1"], GRPO, "always", 0.1),
    "without its own attempts": (*CELLS["none", "gate"], NOTHING, FAILED, 0.1),
}
WITHOUT_GRPO = {  # name -> its comparison and mode, and what it does
    "`sft`": ("modes", "sft", NOTHING, "always, weight 1"),
    "`rft`": ("modes", "rft", OWN_CORRECT, "always, weight 1"),
    "`rft` with the gate": (*CELLS["correct", "gate"], OWN_CORRECT, f"{FAILED}, weight 0.1"),
    "`sgt`": ("modes", "sgt", GRPO, f"{FAILED}, weight 0.1"),
}


def tutorial_peer() -> list[str]:
    """Modes with and without a peer."""
    return table(("mode", "learns from", *ENDS), course_rows(PEER, 1))


def tutorial_controls() -> list[str]:
    """What each part of SGT contributes. All of these runs close the same blind spots."""
    header = ("`sgt` and its controls", "own attempts", "imitates the peer", "weight", *ENDS[2:])
    return table(header, [row[:4] + row[-2:] for row in course_rows(CONTROLS, 3)])


def tutorial_without_grpo() -> list[str]:
    """Modes that learn from their own attempts without GRPO, or not at all."""
    header = ("mode", "own attempts", "imitates the peer", *ENDS)
    return table(header, course_rows(WITHOUT_GRPO, 2))


HINTS_IN_COURSE = {  # name -> its comparison and mode, and what it imitates
    "`solo`": ("modes", "solo", "nothing"),
    "`sgt`": ("modes", "sgt", "the peer's solution"),
    "`sgt`, weight 0.01": ("modes", WEIGHT_001, "the peer's solution"),
    "`rft` with the gate": (
        *CELLS["correct", "gate"],
        "the peer's solution, and its own correct completions",
    ),
    "`hint`": ("modes", "hint", "the beginning, and the learner's own rest"),
    "without a beginning": ("modes", "hint-anew", "the learner's own second attempt"),
    "with the peer's whole solution": ("hint controls", "hint-whole", "the peer's solution"),
}


def tutorial_hint() -> list[str]:
    """`hint` and two of its controls, without intervals."""
    return table(("mode", "imitates", *ENDS), course_rows(HINTS_IN_COURSE, 1))


def tutorial_calculation() -> list[str]:
    """What attempts at strong skills get right: the operation, and the calculation."""
    rows = []
    for mode in ("solo", "sgt", "sft"):
        cells = []
        for asks_for_sum in (False, True):
            shares = right_shares("sums and differences", mode, "strong", asks_for_sum)
            cells += [f"{share:.0f}%" for share in shares]
        rows.append((f"`{mode}`", *cells))
    header = (
        "", "products and quotients: right operation", "of these, calculated correctly",
        "sums and differences: right operation", "of these, calculated correctly",
    )  # fmt: skip
    return table(header, rows)


def tutorial_pairs() -> list[str]:
    """Where modes end by how differently the peer writes, without intervals."""
    pairs = {
        "both alike": "twins",
        "sums and differences in two ways": "modes",
        "everything in two ways": "everything",
    }
    starts = [mean(scores(source, "solo", column="before")) for source in pairs.values()]
    rows = [("before training", *(f"{start:.0f}" for start in starts))]
    names = {mode: f"`{mode}`" for mode in ("solo", "sft", "rft", "sgt")}
    names |= {WEIGHT_001: "`sgt`, weight 0.01", "hint": "`hint`"}
    for mode, name in names.items():
        rows.append((name, *(cell(rounded, source, mode) for source in pairs.values())))
    return table(("the two models write", *pairs), rows)


def rounded(source: str, mode: str, of: str = "all") -> str:
    """Where a mode ends, without its interval."""
    return f"{end(source, mode, of).mean:.0f}"


def closed_spots(source: str, mode: str, skills: str) -> str:
    """In how many cases two blind spots, one of each policy, are closed in a comparison."""
    owner = {skill: policy for policy, names in SPOTS.items() for skill in names}
    found = [cases(source, mode, f"{owner[skill]} {skill}")[0] for skill in skills.split()]
    return f"{sum(map(sum, found))} of {sum(map(len, found))}"


def tutorial_differences() -> list[str]:
    """How far modes are apart on the test set."""
    pairs = (
        ("sgt", "solo"), ("sgt", "replay"), ("sgt", "sft"), ("sgt", "rft"), ("hint", "solo"),
        ("hint", "sgt"),
    )  # fmt: skip
    rows = [(f"`{one}` minus `{two}`", difference("result 1", one, two)) for one, two in pairs]
    return table(("", "points of pass@1"), rows)


def tutorial_one_interval() -> list[str]:
    """The scores of two modes by seed, to compute an interval by hand."""
    solo, hint = (scores("modes", mode) for mode in ("solo", "hint"))
    rows = [
        (seed, *(f"{score:.1f}" for score in of_seed))
        for seed, *of_seed in zip(range(81, 86), solo, hint, strict=True)
    ]
    return table(("seed", "`solo`", "`hint`"), rows)


TABLES = {
    "readme-headline": readme_headline,
    "readme-modes": readme_modes,
    "result-1": result_1,
    "result-1-differences": result_1_differences,
    "hint-controls": hint_controls,
    "hint-choices": hint_choices,
    "operations": operations,
    "cost": cost,
    "hotter": hotter,
    "trl": trl,
    "result-2": result_2,
    "gate-or-weight": gate_or_weight,
    "result-3": result_3,
    "result-4": result_4,
    "result-5": result_5,
    "result-6": result_6,
    "result-6-everything": result_6_everything,
    "two-objectives": two_objectives,
    "result-7": result_7,
    "result-8": result_8,
    "protection": protection,
    "result-9": result_9,
    "predictions": predictions,
    "twins-peers": twins_peers,
    "twins-modes": twins_modes,
    "twins-dial": twins_dial,
    "claims": claims,
    "both-ways": both_ways,
    "real-gains": real_gains,
    "pilots": pilots,
    "gpu": gpu_models,
    "tutorial-peer": tutorial_peer,
    "tutorial-controls": tutorial_controls,
    "tutorial-without-grpo": tutorial_without_grpo,
    "tutorial-hint": tutorial_hint,
    "tutorial-calculation": tutorial_calculation,
    "tutorial-pairs": tutorial_pairs,
    "tutorial-differences": tutorial_differences,
    "tutorial-one-interval": tutorial_one_interval,
}
PLACE = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end: \1 -->", re.DOTALL)


def rewrite(page: str) -> str:
    """A page with all of its tables computed anew. KeyError if a marker has an unknown name."""

    def today(found: re.Match) -> str:
        lines = "".join(f"{line}\n" for line in TABLES[found[1]]())
        return f"<!-- table: {found[1]} -->\n{lines}<!-- end: {found[1]} -->"

    return PLACE.sub(today, page)


def stale(page: str) -> list[str]:
    """The names of a page's tables that would change if they were computed anew."""
    todays = {name: body for name, body in PLACE.findall(rewrite(page))}
    return [name for name, body in PLACE.findall(page) if body != todays[name]]


def main(arguments: Sequence[str]) -> int:
    """Rewrite the tables, or, with --check, print which of them are stale."""
    found = 0
    for document in DOCUMENTS:
        page = (ROOT / document).read_text(encoding="utf-8")
        for name in stale(page):
            found += 1
            print(f"{document}: table {name}")
        if "--check" not in arguments:
            (ROOT / document).write_text(rewrite(page), encoding="utf-8")
    return int("--check" in arguments and found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
