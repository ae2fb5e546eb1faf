"""What README.md, the two courses and data/results/README.md say was measured is in data/results.

data/results/tables.py writes their tables. tests/results_numbers.toml lists the numbers that stand
in sentences, by how they are computed.
"""

import importlib.util
import json
import math
import random
import re
import runpy
import tomllib
from collections import Counter
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest

import mini_mrl
from mrl.config import PolicyConfig
from mrl.models.loading import load_policy
from mrl.reward import Verdict
from mrl.run.evaluation import count_solved, load_heldout, score_entries
from mrl.run.intervals import T_95
from mrl.tiny.pair import BATCH, PAIR, UPDATES, demonstrations
from mrl.verifier.plain import last_box, plain_verdict

ROOT = Path(mini_mrl.__file__).parent
RESULTS = ROOT / "data" / "results"


def load_tables():
    spec = importlib.util.spec_from_file_location("tables", RESULTS / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load_tables()
NUMBERS = tomllib.loads((ROOT / "tests" / "results_numbers.toml").read_text(encoding="utf-8"))


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


PAGE = text_of("data/results/README.md")

# ---------------------------------------------------------------------------------- the tables


@pytest.mark.parametrize("document", tables.DOCUMENTS)
def test_no_table_is_stale(document):
    again = "run `python data/results/tables.py`"
    assert tables.stale(text_of(document)) == [], again


def test_every_table_stands_somewhere_and_every_marker_is_closed():
    pages = [text_of(document) for document in tables.DOCUMENTS]
    shown = [name for page in pages for name, _ in tables.PLACE.findall(page)]
    assert sorted(shown) == sorted(tables.TABLES)
    begun = [name for page in pages for name in re.findall(r"<!-- table: (\S+) -->", page)]
    assert begun == shown


def test_the_script_names_a_stale_table_and_mends_it(tmp_path, monkeypatch, capsys):
    for document in tables.DOCUMENTS:
        copy = tmp_path / document
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text_of(document).replace("| 16.6 ± 3.1 |", "| 61.6 ± 3.1 |"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1
    assert "data/results/README.md: table twins-peers" in capsys.readouterr().out
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    page = "data/results/README.md"
    assert (tmp_path / page).read_text() == text_of(page)


def test_a_comparison_that_nobody_ran_gives_no_number(monkeypatch):
    monkeypatch.setitem(tables.FILES, "result 1", "tiny-pair/nobody-ran-this.csv")
    with pytest.raises(tables.NotMeasured):
        tables.scores("result 1", "solo")
    with pytest.raises(tables.NotMeasured):
        tables.scores("five", "a mode that nobody ran")
    assert tables.cell(tables.end, "result 1", "solo") == tables.NOT_YET
    seen = {row.split(" | ")[2] for row in tables.predictions()[2:] if row.startswith("| 1 ")}
    assert seen == {tables.NOT_YET}


def test_a_prediction_is_held_against_the_mean_of_all_seeds(monkeypatch):
    ends = {"one": [60.0, 70.0, 62.0], "two": [50.0, 52.0, 54.0]}
    monkeypatch.setattr(tables, "scores", lambda source, mode, *which, **more: ends[mode])
    assert tables.ends_between("", "one", 58, 64) == (str(tables.estimate(ends["one"])), True)
    assert tables.ends_between("", "one", 58, 63)[1] is False
    assert tables.is_above("", "one", "two", 12, 12.1)[1] is True
    assert tables.is_above("", "one", "two", 12.1)[1] is False
    cases = {"one": "19 of 20", "two": "0 of 20"}
    monkeypatch.setattr(tables, "closed", lambda source, mode: cases[mode])
    assert [tables.closes(mode, 35 / 40, 1)[1] for mode in cases] == [True, False]


def test_the_ratios_of_a_solution_are_those_of_its_tokens():
    numbers_of = runpy.run_path(str(RESULTS / "ratios.py"))["numbers_of"]
    own, peers = [0.5, 0.001, 0.009], [1.0, 1.0, 0.89]
    policy = SimpleNamespace(logprobs_of=lambda prompts, completions: [list(map(math.log, own))])
    sample = SimpleNamespace(
        prompt_ids=[1], completion_ids=[2, 3, 4], behavior_logprobs=list(map(math.log, peers))
    )
    count, low, lowest, whole = numbers_of(policy, sample)
    assert (count, low) == (3, 1)
    assert lowest == pytest.approx(0.001)
    assert whole == pytest.approx((0.5 * 0.001 * 0.009 / 0.89) ** (1 / 3))


def test_the_better_untrained_model_answers_for_each_skill(monkeypatch):
    rows = [
        {"split": "test", "metric": "pass@1", "policy": policy, "skill": skill, "before": before}
        for policy, skill, before in (
            ("qwen-tiny", "sold", "0"), ("llama-tiny", "sold", "90"), ("qwen-tiny", "given", "20"),
            ("llama-tiny", "given", "10"), ("qwen-tiny", "all", "99"), ("llama-tiny", "all", "99"),
        )
    ]  # fmt: skip
    monkeypatch.setattr(tables, "kept_rows", lambda path: rows)
    assert tables.oracle("all") == 55
    assert tables.oracle("blind") == 90


def test_the_marks_of_the_picture_are_the_kept_scores():
    drawn = runpy.run_path(str(RESULTS / "draw.py"))["kept_and_learned"]()
    (axes,) = drawn.axes
    marks = sorted(tuple(mark) for dots in axes.collections for mark in dots.get_offsets().tolist())
    wanted = []
    for mode in (*tables.TRAINED_WITH, "hint-anew"):
        pairs = [tables.scores("result 1", mode, of) for of in ("blind", "strong")]
        wanted += zip(*pairs, strict=True)
        assert len(pairs[0]) >= 5
    assert marks == sorted(wanted)


def test_a_curve_has_the_mean_reward_of_both_policies_in_40_steps(tmp_path):
    rewards = [(1, 0.25), (40, 0.75), (40, 0.5), (41, 1.0)]
    lines = [json.dumps({"step": step, "reward": reward}) for step, reward in rewards]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = runpy.run_path(str(RESULTS / "curves.py"))["solved_by_window"](tmp_path)
    assert found == {40: 50, 80: 100}


def test_an_attempt_has_the_right_operation_or_calculates_correctly(tmp_path, monkeypatch):
    attempts = [  # of qwen-tiny, which begins with the first of a problem
        (200, "sold", "31-12=19. \\boxed{19}", "correct"),
        (201, "sold", "31-12=19. \\boxed{19}", "correct"),
        (240, "sold", "31-12: 31-10=21. \\boxed{21}", "wrong"),
        (240, "sold", "31+12=43. \\boxed{43}", "wrong"),
        (240, "sold", "eggs", "unparsed"),
        (240, "loses", "3*5=15. \\boxed{15}", "wrong"),  # two operations
    ]
    lines = [
        {"step": step, "policy": "qwen-tiny", "problem": f"train-{skill}-001"}
        | {"text": text, "verdict": verdict}
        for step, skill, text, verdict in attempts
    ]
    lines.append({"step": 240, "rescue": {"skill": "sold"}})
    log = tmp_path / "runs" / "sgt-s81" / "samples.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    program = runpy.run_path(str(RESULTS / "operations.py"))
    counts = Counter()
    program["count"](log, counts)
    found = {what: counts[240, "qwen-tiny", "sold", what] for what in program["COUNTED"]}
    assert found == {"attempts": 4, "right operation": 2, "correct": 1}
    assert {skill for _, _, skill, _ in counts} == {"sold"}
    assert counts[200, "qwen-tiny", "sold", "correct"] == 1

    row = {"pair": "p", "mode": "m", "until step": "240", "policy": "qwen-tiny", "skill": "sold"}
    row |= found
    other = row | {"skill": "days", "attempts": 9}
    monkeypatch.setattr(tables, "kept_rows", lambda path: [row, other])
    assert tables.right_shares("p", "m", "blind", True) == (50, 50)
    assert tables.right_shares("p", "m", "blind", False) == (pytest.approx(200 / 9), 50)
    with pytest.raises(tables.NotMeasured):
        tables.right_shares("p", "m", "strong", True)


# ------------------------------------------------------------------------ numbers in sentences

MEASURED = re.compile(r"(?:-?\d+\.\d+ )?± \d+\.\d+|\b\d+ of (?:the |these |its |all )?\d+\b")


def sentences_of(page):
    """A page without its code and without the tables that the script writes."""
    page = re.sub(r"^```.*?^```$", "", tables.PLACE.sub("", page), flags=re.M | re.S)
    page = re.sub(r"^> ?", "", page.replace("*", ""), flags=re.M)
    return re.sub(r" of (the|these|its|all) (?=\d)", " of ", " ".join(page.split()))


def measured(how):
    """What the kept files give for an entry of results_numbers.toml, as a page writes it."""
    how, _, demand = how.partition("; ")
    kind, _, what = how.partition(": ")
    if kind == "other":
        return OTHER[what]() if callable(OTHER[what]) else OTHER[what]
    modes, split, of = what.split(", ")
    source = kind.removeprefix("closed ")
    if kind != source:
        return tables.closed(source, modes, of, split)
    one, _, two = modes.partition(" - ")
    if not two:
        score = tables.estimate(tables.scores(source, one, of, split))
        return f"{score.mean:.0f}%" if demand == "%" else str(score)
    gain = tables.difference(source, one, two, of, split)
    assert not demand or gain.clear == (demand == "clear"), how
    return str(gain).removeprefix("-")  # "2.0 ± 1.0 below"


@pytest.mark.parametrize("document", NUMBERS)
def test_the_numbers_in_the_sentences_of_a_page_are_those_of_the_kept_files(document):
    said = sentences_of(text_of(document))
    listed = {measured(how): how for how in NUMBERS[document]}
    for number, how in listed.items():
        assert re.search(rf"(?<![\d.±]){re.escape(number)}(?!\d|\.\d)", said), (number, how)
    if document in tables.DOCUMENTS:
        known = set(MEASURED.findall("\n".join(listed)))
        assert {number.removeprefix("-") for number in MEASURED.findall(said)} <= known


# ------------------------------------------------------------------------------ other sources

REAL_SGT = [tables.lines_of(f"real-pair/sgt-s{seed}") for seed in tables.REAL_SEEDS]
GPU = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))
FIGURES = tables.gpu()


def span(values, digits=0, between="to"):
    return f"{min(values):.{digits}f} {between} {max(values):.{digits}f}"


@cache
def prompts_shown(policy):
    """All prompts that the warm start had shown to a policy."""
    return {prompt for prompt, _ in islice(demonstrations(policy, 0), UPDATES[policy] * BATCH)}


@cache
def shown(policy, split="validation"):
    """How many prompts of a set the warm start had shown to a policy."""
    prompts = prompts_shown(policy)
    lines = (ROOT / "data" / "words" / f"{split}.jsonl").read_text().splitlines()
    return str(sum(json.loads(line)["prompt"] in prompts for line in lines))


def known_before(policy):
    """Percent of its later blind spots that a pretrained model solved as released."""
    return [
        100
        * tables.final_scores(f"real-pair/solo-s{seed}", "before")[policy]["skills"][s]["pass@1"]
        for seed, s in product(tables.REAL_SEEDS, tables.REAL_BLIND_SPOTS[policy])
    ]


def step(placement):
    whole = FIGURES[f"whole-{placement}"]
    return mean(of["step_s"] for name, of in whole.items() if name[-1] in "23")


def in_a_run(name, phase, steps=(2, 3)):
    return [FIGURES["whole-resident"][f"{name} {number}"][phase] for number in steps]


OTHER = {  # name -> a number, or a function that gives it
    "what an interval is": "95 of 100",
    "GRAFT's paper, one model": "47.9%",
    "GRAFT's paper, the other": "18.7%",
    "Student's t, three seeds": f"± {T_95[0]:.2f}",
    "shown to qwen-tiny": lambda: shown("qwen-tiny"),
    "imitated by smol": lambda: span([tables.total(of["smol"], "rescues") for of in REAL_SGT]),
    "imitated by qwen": lambda: span([tables.total(of["qwen"], "rescues") for of in REAL_SGT]),
    "known before by qwen": lambda: f"{span(known_before('qwen'))}%",
    "parts of the session on a GPU": (
        f"{sum(GPU[name]['good'] for name in FIGURES)} of {len(FIGURES)}"
    ),
    "learning of SmolLM2 alone": f"{FIGURES['update-smollm2']['seconds_4096']:.1f} seconds",
    "learning of SmolLM2 in a run": lambda: span(in_a_run("smollm2", "learn_s", (1, 2, 3)), 1),
    "step, resident": f"{step('resident'):.0f} seconds",
    "memory, resident": f"{FIGURES['whole-resident']['peak']} GiB",
    "step, swap": f"{step('swap'):.0f} seconds",
    "memory, swap": f"{FIGURES['whole-swap']['peak']} GiB",
}


def test_the_rows_of_a_step_that_were_measured_are_in_the_kept_files():
    rows = [line.split(" | ") for line in text_of("tests/bench/README.md").splitlines()]
    (h100,) = (cells for cells in rows if cells[0].startswith("| H100") and "measured" in cells[-1])
    names = ("qwen2.5", "smollm2")
    seconds = mean(x for name in names for x in in_a_run(name, "step_s"))
    for phase in ("rollout_s", "learn_s"):
        assert " and ".join(f"{mean(in_a_run(name, phase)):.1f}" for name in names) in h100
    assert f"{seconds:.1f}" in h100 and OTHER["memory, resident"] in h100
    assert f"{2 * 128 * 400 / seconds:,.0f}"[:-2] + "00" in h100

    tokens = sum(line["num_tokens"] for of in tables.lines_of("sgt-s0").values() for line in of)
    (cpu,) = (cells for cells in rows if f"{tokens / 240 / 256:.0f} on average" in cells)
    assert f"at least {tokens / 240:,.0f}"[:-2] + "00" in cpu  # 240 steps take under 240 seconds


# ------------------------------------------------------- what is said of them without a number


def gap(one, two, of="all", split="test", source="modes"):
    return tables.difference(source, one, two, of, split)


def test_what_is_said_of_the_shipped_pair_holds():
    """The claims of data/results/README.md."""
    gap = partial(tables.difference, "result 1")
    spots = {"sold": "qwen-tiny", "days": "qwen-tiny", "eats": "llama-tiny", "bags": "llama-tiny"}
    seeds = len(tables.scores("result 1", "solo"))
    closing = {
        mode: {
            skill
            for skill, policy in spots.items()
            if tables.closed("result 1", mode, f"{policy} {skill}") == f"{seeds} of {seeds}"
        }
        for mode in ("solo", "replay", "sft", "rft", "sgt", "hint", "hint-anew")
    }
    for mode, luck in (("solo", 0), ("replay", 2), ("hint-anew", 0)):  # `bags`, in most runs
        counts = {
            skill: tables.count(tables.closed("result 1", mode, f"{policy} {skill}"))
            for skill, policy in spots.items()
        }
        bags = counts.pop("bags")
        if mode == "replay":  # section 6b of the tutorial
            assert counts == {"sold": 1, "days": 1, "eats": 2}
        assert bags > seeds / 2 and max(counts.values()) <= luck
        assert mode != "solo" or bags == seeds - 1
    assert closing["sft"] == closing["rft"] == closing["sgt"] == {"days", "bags"}
    assert closing["hint"] == set(spots)
    assert mean(tables.scores("result 1", "sft")) < tables.before("all")
    assert gap("sgt", "solo").clear and -5 < gap("sgt", "solo").mean < 0
    for other in ("solo", "sgt", "hint-anew", "sft", "rft", "replay"):
        assert gap("hint", other).mean > 0 and gap("hint", other).clear
    for mode in ("sft", "rft", "sgt", "hint"):  # what a peer costs
        assert gap(mode, "solo", "strong").mean < 0


def spot_of(skill):
    (policy,) = (policy for policy, skills in tables.SPOTS.items() if skill in skills)
    return f"{policy} {skill}"


def test_what_is_said_of_the_controls_of_hint_holds():
    def above(one, two):
        found = tables.gap(tables.of_five(one), tables.of_five(two))
        return found.mean > 0 and found.clear

    assert above("hint", "hint-whole") and above("hint", "hint-elsewhere")
    assert above("hint-elsewhere", "hint-anew") and above("hint-elsewhere", "sgt")
    assert abs(mean(tables.of_five("hint-whole")) - mean(tables.of_five("sgt"))) < 2
    for mode in ("hint-whole", "hint-elsewhere"):
        for spot, closed in (("days", 5), ("bags", 5), ("sold", 0), ("eats", 0)):
            assert tables.closed("hint controls", mode, spot_of(spot)) == f"{closed} of 5"
    assert tables.correct_share("hint-elsewhere") < 5 and tables.correct_share("hint-members") > 50
    lucky = [
        row
        for row in tables.kept_rows("tiny-pair/second-attempts.csv")
        if row["mode"] == "hint-elsewhere"
    ]
    imitated, right = (
        sum(int(row[column]) for row in lucky)
        for column in ("imitated in blind spots", "right operation")
    )
    assert right > 0.95 * imitated > 0  # nearly all
    assert tables.closed("hint controls", "hint-members", "llama-tiny bags") == "5 of 5"
    assert tables.closed("hint controls", "hint-members") == "5 of 20"


def test_what_is_said_of_the_nine_cells_holds():
    ends = {cell: tables.scores(*tables.CELLS[cell]) for cell in tables.CELLS}

    def above(one, two):
        return tables.gap(ends[one], ends[two]).mean

    assert above(("none", "gate"), ("none", "always")) < 0
    assert above(("none", "always"), ("grpo", "always")) < 0
    for own in ("correct", "grpo"):  # without the gate, more is lost than is gained
        assert above((own, "always"), (own, "none")) < -10
    best, gated = ("correct", "gate"), ("grpo", "gate")
    assert tables.gap(ends[best], ends[gated]).clear and above(best, gated) > 0
    lighter = ("grpo", "gate, weight 0.01")  # later, and not one of the nine
    assert all(above(best, other) > 0 for other in ends if other not in (best, lighter))
    assert above(lighter, gated) > 0 and tables.gap(ends[lighter], ends[gated]).clear
    assert above(lighter, ("grpo", "none")) > 0
    assert tables.gap(ends[lighter], ends["grpo", "none"]).clear
    assert not tables.gap(ends[lighter], ends[best]).clear
    for spot in ("days", "bags"):
        assert tables.closed("modes", tables.WEIGHT_001, spot_of(spot)) == "5 of 5"
    assert tables.closed(*tables.CELLS[best]) == "20 of 20"
    heavy, open_ = ("grpo", "gate, weight 1"), ("grpo", "always-0.1")
    for cell in (gated, heavy, open_, lighter, ("none", "gate")):  # section 6d of the tutorial
        assert tables.closed_spots(*tables.CELLS[cell], "days bags") == "10 of 10"
        assert tables.closed_spots(*tables.CELLS[cell], "sold eats") == "0 of 10"
    for better, worse in (  # both the small weight and the gate protect
        (gated, heavy), (gated, open_), (heavy, ("grpo", "always")), (open_, ("grpo", "always")),
    ):  # fmt: skip
        found = tables.gap(ends[better], ends[worse])
        assert found.mean > 0 and found.clear
    assert above(open_, heavy) > 0  # and the small weight protects more
    for other in (best, lighter):
        hint = tables.gap(tables.scores("modes", "hint"), ends[other])
        assert hint.clear and hint.mean > 0


BUT_BAGS = ("sold", "days", "eats")


def test_what_is_said_of_all_modes_holds():
    for mode in set(tables.nearest_first()) - {"hint"}:
        assert mean(tables.of_five("hint")) > mean(tables.of_five(mode))
    assert gap("hint", "solo-x2").clear
    for mode in ("prp", "hacpo", "graft", "xgrpo"):  # not told from RL alone
        assert not gap(mode, "solo").clear
        closed = [tables.count(tables.closed("modes", mode, spot_of(s))) for s in BUT_BAGS]
        assert not any(closed)
    for mode in (tables.LEVEL, tables.NO_LOWER):  # the softened forms
        assert gap(mode, "solo").mean > 0 and gap(mode, "solo").clear
        assert gap(mode, "solo", "strong").mean > -5
        for spot in ("days", "bags"):
            assert tables.closed("modes", mode, spot_of(spot)) == "5 of 5"
    assert gap("naive", "solo").mean < -5 and gap("naive", "solo").clear
    for spot in ("days", "bags"):
        assert tables.closed("modes", "naive", spot_of(spot)) == "5 of 5"
    for mode, spots in ((tables.LEVEL, ("days", "bags")), (tables.NO_LOWER, ("bags",))):
        left = gap(mode, "solo", source="everything")  # little, if the peer writes all of it anew
        assert left.mean < gap(mode, "solo").mean / 3
        for spot in ("sold", "eats", "days", "bags"):
            found = tables.closed("everything", mode, spot_of(spot))
            assert found == f"{5 if spot in spots else 0} of 5"
    far = tables.nearest_first()[-3:]
    assert set(far) == {"naive", "rft", "sft"}  # the furthest from the start, and they forget most
    lost = {mode: tables.strong_skills_gained(mode).mean for mode in tables.nearest_first()}
    assert max(lost[mode] for mode in far) < min(lost[mode] for mode in set(lost) - set(far))


def test_what_is_said_of_two_objectives_holds():
    def llama(mode):
        return mean(tables.scores("modes", mode, "llama-tiny all"))

    assert llama(tables.TWO_OBJECTIVES) < llama("sgt") - 40
    assert abs(llama(tables.LESS_WEIGHT) - llama("sgt")) < 2
    qwen = "qwen-tiny all"
    assert tables.difference("modes", tables.LESS_WEIGHT, "sgt", qwen).mean > 5


def test_what_is_said_of_operation_and_calculation_holds():
    shipped = partial(tables.right_shares, "sums and differences")
    for mode in (*tables.LINES, "hint-whole"):  # where both write alike, nothing is lost
        assert min(shipped(mode, "strong", False)) > 95
    operation, calculation = shipped("sft", "strong", True)
    assert operation > 60 and calculation < 10
    operation, calculation = tables.right_shares("everything", "sft", "strong", False)
    assert operation > 90 and calculation < 25
    assert shipped("sgt", "strong", True)[1] > 75
    for mode in ("sgt", "hint-whole"):
        assert 100 / 10 < shipped(mode, "blind", True)[0] < 100 / 8  # one in nine
    assert min(shipped("hint", "blind", True)) > 50
    slow, fast = (
        tables.right_shares("twins", "rft", "blind", sums, 80)[0] for sums in (True, False)
    )
    for share in (slow, fast):
        assert f"{share:.0f}%" in PAGE
    assert slow < 20 and fast > 90 and tables.right_shares("twins", "rft", "blind", True)[0] > 90


def test_what_is_said_of_twins_holds():
    assert tables.count(tables.closed("twins", "solo")) == 0
    for mode in ("sft", "rft", "sgt", "hint"):
        assert tables.closed("twins", mode) == "20 of 20"
        assert gap(mode, "solo", source="twins").clear
    for mode in ("sft", "rft"):  # plain imitation gains most
        assert gap(mode, "hint", source="twins").mean > 0
    hints = [mean(tables.scores(source, "hint")) for source in ("twins", "modes", "everything")]
    assert max(hints) - min(hints) < 2  # about the same height everywhere


def test_what_is_said_of_frozen_peers_and_of_liars_holds():
    for mode in ("sgt", "hint"):  # about equal next to a peer that never learns
        found = tables.gain_from_mutual(mode)
        assert abs(found.mean) + found.half < 2
    for mode in ("sft", "rft"):
        assert tables.gain_from_mutual(mode).mean > 0 and tables.gain_from_mutual(mode).clear
    assert mean(tables.scores("believed", "sft")) < 10
    assert not tables.lost_to_liars("hint").clear
    assert 11 < tables.lost_to_liars("rft").mean < 13
    assert tables.closed("believed", "hint") == "20 of 20"
    lost = tables.lost_to_liars("sgt")
    assert lost.clear and 1.5 < lost.mean < 2.5


def test_what_is_said_of_bare_boxes_holds():
    for mode in ("sft", "rft"):
        assert mean(tables.scores("bare", f"{mode}-bare")) < tables.before("all") - 15
    far = tables.gap(tables.scores("bare", "sgt-bare"), tables.of_five("solo"))
    assert far.mean < -10 and far.clear


def test_what_is_said_of_the_pair_that_differs_in_everything_holds():
    assert tables.count(tables.closed("everything", "solo")) == 0
    assert tables.closed("everything", "hint") == "20 of 20"
    for spot, closed in (("days", 5), ("bags", 5), ("sold", 0), ("eats", 0)):
        assert tables.closed("everything", "sgt", spot_of(spot)) == f"{closed} of 5"
    ends = {mode: tables.by_strangeness(mode, "everything") for mode in tables.LINES}
    for mode in ("sft", "rft", "sgt"):
        shipped = tables.by_strangeness(mode, "sums and differences")
        assert ends[mode].mean + ends[mode].half < shipped.mean - shipped.half
    assert gap("hint", "solo", source="everything").clear
    assert tables.by_strangeness("hint", "sums and differences").mean - ends["hint"].mean < 2


def test_what_is_said_of_the_weight_with_other_pairs_holds():
    light = tables.WEIGHT_001
    for source in ("twins", "modes", "everything"):
        found = gap(light, "solo", source=source)
        assert found.mean > 0 and found.clear
        found = gap(light, "sgt", source=source)  # 0.1 is better among twins only
        assert found.clear and (found.mean < 0) == (source == "twins")
    for source, closing in (("twins", ("days", "bags")), ("everything", ("bags",))):
        for spot in ("days", "bags", "sold", "eats"):
            counts = tables.closed(source, light, spot_of(spot))
            assert counts == ("5 of 5" if spot in closing else "0 of 5")


def test_what_is_said_of_long_runs_holds():
    gap = partial(tables.difference, "long")
    for mode in ("sgt", "hint"):  # all four close, and RL alone is left far behind
        assert tables.closed("long", mode) == "20 of 20"
        assert gap(mode, "solo").mean > 9 and gap(mode, "solo").clear
    assert not gap("hint", "sgt").clear
    for mode, most in (("solo", 5), ("rft", 10)):  # points gained in 480 more steps
        gained = tables.gap(tables.scores("long", mode), tables.scores("modes", mode))
        assert gained.mean < most
    assert abs(gap("sgt", "solo", "strong").mean) < 3  # what was lost has come back
    assert gap("solo", "rft").mean > 10
    for mode in ("sgt", "hint"):
        assert mean(tables.values_of("long", mode, "pass@16", "all", "test")) > 90
    light = gap(tables.WEIGHT_001, "sgt")
    assert light.mean < 0 and light.clear
    for spot in ("days", "bags", "eats", "sold"):
        counts = tables.closed("long", tables.WEIGHT_001, spot_of(spot))
        assert counts == ("0 of 5" if spot == "sold" else "5 of 5")


def test_the_modes_that_forget_more_are_further_from_the_start():
    modes = (*tables.TRAINED_WITH, "hint-anew")
    distance = {mode: mean(tables.kl(mode)) for mode in modes}
    kept = {mode: mean(tables.scores("modes", mode, "strong")) for mode in modes}
    for one, other in product(modes, modes):
        if distance[one] > distance[other] + 0.05:
            assert kept[one] < kept[other]


def test_what_is_said_of_own_completions_holds():
    best, none = tables.BEST_CELL, tables.NO_OWN

    def above_none(of):
        others = tables.gap(tables.scores("protect", "other-skills", of), tables.scores(*none, of))
        return others.mean

    assert abs(above_none("strong-sums")) < 3 and above_none("strong-products") > 15
    for mode, of in (("other-skills", "strong-products"), ("stale", "strong")):
        assert abs(tables.above_the_best_cell(mode, of).mean) < 3
    for mode in ("stale", "other-skills"):
        for spot, closed in (("days", 5), ("bags", 5), ("sold", 0), ("eats", 0)):
            assert tables.closed("protect", mode, spot_of(spot)) == f"{closed} of 5"
    assert tables.closed(*best) == "20 of 20"


def test_what_is_said_of_the_twins_holds():
    for mode in ("prp", "hacpo", "graft"):
        assert tables.count(tables.closed("five", mode)) == 0
    path = "version-0.2/five-seeds-no-lower-end.csv"
    ends = [
        tables.kept_values(path, "hacpo", "pass@1", f"{policy} {skill}", "validation")
        for policy, skills in tables.SPOTS.items()
        for skill in skills
    ]
    assert min(score for of in ends for score in of) >= tables.CLOSED_FROM
    kept = (RESULTS / "version-0.2" / "distill.txt").read_text(encoding="utf-8")
    found = re.findall(r"^seed \d+, (\S+) (\{'all'.*\})$", kept, re.M)
    assert len(found) == 6  # two policies, three seeds
    for policy, ends in found:
        by_skill = json.loads(ends.replace("'", '"'))
        assert all(by_skill[skill] < tables.CLOSED_FROM for skill in tables.SPOTS[policy])
    for mode in ("rft", "sgt"):  # they keep what a frozen peer lacks, and `sft` does not
        kept_skill, lost = (tables.scores("frozen 71", m, "qwen-tiny eats") for m in (mode, "sft"))
        assert min(kept_skill) > 70 and max(lost) < 30
    assert mean(tables.scores("liars", "sft believed")) < mean(tables.scores("liars", "solo"))
    gains = [tables.difference(f"dial {shown}", "sgt", "solo").mean for shown in tables.DIAL]
    assert gains[0] == max(gains) and gains[-1] == min(gains)


def test_what_is_said_of_the_pretrained_pairs_holds():
    assert [
        tables.real_gain(*pair, True).clear for pair in (("sgt", "solo"), ("sgt", "replay"))
    ] == [True, False]
    for control, seed in product(("solo", "replay"), tables.REAL_SEEDS):
        sgt, other = (tables.percent(f"real-pair/{m}-s{seed}", "smol") for m in ("sgt", control))
        assert sgt > other
        assert not tables.real_gain("sgt", control, False).clear
    assert all(of["smol"][0]["rescues"] > 0 for of in REAL_SGT)  # "from step 1 on"
    for policy, skills in tables.REAL_BLIND_SPOTS.items():
        for skill, mode in product(skills, ("sft", "sgt")):
            which = mode, f"{policy} {skill}", "validation"
            assert min(tables.scores("both ways", *which)) >= 75
            assert set(tables.scores("both ways", *which, "before")) == {0}
    assert max(known_before("smol")) == 0
    assert not gap("sgt", "sft", "qwen all", "validation", "frozen smol").clear
    assert all(
        tables.percent("countdown", p, w) == 0
        for p, w in product(("qwen", "smol"), ("before", "after"))
    )
    assert {name for name, of in GPU.items() if name != "real" and not of["good"]} == {
        "memory-smollm2-checkpointing"
    }
    assert all(FIGURES["tokens"][name]["equal"] == 1 for name in PAIR)
    assert set(FIGURES["runs"]["first_differing_step"].values()) == {None}
    assert FIGURES["twice"]["usual"]["equal"] is False


def test_the_claims_that_the_toy_was_asked_have_the_tutorials_numbers():
    """tests/test_tutorial.py compares these with what the program prints."""
    tutorial = text_of("TUTORIAL_2.md")
    number = r" +([\d.]+) │"
    rows = re.findall(rf"│ (\w+) +│ +(\d+%) │ +\d+° │{3 * number}", tutorial)
    found = {mode: of_mode for mode, *of_mode in reversed(rows)}  # the blind spot is printed first
    support, length, spread, groups = (
        {mode: of_mode[place] for mode, of_mode in found.items()} for place in range(4)
    )
    claims = "\n".join(tables.claims())
    said = re.findall(r"([\d.]+) groups needed, RL alone ([\d.]+)", claims)
    assert said == [(groups[mode], groups["solo"]) for mode in ("sgt", "xgrpo")]
    assert f"spread of {spread['xgrpo']}, those of RL alone {spread['solo']}" in claims
    assert f"from {spread['naive']} (`naive`) to {spread['prp']}" in claims
    assert round(float(length["naive"]) / float(length["prp"])) == 19  # "a nineteenth"
    assert f"toy: {support['xgrpo']} of groups" in claims
    copied, other = (
        ", ".join(p) for p in re.findall(r"^\['([+-][\d.]+)', '([+-][\d.]+)'\]", tutorial, re.M)
    )
    assert f"bias of {copied.replace('+0', '0')} with a copy as peer, of {other} with" in claims


# ------------------------------------------------------------------------ the page and its files


def test_every_file_is_explained_and_every_picture_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    for path in pictures:
        assert (RESULTS / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    for entry in RESULTS.iterdir():
        if entry.name not in ("README.md", "__pycache__"):
            assert entry.name in PAGE, entry.name


def test_links_to_its_sections_lead_somewhere():
    headings = re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    anchors |= set(re.findall(r'<a id="([^"]+)"></a>', PAGE))
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    for document in (
        *tables.DOCUMENTS,
        "data/README.md",
        "mrl/cli/RUNNING.md",
        "tests/bench/README.md",
    ):
        links += re.findall(r"results/README\.md#([^)]+)\)", text_of(document))
    assert len(links) >= 8
    assert set(links) <= anchors


@pytest.mark.parametrize("mode", ["solo", "replay", "sgt"])
def test_the_kept_runs_are_whole_and_of_the_shipped_pair(mode):
    config = json.loads((RESULTS / f"{mode}-s0" / "config.json").read_text(encoding="utf-8"))
    assert (config["mode"], config["seed"], config["steps"]) == (mode, 0, 240)
    paths = [policy["path"] for policy in config["policies"]]
    paths += [config["train"], *config["heldout"]]
    assert all((ROOT / path).exists() and not path.startswith("/") for path in paths)
    lines = tables.lines_of(f"{mode}-s0")
    assert [len(of) for of in lines.values()] == [config["steps"]] * 2


def test_the_runs_of_the_pretrained_models_begin_alike():
    for mode, seed, policy in product(tables.REAL_MODES, tables.REAL_SEEDS, ("qwen", "smol")):
        run, solo = (f"real-pair/{name}-s{seed}" for name in (mode, "solo"))
        assert tables.percent(run, policy, "before") == tables.percent(solo, policy, "before")
        first, of_solo = (tables.lines_of(name)[policy][0] for name in (run, solo))
        assert (first["step"], first["reward"]) == (1, of_solo["reward"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIR)
def test_the_scores_before_training_of_a_kept_run_are_sampled_again(name, verifier, monkeypatch):
    """The sets have other names than when the run was made, and the same random streams."""
    monkeypatch.chdir(ROOT)
    config = json.loads((RESULTS / "sgt-s0" / "config.json").read_text(encoding="utf-8"))
    kept = json.loads((RESULTS / "sgt-s0" / "evaluation.json").read_text(encoding="utf-8"))
    names = [policy["name"] for policy in config["policies"]]
    settings = config["policies"][names.index(name)]
    policy = load_policy(PolicyConfig(**settings), names.index(name))
    heldout = load_heldout(config["heldout"], verifier)
    samples = config["eval_samples"]
    solved = count_solved(policy, heldout, verifier, samples, config["seed"])
    for entry in score_entries({name: solved}, heldout, samples):
        (was,) = (e for e in kept["before"] if (e["policy"], e["split"]) == (name, entry["split"]))
        for skill, scores in entry["skills"].items():  # another processor may change a completion
            assert scores["pass@1"] == pytest.approx(was["skills"][skill]["pass@1"], abs=0.013)


# --------------------------------------------------------------- how the pretrained pair was made


def byte_policy(name):
    """A receiver whose tokens are bytes; the end token is 0."""
    return SimpleNamespace(
        name=name,
        prompt_ids=lambda prompt: list(prompt.encode()),
        codec=SimpleNamespace(encode=lambda text: list(text.encode())),
        eos_id=0,
    )


def test_a_reader_learns_wrong_interpretations_of_its_two_blind_spots_alone():
    module = runpy.run_path(RESULTS / "both-ways" / "readings.py")
    assert module["MISREAD"] == tables.REAL_BLIND_SPOTS
    problems = {problem.prompt: problem for problem in module["PROBLEMS"]}
    wrong, seen = set(), set()
    for number in range(20):
        batch = module["Readings"]().training_samples(
            byte_policy("smol"), [], random.Random(number)
        )
        assert len(batch.samples) == 32
        for sample in batch.samples:
            problem = problems[bytes(sample.prompt_ids).decode()]
            text = bytes(sample.completion_ids[:-1]).decode()
            assert (sample.loss, sample.completion_ids[-1]) == ("imitation", 0)
            seen.add(problem.skill)
            if plain_verdict(problem.answer, last_box(text), True) is not Verdict.CORRECT:
                wrong.add(problem.skill)
    assert wrong == set(tables.REAL_BLIND_SPOTS["smol"]) and len(seen) == 9
