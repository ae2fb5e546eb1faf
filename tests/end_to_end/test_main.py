"""The program as a person meets it: the command line, the run directory, stopping, going on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import mini_mrl
from mrl.config import DATA
from mrl.run.run import Run
from mrl.settings.read import load_config
from tests.end_to_end.small_run import assert_same_run, lines

ROOT = Path(mini_mrl.__file__).parent


def settings(*texts):
    """Each with its --set."""
    return [word for text in texts for word in ("--set", text)]


SMALL = settings("train=train.jsonl", "heldout=heldout.jsonl", "eval_samples=1")
SMALL += settings("prompts_per_step=6", "group_size=4")
FAST = [*SMALL, "--placement", "resident"]  # in this process; without it, a process a policy


def run(*arguments):
    return mini_mrl.main([*arguments])


@pytest.mark.parametrize("placed", [SMALL, pytest.param(FAST, marks=pytest.mark.slow)])
def test_a_short_run_writes_and_says_everything(place, capfd, placed):
    assert run("--mode", "sgt", "--steps", "2", "--seed", "1", *placed) == 0
    out = capfd.readouterr().out
    for fact in ("tiny pair", "qwen-tiny (0.84 M", "llama-tiny (0.725 M", "3e-05", "cpu"):
        assert fact in out
    assert "6 prompts from train.jsonl; completions per prompt: qwen-tiny 4, llama-tiny 4;" in out
    assert "step 2/2" in out
    assert "before -> after" in out
    assert "mini_mrl.py report runs/sgt-s1" in out  # what one can do next
    assert run("ask", "Gus has 5 figs a day for 3 days. How many?", "--samples", "2") == 0
    assert "after step 2 of sgt-s1" in " ".join(capfd.readouterr().out.split())
    directory = place / "runs" / "sgt-s1"
    config = load_config(directory / "config.json")
    assert (config["mode"], config["steps"], config["seed"]) == ("sgt", 2, 1)
    assert [line["step"] for line in lines(directory / "metrics.jsonl")] == [1, 1, 2, 2]
    scores = json.loads((directory / "evaluation.json").read_text())
    assert set(scores) == {"before", "after"}
    assert all(entry["kl_to_start"] != 0 for entry in scores["after"])
    kinds = {line["kind"] for line in lines(directory / "exchange.jsonl")}
    assert kinds == {"success"}
    saved = directory / "checkpoints" / "step-000002" / "llama-tiny"
    assert AutoModelForCausalLM.from_pretrained(saved).config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(saved).eos_token == "</s>"


@pytest.mark.slow
def test_a_run_without_a_name_never_overwrites_another(place):
    for _ in range(2):
        assert run("--mode", "solo", "--steps", "1", *FAST) == 0
    assert sorted(path.name for path in (place / "runs").iterdir()) == ["solo-s0", "solo-s0-2"]


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(place, monkeypatch, capsys):
    assert run("--steps", "2", "--seed", "3", "--name", "whole", *FAST) == 0
    train_step = mini_mrl.train_step

    def interrupted(run, step):
        results = train_step(run, step)
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        return results

    monkeypatch.setattr(mini_mrl, "train_step", interrupted)
    assert run("--steps", "2", "--seed", "3", "--name", "cut", *FAST) == 130
    assert "python mini_mrl.py resume runs/cut" in capsys.readouterr().out
    for name in ("metrics", "samples", "exchange"):  # as if it had gone on and been killed
        with open(f"runs/cut/{name}.jsonl", "a") as log:
            log.write('{"step": 2, "torn')
    monkeypatch.setattr(mini_mrl, "train_step", train_step)
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 2)
    assert run("resume", "runs/cut") == 2
    assert "is finished" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_in_the_last_step_ends_before_the_scoring_which_resume_makes(
    place, monkeypatch, capsys
):
    assert run("--steps", "2", "--name", "whole", *FAST) == 0
    with monkeypatch.context() as patch:
        finish_step = Run.finish_step

        def interrupted(self, step, results):
            if step == 2:
                signal.raise_signal(signal.SIGINT)
            return finish_step(self, step, results)

        patch.setattr(Run, "finish_step", interrupted)
        assert run("--steps", "2", "--name", "cut", *FAST) == 130
    assert "Continue with: python mini_mrl.py resume runs/cut" in capsys.readouterr().out
    assert set(json.loads(Path("runs/cut/evaluation.json").read_text())) == {"before"}
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 2)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_scoring_ends_at_once_with_a_sentence_and_loses_nothing(
    place, monkeypatch, capsys, when
):
    assert run("--steps", "2", "--name", "whole", *FAST) == 0
    with monkeypatch.context() as patch:
        evaluate = Run.evaluate

        def interrupted(self, now):
            if now == when:
                self.view.progress = lambda *_: signal.raise_signal(signal.SIGINT)
            evaluate(self, now)

        patch.setattr(Run, "evaluate", interrupted)
        assert run("--steps", "2", "--name", "cut", *FAST) == 130
    said = capsys.readouterr().out
    assert "Stopped. Continue with: python mini_mrl.py resume runs/cut" in said
    assert run("resume", "runs/cut") == 0
    assert_same_run("runs/whole", "runs/cut", 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does_even_where_sigint_is_ignored(monkeypatch, number):
    """A script's background jobs ignore SIGINT, and every command but training keeps that."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {signum: signal.getsignal(signum) for signum in numbers}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(number, signal.SIG_DFL)  # pytest itself may run under `nohup`
    end = lambda arguments: signal.raise_signal(number)  # noqa: E731
    monkeypatch.setattr("mrl.cli.command_line.run_command", end)
    try:
        assert run("settings") == 130
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize(
    "chosen", [("--data", "heldout.jsonl"), ("--set", "heldout=heldout.jsonl")]
)
def test_evaluate_shows_what_a_pair_could_learn_from_each_other_and_writes_nothing(
    place, capsys, chosen
):
    assert run("evaluate", "--pair", "tiny", "--samples", "2", *chosen) == 0
    out = capsys.readouterr().out
    for part in ("pass@2", "qwen-tiny never,", "llama-tiny sometimes", "heldout", "sold", "days"):
        assert part in out, part
    assert not Path("runs").exists()


def test_a_pair_that_is_built_does_not_replace_the_shipped_one(place, monkeypatch):
    folders = []
    monkeypatch.setattr("mrl.tiny.pair.warm_start_pair", lambda out, *_: folders.append(out))
    assert run("warmstart") == 0
    assert run("warmstart", "--out", "mine") == 0
    assert [folder.resolve() for folder in folders] == [place / "runs" / "tiny", place / "mine"]


def test_evaluate_shows_before_and_after(place, capsys):
    assert run("--mode", "solo", "--steps", "1", *FAST) == 0
    capsys.readouterr()
    assert run("evaluate", "runs/solo-s0", "--samples", "2") == 0
    out = capsys.readouterr().out
    assert "before -> after" in out
    assert "pass@2" in out
    Path("long.jsonl").write_text(json.dumps({"prompt": "nuts " * 400, "answer": "1"}))
    assert run("evaluate", "runs/solo-s0", "--data", "long.jsonl") == 2
    assert "256" in capsys.readouterr().err


@pytest.mark.slow
def test_one_policy_and_three_policies(place):
    qwen, llama = DATA / "tiny" / "qwen-tiny", DATA / "tiny" / "llama-tiny"
    assert run("--pair", str(qwen), "--steps", "1", "--name", "one", *FAST) == 0
    assert run("--pair", f"{qwen},{llama},{qwen}", "--steps", "1", "--name", "three", *FAST) == 0
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
    assert load_config(Path("runs/own/config.json"))["policies"][1]["objective"] == "gspo"


@pytest.mark.slow
def test_with_verify_liars_change_nothing_and_with_claim_they_do(place):
    many = [*FAST, "--steps", "3"]
    runs = {"honest": [], "verify": settings("liar=0.5")}
    runs["claim"] = settings("liar=0.5", "trust=claim")
    learnt, denied = {}, {}
    for name, extra in runs.items():
        assert run(*many, "--name", name, *extra) == 0
        metrics = lines(f"runs/{name}/metrics.jsonl")
        keys = ("reward", "rescue_set", "rescues", "loss", "loss_nll", "grad_norm")
        learnt[name] = [[line[key] for key in keys] for line in metrics]
        denied[name] = sum(line.get("exchange/not_confirmed", 0) for line in metrics)
    assert learnt["verify"] == learnt["honest"]
    assert learnt["claim"] != learnt["honest"]
    assert denied["honest"] == denied["claim"] == 0 < denied["verify"]


def test_align_shows_a_solution(place, capsys):
    assert run("align", "6*7=42. \\boxed{42}") == 0
    out = capsys.readouterr().out
    assert "qwen-tiny" in out
    assert "of the bytes" in out.replace("\n", " ")


def test_one_policy_runs_by_itself_whatever_the_placement(place):
    alone = [
        "--pair",
        str(DATA / "tiny" / "qwen-tiny"),
        "--mode",
        "solo",
        "--placement",
        "parallel",
    ]
    assert run(*SMALL, *alone, "--steps", "1") == 0


def test_debug_shows_the_traceback(place, capsys):
    assert run("--mode", "stg", "--debug") == 2
    assert "in mode_class" in capsys.readouterr().err
    assert run("--mode", "stg") == 2
    assert "in mode_class" not in capsys.readouterr().err


ANSWERED_AT_ONCE = [
    (["--help"], 0), (["settings"], 0), (["assignment", "list"], 0), (["--stpes", "3"], 2),
    (["trian"], 2), (["--mode", "stg"], 2), (["compare", "--modes", "solo,stg"], 2),
    (["--set", "train=none.jsonl"], 2), (["--config", "none.toml"], 2), (["--set", "steps=0"], 2),
    (["resume", "runs/none"], 2), (["report", "runs/none"], 2), (["ask", "x", "--run", "none"], 2),
]  # fmt: skip
WITHOUT_TORCH = f"""
import sys
from mrl.cli.start import main

for words, code in {ANSWERED_AT_ONCE}:
    assert main(words) == code, words
    loaded = {{"torch", "transformers", "numpy", "matplotlib"}} & {{*sys.modules}}
    assert not loaded, (words, loaded)
"""


def test_help_and_mistakes_are_answered_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--mode" in done.stdout and "warmstart" in done.stdout
    assert not any(tmp_path.iterdir())


def test_a_python_without_the_packages_gets_one_sentence():
    done = subprocess.run(
        [sys.executable, "-S", str(Path(mini_mrl.__file__))], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "activate" in done.stderr
    assert len(done.stderr.splitlines()) == 1
