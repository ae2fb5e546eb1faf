"""The program as a person meets it: the command line, the run directory, stopping, going on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import mini_mrl
from mrl.config import DATA, load_config
from mrl.experiment.metrics import without_time
from mrl.experiment.problems import save_problems
from mrl.tiny.skills import SKILLS, generate

ROOT = Path(mini_mrl.__file__).parent


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory with two small problem files."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "heldout"):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, 2, 0)]
        save_problems(tmp_path / f"{part}.jsonl", made)
    return tmp_path


SMALL = ["--data", "train.jsonl", "--heldout", "heldout.jsonl", "--threads", "1"]
SMALL += ["--prompts-per-step", "6", "--group-size", "4"]


def run(*arguments):
    return mini_mrl.main([*arguments])


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def assert_same_run(one, two, steps):
    """Two run directories hold the same, bit by bit, apart from times."""
    one, two = Path(one), Path(two)
    metrics = [[without_time(line) for line in lines(d / "metrics.jsonl")] for d in (one, two)]
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) == 2 * steps
    for name in ("exchange.jsonl", "samples.jsonl", "evaluation.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    for policy in ("qwen-tiny", "llama-tiny"):
        for file in ("model.safetensors", "optimizer.safetensors"):
            path = Path("checkpoints", f"step-{steps:06d}", policy, file)
            a, b = load_file(one / path), load_file(two / path)
            assert a.keys() == b.keys()
            assert all(a[key].equal(b[key]) for key in a)


def test_a_short_run_writes_and_says_everything(place, capsys):
    assert run("--mode", "sgt", "--steps", "4", "--seed", "1", *SMALL) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Training the embedded tiny pair: qwen-tiny and llama-tiny, on cpu (there"
    )
    assert "6 prompts; group sizes: qwen-tiny 4 = 24 completions a step" in out
    assert "step 4/4" in out
    assert "before -> after" in out
    assert "problems" in out.strip().splitlines()[-1]
    directory = place / "runs" / "sgt-s1"
    config = load_config(directory / "config.toml")
    assert (config["mode"], config["steps"], config["seed"]) == ("sgt", 4, 1)
    assert [line["step"] for line in lines(directory / "metrics.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert set(json.loads((directory / "evaluation.json").read_text())) == {"before", "after"}
    kinds = {line["kind"] for line in lines(directory / "exchange.jsonl")}
    assert kinds == {"success"}
    saved = directory / "checkpoints" / "step-000004" / "llama-tiny"
    assert AutoModelForCausalLM.from_pretrained(saved).config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(saved).eos_token == "</s>"


def test_the_same_seed_gives_the_same_run(place):
    for name in ("one", "two"):
        assert run("--steps", "3", "--name", name, *SMALL) == 0
    assert_same_run("runs/one", "runs/two", 3)


def test_a_run_without_a_name_never_overwrites_another(place):
    for _ in range(2):
        assert run("--mode", "solo", "--steps", "1", *SMALL) == 0
    assert sorted(path.name for path in (place / "runs").iterdir()) == ["solo-s0", "solo-s0-2"]


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(place, monkeypatch, capsys):
    assert run("--steps", "4", "--name", "whole", *SMALL) == 0
    answers = iter([False, True])  # Ctrl-C during the second step
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: next(answers))
    assert run("--steps", "4", "--name", "cut", *SMALL) == 130
    assert "python mini_mrl.py resume runs/cut" in capsys.readouterr().out
    with open("runs/cut/metrics.jsonl", "a") as log:  # as if it had gone on and been killed
        log.write('{"step": 3, "torn')
    monkeypatch.setattr(mini_mrl, "_stop_on_ctrl_c", lambda: lambda: False)
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 4)
    assert run("resume", "runs/cut") == 2
    assert "is finished" in capsys.readouterr().err


def test_ctrl_c_saves_and_says_how_to_go_on(place):
    command = [sys.executable, str(ROOT / "mini_mrl.py"), "--steps", "500", *SMALL]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=place)
    log = place / "runs" / "sgt-s0" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (log.exists() and log.parent.joinpath("evaluation.json").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0)
    program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "Go on with: python mini_mrl.py resume runs/sgt-s0" in out
    assert len(list((place / "runs" / "sgt-s0" / "checkpoints").glob("step-*"))) == 1


def test_evaluate_shows_before_and_after(place, capsys):
    assert run("--mode", "solo", "--steps", "2", *SMALL) == 0
    capsys.readouterr()
    assert run("evaluate", "runs/solo-s0", "--samples", "2") == 0
    out = capsys.readouterr().out
    assert "before -> after" in out
    assert "pass@2" in out
    assert run("evaluate", "runs/solo-s0", "--greedy") == 0
    assert "pass@2" not in capsys.readouterr().out


def test_one_policy_and_three_policies(place):
    qwen, llama = DATA / "tiny" / "qwen-tiny", DATA / "tiny" / "llama-tiny"
    assert run("--pair", str(qwen), "--steps", "1", "--name", "one", *SMALL) == 0
    assert run("--pair", f"{qwen},{llama},{qwen}", "--steps", "1", "--name", "three", *SMALL) == 0
    names = [line["policy"] for line in lines("runs/three/metrics.jsonl")]
    assert names == ["qwen-tiny", "llama-tiny", "qwen-tiny-2"]


def test_policies_with_settings_of_their_own(place):
    Path("run.toml").write_text(
        f"""
steps = 1
prompts_per_step = 4
train = "train.jsonl"
heldout = ["heldout.jsonl"]
[[policy]]
path = "{DATA}/tiny/qwen-tiny"
group_size = 2
objective = "dr_grpo"
[[policy]]
path = "{DATA}/tiny/llama-tiny"
group_size = 5
learning_rate = 3e-5
objective = "gspo"
template = "<s>[INST]{{prompt}}[/INST]"
"""
    )
    assert run("--config", "run.toml", "--name", "own") == 0
    one, two = lines("runs/own/metrics.jsonl")
    solved = [round(line["reward"] * 4 * size, 6) for line, size in ((one, 2), (two, 5))]
    assert all(number.is_integer() for number in solved)  # 4 prompts x the policy's own group
    assert load_config(Path("runs/own/config.toml"))["policies"][1].objective == "gspo"


def test_with_verify_liars_change_nothing_and_with_claim_they_do(place):
    many = [*SMALL, "--steps", "3"]
    runs = {"honest": [], "verify": ["--fault", "liar=0.5"]}
    runs["claim"] = [*runs["verify"], "--trust", "claim"]
    learnt, denied = {}, {}
    for name, extra in runs.items():
        assert run(*many, "--name", name, *extra) == 0
        metrics = lines(f"runs/{name}/metrics.jsonl")
        keys = ("reward", "rescue_set", "rescues", "loss", "loss_nll", "grad_norm")
        learnt[name] = [[line[key] for key in keys] for line in metrics]
        denied[name] = sum(line.get("exchange/not_believed", 0) for line in metrics)
    assert learnt["verify"] == learnt["honest"]
    assert learnt["claim"] != learnt["honest"]
    assert denied["honest"] == denied["claim"] == 0 < denied["verify"]


def test_the_log_of_a_finished_run_stands_in_for_the_peer(place, capsys):
    assert run("--steps", "3", "--name", "live", *SMALL) == 0
    capsys.readouterr()
    alone = ["--pair", str(DATA / "tiny" / "llama-tiny"), "--steps", "3", *SMALL]
    assert run(*alone, "--peer-log", "runs/live/exchange.jsonl", "--name", "stored") == 0
    assert "stored records of runs/live/exchange.jsonl" in capsys.readouterr().out
    metrics = lines("runs/stored/metrics.jsonl")
    assert {line["policy"] for line in metrics} == {"llama-tiny"}
    assert sum(line["rescues"] for line in metrics) > 0
    assert sum(line["exchange/published_records"] for line in metrics) == 0
    rescues = [line["rescue"] for line in lines("runs/stored/samples.jsonl") if "rescue" in line]
    assert {rescue["source"] for rescue in rescues} == {"qwen-tiny"}


def test_align_shows_and_draws_a_solution(place, capsys):
    Path("text.txt").write_text("6*7=42. \\boxed{42}")
    assert run("align", "--file", "text.txt", "--svg", "a.svg") == 0
    out = capsys.readouterr().out
    assert "qwen-tiny" in out
    assert "of the bytes" in out.replace("\n", " ")
    assert Path("a.svg").read_text(encoding="utf-8").startswith("<svg")


# ------------------------------------------------------------------------------ mistakes

TINY = str(DATA / "tiny" / "qwen-tiny")
MISTAKES = {
    "unknown mode": (["--mode", "stg"], "Did you mean 'sgt'?"),
    "unknown mode, nothing near": (["--mode", "xyz"], "Modes: solo, solo-x2"),
    "no such model": (["--pair", "/no/such,/none"], "/no/such: no such model directory"),
    "no such hub name": (["--pair", "nobody/nothing"], "neither a directory here nor a model"),
    "empty pair": (["--pair", ","], "policy"),
    "directory without model": (["--pair", "empty"], "empty: is no directory"),
    "a share": (["warmstart", "--foreign-right", "2"], "--foreign-right is 2, but must be from"),
    "no data": (["--data", "none.jsonl"], "none.jsonl: no such file"),
    "broken data": (["--data", "broken.jsonl"], "broken.jsonl:2: is not JSON"),
    "empty data": (["--data", "empty.jsonl"], "empty.jsonl: holds no problem"),
    "answer without value": (["--data", "bad_answer.jsonl"], "bad_answer.jsonl:1: the verifier"),
    "no held-out data": (["--heldout", "none.jsonl"], "none.jsonl: no such file"),
    "group of one": (["--group-size", "1"], "group_size is 1, but an advantage compares"),
    "no steps": (["--steps", "0"], "steps is 0"),
    "steps no number": (["--steps", "many"], "--steps"),
    "negative seed": (["--seed", "-1"], "seed is -1"),
    "learning rate zero": (["--learning-rate", "0"], "learning_rate is 0.0"),
    "too many prompts": (["--prompts-per-step", "5000"], "holds only 1440 problems"),
    "prompt too long": (["--data", "long.jsonl"], "context of 256"),
    "run exists": (["--name", "taken"], "runs/taken: exists already"),
    "name with a path": (["--name", "../x"], "plain directory name"),
    "no config": (["--config", "none.toml"], "none.toml: cannot be read"),
    "unknown key": (["--config", "key.toml"], "did you mean `steps`"),
    "unknown option": (["--stpes", "3"], "--stpes"),
    "unknown command": (["trian"], "trian"),
    "setting without value": (["--set", "sgt"], "mode.setting=value"),
    "unknown setting": (["--set", "sgt.wieght=1"], "settings.sgt: there is no setting `wieght`"),
    "device": (["--device", "warp"], "device is 'warp'"),
    "threads": (["--threads", "0"], "threads is 0"),
    "learning rate nan": (["--learning-rate", "nan"], "learning_rate is nan"),
    "peer log of junk": (["--peer-log", "junk.txt", "--pair", TINY], "junk.txt: holds no record"),
    "no samples": (["evaluate", "runs/taken", "--samples", "0"], "eval_samples is 0"),
    "unknown fault": (["--fault", "lair=1"], "known are liar=RATE"),
    "fault of nobody": (["--fault", "crash=gpt@3"], "there is no policy 'gpt'"),
    "fault without step": (["--fault", "hang=qwen-tiny"], "known are liar=RATE"),
    "unknown placement": (["--placement", "swop"], "did you mean `swap`"),
    "unknown record": (["--record", "rollouts"], "did you mean `rollout`"),
    "record of another kind": (
        ["--peer-log", "stats.jsonl", "--pair", TINY],
        "consumes success records",
    ),
    "solo with a peer": (
        ["--mode", "solo", "--peer-log", "stats.jsonl", "--pair", TINY],
        "consumes no records",
    ),
    "mode from no file": (["--mode", "none.py:Mine"], "there is no file"),
    "mode without class": (["--mode", "mode.py"], "name the class, too"),
    "mode of another class": (["--mode", "mode.py:Nothing"], "has no class Nothing"),
    "mode that breaks": (["--mode", "bad_mode.py:Mine"], "cannot be loaded"),
    "ratio level": (["--mode", "prp", "--set", "prp.ratio_level=word"], "use token, chunk"),
    "minibatches": (["--set", "sgt.minibatches=0"], "sgt.minibatches is 0"),
    "turn budget": (["--config", "budget.toml"], "turn_budget_s and gradient_every"),
    "kl": (["--config", "kl.toml"], "kl_coef is -1.0"),
    "string for a number": (["--config", "string.toml"], "steps is '3'"),
    "broken toml": (["--config", "broken.jsonl"], "is not TOML"),
    "policy as a table": (["--config", "policy.toml"], "[[policy]] tables, with two brackets"),
    "policy without path": (["--config", "nopath.toml"], "`path` is missing"),
    "two of a name": (["--config", "twice.toml"], "Two policies are called"),
    "name of a policy": (["--config", "slash.toml"], "use letters, digits"),
    "template": (["--config", "template.toml"], "lacks {prompt}"),
    "objective": (["--config", "objective.toml"], "there is no objective 'ppo'"),
    "data is a directory": (["--data", "empty"], "empty: "),
    "config is a directory": (["--config", "empty"], "empty: cannot be read"),
    "resume a file": (["resume", "key.toml"], "is no run directory"),
    "unknown trust": (["--trust", "blindly"], "trust is 'blindly'"),
    "no peer log": (["--peer-log", "none.jsonl", "--pair", TINY], "none.jsonl: cannot be read"),
    "peer log and a pair": (["--peer-log", "key.toml"], "only one policy can be trained"),
    "align nothing": (["align"], "Give either a text or --file"),
    "align both": (["align", "x", "--file", "key.toml"], "Give either a text or --file"),
    "align no file": (["align", "--file", "none.txt"], "none.txt: cannot be read"),
    "align binary": (["align", "--file", "binary"], "binary: cannot be read"),
    "align a special token": (["align", "</s>"], "cannot write this text exactly (special_token"),
    "align without tokenizer": (["align", "x", "--source", "empty"], "empty: is no directory"),
    "align hub name": (["align", "x", "--receiver", "a/b"], "neither a directory here nor a model"),
    "align picture nowhere": (["align", "x", "--svg", "no/where.svg"], "cannot be written"),
    "resume nothing": (["resume", "runs/none"], "is no run directory"),
    "resume without checkpoint": (["resume", "runs/taken"], "no complete checkpoint"),
    "evaluate nothing": (["evaluate", "runs/none"], "is no run directory"),
    "evaluate without checkpoint": (["evaluate", "runs/taken"], "no complete checkpoint"),
}


POLICY = f'[[policy]]\npath = "{TINY}"\n'
FILES = {
    "stats.jsonl": '{"kind": "rewards", "prompt_id": "p", "source": "b", "version": 0, '
    '"index": 0, "count": 2, "mean": 0.5, "std": 0.5}\n',
    "mode.py": "x = 1\n",
    "bad_mode.py": "import nothing_of_the_kind\n",
    "budget.toml": "turn_budget_s = -1.0\n",
    "kl.toml": POLICY + "kl_coef = -1.0\n",
    "string.toml": 'steps = "3"\n',
    "policy.toml": '[policy]\npath = "x"\n',
    "nopath.toml": "[[policy]]\ngroup_size = 4\n",
    "twice.toml": POLICY + POLICY,
    "slash.toml": POLICY + 'name = "a/b"\n',
    "template.toml": POLICY + 'template = "Say it:"\n',
    "objective.toml": POLICY + 'objective = "ppo"\n',
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_gets_one_plain_sentence_and_exit_code_2(place, capsys, case):
    arguments, part = MISTAKES[case]
    Path("broken.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n{"prompt"\n')
    Path("empty.jsonl").write_text("\n")
    Path("bad_answer.jsonl").write_text('{"prompt": "1+1?", "answer": "\\\\frac{"}\n')
    Path("long.jsonl").write_text(json.dumps({"prompt": "nuts " * 400, "answer": "1"}) + "\n" * 2)
    Path("junk.txt").write_text("some text\n")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("key.toml").write_text("stpes = 3\n")
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("empty").mkdir()
    (place / "runs" / "taken").mkdir(parents=True)
    Path("runs/taken/config.toml").write_text(f'[[policy]]\npath = "{TINY}"\n')
    if "--data" in arguments:
        arguments = [*arguments, "--prompts-per-step", "1"]
    before = sorted(os.walk("."))
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert part in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert "Traceback" not in captured.err + captured.out
    assert sorted(os.walk(".")) == before  # no half-made run directory


def test_debug_shows_the_traceback(place):
    from mrl.errors import MrlError

    with pytest.raises(MrlError):
        run("--mode", "stg", "--debug")


def test_help_and_a_mistake_answer_within_seconds():
    start = time.monotonic()
    command = [sys.executable, str(ROOT / "mini_mrl.py"), "--help"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--mode" in out
    assert "warmstart" in out
    assert time.monotonic() - start < 10


def test_a_python_without_the_packages_gets_one_sentence():
    done = subprocess.run(
        [sys.executable, "-S", str(Path(mini_mrl.__file__))], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "activate" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("other", ["stg", "graft"])
def test_a_setting_of_another_mode_is_no_silent_nothing(place, capsys, other):
    assert run("--steps", "1", "--set", f"{other}.minibatches=2", *SMALL) == 2
    assert "is not for this run's mode" in capsys.readouterr().err
