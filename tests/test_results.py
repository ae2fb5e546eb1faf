"""What data/results/README.md, README.md and TUTORIAL.md say was measured is in data/results."""

import ast
import csv
import json
import random
import re
import runpy
import shutil
from functools import cache
from itertools import islice, product
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pytest

import mini_mrl
from mrl.lab.compare_view import Estimate, estimate, wilson
from mrl.run.evaluation import half_width
from mrl.samples import Verdict
from mrl.tiny.pair import BATCH, BLIND_SPOTS, STRONG_SKILLS, UPDATES, WEAK_SKILLS, demonstrations
from mrl.verifier.rewards import last_box, plain_verdict

ROOT = Path(mini_mrl.__file__).parent
RESULTS = ROOT / "data" / "results"
DOCUMENTS = ("README.md", "TUTORIAL.md", "data/results/README.md")


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def words_of(document):
    """The text in one line, so that a sentence can be looked for."""
    return " ".join(text_of(document).split())


PAGE = text_of("data/results/README.md")  # for rows of its tables
WORDS = words_of("data/results/README.md")  # for its sentences
TUTORIAL_PAGE = text_of("TUTORIAL.md")
TUTORIAL = words_of("TUTORIAL.md")
README = words_of("README.md")


def row(*cells):
    """A row of a table, as Markdown has it."""
    return f"| {' | '.join(map(str, cells))} |"


def without_sign(number):
    """For `it ends 5.2 below`."""
    return str(number).removeprefix("-")


def listed(figures):
    """`5, 7 and 9`."""
    *first, last = map(str, figures)
    return f"{', '.join(first)} and {last}"


# --------------------------------------------------------------------------------- the page


def test_every_result_is_explained_and_every_picture_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    assert len(pictures) >= 4
    for path in pictures:
        assert (RESULTS / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    for folder in RESULTS.iterdir():
        if folder.name != "README.md":
            assert folder.name in PAGE, folder.name


def test_links_to_its_sections_lead_somewhere():
    headings = re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    for document in DOCUMENTS:
        links += re.findall(r"\(data/results/README\.md#([^)]+)\)", text_of(document))
    assert len(links) >= 8
    assert set(links) <= anchors


def test_the_pictures_of_the_run_come_from_its_kept_metrics(tmp_path):
    from mrl.lab.report import write_report

    kept = RESULTS / "sgt-s0"
    directory = tmp_path / "sgt-s0"
    shutil.copytree(kept, directory, ignore=shutil.ignore_patterns("figures"))
    write_report(directory)
    drawn = {path.name for path in (directory / "figures").iterdir()}
    shown = {path.name for path in (kept / "figures").iterdir()}
    assert shown <= drawn
    assert all(f"(sgt-s0/figures/{name})" in PAGE for name in shown)


# -------------------------------------------------------------------- scores of the tiny pair

SETS = ("validation", "validation_wording", "test")
FIVE_SEEDS = "tiny-pair/five-seeds.csv"
NO_LOWER_END = "hacpo, no lower end"


def of_all_skills(policy, skill):
    return skill == "all"


def is_strong(policy, skill):
    return skill in STRONG_SKILLS[policy]


def is_weak(policy, skill):
    return skill in WEAK_SKILLS[policy]


def is_blind_spot(policy, skill):
    return skill in BLIND_SPOTS[policy]


def is_no_blind_spot(policy, skill):
    return skill != "all" and skill not in BLIND_SPOTS[policy]


def only(policy, skill):
    """For one skill of one policy."""
    return lambda *of: of == (policy, skill)


ALL_BLIND_SPOTS = [(policy, skill) for policy, skills in BLIND_SPOTS.items() for skill in skills]


@cache
def table(path):
    """The rows of a table under data/results."""
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def kept_scores(
    path, mode, wanted=of_all_skills, split="validation", metric="pass@1", column="value"
):
    """Percent by seed, as the mean of what is wanted, from a table under data/results."""
    by_seed = {}
    for line in table(path):
        of = line["mode"], line["split"], line["metric"]
        if of == (mode, split, metric) and wanted(line["policy"], line["skill"]):
            by_seed.setdefault(line["seed"], []).append(float(line[column]))
    return [mean(values) for values in by_seed.values()]


def measured_modes():
    """The modes with five seeds; a mode that somebody adds has no row until it is measured."""
    return list(dict.fromkeys(line["mode"] for line in table(FIVE_SEEDS)))


class Gap(Estimate):
    """A mean of differences, with its interval."""

    @property
    def clear(self):
        """Whether the interval excludes 0."""
        return self.half < abs(self.mean)


def gap(ones, others):
    """How far some scores are above others, paired by seed."""
    found = estimate([one - other for one, other in zip(ones, others, strict=True)])
    return Gap(found.values, found.mean, found.half)


def five_seeds(mode, wanted=of_all_skills, split="test"):
    """pass@1 by seed: four updates per step, `solo-x2` eight; five seeds."""
    if mode == NO_LOWER_END:
        return kept_scores("tiny-pair/five-seeds-no-lower-end.csv", "hacpo", wanted, split)
    return kept_scores(FIVE_SEEDS, mode, wanted, split)


def gap_of_five(one, other, wanted=of_all_skills, split="test"):
    return gap(five_seeds(one, wanted, split), five_seeds(other, wanted, split))


# Student's t of five seeds by comparisons at once: two-sided 5 %, shared among them (Bonferroni)
QUANTILES = {1: 2.776, 10: 5.598}


# ------------------------------------------------- four modes, ten seeds, and what opened

FOUR = ("solo", "replay", "sft", "sgt")
CLOSED_FROM = 25  # percent on `validation`, as mrl/lab/compare_view.py has it


def ten_seeds(mode, wanted=of_all_skills, split="validation", metric="pass@1"):
    scores = kept_scores("tiny-pair/ten-seeds.csv", mode, wanted, split, metric)
    assert len(scores) == 10
    return scores


def gap_of_ten(one, other, wanted=of_all_skills, split="validation"):
    return gap(ten_seeds(one, wanted, split), ten_seeds(other, wanted, split))


def closed_spots(mode, split="validation", least=CLOSED_FROM):
    """Hole -> with each seed, whether it ends at that many percent or more."""
    return {
        blind_spot: [score >= least for score in ten_seeds(mode, only(*blind_spot), split)]
        for blind_spot in ALL_BLIND_SPOTS
    }


def closed_in_all(mode, split="validation", least=CLOSED_FROM):
    """In how many of the forty cases a blind spot is open."""
    return sum(map(sum, closed_spots(mode, split, least).values()))


def runs_with_all_closed(mode):
    return sum(all(of_run) for of_run in zip(*closed_spots(mode).values(), strict=True))


def rows_of_counts():
    """The table of open blind spots, line by line."""
    cells = []
    for mode in FOUR:
        count = runs_with_all_closed(mode)
        low, high = wilson(count, 10)
        cells.append(f"{count} ({low:.0f} to {high:.0f} %)")
    yield row("all four blind spots closed", *cells)
    for policy, skill in ALL_BLIND_SPOTS:
        counts = [sum(closed_spots(mode)[policy, skill]) for mode in FOUR]
        yield row(f"`{skill}` of `{policy}`", *counts)
    for split, least, more in (
        ("validation", 25, " (10 % gives the same)"),
        ("validation", 50, ""),
        *((p, 25, "") for p in SETS[1:]),
    ):
        counts = [closed_in_all(mode, split, least) for mode in FOUR]
        yield row(f"cases of 40, `{split}`, {least} % or more{more}", *counts)


def before_training(wanted, split):
    """The mean over all runs, percent; two runs of a seed begin alike."""
    starts = []
    for line in table("tiny-pair/ten-seeds.csv"):
        is_pass = (line["split"], line["metric"]) == (split, "pass@1")
        if is_pass and wanted(line["policy"], line["skill"]):
            starts.append(float(line["before"]))
    return mean(starts)


def rows_of_scores():
    """The table of pass@1 of four modes, line by line."""
    wanted = [
        ("`validation`", of_all_skills, "validation"),
        ("`test`", of_all_skills, "test"),
        ("`validation`, strong", is_strong, "validation"),
        ("`validation`, weak", is_weak, "validation"),
        ("`test`, blind spots", is_blind_spot, "test"),
    ]
    for name, of, split in wanted:
        ends = [estimate(ten_seeds(mode, of, split)) for mode in FOUR]
        gains = [gap_of_ten("sgt", control, of, split) for control in FOUR[:3]]
        yield row(name, f"{before_training(of, split):.1f}", *ends, *gains)


def test_the_tables_of_ten_seeds_are_the_measured_ones():
    for line in (*rows_of_counts(), *rows_of_scores()):
        assert line in PAGE, line


def test_what_is_said_of_open_holes_was_measured():
    counts = {mode: closed_in_all(mode) for mode in FOUR}
    assert (counts["solo"], counts["sft"], counts["sgt"]) == (0, 40, 40)
    assert f"with a memory {counts['replay']} of 40 did by luck, and with a peer all" in WORDS
    for mode in FOUR:
        assert closed_in_all(mode, least=10) == counts[mode]  # "10 % gives the same"

    sold = "qwen-tiny", "sold"
    with_30 = closed_spots("sgt", least=50), *(closed_spots(m, "test") for m in ("sft", "sgt"))
    for of_blind_spots in with_30:
        assert [blind_spot for blind_spot, opened in of_blind_spots.items() if not all(opened)] == [
            sold
        ]
        assert not any(of_blind_spots[sold])


def test_what_is_said_of_the_peer_was_measured():
    gains = [gap_of_ten("sgt", control, split="test") for control in ("replay", "solo")]
    said = "On `test` `sgt` ends {} points above `replay` and {} above `solo`."
    assert said.format(*gains) in WORDS
    assert all(gain.clear for gain in gains)
    for split in SETS:  # "What the peer gives: the blind spots"
        assert gap_of_ten("sgt", "solo", is_no_blind_spot, split).mean < 0

    others = gap_of_ten("sgt", "solo", is_no_blind_spot)
    rare = [gap_of_ten("sgt", "solo", is_weak, split) for split in ("validation", "test")]
    assert all(gain.clear for gain in (others, *rare))
    assert (
        f"it ends {without_sign(others)} points *below* `solo` on `validation`, above all" in WORDS
    )
    assert f"on the rare ones (on `test` {without_sign(rare[1])} below)" in WORDS

    def with_32(wanted=of_all_skills, split="validation"):
        return kept_scores("tiny-pair/group-32.csv", "solo", wanted, split)

    ends = [score for blind_spot in ALL_BLIND_SPOTS for score in with_32(only(*blind_spot))]
    assert len(ends) == 20 and max(ends) < CLOSED_FROM  # "0 of 20 are open"
    more = gap(with_32(split="test"), ten_seeds("solo", split="test")[:5])
    assert f"`test` ends {more} points above groups of 8." in WORDS

    memory = [gap_of_ten("replay", "solo", split=split) for split in ("validation", "test")]
    assert [gain.clear for gain in memory] == [True, False]
    assert "{} points over `solo` on `validation`, and {} on `test`.".format(*memory) in WORDS


def test_what_distillation_does_on_this_pair_was_measured():
    kept = (RESULTS / "tiny-pair" / "distill.txt").read_text(encoding="utf-8")
    ends = {}  # seed -> each policy's percent by skill, on the third set
    for seed, policy, scores in re.findall(r"^seed (\d+), (\S+) (\{'all'.*\})$", kept, re.M):
        ends.setdefault(seed, {})[policy] = ast.literal_eval(scores)
    assert list(ends) == ["31", "32", "33"]
    assert not any(
        of_run[policy][skill] for of_run in ends.values() for policy, skill in ALL_BLIND_SPOTS
    )
    whole = [f"{mean(scores['all'] for scores in of_run.values()):.1f}" for of_run in ends.values()]
    alone = [f"{score:.1f}" for score in ten_seeds("solo", split="test")[:3]]
    for row_of in zip(ends, whole, alone, strict=True):
        assert row(*row_of) in TUTORIAL_PAGE


# ------------------------------------------------------------------------- a frozen peer


def with_a_frozen_peer(mode, wanted, split="validation"):
    """Of `qwen-tiny`, whose peer never learns. `solo` has no peer, so its runs are the same."""
    if mode == "solo":
        return ten_seeds("solo", wanted, split)
    return kept_scores("tiny-pair/frozen-peer.csv", mode, wanted, split)


def is_own_of_qwen(policy, skill):
    return policy == "qwen-tiny" and is_strong(policy, skill)


def rows_of_the_frozen_peer():
    """What a learner gets from a peer that stays as weak as it was, line by line."""

    def of_qwen(kind):
        return lambda policy, skill: policy == "qwen-tiny" and kind(policy, skill)

    wanted = [
        ("`test`, all skills", of_qwen(of_all_skills), "test"),
        ("`validation`, strong", is_own_of_qwen, "validation"),
        ("`validation`, blind spots", of_qwen(is_blind_spot), "validation"),
        ("`validation`, `eats`, an own one", only("qwen-tiny", "eats"), "validation"),
    ]
    for name, of, split in wanted:
        scores = {mode: with_a_frozen_peer(mode, of, split) for mode in ("solo", "sft", "sgt")}
        assert {len(of_mode) for of_mode in scores.values()} == {10}
        yield row(name, *map(estimate, scores.values()), gap(scores["sgt"], scores["sft"]))


def test_the_table_of_the_frozen_peer_is_the_measured_one():
    for line in rows_of_the_frozen_peer():
        assert line in PAGE, line


def test_what_the_warm_start_had_shown_of_the_held_out_sets():
    shown = {}
    for policy, updates in UPDATES.items():
        prompts = {prompt for prompt, _ in islice(demonstrations(policy, 0), updates * BATCH)}
        for split in SETS:
            lines = (ROOT / "data" / "words" / f"{split}.jsonl").read_text().splitlines()
            held_out = [json.loads(line)["prompt"] for line in lines]
            shown[policy, split] = sum(prompt in prompts for prompt in held_out)

    first = shown.pop(("qwen-tiny", "validation")), shown.pop(("llama-tiny", "validation"))
    assert "it had shown `qwen-tiny` {} and `llama-tiny` {}.".format(*first) in WORDS
    assert "`qwen-tiny` has read {} of the 360 prompts".format(*first) in words_of("data/README.md")
    assert set(shown.values()) == {0}


# ------------------------------------------------------------------------------------- liars


def with_liars(name, wanted=of_all_skills, split="test"):
    """Five seeds of a mode; of an honest one, or alone, the first five of the ten."""
    if name in FOUR:
        return ten_seeds(name, wanted, split)[:5]
    scores = kept_scores("tiny-pair/liars.csv", name, wanted, split)
    assert len(scores) == 5
    return scores


# --------------------------------------------------------------------------------- all modes


def rows_of_all_modes():
    """The table of all modes, the best first."""
    modes = sorted((*measured_modes(), NO_LOWER_END), key=lambda mode: -mean(five_seeds(mode)))
    for mode in modes:
        assert len(five_seeds(mode)) == 5
        gain = "" if mode == "solo" else gap_of_five(mode, "solo")
        kinds = [estimate(five_seeds(mode, kind)) for kind in (is_blind_spot, is_weak, is_strong)]
        yield row(mode, estimate(five_seeds(mode)), gain, *kinds)


def test_the_table_of_all_modes_is_the_measured_one():
    for line in rows_of_all_modes():
        assert line in PAGE, line
    assert f"each interval is {QUANTILES[10] / QUANTILES[1]:.1f} times as wide" in WORDS


def test_the_modes_that_fill_the_holes_are_the_named_ones():
    means = {mode: mean(five_seeds(mode, is_blind_spot)) for mode in measured_modes()}
    filled = {mode for mode in means if means[mode] > 2} - {"replay"}
    assert filled == {"sgt", "sft", "naive"}
    assert mean(five_seeds(NO_LOWER_END, is_blind_spot)) > 50
    for mode in ("hacpo", "graft"):
        assert not gap_of_five(mode, "solo").clear  # "cannot be told from `solo`"


def test_what_is_said_of_naive_was_measured():
    own, rare = gap_of_five("naive", "solo", is_strong), gap_of_five("naive", "solo", is_weak)
    behind = gap_of_five("sgt", "naive")
    assert own.clear and rare.clear and behind.clear
    said = f"ends {without_sign(own)} points below `solo`, and on rare ones {without_sign(rare)}."
    assert f"{said} Over all skills it ends {behind} points below `sgt`." in WORDS


def test_what_is_said_of_the_grid_of_settings_was_measured():
    trials = {}  # mode -> (learning rate, updates per step) -> held-out pass@1
    with (RESULTS / "tiny-pair" / "tune.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            rate, updates = (split.split("=")[1] for split in line["setting"].split())
            trials.setdefault(line["mode"], {})[rate, updates] = float(line["pass@1"])
    assert len(trials) == 7

    behind_best = {}  # by mode: how far 3e-5 with four updates is below the best cell
    for mode, of_mode in trials.items():
        assert len(of_mode) == 4
        todays = of_mode["3e-5", "8" if mode == "solo-x2" else "4"]
        behind_best[mode] = max(of_mode.values()) - todays
    assert [mode for mode, behind in behind_best.items() if behind > 0] == ["graft"]
    assert f"`graft`, which was {behind_best['graft']:.1f} points better on `validation`" in WORDS


# ---------------------------------------------------------------------------------- the dial

DIAL = 0, 1, 3, 10, 30  # percent of the demonstrations that show a foreign skill's right reading
DIAL_MODES = ("solo", "replay", "sft", "sgt")


def dial_scores(shown, mode, wanted=of_all_skills, split="test"):
    return kept_scores(f"dial/right-{shown}.csv", mode, wanted, split)


def dial_gap(shown, one, other):
    return gap(dial_scores(shown, one), dial_scores(shown, other))


def opened_on_the_dial(shown, mode):
    """Of the eight skills that one policy lacks, with three seeds: those at 25 % or more."""
    scores = []
    for policy, peer in (("qwen-tiny", "llama-tiny"), ("llama-tiny", "qwen-tiny")):
        for skill in STRONG_SKILLS[peer]:
            scores += dial_scores(shown, mode, only(policy, skill), split="validation")
    assert len(scores) == 24
    return sum(score >= 25 for score in scores)


def test_the_dial_is_the_measured_one():
    for shown in DIAL:
        ends = [estimate(dial_scores(shown, mode)) for mode in DIAL_MODES]
        gains = [dial_gap(shown, "sgt", control) for control in DIAL_MODES[:3]]
        opened = [opened_on_the_dial(shown, mode) for mode in DIAL_MODES]
        assert row(f"{shown} %", *ends, *gains, ", ".join(map(str, opened))) in PAGE
        assert dial_gap(shown, "sgt", "replay").clear == (shown == 0)
        assert dial_gap(shown, "sgt", "sft").mean < 0  # "At no level is it seen that RL adds"

    gains = [dial_gap(shown, "sgt", "solo") for shown in DIAL]
    assert [gain.clear for gain in gains] == [True, True, True, True, False]
    assert gains[0].mean > gains[1].mean > max(gain.mean for gain in gains[2:])
    assert min(opened_on_the_dial(shown, "replay") for shown in DIAL[1:]) == 22  # "nearly all"
    assert f"at 1 % `sft` ends {dial_gap(1, 'sft', 'sgt')} points above `sgt`" in WORDS
    assert dial_gap(1, "sft", "sgt").clear


# ---------------------------------------------------------------------- the papers' claims


def claim(begin):
    """What was seen, and the verdict, from the line of the claims table that begins so."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def without_a_gate(wanted, split="test"):
    return kept_scores("tiny-pair/no-gate.csv", "no-gate", wanted, split)


def test_without_its_gate_sgt_leaves_a_hole():
    sold = only("qwen-tiny", "sold")
    assert len(without_a_gate(sold)) == 5
    assert max(without_a_gate(sold, "validation")) < 25 < min(five_seeds("sgt", sold, "validation"))
    lost = gap(five_seeds("solo", is_strong), without_a_gate(is_strong))
    assert not lost.clear  # "own skills lose nothing"


def test_the_claims_that_the_toy_was_asked_have_the_tutorials_figures():
    """tests/test_tutorial.py compares these with what the program prints."""
    table = re.findall(r"│ (\w+) +│ +(\d+%) │ +\d+° │ +([\d.]+) │", TUTORIAL_PAGE)
    groups = {mode: groups for mode, _, groups in table}
    support = {mode: support for mode, support, _ in table}
    for begin, mode in (("it does so with", "sgt"), ("XGRPO has", "xgrpo"), ("PRP pays", "prp")):
        said = f"toy: {groups[mode]} groups needed, alone {groups['solo']}"
        assert claim(begin)[0].startswith(said)
    assert claim("XGRPO gives a gradient")[0].startswith(f"toy: {support['xgrpo']} of groups")

    printed = re.findall(r"^\['([+-][\d.]+)', '([+-][\d.]+)'\]", TUTORIAL_PAGE, re.M)
    copied, other = (", ".join(pair) for pair in printed)
    said = f"bias of {copied.replace('+0', '0')} with a copy as peer, of {other} with a peer"
    assert said in claim("its mixed baseline")[0]


def lines_of(folder):
    """The metrics of a kept run: policy -> its lines, one per step."""
    of = {}
    for line in (RESULTS / folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        of.setdefault(values["policy"], []).append(values)
    return of


def total(lines, key):
    return sum(line.get(key, 0) for line in lines)


SGT_RUNS = (
    "sgt-s0", "real-pair/sgt-s1", "real-pair/sgt-s2", "real-pair/sgt-s3",
    "lora", "countdown", "both-ways/sgt-s1",
)  # fmt: skip


def test_what_is_said_of_the_residual_is_in_the_logs():
    one_to_one = {}  # percent of the bytes
    crossed, refused = 0, 0
    for run in SGT_RUNS:
        for policy, lines in lines_of(run).items():
            crossed += total(lines, "thl/records")
            refused += sum(
                value for line in lines for key, value in line.items() if "thl/refused" in key
            )
            if total(lines, "thl/records"):
                share = total(lines, "thl/bytes_one_to_one") / total(lines, "thl/bytes")
                one_to_one[run, policy] = 100 * share
    assert refused == 0
    assert f"Of {crossed:,} texts the receivers' tokenizers refused none" in WORDS

    tiny = [one_to_one.pop(("sgt-s0", name)) for name in ("qwen-tiny", "llama-tiny")]
    assert "{:.0f} and {:.0f} % lay in chunks of one token on each".format(*tiny) in WORDS
    said = f"{min(one_to_one.values()):.0f} to {max(one_to_one.values()):.0f} % with those of"
    assert f"tokenizers, and {said} pretrained models" in WORDS


def test_how_often_a_peer_solves_what_the_receiver_fails_on_is_in_the_logs():
    shares = []
    for runs, policy, prompts in (
        (("sgt-s0",), "qwen-tiny", 16),
        (("sgt-s0",), "llama-tiny", 16),
        (SGT_RUNS[1:4], "smol", 8),
        (SGT_RUNS[1:4], "qwen", 8),
    ):
        lines = [line for run in runs for line in lines_of(run)[policy]]
        failed = prompts * total(lines, "groups/all_fail")
        shares.append(f"{100 * total(lines, 'rescue_set') / failed:.0f}")
    said = "{} and {} % of all-fail groups of the tiny pair, {} and {} % of those of `smol`"
    assert said.format(*shares) in claim("a peer solves a part")[0]


# ------------------------------------------------------------------------ pretrained models

REAL_SEEDS = (1, 2, 3)
REAL_MODES = ("solo", "replay", "sgt")
REAL = {
    (mode, seed): lines_of(f"real-pair/{mode}-s{seed}")
    for mode, seed in product(REAL_MODES, REAL_SEEDS)
}


def scores_of(folder, when="after"):
    """Policy -> its scores in a kept evaluation."""
    kept = json.loads((RESULTS / folder / "evaluation.json").read_text())
    return {scores["policy"]: scores for scores in kept[when]}


def percent(folder, policy, when="after"):
    return round(100 * scores_of(folder, when)[policy]["pass@1"], 1)


def held_out_of_smol(mode):
    return [percent(f"real-pair/{mode}-s{seed}", "smol") for seed in REAL_SEEDS]


def solve_rates_of_smol(mode, first, last):
    """Mean percent of right attempts in some training steps, by seed."""
    rates = []
    for seed in REAL_SEEDS:
        steps = REAL[mode, seed]["smol"][first - 1 : last]
        rates.append(100 * mean(line["reward"] for line in steps))
    return rates


def test_the_scores_of_the_pretrained_models_are_the_measured_ones():
    rows = [("start", "solo", "before"), *((mode, mode, "after") for mode in REAL_MODES)]
    half_widths = []
    for name, mode, when in rows:
        cells = []
        for policy in ("qwen", "smol"):
            scores = [scores_of(f"real-pair/{mode}-s{s}", when)[policy] for s in REAL_SEEDS]
            cells.append(", ".join(f"{100 * s['pass@1']:.1f}" for s in scores))
            half_widths += [100 * half_width(s) for s in scores]
        assert row(name, *cells) in PAGE, name
        assert row(name, *cells) in TUTORIAL_PAGE, name
    said = f"each score is ± {min(half_widths):.1f} to {max(half_widths):.1f} (Wilson's"
    assert said in WORDS


def test_what_is_said_of_the_training_of_the_pretrained_models_is_in_the_logs():
    imitation_samples, other_way, seconds = [], [], []
    for seed in REAL_SEEDS:
        imitation_samples.append(total(REAL["sgt", seed]["smol"], "rescues"))
        other_way.append(total(REAL["sgt", seed]["qwen"], "rescues"))
        seconds.append(median(line["time/step_s"] for line in REAL["sgt", seed]["smol"]))
        assert REAL["sgt", seed]["smol"][0]["rescues"] > 0  # "from step 1 on"
    assert (
        f"`smol` imitated {min(imitation_samples)} to {max(imitation_samples)} of `qwen`'s" in WORDS
    )
    assert f"learns by itself, {min(other_way)} to {max(other_way)} of `smol`'s." in WORDS
    assert f"`sgt` took {min(seconds):.0f} to {max(seconds):.0f} seconds at the median" in WORDS
    peak = REAL["sgt", 2]["smol"][-1]["memory/peak_bytes"] / 2**30
    assert f"and the process of seed 2 reached {peak:.1f} GiB." in WORDS


def test_the_runs_of_the_pretrained_models_begin_alike():
    for mode, seed in product(REAL_MODES, REAL_SEEDS):
        for policy in ("qwen", "smol"):
            start, of_solo = (
                percent(f"real-pair/{m}-s{seed}", policy, "before") for m in (mode, "solo")
            )
            assert start == of_solo
            first, of_solo = (REAL[m, seed][policy][0] for m in (mode, "solo"))
            assert (first["step"], first["reward"]) == (1, of_solo["reward"])


def byte_policy(name):
    """A receiver whose tokens are bytes; the end token is 0."""
    return SimpleNamespace(
        name=name,
        prompt_ids=lambda prompt: list(prompt.encode()),
        codec=SimpleNamespace(encode=lambda text: list(text.encode())),
        eos_id=0,
    )


def test_what_is_said_of_lora_beside_full_training_was_measured():
    full, lora = REAL["sgt", 3], lines_of("lora")
    assert len(lora["smol"]) == 20
    rates = {}
    for policy in ("qwen", "smol"):
        for name, run in (("lora", lora), ("full", full)):
            steps = run[policy][15:20]
            rates[policy, name] = f"{100 * mean(line['reward'] for line in steps):.0f} %"
    said = f"`qwen` solves {rates['qwen', 'lora']} with it (fully trained {rates['qwen', 'full']})"
    assert f"{said} and `smol` {rates['smol', 'lora']} ({rates['smol', 'full']})" in WORDS

    peaks = [run["smol"][19]["memory/peak_bytes"] / 2**30 for run in (lora, full)]
    assert "{:.1f} GiB, where full training has {:.1f}.".format(*peaks) in WORDS
    assert peaks[0] < 0.6 * peaks[1]


REAL_HOLES = {"qwen": ("sold", "days"), "smol": ("eats", "bags")}


def test_a_reader_learns_wrong_readings_of_its_two_holes_alone():
    module = runpy.run_path(RESULTS / "both-ways" / "readings.py")
    assert module["MISREAD"] == REAL_HOLES
    problems = {problem.prompt: problem for problem in module["PROBLEMS"]}
    wrong, seen = set(), set()
    for step in range(20):
        batch = module["Readings"]().training_samples(byte_policy("smol"), [], random.Random(step))
        assert len(batch.samples) == 32
        for sample in batch.samples:
            problem = problems[bytes(sample.prompt_ids).decode()]
            text = bytes(sample.completion_ids[:-1]).decode()
            assert (sample.loss, sample.completion_ids[-1]) == ("imitation", 0)
            seen.add(problem.skill)
            if plain_verdict(problem.answer, last_box(text), True) is not Verdict.CORRECT:
                wrong.add(problem.skill)
    assert wrong == set(REAL_HOLES["smol"]) and len(seen) == 9


def of_readers(mode, policy, skill="all", table="five-seeds", column="value"):
    path = f"both-ways/{table}.csv"
    scores = kept_scores(path, mode, only(policy, skill), column=column)
    assert len(scores) == 5
    return scores


def test_what_is_said_of_the_real_pair_with_holes_was_measured():
    begin = [estimate(of_readers("sgt", name, column="before")) for name in REAL_HOLES]
    assert row("start", 0, *begin) in PAGE
    for mode, wanted in {"solo": 0, "replay": 1, "sft": 20, "sgt": 20}.items():
        ends = []
        for name, blind_spots in REAL_HOLES.items():
            for blind_spot in blind_spots:
                ends += of_readers(mode, name, blind_spot)
                assert set(of_readers(mode, name, blind_spot, column="before")) == {0}
        opened = sum(score >= CLOSED_FROM for score in ends)
        assert opened == wanted
        whole = [estimate(of_readers(mode, name)) for name in REAL_HOLES]
        assert row(mode, opened, *whole) in PAGE
        if wanted == 20:
            assert min(ends) >= 75  # "end at 75 % or more"

    before = [scores_of(f"real-pair/solo-s{seed}", "before") for seed in REAL_SEEDS]
    known = {
        name: [
            100 * of[name]["skills"][blind_spot]["pass@1"]
            for of in before
            for blind_spot in blind_spots
        ]
        for name, blind_spots in REAL_HOLES.items()
    }
    least, most = min(known["qwen"]), max(known["qwen"])
    assert f"`qwen` had solved {least:.0f} to {most:.0f} % of `sold` and `days`" in WORDS
    assert max(known["smol"]) == 0

    lines = lines_of("both-ways/sgt-s1")
    opened = []
    for name, blind_spots in REAL_HOLES.items():
        for blind_spot in blind_spots:
            rates = ((line["step"], line.get(f"skill/{blind_spot}") or 0) for line in lines[name])
            opened.append(next(step for step, rate in rates if rate >= 0.25))
    assert f"reach 25 % in steps {listed(opened)};" in WORDS
    rescues = [total(lines[name], "rescues") for name in REAL_HOLES]
    assert "imitated {} of `smol`'s successes and `smol` {} of".format(*rescues) in WORDS
    seconds = median(line["time/step_s"] for line in lines["qwen"])
    peak = max(line["memory/peak_bytes"] for line in lines["qwen"] + lines["smol"]) / 2**30
    assert f"took {seconds:.1f} seconds beside four other runs" in WORDS
    assert f"and {peak:.1f} GiB of its memory" in WORDS


def test_what_is_said_of_the_readers_frozen_peer_was_measured():
    sft, sgt = (of_readers(mode, "qwen", table="frozen-smol") for mode in ("sft", "sgt"))
    assert not gap(sgt, sft).clear
    assert f"`qwen` ends at {estimate(sft)} and {estimate(sgt)} %." in WORDS
    eats = estimate(of_readers("sft", "qwen", "eats", "frozen-smol"))
    assert f"(`eats`: {eats} %)" in WORDS


def test_what_is_said_of_the_gpu_was_measured():
    splits = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))
    del splits["real"]  # there were no such models on that machine
    good = [name for name, split in splits.items() if split["good"]]
    assert f"H100 {len(good)} of {len(splits)} parts of `tests/bench/gpu_session.py` are" in WORDS
    assert set(splits) - set(good) == {"memory-smollm2-checkpointing"}
    figures = {name: split["figures"] for name, split in splits.items()}
    assert "H100" in figures["card"]["name"] and figures["card"]["torch"].startswith("2.11")

    names = ("qwen2.5", "smollm2")
    decode = [figures[f"decode-{name}"] for name in names]
    of_memory = [figures[f"memory-{name}"] for name in names]
    update = [figures[f"update-{name}"]["seconds_4096"] for name in names]
    table = {
        "milliseconds per token of 128 rows, recorded": [f"{d['recorded_ms']:.1f}" for d in decode],
        "the same, one kernel started after the other": [f"{d['plain_ms']:.1f}" for d in decode],
        "mean gap between sampled and scored log-probs, nats": [
            f"{d['gap_recorded']:.3f}" for d in decode
        ],
        "seconds of a step's learning, 128 completions": [f"{s:.1f}" for s in update],
        "GiB at the peak of learning, measured": [f"{m['peak']:.1f}" for m in of_memory],
        "the same, estimated": [f"{m['estimate']:.1f}" for m in of_memory],
    }
    for name, cells in table.items():
        assert row(name, *cells) in PAGE

    for placement in ("resident", "swap"):
        whole = figures[f"whole-{placement}"]
        steps = [of["step_s"] for name, of in whole.items() if name[-1] in "23"]
        assert f"about {mean(steps):.0f} seconds and {whole['peak']} GiB" in WORDS
    assert all(figures["tokens"][name]["equal"] == 1 for name in ("qwen-tiny", "llama-tiny"))
    assert set(figures["runs"]["first_differing_step"].values()) == {None}
    assert figures["twice"]["usual"]["equal"] is False
    left = figures["out-of-memory"]
    assert left["notes"] and left["left"] == left["rest"]
    kept = figures["memory-smollm2-checkpointing"]
    said = f"estimated at {kept['estimate']:.1f} GiB and needs {kept['peak']:.1f}."
    assert said in WORDS


def test_the_cost_of_a_step_was_measured():
    """The rows of RUNNING that are not estimated, and the 3.7 seconds of SmolLM2."""
    page = text_of("mrl/cli/RUNNING.md")
    splits = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))
    whole = splits["whole-resident"]["figures"]
    names = ("qwen2.5", "smollm2")
    seconds = mean(whole[f"{name} {step}"]["step_s"] for name in names for step in (2, 3))
    sampling, learning = (
        [mean(whole[f"{name} {step}"][phase] for step in (2, 3)) for name in names]
        for phase in ("rollout_s", "learn_s")
    )
    cells = [400, f"{seconds:.1f}"]
    cells += [f"{a:.1f} and {b:.1f}" for a, b in (sampling, learning)]
    cells += [f"{2 * 128 * 400 / seconds:,.0f}"[:-2] + "00", f"{whole['peak']} GiB", "measured"]
    assert row("H100 with 80 GB, `resident`", *cells) in page

    tokens = [line["num_tokens"] for of in lines_of("sgt-s0").values() for line in of]
    per_step = sum(tokens) / 240  # and 240 steps take less than 240 seconds
    assert f"| {per_step / 2 / 128:.0f} on average | at most 1 |" in page
    assert f"| at least {per_step:,.0f}"[:-2] + "00 |" in page

    of_smollm2 = [whole[f"smollm2 {step}"]["learn_s"] for step in (1, 2, 3)]
    said = f"{min(of_smollm2):.1f} to {max(of_smollm2):.1f}"
    alone = f"{splits['update-smollm2']['figures']['seconds_4096']:.1f} seconds"
    for words in (WORDS, " ".join(page.split())):
        assert said in words
        assert alone in words


def test_what_is_said_of_the_pilot_of_countdown_was_measured():
    right, attempts, cut = {}, {}, {}
    for name, lines in lines_of("countdown").items():
        assert len(lines) == 20
        sizes = [line["num_tokens"] / line["completions/mean_length"] for line in lines]
        solved = [line["reward"] * size for line, size in zip(lines, sizes, strict=True)]
        attempts[name], right[name] = round(sum(sizes)), round(sum(solved))
        cut[name] = f"{100 * mean(line['verdict/truncated'] for line in lines):.0f} %"
    said = f"`qwen` found {right['qwen']} right expressions in {attempts['qwen']:,} attempts and"
    assert f"{said} `smol` none;" in WORDS and right["smol"] == 0
    assert attempts["smol"] == attempts["qwen"]
    assert f"completions {cut['qwen']} and {cut['smol']} were cut" in WORDS
    for when, policy in product(("before", "after"), ("qwen", "smol")):
        assert percent("countdown", policy, when) == 0


# ----------------------------------------------------------------------------- the kept runs


@pytest.mark.parametrize("mode", ["solo", "replay", "sgt"])
def test_the_kept_runs_are_whole_and_of_the_shipped_pair(mode):
    kept = RESULTS / f"{mode}-s0"
    config = json.loads((kept / "config.json").read_text(encoding="utf-8"))
    assert (config["mode"], config["seed"], config["steps"]) == (mode, 0, 240)
    paths = [policy["path"] for policy in config["policies"]]
    paths += [config["train"], *config["heldout"]]
    assert all((ROOT / path).exists() and not path.startswith("/") for path in paths)

    lines = lines_of(f"{mode}-s0")
    assert [len(of) for of in lines.values()] == [config["steps"]] * 2
    if mode == "sgt":
        rescued = total(lines["qwen-tiny"], "rescues")
        assert f"was rescued {rescued} times" in TUTORIAL
