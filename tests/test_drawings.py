"""The drawings that are kept are those that `python data/drawings/draw.py` makes today."""

import importlib.util
import re

import pytest

from mrl.config import DATA
from mrl.modes import MODES
from mrl.runtime.problems import load_problems

KEPT = DATA / "drawings"
AGAIN = "run `python data/drawings/draw.py`"


@pytest.fixture(scope="module")
def draw():
    spec = importlib.util.spec_from_file_location("draw", KEPT / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["step", "advantages", "clip", "ladders", "dial"])
def test_the_drawing_is_what_the_code_makes_today(name, draw):
    assert str(getattr(draw, name)()) == (KEPT / f"{name}.svg").read_text(encoding="utf-8"), AGAIN


@pytest.mark.slow
def test_the_command_makes_all_of_them(tmp_path, draw):
    draw.main(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in KEPT.iterdir() if path.suffix in (".svg", ".png")}
    pictures = {"skills.png", "best.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    for name in made - {"rescue.svg"} - pictures:  # what is sampled depends on the machine
        assert (tmp_path / name).read_bytes() == (KEPT / name).read_bytes(), (name, AGAIN)
    words = re.findall(r">([^<]+)</text>", (KEPT / "support.svg").read_text(encoding="utf-8"))
    assert set(words) > set(MODES) - {"solo-x2"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["kept", "new"])
def test_the_rescue_is_one(place, draw, tmp_path):
    drawing = (
        (KEPT / "rescue.svg").read_text(encoding="utf-8") if place == "kept" else draw.rescue()
    )
    lines = re.findall(r">([^<]+)</text>", str(drawing))
    answers = {p.prompt: p.answer for p in load_problems(DATA / "words" / "train.jsonl")}
    right = f"\\boxed{{{answers[lines[0].removeprefix('prompt: ')]}}}"
    assert re.fullmatch(r"\S+: 8 attempts, all wrong", lines[1])
    assert not any(right in line for line in lines[2:6])
    assert any(line.endswith(right) for line in lines[6:])
