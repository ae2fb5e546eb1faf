"""The drawings show what the kept files and the program give."""

import importlib.util
import inspect
import json
import re
from doctest import DocTestParser
from runpy import run_path

import pytest

from mini_mrl import train_step
from mrl.config import DATA
from mrl.lab.bandit import PUBLISHED
from mrl.run.problems import load_problems

KEPT = DATA / "drawings"


@pytest.fixture(scope="module")
def draw():
    spec = importlib.util.spec_from_file_location("draw", KEPT / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_command_makes_all_of_them(tmp_path, draw):
    draw.main(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    kept = {path.name for path in KEPT.iterdir() if path.suffix in (".svg", ".png")}
    assert made == kept - {"moving.svg"}  # another script's
    pictures = {"skills.png", "kinds.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    words = re.findall(r">([^<]+)</text>", (KEPT / "support.svg").read_text(encoding="utf-8"))
    names = {name for text in words for name in re.split(r"[,:] ", text)}
    assert names > {*PUBLISHED, "replay"}


@pytest.mark.parametrize("place", ["kept", pytest.param("new", marks=pytest.mark.slow)])
def test_the_step_is_one_prompt_from_its_attempts_to_its_update(place, draw):
    drawing = (KEPT / "step.svg").read_text(encoding="utf-8") if place == "kept" else draw.step()
    words = re.findall(r">([^<]+)</text>", str(drawing))
    stages = re.findall(r"# (\d)\. (\w+):", inspect.getsource(train_step))
    assert len(stages) == 6
    assert {f"{number} {name}" for number, name in stages} <= set(words)
    # what the headline says: one has only failures, and gets the other's successes
    shown = " ".join(words)
    assert re.search(r"\b0 of 8\b", shown) and re.search(r"\b8 of 8\b", shown)
    assert len(re.findall(r"(?<!of )\b8 solutions\b", shown)) == 2 and "imitation of" in shown


def test_the_toys_curves_are_what_the_tutorials_examples_print():
    one_learner = run_path(str(DATA / "page" / "two_learners.py"))["one_learner"]
    switch = {"own_loss": "alone", "replay_from": "replay", "with_a_peer": "peer"}
    text = (DATA.parent / "TUTORIAL.md").read_text(encoding="utf-8")
    printed = {}
    for example in DocTestParser().get_examples(text):
        called = re.match(r"train\((.+), (\w+)\)$|(replay_from)\((.+)\)$", example.source)
        if called:
            name, start = called[2] or called[3], called[1] or called[4]
            printed[switch[name], float(start)] = example.want.splitlines()[0]
    assert len(printed) == 6
    for (sharing, start), line in printed.items():
        curve = one_learner(start, sharing)
        assert " ".join(f"{curve[step]:.2f}" for step in range(0, 401, 100)) == line, (
            sharing,
            start,
        )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["kept", "new"])
def test_the_rescue_is_one(place, draw, tmp_path):
    drawing = (
        (KEPT / "rescue.svg").read_text(encoding="utf-8") if place == "kept" else draw.rescue()
    )
    _, *lines = re.findall(r">([^<]+)</text>", str(drawing))  # below the headline
    answers = {p.prompt: p.answer for p in load_problems(DATA / "words" / "train.jsonl")}
    right = f"\\boxed{{{answers[lines[0].removeprefix('prompt: ')]}}}"
    assert re.fullmatch(r"\S+: 8 attempts, all wrong", lines[1])
    assert not any(right in line for line in lines[2:6])
    assert any(line.endswith(right) for line in lines[6:])


def test_the_kinds_of_groups_end_as_their_headline_says(draw):
    ends = {}
    for mode in ("solo", "sgt"):
        lines = draw.read_metrics(draw.RESULTS / f"{mode}-s0")
        _, shares = draw.figures.series(lines, "qwen-tiny", "groups/all_fail", 20)
        ends[mode] = shares[-1]
    assert 0.2 < ends["solo"] < 0.3
    assert 0.3 < ends["sgt"] / ends["solo"] < 0.7


def test_the_moving_picture_shows_what_was_sampled():
    moving = run_path(str(KEPT / "moving.py"))
    kept = json.loads((KEPT / "moving.json").read_text(encoding="utf-8"))
    svg = moving["draw"](kept)
    assert len(svg) < 150_000 and "prefers-reduced-motion" in svg
    assert not re.findall(r'(?:href|src|url)[=(]"?(?!#)', svg)  # it fetches nothing

    frames = dict(re.findall(r'<g class="(f\d+)">(.*)</g>', svg))
    assert len(frames) == len(kept["frames"])
    for frame, drawn in zip(kept["frames"], frames.values(), strict=True):
        own, peer = frame[moving["LEARNER"]], frame[moving["PEER"]]
        correct = re.search(r'd="(\S+ [^"]*|)" class="hit"', drawn)[1]
        assert correct.count("M") == "".join(own).count("1")
        rescued = sum(
            "1" not in mine and "1" in other for mine, other in zip(own, peer, strict=True)
        )
        assert drawn.count('class="cross"') == rescued


def test_the_moving_pictures_problems_are_held_out_and_two_skills_start_as_blind_spots():
    kept = json.loads((KEPT / "moving.json").read_text(encoding="utf-8"))
    heldout = {p.prompt: p.skill for p in load_problems(DATA / "words" / "validation.jsonl")}
    skills = [problem["skill"] for problem in kept["problems"]]
    assert [heldout[problem["prompt"]] for problem in kept["problems"]] == skills
    first, *_, last = kept["frames"]
    assert first["step"] == 0
    for frame in kept["frames"]:
        for name in ("qwen-tiny", "llama-tiny"):
            assert [len(row) for row in frame[name]] == [8] * 16

    def solved(frame, skill):
        rows = [
            row for row, of_row in zip(frame["llama-tiny"], skills, strict=True) if of_row == skill
        ]
        return "".join(rows).count("1") / 8 / len(rows)

    assert solved(first, "bags") == solved(first, "eats") == 0
    assert solved(last, "bags") > 0.25 and solved(last, "eats") > 0.25  # closed, as the page says
