"""What data/results/README.md and TUTORIAL.md say was measured is in data/results."""

import csv
import json
import math
import random
import re
import runpy
import shutil
from itertools import product
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pytest

import mini_mrl
from mrl.lab.compare_view import estimate
from mrl.modes import MODES
from mrl.rewards import last_box, plain_verdict
from mrl.runtime.evaluation import half_width
from mrl.runtime.run_directory import read_rescues
from mrl.samples import Verdict
from mrl.tiny.pair import HOLES, OWN_SKILLS, RARE_SKILLS

ROOT = Path(mini_mrl.__file__).parent
RESULTS = ROOT / "data" / "results"
DOCUMENTS = ("README.md", "TUTORIAL.md", "data/results/README.md")


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def sentences_of(document):
    return " ".join(text_of(document).split())


PAGE = text_of("data/results/README.md")


def test_every_result_is_explained_and_every_picture_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    assert len(pictures) >= 8
    for path in pictures:
        assert (RESULTS / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    for folder in RESULTS.iterdir():
        if folder.name != "README.md":
            assert folder.name in PAGE, folder.name


def test_links_to_its_sections_lead_somewhere():
    headings = re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    links = [
        anchor
        for document in DOCUMENTS
        for anchor in re.findall(r"\(data/results/README\.md#([^)]+)\)", text_of(document))
    ]
    assert len(links) >= 3
    assert set(links) <= anchors


def test_the_pictures_of_the_run_come_from_its_kept_metrics(tmp_path):
    from mrl.lab.report import write_report

    kept = RESULTS / "sgt-s0"
    directory = tmp_path / "sgt-s0"
    shutil.copytree(kept, directory, ignore=shutil.ignore_patterns("figures"))
    write_report(directory)
    drawn = {path.name for path in (directory / "figures").iterdir()}
    linked = {path.name for path in (kept / "figures").iterdir()}
    assert linked <= drawn
    assert all(f"(sgt-s0/figures/{name})" in PAGE for name in linked)


def measured_rows(document_line, heldout):
    """The rows of the kept table in the columns that a document shows."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in heldout.splitlines()
        if line.startswith("|")
    )
    columns = [head.index(cell.strip()) for cell in document_line.strip("|").split("|")]
    rows = [row for row in rows if len(row) == len(head)]  # not those of the policies, below
    return [f"| {' | '.join(row[column] for column in columns)} |" for row in rows]


def of_all_skills(policy, skill):
    """The mean of all."""
    return skill == "all"


def kept_scores(path, mode, wanted=of_all_skills, metric="pass@1", part="heldout"):
    """Held-out pass@1 by seed, mean over what is wanted, from a table under data/results."""
    scores = {}
    with (ROOT / "data" / "results" / path).open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            of = line["mode"], line["part"], line["metric"]
            if of == (mode, part, metric) and wanted(line["policy"], line["skill"]):
                scores.setdefault(line["seed"], []).append(float(line["value"]))
    return [mean(values) for values in scores.values()]


def above(one, two, wanted):
    """How far one (path, mode) is above another, paired by the seeds that both have."""
    pairs = zip(kept_scores(*one, wanted), kept_scores(*two, wanted), strict=False)
    return estimate([a - b for a, b in pairs])


def wider(comparisons):
    """How many times as wide Bonferroni makes each 95 % interval over five seeds."""

    def share_below(t):  # Student's t, 4 degrees of freedom
        x = t * t / (4 + t * t)
        return 0.5 + 0.5 * math.sqrt(x) * (1 + (1 - x) / 2)

    low, high = 2.776, 50.0  # of the 95 % interval of one comparison; bisection
    assert share_below(low) == pytest.approx(0.975, abs=1e-4)
    for _ in range(60):
        middle = (low + high) / 2
        enough = share_below(middle) >= 1 - 0.025 / comparisons
        low, high = (low, middle) if enough else (middle, high)
    return low / 2.776


def kept_trials():
    """Mode -> (learning rate, updates per step) -> held-out pass@1 with each seed of the choice."""
    found = {}
    with (RESULTS / "tiny-pair" / "tune.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            setting = tuple(part.split("=")[1] for part in row["setting"].split())
            trials = found.setdefault(row["mode"], {}).setdefault(setting, {})
            trials[row["seed"]] = float(row["pass@1"])
    return found


def updates_tried(mode):
    """Of `--tune`, in a step; `solo-x2` has twice as many completions."""
    return "28" if mode == "solo-x2" else "14"


def dial_scores(shown, mode, wanted=of_all_skills):
    """pass@1 by seed; hacpo: with one update per step, hacpo/4: with four.

    no-band: hacpo without the lower end of its band, with one update per step.
    """
    if mode == "no-band":
        return kept_scores(f"dial/no-band-{shown}.csv", "hacpo", wanted)
    if mode == "hacpo":
        return kept_scores(f"dial/one-update-{shown}.csv", "hacpo", wanted)
    return kept_scores(f"dial/right-{shown}.csv", mode.removesuffix("/4"), wanted)


DIAL = 0, 1, 3, 10, 30  # percent of the demonstrations that show a foreign skill's right reading


def dial_gap(shown, one, two):
    """How far mode one ends above mode two on the pair of this share, paired by seed."""
    scores = (dial_scores(shown, mode) for mode in (one, two))
    return estimate([a - b for a, b in zip(*scores, strict=True)])


def test_the_dial_is_the_measured_one():
    for shown in DIAL:
        ends = [estimate(dial_scores(shown, mode)) for mode in ("solo", "replay", "sgt")]
        cells = [f"{shown} %", *ends]
        for gap in (("replay", "solo"), ("sgt", "solo"), ("sgt", "replay")):
            cells.append(dial_gap(shown, *gap))
        assert f"| {' | '.join(map(str, cells))} |" in PAGE

        cells = [f"{shown} %", *(estimate(dial_scores(shown, m)) for m in ("hacpo", "no-band"))]
        for gap in (("no-band", "hacpo"), ("no-band", "replay"), ("sgt", "no-band")):
            cells.append(dial_gap(shown, *gap))
        assert f"| {' | '.join(map(str, cells))} |" in PAGE

    def clear(one, two):
        return [dial_gap(shown, one, two).clear for shown in DIAL]

    assert clear("sgt", "solo") == [True, True, True, True, False]
    assert clear("replay", "solo") == [True, True, True, True, False]
    assert clear("sgt", "replay") == [True, True, False, False, False]

    page, tutorial = sentences_of("data/results/README.md"), sentences_of("TUTORIAL.md")
    gains, memory = ({s: dial_gap(s, "sgt", of) for s in DIAL} for of in ("solo", "replay"))
    assert f"adds {memory[0]} points to it; at 1 % it adds {memory[1]}" in page
    told = f"`sgt` ends {gains[0]} points above `solo` and {memory[0]} above `replay`"
    assert told in sentences_of("README.md")
    assert f"these are {gains[1]} and {memory[1]} points" in sentences_of("README.md")
    assert f"`sgt` gains {gains[0]} points, which is {memory[0]} points more than" in tutorial
    assert f"At 1 % these are {gains[1]} and {memory[1]}" in tutorial
    ends = estimate(dial_scores(3, "replay"))
    assert f"a memory ends at {ends}, `sgt` {memory[3]} above it" in tutorial
    assert f"At 30 % `sgt` gains {gains[30]}" in tutorial
    assert f"with four updates per step `hacpo` costs {dial_gap(30, 'solo', 'hacpo/4')} p" in page


def opened(shown, mode):
    """Scores above 10 % among the 24 cases of a lacked skill and a seed, and the largest other."""
    lacked = [
        (policy, skill)
        for policy in OWN_SKILLS
        for other, skills in OWN_SKILLS.items()
        for skill in skills
        if other != policy
    ]
    cases = []
    for one in lacked:
        cases += dial_scores(shown, mode, lambda *of, one=one: of == one)
    assert len(cases) == 24
    return [v for v in cases if v > 10], max([v for v in cases if v <= 10], default=0)


def test_twins_gain_little_and_no_hole():
    alone, together = (kept_scores("dial/twins.csv", mode) for mode in ("solo", "sgt"))
    gap = estimate([a - b for a, b in zip(together, alone, strict=True)])
    assert gap.clear and gap.mean < 2
    said = f"`sgt` ends at {estimate(together)} % and `solo` at {estimate(alone)}"
    pair = gap_today("sgt", "solo")
    said += f": a difference of {gap} points, where the shipped pair has {pair}"
    assert said in sentences_of("data/results/README.md")
    assert f"the difference is {gap} points" in sentences_of("TUTORIAL.md")
    for mode in ("solo", "sgt"):  # neither has a hole's reading to give
        holes = kept_scores("dial/twins.csv", mode, lambda _, skill: skill in HOLES["qwen-tiny"])
        assert max(holes) < 1


def test_what_opens_at_the_ends_of_the_dial():
    text = " ".join(PAGE.split())
    (alone,), below = opened(0, "solo")
    assert f"with one seed (`packs`, {alone:.0f} %); the others stay below 9 %" in text
    assert below < 9
    shares, _ = opened(0, "sgt")
    assert f"all eight with every seed ({min(shares):.0f} to {max(shares):.0f} %)" in text
    assert len(shares) == len(opened(10, "hacpo")[0]) == 24 and len(opened(0, "hacpo")[0]) == 4
    assert f"`replay` opens {len(opened(0, 'replay')[0])} of the 24 cases" in text
    assert len(opened(1, "replay")[0]) == len(opened(1, "sgt")[0]) == 24
    assert f"so does `sgt`; `solo` opens {len(opened(1, 'solo')[0])}" in text
    assert f"opens four of these 24 cases, at 1 % {len(opened(1, 'hacpo')[0])}." in text
    own = {
        mode: estimate(dial_scores(0, mode, lambda policy, skill: skill in OWN_SKILLS[policy]))
        for mode in ("solo", "sgt", "hacpo")
    }
    assert f"({own['sgt']} %, `solo` {own['solo']})" in text
    assert f"own ones ({own['hacpo']})" in text
    apart = [a - b for a, b in zip(*(dial_scores(10, m) for m in ("hacpo", "sgt")), strict=True)]
    assert f"level with `sgt` ({estimate(apart)} above)" in text
    assert not estimate(apart).clear
    kept = (RESULTS / "dial" / "right-0.md").read_text(encoding="utf-8").split("## newtemplates")[0]
    begun = re.findall(r"^\| \S+-tiny \| sgt \| (\S+) \|", kept, re.MULTILINE)
    ends = estimate(dial_scores(0, "solo"))
    assert f"({ends}, from {mean(map(float, begun)):.1f})" in text


def below_band(path):
    """Percent of the peers' tokens below the lower end of HACPO's band, by the file's first column.

    Estimates over seeds, each the mean of both policies.
    """
    by_case = {}
    with (RESULTS / path).open(encoding="utf-8") as file:
        for case, seed, _, share in list(csv.reader(file))[1:]:
            by_case.setdefault(case, {}).setdefault(seed, []).append(float(share))
    return {case: estimate([mean(of) for of in seeds.values()]) for case, seeds in by_case.items()}


def test_what_falls_below_hacpos_band_is_counted():
    shares = below_band("dial/below-band.csv")
    said = (
        f"lie {shares['0']} % of the peers' tokens at 0 %, {shares['1']} at 1 % and "
        f"{shares['10']} % at 10 %"
    )
    assert said in sentences_of("data/results/README.md")
    assert shares["10"].mean < 50 < shares["0"].mean - shares["0"].half  # most

    today = below_band("tiny-pair/below-band.csv")["one update"]
    said = f"{today} % of the peers' tokens lie below it"
    assert said in sentences_of("data/results/README.md")
    assert today.mean - today.half > 50


def test_without_its_band_hacpo_opens_what_sgt_opens():
    words, tutorial = sentences_of("data/results/README.md"), sentences_of("TUTORIAL.md")
    with_band, ends, sgt = (estimate(dial_scores(0, m)) for m in ("hacpo", "no-band", "sgt"))
    gain, memory = dial_gap(0, "no-band", "hacpo"), dial_gap(0, "no-band", "replay")
    assert gain.clear and memory.clear
    said = f"ends at {ends} at 0 %, {gain} above itself with it and {memory} above `replay`"
    assert said in words
    lifts = f"lifts `hacpo` from {with_band} to {ends} %"
    assert f"{lifts}. `sgt` ends there at {sgt} %" in tutorial
    left = dial_gap(0, "sgt", "no-band")
    said = f"opens {len(opened(0, 'no-band')[0])} of the 24 cases; `sgt` is {left} above that"
    assert said in words
    assert not any(dial_gap(shown, "sgt", "no-band").clear for shown in DIAL)


REAL_SEEDS = (1, 2, 3)


def real_run(mode, seed):
    """The metrics lines by policy, all scores, and the median seconds of a step."""
    kept = RESULTS / "real-pair" / f"{mode}-s{seed}"
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    of = {name: [line for line in lines if line["policy"] == name] for name in ("qwen", "smol")}
    scores = json.loads((kept / "evaluation.json").read_text())
    return of, scores, median(line["time/step_s"] for line in of["smol"])


REAL_MODES = ("solo", "replay", "sgt")
REAL = {(mode, seed): real_run(mode, seed) for mode in REAL_MODES for seed in REAL_SEEDS}


def real_cells(mode, when="after"):
    """pass@1 of qwen with each seed, then of smol."""
    by_seed = [REAL[mode, seed][1][when] for seed in REAL_SEEDS]
    return [scores[policy] for policy in (0, 1) for scores in by_seed]


def listed(figures):
    """`5, 7 and 9`."""
    *first, last = map(str, figures)
    return f"{', '.join(first)} and {last}"


def of_each(mode, key, first, last, total=False, policy="smol"):
    """A figure of a policy's lines in some steps, with each seed: `5, 7 and 9 %`, or a sum."""
    found = []
    for seed in REAL_SEEDS:
        values = [line[key] for line in REAL[mode, seed][0][policy][first - 1 : last]]
        found.append(f"{sum(values)}" if total else f"{100 * mean(values):.0f}")
    return listed(found) if total else f"{listed(found)} %"


def gap_of_solve_rates(one, two, first, last):
    """How many points `smol` solves more in some training steps, paired by seed."""
    rates = {}
    for mode, seed in REAL:
        rewards = [line["reward"] for line in REAL[mode, seed][0]["smol"][first - 1 : last]]
        rates[mode, seed] = 100 * mean(rewards)
    return estimate([rates[one, seed] - rates[two, seed] for seed in REAL_SEEDS])


def test_the_scores_of_the_pretrained_models_are_the_measured_ones():
    rows = [("start", real_cells("solo", "before"))]
    rows += [(mode, real_cells(mode)) for mode in REAL_MODES]
    tutorial = text_of("TUTORIAL.md")
    for name, scores in rows:
        cells = [f"{100 * s['pass@1']:.1f} ± {100 * half_width(s):.1f}" for s in scores]
        assert f"| {name} | {' | '.join(cells)} |" in PAGE, name
        short = [f"{100 * s['pass@1']:.1f}" for s in scores]
        seeds = len(REAL_SEEDS)
        assert f"| {name} | {', '.join(short[:seeds])} | {', '.join(short[seeds:])} |" in tutorial


def test_what_is_said_of_the_pretrained_models_was_measured():
    words = sentences_of("data/results/README.md")
    early = of_each("solo", "groups/all_fail", 1, 10)
    assert f"{early} of its groups in the first ten steps of `solo` are all-fail" in words
    assert f"imitated {of_each('sgt', 'rescues', 1, 60, total=True)} of `qwen`'s" in words
    other_way = of_each("sgt", "rescues", 1, 60, total=True, policy="qwen")
    assert f"`qwen` imitated {other_way} of `smol`'s successes" in words
    for text, key, steps in (
        ("in steps 11 to 20 it solves {} (`solo`: {})", "reward", (11, 20)),
        ("over all 60 steps {} (`solo`: {})", "reward", (1, 60)),
        ("at the end {} of its groups are still all-fail (`solo`: {}", "groups/all_fail", (51, 60)),
    ):
        assert text.format(*(of_each(mode, key, *steps) for mode in ("sgt", "solo"))) in words
    early = [of_each(mode, "reward", 11, 20) for mode in ("sgt", "solo", "replay")]
    said = "in steps 11 to 20 `smol` solves {} with `sgt`, but {} alone and {} with a memory"
    assert said.format(*early) in sentences_of("TUTORIAL.md")
    seconds = {m: listed(f"{REAL[m, s][2]:.0f}" for s in REAL_SEEDS) for m in ("solo", "sgt")}
    shown = f"{seconds['solo']} seconds (`solo`) and {seconds['sgt']} (`sgt`)"
    assert f"A step took {shown} at the median" in words
    for line in (RESULTS / "real-pair" / "rescues.jsonl").read_text().splitlines():
        rescue = json.loads(line)["rescue"]
        shown = [rescue["prompt"], rescue["receiver_text"], rescue["source_text"]]
        assert f"| {' | '.join(shown)} |" in PAGE


def test_the_runs_of_the_pretrained_models_begin_alike():
    """Though those of `replay` are of a later version than the others."""
    for seed in REAL_SEEDS:
        for mode in REAL_MODES:
            assert real_scores(mode, seed, "before") == real_scores("solo", seed, "before")
            for policy in ("qwen", "smol"):
                first, of_solo = (REAL[m, seed][0][policy][0] for m in (mode, "solo"))
                assert (first["step"], first["reward"]) == (1, of_solo["reward"])
    ratios = {mode: REAL[mode, 1][0]["qwen"][0]["ratio/mean"] for mode in REAL_MODES}
    said = f"was then {ratios['solo']:.4f} and is now {ratios['replay']:g}"
    assert said in sentences_of("data/results/README.md")


def real_scores(mode, seed, when):
    """pass@1 in percent of qwen and of smol."""
    return [round(100 * scores["pass@1"], 1) for scores in REAL[mode, seed][1][when]]


def test_what_is_said_of_the_memory_of_a_pretrained_model_was_measured():
    words = sentences_of("data/results/README.md")
    smol = {of: real_scores(*of, "after")[1] for of in REAL}
    gaps = {}
    for one, two in (("sgt", "solo"), ("sgt", "replay"), ("replay", "solo")):
        gaps[one, two] = [smol[one, seed] - smol[two, seed] for seed in REAL_SEEDS]
    above = [listed(f"{gap:.1f}" for gap in gaps["sgt", other]) for other in ("solo", "replay")]
    assert "({} points above `solo`; {} above `replay`)".format(*above) in words
    assert min(*gaps["sgt", "solo"], *gaps["sgt", "replay"]) > 0  # "with every seed"
    first, second, third = gaps["replay", "solo"]
    said = f"`replay` ended {-first:.1f} and {-second:.1f} points below `solo`"
    assert said in words and f"with the third it ended {third:.1f} above" in words
    assert not any(estimate(gap).clear for gap in gaps.values())

    rows = {"held out, after 60 steps": [str(estimate(gap)) for gap in gaps.values()]}
    for first, last in ((11, 20), (1, 60)):
        rows[f"while training, steps {first} to {last}"] = [
            str(gap_of_solve_rates(*pair, first, last)) for pair in gaps
        ]
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    first_row = [gap_of_solve_rates(*pair, 11, 20) for pair in list(gaps)[:2]]
    for comparisons, all_clear in ((3, True), (9, False)):
        factor = wider_for_three_seeds(comparisons)
        assert f"it is {factor:.1f} times as wide" in words
        clear = [gap.mean > factor * gap.half for gap in first_row]
        assert clear == [all_clear, all_clear]
    early, late = of_each("replay", "reward", 11, 20), of_each("replay", "groups/all_fail", 51, 60)
    assert f"In steps 11 to 20 it solves {early}, and at the end {late} of its groups" in words

    replayed = [REAL["replay", seed][0]["smol"] for seed in REAL_SEEDS]
    begins = [next(line["step"] for line in of if line["mode/replayed"]) for of in replayed]
    assert f"first own success in steps {listed(begins)}" in words
    assert (
        f"and {of_each('replay', 'mode/replayed', 1, 60, total=True)} over the whole run" in words
    )


def test_the_memory_of_the_pretrained_pair_is_flat():
    """VmHWM of `solo` with seed 1 from outside; with seed 2 the runs' own metric."""
    words = sentences_of("data/results/README.md")
    with (RESULTS / "real-pair" / "memory.csv").open(newline="") as file:
        memory = list(csv.DictReader(file))
    peak = float(memory[-1]["peak_gib"])
    assert f"reached {peak:.1f} GiB in its first steps" in words
    assert sum(float(row["peak_gib"]) == peak for row in memory) > 0.7 * len(memory)
    peaks = [line["memory/peak_bytes"] / 2**30 for line in REAL["sgt", 2][0]["smol"]]
    assert (
        f"{peaks[9]:.1f} GiB after 10 steps, {peaks[29]:.1f} after 30 and {peaks[59]:.1f} after 60"
        in words
    )


def test_the_widest_gap_of_log_probs_is_the_one_that_the_code_names():
    gaps = []
    for lines_by_policy, _, _ in REAL.values():
        for lines in lines_by_policy.values():
            gaps += [line["logprob_gap"] for line in lines]
    code = " ".join((RESULTS.parent.parent / "mrl" / "learning.py").read_text().split())
    assert f"put a token's log-prob up to {max(gaps):.2f} nats apart (metric `logprob_gap`)" in code


FINE_TUNED_RATES = ("1e-5", "3e-5", "1e-4")


def short_run(folder, policies):
    """Metrics by policy and scores of one of the runs of pretrained models."""
    text = (RESULTS / folder / "metrics.jsonl").read_text()
    of = {name: [] for name in policies}
    for line in map(json.loads, text.splitlines()):
        if line["policy"] in of:
            of[line["policy"]].append(line)
    return of, json.loads((RESULTS / folder / "evaluation.json").read_text())


def held_out(folder, policy):
    """A run's held-out pass@1 of a policy in percent, after training."""
    (after,) = (of for of in short_run(folder, (policy,))[1]["after"] if of["policy"] == policy)
    return f"{100 * after['pass@1']:.1f}"


def test_what_is_said_of_fine_tuning_was_measured():
    words = sentences_of("data/results/README.md")
    updates = {}
    for rate in FINE_TUNED_RATES:
        folder = f"real-pair/fine-tuned-{rate}"
        assert f"| fine-tuned, {rate} | {held_out(folder, 'smol')} |" in PAGE
        lines = short_run(folder, ("smol",))[0]["smol"]
        updates[rate] = sum(line["updates"] for line in lines)
    assert set(updates.values()) == {int(re.search(r"It made (\d+) updates", words)[1])}
    with_texts = sum(line["rescues"] > 0 for line in REAL["sgt", 3][0]["smol"])
    assert f"in {with_texts} of the 60 steps there was a text to imitate" in words
    for mode in REAL_MODES:
        assert f"| {mode} | {held_out(f'real-pair/{mode}-s3', 'smol')} |" in PAGE
    assert f"| sgt, frozen peer | {held_out('real-pair/frozen-s3', 'smol')} |" in PAGE
    # "level", "below every mode with RL"
    ends = {
        mode: float(held_out(f"real-pair/{mode}-s3", "smol")) for mode in (*REAL_MODES, "frozen")
    }
    assert abs(ends["frozen"] - ends["sgt"]) < 1
    tuned = [float(held_out(f"real-pair/fine-tuned-{rate}", "smol")) for rate in FINE_TUNED_RATES]
    assert max(tuned) < min(ends.values())

    frozen, _ = short_run("real-pair/frozen-s3", ("qwen", "smol"))
    assert sum(line["updates"] for line in frozen["qwen"]) == 0
    rescues = [
        sum(line["rescues"] for line in of) for of in (frozen["smol"], REAL["sgt", 3][0]["smol"])
    ]
    assert "gave {} texts to imitate, where the learning one gave {}".format(*rescues) in words


def test_fine_tuning_learns_from_the_rescues_of_the_same_step():
    module = runpy.run_path(RESULTS / "real-pair" / "fine_tuned.py")
    mode = module["FineTuned"](run=str(RESULTS / "real-pair" / "sgt-s3"))
    rescues = [r for r in read_rescues(RESULTS / "real-pair" / "sgt-s3") if r["receiver"] == "smol"]
    imitated = REAL["sgt", 3][0]["smol"]
    assert len(rescues) == sum(line["rescues"] for line in imitated)
    smol = SimpleNamespace(
        name="smol",
        prompt_ids=lambda prompt: [1, *prompt.encode()],
        codec=SimpleNamespace(encode=lambda text: list(text.encode())),
        end_id=0,
    )
    for step in range(1, 4):
        batch = mode.training_samples(smol, [], random.Random(0))
        wanted = [r for r in rescues if r["step"] == step]
        assert [bytes(sample.prompt_ids[1:]).decode() for sample in batch.samples] == [
            rescue["prompt"] for rescue in wanted
        ]
        assert [bytes(sample.completion_ids[:-1]).decode() for sample in batch.samples] == [
            rescue["source_text"] for rescue in wanted
        ]
        assert {(s.loss, s.completion_ids[-1]) for s in batch.samples} == {("imitation", 0)}
    again = module["FineTuned"](run=mode.run)
    again.restore(json.loads(json.dumps(mode.state())))
    fourth = [r for r in rescues if r["step"] == 4]
    assert len(again.training_samples(smol, [], random.Random(0)).samples) == len(fourth)


def test_what_is_said_of_lora_beside_full_training_was_measured():
    words = sentences_of("data/results/README.md")
    full, _ = short_run("real-pair/sgt-s3", ("qwen", "smol"))

    lora, scores = short_run("lora", ("qwen", "smol"))
    assert len(lora["smol"]) == 20
    for first in (1, 6, 11, 16):
        cells = []
        for policy in ("qwen", "smol"):
            for run in (full, lora):
                rewards = [line["reward"] for line in run[policy][first - 1 : first + 4]]
                cells.append(f"{100 * mean(rewards):.0f}")
        assert f"| {first} to {first + 4} | {' | '.join(cells)} |" in PAGE

    starts, ends = ([f"{100 * of['pass@1']:.0f}" for of in scores[w]] for w in ("before", "after"))
    said = f"brings `qwen` from {starts[0]} to {ends[0]} % and `smol` from {starts[1]} to {ends[1]}"
    assert said in words
    heldout = (RESULTS.parent / "words" / "heldout.jsonl").read_text().splitlines()
    kept = (RESULTS / "lora" / "heldout-90.jsonl").read_text().splitlines()
    assert kept == heldout[::4]

    peaks = [run["smol"][19]["memory/peak_bytes"] / 2**30 for run in (lora, full)]
    assert "reached {:.1f} GiB, that of full training {:.1f}".format(*peaks) in words
    assert peaks[0] < 0.6 * peaks[1]
    seconds = [median(line["time/step_s"] for line in run["smol"][:20]) for run in (lora, full)]
    assert (
        "took {:.0f} seconds at the median, that of full training {:.0f}".format(*seconds) in words
    )


SPECIALISTS = {
    "smol": ("finds", "given", "eats", "sold"),
    "gemma": ("bags", "days", "shares", "packs"),
}


def scores_of_specialists(run, when):
    """Held-out pass@1 in percent: each one's own skills, its peer's, and `loses`."""
    cells = []
    for scores in short_run(f"both-ways/{run}-s1", SPECIALISTS)[1][when]:
        (peers_skills,) = (SPECIALISTS[name] for name in SPECIALISTS if name != scores["policy"])
        for skills in (SPECIALISTS[scores["policy"]], peers_skills, ("loses",)):
            cells.append(100 * mean(scores["skills"][skill]["pass@1"] for skill in skills))
    return cells


def test_a_specialist_learns_right_solutions_of_its_own_skills_alone():
    module = runpy.run_path(RESULTS / "both-ways" / "specialist.py")
    assert module["OWN_SKILLS"] == SPECIALISTS
    smol = SimpleNamespace(
        name="smol",
        prompt_ids=lambda prompt: list(prompt.encode()),
        codec=SimpleNamespace(encode=lambda text: list(text.encode())),
        end_id=0,
    )
    problems = {problem.prompt: problem for problem in module["PROBLEMS"]}
    seen = set()
    for step in range(100):
        batch = module["Specialist"]().training_samples(smol, [], random.Random(step))
        assert len(batch.samples) == 12
        for sample in batch.samples:
            problem = problems[bytes(sample.prompt_ids).decode()]
            text = bytes(sample.completion_ids[:-1]).decode()
            assert plain_verdict(problem.answer, last_box(text), True) is Verdict.CORRECT
            assert (sample.loss, sample.completion_ids[-1]) == ("imitation", 0)
            seen.add(problem.skill)
    assert seen == set(SPECIALISTS["smol"])


def test_what_is_said_of_the_specialists_was_measured():
    words = sentences_of("data/results/README.md")
    ends = {}
    for mode in ("solo", "replay", "sgt"):
        assert scores_of_specialists(mode, "before") == scores_of_specialists("sgt", "before")
        ends[mode] = scores_of_specialists(mode, "after")
    rows = {"start": scores_of_specialists("sgt", "before"), **ends}
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |" in PAGE

    lines, _ = short_run("both-ways/sgt-s1", SPECIALISTS)
    rescues = {name: [line["rescues"] for line in lines[name]] for name in SPECIALISTS}
    totals = {name: sum(counts) for name, counts in rescues.items()}
    assert len(rescues["smol"]) == 40
    assert (
        "`smol` imitated {smol} of `gemma`'s successes and `gemma` {gemma} of `smol`'s".format(
            **totals
        )
        in words
    )
    assert f"{rescues['smol'][0]} and {rescues['gemma'][0]} of them in step 1" in words
    assert 2.5 < totals["gemma"] / totals["smol"] < 3.5  # "three times as many"
    peers = {mode: (of[1], of[4]) for mode, of in rows.items()}
    said = f"`smol` solves {peers['sgt'][0]:.1f} % of its peer's problems at the end, alone"
    alone = f"{said} {peers['solo'][0]:.1f} % and with a memory {peers['replay'][0]:.1f} %"
    assert alone in words
    assert peers["sgt"][0] - peers["replay"][0] < 5  # "comes close to what the peer gives"
    assert max(of_gemma for _, of_gemma in peers.values()) < 4  # "as rarely as before"
    assert max(of[0] for of in ends.values()) < rows["start"][0]  # "pays ... with old ones"

    higher = {
        mode: scores_of_specialists(f"higher-rate/{mode}", "after")
        for mode in ends
        if mode != "replay"
    }
    assert f"solves {higher['sgt'][4]:.1f} % of its peer's problems after `sgt`" in words
    left = (higher["sgt"][3], higher["solo"][3])
    assert "solves {:.1f} % after `sgt` and {:.1f} % after `solo`".format(*left) in words
    said = "ends at {:.1f} % of its own skills and {:.1f} % of its peer's"
    assert said.format(*higher["sgt"][:2]) in words
    assert higher["solo"][:3] == ends["solo"][:3]  # alone, `smol` is as it was

    seconds = {}
    for mode in ("sgt", "solo"):
        of_smol = short_run(f"both-ways/{mode}-s1", SPECIALISTS)[0]["smol"]
        seconds[mode] = f"{median(line['time/step_s'] for line in of_smol):.0f}"
    assert f"took {seconds['sgt']} seconds at the median, one of `solo` {seconds['solo']}" in words
    peak = max(line["memory/peak_bytes"] for line in lines["smol"]) / 2**30
    assert f"reached {peak:.1f} GiB" in words
    for line in (RESULTS / "both-ways" / "rescues.jsonl").read_text().splitlines():
        rescue = json.loads(line)["rescue"]
        cells = [f"`{rescue['receiver']}`", rescue["prompt"]]
        cells += [rescue["receiver_text"], rescue["source_text"]]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_what_is_said_of_the_pilot_of_countdown_was_measured():
    words = sentences_of("data/results/README.md")
    lines, scores = short_run("countdown", ("qwen", "smol"))
    right, attempts, cut = {}, {}, {}
    for name, of_policy in lines.items():
        assert len(of_policy) == 20
        sizes = [line["num_tokens"] / line["completions/mean_length"] for line in of_policy]
        attempts[name] = round(sum(sizes))
        solved = [line["reward"] * size for line, size in zip(of_policy, sizes, strict=True)]
        right[name] = round(sum(solved))
        cut[name] = mean(line["verdict/truncated"] for line in of_policy)
    said = f"found {right['qwen']} right expressions in {attempts['qwen']:,} attempts"
    assert said in words and right["smol"] == 0
    assert f"SmolLM2-135M none in {attempts['smol']:,}" in words
    assert (
        f"completions {cut['qwen']:.0%} and {cut['smol']:.0%} were cut".replace("%", " %") in words
    )
    assert {of["pass@1"] for when in scores.values() for of in when} == {0.0}
    both = f"{sum(right.values())} right answers in {sum(attempts.values()):,}"
    assert both in sentences_of("README.md")


def test_what_is_said_of_the_pair_that_was_not_tuned_was_measured():
    words = sentences_of("data/results/README.md")
    lines_of, scores = short_run("gemma-pair", ("gemma", "smol"))
    assert len(lines_of["smol"]) == 10
    rescues = [sum(line["rescues"] for line in lines_of[name]) for name in ("gemma", "smol")]
    said = "`gemma` imitated {} of `smol`'s successes and `smol` {} of `gemma`'s"
    assert said.format(*rescues) in words
    starts, ends = ([f"{100 * of['pass@1']:.0f}" for of in scores[w]] for w in ("before", "after"))
    said = (
        f"`gemma` goes from {starts[0]} to {ends[0]} % and `smol` from {starts[1]} to {ends[1]} %"
    )
    assert said in words
    peak = lines_of["smol"][-1]["memory/peak_bytes"] / 2**30
    assert f"The process reached {peak:.1f} GiB (" in words


TODAY = "tiny-pair/table.csv"  # solo, replay and sgt
OTHERS = "tiny-pair/other-modes.csv"
SETS = ("heldout", "newtemplates", "thirdset")
KINDS = {
    "own": lambda policy, skill: skill in OWN_SKILLS[policy],
    "rare": lambda policy, skill: skill in RARE_SKILLS[policy],
    "`loses`, two steps": lambda policy, skill: skill == "loses",
    "holes": lambda policy, skill: skill in HOLES[policy],
}
ALL_HOLES = [(policy, skill) for policy, skills in HOLES.items() for skill in skills]


def no_hole(policy, skill):
    """Neither a hole of today's pair nor the mean of all."""
    return skill != "all" and skill not in HOLES[policy]


def peer_rows(part, columns):
    """The kept table's rows of a held-out set, the best mode first, in some columns."""
    kept = (RESULTS / "tiny-pair" / "table.md").read_text(encoding="utf-8")
    of_part = kept.split(f"## {part}\n")[1].split("\n## ")[0]
    return measured_rows(columns, of_part)


def gap_today(one, two, wanted=of_all_skills, part="heldout"):
    """How far mode one is above mode two on today's pair, paired by seed."""
    scores = (today(mode, wanted, part) for mode in (one, two))
    return estimate([a - b for a, b in zip(*scores, strict=True)])


def today(mode, wanted=of_all_skills, part="heldout"):
    """pass@1 by seed on today's pair; `no-band`: hacpo without the lower end of its band."""
    if mode == "no-band":
        return kept_scores("tiny-pair/hacpo-no-band.csv", "hacpo", wanted, part=part)
    if mode.endswith(", one update"):
        name = mode.removesuffix(", one update")
        return kept_scores("tiny-pair/one-update.csv", name, wanted, part=part)
    kept_with_controls = mode in ("solo", "replay", "sgt")
    return kept_scores(TODAY if kept_with_controls else OTHERS, mode, wanted, part=part)


def hole_scores(mode):
    """(set, policy, skill) -> pass@1 of each seed, in the holes of today's pair."""
    return {
        (part, *hole): kept_scores(TODAY, mode, lambda *of, hole=hole: of == hole, part=part)
        for part, hole in product(SETS, ALL_HOLES)
    }


def wider_for_three_seeds(comparisons):
    """How many times as wide Bonferroni makes each 95 % interval over three seeds.

    With 2 degrees of freedom Student's t has a closed quantile.
    """

    def quantile(inside):
        return inside * math.sqrt(2 / (1 - inside**2))

    assert quantile(0.95) == pytest.approx(4.303, abs=1e-3)
    return quantile(1 - 0.05 / comparisons) / quantile(0.95)


def test_the_table_with_a_memory_and_with_a_peer_is_the_measured_one():
    tutorial = text_of("TUTORIAL.md")
    for part in SETS:
        rows = peer_rows(part, "| mode | pass@1 | above solo | above replay | pass@k |")
        assert len(rows) == 3
        for row in rows:
            assert f"| `{part}` {row}" in PAGE

        cells = {row.split(" ")[1]: row.strip("| ").split(" | ") for row in rows}
        ends = [cells[mode][1] for mode in ("solo", "replay", "sgt")]
        assert f"| `{part}` | {' | '.join([*ends, *cells['sgt'][2:4]])} |" in tutorial


def shown_gap(mode, control):
    """A difference on the third set as the pages show it, from unrounded scores where kept."""
    if mode == control:
        return ""
    for row in peer_rows("thirdset", f"| mode | above {control} |"):
        _, name, gap, _ = (cell.strip() for cell in row.split("|"))
        if name == mode:
            return gap
    return str(gap_today(mode, control, part="thirdset"))


def test_the_table_of_all_modes_on_todays_pair_is_the_measured_one():
    place = "thirdset"
    for mode in (*MODES, "no-band", "hacpo, one update", "graft, one update"):
        cells = ["hacpo, no lower end" if mode == "no-band" else mode]
        cells.append(estimate(today(mode, part=place)))
        for control in ("solo", "replay"):
            cells.append(shown_gap(mode, control))
        for kind in ("holes", "rare", "own"):
            cells.append(estimate(today(mode, KINDS[kind], place)))
        assert f"| {' | '.join(map(str, cells))} |" in PAGE, mode


def test_what_is_said_of_all_modes_on_todays_pair_was_measured():
    words, readme = sentences_of("data/results/README.md"), sentences_of("README.md")
    holes = {
        mode: today(mode, KINDS["holes"], "thirdset") for mode in MODES if MODES[mode].consumes
    }
    assert {mode for mode, scores in holes.items() if mean(scores) > 2} == {"sgt", "naive"}
    said = "`sgt` ends at {} % there and `naive` at {} %; every other sharing mode stays"
    assert said.format(*(estimate(holes[mode]) for mode in ("sgt", "naive"))) in readme

    lucky = today("prp", lambda *of: of == ("qwen-tiny", "days"), "thirdset")[0]
    assert f"With seed 1 `prp` had luck with one hole: it gets {lucky:.0f} % of `days`" in words

    naive = gap_today("naive", "solo", KINDS["own"], "thirdset")
    assert naive.clear and naive.mean < 0
    assert f"it ends {str(naive).removeprefix('-')} points below `solo`" in words
    assert f"it ends {str(naive).removeprefix('-')} points below `solo`" in readme
    sgt = gap_today("sgt", "solo", KINDS["own"], "thirdset")
    assert f"on own skills it is {sgt} from `solo`" in words
    assert not gap_today("naive", "replay", part="thirdset").clear

    without = today("no-band", KINDS["holes"], "thirdset")
    banded = today("hacpo, one update", KINDS["holes"], "thirdset")
    fills = "fills the holes without the limit ({} %) and not with it ({} %)"
    assert fills.format(estimate(without), estimate(banded)) in readme
    behind = gap_today("sgt", "no-band", part="thirdset")
    assert not behind.clear
    filled = [estimate(today(mode, KINDS["holes"], "thirdset")) for mode in ("sgt", "no-band")]
    said = "It then ends {} points from `sgt`, which still fills the holes further ({} against {})"
    assert said.format(behind, *filled) in words
    assert gap_today("sgt", "no-band", KINDS["holes"], "thirdset").clear
    assert f"It then ends {behind} points from `sgt`" in sentences_of("TUTORIAL.md")


def test_what_the_lower_end_of_hacpos_band_costs_was_measured():
    both = ("no-band", "hacpo, one update")
    gain = gap_today(*both, part="thirdset")
    in_holes = gap_today(*both, KINDS["holes"], "thirdset")
    assert gain.clear and in_holes.clear
    for page in (sentences_of("data/results/README.md"), sentences_of("TUTORIAL.md")):
        assert f"lifts `hacpo` by {gain} points, and by {in_holes} in the holes" in page
    for kind in ("own", "rare"):
        assert not gap_today(*both, KINDS[kind], "thirdset").clear

    # and that four updates per step cost hacpo and graft what is missing to solo
    readme, tutorial = sentences_of("README.md"), sentences_of("TUTORIAL.md")
    hacpo, graft = (
        gap_today(f"{mode}, one update", "solo", part="thirdset") for mode in ("hacpo", "graft")
    )
    assert f"`hacpo` ends {hacpo} and `graft` {graft} points above `solo`" in tutorial
    for mode in ("hacpo", "graft"):
        one, four = (
            gap_today(name, "solo", part="thirdset") for name in (f"{mode}, one update", mode)
        )
        assert not one.clear
        assert re.search(rf"`{mode}` .*?\| {one}; with four updates[^|]* {four} \|", readme)


NO_LOWER_END = "hacpo, no lower end"


def four_updates(mode, wanted=of_all_skills, part="thirdset"):
    """pass@1 by seed, today's pair, 3e-5 and four updates per step; five seeds."""
    if mode == NO_LOWER_END:
        return kept_scores("tiny-pair/no-band-four-updates.csv", "hacpo", wanted, part=part)
    return kept_scores("tiny-pair/four-updates.csv", mode, wanted, part=part)


def four_gap(one, two, wanted=of_all_skills, part="thirdset"):
    """How far mode one is above mode two with that setting, paired by seed."""
    scores = (four_updates(mode, wanted, part) for mode in (one, two))
    return estimate([a - b for a, b in zip(*scores, strict=True)])


def test_the_table_of_four_updates_is_the_measured_one():
    clear = []
    for mode in (*MODES, NO_LOWER_END):
        scores = four_updates(mode)
        assert len(scores) == 5
        cells = [mode, estimate(scores)]
        for control in ("solo", "replay"):
            cells.append("" if mode == control else four_gap(mode, control))
        for kind in ("holes", "rare", "own"):
            cells.append(estimate(four_updates(mode, KINDS[kind])))
        assert f"| {' | '.join(map(str, cells))} |" in PAGE, mode

        short = cells[:5]  # of the kinds only the holes
        assert f"| {' | '.join(map(str, short))} |" in text_of("TUTORIAL.md"), mode
        if mode != "solo" and four_gap(mode, "solo").clear:
            clear.append(mode)
    assert clear == ["naive", "sgt", NO_LOWER_END]


def test_the_grid_of_settings_is_the_measured_one():
    trials = kept_trials()
    assert trials.keys() == MODES.keys() - {"naive", "prp"}

    behind_best = {}  # by mode: how far 3e-5 with four updates is below the best cell
    for mode, of_mode in trials.items():
        settings = product(("1e-4", "3e-5"), updates_tried(mode))
        cells = [of_mode[setting]["11"] for setting in settings]
        name = "solo-x2: two, eight" if mode == "solo-x2" else mode
        assert f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |" in PAGE
        behind_best[mode] = max(cells) - cells[-1]

    words = sentences_of("data/results/README.md")
    assert [mode for mode, gap in behind_best.items() if gap > 0] == ["graft"]
    said = "the best of four settings for each mode tried but `graft` (one seed)"
    assert said in sentences_of("TUTORIAL.md")
    assert f"for `graft` the best one is {behind_best['graft']:.1f} points above it" in words
    *level, slow_one, slow_four = trials["sgt"].values()
    scores = [of["11"] for of in (*level, slow_four)]
    assert max(scores) - min(scores) < 1
    assert f"too little for it ({slow_one['11']:.1f})" in words
    lucky = trials["replay"]["3e-5", "4"]["11"]
    assert f"its {lucky:.1f} are more than" in words
    assert lucky > max(four_updates("replay", part="heldout"))


def test_what_is_said_of_four_updates_and_of_the_crossing_was_measured():
    words = sentences_of("data/results/README.md")
    pages = [words, sentences_of("TUTORIAL.md"), sentences_of("README.md")]
    one_update = {"hacpo": "hacpo, one update", "graft": "graft, one update"}
    one_update[NO_LOWER_END] = "no-band"
    for mode in (*MODES, NO_LOWER_END):
        three = today(one_update.get(mode, mode))  # seeds 1 to 3
        before, after = mean(three), mean(four_updates(mode, part="heldout")[: len(three)])
        if mode == NO_LOWER_END:
            assert f"reaches {after:.1f} at 3e-5 and {before:.1f} at 1e-4, seeds" in words
            assert before > after
        else:
            assert after > before, mode

    noise = []
    for mode in MODES:
        pairs = zip(
            four_updates(mode, part="heldout"), today(one_update.get(mode, mode)), strict=False
        )
        if not estimate([a - b for a, b in pairs]).clear:
            noise.append(mode)
    assert sorted(noise) == ["hacpo", "naive", "replay", "sgt"]

    over_solo, over_replay = four_gap("sgt", "solo"), four_gap("sgt", "replay")
    for page in pages:
        assert f"{over_solo} points above `solo` and {over_replay} above `replay`" in page
    more = [four_gap("sgt", "replay", part=part) for part in SETS[:2]]
    assert "on `heldout` {}, on `newtemplates` {} above `replay`".format(*more) in words
    assert all(gap.clear for gap in (over_solo, over_replay, *more))
    first_three = []
    for mode in ("sgt", NO_LOWER_END):
        pairs = zip(four_updates(mode)[:3], four_updates("replay")[:3], strict=True)
        first_three.append(estimate([a - b for a, b in pairs]))
    assert f"left that difference open on `thirdset` ({first_three[0]})" in words
    assert f"({first_three[1]} with three seeds," in words
    assert "differences from `replay` open: {} and {}.".format(*first_three) in pages[1]
    assert f"three had given {first_three[0]}," in pages[2]
    assert not any(gap.clear for gap in first_three)
    assert not four_gap("replay", "solo").clear

    pays, pays_rare = (four_gap("naive", "solo", KINDS[kind]) for kind in ("own", "rare"))
    for page in pages[:2]:
        assert f"it ends {str(pays).removeprefix('-')} points below `solo`" in page
        assert f" {four_gap('replay', 'solo')} from `solo`" in page
    assert f"and on rare ones {str(pays_rare).removeprefix('-')}." in words
    assert f"knows and pays {str(pays).removeprefix('-')} points of pass@1 on the" in pages[1]
    assert pays.clear and pays_rare.clear
    gain, factor = four_gap("naive", "solo"), wider(9)
    assert f"on all skills together it is {gain} above `solo`" in words
    assert f"and ends {gain} above `solo`, which is clear among nine modes as well" in pages[1]
    for page in pages[:2]:
        assert f"each interval over five seeds is {factor:.1f} times as wide" in page
    assert gain.mean > factor * gain.half
    no_gap, behind = four_gap("naive", "replay"), four_gap("sgt", "naive")
    assert f"not above `replay` by more than noise ({no_gap}), and `sgt` ends {behind}" in words
    assert f"and `sgt` is {behind} above it" in pages[1]
    assert behind.clear and not no_gap.clear
    over = [four_gap(NO_LOWER_END, control) for control in ("solo", "replay")]
    for page in pages[:2]:
        assert "ends {} above `solo` and {} above `replay`".format(*over) in page
    assert all(gap.clear for gap in over)

    lowest = []
    opened = {}  # by skill: with how many seeds a memory gets above 10 %
    by_seed = [0] * 5  # on the third set: how many skills
    for policy, skill in ALL_HOLES:
        here = lambda *of, hole=(policy, skill): of == hole  # noqa: E731
        lowest += [min(four_updates("sgt", here, part)) for part in SETS]
        opened[skill] = sum(score > 10 for score in four_updates("replay", here, "heldout"))
        for seed, score in enumerate(four_updates("replay", here)):
            by_seed[seed] += score > 10
    assert min(lowest) > 10  # "opens all four holes with each of five seeds"
    assert opened == {"sold": 3, "eats": 2, "bags": 1, "days": 0}
    assert sorted(by_seed) == [0, 0, 0, 1, 2]
    sold = {
        mode: four_updates(mode, lambda *of: of == ("qwen-tiny", "sold"))
        for mode in ("replay", "sgt")
    }
    assert max(sold["replay"]) < 3  # "hardly any of `sold` is left on `thirdset`"
    assert f"only to between {min(sold['sgt']):.0f} and {max(sold['sgt']):.0f} %" in words

    ahead, in_holes = (four_gap("sgt", NO_LOWER_END, of) for of in (of_all_skills, KINDS["holes"]))
    said = f"cannot tell it from `sgt` ({ahead} above it), but in the holes `sgt` ends {in_holes}"
    assert not ahead.clear and in_holes.clear and said in words
    crossing = kept_scores("tiny-pair/crossing.csv", "crossing", part="thirdset")
    by_seed = zip(crossing, today("sgt", part="thirdset"), strict=True)
    apart = estimate([a - b for a, b in by_seed])
    said = f"It ends at {estimate(crossing)} %, {apart} points from `sgt`"
    assert not apart.clear and said in words


def test_the_kept_table_is_that_of_the_kept_numbers():
    for part in SETS:
        for row in peer_rows(part, "| mode | pass@1 |"):
            _, mode, score, _ = (cell.strip() for cell in row.split("|"))
            assert score == str(estimate(kept_scores(TODAY, mode, part=part)))


def test_the_table_by_kind_of_skill_is_the_measured_one():
    kept = json.loads((RESULTS / "sgt-s0" / "evaluation.json").read_text(encoding="utf-8"))
    rows = [(name, "heldout", name) for name in KINDS]
    rows += [(f"holes, `{part}`", part, "holes") for part in SETS[1:]]
    for name, part, kind in rows:
        before = [
            100 * scores["pass@1"]
            for entry in kept["before"]
            for skill, scores in entry["skills"].items()
            if entry["part"] == part and KINDS[kind](entry["policy"], skill)
        ]
        cells = [name, f"{mean(before):.1f}" if before else ""]
        for mode in ("solo", "replay", "sgt"):
            cells.append(str(estimate(kept_scores(TODAY, mode, KINDS[kind], part=part))))
        assert f"| {' | '.join(cells)} |" in PAGE


def test_what_is_said_of_the_peer_was_measured():
    words = sentences_of("data/results/README.md")
    above_replay = [gap_today("sgt", "replay", part=part) for part in SETS]
    said = "by {}, {} and {} points on the three sets".format(*above_replay)
    assert said in words
    times = wider_for_three_seeds(3)
    assert f"each interval is {times:.1f} times as wide, and all three" in words
    assert all(gap.mean > times * gap.half for gap in above_replay)
    for part in SETS:  # the points come from the holes
        for control in ("solo", "replay"):
            assert gap_today("sgt", control, KINDS["holes"], part).clear
            assert not gap_today("sgt", control, no_hole, part).clear
    others = [gap_today("sgt", control, no_hole) for control in ("solo", "replay")]
    assert "`sgt` is {} points from `solo` and {} from `replay`".format(*others) in words

    two_steps = gap_today("sgt", "solo", KINDS["`loses`, two steps"], "thirdset")
    assert two_steps.clear and two_steps.mean < 0
    assert f"`loses`, ends {str(two_steps).removeprefix('-')} below `solo`" in words

    of_sgt = hole_scores("sgt")
    lowest = min(of_sgt, key=lambda place: min(of_sgt[place]))
    assert lowest == ("thirdset", "qwen-tiny", "sold") and min(of_sgt[lowest]) > 10
    assert f"`qwen-tiny`, {min(of_sgt[lowest]):.0f} % with one seed on `thirdset`" in words
    assert max(max(scores) for scores in hole_scores("solo").values()) < 1


LUCKY = [("llama-tiny", "eats"), ("qwen-tiny", "sold")]  # holes in which a memory had luck


def test_what_is_said_of_the_memory_was_measured():
    words = sentences_of("data/results/README.md")
    for part, kind in product(SETS, (of_all_skills, *KINDS.values())):
        assert not gap_today("replay", "solo", kind, part).clear

    scores = hole_scores("replay")
    seed_2 = [scores[part, "qwen-tiny", "sold"][1] for part in ("heldout", "thirdset")]
    eats = scores["heldout", "llama-tiny", "eats"][1]
    assert f"a hole of `llama-tiny`, `eats` ({eats:.0f} %)" in words
    said = "part of `sold` of `qwen-tiny` ({:.0f} %, on `thirdset` {:.0f} %)".format(*seed_2)
    assert said in words
    rest = [
        score
        for (_, policy, skill), of_seeds in scores.items()
        for number, score in enumerate(of_seeds, start=1)
        if number != 2 or (policy, skill) not in LUCKY
    ]
    assert len(rest) == 30 and 3 < max(rest) < 4

    kept = json.loads((RESULTS / "replay-s0" / "evaluation.json").read_text(encoding="utf-8"))
    of = {entry["policy"]: entry["skills"] for entry in kept["after"] if entry["part"] == "heldout"}
    eats, sold = (100 * of[policy][skill]["pass@1"] for policy, skill in LUCKY)
    assert f"it got {eats:.0f} % of `eats` and {sold:.0f} % of `sold`" in words
    for control, part in product(("solo", "replay"), SETS):
        assert not gap_today("sgt", control, KINDS["rare"], part).clear


def test_the_tutorials_rows_of_whole_runs_are_the_measured_ones():
    tutorial = text_of("TUTORIAL.md")
    for name, skills in (("rare", RARE_SKILLS), ("hole", HOLES)):
        for policy, skill in ((p, s) for p, found in skills.items() for s in found):
            cells = [f"`{policy}`, {name}", skill]
            for mode in ("solo", "replay", "sgt"):
                scores = kept_scores(TODAY, mode, lambda *of, it=(policy, skill): of == it)
                cells.append(f"{mean(scores):.0f}")
            assert f"| {' | '.join(cells)} |" in tutorial


@pytest.mark.parametrize("mode", ["solo", "replay", "sgt"])
def test_the_kept_runs_are_whole_and_of_todays_pair(mode):
    kept = RESULTS / f"{mode}-s0"
    config = json.loads((kept / "config.json").read_text(encoding="utf-8"))
    assert (config["mode"], config["seed"], config["steps"]) == (mode, 0, 240)
    paths = [policy["path"] for policy in config["policies"]]
    paths += [config["train"], *config["heldout"]]
    assert all((ROOT / path).exists() and not path.startswith("/") for path in paths)

    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * config["steps"]
    if mode == "sgt":
        rescued = sum(line["rescues"] for line in lines if line["policy"] == "llama-tiny")
        assert f"it was rescued {rescued} times ({rescued} from qwen-tiny)" in text_of(
            "TUTORIAL.md"
        )
