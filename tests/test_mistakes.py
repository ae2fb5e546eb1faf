"""The mistakes that people make: each gets one sentence with the names and values that it is about.

A case is a mistake, and what its sentence must name. The exit code is 2, there is no traceback, and
nothing is written. Mistakes in problem files are in test_problems.py, damaged checkpoints in
end_to_end/test_nothing_lost.py.
"""

import json
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.run.directory import write_run_config
from tests.end_to_end.small_run import SMALL, interrupt, lines, run, small, start
from tests.sentences import names_it

QWEN = str(DATA / "tiny" / "qwen-tiny")
POLICY = f'[[policy]]\npath = "{QWEN}"\n'
DEEP = "[" * 3000
PROGRAMMERS = re.compile(r"None|parse|integer|\bstr\b|\bint\b|\bfloat\b|unexpected extra")

COMMANDS = [
    # options
    ("--steps many", "--steps many"),
    ("--steps=1.5", "--steps 1.5"),
    ("--seed", "--seed"),
    ("--steps 0", "steps 0 1"),
    ("--seed -1", "seed -1"),
    ("--stpes 3", "--stpes --steps"),
    ("--group-size 4", "--group-size --set group_size=VALUE"),
    ("--lr 1e-4", "--lr --set learning_rate=VALUE"),
    ("--elephant", "--elephant --set KEY=VALUE"),
    ("compare --none", "--none"),
    ("trian", "train"),
    ("reprot runs/x", "report"),
    ("--placement swop", "swop resident swap parallel"),
    ("--name ../x", "../x"),
    ("--name taken", "runs/taken --name resume"),
    ("--config none.toml", "none.toml"),
    ("--config folder", "folder"),
    ("--mode stg", "stg sgt"),
    ("--mode xyz", "xyz graft hacpo naive"),
    ("--mode ''", "graft hacpo naive"),
    ("--mode none.py:Own", "none.py"),
    ("--mode file.py.bak:Own", "file.py.bak:Own"),
    # models
    ("--pair nobody/nothing", "nobody/nothing config.json"),
    ("--pair /no/such,tiny", "/no/such config.json"),
    ("--pair ,", "DIR_A,DIR_B"),
    (f"--pair {QWEN},none", "none config.json"),
    ("--pair folder", "folder config.json"),
    ("--pair file", "file config.json"),
    ("--pair 'my model'", "model config.json"),
    # other commands
    ("resume runs/none", "runs/none"),
    ("resume file", "file config.json"),
    ("report", "DIRECTORY"),
    ("report runs/x y", "y"),
    ("report .", "config.json"),
    ("evaluate", "--pair"),
    ("evaluate runs/taken --pair tiny", "--pair"),
    ("evaluate runs/taken --set seed=1", "--set --pair"),
    ("evaluate runs/taken --samples 0", "eval_samples 0"),
    ("evaluate runs/taken", "runs/taken resume"),
    ("evaluate --pair tiny --data none.jsonl", "none.jsonl"),
    ("ask ''", ""),
    ("align", "TEXT"),
    ("align '</s>'", "llama-tiny"),
    ("align x --source folder", "folder"),
    ("align x --receiver a/b", "a/b"),
    ("problems --out file", "file"),
    ("warmstart --out file/x", "file/x"),
    ("warmstart --foreign-right 2", "--foreign-right 2 1"),
    ("compare --modes sgt,sgt", "sgt"),
    ("compare --modes naiv", "naiv naive"),
    ("compare --seeds 0", "--seeds 0"),
    ("compare --jobs 0", "--jobs 0"),
    ("compare --set seed=3", "seed=3 --seeds"),
    ("assignment start none", "none advantages own-mode"),
    ("assignment check none", "none"),
    ("assignment check folder", ""),
]

SETTINGS = [  # of --set
    ("steps", "steps KEY=VALUE"),
    ("=3", "=3 KEY=VALUE"),
    ("sgt.=1", "sgt.=1 KEY=VALUE"),
    ("settings={sgt=3}", "settings={sgt=3} KEY=VALUE"),
    ("steps=", "steps"),
    ("steps=many", "steps many"),
    ("steps=1.5", "steps 1.5"),
    ("steps=true", "steps True"),
    ("heldout=[3]", "heldout [3]"),
    ("heldout=[]", "heldout"),
    ("sgt.imitation_weight=much", "sgt imitation_weight much"),
    ("stpes=1", "stpes steps"),
    ("groupsize=4", "groupsize group_size"),
    ("policies=3", "policies"),
    ("path=x", "path"),  # every policy would be the same
    ("qwen-tiny.path=x", "x config.json"),
    ("qwen-tiny.steps=3", "steps"),
    ("qwen-tiny.objectve=gspo", "objectve objective"),
    ("gpt.objective=gspo", "gpt sgt qwen-tiny llama-tiny"),
    ("graft.balanced=false", "graft sgt"),  # of another mode
    ("imitation_weight=0.2", "sgt.imitation_weight"),
    ("imitaton_weight=0.2", "imitation_weight"),
    ("frozen=yes", "yes true false"),
    ("sgt.wieght=1", "wieght imitation_weight"),
    # values
    ("prompts_per_step=0", "prompts_per_step 0 1"),
    ("group_size=1", "group_size 1 2"),
    ("eval_samples=0", "eval_samples 0 1"),
    ("updates_per_step=0", "updates_per_step 0 1"),
    ("max_new_tokens=0", "max_new_tokens 0"),
    ("threads=0", "threads 0 1"),
    ("threads=1000000", "threads 256"),
    ("lora_rank=100000", "lora_rank 100000"),
    ("learning_rate=0", "qwen-tiny learning_rate 0"),
    ("learning_rate=5", "learning_rate 5 1"),
    ("learning_rate=nan", "learning_rate nan"),
    ("temperature=inf", "temperature inf"),
    ("temperature=0", "temperature 0"),
    ("clip_low=-1", "clip_low"),
    ("weight_decay=-1", "weight_decay -1 0"),
    ("max_grad_norm=-1", "max_grad_norm -1 0"),
    ("kl_coef=-1", "kl_coef -1 0"),
    ("liar=2", "liar 2 1"),
    ("verify_timeout_s=0", "verify_timeout_s 0"),
    ("verify_timeout_s=3e6", "verify_timeout_s 3600"),  # longer than a pipe can wait
    ("sgt.imitation_weight=-1", "sgt.imitation_weight -1 0"),
    ("sgt.imitation_weight=nan", "sgt imitation_weight nan"),
    ("trust=blindly", "trust blindly verify claim"),
    ("dtype=float16", "dtype float16 mixed float32"),
    ("objective=ppo", "objective ppo grpo dapo dr_grpo gspo"),
    ("device=cuda:99", "device cuda:99 cpu"),
    ("template=no place", "template {prompt}"),
    ("system_prompt=file", "system_prompt file system_prompt.txt"),
    # files
    ("train=none.jsonl", "none.jsonl"),
    ("train=folder", "folder"),
    ("train=long.jsonl", "404 256 max_new_tokens qwen-tiny"),
    ("train=", ""),
    ("heldout=none.jsonl", "none.jsonl"),
    ('heldout=["heldout.jsonl", "folder/heldout.jsonl"]', "folder/heldout.jsonl heldout"),
    ("prompts_per_step=5000", "prompts_per_step 5000 train.jsonl 18"),
    ("max_new_tokens=400", "400 256 qwen-tiny max_new_tokens"),
    ("runs=file", "file/sgt-s0"),
    ("judge=none.py", "none.py"),
]

OF_MODES = [  # mode, one of its settings, and what the sentence must name
    ("prp", "ratio_level=word", "prp.ratio_level word token chunk sequence"),
    ("prp", "clip_low=-1", "prp.clip_low -1 0"),
    ("hacpo", "own_objective=ppo", "hacpo.own_objective ppo grpo"),
    ("hacpo", "delta=2", "hacpo.delta 2 1"),
    ("hacpo", "window=0", "hacpo.window 0 1"),
    ("hacpo", "_windows={}", "hacpo _windows"),
    ("graft", "balanced=1", "graft balanced 1"),
    ("graft", "min_compatibility=-0.1", "graft.min_compatibility -0.1 0"),
    ("xgrpo", "peer_share=1.5", "xgrpo.peer_share 1.5 1"),
    ("solo", "x=1", "solo x"),
]

CONFIGS = [  # the text of a TOML file
    ("x = ", "TOML"),
    (f"x = {DEEP}", "TOML"),
    ("stpes = 3", "stpes steps"),
    ("zzz = 1", "zzz heldout train"),
    ("group_size = 32", "group_size --set"),
    ("steps = '3'", "steps 3"),
    ("heldout = 3", "heldout 3"),
    ("mode = 3", "mode 3"),
    ("settings = 3", "settings 3"),
    ("[settings]\nsgt = 3", "sgt 3 [settings.sgt]"),
    ("[settings.sgt]\nno = 3", "sgt no imitation_weight"),
    ("[settings.stg]\nx = 3", "stg sgt"),
    ("policies = []", "[[policy]]"),
    ("policy = [3]", "[[policy]]"),
    ("[policy]\npath = 'x'", "[[policy]]"),
    ("[[policy]]\nname = 'x'", "1 path"),
    ("[[policy]]\npath = 3", "1 path 3"),
    ("[[policy]]\npath = 'x'\ngroupsize = 3", "1 groupsize group_size"),
    ("[[policy]]\npath = 'x'\neval_samples = 2", "1 eval_samples"),
    (POLICY + 'learning_rate = "x"', "1 learning_rate x"),
    (POLICY + "frozen = true", "frozen"),
    (POLICY + 'name = "a/b"', "a/b"),
    (POLICY + f'name = "{"n" * 65}"', f"{'n' * 65} 64"),
    (POLICY + r'name = "\u001b[31m"', r"\x1b[31m"),
    (POLICY + 'name = ""', ""),
    (POLICY + POLICY, "qwen-tiny"),
    (POLICY + 'kl_coef = 1.0\nreference = "/none"', "/none config.json"),
]

OWN = """
import sys
from dataclasses import dataclass
from mrl.config import setting
from mrl.modes import Mode
from mrl.modes.sgt import SGT
@dataclass
class Own(SGT):
    name = "own"
"""
TRAINING_SAMPLES = "    def training_samples(self, receiver, prompts, rng)"
MODES = [  # the text of own.py, of which --mode names the class Own
    ("x = ", "own.py:Own SyntaxError 1"),
    ("\x00", "own.py:Own SyntaxError"),
    ("\nimport none", "own.py:Own none 2"),
    ("1 / 0", "own.py:Own ZeroDivisionError 1"),
    ("import sys; sys.exit('bye')", "own.py:Own SystemExit bye 1"),
    ("", "Own own.py"),
    ("Own = 3", "Own own.py Mode"),
    ("class Own: pass", "Own own.py Mode"),
    (OWN.replace('name = "own"', "name = 3"), "Own own.py name"),
    (OWN.replace("(SGT)", "(Mode)"), "Own own.py training_samples"),
    (OWN.replace("@dataclass", "") + "    much: float = setting(1, '')", "Own much @dataclass"),
    (OWN + "    def training_samples(self, receiver, prompts): ...", "Own training_samples rng"),
    (OWN + f"{TRAINING_SAMPLES}: return None", "own.py training_samples Own TrainingBatch"),
]

TEMPLATES = ["", "{{ raise_exception('no') }}", "{% if %}", "{{ messages.none.none }}", "{{ 1/0 }}"]


@pytest.fixture
def told(place, capfd):
    """A function that makes one mistake: it returns what the program said about it."""
    (place / "file").write_text("some text\n")
    (place / "folder").mkdir()
    shutil.copy(place / "heldout.jsonl", place / "folder")
    for name, words in (("long", 400), ("tight", 204)):
        problem = {"prompt": "nuts " * words, "answer": "1"}
        (place / f"{name}.jsonl").write_text(json.dumps(problem))
    (place / "runs" / "taken").mkdir(parents=True)
    write_run_config(place / "runs" / "taken", RunConfig([PolicyConfig("qwen-tiny", QWEN)]))

    def make(*arguments, program=small, writes=False):
        before = sorted(place.rglob("*"))
        code = program(*arguments)
        said = capfd.readouterr()
        assert code == 2, said
        assert "Traceback" not in said.out + said.err, said.err
        assert len(said.err.splitlines()) == 1, said.err
        assert "\x1b" not in said.err
        assert writes or sorted(place.rglob("*")) == before  # no half-made run
        return said.err.replace(str(DATA), "data")  # a checkout may have any name

    return make


@pytest.mark.parametrize(("command", "names"), COMMANDS)
def test_a_wrong_command(told, command, names):
    arguments = shlex.split(command)
    program = small if arguments[0].startswith("--") else run
    said = told(*arguments, program=program)
    assert names_it(said, names) and not PROGRAMMERS.search(said)


@pytest.mark.parametrize(("text", "names"), SETTINGS)
def test_a_wrong_setting(told, text, names):
    said = told("--set", "prompts_per_step=1", "--set", text)
    assert names_it(said, names) and not PROGRAMMERS.search(said)


@pytest.mark.parametrize(("mode", "text", "names"), OF_MODES)
def test_a_wrong_setting_of_a_mode(told, mode, text, names):
    assert names_it(told("--mode", mode, "--set", f"{mode}.{text}"), names)


@pytest.mark.parametrize(("text", "names"), CONFIGS)
def test_a_wrong_config_file(told, text, names):
    Path("c.toml").write_text(text)
    assert names_it(told("--config", "c.toml", program=run), names)


@pytest.mark.parametrize(("text", "names"), MODES)
def test_a_wrong_mode_of_ones_own(told, text, names):
    Path("own.py").write_text(text)
    returns_none = "return None" in text  # seen in the first step
    assert names_it(told("--mode", "own.py:Own", writes=returns_none), names)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_wrong_chat_template(told, template):
    shutil.copytree(QWEN, "model")
    Path("model", "chat_template.jinja").write_text(template)
    assert names_it(told("--pair", "model", "--mode", "solo"), "model template {prompt}")


# tight.jsonl fits qwen-tiny and is one token too long for llama-tiny, so one process fails
@pytest.mark.parametrize(
    ("setting", "names"), [("train=tight.jsonl", "209 llama-tiny"), ("runs=file", "file/sgt-s0")]
)
def test_a_mistake_gets_the_same_sentence_from_processes_of_their_own(told, setting, names):
    one, two = (
        told("--set", "prompts_per_step=1", "--set", setting, "--placement", placement)
        for placement in ("resident", "parallel")
    )
    assert one == two and names_it(one, names)


def test_a_mode_that_ends_the_program_is_named_and_the_run_is_kept(place, capfd):
    Path("own.py").write_text(OWN + f"{TRAINING_SAMPLES}: sys.exit(3)\n")
    assert small("--mode", "own.py:Own", "--name", "r") == 1
    error = capfd.readouterr().err
    assert names_it(error, "own.py 10 resume runs/r") and len(error.splitlines()) == 1


# ------------------------------------------------------------------------------ whole programs


def ended(program, seconds=120):
    """Exit code and standard error of a program; neither is a traceback."""
    output, error = program.communicate(timeout=seconds)
    assert "Traceback" not in error + (output or "")
    return program.returncode, error


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_alone_gets_its_tables(place, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    program = start(place, *SMALL, "--steps", "1", "--placement", "resident")
    assert ended(program) == (0, "")
    assert ended(start(place, "align", "né"))[0] in (0, 2)


@pytest.mark.slow
def test_sigterm_saves_and_says_how_to_go_on(place):
    program = start(place, *SMALL, "--steps", "100000", "--name", "r", "--placement", "resident")
    while not (place / "runs" / "r" / "evaluation.json").exists():
        time.sleep(0.1)
    program.terminate()
    assert ended(program) == (130, "")
    steps = lines(place / "runs" / "r" / "metrics.jsonl")[-1]["step"]
    state = place / "runs" / "r" / "checkpoints" / f"step-{steps:06d}" / "state.json"
    assert json.loads(state.read_text())["step"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0])
def test_ctrl_c_while_the_imports_run_shows_no_traceback(place, seconds):
    """Of three moments at least one falls into them, on any machine."""
    program = start(place, *SMALL, "--steps", "1", "--placement", "resident")
    time.sleep(seconds)
    interrupt(program)
    code, error = ended(program)
    assert code in (130, -signal.SIGINT), error
    assert len(error.splitlines()) <= 1
