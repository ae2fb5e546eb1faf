"""The pages for a browser: `python data/page/make.py` writes them beside it.

`index.html` is put together from template.html, the scripts beside it and the replay that the
report has, too. What the program computes is filled in here: the kept run, the bandit's table, and
what the playable run comes to. `report.html` is the kept run's report. The two pictures are how a
browser shows the top of both pages; only where Chromium is installed are they made again.
"""

import io
import json
import re
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from contextlib import chdir
from html import escape
from pathlib import Path

from PIL import Image
from two_learners import STEPS

from mrl.lab import bandit
from mrl.lab.report import replay, write_report
from mrl.run.directory import read_evaluations, read_rescues
from mrl.run.summary import learnt_sentence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT_RUN = ROOT / "data" / "results" / "sgt-s0"
EMBEDDED = re.compile(r"(?<=data:image/png;base64,)[^\"]+")
SIZES = {"index.html": (500, 1590), "report.html": (500, 1340)}  # of the pictures


def modes() -> list[list[str]]:
    """The bandit's rows of the published modes, as `python mini_mrl.py bandit` prints them."""
    cells = [list(column.cells) for column in bandit.bandit_table().columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return [row for row in rows if row[0] in bandit.PUBLISHED]


def page() -> str:
    """The whole page, which fetches nothing."""
    rows = ""
    for name, *figures in modes():
        cells = "".join(f"<td>{figure}</td>" for figure in (name, *figures))
        rows += f'<tr data-mode="{name}">{cells}</tr>'
    luck = round(bandit.complementary()[1].reward("receiver"), 4)
    facts = {"G": bandit.GROUP, "p": luck, "modes": modes()}
    sentence = learnt_sentence(read_evaluations(KEPT_RUN), read_rescues(KEPT_RUN))
    with chdir(ROOT):  # the tokenizers' paths start there
        component = replay(KEPT_RUN)

    text = (HERE / "template.html").read_text(encoding="utf-8")
    for name, part in {
        "play": (HERE / "play.js").read_text(encoding="utf-8"),
        "view": (HERE / "play_view.js").read_text(encoding="utf-8"),
        "parts": (HERE / "parts.js").read_text(encoding="utf-8"),
        "support": (ROOT / "data" / "drawings" / "support.svg").read_text(encoding="utf-8"),
        "facts": json.dumps(facts),
        "rows": rows,
        "replay_mode": bandit.replay_sentence(),
        "steps": str(STEPS),
        "sentence": escape(sentence),
        "replay": component,
    }.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def report() -> str:
    """The kept run's report, made from a copy of the run, with smaller pictures."""
    with tempfile.TemporaryDirectory() as folder, chdir(ROOT):
        run = Path(folder) / KEPT_RUN.name
        shutil.copytree(KEPT_RUN, run)
        made = write_report(run).read_text(encoding="utf-8")
    return EMBEDDED.sub(lambda found: b64encode(smaller(b64decode(found[0]))).decode(), made)


def smaller(png: bytes) -> bytes:
    """A picture with 256 colors, which is all that lines, areas and letters need."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def photograph(page: Path, path: Path) -> None:
    """Write a picture of the top of a page in the middle of its play, as Chromium shows it."""
    text = page.read_text(encoding="utf-8")
    played = "for (let n = 0; n < 124; n++) step();" if page.name == "index.html" else ""
    frame = "<style>html { border: 2px solid #bbbbbb } * { animation: none !important }</style>"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        copy.write_text(f"{text}{frame}<script>{played}</script>", encoding="utf-8")
        size = "{},{}".format(*SIZES[page.name])
        command = f"chromium --headless --no-sandbox --hide-scrollbars --window-size={size}"
        shot = f"--screenshot={path}"
        subprocess.run([*command.split(), shot, str(copy)], check=True, capture_output=True)
    path.write_bytes(smaller(path.read_bytes()))


if __name__ == "__main__":
    for name, text in {"index.html": page(), "report.html": report()}.items():
        (HERE / name).write_text(text, encoding="utf-8")
        if shutil.which("chromium"):
            photograph(HERE / name, HERE / f"{Path(name).stem}.png")
