"""What README.md, the two courses and data/results/README.md say was measured is in data/results.

data/results/tables.py writes their tables. tests/results_numbers.toml lists the numbers that stand
in sentences, by how they are computed.
"""

import importlib.util
import json
import random
import re
import runpy
import shutil
import tomllib
from functools import cache
from itertools import islice, product
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pytest

import mini_mrl
from mrl.config import PolicyConfig
from mrl.models.loading import load_policy
from mrl.modes import MODES
from mrl.run.evaluation import count_solved, load_heldout, score_entries
from mrl.run.intervals import T_95, half_width
from mrl.samples import Verdict
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
        copy.write_text(text_of(document).replace("12.4 ± 1.7 |", "21.4 ± 1.7 |"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1
    assert "TUTORIAL.md: table tutorial-controls" in capsys.readouterr().out
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    assert (tmp_path / "TUTORIAL.md").read_text() == text_of("TUTORIAL.md")


def test_the_shipped_modes_rows_are_those_of_the_five_seeds():
    """Other people's rows are from their own runs."""
    for row in tables.kept_rows("leaderboard.csv"):
        if row["mode"] in MODES:
            mode = row["mode"]
            assert row["pass@1, test"] == str(tables.estimate(tables.scores("five", mode)))
            assert row["blind spots closed"] == tables.closed("five", mode)


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
    source = kind.removeprefix("closed ").removeprefix("runs ")
    if kind != source:
        count = tables.closed if kind.startswith("closed ") else tables.runs_closed
        return count(source, modes, of, split)
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


@cache
def bytes_one_to_one():
    """Percent of the bytes that lay in chunks of one token on each side: (tiny, pretrained)."""
    shares = {"tiny": [], "pretrained": []}
    for run in tables.SGT_RUNS:
        for lines in tables.lines_of(run).values():
            of_all = tables.total(lines, "thl/bytes")
            share = 100 * tables.total(lines, "thl/bytes_one_to_one") / of_all if of_all else None
            if share is not None:
                shares["tiny" if run == "sgt-s0" else "pretrained"].append(share)
    return shares


def solutions_that_crossed():
    lines = [x for run in tables.SGT_RUNS for of in tables.lines_of(run).values() for x in of]
    assert not any(value for line in lines for key, value in line.items() if "thl/refused" in key)
    return f"{tables.total(lines, 'thl/records'):,.0f}"


def half_widths():
    runs = [(mode, s, "after") for mode, s in product(tables.REAL_MODES, tables.REAL_SEEDS)]
    runs += [("solo", seed, "before") for seed in tables.REAL_SEEDS]
    found = [
        100 * half_width(entry)
        for mode, seed, when in runs
        for entry in tables.final_scores(f"real-pair/{mode}-s{seed}", when).values()
    ]
    return f"± {span(found, 1)}"


def known_before(policy):
    """Percent of its later blind spots that a pretrained model solved as released."""
    return [
        100
        * tables.final_scores(f"real-pair/solo-s{seed}", "before")[policy]["skills"][s]["pass@1"]
        for seed, s in product(tables.REAL_SEEDS, tables.REAL_BLIND_SPOTS[policy])
    ]


def of_the_shared_gpu(what):
    lines = [line for of in tables.lines_of("both-ways/sgt-s1").values() for line in of]
    seconds = median(line["time/step_s"] for line in lines)
    return f"{seconds:.1f} seconds" if what == "seconds" else f"{tables.peak_gib(lines):.1f} GiB"


def trials():
    """Mode -> (learning rate, updates per step) -> pass@1 on the validation set, seed 11."""
    found = {}
    for line in tables.kept_rows("tiny-pair/tune.csv"):
        rate, updates = (part.split("=")[1] for part in line["setting"].split())
        found.setdefault(line["mode"], {})[rate, updates] = float(line["pass@1"])
    return found


def eats_below_sgt(split):
    """How far `sequence` with RL after step 120 ends below `sgt` on a skill that the peer lacks."""
    runs = (
        ("sgt weights", "sgt sgt.imitation_weight=0.1"),
        ("sequence frozen", "sequence sequence.switch=120"),
    )
    return str(tables.gap(*(tables.scores(*of, "qwen-tiny eats", split) for of in runs)))


def behind_best(mode):
    """How far 3e-5 with four updates is below the best setting of a mode."""
    of_mode = trials()[mode]
    return max(of_mode.values()) - of_mode["3e-5", "8" if mode == "solo-x2" else "4"]


def step(placement):
    whole = FIGURES[f"whole-{placement}"]
    return mean(of["step_s"] for name, of in whole.items() if name[-1] in "23")


def in_a_run(name, phase, steps=(2, 3)):
    return [FIGURES["whole-resident"][f"{name} {number}"][phase] for number in steps]


def closed_by_distillation():
    ends = [run[p][s] for run in tables.distilled().values() for p, of in tables.SPOTS.items()
            for s in of]  # fmt: skip
    return f"{sum(end >= tables.CLOSED_FROM for end in ends)} of {len(ends)}"


def closed_by_four():
    (count,) = {tables.closed("five", m) for m in ("sft", "sgt", "naive", tables.NO_LOWER)}
    return count


OTHER = {  # name -> a number, or a function that gives it
    "what an interval is": "95 of 100",
    "GRAFT's paper, one model": "47.9%",
    "GRAFT's paper, the other": "18.7%",
    "Student's t, three seeds": f"± {T_95[0]:.2f}",
    "Bonferroni, ten at once": f"{5.598 / T_95[2]:.1f} times",  # Student's t at 0.5 %, five seeds
    "closed by distillation": closed_by_distillation,
    "closed by each of four modes": closed_by_four,
    "shown to qwen-tiny": lambda: shown("qwen-tiny"),
    "shown to llama-tiny": lambda: shown("llama-tiny"),
    "sequence, RL after step 120, below sgt": lambda: str(
        tables.gap(
            tables.scores("sgt weights", "sgt sgt.imitation_weight=0.1", "qwen-tiny all"),
            tables.scores("sequence frozen", "sequence sequence.switch=120", "qwen-tiny all"),
        )
    ),
    "eats, RL after step 120, below sgt, validation": lambda: eats_below_sgt("validation"),
    "eats, RL after step 120, below sgt, test": lambda: eats_below_sgt("test"),
    "graft at its best setting": lambda: f"{behind_best('graft'):.1f}",
    "solutions that crossed": solutions_that_crossed,
    "bytes in single chunks, tiny": lambda: f"{span(bytes_one_to_one()['tiny'], 0, 'and')}%",
    "bytes in single chunks, pretrained": lambda: f"{span(bytes_one_to_one()['pretrained'])}%",
    "half widths over problems": half_widths,
    "smol while it trains": lambda: str(tables.real_gain("sgt", "solo", True)),
    "imitated by smol": lambda: span([tables.total(of["smol"], "rescues") for of in REAL_SGT]),
    "imitated by qwen": lambda: span([tables.total(of["qwen"], "rescues") for of in REAL_SGT]),
    "seconds of a step": lambda: span(
        [median(line["time/step_s"] for line in of["smol"]) for of in REAL_SGT]
    ),
    "peaks of seeds 2 and 3": lambda: " and ".join(
        f"{tables.peak_gib(of['smol'][-1:]):.1f}" for of in REAL_SGT[1:]
    ),
    "known before by qwen": lambda: f"{span(known_before('qwen'))}%",
    "seconds on a shared GPU": lambda: of_the_shared_gpu("seconds"),
    "peak on a shared GPU": lambda: of_the_shared_gpu("peak"),
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


def gap(one, two, of="all", split="test", source="ten"):
    return tables.difference(source, one, two, of, split)


def test_what_is_said_of_the_tiny_pair_holds():
    """Statements of the three pages, by what the kept files have."""
    for mode in tables.FOUR:  # "10% gives the same"
        assert tables.closed("ten", mode, least=10) == tables.closed("ten", mode)
    for missed in (("validation", 50), ("test", 25)):  # "the ten missing cases are all `sold`"
        for mode in ("sft", "sgt") if missed[0] == "test" else ("sgt",):
            cases = tables.cases("ten", mode, "blind", missed[0], missed[1])
            assert sorted(map(sum, cases)) == [0, 10, 10, 10]
            assert not any(*tables.cases("ten", mode, "qwen-tiny sold", missed[0], missed[1]))
    for split in ("validation", "validation_wording", "test"):
        assert gap("sgt", "solo", "others", split).mean < 0
    assert gap("sgt", "solo", "others", "validation").clear
    assert all(
        gap(m, "solo", "weak", split).clear
        for m, split in product(("sgt", "sft"), ("validation", "test"))
    )
    assert not gap("sft", "sgt", "others", "validation").clear and not gap("replay", "solo").clear
    steps = {}  # "the blind spots close earlier"
    for line in tables.kept_rows(tables.FILES["ten"]):
        if line["metric"] == "closed at step" and line["mode"] in ("sft", "sgt"):
            which = line["policy"], line["skill"], line["mode"]
            steps.setdefault(which, []).append(int(line["value"]))
    for policy, skills in tables.SPOTS.items():
        for skill in skills:
            assert mean(steps[policy, skill, "sft"]) < mean(steps[policy, skill, "sgt"])

    frozen = {"source": "frozen", "split": "validation"}
    assert gap("sgt", "solo", "qwen-tiny strong", **frozen).mean < 0
    assert gap("sgt", "sft", "qwen-tiny all", source="frozen").clear
    assert gap("sgt", "sft", "qwen-tiny blind", **frozen).mean < 0
    for _, source, mode in tables.FROZEN_CONTROLS:  # the dots of the two methods do not meet
        eats = tables.scores(source, mode, "qwen-tiny eats", "validation")
        assert max(eats) < 70 if source == "sft rates" else min(eats) > 70
        assert source not in ("sgt weights", "own correct") or min(eats) > 80
    for split, clear in (("validation", False), ("test", True)):
        assert gap("sft-own", "sgt", "qwen-tiny eats", split, "own correct").clear == clear
    for kind in ("all", "strong"):
        assert not gap("sft-own believed", "no-gate weight 1", kind, source="liars").clear
    assert not gap("sft-own", "sgt", source="liars").clear
    for mode, spots in {
        "placebo": {"days", "bags"},
        "placebo-same-skill": {"days", "eats", "bags"},
    }.items():
        for policy, skills in tables.SPOTS.items():
            for skill in skills:
                found = tables.closed("placebo", mode, f"{policy} {skill}")
                assert found == ("5 of 5" if skill in spots else "0 of 5")
    assert not gap("no-gate", "solo", "strong", source="five").clear
    assert not gap("sgt", tables.NO_LOWER, source="five").clear
    for kind in ("weak", "strong"):
        assert gap(tables.NO_LOWER, "hacpo", kind, source="five").mean < 0
    for mode in ("hacpo", "graft"):  # "cannot be told from `solo`"
        assert not gap(mode, "solo", source="five").clear
        assert not gap(mode, "solo-x2", source="five").clear
    assert (
        gap("solo", "naive", "weak", source="five").mean
        > gap("solo", "naive", "strong", source="five").mean
    )
    measured = {line["mode"] for line in tables.kept_rows(tables.FILES["five"])}
    assert trials().keys() == measured - {"sft", "naive", "prp"}
    assert [mode for mode in trials() if behind_best(mode) > 0] == ["graft"]

    for shown_right in tables.DIAL:
        source = f"dial {shown_right}"
        assert gap("sgt", "replay", source=source).clear == (shown_right == 0)
        assert gap("sgt", "sft", source=source).mean < 0
        assert gap("sgt", "solo", source=source).clear == (shown_right < 30)
        assert shown_right == 0 or tables.count(tables.closed(source, "replay", "foreign")) >= 22
    for policy, split in product(PAIR, ("validation_wording", "test")):
        assert shown(policy, split) == "0"


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


def test_every_result_is_explained_and_every_picture_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    assert len(pictures) >= 4
    for path in pictures:
        assert (RESULTS / path).read_bytes().startswith((b"\x89PNG", b"<svg")), path
    for folder in RESULTS.iterdir():
        if folder.name not in ("README.md", "__pycache__"):
            assert folder.name in PAGE, folder.name


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


@pytest.mark.slow
def test_the_pictures_of_the_run_come_from_its_kept_metrics(tmp_path):
    from mrl.lab.report import write_report

    kept = RESULTS / "sgt-s0"
    directory = tmp_path / "sgt-s0"
    shutil.copytree(kept, directory, ignore=shutil.ignore_patterns("figures"))
    write_report(directory)
    drawn = {path.name for path in (directory / "figures").iterdir()}
    shown_there = {path.name for path in (kept / "figures").iterdir()}
    assert shown_there <= drawn
    assert all(f"(sgt-s0/figures/{name})" in PAGE for name in shown_there)


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
