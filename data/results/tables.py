"""Write the tables of results in README.md, the two courses and data/results/README.md.

    python data/results/tables.py            # rewrites the tables from the files of this folder
    python data/results/tables.py --check    # names stale tables; exit code 1 if there are any

A table stands between `<!-- table: NAME -->` and `<!-- end: NAME -->`; `TABLES` has a function for
each name. `scores`, `difference` and `cases` compute single numbers for the tables and the tests.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

from mrl.run.blind_spots import CLOSED
from mrl.run.intervals import Estimate, estimate, wilson
from mrl.tiny.pair import BLIND_SPOTS, PAIR, STRONG_SKILLS, THIRD, WEAK_SKILLS
from mrl.tiny.skills import SKILLS

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parents[1]
DOCUMENTS = ("README.md", "TUTORIAL.md", "TUTORIAL_2.md", "data/results/README.md")
FOUR = ("solo", "replay", "sft", "sgt")
KINDS_SHOWN = ("all", "strong", "weak", "blind")  # skills, see `is_meant`
CLOSED_FROM = 100 * CLOSED  # percent on the validation set
DIAL = (0, 1, 3, 10, 30)  # percent of the demonstrations that show a foreign skill correctly
# The controls with a frozen peer: (name in the table, comparison, mode of this comparison)
FROZEN_CONTROLS = (
    ("`solo`", "solo frozen", "solo"),
    *(
        (f"`sft`, learning rate {rate}", "sft rates", f"sft learning_rate={rate}")
        for rate in ("3e-6", "1e-5", "3e-5", "1e-4")
    ),
    ("`sft-own`", "own correct", "sft-own"),
    *(
        (f"`sequence`, RL after step {step}", "sequence frozen", f"sequence sequence.switch={step}")
        for step in (30, 120)
    ),
    *(
        (f"`sgt`, weight {weight}", "sgt weights", f"sgt sgt.imitation_weight={weight}")
        for weight in ("0.01", "0.1", "1")
    ),
)
SAME_SEEDS = {  # mode -> its runs next to the frozen peer with the same seeds as `sft-own`
    "solo": ("solo frozen", "solo"),
    "sft": ("sft rates", "sft learning_rate=3e-5"),
    "sgt": ("sgt weights", "sgt sgt.imitation_weight=0.1"),
}
NO_LOWER = "hacpo without its lower clip bound"
REAL_SEEDS = (1, 2, 3)
REAL_MODES = ("solo", "replay", "sgt")
SPOTS = {policy: BLIND_SPOTS[policy] for policy in PAIR}
REAL_BLIND_SPOTS = {"qwen": ("sold", "days"), "smol": ("eats", "bags")}  # in both-ways/
SGT_RUNS = (
    "sgt-s0", "real-pair/sgt-s1", "real-pair/sgt-s2", "real-pair/sgt-s3",
    "lora", "countdown", "both-ways/sgt-s1",
)  # fmt: skip

# ------------------------------------------------------------------------------ scores by seed

# Name of a comparison in this file -> its table of scores
FILES = {
    "ten": "tiny-pair/ten-seeds.csv",  # seeds 31 to 40
    "five": "tiny-pair/five-seeds.csv",  # seeds 1 to 5
    "frozen": "tiny-pair/frozen-peer.csv",  # qwen-tiny with a frozen llama-tiny
    "liars": "tiny-pair/liars.csv",  # seeds 31 to 35
    "groups of 32": "tiny-pair/group-32.csv",  # seeds 31 to 35
    "sgt weights": "controls/sgt-weights.csv",  # this one and the next three: a frozen peer
    "solo frozen": "controls/solo-frozen.csv",
    "placebo": "controls/placebo.csv",  # this one and the next four: seeds 71 to 75, all learn
    "sequence": "controls/sequence.csv",
    "one tokenizer": "controls/one-tokenizer.csv",
    "prp levels": "controls/prp-levels.csv",
    "three": "controls/three-policies.csv",  # with olmo-tiny
    "sft rates": "controls/sft-rates.csv",
    "own correct": "controls/own-correct.csv",
    "sequence frozen": "controls/sequence-frozen.csv",
    "both ways": "both-ways/five-seeds.csv",
    "frozen smol": "both-ways/frozen-smol.csv",
} | {f"dial {shown}": f"dial/right-{shown}.csv" for shown in DIAL}
KINDS = {
    "strong": STRONG_SKILLS,
    "weak": WEAK_SKILLS,
    "blind": BLIND_SPOTS | REAL_BLIND_SPOTS,
    "foreign": {  # all four strong skills of the peer
        "qwen-tiny": STRONG_SKILLS["llama-tiny"],
        "llama-tiny": STRONG_SKILLS["qwen-tiny"],
    },
}


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
    """The rows of a CSV file of this folder."""
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def kept_scores(
    path: str, mode: str, of: str = "all", split: str = "test", column: str = "value"
) -> list[float]:
    """pass@1 in percent, one value per seed: the mean over all that `of` includes."""
    by_seed: dict[str, list[float]] = {}
    for line in kept_rows(path):
        is_score = (line["mode"], line["split"], line["metric"]) == (mode, split, "pass@1")
        if is_score and is_meant(of, line["policy"], line["skill"]):
            by_seed.setdefault(line["seed"], []).append(float(line[column]))
    return [mean(values) for values in by_seed.values()]


def scores(
    source: str, mode: str, of: str = "all", split: str = "test", column: str = "value"
) -> list[float]:
    """pass@1 of a mode in one of the comparisons of `FILES`, one value per seed."""
    if source == "own correct" and mode in SAME_SEEDS:
        source, mode = SAME_SEEDS[mode]
    path, first = FILES[source], None
    if (source, mode) == ("five", NO_LOWER):
        path, mode = "tiny-pair/five-seeds-no-lower-end.csv", "hacpo"
    elif (source, mode) == ("five", "no-gate"):
        path = "tiny-pair/no-gate.csv"
    elif (source, mode) == ("frozen", "solo"):  # the same runs, because `solo` has no peer
        path = FILES["ten"]
    elif (source, mode) == ("groups of 32", "groups of 8"):
        path, mode, first = FILES["ten"], "solo", 5
    elif source == "liars" and mode in FOUR:  # the runs with honest peers
        path, first = FILES["ten"], 5

    found = kept_scores(path, mode, of, split, column)[:first]
    if not found:
        raise ValueError(f"{path} has no pass@1 of {mode!r} for {of!r} on {split!r}")
    return found


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


def closed(*which: str, least: float = CLOSED_FROM) -> str:
    """In how many cases (a skill with a seed) the skill is closed, for example `11 of 40`.

    which: the arguments of `cases`.
    """
    found = [closed_at_end for of_skill in cases(*which, least=least) for closed_at_end in of_skill]
    return f"{sum(found)} of {len(found)}"


def runs_closed(*which: str) -> str:
    """In how many runs all skills that are included are closed, for example `10 of 10`.

    which: the arguments of `cases`.
    """
    runs = [all(of_run) for of_run in zip(*cases(*which), strict=True)]
    return f"{sum(runs)} of {len(runs)}"


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


def readme_headline() -> list[str]:
    """The main result, a row per mode: a phone has no room for a column per mode."""
    names = ("RL alone", "RL + replay", "imitate the peer, no RL", "RL + imitate the peer")
    rows = [
        (
            f"{name} (`{mode}`)",
            f"**{runs_closed('ten', mode)}**",
            closed("ten", mode),
            closed("ten", mode, "blind", "test"),
            estimate(scores("ten", mode)),
        )
        for name, mode in zip(names, FOUR, strict=True)
    ]
    return table(("mode", "all four", "blind spots", "test set", "pass@1"), rows)


def readme_modes() -> list[str]:
    """Each mode with its gain over `solo`. Modes that were not run with five seeds are left out."""
    arxiv = "https://arxiv.org/abs/"
    mrl = f"[MRL]({arxiv}2605.07244)"
    hacpo = f"[HACPO]({arxiv}2603.02604)"
    graft = f"[GRAFT]({arxiv}2609.37868)"
    shared = {
        "solo": ("GRPO", "nothing"),
        "solo-x2": ("control", "nothing; twice the attempts"),
        "replay": ("control", "nothing; the policy's own earlier solutions come back"),
        "sft": ("control", "verified solutions; no RL"),
        "sgt": (mrl, "verified solutions"),
        "xgrpo": (f"{mrl}, *reconstructed*", "mean rewards, no text"),
        "prp": (f"{mrl}, *reconstructed*", "completions and their probabilities"),
        "naive": (hacpo, "completions, treated as the model's own"),
        "hacpo": (hacpo, "completions and their probabilities"),
        "graft": (graft, "whole groups"),
    }
    rows = [
        (f"`{mode}`", *what, "" if mode == "solo" else difference("five", mode, "solo"))
        for mode, what in shared.items()
    ]
    return table(("mode", "paper", "what is shared", "gain"), rows)


def tutorial_closed() -> list[str]:
    """Runs in which all four blind spots are closed."""
    names = ("RL alone", "with replay", "with a peer, without RL", "with a peer")
    rows = [
        (f"{name} (`{mode}`)", runs_closed("ten", mode))
        for name, mode in zip(names, FOUR, strict=True)
    ]
    return table(("mode", "runs in which all four are closed"), rows)


def tutorial_frozen() -> list[str]:
    """A skill that the frozen peer cannot show."""
    header = ("`llama-tiny` frozen", "`qwen-tiny` on `eats` after 240 steps, in percent")
    rows = [
        (name, estimate(scores("frozen", mode, "qwen-tiny eats", "validation")))
        for name, mode in (("nothing from its own attempts (`sft`)", "sft"), ("`sgt`", "sgt"))
    ]
    return table(header, rows)


def tutorial_controls() -> list[str]:
    """What `sgt` gains over each control."""
    rows = [(f"`{control}`", difference("ten", "sgt", control)) for control in FOUR[:3]]
    return table(("`sgt` compared with", "points of pass@1"), rows)


def tutorial_dial() -> list[str]:
    """What `sgt` gains over `solo` on five pairs."""
    header = ("examples that show the peer's skills correctly", "`sgt` above `solo`, points")
    return table(header, [(f"{s}%", difference(f"dial {s}", "sgt", "solo")) for s in DIAL])


def tutorial_distill() -> list[str]:
    """Where distillation ends with three seeds."""
    ends = [
        f"{mean(scores['all'] for scores in of_run.values()):.1f}"
        for of_run in distilled().values()
    ]
    alone = [f"{score:.1f}" for score in scores("ten", "solo")]
    header = ("seed", "distillation, percent", "`solo`, percent")
    return table(header, zip(distilled(), ends, alone, strict=False))


def distilled() -> dict[str, dict[str, dict[str, float]]]:
    """Seed -> policy -> percent by skill on the test set, after distillation."""
    kept = (RESULTS / "tiny-pair" / "distill.txt").read_text(encoding="utf-8")
    ends: dict[str, dict[str, dict[str, float]]] = {}
    for seed, policy, found in re.findall(r"^seed (\d+), (\S+) (\{'all'.*\})$", kept, re.M):
        ends.setdefault(seed, {})[policy] = json.loads(found.replace("'", '"'))
    return ends


def tutorial_real_early() -> list[str]:
    """What `smol` solves soon after the start."""
    header = ("`smol` solves in steps 11 to 20, percent", *(f"seed {s}" for s in REAL_SEEDS))
    rows = [
        (mode, *(f"{solve_rate(f'real-pair/{mode}-s{s}', 'smol', 11, 20):.0f}" for s in REAL_SEEDS))
        for mode in REAL_MODES
    ]
    return table(header, rows)


def closed_spots() -> list[str]:
    """Blind spots closed, by mode."""

    def rows() -> Iterator[list[object]]:
        cells = []
        for mode in FOUR:
            runs = count(runs_closed("ten", mode))
            low, high = wilson(runs, 10)
            cells.append(f"{runs} ({100 * low:.0f} to {100 * high:.0f}%)")
        yield ["runs of 10 with all four closed", *cells]
        for policy, skills in SPOTS.items():
            for skill in skills:
                counts = [count(closed("ten", mode, f"{policy} {skill}")) for mode in FOUR]
                yield [f"runs of 10 with `{skill}` of `{policy}` closed", *counts]
        for split, least, more in (
            ("validation", 25, " (10% gives the same)"),
            ("validation", 50, ""),
            ("validation_wording", 25, ""),
            ("test", 25, ""),
        ):
            counts = [count(closed("ten", mode, "blind", split, least=least)) for mode in FOUR]
            yield [f"cases of 40 on the {NAMES[split]}, {least}% or more{more}", *counts]

    return table(("closed blind spots", *FOUR), rows())


NAMES = {
    "validation": "validation set",
    "validation_wording": "validation set with new wording",
    "test": "test set",
}
PARTS_OF_TEN = (  # what the tables of ten seeds show
    ("validation set, all skills", "all", "validation"),
    ("test set, all skills", "all", "test"),
    ("validation set, strong skills", "strong", "validation"),
    ("validation set, weak skills", "weak", "validation"),
    ("test set, blind spots", "blind", "test"),
)


def ten_scores() -> list[str]:
    """pass@1 of four modes."""
    rows = []
    for name, of, split in PARTS_OF_TEN:
        starts = mean(x for mode in FOUR for x in scores("ten", mode, of, split, "before"))
        ends = [estimate(scores("ten", mode, of, split)) for mode in FOUR]
        rows.append([name, f"{starts:.1f}", *ends])
    return table(("pass@1 in percent", "before", *FOUR), rows)


def ten_differences() -> list[str]:
    """How far the four modes are apart."""
    pairs = (
        ("sgt", "solo"), ("sgt", "replay"), ("sft", "sgt"), ("sft", "solo"), ("replay", "solo"),
    )  # fmt: skip
    parts = (
        *PARTS_OF_TEN[:2],
        ("test set, all skills of `qwen-tiny`", "qwen-tiny all", "test"),
        ("test set, all skills of `llama-tiny`", "llama-tiny all", "test"),
        *PARTS_OF_TEN[2:4],
        ("test set, weak skills", "weak", "test"),
        ("validation set, all skills except the blind spots", "others", "validation"),
        ("test set, all skills except the blind spots", "others", "test"),
        PARTS_OF_TEN[4],
    )
    rows = [
        [name, *(difference("ten", *pair, of, split) for pair in pairs)]
        for name, of, split in parts
    ]
    return table(("points", *(f"{one} above {two}" for one, two in pairs)), rows)


def frozen_peer() -> list[str]:
    """What a learner gets from a peer that stays as weak as it was."""
    rows = []
    for name, of, split in (
        ("test set, all skills", "all", "test"),
        ("validation set, strong skills", "strong", "validation"),
        ("validation set, blind spots", "blind", "validation"),
        ("validation set, `eats` (strong)", "eats", "validation"),
        ("validation set, `bags` (strong)", "bags", "validation"),
    ):
        which = f"qwen-tiny {of}", split
        ends = [estimate(scores("frozen", mode, *which)) for mode in ("solo", "sft", "sgt")]
        gaps = [difference("frozen", "sgt", other, *which) for other in ("sft", "solo")]
        rows.append([name, *ends, *gaps])
    return table(("`qwen-tiny`", "solo", "sft", "sgt", "sgt above sft", "sgt above solo"), rows)


def frozen_controls() -> list[str]:
    """`solo`, rates of `sft`, switches of `sequence` and weights of `sgt`, with a frozen peer."""
    header = (
        "`qwen-tiny`", "`eats`, validation", "blind spots, validation", "`eats`, test",
        "blind spots, test", "all skills, test", "runs with `sold` closed",
        "runs with `days` closed",
    )  # fmt: skip
    rows = []
    for name, source, mode in FROZEN_CONTROLS:
        cells = [
            estimate(scores(source, mode, f"qwen-tiny {of}", split))
            for of, split in (
                ("eats", "validation"),
                ("blind", "validation"),
                ("eats", "test"),
                ("blind", "test"),
                ("all", "test"),
            )
        ]
        runs = [closed(source, mode, f"qwen-tiny {skill}") for skill in ("sold", "days")]
        rows.append((name, *cells, *runs))
    return table(header, rows)


def placebo() -> list[str]:
    """What is imitated: nothing, another skill, another prompt of the skill, the right solution."""
    found: dict[str, list[int]] = {}  # mode -> [prompts that SGT would rescue, those imitated]
    for row in kept_rows("controls/placebo-counts.csv"):
        counts = found.setdefault(row["mode"], [0, 0])
        counts[0] += int(row["rescuable"])
        counts[1] += int(row["imitated"])

    rows = []
    for name, source, mode in (
        ("nothing (`solo`)", "ten", "solo"),
        ("a solution of another skill (`placebo`)", "placebo", "placebo"),
        ("a solution of the same skill (`placebo-same-skill`)", "placebo", "placebo-same-skill"),
        ("a solution of this prompt (`sgt`)", "ten", "sgt"),
    ):
        cells: list[object] = []
        for policy, skills in SPOTS.items():
            cells += [closed(source, mode, f"{policy} {skill}") for skill in skills]
        cells += [estimate(scores(source, mode, of)) for of in ("blind", "weak", "strong", "all")]
        rescuable, imitated = found.get(mode, [0, 0])
        cells.append(f"{100 * imitated / rescuable:.0f}%" if rescuable else "")
        rows.append((name, *cells))
    spots = [f"`{skill}`" for skills in SPOTS.values() for skill in skills]
    header = (
        "imitated after a failed prompt", *spots, "blind spots, test", "weak skills, test",
        "strong skills, test", "all skills, test", "rescues replaced",
    )  # fmt: skip
    return table(header, rows)


def placebo_operations() -> list[str]:
    """How many of the placebos' texts begin with the operation that the failed prompt needs."""
    needed = {skill.name: skill.operation[1] for skill in SKILLS}  # "-" of "a-b"
    rows = []
    for policy, skills in SPOTS.items():
        for skill in skills:
            cells: list[object] = [f"`{skill}`", {"-": "a - b", "*": "a * b"}[needed[skill]]]
            for mode in ("placebo", "placebo-same-skill"):
                found: dict[str, int] = {}
                for row in kept_rows("controls/placebo-operations.csv"):
                    if (row["mode"], row["policy"], row["skill"]) == (mode, policy, skill):
                        found[row["first operation"]] = int(row["imitated"])
                fitting, every = found.get(needed[skill], 0), sum(found.values())
                cells.append(f"{fitting:,} of {every:,} ({100 * fitting / every:.0f}%)")
                cells.append(closed("placebo", mode, f"{policy} {skill}"))
            rows.append(cells)
    header = (
        "blind spot", "asks for", "fitting texts, `placebo`", "closed",
        "fitting texts, `placebo-same-skill`", "closed",
    )  # fmt: skip
    return table(header, rows)


def sequence() -> list[str]:
    """Imitation first and RL afterwards, next to `sft` and `sgt`; both models learn."""
    kinds = ("all", "strong", "weak", "loses", "blind")
    rows = []
    for name, source, mode in (
        ("`sft`", "ten", "sft"),
        ("`sequence`", "sequence", "sequence"),
        ("`sgt`", "ten", "sgt"),
        ("`sft`, claims not checked", "liars", "sft believed"),
        ("`sequence`, claims not checked", "sequence", "sequence believed"),
        ("`sgt`, claims not checked", "liars", "sgt believed"),
    ):
        cells = [estimate(scores(source, mode, of)) for of in kinds]
        rows.append((name, *cells, closed(source, mode)))
    names = ("all skills", "strong skills", "weak skills", "`loses`", "blind spots")
    return table(("test set", *names, "blind spots closed"), rows)


def one_tokenizer() -> list[str]:
    """`solo` and `prp`, with two tokenizers and with one for both models."""
    rows = []
    for name, source in (("two tokenizers", "five"), ("one tokenizer", "one tokenizer")):
        for mode in ("solo", "prp"):
            cells = [estimate(scores(source, mode, of)) for of in KINDS_SHOWN]
            above = difference(source, "prp", "solo") if mode == "prp" else ""
            rows.append((f"{name}, `{mode}`", *cells, above, closed(source, mode)))
    kinds = ("all skills", "strong skills", "weak skills", "blind spots")
    return table(("test set", *kinds, "above `solo`", "blind spots closed"), rows)


def prp_levels() -> list[str]:
    """`prp` by the unit over which its ratio is computed, next to `solo` and `sgt`."""
    rows = []
    for name, source, mode in (
        ("`solo`", "prp levels", "solo"),
        ("`prp`, token", "prp levels", "prp token"),
        ("`prp`, chunk (default)", "prp levels", "prp chunk"),
        ("`prp`, chunk, not below 0.5", "prp levels", "prp-floor"),
        ("`prp`, whole completion", "prp levels", "prp sequence"),
        ("`sgt`", "ten", "sgt"),
    ):
        cells = [estimate(scores(source, mode, of)) for of in KINDS_SHOWN]
        above = "" if mode == "solo" else difference(source, mode, "solo")
        rows.append((name, *cells, above, closed(source, mode)))
    kinds = ("all skills", "strong skills", "weak skills", "blind spots")
    return table(("test set", *kinds, "above `solo`", "blind spots closed"), rows)


def norms() -> list[str]:
    """PRP's gradient norms: the median and the largest of each run and policy."""
    rows = []
    for name, mode in (
        ("`prp`, token", "prp token"),
        ("`prp`, chunk (default)", "prp chunk"),
        ("`prp`, chunk, not below 0.5", "prp-floor"),
        ("`prp`, whole completion", "prp sequence"),
    ):
        of_mode = [row for row in kept_rows("controls/norms.csv") if row["mode"] == mode]
        medians = sorted(float(row["median"]) for row in of_mode)
        rows.append((name, f"{medians[0]:.2f} to {medians[-1]:.2f}", largest_norms(mode)))
    return table(("gradient norm", "median of a run", "largest of a run"), rows)


def ratios() -> list[str]:
    """PRP's ratios before training, in the blind spots and the strong skills."""
    rows = []
    for row in kept_rows("controls/ratios.csv"):
        skill = row["skill"]
        if skill != "strong skills":
            skill = f"`{skill}`"
        smallest = [f"{float(row[unit]):.5f}" for unit in ("token", "chunk")]
        whole = f"{float(row['whole completion']):.2f}"
        rows.append((f"{skill} of `{row['policy']}`", row["completions"], *smallest, whole))
    header = ("skill", "completions", "lowest token", "lowest chunk", "whole completion")
    return table(header, rows)


def policies() -> list[str]:
    """One, two and three policies: scores on the test set, and what a step costs."""
    rows = []
    for row in kept_rows("controls/three-policies-cost.csv"):
        mode, count = row["mode"], int(row["policies"])
        names = (*PAIR, THIRD)[:count]
        source = "three" if count == 3 else "ten"
        cells = [estimate(scores(source, mode, f"{name} all")) for name in names]
        every = "qwen-tiny blind" if count == 1 else "blind"
        rows.append(
            (
                f"{count}, `{mode}`",
                *cells,
                *[""] * (3 - count),
                closed(source, mode, every),
                row["seconds"],
                f"{float(row['bytes']) / 1000:.0f}",
            )
        )
    names = [f"`{name}`" for name in (*PAIR, THIRD)]
    return table(("policies, mode", *names, "blind spots closed", "seconds", "kB"), rows)


def three_spots() -> list[str]:
    """The blind spots of three policies: who knows them, and when `sgt` closes them."""
    rows = []
    for policy, skills in BLIND_SPOTS.items():
        for skill in skills:
            knowing = [f"`{name}`" for name, strong in STRONG_SKILLS.items() if skill in strong]
            spot = f"{policy} {skill}"
            rows.append(
                (
                    f"`{skill}` of `{policy}`",
                    " and ".join(knowing),
                    closed("three", "solo", spot),
                    closed("three", "sgt", spot),
                    closing_step("three", "sgt", policy, skill),
                    closing_step("ten", "sgt", policy, skill) if policy in PAIR else "",
                )
            )
    header = (
        "blind spot", "known to", "closed, `solo`", "closed, `sgt`", "at step",
        "at step, two policies",
    )  # fmt: skip
    return table(header, rows)


def closing_step(source: str, mode: str, policy: str, skill: str) -> str:
    """The step at which a blind spot closed, as a mean over runs. It must close in all of them."""
    steps = [
        int(row["value"])
        for row in kept_rows(FILES[source])
        if row["metric"] == "closed at step"
        and (row["mode"], row["policy"], row["skill"]) == (mode, policy, skill)
    ]
    return f"{mean(steps):.0f}"


def largest_norms(mode: str) -> str:
    """The lowest and the highest of the largest gradient norms of a mode's runs."""
    largest = [
        float(row["largest"]) for row in kept_rows("controls/norms.csv") if row["mode"] == mode
    ]
    return f"{min(largest):.0f} to {max(largest):,.0f}"


def leaderboard() -> list[str]:
    """The rows of `leaderboard.csv`, best first: the shipped modes, and those of other people."""
    rows = kept_rows("leaderboard.csv")
    rows = sorted(rows, key=lambda row: -float(row["pass@1, test"].split()[0]))
    return table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def liars() -> list[str]:
    """Scores with peers that claim failures as successes."""
    names = {
        "`solo`": "solo",
        "`sft`": "sft",
        "`sft`, claims not checked": "sft believed",
        "`sft-own`": "sft-own",
        "`sft-own`, claims not checked": "sft-own believed",
        "`sgt`": "sgt",
        "`sgt`, claims checked again": "sgt checked",
        "`sgt`, claims not checked": "sgt believed",
        "`sgt` without its gate, claims not checked": "no-gate believed",
        "the same, with an imitation weight of 1": "no-gate weight 1",
    }
    rows = [
        [name, *(estimate(scores("liars", mode, of)) for of in ("all", "strong", "blind"))]
        for name, mode in names.items()
    ]
    return table(("test set", "all skills", "strong skills", "blind spots"), rows)


def liars_differences() -> list[str]:
    """How many points incorrect solutions cost, and what protects from them."""
    pairs = {
        "`sft` with honest peers above `sft` with claims not checked": ("sft", "sft believed"),
        "`sft-own` with honest peers above `sft-own` with claims not checked": (
            "sft-own", "sft-own believed",
        ),
        "`solo` above `sft` with claims not checked": ("solo", "sft believed"),
        "`sgt` with honest peers above `sgt` with claims not checked": ("sgt", "sgt believed"),
        "`sgt` above `sft`, claims not checked": ("sgt believed", "sft believed"),
        "`sgt` without its gate and with a weight of 1 above `sft`, claims not checked": (
            "no-gate weight 1", "sft believed",
        ),
        "`sgt` without its gate, with a weight of 0.1 above a weight of 1": (
            "no-gate believed", "no-gate weight 1",
        ),
        "`sft-own` above `sft`, claims not checked": ("sft-own believed", "sft believed"),
        "`sgt` above `sft-own`, claims not checked": ("sgt believed", "sft-own believed"),
        "`sft-own` above `sgt` without its gate and with a weight of 1, claims not checked": (
            "sft-own believed", "no-gate weight 1",
        ),
    }  # fmt: skip
    parts = ("all", "test"), ("strong", "test"), ("all", "validation")
    rows = [
        [name, *(difference("liars", *pair, *part) for part in parts)]
        for name, pair in pairs.items()
    ]
    header = (
        "points",
        "test set, all skills",
        "test set, strong skills",
        "validation set, all skills",
    )
    return table(header, rows)


def all_modes() -> list[str]:
    """All modes that were run with five seeds, the best first."""
    modes = [NO_LOWER, *dict.fromkeys(line["mode"] for line in kept_rows(FILES["five"]))]
    modes.sort(key=lambda mode: -mean(scores("five", mode)))
    rows = []
    for mode in modes:
        gain = "" if mode == "solo" else difference("five", mode, "solo")
        kinds = [estimate(scores("five", mode, kind)) for kind in ("blind", "weak", "strong")]
        rows.append([mode, estimate(scores("five", mode)), gain, *kinds])
    header = ("mode", "pass@1", "above solo", "blind spots", "weak skills", "strong skills")
    return table(header, rows)


def five_differences() -> list[str]:
    """Differences between modes that the text is about."""
    pairs = {
        "`hacpo` without its lower clip bound above `hacpo`": (NO_LOWER, "hacpo"),
        "`sgt` above `hacpo` without its lower clip bound": ("sgt", NO_LOWER),
        "`naive` above `solo`": ("naive", "solo"),
        "`sgt` above `naive`": ("sgt", "naive"),
        "`sgt` above the same without its gate": ("sgt", "no-gate"),
    }
    rows = [
        [name, *(difference("five", *pair, of) for of in ("all", "blind", "weak", "strong"))]
        for name, pair in pairs.items()
    ]
    return table(("points", "all skills", "blind spots", "weak skills", "strong skills"), rows)


def dial() -> list[str]:
    """Five pairs that were shown more or less of their peers' skills."""
    pairs = (("sgt", "solo"), ("sgt", "replay"), ("sft", "solo"), ("sft", "replay"), ("sgt", "sft"))
    rows = []
    for shown in DIAL:
        ends = [estimate(scores(f"dial {shown}", mode)) for mode in FOUR]
        gaps = [difference(f"dial {shown}", one, other) for one, other in pairs]
        rows.append([f"{shown}%", *ends, *gaps])
    header = ("shown correctly", *FOUR, *(f"{one} above {other}" for one, other in pairs))
    return table(header, rows)


def dial_closed() -> list[str]:
    """How many of the peers' strong skills end closed."""
    rows = [
        [f"{shown}%", *(count(closed(f"dial {shown}", mode, "foreign")) for mode in FOUR)]
        for shown in DIAL
    ]
    return table(("shown correctly", *(f"{mode}, of 24" for mode in FOUR)), rows)


def claims() -> list[str]:
    """What the papers claim. The numbers of the toy are those of TUTORIAL_2, section 13."""
    tiny = [solved_by_peer(["sgt-s0"], policy, 16) for policy in PAIR]
    real = [solved_by_peer(SGT_RUNS[1:4], policy, 8) for policy in ("smol", "qwen")]
    hacpo = difference("five", "hacpo", "solo")
    rows = [
        ("**MRL**, arXiv 2605.07244", "", ""),
        (
            "SGT teaches when all of a policy's own attempts fail",
            f"ten seeds: {difference('ten', 'sgt', 'replay')} above `replay`, "
            f"{difference('ten', 'sgt', 'replay', 'blind')} in the blind spots",
            "holds",
        ),
        (
            "SGT is more than fine-tuning on the peer's solutions",
            f"ten seeds: {difference('ten', 'sft', 'sgt')} below `sft`; next to a frozen peer "
            f"{difference('frozen', 'sgt', 'sft', 'qwen-tiny all')} above, with unchecked claims "
            f"{difference('liars', 'sgt believed', 'sft believed')} above",
            "holds next to a peer that knows less or makes mistakes (but `sft-own` does nearly as "
            "much there); does not hold if both learn and are honest",
        ),
        (
            "SGT does so with little noise",
            "toy: 0.95 groups needed, RL alone 30",
            "holds in the toy",
        ),
        (
            "XGRPO gives a gradient there, but reaches only what the policy samples itself",
            "toy: 100% of groups give an update; the blind spots end at "
            f"{estimate(scores('five', 'xgrpo', 'blind'))}",
            "holds in the toy and on the tiny pair",
        ),
        (
            "XGRPO has little noise",
            "toy: its updates have a spread of 0.257, those of RL alone 0.136; 73 groups needed, "
            "RL alone 30",
            "does not hold in the toy's blind spot",
        ),
        (
            "PRP has the noise of its ratios",
            "toy: the ratio lowers the spread of the updates from 0.236 (`naive`) to 0.220, and "
            "their mean to a nineteenth; tiny pair, the largest gradient norm of a run: "
            f"{largest_norms('prp token')} with a ratio per token, {largest_norms('prp sequence')} "
            "with one per completion",
            "does not hold in the toy, which loses signal; holds on the tiny pair with a ratio per "
            "token",
        ),
        (
            "retokenizing has a cost, the residual, that must be budgeted for",
            "logs: see below the table",
            "cannot be told here: `sgt` needs no aligned log-probs",
        ),
        (
            "SGT's gate leaves a policy's own learning as it is",
            f"on strong skills {difference('five', 'no-gate', 'sgt', 'strong')} below the same "
            f"without its gate, in blind spots {difference('five', 'sgt', 'no-gate', 'blind')} "
            "above",
            "does not hold on this pair; at a weight of 0.1, `sold` is closed only with the gate",
        ),
        ("**HACPO**, arXiv 2603.02604", "", ""),
        (
            "HACPO gains 3.3 points over GSPO with half of its rollouts",
            f"{hacpo} above `solo`, {difference('five', 'hacpo', 'solo-x2')} above `solo-x2`",
            "cannot be told here",
        ),
        (
            "completions that the receiver finds unlikely are better left out",
            "without its lower clip bound `hacpo` ends "
            f"{difference('five', NO_LOWER, 'hacpo')} higher",
            "does not hold on this pair",
        ),
        (
            "pooling without correction (`naive`) ends below the control",
            f"{difference('five', 'naive', 'solo')} above `solo`, on strong skills "
            f"{difference('five', 'solo', 'naive', 'strong')} below, on weak skills "
            f"{difference('five', 'solo', 'naive', 'weak')} below",
            "holds on strong and weak skills, not over all skills",
        ),
        (
            "HACPO's mixed baseline has no bias if the ratio of abilities is the true one",
            "toy, two prompts: bias of 0.00, 0.00 with a copy as peer, of -0.44, +0.44 with a peer "
            "that knows the other prompt",
            "holds, but the condition fails when the models have different skills",
        ),
        (
            "a peer's gradient points uphill if its confidence matches its quality",
            "toy: a correct and an incorrect peer (`tests/test_bandit.py`)",
            "holds; a peer that is sure of a mistake points downhill",
        ),
        ("**GRAFT**, arXiv 2609.37868", "", ""),
        (
            "GRAFT ends above GRPO",
            f"{difference('five', 'graft', 'solo')} above `solo`",
            "cannot be told here",
        ),
        (
            "GRAFT ends above SGT",
            f"{difference('five', 'sgt', 'graft')} below `sgt`",
            "does not hold on this pair",
        ),
        (
            "HACPO ends below GRPO in five of six cases",
            f"{hacpo} above `solo`",
            "cannot be told here",
        ),
        (
            "a peer solves some of the prompts on which all of the receiver's attempts fail "
            "(there 47.9% and 18.7%)",
            f"logs: {tiny[0]}% and {tiny[1]}% of the all-fail groups of the tiny pair, {real[0]}% "
            f"and {real[1]}% of those of `smol` and `qwen`",
            "holds",
        ),
    ]
    return table(("claim", "what was seen", "here"), rows)


def real_pair() -> list[str]:
    """Held-out scores of two pretrained models."""
    header = ("held-out pass@1 in percent", "`qwen`, seeds 1, 2, 3", "`smol`, seeds 1, 2, 3")
    rows = []
    for name, mode, when in (("start", "solo", "before"), *((m, m, "after") for m in REAL_MODES)):
        cells = []
        for policy in ("qwen", "smol"):
            ends = [percent(f"real-pair/{mode}-s{seed}", policy, when) for seed in REAL_SEEDS]
            cells.append(", ".join(f"{end:.1f}" for end in ends))
        rows.append([name, *cells])
    return table(header, rows)


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


def lora() -> list[str]:
    """LoRA and full training for 20 steps."""
    runs = {"LoRA": "lora", "full training": "real-pair/sgt-s3"}
    rows = []
    for name, run in runs.items():
        peak = peak_gib(lines_of(run)["smol"][:20])
        rates = [f"{solve_rate(run, policy, 16, 20):.0f}%" for policy in ("qwen", "smol")]
        rows.append([name, f"{peak:.1f} GiB", *rates])
    header = ("20 steps", "memory", "`qwen` solves in steps 16 to 20", "`smol` solves")
    return table(header, rows)


def both_ways() -> list[str]:
    """Two pretrained models with two blind spots each."""
    starts = [
        estimate(scores("both ways", "sgt", f"{policy} all", "validation", "before"))
        for policy in REAL_BLIND_SPOTS
    ]
    rows: list[list[object]] = [["start", 0, *starts]]
    for mode in FOUR:
        ends = [
            estimate(scores("both ways", mode, f"{policy} all", "validation"))
            for policy in REAL_BLIND_SPOTS
        ]
        rows.append([mode, count(closed("both ways", mode)), *ends])
    header = ("", "blind spots closed, of 20", "`qwen`, held-out pass@1 in percent", "`smol`")
    return table(header, rows)


def both_ways_run() -> list[str]:
    """One run of `sgt` with this pair."""
    lines = lines_of("both-ways/sgt-s1")
    steps = {}
    for policy, skill in ((p, s) for p, skills in REAL_BLIND_SPOTS.items() for s in skills):
        rates = ((line["step"], line.get(f"skill/{skill}") or 0) for line in lines[policy])
        steps[skill] = next(step for step, rate in rates if rate >= CLOSED_FROM / 100)
    rows = [
        ["blind spots", *(", ".join(f"`{s}`" for s in of) for of in REAL_BLIND_SPOTS.values())],
        [
            "first step with a solve rate of 25% or more",
            *(", ".join(str(steps[s]) for s in of) for of in REAL_BLIND_SPOTS.values()),
        ],
        ["solutions of the peer imitated", *(total(lines[p], "rescues") for p in REAL_BLIND_SPOTS)],
    ]
    return table(("`sgt`, seed 1", "`qwen`", "`smol`"), rows)


def both_ways_frozen() -> list[str]:
    """The same pair with a frozen `smol`."""
    rows = []
    for name, of in (("all skills", "qwen all"), ("`eats`", "qwen eats")):
        ends = [estimate(scores("frozen smol", m, of, "validation")) for m in ("sft", "sgt")]
        rows.append([name, *ends, difference("frozen smol", "sgt", "sft", of, "validation")])
    return table(("`qwen`, held-out pass@1 in percent", "sft", "sgt", "sgt above sft"), rows)


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


def countdown() -> list[str]:
    """A pilot on a public task."""
    columns = []
    for lines in lines_of("countdown").values():
        sizes = [line["num_tokens"] / line["completions/mean_length"] for line in lines]
        correct = sum(line["reward"] * size for line, size in zip(lines, sizes, strict=True))
        cut = 100 * mean(line["verdict/truncated"] for line in lines)
        columns.append((f"{sum(sizes):,.0f}", f"{correct:.0f}", f"{cut:.0f}%"))
    names = ("completions", "correct expressions", "completions that were cut off")
    header = ("20 steps of `sgt`", *(f"`{policy}`" for policy in lines_of("countdown")))
    return table(header, zip(names, *columns, strict=True))


def public_task() -> list[str]:
    """How often two models box an answer of six public tasks, and how often it is correct."""
    found: dict[str, list[int]] = {}  # task -> the counts of both models
    completions = set()
    for row in kept_rows("public-task/easy.csv"):
        found.setdefault(row["task"], []).extend((int(row["boxed"]), int(row["correct"])))
        completions.add(row["completions"])
    (each,) = completions
    rows = [(f"`{task}`", *counts) for task, counts in found.items()]
    rows.append(("all six", *(sum(column) for column in zip(*found.values(), strict=True))))
    header = (
        f"of {each} completions per task", "`smol`: with a box", "correct", "`qwen`: with a box",
        "correct",
    )  # fmt: skip
    return table(header, rows)


TABLES = {
    "readme-headline": readme_headline,
    "readme-modes": readme_modes,
    "tutorial-closed": tutorial_closed,
    "tutorial-frozen": tutorial_frozen,
    "tutorial-controls": tutorial_controls,
    "tutorial-dial": tutorial_dial,
    "tutorial-distill": tutorial_distill,
    "tutorial-real": real_pair,
    "tutorial-real-early": tutorial_real_early,
    "closed": closed_spots,
    "ten-scores": ten_scores,
    "ten-differences": ten_differences,
    "frozen-peer": frozen_peer,
    "frozen-controls": frozen_controls,
    "placebo": placebo,
    "placebo-operations": placebo_operations,
    "sequence": sequence,
    "one-tokenizer": one_tokenizer,
    "prp-levels": prp_levels,
    "norms": norms,
    "ratios": ratios,
    "policies": policies,
    "three-spots": three_spots,
    "leaderboard": leaderboard,
    "liars": liars,
    "liars-differences": liars_differences,
    "all-modes": all_modes,
    "five-differences": five_differences,
    "dial": dial,
    "dial-closed": dial_closed,
    "claims": claims,
    "real-pair": real_pair,
    "real-gains": real_gains,
    "lora": lora,
    "both-ways": both_ways,
    "both-ways-run": both_ways_run,
    "both-ways-frozen": both_ways_frozen,
    "gpu": gpu_models,
    "countdown": countdown,
    "public-task": public_task,
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
