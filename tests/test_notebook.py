"""TUTORIAL.ipynb is TUTORIAL.md of today, and its code gives the outputs that it shows."""

import ast
import importlib.util
import json
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.test_tutorial import COMMANDS, ROOT, TUTORIAL

MADE_BY = ROOT / "tests" / "notebook.py"
KEPT = (ROOT / "TUTORIAL.ipynb").read_text(encoding="utf-8")
CELLS = json.loads(KEPT)["cells"]
SOURCES = [cell["source"] for cell in CELLS if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebook", MADE_BY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_the_tutorial_of_today(maker):
    again = "run `python tests/notebook.py`"
    assert maker.written(maker.notebook(TUTORIAL)) == KEPT, again


def test_nothing_of_the_tutorial_is_lost():
    prose = "\n".join(cell["source"] for cell in CELLS if cell["cell_type"] == "markdown")
    for heading in re.findall(r"^## .+$", TUTORIAL, re.MULTILINE):
        assert heading in prose
    assert prose.count("</details>") == TUTORIAL.count("</details>")

    called = [line[1:] for source in SOURCES for line in source.splitlines() if line[0:1] == "!"]
    assert called == COMMANDS
    shown = [source for source in SOURCES if source.startswith("show(")]
    assert len(shown) == len(re.findall(r"^!\[", TUTORIAL, re.MULTILINE))

    open_text = re.sub(r"<details>.*?</details>", "", TUTORIAL, flags=re.DOTALL)
    lines = [source.splitlines() for source in SOURCES]
    written = {line for several in lines for line in several}
    for example in re.findall(r"^(?:>>>|\.\.\.) (.+)$", open_text, re.MULTILINE):
        assert example in written


@pytest.mark.slow
def test_its_code_gives_the_outputs_that_it_shows(monkeypatch):
    """All cells in order in one namespace; those that call commands or show pictures stay out."""
    monkeypatch.chdir(ROOT)
    space = {"__name__": "__main__"}
    compared = 0
    for cell in CELLS:
        if cell["cell_type"] == "markdown" or cell["source"].startswith(("!", "%%", "show(")):
            continue

        tree = ast.parse(cell["source"])
        last = None
        if isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        printed = StringIO()
        value = None
        with redirect_stdout(printed):
            exec(compile(tree, "cell", "exec"), space)
            if last is not None:
                value = eval(compile(last, "cell", "eval"), space)

        shown = printed.getvalue()
        if value is not None:
            shown += repr(value)
        kept = [out.get("text") or out["data"]["text/plain"] for out in cell["outputs"]]
        if kept:
            compared += 1
            assert [shown] == kept, cell["source"]
    assert compared >= 25
