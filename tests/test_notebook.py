"""The notebooks are the courses of today, work in IPython, and give the outputs they show."""

import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from mrl.run.directory import newest_checkpoint
from tests.test_tutorial import COMMANDS, COURSES, ROOT, TUTORIAL

MADE_BY = ROOT / "tests" / "tools" / "notebook.py"
NAMES = [page.removesuffix(".md") for page in COURSES]
KEPT = {name: (ROOT / f"{name}.ipynb").read_text(encoding="utf-8") for name in NAMES}
OF_COURSE = {name: json.loads(kept)["cells"] for name, kept in KEPT.items()}
CELLS = [cell for cells in OF_COURSE.values() for cell in cells]
SOURCES = [cell["source"] for cell in CELLS if cell["cell_type"] == "code"]
SHORT = [cell for cell in CELLS if cell["source"].startswith("!")]
ADDRESS = "https://github.com/someone/mini-mrl"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebook", MADE_BY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("course", NAMES)
def test_a_notebook_has_the_cells_of_its_course_of_today(course, maker):
    address = maker.address_in((ROOT / "README.md").read_text(encoding="utf-8"))
    made = maker.notebook(course, COURSES[f"{course}.md"], address)["cells"]
    kept = OF_COURSE[course]
    cells = [[(cell["cell_type"], cell["source"]) for cell in of] for of in (made, kept)]
    assert cells[0] == cells[1], "run `python tests/tools/notebook.py`"


def test_nothing_of_the_courses_is_lost():
    prose = "\n".join(cell["source"] for cell in CELLS if cell["cell_type"] == "markdown")
    for heading in re.findall(r"^## .+$", TUTORIAL, re.MULTILINE):
        assert heading in prose
    predicted = TUTORIAL.count("<summary>Run it</summary>")  # these are cells
    assert prose.count("</details>") == TUTORIAL.count("</details>") - predicted

    lines = [line for source in SOURCES for line in source.splitlines()]
    called = []
    for line in lines:
        if line.startswith("!"):
            called.append(line[1:].replace("{{", "{").replace("}}", "}"))
        elif line.startswith('run("'):
            called.append(f"python mini_mrl.py {json.loads(line[4:-1])}")
    assert called == COMMANDS
    folded = r"<details><summary>(?!Run it).*?</details>"
    open_text = re.sub(folded, "", TUTORIAL, flags=re.DOTALL)
    for example in re.findall(r"^(?:>>>|\.\.\.) (.+)$", open_text, re.MULTILINE):
        assert example in lines


def test_pictures_are_there_before_anything_is_run():
    paths = re.findall(r"^!\[[^\]]*\]\(([^)]+)\)", TUTORIAL, re.MULTILINE)
    shown = [cell for cell in CELLS if cell["source"].startswith("show(")]
    assert [cell["source"] for cell in shown] == [f'show("{path}")' for path in paths]
    for path, cell in zip(paths, shown, strict=True):
        (data,) = [output["data"] for output in cell["outputs"]]
        if path.endswith(".svg"):  # as an image, which a notebook shows before it is trusted
            (content,) = re.findall(r'src="data:image/svg\+xml;base64,(.+)"', data["text/html"])
        else:
            content = data["image/png"]
        assert base64.b64decode(content) == (ROOT / path).read_bytes()
    assert all(len(kept) < 1_500_000 for kept in KEPT.values())


def test_a_command_that_takes_long_says_so_and_a_short_one_shows_what_it_prints():
    calls = [source for source in SOURCES if re.search(r"^(!python|run\()", source, re.M)]
    assert [cell["source"].split()[2] for cell in SHORT] == ["align", "bandit"]
    for source in calls:
        notes = re.findall(r"^# (optional, .+|needs the run above)$", source, re.MULTILINE)
        trains_or_reads_a_run = re.search(r"run\(|compare | runs/", source) is not None
        assert len(notes) == trains_or_reads_a_run, source

    for cell in SHORT:
        (output,) = cell["outputs"]
        assert "\x1b" not in output["text"]
        numbers = [line for line in output["text"].splitlines() if re.search(r"\d%", line)]
        assert numbers
        for line in numbers:
            assert line in TUTORIAL  # the text beside it


def test_the_address_stands_in_readme_alone(maker):
    assert maker.address_in("git clone <this repository> mini-mrl && cd mini-mrl") == ""
    assert maker.address_in(f"git clone {ADDRESS} mini-mrl && cd mini-mrl") == ADDRESS
    words, setup = maker.notebook("TUTORIAL_2", "", ADDRESS)["cells"][:2]
    on_colab = (
        "https://colab.research.google.com/github/someone/mini-mrl/blob/main/TUTORIAL_2.ipynb"
    )
    assert f"({on_colab})" in words["source"]
    assert f'ADDRESS = "{ADDRESS}"' in setup["source"]
    assert "colab.research" not in maker.notebook("TUTORIAL", "", "")["cells"][0]["source"]


@pytest.fixture
def first_cell(maker, tmp_path, monkeypatch):
    """A function that runs the first cell in a new folder and returns the programs it called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("TERM", "xterm-color")
    called = []

    def call(words, check=False):
        called.append(words)
        if words[:2] == ["git", "clone"] and words[3] == ADDRESS:
            Path(words[4]).mkdir()
            Path(words[4], "mini_mrl.py").touch()

    monkeypatch.setattr(subprocess, "run", call)

    def run(address=""):
        source = maker.notebook("TUTORIAL", "", address)["cells"][1]["source"]
        exec(compile(source, "first cell", "exec"), {"__name__": "__main__"})
        return called

    return run


def test_the_first_cell_says_in_a_sentence_what_is_missing(first_cell):
    with pytest.raises(Exception, match="write the address of its repository") as failure:
        first_cell()
    assert failure.value._render_traceback_() == [str(failure.value)]  # all that IPython prints
    with pytest.raises(Exception, match="write the address of its repository"):
        first_cell("https://github.com/nothing/there")


def test_the_first_cell_fetches_the_program_once(first_cell, tmp_path):
    clone, install = first_cell(ADDRESS)
    assert clone[:2] == ["git", "clone"]
    assert install[:3] == [sys.executable, "-m", "pip"]
    assert Path.cwd() == tmp_path / "mini-mrl" and str(Path.cwd()) in sys.path
    assert len(first_cell(ADDRESS)) == 2  # the same cell again calls nothing
    os.chdir(tmp_path)  # as after a new start of the kernel
    assert first_cell(ADDRESS)[2:] == [install]
    assert Path.cwd() == tmp_path / "mini-mrl"


def test_the_first_cell_takes_a_file_that_was_uploaded(first_cell, tmp_path):
    with ZipFile(tmp_path / "mini-mrl.zip", "w") as uploaded:
        uploaded.writestr("mini-mrl-main/mini_mrl.py", "")
    (install,) = first_cell(ADDRESS)  # a class may have its own copy: the address is not asked
    assert "pip" in install
    assert Path.cwd() == tmp_path / "mini-mrl-main"


def test_beside_the_program_the_first_cell_installs_nothing(first_cell, tmp_path):
    (tmp_path / "mini_mrl.py").touch()
    assert first_cell() == []
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert os.environ["TERM"] == "dumb"


@pytest.mark.slow
@pytest.mark.parametrize("course", NAMES)
def test_its_code_gives_the_outputs_that_it_shows(course, maker, monkeypatch, tmp_path):
    """A kernel runs all cells but those that take long; another `python` comes first on PATH."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho another Python\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    long = tuple(maker.COSTS.values())
    cells = [cell for cell in OF_COURSE[course] if cell["cell_type"] == "code"]
    cells = [cell for cell in cells if not cell["source"].startswith(long)]
    assert len(cells) > 20
    for cell, given in zip(cells, maker.run(cells), strict=True):
        if cell["source"].startswith("show("):
            (kept,), (shown,) = cell["outputs"], given
            for kind, content in kept["data"].items():
                assert shown["data"][kind].strip() == content
        elif cell["outputs"]:
            assert given == cell["outputs"], cell["source"]


SMALL_RUN = (
    "--mode solo --set prompts_per_step=2 --set 'heldout=[\"few.jsonl\"]' --placement resident"
)


@pytest.mark.slow
def test_a_run_redraws_its_bars_in_place_and_ends_with_its_curves(maker):
    few = (
        "from pathlib import Path\n"
        'lines = Path("data/words/validation.jsonl").read_text().splitlines()[::60]\n'
        'Path("few.jsonl").write_text("\\n".join(lines) + "\\n")'
    )
    command = f"run({json.dumps(SMALL_RUN + ' --steps 2')})"
    setup = maker.notebook("TUTORIAL", "", "")["cells"][1]
    *_, outputs = maker.run([setup, maker.code(few), maker.code(command)])
    bars, printed, curves = outputs
    assert "step 2/2" in bars["data"]["text/plain"]
    assert "█" in bars["data"]["text/plain"]
    assert "pass@1" in printed["text"]
    assert "\x1b" not in printed["text"]
    assert len(printed["text"].splitlines()) < 60
    assert curves["data"]["image/png"]


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_its_checkpoint(maker, tmp_path):
    """The stop button sends SIGINT to the kernel, and to all processes of its group."""
    for name in ("mini_mrl.py", "mrl", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    few = (ROOT / "data" / "words" / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "few.jsonl").write_text("\n".join(few[::60]) + "\n", encoding="utf-8")
    setup = maker.notebook("TUTORIAL", "", "")["cells"][1]["source"]
    source = f"{setup}\nrun({json.dumps(SMALL_RUN + ' --steps 500')})\nprint('goes on')"
    kernel = subprocess.Popen(
        [sys.executable, "-u", "-c", source],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    printed = []
    for line in kernel.stdout:
        printed.append(line)
        # once: interrupted while it prints, Python may print the line again
        if line.startswith("step 1/") and printed.count(line) == 1:
            os.killpg(kernel.pid, signal.SIGINT)
    assert kernel.wait() == 0
    assert printed[-1] == "goes on\n" and "resume" in "".join(printed[-3:])
    (directory,) = (tmp_path / "runs").iterdir()
    assert newest_checkpoint(directory)
