"""TUTORIAL.ipynb from TUTORIAL.md: `python tests/notebook.py` writes it.

Prose becomes Markdown cells, `>>>` examples become code cells with their outputs, commands become
cells that call them, and pictures become cells that show them. Folded solutions stay as they are.
"""

import ast
import doctest
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "TUTORIAL.ipynb"
FIRST_WORDS = """*Made from TUTORIAL.md by `python tests/notebook.py`.* Run the next cell
first. On Colab or Kaggle it fetches the program: write the address of the repository into it, or
upload the repository as `mini-mrl.zip` beside this notebook. Elsewhere, open the notebook in the
folder of `mini_mrl.py`, with the environment of README; the cell then only prepares `show`."""
SETUP = '''ADDRESS = "<this repository>"  # what `git clone` takes

import os
import subprocess
import sys
from pathlib import Path

if not Path("mini_mrl.py").exists():
    if Path("mini-mrl.zip").exists():
        subprocess.run(["unzip", "-q", "mini-mrl.zip"], check=True)
    else:
        subprocess.run(["git", "clone", "-q", ADDRESS, "mini-mrl"], check=True)
    os.chdir(next(Path().rglob("mini_mrl.py")).parent)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", "."], check=True)
sys.path.insert(0, os.getcwd())


def show(picture):
    """Draw a picture of the repository under the cell."""
    from IPython.display import SVG, Image, display

    display(SVG(picture) if picture.endswith(".svg") else Image(picture))'''
# what is no prose: a folded solution, a block of code, a picture
PIECE = re.compile(
    r"(?P<folded><details>.*?</details>)"
    r"|^```(?P<language>python|bash)\n(?P<code>.*?)^```\n"
    r"|^!\[[^\]]*\]\((?P<picture>[^)]+)\)\n",
    re.MULTILINE | re.DOTALL,
)


def notebook(tutorial: str) -> dict:
    """The notebook, as JSON has it."""
    cells = [markdown(FIRST_WORDS), code(SETUP)]
    prose = ""
    end = 0
    for found in PIECE.finditer(tutorial):
        prose += tutorial[end : found.start()]
        end = found.end()
        if found["folded"]:
            prose += found["folded"]
            continue

        if prose.strip():
            cells.append(markdown(prose))
        prose = ""
        if found["picture"]:
            cells.append(code(f'show("{found["picture"]}")'))
        elif found["language"] == "bash":
            cells.append(code("\n".join("!" + line for line in found["code"].splitlines())))
        elif ">>>" in found["code"]:
            cells += examples(found["code"])
        else:  # the mode of one's own, which its section saves under this name
            cells.append(code("%%writefile my_mode.py\n" + found["code"]))
    cells.append(markdown(prose + tutorial[end:]))

    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


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


def examples(block: str) -> list[dict]:
    """Cells of one block of `>>>` lines: each ends where something is printed."""
    cells = []
    source = ""
    for example in doctest.DocTestParser().get_examples(block):
        source += example.source
        if example.want:
            cells.append(code(source, [output(example)]))
            source = ""
    if source:
        cells.append(code(source))
    return cells


def output(example: doctest.Example) -> dict:
    """What an example prints, or the value that it ends with."""
    (*_, last) = ast.parse(example.source).body
    prints = not isinstance(last, ast.Expr) or ast.unparse(last).startswith(("print(", "train("))
    text = example.want.removesuffix("\n")
    if prints:
        return {"name": "stdout", "output_type": "stream", "text": example.want}
    return {
        "data": {"text/plain": text},
        "execution_count": None,
        "metadata": {},
        "output_type": "execute_result",
    }


def written(made: dict) -> str:
    """The notebook's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    tutorial = (ROOT / "TUTORIAL.md").read_text(encoding="utf-8")
    NOTEBOOK.write_text(written(notebook(tutorial)), encoding="utf-8")
