import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import mini_mrl
from mrl.config import DATA
from mrl.errors import MrlError
from mrl.lab.compare import (
    Plan,
    _percent,
    is_finished,
    jobs_that_fit,
    name_modes,
    read_all,
    read_result,
    run_all,
    seeds_of,
)
from mrl.lab.compare_board import Board, Progress
from mrl.lab.compare_view import (
    blind_spot_rows,
    blind_spots_of,
    closing_step,
    closing_steps,
    difference,
    draw_closings,
    headline,
    rows,
    summary,
    write_csv,
)
from mrl.run import figures
from mrl.run.directory import lock, read_metrics, read_run_config, write_run_config
from mrl.settings.pairs import pair_settings
from mrl.settings.read import complete

ROOT = Path(mini_mrl.__file__).parent
STAND_IN = """
import json, os, shutil, sys
from pathlib import Path
assert sys.argv[1] == "resume"
directory = Path(sys.argv[2])
config = json.loads((directory / "config.json").read_text())
with open("calls.txt", "a") as log:
    log.write(directory.name + "\\n")
if config["mode"] == "xgrpo":
    sys.exit("it is broken \u00b1")
made = Path(__file__).parent / "made" / f"{config['mode']}-s{config['seed']}"
rate = config["policies"][0]["learning_rate"]
if rate != 3e-5:
    made = made.with_name(f"{made.name}-{rate}")
for name in ("metrics.jsonl", "evaluation.json"):
    shutil.copy(made / name, directory)
"""


def write_run(directory, score, steps=3, blind_spots=(), visits=()):
    """A finished run whose two policies end at `score` and `score + 2` percent.

    blind_spots: (policy, skill, its end in percent) of those that start at 0; visits: solve rates
    of `sold` in training, one a step, of policy `a`, None where the step has none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_run_config(directory, complete(pair_settings("tiny")))

    def scores(policy, value):
        both = {"pass@1": value / 100, "pass@4": value / 100 + 0.1}
        return {"policy": policy, "split": "heldout", "problems": 40, "samples": 4, **both,
                "skills": {"eats": both, "sold": both}}  # fmt: skip

    before = [scores("a", score), scores("b", score + 2)]
    after = [scores("a", score), scores("b", score + 2)]
    for policy, skill, end in blind_spots:
        for evaluation, value in ((before, 0), (after, end)):
            entry = evaluation["ab".index(policy)]
            entry["skills"][skill] = {"pass@1": value / 100, "pass@4": value / 100}
    (directory / "evaluation.json").write_text(json.dumps({"before": before, "after": after}))
    with (directory / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            for policy in "ab":
                line = {"step": step, "policy": policy, "reward": score / 100, "num_tokens": 200,
                        "completions/mean_length": 10.0, "updates": 2,
                        "exchange/received_bytes": 320, "time/step_s": 1.5}  # fmt: skip
                if policy == "a" and step <= len(visits) and visits[step - 1] is not None:
                    line["skill/sold"] = visits[step - 1]
                log.write(json.dumps(line) + "\n")


def plan(place, modes=("solo", "sgt"), seeds=(1, 2, 3)):
    (place / "stand_in.py").write_text(STAND_IN)
    for mode in modes:
        for seed in seeds:
            score = {"solo": 50, "sgt": 60}.get(mode, 55) + seed
            write_run(place / "made" / f"{mode}-s{seed}", score)
    return Plan(name_modes(modes), seeds, place / "out", jobs=2)


class Heard(Board):
    """A board without a terminal that keeps what is said."""

    def __init__(self):
        super().__init__(Console(file=io.StringIO()))
        self.said = []

    def say(self, text):
        self.said.append(text)


def calls():
    """The directories of the runs that the stand-in was started for, in this order."""
    log = Path("calls.txt")
    return log.read_text().splitlines() if log.exists() else []


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
    ("1", [1]), ("5", [1, 2, 3, 4, 5]), ("31-34", [31, 32, 33, 34]), ("7-7", [7]), ("0-1", [0, 1]),
])  # fmt: skip
def test_seeds_are_a_number_of_them_or_named(text, seeds):
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["0", "5-3", "", "-1", "1,2", "a", "9" * 5000])
def test_wrong_seeds_get_one_sentence(text):
    with pytest.raises(MrlError, match=f"--seeds {text[:5]}"):
        seeds_of(text)


def test_named_seeds_are_run_and_stand_in_the_kept_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path, seeds=(31, 32))
    command = "mini_mrl.py compare --modes solo,sgt --seeds 31-32 --out out"
    monkeypatch.setattr(sys, "argv", command.split())
    assert mini_mrl.main() == 0
    made = {path.name for path in Path("out/runs").iterdir() if path.is_dir()}
    assert made == {f"{mode}-s{seed}" for mode in ("solo", "sgt") for seed in (31, 32)}
    assert f"`python {command}`." in Path("out/table.md").read_text()


def test_differences_are_paired_by_seed(tmp_path):
    for seed, (a, b) in {1: (10, 30), 2: (40, 61), 3: (70, 92)}.items():
        write_run(place(tmp_path, "solo", seed), a)
        write_run(place(tmp_path, "sgt", seed), b)
    results = read_all(plan(tmp_path))
    found = difference(results, "sgt", "solo", "heldout")
    assert found.mean == pytest.approx(21.0)  # 20, 21, 22, though the seeds lie 30 apart
    assert found.half == pytest.approx(4.303 / math.sqrt(3))
    assert rows(results, "heldout")[0]["above solo"] == "21.0 ± 2.5"
    assert difference(results, "sgt", "prp", "heldout") is None


def test_the_headline_names_the_best_mode_and_how_sure_its_lead_is(tmp_path):
    def said(*of_seeds):
        for seed, (a, b) in enumerate(of_seeds, start=1):
            write_run(place(tmp_path, "solo", seed), a)
            write_run(place(tmp_path, "sgt", seed), b)
        return headline(read_all(plan(tmp_path, seeds=range(1, len(of_seeds) + 1))))

    assert all(
        word in said((50, 60), (50, 61), (50, 62)) for word in ("sgt", "62.0%", "11.0 ± 2.5")
    )
    assert "luck" not in said((50, 60), (50, 61), (50, 62))
    assert "luck" in said((50, 60), (50, 40), (50, 62))
    assert "luck" in said((50, 60), (50, 61))
    assert "solo" in said((60, 50), (60, 51), (60, 52)).split(",")[1]
    assert "0.0" not in said((50, 50), (60, 60), (70, 70)).replace("60.0", "")


def test_a_terminal_has_a_line_for_each_run_that_is_going_on():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    runs = [Progress("solo, seed 1", 100, 20, 2.0), Progress("sgt, seed 1", 100)]
    runs.append(Progress("sgt, seed 2", 100))
    with Board(console) as board:
        board.show(runs[:2], runs, jobs=2)
        text = screen.getvalue()
        assert "solo, seed 1" in text and "step 20 of 100" in text and "0:02:40 left" in text
        assert "sgt, seed 1" in text and "sgt, seed 2" not in text
        # 80 steps of the first run and 100 of each other one, at 2 s, in two processes
        assert "0:04:40 left" in text
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K" * 3)  # erased


def test_costs_are_counted_from_the_metrics(tmp_path):
    write_run(place(tmp_path, "sgt", 1), 50)
    (result,) = read_all(plan(tmp_path))
    assert result.overall("heldout") == pytest.approx(51)
    assert result.overall("heldout", "pass@4") == pytest.approx(61)
    assert result.costs == {
        "rollouts": 120, "sampled tokens": 1200, "updates": 12, "bytes received": 1920,
        "bytes per prompt": 20, "seconds": 4.5,
    }  # fmt: skip


def test_second_attempts_are_part_of_the_costs(tmp_path):
    write_run(tmp_path, 50)
    log = tmp_path / "metrics.jsonl"
    first, *others = log.read_text().splitlines()
    first = json.dumps(json.loads(first) | {"second/attempts": 8, "second/num_tokens": 50})
    log.write_text("\n".join([first, *others]))
    costs = read_result(tmp_path, "hint", 1).costs
    assert (costs["rollouts"], costs["sampled tokens"]) == (128, 1250)


def test_runs_are_made_once_and_a_failing_one_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("solo", "xgrpo", "sgt"), (1, 2))
    failures = run_all(chosen, Heard())
    assert failures == [f"xgrpo, seed {seed}: it is broken \u00b1" for seed in (1, 2)]
    assert all(is_finished(place(tmp_path, m, s)) for m in ("solo", "sgt") for s in (1, 2))
    assert len(calls()) == 6
    assert {call[-1] for call in calls()[:2]} == {"1"}  # seeds outermost
    board = Heard()
    run_all(chosen, board)  # again: only the broken ones are tried
    assert sorted(calls()[6:]) == ["xgrpo-s1", "xgrpo-s2"]
    assert re.findall(r"\d+", board.said[0])[:2] == ["6", "4"]  # all runs, and the complete ones


def test_a_grid_is_one_comparison_per_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path, ())
    for mode, rate, score in (("solo", 1e-5, 50), ("solo", 1e-4, 54),
                              ("sgt", 1e-5, 60), ("sgt", 1e-4, 56)):  # fmt: skip
        write_run(tmp_path / "made" / f"{mode}-s11-{rate}", score)
    for rate, want in (("1e-5", ["61.0", "51.0"]), ("1e-4", ["57.0", "55.0"])):
        command = ["compare", "--modes", "solo,sgt", "--seeds", "11-11", "--out", rate]
        command += ["--set", f"learning_rate={rate}"]
        assert mini_mrl.main(command) == 0
        text = Path(rate, "table.md").read_text()
        assert re.findall(r"(?m)^\| (?:solo|sgt) \| (\S+\.\d) \|", text) == want
        assert mini_mrl.main(command) == 0  # again: all are there
    assert len(calls()) == 4


@pytest.mark.parametrize("key", ["mode", "seed", "name", "runs", "placement"])
def test_what_a_comparison_decides_itself_cannot_be_set(tmp_path, monkeypatch, capsys, key):
    monkeypatch.chdir(tmp_path)
    assert mini_mrl.main(["compare", "--modes", "solo", "--set", f"{key}=3"]) == 2
    assert f"--set {key}=3" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_run_of_other_settings_or_of_a_changed_file_is_not_taken_for_the_one_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("steps = 3")
    first = replace(plan(tmp_path), file=Path("run.toml"))
    assert run_all(first, Heard()) == []
    again = Heard()
    assert run_all(first, again) == []  # the same again is there
    assert len(calls()) == 6
    for other, changed in (
        (replace(first, steps=9), "steps was 3 and is now 9"),
        (replace(first, settings=["group_size=4"]), "qwen-tiny.group_size was 8 and is now 4"),
        (replace(first, file=None), "steps was 3 and is now 240"),
    ):
        with pytest.raises(MrlError, match=f"solo-s1 was made with other options: {changed}"):
            run_all(other, Heard())
    Path("run.toml").write_text("steps = 4")
    with pytest.raises(MrlError, match="steps was 3 and is now 4"):
        run_all(first, Heard())
    for run in first.runs():
        shutil.rmtree(run.directory)  # as the sentence says
    assert run_all(first, Heard()) == []


def test_a_comparison_may_be_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = plan(tmp_path)
    assert run_all(first, Heard()) == []
    first.out.rename(tmp_path / "elsewhere")
    assert run_all(replace(first, out=Path("elsewhere")), Heard()) == []
    assert len(calls()) == 6


def test_what_a_killed_comparison_left_is_continued(tmp_path, monkeypatch):
    """A directory without settings, one with them, and one with a part of a log."""
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("sgt",), (1, 2, 3))
    _, second, third = chosen.runs()
    for run in chosen.runs():
        run.directory.mkdir(parents=True)
    for run in (second, third):
        write_run_config(run.directory, chosen.config_of(run))
    (third.directory / "metrics.jsonl").write_text('{"step": 1, "torn')
    (third.directory / "evaluation.json").write_text('{"before": []}')
    assert run_all(chosen, Heard()) == []
    assert sorted(calls()) == ["sgt-s1", "sgt-s2", "sgt-s3"]


def test_a_run_that_another_process_writes_is_waited_for(tmp_path, monkeypatch):
    """The same comparison may have been started twice."""
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("sgt",), (1,))
    (run,) = chosen.runs()
    write_run(run.directory, 50)
    write_run_config(run.directory, chosen.config_of(run))
    finished = (run.directory / "evaluation.json").rename(tmp_path / "finished")
    with (run.directory / "metrics.jsonl").open("a") as log:
        assert lock(log)

        def finish():
            finished.rename(run.directory / "evaluation.json")
            log.close()

        threading.Timer(1.5, finish).start()
        assert run_all(chosen, Heard()) == []
    assert calls() == []


def test_ctrl_c_starts_no_further_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path, ("solo",), range(1, 9))

    class Interrupted(Heard):
        def say(self, text):
            super().say(text)
            if "finished" in text:
                raise KeyboardInterrupt

    board = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run_all(chosen, board)
    assert len(calls()) < 6
    assert "the same command" in board.said[-1]


@pytest.mark.slow
def test_ctrl_c_of_a_terminal_comes_to_the_runs_which_stop_and_go_on(tmp_path):
    """The program itself, in a process group as a shell gives it."""
    few = (DATA / "words" / "validation.jsonl").read_text().splitlines()[::90]
    (tmp_path / "few.jsonl").write_text("\n".join(few) + "\n")
    (tmp_path / "few.toml").write_text('heldout = ["few.jsonl"]\ncheckpoint_every = 100\n')
    command = [sys.executable, str(ROOT / "mini_mrl.py"), "compare", "--modes", "solo"]
    command += ["--seeds", "3", "--steps", "6", "--jobs", "2", "--pair", "tiny"]
    command += ["--config", "few.toml", "--out", "out"]

    compared = subprocess.Popen(command, cwd=tmp_path, process_group=0, stdout=subprocess.DEVNULL)
    logs = [place(tmp_path, "solo", seed) / "metrics.jsonl" for seed in (1, 2)]
    deadline = time.monotonic() + 120
    while not all(log.exists() and log.read_text() for log in logs):
        assert time.monotonic() < deadline and compared.poll() is None
        time.sleep(0.05)
    os.killpg(compared.pid, signal.SIGINT)
    assert compared.wait(60) == 130
    assert not place(tmp_path, "solo", 3).exists()  # no further run was started
    for log in logs:
        assert not is_finished(log.parent)
        assert len(list(log.parent.glob("checkpoints/step-*"))) == 1

    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    for seed in (1, 2, 3):
        steps = [line["step"] for line in read_metrics(place(tmp_path, "solo", seed))]
        assert steps == [step for step in range(1, 7) for _ in "ab"]
    for name in ("table.md", "table.csv", "figures/learning.png"):
        assert (tmp_path / "out" / name).stat().st_size > 100


OWN_MODE = """
from dataclasses import dataclass
from mrl.modes.solo import Solo

@dataclass
class Mine(Solo):
    name = "{}"
"""


def test_a_mode_of_ones_own_is_called_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, name in (("first", "mine"), ("second", "yours"), ("memory", "replay")):
        Path(f"{file}.py").write_text(OWN_MODE.format(name))
    modes = ["first.py:Mine", "second.py:Mine", "solo"]
    names = ["mine", "yours", "solo"]
    chosen = plan(tmp_path, modes, ())
    assert list(chosen.modes) == names
    assert [path.name for _, _, path in replace(chosen, seeds=(4,)).runs()] == [
        f"{name}-s4" for name in names
    ]
    for name in names:
        write_run(place(tmp_path, name, 1), 50)
    assert [result.mode for result in read_all(replace(chosen, seeds=(1,)))] == names
    assert list(chosen.modes.values()) == modes
    with pytest.raises(MrlError, match=r"replay.*`name`"):
        name_modes(["replay", "memory.py:Mine"])


def test_what_a_peer_gives_is_the_difference_from_replay(tmp_path):
    for mode, score in {"solo": 50, "replay": 55, "sgt": 61}.items():
        for seed in (1, 2, 3):
            write_run(place(tmp_path, mode, seed), score + seed)
    results = read_all(plan(tmp_path, ("solo", "replay", "sgt")))
    assert rows(results, "heldout")[0]["above replay"] == "6.0 ± 0.0"


def test_a_table_has_no_column_of_a_mode_that_did_not_run(tmp_path):
    for seed in (1, 2, 3):
        write_run(place(tmp_path, "solo", seed), 50)
        write_run(place(tmp_path, "sgt", seed), 60)
    text = summary(read_all(plan(tmp_path)), "the command")
    assert "| mode | pass@1 | above solo | pass@k | a | b |" in text
    assert "replay" not in text
    alone = summary(read_all(plan(tmp_path, ("sgt",))), "the command")
    assert "| mode | pass@1 | pass@k | a | b |" in alone


def with_blind_spots(folder, ends, seeds=(1, 2, 3)):
    """Results in which two skills of `a` start at 0; ends: mode -> their ends for each seed."""
    for mode, of_seeds in ends.items():
        for seed, (eats, sold) in zip(seeds, of_seeds, strict=True):
            visits = [0.0] * 10 + [sold / 100] * 10
            blind_spots = (("a", "eats", eats), ("a", "sold", sold))
            write_run(place(folder, mode, seed), 50, 20, blind_spots, visits)
    return read_all(plan(folder, tuple(ends), seeds))


def test_blind_spots_are_counted_by_mode_each_and_all_of_a_run(tmp_path):
    results = with_blind_spots(tmp_path, {"solo": [(0, 0), (24.9, 30), (0, 0)],
                                    "sgt": [(25, 25), (90, 80), (90, 0)]})  # fmt: skip
    blind_spots = blind_spots_of(results)
    assert blind_spots == [("a", "eats"), ("a", "sold")]
    solo, sgt = blind_spot_rows(results, blind_spots)
    assert solo == {"mode": "solo", "all closed": "0 of 3 (0 to 56%)",
                    "a eats": "0 of 3 (0 to 56%)", "a sold": "1 of 3 (6 to 79%)"}  # fmt: skip
    assert sgt == {"mode": "sgt", "all closed": "2 of 3 (21 to 94%)",
                   "a eats": "3 of 3 (44 to 100%)", "a sold": "2 of 3 (21 to 94%)"}  # fmt: skip
    text = summary(results, "the command")
    assert text.index("## Blind spots") < text.index("| solo | 0 of 3 (0 to 56%) |")


def test_only_what_starts_under_two_percent_and_can_learn_is_a_blind_spot(tmp_path):
    for seed in (1, 2, 3):
        write_run(place(tmp_path, "sgt", seed), 1.9)  # b is at 3.9
    results = read_all(plan(tmp_path, ("sgt",)))
    assert blind_spots_of(results) == []  # no peer knows the skills
    for result in results:
        result.before |= {key: 90.0 for key in result.before if key[1] == "b"}
    assert blind_spots_of(results) == [("a", "eats"), ("a", "sold")]
    for result in results:
        for line in result.lines:
            if line["policy"] == "a":  # frozen
                line["updates"] = 0
    assert blind_spots_of(results) == []
    assert "## Blind spots" not in summary(results, "the command")


def test_a_skill_that_is_called_all_does_not_replace_the_mean():
    skills = {"hard": {"pass@1": 0.0}, "all": {"pass@1": 1.0}}
    entry = {"policy": "a", "split": "heldout", "pass@1": 0.5, "skills": skills}
    assert _percent([entry])["heldout", "a", "all", "pass@1"] == 50


def test_a_blind_spot_closes_where_ten_visits_reach_a_quarter(tmp_path):
    lucky = [1.0, 1.0, None, *[0.0] * 9]  # the mean of few visits says nothing
    write_run(place(tmp_path, "sgt", 1), 50, 40, (), [*lucky, *[0.5, None] * 5, 0.5, 0.5])
    (result,) = read_all(plan(tmp_path, ("sgt",), (1,)))
    # the tenth visit is step 11; from step 13 each second step adds 0.5: the fifth of them is 21
    assert closing_step(result, ("a", "sold")) == 21
    assert closing_step(result, ("b", "sold")) is None
    assert closing_step(result, ("a", "eats")) is None


def test_openings_are_drawn_and_kept_as_numbers(tmp_path, monkeypatch):
    results = with_blind_spots(tmp_path, {"solo": [(0, 0)] * 3, "sgt": [(90, 80)] * 3})
    closings, last = closing_steps(results, blind_spots_of(results)), results[0].lines[-1]["step"]
    draw_closings(closings, last, tmp_path / "blind-spots.png")
    assert (tmp_path / "blind-spots.png").stat().st_size > 5000
    kept = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: kept.append(figure))
    draw_closings(closings, last, tmp_path / "blind-spots.png")
    panels = kept[0].axes
    titles = [axes.get_title("left") for axes in panels]
    assert len(titles) == 2 and "solo" in titles[0] and "sgt" in titles[1]
    for axes, seen in zip(panels, (6, 3), strict=True):  # of 2 blind spots and 3 seeds
        assert [label.get_text() for label in axes.get_yticklabels()] == ["a: eats", "a: sold"]
        never = [dot for dot in axes.lines if dot.get_xdata()[0] > results[0].lines[-1]["step"]]
        assert len(never) == seen
        assert {dot.get_fillstyle() for dot in never} == {"none"}
    write_csv(results, tmp_path / "table.csv")
    table = list(csv.DictReader((tmp_path / "table.csv").open()))
    opened = [row for row in table if row["metric"] == "closed at step" and row["seed"] == "1"]
    assert [(row["mode"], row["skill"], row["value"]) for row in opened] == [
        ("solo", "eats", "never"), ("solo", "sold", "never"),
        ("sgt", "eats", "never"), ("sgt", "sold", "14"),  # 4 of 10 visits at 80 %
    ]  # fmt: skip
    ends = [row for row in table if row["skill"] == "sold" and row["metric"] == "pass@1"]
    assert {(row["before"], row["value"]) for row in ends if row["policy"] == "a"} == {
        ("0.00", "0.00"), ("0.00", "80.00"),
    }  # fmt: skip


def test_tables_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = plan(tmp_path)
    run_all(chosen, Heard())
    results = read_all(chosen)
    best, second, start = rows(results, "heldout")
    assert list(best.values())[:4] == ["sgt", "63.0 ± 2.5", "10.0 ± 0.0", ""]
    assert list(second.values())[:4] == ["solo", "53.0 ± 2.5", "", ""]
    assert (best["a"], best["b"], start["a"]) == ("62.0 ± 2.5", "64.0 ± 2.5", "57.0")
    write_csv(results, chosen.out / "table.csv")
    text = summary(results, "the command")
    assert re.findall("(?m)^## (.*)", text) == ["heldout", "Costs of a run"]
    assert "`the command`" in text
    with (tmp_path / "out" / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 6 * (2 * 3 * 2 + 6)  # runs x (policies x skills and all x metrics + costs)
    assert "| sgt | 120 | 12 | 20 | 4 |" in text  # of costs
    assert not any(row["metric"] == "kl_to_start" for row in table)  # as in older runs
    figures.draw_learning_curves(results, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").stat().st_size > 5000


def test_kl_to_the_start_stands_in_the_csv(tmp_path):
    write_run(place(tmp_path, "sgt", 1), 50)
    path = place(tmp_path, "sgt", 1) / "evaluation.json"
    evaluations = json.loads(path.read_text())
    for entry, value in zip(evaluations["after"], (0.12345, 0), strict=True):
        entry["kl_to_start"] = value
    path.write_text(json.dumps(evaluations))
    write_csv(read_all(plan(tmp_path, ("sgt",), (1,))), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        kept = [row for row in csv.DictReader(file) if row["metric"] == "kl_to_start"]
    found = [(row["split"], row["policy"], row["value"], row["before"]) for row in kept]
    assert found == [("heldout", "a", "0.1235", "0.0000"), ("heldout", "b", "0.0000", "0.0000")]


@pytest.mark.parametrize(("gpus", "free", "given", "want"), [
    (0, 99, [], 4), (0, 3.5, [], 3), (0, 0.1, [], 1), (0, 0.1, ["--jobs", "7"], 7),
    (1, 99, [], 1), (1, 99, ["--jobs", "3"], 3),
])  # fmt: skip
def test_as_many_runs_as_fit_and_at_most_four_but_a_gpu_for_one(
    tmp_path, monkeypatch, gpus, free, given, want
):
    plans = []
    run_all = "mrl.lab.commands.run_all"
    monkeypatch.setattr(run_all, lambda plan, board: plans.append(plan) or ["none"])
    monkeypatch.setattr("mrl.lab.compare.cores", lambda: 64)
    monkeypatch.setattr("mrl.models.memory_estimate.free_memory", lambda device: int(free * 2**30))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    assert mini_mrl.main(["compare", "--out", str(tmp_path), *given]) == 2  # no run finished
    assert [plan.jobs for plan in plans] == [want]


def test_there_is_a_core_for_each_thread_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("mrl.lab.compare.cores", lambda: 6)
    (tmp_path / "run.toml").write_text("threads = 3")
    chosen = Plan(name_modes(["solo"]), [1], tmp_path, file=tmp_path / "run.toml")
    assert jobs_that_fit(chosen) == 2


def test_each_run_ignores_the_settings_of_the_other_compared_modes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN_MODE.format("mine") + "    x: float = 1\n")
    chosen = Plan(name_modes(["solo", "mine.py:Mine"]), [1], tmp_path, settings=["mine.x=1.5"])
    found = [chosen.config_of(run).settings for run in chosen.runs()]
    assert found == [{}, {"mine": {"x": 1.5}}]


def test_a_run_that_lost_its_scores_from_before_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path)
    command = ["compare", "--modes", "solo,sgt", "--seeds", "2", "--out", "out", "--jobs", "1"]
    assert mini_mrl.main(command) == 0
    file = place(tmp_path, "sgt", 2) / "evaluation.json"
    file.write_text(json.dumps({"after": json.loads(file.read_text())["after"]}))
    assert mini_mrl.main(command) == 2
    assert "sgt-s2" in capsys.readouterr().err


def test_runs_of_changed_problems_stand_beside_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n')
    chosen = replace(plan(tmp_path), settings=["train=train.jsonl"])
    assert run_all(chosen, Heard()) == []
    Path("train.jsonl").write_text('{"prompt": "1+2?", "answer": "3"}\n')
    with pytest.raises(MrlError, match=r"^train\.jsonl"):
        run_all(chosen, Heard())


def test_the_quick_one_is_two_modes_two_seeds_and_200_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan(tmp_path)  # makes the runs that the stand-in hands out
    assert mini_mrl.main(["compare", "--quick", "--jobs", "1"]) == 0
    assert len(calls()) == 4
    assert all(read_run_config(run).steps == 200 for run in Path("runs/quick/runs").iterdir())
    made = {path.name for path in Path("runs/quick/runs").iterdir() if path.is_dir()}
    assert made == {f"{mode}-s{seed}" for mode in ("solo", "sgt") for seed in (1, 2)}


def test_what_is_compared_is_the_tiny_pair_unless_another_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = str(DATA / "tiny" / "llama-tiny")
    Path("run.toml").write_text(f'[[policy]]\npath = "{one}"\n')  # which --pair would replace
    plans = []
    monkeypatch.setattr("mrl.lab.commands.run_all", lambda plan, board: plans.append(plan) or ["x"])
    for given in ([], ["--pair", one], ["--config", "run.toml"]):
        assert mini_mrl.main(["compare", "--modes", "solo", "--jobs", "1", *given]) == 2
    found = [plan.config_of(plan.runs()[0]).policies for plan in plans]
    assert [policy.name for policy in found[0]] == ["qwen-tiny", "llama-tiny"]
    for policies in found[1:]:
        assert [policy.name for policy in policies] == ["llama-tiny"]
