"""What data/results/README.md, TUTORIAL.md and README.md say was measured is in data/results."""

import csv
import json
import re
import shutil
from pathlib import Path
from statistics import mean, median

import pytest

import mini_mrl
from mrl.experiment.evaluation import half_width
from mrl.lab.compare_view import estimate

ROOT = Path(mini_mrl.__file__).parent
RESULTS = ROOT / "data" / "results"
DOCUMENTS = ("README.md", "TUTORIAL.md", "data/results/README.md")


def text_of(document):
    """Without line breaks, and without the mark of what is being measured again."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return text.replace(" †", "")


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
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
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
    assert drawn == {path.name for path in (kept / "figures").iterdir()}


def measured_rows(document_line, heldout):
    """The rows of the kept table in the columns that a document shows."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in heldout.splitlines()
        if line.startswith("|")
    )
    columns = [head.index(cell.strip()) for cell in document_line.strip("|").split("|")]
    return [f"| {' | '.join(row[column] for column in columns)} |" for row in rows]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_table_of_modes_is_the_measured_one(document):
    text = text_of(document)
    kept = (RESULTS / "tiny-pair" / "table.md").read_text(encoding="utf-8")
    heldout = kept.split("## newtemplates")[0]
    shown = next(line for line in text.splitlines() if line.startswith("| mode | pass@1"))
    rows = measured_rows(shown, heldout)
    assert len(rows) == 8
    assert all(row in text for row in rows)
    words = " ".join(text.split())
    beaten = re.findall(r"beats `(solo|hacpo)` by (\d+\.\d ± \d+\.\d)", words)
    beaten += re.findall(r"`(solo-x2)`(?:, which[^,]+,)? by (\d+\.\d ± \d+\.\d)", words)
    beaten += re.findall(r"`hacpo` was above `(solo)` by (\d+\.\d ± \d+\.\d)", words)
    assert len(beaten) >= 1
    for control, gain in beaten:
        assert f" beats {control} by {gain} points" in heldout, (control, gain)


CLOSED = {("qwen-tiny", "sold"), ("llama-tiny", "eats")}  # what `solo` never gets right


def kept_scores(path, mode, wanted=lambda policy, skill: skill == "all"):
    """Held-out pass@1 by seed, mean over what is wanted, from a table under data/results."""
    scores = {}
    with (ROOT / "data" / "results" / path).open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            of = line["mode"], line["part"], line["metric"]
            if of == (mode, "heldout", "pass@1") and wanted(line["policy"], line["skill"]):
                scores.setdefault(line["seed"], []).append(float(line["value"]))
    return [mean(values) for values in scores.values()]


def open_skill(policy, skill):
    """Neither closed nor the mean of all."""
    return skill != "all" and (policy, skill) not in CLOSED


def above(one, two, wanted=open_skill):
    """How far one (path, mode) is above another, paired by the seeds that both have."""
    pairs = zip(kept_scores(*one, wanted), kept_scores(*two, wanted), strict=False)
    return estimate([a - b for a, b in pairs])


def test_the_table_of_lies_is_the_measured_one():
    for weight, honest, believed in (
        ("0.1", "tiny-pair/table.csv", "liar/believed.csv"),
        ("1.0", "liar/honest-w1.csv", "liar/believed-w1.csv"),
    ):
        two = kept_scores(honest, "sgt")[:3], kept_scores(believed, "sgt")
        cost = estimate([b - a for a, b in zip(*two, strict=True)])
        cells = (", ".join(f"{value:.1f}" for value in values) for values in two)
        assert f"| {weight} | {' | '.join(cells)} | {cost} |" in PAGE
    solo = "tiny-pair/table.csv", "solo"
    for path, place in (("liar/believed-w1.csv", "below"), ("liar/honest-w1.csv", "above")):
        apart = above((path, "sgt"), solo, lambda policy, skill: skill == "all")
        assert (apart.mean < 0) == (place == "below")
        assert str(apart).removeprefix("-") in PAGE
    for path, mode, learnt in (
        ("liar/believed-w1.csv", "sgt", False), ("liar/honest-w1.csv", "sgt", True), (*solo, True)
    ):  # fmt: skip
        shares = kept_scores(path, mode, lambda policy, skill: skill == "loses")
        assert min(shares) > 40 if learnt else max(shares) < 1


@pytest.mark.parametrize(
    ("changed", "path", "modes"),
    [
        ("nothing", "tiny-pair/table.csv", ("solo", "sgt", "graft")),
        ("a group of 4", "sweeps/group4.csv", ("solo", "sgt", "graft")),
        ("a warm start", "sweeps/foreign10.csv", ("solo", "sgt", "graft")),
        ("`sgt.imitation_weight`", "liar/honest-w1.csv", ("", "sgt", "")),
        ("`graft.minibatches`", "sweeps/one-update.csv", ("", "", "graft")),
        ("`solo.minibatches`", "sweeps/four-updates.csv", ("solo", "", "")),
    ],
)
def test_the_table_of_what_was_changed_is_the_measured_one(changed, path, modes):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {changed}"))
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    scores = [kept_scores(path, mode) if mode else [] for mode in modes]
    seeds = max(len(values) for values in scores)
    assert cells == [str(seeds), *(str(estimate(values)) if values else "" for values in scores)]


def test_the_curves_in_bfloat16_stand_beside_those_in_float32():
    for dtype, folder in (("float32", "tiny-pair"), ("bfloat16", "mixed")):
        with (ROOT / "data" / "results" / folder / "curves.csv").open(encoding="utf-8") as file:
            rate = {(row["mode"], row["step"]): float(row["mean"]) for row in csv.DictReader(file)}
        for mode in ("solo", "sgt"):
            cells = (f"{rate[mode, step]:.1%}" for step in ("60", "120", "180", "240"))
            assert f"| {mode}, {dtype} | {' | '.join(cells)} |" in PAGE
    sgt, solo = (estimate(kept_scores("mixed/table.csv", mode)) for mode in ("sgt", "solo"))
    assert f"(held-out `sgt` {sgt}, `solo` {solo})" in " ".join(PAGE.split())


def test_what_each_mode_opens_and_pays_is_measured():
    table = "tiny-pair/table.csv"
    for mode in ("solo", "xgrpo", "solo-x2", "prp", "naive", "hacpo", "graft", "sgt"):
        cells = [
            str(estimate(kept_scores(table, mode, lambda *of, closed=closed: of == closed)))
            for closed in sorted(CLOSED, reverse=True)
        ]
        cells.append("" if mode == "solo" else str(above((table, mode), (table, "solo"))))
        assert f"| {mode} | {' | '.join(cells)} |" in PAGE


def test_the_control_with_four_updates_is_the_measured_one():
    four, table = ("sweeps/four-updates.csv", "solo"), "tiny-pair/table.csv"
    text = " ".join(PAGE.split())

    def all_skills(policy, skill):
        return skill == "all"

    cost = above(four, (table, "solo"), all_skills)
    assert cost.clear and cost.mean < 0  # so says TUTORIAL.md, too
    costs = str(cost)
    gains = [str(above((table, mode), four, all_skills)) for mode in ("hacpo", "graft")]
    alone = str(estimate(kept_scores(*four)))
    assert f"ends at {alone}, {costs.removeprefix('-')} below `solo` with one" in text
    assert f"it ends at {alone} with four" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"`hacpo` gains {gains[0]}, and `graft` {gains[1]}" in text
    graft = "sweeps/one-update.csv", "graft"
    level, kept = above(graft, (table, "solo"), all_skills), above(graft, (table, "solo"))
    assert f"level with it ({level}, seeds 1 to 4), keeps the other skills ({kept})" in text
    sgt = above(("sweeps/foreign10.csv", "sgt"), ("sweeps/foreign10.csv", "solo"), all_skills)
    assert f"({sgt} with the other warm start)" in text


def test_what_the_tutorial_quotes_is_the_measured_one():
    words = sentences_of("TUTORIAL.md")
    pays = above(("tiny-pair/table.csv", "naive"), ("tiny-pair/table.csv", "solo"))
    assert f"pays {str(pays).removeprefix('-')} points on all other skills" in words
    costs = {
        weight: estimate([
            b - a
            for a, b in zip(kept_scores(honest, "sgt"), kept_scores(believed, "sgt"), strict=False)
        ])
        for weight, honest, believed in (
            ("0.1", "tiny-pair/table.csv", "liar/believed.csv"),
            ("1.0", "liar/honest-w1.csv", "liar/believed-w1.csv"),
        )
    }  # fmt: skip
    lost = {weight: str(cost).removeprefix("-") for weight, cost in costs.items()}
    assert f"lost {lost['0.1']} points at the published weight lambda = 0.1" in words
    assert f"and {lost['1.0']} at 1.0" in words
    assert costs["1.0"].clear
    assert not costs["0.1"].clear


def test_the_readmes_first_sentence_is_the_measured_one():
    words = sentences_of("README.md")
    sgt, solo = (str(estimate(kept_scores("tiny-pair/table.csv", m))) for m in ("sgt", "solo"))
    assert f"**{sgt} %** of held-out problems are solved" in words
    assert f"**{solo} %**" in words
    before = json.loads((RESULTS / "sgt-s0" / "evaluation.json").read_text(encoding="utf-8"))
    start = mean(s["pass@1"] for s in before["before"] if s["part"] == "heldout")
    assert words.count(f"start: {100 * start:.1f} with seed 0)") == 2


def real_run(mode):
    kept = RESULTS / "real-pair" / f"{mode}-s1"
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    smol = [line for line in lines if line["policy"] == "smol"]
    return smol, json.loads((kept / "evaluation.json").read_text())


def percent(lines, key, first, last):
    return f"{100 * mean(line[key] for line in lines[first - 1 : last]):.0f} %"


def test_what_is_said_of_the_pretrained_models_was_measured():
    (solo, scored), (sgt, rescued) = real_run("solo"), real_run("sgt")
    rows = [("start", scored["before"]), ("solo", scored["after"]), ("sgt", rescued["after"])]
    cells = {
        name: [f"{100 * s['pass@1']:.1f} ± {100 * half_width(s):.1f}" for s in scores]
        for name, scores in rows
    }
    assert scored["before"] == rescued["before"]
    for document in ("TUTORIAL.md", "data/results/README.md"):
        for name, found in cells.items():
            assert f"| {name} | {' | '.join(found)} |" in text_of(document), (document, name)
    words = sentences_of("data/results/README.md")
    gap = rescued["after"][1]["pass@1"] - scored["after"][1]["pass@1"]
    assert f"The {100 * gap:.1f} points between the two are one seed's" in words
    early = [percent(run, "reward", 11, 20) for run in (sgt, solo)]
    overall = [percent(run, "reward", 1, 60) for run in (sgt, solo)]
    failing = [percent(run, "groups/all_fail", 51, 60) for run in (sgt, solo)]
    assert f"{percent(solo, 'groups/all_fail', 1, 10)} of its groups in the first ten" in words
    assert "in steps 11 to 20 it solves {} (`solo`: {})".format(*early) in words
    assert "over all 60 steps {} (`solo`: {})".format(*overall) in words
    assert "at the end {} of its groups are still all-fail (`solo`: {}".format(*failing) in words
    assert f"imitated {sum(line['rescues'] for line in sgt)} of" in words
    first = sentences_of("README.md")
    assert (
        "solved {} of its training prompts over 60 steps with `sgt` and {} alone".format(*overall)
        in first
    )
    assert f"ended at {cells['sgt'][1]} and {cells['solo'][1]} %" in first
    seconds = [f"{median(line['time/step_s'] for line in run):.0f}" for run in (solo, sgt)]
    assert "A step took {} seconds (`solo`) and {} (`sgt`) at the median".format(*seconds) in words
    with (RESULTS / "real-pair" / "memory.csv").open(newline="") as file:
        memory = list(csv.DictReader(file))
    peak = float(memory[-1]["peak_gib"])
    assert f"reached {peak:.1f} GiB in its first steps" in words
    flat = [row for row in memory if float(row["peak_gib"]) == peak]
    assert len(flat) > 0.7 * len(memory)
    for line in (RESULTS / "real-pair" / "rescues.jsonl").read_text().splitlines():
        rescue = json.loads(line)["rescue"]
        shown = [rescue["prompt"], rescue["receiver_text"], rescue["source_text"]]
        assert f"| {' | '.join(shown)} |" in text_of("data/results/README.md")
