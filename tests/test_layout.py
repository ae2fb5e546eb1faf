"""The rules of the house: who may import whom, and how long a function may be."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "mini_mrl.py"
LAYERS = (  # each folder imports only from those above it, and from itself
    ("mrl", "mrl/modes"),
    ("mrl/verifier",),
    ("mrl/models",),
    ("mrl/settings",),
    ("mrl/run",),
    ("mrl/tiny",),
    ("mrl/lab",),
    ("mrl/classroom",),
    ("mrl/cli",),
)
CODE = [PROGRAM, *ROOT.glob("mrl/**/*.py")]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path):
    """Full names of all that a file imports, inside functions and under TYPE_CHECKING, too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_imports_go_down(layer):
    """Also imports inside of functions and those for type hints alone."""
    lower = {folder for folders in LAYERS[: layer + 1] for folder in folders}
    for folder in LAYERS[layer]:
        files = list((ROOT / folder).glob("*.py"))
        assert len(files) >= 2
        for path in files:
            for name in imported(path):
                top, *inner = name.split(".")
                assert top != "mini_mrl" or folder == "mrl/cli", path
                if top == "mrl":
                    is_folder = inner and (ROOT / "mrl" / inner[0]).is_dir()
                    assert (f"mrl/{inner[0]}" if is_folder else "mrl") in lower, f"{path}: {name}"


def test_every_folder_has_its_layer():
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("mrl/*/*.py")}
    assert folders | {"mrl"} == {folder for folders in LAYERS for folder in folders}


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]  # for a class
    declared = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines}
    for path in CODE:
        tops = {name.partition(".")[0] for name in imported(path)} - {"mrl", "mini_mrl"}
        missing = tops - declared - sys.stdlib_module_names
        assert not missing, f"{path} imports {missing}, which pyproject.toml does not declare"


def test_the_lowest_versions_are_those_that_were_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = {}
    for line in project["dependencies"]:
        name, version = re.match(r"([\w-]+)>=([\d.]+)", line).groups()
        lowest[name] = version
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    section = page.partition("## Versions that were tried")[2].partition("\n## ")[0]
    tried = dict(re.findall(r"(?m)^\| ([\w-]+) \| (\d[\d.]+) \| \d[\d.]+ \|$", section))
    assert tried.keys() == lowest.keys()
    for name, version in lowest.items():
        assert f"{tried[name]}.".startswith(f"{version}."), name


def test_the_small_torch_of_ci_is_one_that_the_program_allows():
    """README's lines, which CI runs as they are printed, install it by `PIP_CONSTRAINT`."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (named,) = re.findall(r"^export PIP_CONSTRAINT=(\S+)$", script, re.MULTILINE)
    assert script.index(named) < script.index("bash -c")
    (most,) = re.findall(r"^torch<2\.(\d+)$", (ROOT / named).read_text("utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = (line for line in project["dependencies"] if line.startswith("torch"))
    lowest, highest = map(int, re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", torch).groups())
    assert lowest < int(most) <= highest


def code_lines(path):
    """Lines of a file that hold code: not blank, not a comment, not of a docstring."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))

    numbers = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and number not in docstrings:
            numbers.append(number)
    return numbers


def test_no_function_is_longer_than_a_screen():
    long = []
    for path in CODE:
        lines_of_code = code_lines(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                size = sum(node.lineno <= number <= node.end_lineno for number in lines_of_code)
                if size > 50:
                    long.append(f"{path.name}: {node.name} has {size} code lines")
    assert not long, ", ".join(long)


def test_no_public_name_of_the_program_is_there_for_tests_alone():
    nodes = [(path, node) for path in CODE for node in ast.walk(tree(path))]
    users = [*CODE, *ROOT.glob("data/**/*.py")]  # the drawings' script is no test
    used = {node.id for _, node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for _, node in nodes if isinstance(node, ast.Attribute)}
    used |= {name for path in users for full in imported(path) for name in full.split(".")}
    alone = [
        f"{path.name}: {node.name}"
        for path, node in nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "classroom" not in path.parts  # stubs, and tests that pytest finds by their names
        and not (node.name.startswith("_") or node.name in used)
        and node.name != "forward"  # of a module: torch calls it
        and ".command(" not in "".join(map(ast.unparse, node.decorator_list))
    ]
    assert not alone, ", ".join(alone)
