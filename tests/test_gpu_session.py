"""The session for a GPU: its parts at tiny shapes on a CPU, and what holds them together."""

import json
import signal
import subprocess
from dataclasses import replace
from weakref import WeakSet

import pytest
import torch

from mrl.runtime import cuda_graph
from tests.bench import gpu_session
from tests.bench.gpu_session import PREDICTED, Scale, do, main, table, tasks

SMALL = {
    "vocab_size": 2000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SLOW = ("runs", "modes", "whole-swap", "decode-smollm2", "update-smollm2",
        "memory-smollm2-checkpointing")  # fmt: skip
SCALE = Scale("cpu", 14, 8, 6, 4, micro_batch=120, steps=1, shape=SMALL)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """As on CUDA, but that a recording is the step itself."""
    monkeypatch.setattr(cuda_graph, "_failures", [])
    monkeypatch.setattr(cuda_graph, "_compared", WeakSet())
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: not cuda_graph._failures)
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: step)


@pytest.mark.parametrize("name", [name for name in tasks() if name not in SLOW])
def test_a_part_finds_its_figures(tmp_path, name):
    do(name, SCALE, tmp_path)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["good"], found
    figures = found["figures"]
    if name == "tokens":
        assert [figures[name]["equal"] for name in figures] == [1, 1]
        assert 0 < figures["qwen-tiny"]["gap_max"] < 0.5
    if name == "padding":
        assert [figures[name]["finite"] for name in figures] == [True, True]
    if name.startswith("decode"):
        assert figures["believed"]
        assert figures["plain_ms"] > 0
        assert 0 <= figures["gap_recorded"] < 0.02
    if name.startswith("memory") or name == "ragged":
        assert '"notes": []' in json.dumps(figures)
    if name == "ragged":
        assert figures["without"]["skipped"] == figures["cudnn"]["skipped"] == 0
    if name.startswith("update"):
        assert set(figures) == {"seconds_60", "seconds_120", "seconds_240", "shares"}
        assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.02)
    if name.startswith("whole"):
        assert figures["skipped"] == 0
        assert {"qwen2.5 1", "smollm2 2"} <= set(figures)
    if name == "twice":
        assert figures["usual"]["equal"]
        assert figures["strict"]["equal"]


def test_a_recording_that_is_not_used_or_wrong_is_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: lambda: None)
    do("decode-qwen2.5", SCALE, tmp_path)
    found = json.loads((tmp_path / "decode-qwen2.5.json").read_text())
    assert not found["good"]
    assert not found["figures"]["believed"]
    assert "its logits are off" in found["figures"]["failures"][0]


@pytest.mark.slow
def test_the_slow_parts(tmp_path):
    for name in SLOW:
        do(name, replace(SCALE, steps=2), tmp_path)
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["good"], found
    found = json.loads((tmp_path / "runs.json").read_text())
    assert not any(found["figures"]["first_differing_step"].values())


def test_an_error_is_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "card", lambda scale: 1 / 0)
    do("card", SCALE, tmp_path)
    text, good = table(tmp_path)
    assert not good
    assert '| **look** |  | {"error": "ZeroDivisionError: division by zero"} |' in text
    assert text.count("not made") == len(tasks()) - 1
    assert "| memory-qwen2.5 | | not made | 15.8 GiB | |" in text
    assert not any(" " in name for name in tasks())  # they are names of files
    assert set(PREDICTED) <= set(tasks())


def test_without_a_gpu_it_says_so_and_with_one_it_goes_on_where_it_was(
    tmp_path, monkeypatch, capsys
):
    assert main(["--out", str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    made = []

    class Part:
        def __init__(self, command, start_new_session):
            self.name, self.pid = command[-1], -7
            made.append(self.name)
            assert start_new_session  # so that the end of time reaches what it started

        def wait(self, timeout=None):
            if self.name == "runs" and timeout:
                assert timeout <= 60 * 3
                raise subprocess.TimeoutExpired(self.name, timeout)
            if timeout:
                do_part(self.name)

    def do_part(name):
        about = {"part": name, "good": True, "seconds": 1.0, "figures": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps(about))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    killed = []
    monkeypatch.setattr(gpu_session.subprocess, "Popen", Part)
    monkeypatch.setattr(gpu_session.os, "killpg", lambda *about: killed.append(about))
    do_part("tokens")
    assert main(["--out", str(tmp_path), "--minutes", "3"]) == 1
    assert killed == [(-7, signal.SIGKILL)]
    assert made == [name for name in tasks() if name != "tokens"]
    assert "| runs | | not made | " in (tmp_path / "table.md").read_text()
    do_part("runs")
    assert main(["--out", str(tmp_path)]) == 0
    assert len(made) == len(tasks()) - 1  # nothing twice
