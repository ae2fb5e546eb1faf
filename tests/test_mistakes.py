"""A hundred mistakes that people make, one after the other: each ends with one sentence.

Drawn from a round of several hundred. What a sentence has to say is tested where it is made; here
it only has to be one, with exit code 2 (1 where a model or a machine is at fault) and no traceback.
"""

import json
import shutil
import signal
import time

import pytest

from mrl.config import DATA
from tests.end_to_end.small_run import (
    HERE,
    SMALL,
    interrupt,
    lines,
    run,
    small,
    start,
    stop_after,
)

pytestmark = pytest.mark.slow
QWEN = str(DATA / "tiny" / "qwen-tiny")
POLICY = f'[[policy]]\npath = "{QWEN}"\n'
DEEP = "[" * 3000

PAIRS = ["", ",", " ", "my model", "a:b", "no/", "/no/such", "ümlaut", "x" * 120, "a//b", "a/b/c/d"]
PAIRS += ["~nobody/x", "http://a.b/c", ".", "tiny,", "a b/c d", "C:\\model", "file", f"{QWEN},none"]

SETS = [
    "steps", "steps=", "=3", "steps=true", "steps=1.5", "settings=3",
    "policies=[]", "train=", "train=file", "heldout=", "heldout=[3]", "heldout=[]", "name=a/b",
    "name=\x1b[31m", "runs=file", "sgt.no=1", "sgt=1", "device=cuda:99", "device=", "liar=-1",
    "verify_timeout_s=0", "record=all", "peer_log=none", "qwen-tiny.path=x", "temperature=0",
    "temperature=inf",
    "learning_rate=nan", "max_new_tokens=0", "max_new_tokens=400", "group_size=1", "threads=0",
    "template=no prompt", "dtype=float16", "objective=ppo", "eval_samples=0", "updates_per_step=0",
    "clip_low=-1",
]  # fmt: skip

CONFIGS = {
    "c.toml": [
        "x = ", f"x = {DEEP}", "policy = []", "policies = []", "policy = 3", "policy = [3]",
        "[policy]\npath = 'x'", "[[policy]]", "[[policy]]\npath = 3", '[[policy]]\npath = ""',
        POLICY + f'name = "{"n" * 65}"', POLICY + 'name = "a/b"', POLICY + r'name = "\u001b[31m"',
        POLICY + 'name = ""', POLICY + POLICY, POLICY + 'learning_rate = "x"', "steps = '3'",
        "stpes = 3", "settings = 3", "[settings]\nsgt = 3", "[settings.sgt]\nno = 3",
        "[settings.none]\nx = 3", "[settings.sgt]\nimitation_weight = 'x'", "heldout = 3",
        "mode = 3", POLICY + 'kl_coef = 1.0\nreference = "/none"',
    ],
    "c.json": ["", "{", "[]", "null", DEEP, '"text"', '{"policies": [3]}', '{"steps": NaN}'],
    "p.jsonl": [
        "", "{", "[1]", "null", DEEP, '{"prompt": "x"}', '{"answer": "1"}', "\x00",
        '{"prompt": "x", "answer": "' + "9" * 3000 + '+i"}', '{"prompt": "x", "answer": 1.5}',
        '{"prompt": "x", "answer": "1", "skill": 3}', '{"prompt": "x", "answer": "\\\\frac{"}',
        '{"prompt": "' + "nuts " * 300 + '", "answer": "1"}',
        '{"prompt": "\\ud83d", "answer": "1"}',
    ],
}  # fmt: skip

MODE = """
import sys
from dataclasses import dataclass
from mrl.modes import Mode
from mrl.modes.sgt import SGT
@dataclass
class Own(SGT):
    name = "own"
"""
MODES = [
    "x = ", "import none", "raise ValueError('x')", "import sys; sys.exit()", "1 / 0",
    "import sys; sys.exit('bye')", "Own = 3", "class Own: pass", "", "\x00",
    MODE.replace('name = "own"', "name = 3"), MODE.replace("(SGT)", "(Mode)"),
    MODE + "    def training_samples(self, receiver, prompts, rng): return None\n",
    MODE + "    def training_samples(self, receiver, prompts, rng): sys.exit(3)\n",
]  # fmt: skip

COMMANDS = [
    ["warmstart", "--out", "file"], ["warmstart", "--out", "file/x"], ["resume", ""],
    ["resume", "file"], ["report", "none"], ["report", "."], ["evaluate", "file"],
    ["align", "</s>"], ["align", "x", "--source", "my model"], ["data", "gsm8k"],
    ["problems", "--out", "file"],
    ["compare", "--modes", ""], ["compare", "--modes", "none"], ["compare", "--seeds=0"],
    ["assignment", "start", "none"], ["assignment", "check", "none"],
    ["assignment", "check", "."], ["--config", "none.toml"], ["--config", "."], ["--steps=x"],
    ["none"], ["--none"], ["--mode", ""], ["--mode", "none.py:Own"], ["--mode", "file"],
]  # fmt: skip

TEMPLATES = [
    "",
    "{{ raise_exception('no') }}",
    "{% if %}",
    "{{ messages.none.none }}",
    "{{ 1 / 0 }}",
]

DAMAGE = [  # of a stopped run: file, and what stands in it (None: deleted)
    *[("config.json", text) for text in (None, "", "[]", "{}", '{"policies": []}', DEEP)],
    *[("evaluation.json", text) for text in ("", "[]", DEEP)],
    *[("metrics.jsonl", text) for text in (None, "", "null\n")],
    *[("checkpoints/step-000001/state.json", text) for text in ("", "[]", "{}", DEEP)],
    *[
        (f"checkpoints/step-000001/llama-tiny/{name}", "x")
        for name in ("optimizer.pt", "model.safetensors", "config.json", "tokenizer.json")
    ],
]


@pytest.fixture
def told(place, capfd):
    """A function that makes one mistake: it returns what the program said about it."""
    (place / "file").write_text("some text\n")

    def make(*arguments, program=small):
        short = ["--steps", "1"] if program is small else []
        code = program(*short, *arguments)
        said = capfd.readouterr()
        assert code in (1, 2), (arguments, code, said)
        assert "Traceback" not in said.out + said.err, (arguments, said.err)
        assert len(said.err.splitlines()) == 1, (arguments, said.err)
        assert "\x1b" not in said.err
        return said.err

    return make


def test_there_are_a_hundred():
    tables = [PAIRS, SETS, *CONFIGS.values(), MODES, COMMANDS, TEMPLATES, DAMAGE]
    assert sum(map(len, tables)) > 100


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs(told, pair):
    told("--pair", pair)


@pytest.mark.parametrize("text", SETS)
def test_settings(told, text):
    told("--set", text)


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in CONFIGS for text in CONFIGS[n]])
def test_files(told, place, name, text):
    (place / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    if name == "p.jsonl":
        told("--set", f"train={name}", "--set", "prompts_per_step=1")
    else:
        without_pair = SMALL[2:]  # which would replace the file's policies
        told("--config", name, "--steps", "1", *without_pair, *HERE, program=run)


@pytest.mark.parametrize("text", MODES)
def test_modes(told, place, text):
    (place / "own.py").write_text(text)
    told("--mode", "own.py:Own")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands(told, arguments):
    told(*arguments, program=run)


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_templates(told, place, template):
    shutil.copytree(QWEN, place / "model")
    (place / "model" / "chat_template.jinja").write_text(template)
    said = told("--pair", "model", "--mode", "solo")
    assert "template" in said


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run of three steps that was stopped after the first."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("stopped")
        patch.chdir(folder)
        from tests.end_to_end.small_run import write_problems

        write_problems(folder)
        stop_after(patch, 1)
        assert small("--steps", "3", "--name", "r") == 130
        return folder / "runs" / "r"


@pytest.mark.parametrize(("name", "text"), DAMAGE)
def test_damaged_runs(told, place, stopped_run, name, text):
    shutil.copytree(stopped_run, place / "r")
    (place / "r" / name).unlink() if text is None else (place / "r" / name).write_text(text)
    told("resume", "r", program=run)


# ------------------------------------------------------------------------------ whole programs


def ended(program, seconds=120):
    """Exit code and standard error of a program; neither is a traceback."""
    output, error = program.communicate(timeout=seconds)
    assert "Traceback" not in error + (output or "")
    return program.returncode, error


@pytest.mark.parametrize("placement", ["resident", "parallel"])
def test_a_closed_pipe_ends_a_run_with_one_sentence(place, placement):
    program = start(place, *SMALL, "--steps", "2", "--name", "r", "--placement", placement)
    program.stdout.readline()
    program.stdout.close()
    program.stdout = None
    code, error = ended(program)
    assert code == 1
    assert error.startswith("The output was closed")
    assert error.endswith("Continue with: python mini_mrl.py resume runs/r\n")
    assert len(error.splitlines()) == 1


def test_a_terminal_that_knows_ascii_alone_gets_its_tables(place, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    program = start(place, *SMALL, "--steps", "1", "--placement", "resident")
    assert ended(program) == (0, "")
    assert ended(start(place, "align", "né"))[0] in (0, 2)


def test_sigterm_saves_and_says_how_to_go_on(place):
    program = start(place, *SMALL, "--steps", "100000", "--name", "r", "--placement", "resident")
    while not (place / "runs" / "r" / "evaluation.json").exists():
        time.sleep(0.1)
    program.terminate()
    assert ended(program) == (130, "")
    steps = lines(place / "runs" / "r" / "metrics.jsonl")[-1]["step"]
    state = place / "runs" / "r" / "checkpoints" / f"step-{steps:06d}" / "state.json"
    assert json.loads(state.read_text())["step"] == steps


@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0])
def test_ctrl_c_while_the_imports_run_shows_no_traceback(place, seconds):
    """Of three moments at least one falls into them, on any machine."""
    program = start(place, *SMALL, "--steps", "1", "--placement", "resident")
    time.sleep(seconds)
    interrupt(program)
    code, error = ended(program)
    assert code in (130, -signal.SIGINT), error
    assert len(error.splitlines()) <= 1
