"""One process a policy, over loopback: the same learning, and nobody waits for ever."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mrl.distributed import Company, Processes, find_company

import mini_mrl
from mrl.errors import MrlError
from mrl.experiment.metrics import without_time
from mrl.experiment.problems import save_problems
from mrl.tiny.skills import SKILLS, generate
from tests.end_to_end.test_main import SMALL, lines

ROOT = Path(mini_mrl.__file__).parent
NAMES = ["a", "b"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_alone_everything_is_said_at_once_in_the_order_asked_for():
    company = find_company(NAMES)
    assert type(company) is Company
    assert company.local == NAMES
    said = company.share("x", {"b": 2, "a": [1]}, NAMES)
    assert list(said.items()) == [("a", [1]), ("b", 2)]
    assert company.share("x", {"a": None, "b": 0}, NAMES) == {"b": 0}


@pytest.fixture
def pair(monkeypatch):
    """Two members of one company, in threads instead of processes."""
    port = free_port()
    made = {}

    def join(rank):
        made[rank] = Processes(NAMES, turn_budget_s=0.2)

    for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("RANK", "0")
    first = threading.Thread(target=join, args=(0,))
    first.start()
    time.sleep(0.5)
    monkeypatch.setenv("RANK", "1")
    join(1)
    first.join()
    return made[0], made[1]


def both(pair, *calls):
    found = [None, None]

    def one(number):
        found[number] = pair[number].share(*calls[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_what_one_says_the_other_hears(pair):
    assert [company.local for company in pair] == [["a"], ["b"]]
    for round_number in range(20):
        topic = f"{round_number}/t"
        one, two = both(pair, (topic, {"a": {"x": 1}}, NAMES), (topic, {"b": ["é"]}, NAMES))
        assert one == two == {"a": {"x": 1}, "b": ["é"]}
    assert len(pair[0]._unread) <= 8  # the store does not grow for ever


def test_who_is_silent_is_left_out_in_time(pair):
    start = time.monotonic()
    assert pair[0].share("t", {"a": 1}, NAMES) == {"a": 1}
    assert time.monotonic() - start < 5
    one, two = both(pair, ("u", {"a": 1}, NAMES), ("u", {}, NAMES))  # b says that it has nothing
    assert one == two == {"a": 1}


def test_what_travels_is_encoded_and_what_stays_is_not(pair):
    def call(name):
        return ("t", {name: {1, 2}}, NAMES, sorted, tuple)

    one, two = both(pair, call("a"), call("b"))
    assert one == {"a": {1, 2}, "b": (1, 2)}
    assert two == {"a": (1, 2), "b": {1, 2}}


def test_a_wrong_number_of_processes_gets_one_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(MrlError, match="3 processes for 2 policies"):
        find_company(NAMES)


# ------------------------------------------------------------------------------ whole runs


def problem_files(place):
    for part in ("train", "heldout"):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, 2, 0)]
        save_problems(place / f"{part}.jsonl", made)


def torchrun(place, *arguments, nodes=(), what=("--mode", "hacpo", "--plain", *SMALL)):
    command = [sys.executable, "-m", "torch.distributed.run", *nodes, str(ROOT / "mini_mrl.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, *what, *arguments],
        cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def in_one_process(place, steps, name="one"):
    os.chdir(place)
    arguments = ["--mode", "hacpo", "--plain", *SMALL, "--steps", str(steps), "--name", name]
    assert mini_mrl.main(arguments) == 0


def assert_same(one, two):
    for name in ("exchange.jsonl", "samples.jsonl", "evaluation.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    metrics = [[without_time(line) for line in lines(d / "metrics.jsonl")] for d in (one, two)]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_a_process_a_policy_learns_what_one_process_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem_files(tmp_path)
    in_one_process(tmp_path, 3)
    single = ("--nproc-per-node", "2", "--master-port", str(free_port()))
    process = torchrun(tmp_path, "--steps", "3", "--name", "two", nodes=single)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert output.count("before -> after") == 1  # one of them talks
    assert_same(tmp_path / "runs" / "one", tmp_path / "runs" / "two")
    saved = tmp_path / "runs" / "two" / "checkpoints" / "step-000003"
    assert sorted(p.name for p in saved.iterdir()) == ["llama-tiny", "qwen-tiny", "state.json"]
    # and it goes on from there, again as two processes
    in_one_process(tmp_path, 5, "whole")
    config = tmp_path / "runs" / "two" / "config.toml"
    config.write_text(config.read_text().replace("steps = 3", "steps = 5"))
    resumed = torchrun(tmp_path, nodes=single, what=("resume", "runs/two", "--plain"))
    output, _ = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, output
    assert output.count("config.toml has changed since the checkpoint: steps = 5.") == 1
    assert_same(tmp_path / "runs" / "whole", tmp_path / "runs" / "two")


@pytest.mark.slow
def test_two_launchers_as_on_two_machines_learn_the_same(tmp_path, monkeypatch):
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
        problem_files(place)
    monkeypatch.chdir(tmp_path)
    in_one_process(places[0], 2, "one")
    readme = (ROOT / "README.md").read_text()
    launch = re.search(r"^torchrun (--nnodes 2 .*) mini_mrl.py", readme, re.MULTILINE)[1]
    launch = launch.replace("HOST", "127.0.0.1").replace("29500", str(free_port()))
    processes = []
    for rank, place in enumerate(places):
        nodes = launch.replace("RANK", str(rank)).split()
        processes.append(torchrun(place, "--steps", "2", "--name", "two", nodes=nodes))
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    for place in places:
        assert_same(places[0] / "runs" / "one", place / "runs" / "two")


@pytest.mark.slow
def test_a_lost_process_is_named_and_the_other_goes_on_without_it(tmp_path):
    """Without torchrun, which would wait minutes for the lost one before it ends itself."""
    problem_files(tmp_path)
    (tmp_path / "run.toml").write_text("turn_budget_s = 2.0\n")
    about = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(ROOT / "mini_mrl.py"), "--mode", "hacpo", "--plain", *SMALL]
    command += ["--steps", "60", "--name", "r", "--config", "run.toml"]
    first, second = (
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **about, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    )  # fmt: skip
    metrics = tmp_path / "runs" / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(lines(metrics)) >= 4):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.2)
    second.kill()
    second.communicate()
    output, _ = first.communicate(timeout=240)
    assert "llama-tiny missed 3 steps in a row; the run goes on without it." in output
    assert first.returncode == 0, output
    last = [line for line in lines(metrics) if line["step"] == 60]
    assert [line["policy"] for line in last] == ["qwen-tiny"]
