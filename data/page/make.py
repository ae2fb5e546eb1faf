"""The pages for a browser: `python data/page/make.py` writes them next to this script.

`index.html` consists of index.part.html, the scripts next to it, and the replay, which the report
also has. This script fills in what the program computes: the kept run and the bandit's table.
`report.html` is the report of the kept run. `index.png` and `report.png` are screenshots of the top
of both pages. They are renewed only if Chromium is installed.
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
from mrl.lab.report import headline, replay, write_report
from mrl.run.blind_spots import BLIND_SPOT, CLOSED

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT_RUN = ROOT / "data" / "results" / "sgt-s0"
EMBEDDED = re.compile(r"(?<=data:image/png;base64,)[^\"]+")
# width and height of the screenshots, in CSS pixels
SIZES = {"index.html": (500, 724), "report.html": (500, 660)}
SCALE = 2  # screenshot pixels per CSS pixel, so that text is sharp
# what is played before the screenshot: RL alone to its end, then a peer until Blue is rescued
SCENE = """document.querySelector("input[value=alone]").click();
for (let n = 0; n < STEPS; n++) step();
document.querySelector("input[value=peer]").click();
for (let n = 0; n < 133; n++) step();"""


def modes() -> list[list[str]]:
    """The bandit's support, angle and groups of the published modes, as the command prints them.

    `replay` is left out, because its numbers depend on its buffer.
    """
    columns = bandit.bandit_table().columns
    cells = [list(column.cells) for column in (*columns[:3], columns[-1])]
    shown = set(bandit.PUBLISHED) - {"replay"}
    return [list(row) for row in zip(*cells, strict=True) if row[0] in shown]


def page() -> str:
    """The whole page, which loads nothing from the network."""
    rows = ""
    for name, *figures in modes():
        cells = "".join(f"<td>{figure}</td>" for figure in (name, *figures))
        rows += f'<tr data-mode="{name}">{cells}</tr>'
    later = "depends on what it found before: press it"
    rows += f'<tr data-mode="replay"><td>replay</td><td colspan="3">{later}</td></tr>'
    luck = round(bandit.complementary()[1].reward("receiver"), 4)
    facts = {"G": bandit.GROUP, "p": luck, "modes": modes(), "replay": bandit.replay_sentence()}
    with chdir(ROOT):  # the paths of the run's tokenizers are relative to it
        component = replay(KEPT_RUN)

    text = (HERE / "index.part.html").read_text(encoding="utf-8")
    for name, part in {
        "play": (HERE / "play.js").read_text(encoding="utf-8"),
        "view": (HERE / "play_view.js").read_text(encoding="utf-8"),
        "parts": (HERE / "parts.js").read_text(encoding="utf-8"),
        "support": (ROOT / "data" / "drawings" / "support.svg").read_text(encoding="utf-8"),
        "facts": json.dumps(facts),
        "rows": rows,
        "steps": str(STEPS),
        "blind_spot": str(BLIND_SPOT),
        "closed": str(CLOSED),
        "headline": headline(KEPT_RUN),
        "replay": component,
        **hint_parts(),
    }.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def hint_parts() -> dict[str, str]:
    """One recorded second attempt (hint.json says of which run), cut where the hint ends."""
    example = json.loads((HERE / "hint.json").read_text(encoding="utf-8"))
    example["own"] = example["text"].removeprefix(example["beginning"])
    return {f"hint_{name}": escape(text) for name, text in example.items()}


def report() -> str:
    """The kept run's report, made from a copy of the run, with smaller pictures."""
    with tempfile.TemporaryDirectory() as folder, chdir(ROOT):
        run = Path(folder) / KEPT_RUN.name
        shutil.copytree(KEPT_RUN, run)
        made = write_report(run).read_text(encoding="utf-8")
    return EMBEDDED.sub(lambda found: b64encode(smaller(b64decode(found[0]))).decode(), made)


def smaller(png: bytes) -> bytes:
    """The picture with 256 colors, which are enough for lines, areas and text."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def photograph(page: Path, path: Path) -> None:
    """Write a screenshot of the top of a page, made by Chromium while the page plays its scene.

    A visitor sees animated arrows; for the screenshot, their animation is stopped halfway.
    """
    # in the head, so that it is there before the arrows are
    style = "<style>html { border: 2px solid #bbbbbb } .arrow { animation-delay: -.4s !important; "
    style += "animation-play-state: paused !important }</style></head>"
    text = page.read_text(encoding="utf-8").replace("</head>", style, 1)
    played = SCENE if page.name == "index.html" else ""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        copy.write_text(f"{text}<script>{played}</script>", encoding="utf-8")
        width, height = SIZES[page.name]
        options = "--headless --no-sandbox --disable-gpu --disable-background-networking"
        command = [
            *f"chromium {options} --hide-scrollbars --force-device-scale-factor={SCALE}".split(),
            f"--window-size={width},{height}",
            f"--screenshot={path}",
            str(copy),
        ]
        subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(smaller(path.read_bytes()))


if __name__ == "__main__":
    for name, text in {"index.html": page(), "report.html": report()}.items():
        (HERE / name).write_text(text, encoding="utf-8")
        if shutil.which("chromium"):
            photograph(HERE / name, HERE / f"{Path(name).stem}.png")
