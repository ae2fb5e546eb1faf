import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.policy import uses_bfloat16
from mrl.run.directory import read_evaluations
from mrl.run.summary import (
    evaluation_table,
    first_lines,
    last_lines,
    learned_sentence,
    pair_table,
)
from mrl.samples import Problem
from mrl.settings.read import make_mode, mode_class, run_config

NAMES = ["qwen-tiny", "llama-tiny"]


def scores(value):
    both = {"pass@1": value, "pass@4": 1.0}
    return [
        {
            "policy": name,
            "split": "held[/b]out",
            "problems": 40,
            "samples": 4,
            **both,
            "skills": {"e[/b]ats": both | {"problems": 40}},
        }
        for name in NAMES
    ]


def shown(table):
    console = Console(file=io.StringIO(), width=110)
    console.print(table)
    return console.file.getvalue()


def test_the_evaluation_table_shows_before_and_after():
    text = shown(evaluation_table({"before": scores(0.05), "after": scores(0.86)}))
    for split in ("5 -> 86±14", "100 -> 100", "before -> after", "e[/b]ats", "held[/b]out"):
        assert split in text, split
    for when in ("before", "after"):
        alone = shown(evaluation_table({when: scores(0.86)}))
        assert "86" in alone and f"held-out problems, {when} " in alone
        assert "->" not in alone


def planned(tmp_path, mode="sgt", **settings):
    """A run as far as its first and last lines need it."""
    policies = [PolicyConfig(name, name, group_size=4) for name in NAMES]
    model = SimpleNamespace(num_parameters=lambda: 838_000, device=torch.device("cpu"))
    settings_of_each = PolicyConfig("", "", learning_rate=1e-3)
    loaded = [SimpleNamespace(name=name, model=model, config=settings_of_each) for name in NAMES]
    config = RunConfig(policies, mode=mode, prompts_per_step=5, **settings)
    team = SimpleNamespace(
        policies=loaded, allocation=SimpleNamespace(gather=lambda mine: mine),
        mode=mode_class(config.mode)(), record_type=mode_class(config.mode).consumes, device="cpu",
        why_placed="Swap.",
    )  # fmt: skip
    return SimpleNamespace(
        config=config, names=NAMES, team=team, directory=tmp_path, how_to_resume="Go on.",
        evaluations={"before": scores(0.1), "after": scores(0.5)},
    )  # fmt: skip


def test_the_pairs_table_counts_what_one_never_and_the_other_sometimes_solves_both_ways():
    skills = ["x", "x", "x", "y"]
    problems = [Problem(str(number), "1+1?", "2", skill) for number, skill in enumerate(skills)]
    solved = {"a": {"validation": [0, 0, 1, 0]}, "b": {"validation": [8, 1, 0, 0]}}
    rows = [
        line.split("│")[1:-1]
        for line in shown(pair_table({"validation": problems}, solved)).splitlines()
    ]
    cells = [[cell.strip() for cell in row] for row in rows if row]
    assert cells == [
        ["validation", "overall", "4", "2", "1"],
        ["", "x", "3", "2", "1"],
        ["", "y", "1", "0", "0"],
    ]


def test_the_first_lines_say_what_will_happen_and_what_is_odd_about_it(tmp_path):
    run = planned(tmp_path, "solo-x2", steps=7)
    said = "\n".join(first_lines(run, "tiny", "Why it was chosen."))
    about = "(0.838 M parameters, learning rate 0.001)"
    for part in (
        "tiny pair",
        f"qwen-tiny {about} and llama-tiny {about}",
        "cpu",
        "Why it was chosen.",
        "nothing",
        "7 steps of 5 prompts from words/train.jsonl",
        "qwen-tiny 8, llama-tiny 8",
        str(tmp_path),
        "Swap.",
    ):
        assert part in said


def test_the_first_lines_say_that_a_mode_that_shares_has_no_peer(tmp_path):
    run = planned(tmp_path, "sgt")
    assert not any("`solo`" in line for line in first_lines(run))
    run.team.record_type = None  # as in a team of one
    assert any("`sgt`" in line and "`solo`" in line for line in first_lines(run))
    run = planned(tmp_path, "solo")
    assert not any("`solo`" in line for line in first_lines(run))


def test_the_first_lines_say_that_a_mode_trains_by_an_objective_of_its_own(tmp_path):
    def notes(mode, *options):
        run = planned(tmp_path, mode)
        run.team.mode = make_mode(mode, run_config("tiny", None, {"mode": mode}, options).settings)
        return [line for line in first_lines(run) if line.startswith("Objective: ")]

    (note,) = notes("hacpo")
    assert "gspo" in note and "--set hacpo.own_objective=" in note
    assert notes("hacpo", "hacpo.own_objective=") == notes("sgt") == []


@pytest.mark.parametrize("native", [True, False])
def test_a_card_without_bfloat16_computes_in_float32(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    card, cpu = torch.device("cuda"), torch.device("cpu")
    used = [uses_bfloat16(dtype, card) for dtype in ("auto", "mixed", "float32")]
    assert used == [native, native, False]
    assert [uses_bfloat16(dtype, cpu) for dtype in ("auto", "mixed", "float32")] == [
        False, True, False
    ]  # fmt: skip


def test_the_last_lines_end_with_what_was_learnt(tmp_path):
    assert last_lines(planned(tmp_path), False) == ["Saved. Go on."]
    _, sentence, report, ask = last_lines(planned(tmp_path, mode="solo"), True)
    assert "`e[/b]ats` of qwen-tiny: 10% -> 50%" in sentence
    assert report.endswith(f"report {tmp_path}")
    assert ask.endswith(f"ask --run {tmp_path}")


def imitated(solutions, rescues):
    """A line of metrics.jsonl of policy a."""
    return {"policy": "a", "imitated": solutions, "rescues": rescues, "updates": 1}


def test_the_blind_spots_that_were_closed_come_first_and_no_other_gain_is_praised():
    def entry(**rates):
        entries = []
        for name, of_policy in (("a", rates), ("b", dict.fromkeys(rates, 0.9))):  # b knows all
            skills = {skill: {"pass@1": rate, "problems": 40} for skill, rate in of_policy.items()}
            about = {"policy": name, "split": "s", "problems": 120, "pass@1": 0.5}
            entries.append(about | {"skills": skills})
        return entries

    before, lines = entry(days=0.0, sold=0.01, packs=0.1), [imitated(3, 3)] * 2
    after = entry(days=0.92, sold=0.2, packs=0.9)
    sentence = learned_sentence({"before": before, "after": after}, lines)
    closed, left = (
        sentence.index("`days` of a: 0% -> 92%"),
        sentence.index("`sold` of a: 1% -> 20%"),
    )
    assert closed < left and "packs" not in sentence
    assert re.findall(r"a \d+", sentence) == ["a 6"]
    lines = [imitated(3, 3), imitated(4, 1)]  # by a mode with a wider gate: 4 of 7 were rescues
    wider = learned_sentence({"before": before, "after": after}, lines)
    assert re.findall(r"a \d+", wider) == ["a 7", "a 4"]

    of_both = [imitated(3, 0), imitated(0, 0) | {"policy": "b"}]  # a count of 0 is left out
    alone = learned_sentence({"before": before, "after": after}, of_both)
    assert re.findall(r"[ab] \d+\.", alone) == ["a 3."] and alone.endswith("failed: none.")

    # a short run: nothing is closed, so what training alone does as well is not praised
    short = learned_sentence({"before": before, "after": entry(days=0, sold=0, packs=0.9)}, lines)
    assert "none" in short and "packs" not in short

    # a frozen policy has no blind spots to close
    assert "days" not in learned_sentence({"before": before, "after": before}, [])


@pytest.mark.parametrize(("problems", "after"), [(40, 0.12), (2, 0.9)])
def test_a_gain_within_chance_is_not_praised(tmp_path, problems, after):
    run = planned(tmp_path)
    run.evaluations = {"before": scores(0.1), "after": scores(after)}
    for entry in (*run.evaluations["before"], *run.evaluations["after"]):
        entry["skills"]["e[/b]ats"]["problems"] = problems
    _, sentence, *_ = last_lines(run, True)
    assert sentence.startswith("No policy improved")


def test_the_largest_of_many_gains_has_to_be_larger():
    """30 % -> 60 % of 40 problems: beyond chance for one skill, but not for the best of forty."""
    for count, praised in ((1, True), (40, False)):
        evaluations = {"before": scores(0.3), "after": scores(0.3)}
        for when, entries in evaluations.items():
            for entry in entries:
                entry["skills"] = {f"s{n}": {"pass@1": 0.3, "problems": 40} for n in range(count)}
            if when == "after":
                for entry, after in zip(entries, (0.6, 0.5), strict=True):
                    entry["skills"]["s0"] = {"pass@1": after, "problems": 40}
        sentence = learned_sentence(evaluations, [])
        assert ("`s0` of qwen-tiny: 30% -> 60%" in sentence) == praised


def test_at_80_columns_no_cell_of_the_kept_runs_table_is_cut():
    table = evaluation_table(read_evaluations(DATA / "results" / "sgt-s0"))
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    shown = set(re.split(r"\s*[│┃]\s*|\n", text))
    assert {*map(str, table.columns[2].cells), "llama-tiny"} <= shown


def test_sizes_and_numbers_read_as_a_person_writes_them(tmp_path):
    def size(number, **settings):
        model = SimpleNamespace(num_parameters=lambda: number, device=torch.device("cpu"))
        run = planned(tmp_path, steps=1)
        config = PolicyConfig("", "", learning_rate=1e-3, **settings)
        run.team.policies = [SimpleNamespace(name=NAMES[0], model=model, config=config)]
        first, *_ = first_lines(run)
        return first.split("(")[1].split(")")[0]

    assert size(1_543_714_304) == "1.54 B parameters, learning rate 0.001"
    assert size(134_515_008, frozen=True) == "135 M parameters, frozen"
    assert size(139_400_000, lora_rank=16) == (
        "139 M parameters, LoRA of rank 16, learning rate 0.001"
    )
