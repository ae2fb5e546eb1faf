"""The pages for a browser: `python data/page/make.py` writes them beside it.

`index.html` is for trying out what TUTORIAL.md derives. Its own text and script stand in
template.html; what the program computes is filled in here: the bandit's table, and advantages that
the script is compared with. `report.html` is the report of the run that is kept in data/results,
with smaller pictures than the program's. `report.png` is how a browser shows a part of it; only
where Chromium is installed is it made again.
"""

import io
import json
import re
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from contextlib import chdir
from pathlib import Path

import torch
from PIL import Image

from mrl.advantages import group_advantages
from mrl.lab.bandit import GROUP, bandit_table, complementary, replay_sentence
from mrl.lab.report import write_report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT_RUN = ROOT / "data" / "results" / "sgt-s0"
EMBEDDED = re.compile(r"(?<=data:image/png;base64,)[^\"]+")
SHOWN = "<h2>Solve rate by skill", "<h2>Rescued"  # in the picture
SIZE = "830,1310"  # of the picture


def rounded(values: list[float]) -> list[float]:
    """To the digits that are the same on every machine."""
    return [round(value, 4) for value in values]


def examples() -> list[dict]:
    """Advantages of a group of eight with no right answer, with one, and so on to eight."""
    rows = []
    for right in range(9):
        rewards = [1.0] * right + [0.0] * (8 - right)
        group = torch.tensor([rewards])
        plain = group_advantages(group, scale_by_std=False)[0].tolist()
        scaled = group_advantages(group)[0].tolist()
        rows.append({"rewards": rewards, "scaled": rounded(scaled), "plain": rounded(plain)})
    return rows


def bandit() -> dict:
    """The bandit's table as `python mini_mrl.py bandit` prints it."""
    cells = [list(column.cells) for column in bandit_table().columns]
    modes = [list(row) for row in zip(*cells, strict=True)]
    luck = complementary()[1].reward("receiver")
    return {"G": GROUP, "p": round(luck, 4), "modes": modes, "replay": replay_sentence()}


def page() -> str:
    """The whole page, which fetches nothing."""
    facts = json.dumps({"examples": examples(), "bandit": bandit()}, indent=1)
    template = (HERE / "template.html").read_text(encoding="utf-8")
    return template.replace("{{facts}}", facts)


def report() -> str:
    """The kept run's report, made from a copy of the run."""
    with tempfile.TemporaryDirectory() as folder, chdir(ROOT):  # the tokenizers' paths start there
        run = Path(folder) / KEPT_RUN.name
        shutil.copytree(KEPT_RUN, run)
        made = write_report(run).read_text(encoding="utf-8")
    return EMBEDDED.sub(lambda found: b64encode(smaller(b64decode(found[0]))).decode(), made)


def smaller(png: bytes) -> bytes:
    """A picture with 64 colors, which is all that lines and areas need."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(file, "PNG", optimize=True)
    return file.getvalue()


def part_of(report: str) -> str:
    """The report cut to what README shows: its first sentence, the skills, a rescue."""
    head, *parts = re.split(r"(?=<h2>)", report)
    frame = "<style>html { border: 2px solid #bbbbbb }</style>"
    return head + frame + "".join(part for part in parts if part.startswith(SHOWN))


def photograph(report: str, path: Path) -> None:
    """Write a picture of a part of the report, as Chromium shows it."""
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
        page.write(part_of(report))
        page.flush()
        command = f"chromium --headless --no-sandbox --hide-scrollbars --window-size={SIZE}"
        shot = f"--screenshot={path}"
        subprocess.run([*command.split(), shot, page.name], check=True, capture_output=True)
    path.write_bytes(smaller(path.read_bytes()))


if __name__ == "__main__":
    (HERE / "index.html").write_text(page(), encoding="utf-8")
    made = report()
    (HERE / "report.html").write_text(made, encoding="utf-8")
    if shutil.which("chromium"):
        photograph(made, HERE / "report.png")
