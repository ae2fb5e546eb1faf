import csv
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import torch

import mini_mrl
from mrl.config import DATA, RunConfig
from mrl.errors import MrlError
from mrl.lab import figures
from mrl.lab.compare import (
    Plan,
    choose_settings,
    grid,
    is_finished,
    read_all,
    run_all,
    seeds_of,
)
from mrl.lab.compare_view import (
    HEAD,
    T_95,
    difference,
    estimate,
    gains,
    rows,
    sentences,
    summary,
    write_csv,
)
from mrl.runtime.launch import cores
from mrl.runtime.pairs import pair_settings
from mrl.runtime.run_directory import write_run_config
from mrl.runtime.settings import run_config

ROOT = Path(mini_mrl.__file__).parent
STAND_IN = """
import shutil, sys
from pathlib import Path
arguments = sys.argv[1:]
with open("calls.txt", "a") as log:
    log.write(" ".join(arguments) + "\\n")
if arguments[0] == "resume":
    directory = Path(arguments[1])
    mode, seed = directory.name.rsplit("-s", 1)
else:
    of = lambda key: arguments[arguments.index(key) + 1]
    mode, seed = of("--mode"), of("--seed")
    settings = dict(text.split("=") for text in arguments if "=" in text)
    directory = Path(settings["runs"]) / of("--name")
    directory.mkdir(parents=True)
    seed += settings.get("learning_rate", "")
if mode == "xgrpo":
    sys.exit("it is broken")
shutil.copytree(Path(__file__).parent / "made" / f"{mode}-s{seed}", directory, dirs_exist_ok=True)
"""


def write_run(directory, score, steps=3):
    """A finished run whose two policies end at `score` and `score + 2` percent."""
    directory.mkdir(parents=True, exist_ok=True)
    write_run_config(directory, RunConfig(**pair_settings("tiny")))

    def scores(policy, value):
        both = {"pass@1": value / 100, "pass@4": value / 100 + 0.1}
        return {"policy": policy, "part": "heldout", "problems": 40, "samples": 4, **both,
                "skills": {"eats": both, "sold": both}}  # fmt: skip

    after = [scores("a", score), scores("b", score + 2)]
    (directory / "evaluation.json").write_text(json.dumps({"before": after, "after": after}))
    with (directory / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            for policy in "ab":
                line = {"step": step, "policy": policy, "reward": score / 100, "num_tokens": 200,
                        "completions/mean_length": 10.0, "updates": 2,
                        "exchange/received_bytes": 320, "time/step_s": 1.5}  # fmt: skip
                log.write(json.dumps(line) + "\n")


def plan(place, modes=("solo", "sgt"), seeds=(1, 2, 3)):
    (place / "stand_in.py").write_text(STAND_IN)
    for mode in modes:
        for seed in seeds:
            score = {"solo": 50, "sgt": 60}.get(mode, 55) + seed
            write_run(place / "made" / f"{mode}-s{seed}", score)
    return Plan(modes, seeds, place / "out", 2)


def place(folder, mode, seed):
    """Where the plan above puts a run."""
    return folder / "out" / "runs" / f"{mode}-s{seed}"


@pytest.fixture(autouse=True)
def stand_in(tmp_path, monkeypatch, request):
    """Plans start the program above in the place of `mini_mrl.py`, unless the test is slow."""
    if request.node.get_closest_marker("slow") is None:
        program = (sys.executable, str(tmp_path / "stand_in.py"))
        monkeypatch.setattr("mrl.lab.compare.PROGRAM", program)


@pytest.mark.parametrize(("text", "seeds"), [
    ("1", [1]), ("5", [1, 2, 3, 4, 5]), ("31-34", [31, 32, 33, 34]), ("7-7", [7]), ("0,2", [0, 2]),
    ("1,2,5", [1, 2, 5]), ("3, 11-12", [3, 11, 12]),
])  # fmt: skip
def test_seeds_are_a_number_of_them_or_named(text, seeds):
    assert seeds_of(text) == seeds


@pytest.mark.parametrize(("text", "said"), [
    ("0", "names no seed"), ("5-3", "names no seed"), ("1,1", "a seed twice"),
    ("1-3,2", "a seed twice"), ("", "write how many"), ("-1", "write how many"),
    ("1,", "write how many"), ("a", "write how many"), ("9" * 5000, "write how many"),
])  # fmt: skip
def test_wrong_seeds_get_one_sentence(text, said):
    with pytest.raises(MrlError, match=f"--seeds {text[:5]}.*{said}"):
        seeds_of(text)


def test_named_seeds_are_run_and_stand_in_the_kept_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path, seeds=(2, 31, 32))
    arguments = ["compare", "--modes", "solo,sgt", "--seeds", "2,31-32", "--out", "out"]
    assert mini_mrl.main(arguments) == 0
    made = {path.name for path in Path("out/runs").iterdir() if path.is_dir()}
    assert made == {f"{mode}-s{seed}" for mode in ("solo", "sgt") for seed in (2, 31, 32)}
    assert "--modes solo,sgt --seeds 2,31-32`" in Path("out/table.md").read_text()


def test_the_interval_over_seeds_by_hand():
    one = estimate([1.0, 2.0, 3.0])  # std 1, t = 4.303 with two degrees of freedom
    assert one.mean == 2.0
    assert one.half == pytest.approx(4.303 / math.sqrt(3))
    assert not one.clear
    assert str(estimate([10.0, 10.0])) == "10.0 ± 0.0"
    assert str(estimate([10.0])) == "10.0"
    assert not estimate([10.0]).clear
    assert (T_95[0], T_95[3], T_95[9], T_95[29]) == (12.706, 2.776, 2.228, 2.042)


def test_differences_are_paired_by_seed(tmp_path):
    for seed, (a, b) in {1: (10, 30), 2: (40, 61), 3: (70, 92)}.items():
        write_run(place(tmp_path, "solo", seed), a)
        write_run(place(tmp_path, "sgt", seed), b)
    results = read_all(plan(tmp_path))
    found = difference(results, "sgt", "solo", "heldout")
    assert found.mean == pytest.approx(21.0)  # 20, 21, 22, though the seeds lie 30 apart
    assert found.half == pytest.approx(4.303 / math.sqrt(3))
    assert sentences(results, "heldout") == ["sgt beats solo by 21.0 ± 2.5 points, 3 seeds."]
    assert difference(results, "sgt", "prp", "heldout") is None


def test_the_words_say_what_the_data_do_not_support(tmp_path):
    for seed, (a, b) in {1: (50, 52), 2: (52, 51)}.items():
        write_run(place(tmp_path, "solo", seed), a)
        write_run(place(tmp_path, "sgt", seed), b)
    (sentence,) = sentences(read_all(plan(tmp_path, seeds=(1, 2))), "heldout")
    assert sentence.startswith("sgt and solo: no clear difference with 2 seeds (+0.5 ±")
    (sentence,) = sentences(read_all(plan(tmp_path, seeds=(1,))), "heldout")
    assert sentence == "sgt is +2.0 points from solo with 1 seed: no interval."


def test_costs_are_counted_from_the_metrics(tmp_path):
    write_run(place(tmp_path, "sgt", 1), 50)
    (result,) = read_all(plan(tmp_path))
    assert result.overall("heldout") == pytest.approx(51)
    assert result.overall("heldout", "pass@4") == pytest.approx(61)
    assert result.costs == {
        "rollouts": 120, "sampled tokens": 1200, "updates": 12, "bytes received": 1920,
        "bytes per prompt": 20, "seconds": 4.5,
    }  # fmt: skip


def test_runs_are_made_once_and_a_failing_one_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("solo", "xgrpo", "sgt"), (1, 2))
    lines = []
    failures = run_all(chosen, lines.append)
    assert failures == [f"xgrpo, seed {seed}: it is broken" for seed in (1, 2)]
    assert all(is_finished(place(tmp_path, m, s)) for m in ("solo", "sgt") for s in (1, 2))
    calls = Path("calls.txt").read_text().splitlines()
    assert len(calls) == 6
    assert {int(call.split("--seed ")[1][0]) for call in calls[:2]} == {1}  # seeds outermost
    assert "6/6, 0 min left" in lines[-1]
    run_all(chosen, lines.append)  # again: only the broken ones are tried, from their beginning
    again = Path("calls.txt").read_text().splitlines()[6:]
    assert len(again) == 2
    assert all(call.startswith("--mode xgrpo") for call in again)
    assert "6 runs, 4 of them there" in lines[7]


def test_each_mode_gets_the_setting_that_did_best_on_other_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = {  # pass@1 by seed; a rate that is given up has no further run, two are kept
        "solo": {"1e-5": (50, 50, 40), "1e-4": (48, 56, 50), "3e-4": (40,)},
        "sgt": {"1e-5": (40,), "1e-4": (60, 50, 40), "3e-4": (56, 52, 60)},
    }
    seeds = (11, 12, 13)
    for mode, rates in made.items():
        for rate, scores in rates.items():
            for seed, score in zip(seeds, scores, strict=False):
                write_run(tmp_path / "made" / f"{mode}-s{seed}{rate}", score)
    lines = []
    tune = ["learning_rate=1e-5,1e-4,3e-4"]
    chosen = choose_settings(plan(tmp_path), tune, seeds, lines.append)
    assert not [line for line in lines if "Error" in line]  # no other run was started
    assert {mode: options[-1] for mode, options in chosen.tuned.items()} == {
        "solo": "learning_rate=1e-4", "sgt": "learning_rate=3e-4",
    }  # fmt: skip
    kept = list(csv.reader((tmp_path / "out" / "tune.csv").open()))
    assert ["sgt", "learning_rate=3e-4", "12", "53.00"] in kept
    assert len(kept) == 1 + 2 * (3 + 2 + 2)
    for mode, rate in {"solo": "1e-4", "sgt": "3e-4"}.items():  # what the comparison starts now
        write_run(tmp_path / "made" / f"{mode}-s1{rate}", 50)
    assert run_all(replace(chosen, seeds=(1,)), print) == []
    started = Path("calls.txt").read_text().splitlines()[-2:]
    assert ["learning_rate=1e-4" in call for call in started] == ["solo" in c for c in started]
    words = summary(read_all(replace(chosen, seeds=(1,))), "compare", chosen.tuned)
    assert "on other seeds: solo learning_rate=1e-4; sgt learning_rate=3e-4." in words


def test_a_grid_has_all_combinations_and_names_the_mode(tmp_path, monkeypatch):
    assert grid(["a=1,2", "MODE.b=3"]) == [
        ["--set", "a=1", "--set", "MODE.b=3"], ["--set", "a=2", "--set", "MODE.b=3"],
    ]  # fmt: skip
    for wrong in ("a", "a=", "=1", "a=1,,2"):
        with pytest.raises(MrlError, match="write it like"):
            grid([wrong])
    monkeypatch.chdir(tmp_path)
    one = plan(tmp_path, ("sgt",), (11,))
    made = choose_settings(one, ["MODE.minibatches=4"], (11,), print)
    assert made.tuned == {"sgt": ["--set", "sgt.minibatches=4"]}
    with pytest.raises(MrlError, match="xgrpo: no setting of --tune finished"):
        choose_settings(plan(tmp_path, ("xgrpo",), (1,)), ["steps=4"], (11,), print)


def test_a_run_of_other_options_or_of_a_changed_mode_is_not_taken_for_the_one_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("steps = 3")
    first = replace(plan(tmp_path), options=["--config", "run.toml"])
    assert run_all(first, print) == []
    assert run_all(first, print) == []  # the same again is there
    for other in (["--config", "run.toml", "--steps", "9"], []):
        with pytest.raises(MrlError, match=r"solo-s1: was made with other options.* --out"):
            run_all(replace(first, options=other), print)
    with pytest.raises(MrlError, match="other options"):
        run_all(replace(first, tuned={"sgt": ["--set", "learning_rate=1e-5"]}), print)
    Path("run.toml").write_text("steps = 4")
    with pytest.raises(MrlError, match="another version of a file"):
        run_all(first, print)
    for _, _, directory in first.runs():
        shutil.rmtree(directory)  # as the sentence says
    assert run_all(first, print) == []


def test_the_seeds_that_chose_a_setting_are_not_those_that_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []

    def choose(plan, texts, seeds, say):
        found.append((list(plan.seeds), list(seeds)))
        raise MrlError("enough")

    monkeypatch.setattr("mrl.lab.commands.choose_settings", choose)
    for seeds, first in (("5", 11), ("12", 13), ("31-40", 41)):
        arguments = ["compare", "--modes", "sgt", "--seeds", seeds, "--tune", "steps=3,4"]
        assert mini_mrl.main(arguments) == 2
        compared, tuned = found.pop()
        assert tuned == [first, first + 1, first + 2]
        assert not set(compared) & set(tuned)


def test_an_interrupted_run_goes_on_from_its_checkpoint_if_it_has_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("sgt",), (1, 2))
    (place(tmp_path, "sgt", 1) / "checkpoints" / "step-000005").mkdir(parents=True)
    (place(tmp_path, "sgt", 2) / "checkpoints" / ".partial-000005").mkdir(parents=True)
    assert run_all(chosen, lambda text: None) == []
    calls = sorted(Path("calls.txt").read_text().splitlines())
    assert [call.split()[0] for call in calls] == ["--mode", "resume"]


def test_ctrl_c_starts_no_further_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("solo",), range(1, 9))

    def say(text):
        if "finished" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(chosen, say)
    assert len(Path("calls.txt").read_text().splitlines()) < 6


@pytest.mark.parametrize("times", [1, 2])
def test_sigterm_is_passed_on_to_the_runs(tmp_path, monkeypatch, times):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path, ("solo",), ())
    (tmp_path / "stand_in.py").write_text(
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "calls = []\n"
        "def stop(number, frame):\n"
        "    calls.append(number)\n"
        f"    Path('stopped').write_text(str(len(calls)))\n"
        f"    sys.exit(130) if len(calls) == {times} else None\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "Path('started').touch()\n"
        "time.sleep(20)\n"
    )

    def wait_for(name, text):
        deadline = time.monotonic() + 15
        while not (Path(name).exists() and Path(name).read_text() == text):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def interrupt():
        wait_for("started", "")
        for number in range(1, times + 1):
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for("stopped", str(number))

    # as in a process of its own: a test before may have left the handler of its run
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    thread = Thread(target=interrupt, daemon=True)
    thread.start()
    arguments = ["compare", "--modes", "solo", "--seeds", "3", "--jobs", "1", "--out", "out"]
    try:
        assert mini_mrl.main(arguments) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert time.monotonic() - began < 15
    assert len(list(Path("out/runs").glob("*.asked"))) == 1  # no further run was started


OWN_MODE = """
from dataclasses import dataclass
from mrl.modes.solo import Solo

@dataclass
class Mine(Solo):
    name = "{}"
"""


def test_a_mode_of_ones_own_is_called_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, name in (("first", "mine"), ("second", "mine"), ("memory", "replay")):
        Path(f"{file}.py").write_text(OWN_MODE.format(name))
    modes = [*(f"{file}.py:Mine" for file in ("first", "second", "memory")), "solo"]
    names = ["mine", "second.py", "memory.py", "solo"]
    chosen = plan(tmp_path, modes, ())
    assert list(chosen.names.values()) == names
    assert [path.name for _, _, path in replace(chosen, seeds=(4,)).runs()] == [
        f"{name}-s4" for name in names
    ]
    for name in names:
        write_run(place(tmp_path, name, 1), 50)
    assert [result.mode for result in read_all(replace(chosen, seeds=(1,)))] == names
    with pytest.raises(MrlError, match="named twice"):
        Plan([modes[0], modes[0]], (1,), tmp_path)


def test_settings_of_a_mode_of_ones_own_are_for_its_runs_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN_MODE.format("mine"))
    Path("run.toml").write_text("steps = 9\n[settings.mine]\nminibatches = 2\n"
                                "[settings.sgt]\nminibatches = 3\n")  # fmt: skip
    chosen = Plan(["mine.py:Mine", "sgt"], (1,), tmp_path / "out", 1, ["--config", "run.toml"])
    for subset in (chosen, replace(chosen, modes=["sgt"])):
        for mode in subset.modes:
            _, file = subset.options_of(mode)
            config = run_config("tiny", Path(file), {"mode": mode}, [])  # refuses unknown modes
            assert config.steps == 9
            assert config.settings["sgt"] == {"minibatches": 3}
            assert ("mine" in config.settings) == (mode == "mine.py:Mine")
    Path("run.toml").write_text("[settings.sgtt]\nminibatches = 2\n")
    _, file = chosen.options_of("sgt")
    with pytest.raises(MrlError, match="did you mean `sgt`"):
        run_config("tiny", Path(file), {"mode": "sgt"}, [])


def test_what_a_peer_gives_is_the_difference_from_replay(tmp_path):
    for mode, score in {"solo": 50, "replay": 55, "sgt": 61}.items():
        for seed in (1, 2):
            write_run(place(tmp_path, mode, seed), score + seed)
    results = read_all(plan(tmp_path, ("solo", "replay", "sgt"), (1, 2)))
    assert dict(zip(HEAD, rows(results, "heldout")[0], strict=True))["above replay"] == "6.0 ± 0.0"
    text = summary(results, "the command")
    assert "- sgt beats replay by 6.0 ± 0.0 points, 2 seeds." in text
    assert "difference above `replay`" in text


def test_the_curves_are_kept_as_numbers(tmp_path):
    chosen = plan(tmp_path, ("solo",), (1, 2))
    for seed, score in ((1, 30), (2, 50)):
        write_run(place(tmp_path, "solo", seed), score, steps=25)
    write_csv(read_all(chosen), chosen.out)
    with (tmp_path / "out" / "curves.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["step"] for row in table] == ["10", "20", "25"]
    assert table[1] == {
        "mode": "solo", "step": "20", "sampled_tokens": "8000",  # 20 steps, 2 policies, 200 each
        "mean": "0.4000", "lowest": "0.3000", "highest": "0.5000",
    }  # fmt: skip


def test_tables_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path)
    run_all(chosen, lambda text: None)
    results = read_all(chosen)
    best, second = rows(results, "heldout")
    assert best[:4] == ["sgt", "63.0 ± 2.5", "10.0 ± 0.0", ""]
    assert second[:4] == ["solo", "53.0 ± 2.5", "", ""]
    write_csv(results, chosen.out)
    text = summary(results, "the command")
    assert text.count("## ") == text.count("## heldout") == 1
    assert "`the command`" in text
    assert "- sgt beats solo by 10.0 ± 0.0 points, 3 seeds." in text
    with (tmp_path / "out" / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 6 * (2 * 3 * 2 + 6)  # runs x (policies x skills and all x metrics + costs)
    assert "| a | sgt | 62.0 | 61.0, 62.0, 63.0 |" in text
    assert gains(results) == {"sgt": (pytest.approx(10.0), pytest.approx(0.0))}
    figures.draw_learning_curves(results, tmp_path / "learning.png")
    figures.draw_gains(gains(results), tmp_path / "gains.png")
    for name in ("learning", "gains"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("modes", "part"), [(("sgt", "stg"), "did you mean `sgt`"), (("sgt", "sgt"), "named twice")]
)
def test_a_wrong_plan_gets_one_sentence(tmp_path, modes, part):
    with pytest.raises(MrlError, match=part):
        Plan(modes, (1,), tmp_path)


@pytest.mark.parametrize(("gpus", "given", "want"), [(0, [], cores()), (1, [], 1),
                                                     (1, ["--jobs", "3"], 3)])  # fmt: skip
def test_one_run_a_core_but_a_gpu_for_one(tmp_path, monkeypatch, gpus, given, want):
    plans = []
    run_all = "mrl.lab.commands.run_all"
    monkeypatch.setattr(run_all, lambda plan, say: plans.append(plan) or ["none"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    assert mini_mrl.main(["compare", "--out", str(tmp_path), *given]) == 2  # no run finished
    assert [plan.jobs for plan in plans] == [want]


def test_runs_of_different_lengths_are_not_compared(tmp_path):
    for mode, steps in (("solo", 3), ("sgt", 4)):
        write_run(place(tmp_path, mode, 1), 50, steps)
    with pytest.raises(MrlError, match="its runs have 3 and 4 steps"):
        read_all(plan(tmp_path))


def test_the_quick_one_says_where_the_whole_one_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path)  # makes the runs that the stand-in hands out
    assert mini_mrl.main(["compare", "--quick", "--jobs", "1"]) == 0
    (page,) = re.findall(r"(\S+) has the whole comparison", capsys.readouterr().out)
    assert (ROOT / page).is_file()
    assert "--steps 200" in Path("calls.txt").read_text()


@pytest.mark.slow
def test_a_short_comparison_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = (DATA / "words" / "heldout.jsonl").read_text().splitlines()[::30]
    Path("few.jsonl").write_text("\n".join(few) + "\n")
    Path("few.toml").write_text('heldout = ["few.jsonl"]')
    command = ["compare", "--modes", "solo,sgt", "--seeds", "2", "--steps", "2", "--jobs", "2"]
    command += ["--pair", "tiny", "--config", "few.toml"]
    assert mini_mrl.main(command) == 0
    out = capsys.readouterr().out
    assert "sgt" in out
    assert "solo" in out
    for name in (
        "table.md",
        "table.csv",
        "curves.csv",
        "figures/learning.png",
        "figures/gains.png",
    ):
        assert (tmp_path / "runs" / "compare" / name).stat().st_size > 100
