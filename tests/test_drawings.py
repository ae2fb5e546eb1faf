"""The drawings that are kept are those that `python data/drawings/draw.py` makes today."""

import importlib.util
import inspect
import math
import re
from doctest import DocTestParser
from html import unescape
from itertools import combinations
from runpy import run_path

import pytest
from PIL import Image

from mini_mrl import train_step
from mrl.config import DATA
from mrl.modes import MODES
from mrl.runtime.problems import load_problems

KEPT = DATA / "drawings"
BOX = r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"'
AGAIN = "run `python data/drawings/draw.py`"


@pytest.fixture(scope="module")
def draw():
    spec = importlib.util.spec_from_file_location("draw", KEPT / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["advantages", "importance", "clip", "ladders"])
def test_the_drawing_is_what_the_code_makes_today(name, draw):
    assert str(getattr(draw, name)()) == (KEPT / f"{name}.svg").read_text(encoding="utf-8"), AGAIN


@pytest.mark.slow
def test_the_command_makes_all_of_them(tmp_path, draw):
    draw.main(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in KEPT.iterdir() if path.suffix in (".svg", ".png")}
    pictures = {"skills.png", "kinds.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    for name in made - {"step.svg", "rescue.svg"} - pictures:  # what is sampled may differ
        assert (tmp_path / name).read_bytes() == (KEPT / name).read_bytes(), (name, AGAIN)
    words = re.findall(r">([^<]+)</text>", (KEPT / "support.svg").read_text(encoding="utf-8"))
    names = {name for text in words for name in re.split(r"[,:] ", text)}
    assert names > set(MODES) - {"solo-x2", "sft"}  # controls that the toy does not draw


def contrast_on_white(color):
    """As WCAG 2 defines it."""
    shares = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    parts = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 1.05 / (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)


def test_one_color_has_one_meaning_and_can_be_read(draw):
    figures = draw.figures
    policies = [color for color, _ in figures.POLICY_LINES]
    colors = [*figures.MODE_COLORS.values(), figures.FAILED, *policies[:2]]
    assert len(set(colors)) == len(colors)
    assert set(MODES) <= set(figures.MODE_COLORS)
    for color in [*colors, *policies]:
        assert contrast_on_white(color) >= 4.5, color
    text = (KEPT / "step.svg").read_text(encoding="utf-8")  # what crosses is a peer's right text
    assert f'<path d="M-8 -5L1 0L-8 5z" fill="{figures.RIGHT}"' in text


@pytest.mark.parametrize("name", ["skills.png", "kinds.png"])
def test_letters_of_a_picture_can_be_read_on_a_telephone(name, draw):
    width = Image.open(KEPT / name).width / 130  # inches
    assert draw.figures.matplotlib.rcParams["font.size"] / 72 * 360 / width >= 11


def test_the_labels_of_the_blind_spot_stand_off_its_dots():
    text = (KEPT / "support.svg").read_text(encoding="utf-8")
    dots = [list(map(float, d)) for d in re.findall(r'<circle cx="(\S+)" cy="(\S+)"', text)]
    labels = re.findall(
        r'<text x="(\S+)" y="(\S+)" font-size="14" \S+ text-anchor="(\w+)".*?>(.+?)</text>', text
    )
    assert len(dots) == len(labels) >= 6
    boxes = []
    for x, y, anchor, words in labels:
        wide = 9 * len(words)
        left = float(x) - (wide if anchor == "end" else wide / 2)
        boxes.append((left, float(y) - 12, left + wide, float(y) + 3))
    boxes += [(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def width_of(drawing):
    return float(re.search(r'viewBox="0 0 (\d+)', drawing)[1])


def drawings():
    """The text of all that are kept but the live view, which is a terminal's."""
    paths = [path for path in KEPT.glob("*.svg") if path.name != "live.svg"]
    assert len(paths) >= 9
    return [path.read_text(encoding="utf-8") for path in paths]


def test_words_can_be_read_at_the_width_of_a_page_and_at_a_telephones():
    for text in drawings():
        smallest = min(map(float, re.findall(r'font-size="(\d+)"', text)))
        assert smallest >= 12
        assert smallest * 390 / width_of(text) >= 12, width_of(text)


def test_each_drawing_begins_with_a_sentence_that_says_what_to_see():
    for text in drawings():
        headline = re.search(r"<title>(.+)</title>", text)[1]
        assert len(headline.split()) >= 7
        assert re.findall(r">([^<]+)</text>", text)[0] == headline
        assert 16 + 0.5 * 15 * len(unescape(headline)) <= width_of(text), headline


def test_the_live_view_is_the_kept_runs(draw):
    kept = (KEPT / "live.svg").read_text(encoding="utf-8")
    assert draw.live() == kept, AGAIN
    assert "@font-face" not in kept  # it fetches nothing
    assert 20 * 800 / width_of(kept) >= 12  # the size of its letters at the width of a page


@pytest.mark.parametrize("place", ["kept", pytest.param("new", marks=pytest.mark.slow)])
def test_the_step_is_one_prompt_from_its_attempts_to_its_update(place, draw):
    drawing = (KEPT / "step.svg").read_text(encoding="utf-8") if place == "kept" else draw.step()
    words = re.findall(r">([^<]+)</text>", str(drawing))
    stages = re.findall(r"# (\d)\. (\w+):", inspect.getsource(train_step))
    assert len(stages) == 6
    assert {f"{number} {name}" for number, name in stages} <= set(words)
    # what the headline says: one has only failures, and gets the other's successes
    assert {"0 of 8 are right", "8 of 8 are right"} <= set(words)
    assert {"8 successes", "8 successes,", "imitation of"} <= set(words)


def test_no_words_of_the_step_leave_their_lane():
    text = (KEPT / "step.svg").read_text(encoding="utf-8")
    boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)[1:]
    for x, size, words in re.findall(r'<text x="([\d.]+)".*? font-size="(\d+)".*?>(.+?)</', text):
        ends = [float(left) + float(wide) for left, wide in boxes if float(x) == float(left) + 7]
        assert not ends or float(x) + 0.53 * int(size) * len(unescape(words)) <= ends[0] + 7, words


def test_the_toys_curves_are_what_the_tutorials_examples_print():
    one_learner = run_path(str(DATA / "page" / "two_learners.py"))["one_learner"]
    switch = {"own_loss": "alone", "with_a_memory": "memory", "with_a_peer": "peer"}
    text = (DATA.parent / "TUTORIAL.md").read_text(encoding="utf-8")
    printed = {}
    for example in DocTestParser().get_examples(text):
        called = re.search(r"^ *train\(.+, (\w+)\)$", example.source, re.MULTILINE)
        if called and example.want:
            starts = map(float, re.findall(r"-[0-9]+\.0", example.source))
            lines = re.findall(r"(?m)^[0-9].*$", example.want)
            for start, line in zip(starts, lines, strict=True):
                printed[switch[called[1]], start] = line
    assert len(printed) == 6
    for (sharing, start), line in printed.items():
        curve = one_learner(start, sharing)
        assert " ".join(f"{curve[step]:.2f}" for step in range(0, 401, 100)) == line, (
            sharing,
            start,
        )


def test_the_mean_of_the_weighted_texts_is_that_of_the_present_weights():
    text = (KEPT / "importance.svg").read_text(encoding="utf-8")
    boxes = [list(map(float, box)) for box in re.findall(BOX, text)][1:]  # without the card
    frames = {x + 4: h for x, y, w, h in boxes if w == 72}
    assert len(frames) == 4
    for left, tall in frames.items():
        weighted = sum(h + 2 for x, y, w, h in boxes if x == left and y > 200)
        assert weighted == pytest.approx(tall, abs=0.01)
    assert "right: before 0.40, weighted 0.50, now 0.50" in text


def test_the_noise_hides_what_its_headline_says(draw):
    kept = (KEPT / "bandit_noise.svg").read_text(encoding="utf-8")
    assert str(draw.bandit_noise()) == kept, AGAIN
    arrows = re.findall(r'points="(\S+),(\S+) (\S+),(\S+)" fill="none" stroke="#1b1b1b"', kept)
    lengths = []
    for arrow in arrows:
        x0, y0, x, y = map(float, arrow)
        lengths.append(math.hypot(x - x0, y - y0))
        assert y < y0  # uphill
    solo, xgrpo, sgt = lengths
    assert sgt > 4 * max(solo, xgrpo)
    words = re.findall(r">([^<]+)</text>", kept)
    assert words[words.index("xgrpo") + 1] == "73"


def test_the_picture_of_the_result_shows_its_controls(draw, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(draw.figures, "name_ends", lambda axes, ends: drawn.append(ends))
    line = {"step": 1, "skill/sold": 0.5, "skill/eats": 0.25}
    lines = [line | {"policy": name} for name in ("qwen-tiny", "llama-tiny")]
    monkeypatch.setattr(draw, "read_metrics", lambda directory: lines)
    draw.skills(tmp_path / "skills.png")
    names = ["alone", "memory", "with peer", "the peer"]
    assert [[name for _, name, _ in ends] for ends in drawn] == [names, names]


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
    assert ends["sgt"] < 0.05
