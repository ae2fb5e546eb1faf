"""Notebooks of the two courses, from their text: `python tests/tools/notebook.py` writes them.

Prose becomes Markdown cells, `>>>` examples become code cells with their outputs, and pictures
become cells that hold them. Commands become cells that call them; a kernel runs the short ones
(nbclient and ipykernel, of `.[dev]`), and what they print is kept. Folded solutions stay as they
are.
"""

import ast
import base64
import doctest
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
COURSES = ("TUTORIAL", "TUTORIAL_2")  # each has a page .md and a notebook .ipynb
FIRST_WORDS = """*Made from {course}.md by `python tests/tools/notebook.py`.* Run the next cell
first. Its code is folded, and it ends with "ready". On Colab or Kaggle there is nothing else to
install: what the text says about installing and environments is for terminals. The cell fetches
the program. If it knows no address, unfold it and write the address of the repository into it, or
upload the repository as `mini-mrl.zip` next to this notebook. On your own machine, open the
notebook in the folder of `mini_mrl.py`, with the environment of README. Cells that take long say
so: their results are in the text, so you can skip them. The stop button ends a run after its
present step: the run saves a checkpoint and prints the command that resumes it."""
SETUP = """# @title Set-up: run this cell first
ADDRESS = "{address}"  # what `git clone` takes

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from IPython.display import HTML, Image, display


class NotHere(Exception):
    def _render_traceback_(self):  # IPython prints this sentence in place of a traceback
        return [str(self)]


def folders():  # where the program is: here or in a folder
    return [path.parent for path in (*Path().glob("mini_mrl.py"), *Path().glob("*/mini_mrl.py"))]


if not folders():
    if Path("mini-mrl.zip").exists():
        shutil.unpack_archive("mini-mrl.zip")
    elif ADDRESS:
        subprocess.run(["git", "clone", "-q", ADDRESS, "mini-mrl"])
if not folders():
    raise NotHere(
        "The program is not here: unfold this cell, write the address of its repository between "
        "the quotes after ADDRESS and run it again, or upload mini-mrl.zip, or open this notebook "
        "in the folder of mini_mrl.py."
    )
if folders()[0] != Path():
    os.chdir(folders()[0])
    # a torch that is here already stays, if pyproject.toml allows its version
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", "."], check=True)

sys.path.insert(0, os.getcwd())
# `!python` is then the Python of this notebook
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["TERM"] = "dumb"  # a notebook moves no cursor: `!` prints plain lines
warnings.filterwarnings("ignore", "IProgress not found")  # a library's, of a bar that none draws


def run(options):
    # IPython kills what a `!` line calls when a cell is interrupted; this lets a run stop itself
    command = [sys.executable, "-u", "mini_mrl.py", *shlex.split(options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    view = display({"text/plain": ""}, raw=True, display_id=True)  # None outside of a notebook
    frames = {"MRL_FRAMES": "1"} if view else {}
    program = subprocess.Popen(command, start_new_session=True, env=os.environ | frames, **pipes)
    while True:
        try:
            for line in program.stdout:
                if line.startswith("\\f"):  # the live view
                    view.update({"text/plain": json.loads(line[1:])}, raw=True)
                    continue
                print(line, end="", flush=True)
                if curves := re.search(r": (\\S.*/skills\\.png)", line):
                    show(curves[1])
            program.wait()
            return
        except KeyboardInterrupt:
            program.send_signal(signal.SIGINT)


def show(picture):
    if picture.endswith(".svg"):  # as an image: a notebook that is not trusted shows no SVG
        content = base64.b64encode(Path(picture).read_bytes()).decode()
        display(HTML(f'<img src="data:image/svg+xml;base64,{content}">'))
    else:
        display(Image(picture))


print("ready")"""
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in JupyterLab and on Colab
# words of a command and what it asks of a reader; the first that fit count; on two CPU cores
COSTS = {
    " report ": "# needs the run above",
    " ask ": "# needs the run above",
    " compare ": "# optional, ten minutes",
    " --steps ": "# optional, a minute for each command",
    " --mode ": "# optional, 4 minutes",
}
# a fold that asks to predict first: in the notebook, its examples are cells with hidden outputs
PREDICTED = re.compile(r"<details><summary>Run it</summary>\n\n(.*?)</details>\n", re.DOTALL)
PRINTS = ("print(", "train(", "replay_from(", "two_prompts(")  # what the examples call to print
HIDDEN = {"jupyter": {"outputs_hidden": True}}
# what is no prose: a folded solution, a block of code, a picture
PIECE = re.compile(
    r"(?P<folded><details>.*?</details>)"
    r"|^```(?P<language>python|bash)(?P<hidden> hidden)?\n(?P<code>.*?)^```\n"
    r"|^!\[[^\]]*\]\((?P<picture>[^)]+)\)\n",
    re.MULTILINE | re.DOTALL,
)


def notebook(course: str, text: str, address: str) -> dict:
    """The notebook of a course, as JSON has it; what its commands print is added by `run`."""
    title, _, text = text.partition("\n")
    words = FIRST_WORDS.replace("{course}", course)
    first = markdown(f"{title}\n\n{badge(course, address)}{words}")
    setup = code(SETUP.replace("{address}", address))
    setup["metadata"] = FOLDED
    cells = [first, setup]
    text = PREDICTED.sub(lambda fold: fold[1].replace("```python", "```python hidden"), text)
    prose = ""
    end = 0
    for found in PIECE.finditer(text):
        prose += text[end : found.start()]
        end = found.end()
        if found["folded"]:
            prose += found["folded"]
            continue

        if prose.strip():
            cells.append(markdown(prose))
        prose = ""
        if found["picture"]:
            cells.append(code(f'show("{found["picture"]}")', [picture(ROOT / found["picture"])]))
        elif found["language"] == "bash":
            cells.append(commands(found["code"]))
        elif ">>>" in found["code"]:
            cells += examples(found["code"], HIDDEN if found["hidden"] else {})
        else:  # the mode of one's own, which its section saves under this name
            cells.append(code("%%writefile my_mode.py\n" + found["code"]))
    cells.append(markdown(prose + text[end:]))
    return file_of(cells)


def file_of(cells: list[dict]) -> dict:
    """A notebook of these cells."""
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def address_in(readme: str) -> str:
    """Where `git clone` finds the repository; empty while README has only words in its place."""
    found = re.search(r"git clone (https://\S+)", readme)
    return found[1] if found else ""


def badge(course: str, address: str) -> str:
    """A button that opens a notebook on Colab; nothing while the address is not known."""
    if not address:
        return ""
    on_colab = address.replace("://github.com/", "://colab.research.google.com/github/")
    button = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({button})]({on_colab}/blob/main/{course}.ipynb)\n\n"


def markdown(text: str) -> dict:
    """A cell of prose; its links to sections lead to a notebook's headings."""
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL).strip()
    text = re.sub(r"\[(\d+\. )?([^\]]+)\]\(#[^)]+\)", heading_link, text)
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def heading_link(found: re.Match) -> str:
    """A link to a section: a notebook names headings by their words, joined with dashes."""
    title = (found[1] or "") + found[2]
    return f"[{title}](#{title.replace(' ', '-')})"


def code(source: str, outputs: list[dict] | None = None) -> dict:
    """A cell of code."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs or [],
        "source": source.strip(),
    }


def commands(block: str) -> dict:
    """A cell that calls commands."""
    lines = [cost(block)]
    for line in block.splitlines():
        if options := re.fullmatch(r"python mini_mrl\.py (--.+)", line):  # it trains
            lines.append(f"run({json.dumps(options[1])})")
            continue
        # IPython puts values in the place of {...}; doubled braces reach the program as one
        lines.append("!" + line.replace("{", "{{").replace("}", "}}"))
    return code("\n".join(lines))


def cost(block: str) -> str:
    """What commands ask of a reader, as a comment; empty if they take seconds and need nothing."""
    for words, comment in COSTS.items():
        if words in block:
            return comment
    return ""


def picture(path: Path) -> dict:
    """The output of a cell that shows a picture."""
    content = base64.b64encode(path.read_bytes()).decode()
    if path.suffix == ".svg":
        data = {"text/html": f'<img src="data:image/svg+xml;base64,{content}">'}
    else:
        data = {"image/png": content}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def examples(block: str, metadata: dict) -> list[dict]:
    """Cells of one block of `>>>` lines: each ends where something is printed."""
    cells = []
    source = ""
    for example in doctest.DocTestParser().get_examples(block):
        source += example.source
        if example.want:
            cells.append(code(source, [output(example)]) | {"metadata": metadata})
            source = ""
    if source:
        cells.append(code(source))
    return cells


def output(example: doctest.Example) -> dict:
    """What an example prints, or the value that it ends with."""
    (*_, last) = ast.parse(example.source).body
    prints = not isinstance(last, ast.Expr) or ast.unparse(last).startswith(PRINTS)
    text = example.want.removesuffix("\n")
    if prints:
        return {"name": "stdout", "output_type": "stream", "text": example.want}
    return {
        "data": {"text/plain": text},
        "execution_count": None,
        "metadata": {},
        "output_type": "execute_result",
    }


def is_short_command(cell: dict) -> bool:
    """Whether a cell calls commands that take seconds and need nothing: their outputs are kept."""
    return cell["source"].startswith("!")


def run(cells: list[dict]) -> list[list[dict]]:
    """What cells give if a kernel runs them in order, in a folder with links to the program."""
    import nbclient
    import nbformat

    with TemporaryDirectory() as folder:
        for name in ("mini_mrl.py", "mrl", "data"):
            (Path(folder) / name).symlink_to(ROOT / name)
        made = nbformat.from_dict(file_of([code(cell["source"]) for cell in cells]))
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(
            made, timeout=600, coalesce_streams=True, resources=resources
        ).execute()

    for cell in made.cells:
        for given in cell.outputs:
            if given.output_type == "stream":
                given.text = given.text.replace("\r\n", "\n")  # as a terminal ends its lines
            if given.output_type == "execute_result":
                given.execution_count = None
    return [[dict(given) for given in cell.outputs] for cell in made.cells]


def written(made: dict) -> str:
    """The notebook's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Make the notebooks, run their short commands and write them."""
    address = address_in((ROOT / "README.md").read_text(encoding="utf-8"))
    for course in COURSES:
        made = notebook(course, (ROOT / f"{course}.md").read_text(encoding="utf-8"), address)
        setup = made["cells"][1]
        short = [cell for cell in made["cells"] if is_short_command(cell)]
        _, *outputs = run([setup, *short])
        for cell, given in zip(short, outputs, strict=True):
            cell["outputs"] = given
        (ROOT / f"{course}.ipynb").write_text(written(made), encoding="utf-8")


if __name__ == "__main__":
    main()
