"""The session for a GPU: its parts at tiny shapes on a CPU, and what holds them together."""

import json
import signal
import subprocess
from dataclasses import replace
from weakref import WeakSet

import pytest
import torch

from mrl.models import cuda_graph
from tests.bench import gpu_session
from tests.bench.gpu_session import PREDICTED, Scale, do, main, read, tasks, verdict

SMALL = {
    "vocab_size": 2000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SLOW = ("runs", "modes", "whole-swap", "whole-parallel", "decode-smollm2", "update-smollm2",
        "memory-smollm2-checkpointing")  # fmt: skip
SCALE = Scale("cpu", 14, 8, 6, 4, micro_batch=120, steps=1, shape=SMALL)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """As on CUDA, but that a recording is the step itself."""
    monkeypatch.setattr(cuda_graph, "_failures", [])
    monkeypatch.setattr(cuda_graph, "_compared", WeakSet())
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: not cuda_graph._failures)
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: step)


def done(name, tmp_path, scale=SCALE):
    """What a part finds."""
    do(name, scale, tmp_path / "gpu.json")
    return read(tmp_path / "gpu.json")[name]


PARTS = [name for name in tasks() if name not in SLOW]
PARTS[PARTS.index("whole-resident")] = pytest.param("whole-resident", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_finds_its_figures(tmp_path, name):
    found = done(name, tmp_path)
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
        assert figures["said"][0].startswith("Placement resident: ")
    if name == "attention":
        assert all("attention" in " ".join(figures[mask]) for mask in figures)
        assert set(figures) == {"prompts", "token", "learning"}
    if name == "token":
        assert min(figures.values()) > 0
        assert {"token_ms", "drawing_in_float64_ms", "without_casts_ms"} < set(figures)
    if name == "swapping":
        assert figures["GiB_a_second"] > 0
    if name == "twice":
        assert figures["usual"]["equal"]
        assert figures["strict"]["equal"]


def test_a_recording_that_is_not_used_or_wrong_is_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: lambda: None)
    found = done("decode-qwen2.5", tmp_path)
    assert not found["good"]
    assert not found["figures"]["believed"]
    assert "its logits are off" in found["figures"]["failures"][0]


@pytest.mark.slow
def test_the_slow_parts(tmp_path):
    for name in SLOW:
        found = done(name, tmp_path, replace(SCALE, steps=2))
        assert found["good"], found
        if name == "runs":
            assert not any(found["figures"]["first_differing_step"].values())


def test_an_error_is_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "card", lambda scale: 1 / 0)
    line = verdict("card", done("card", tmp_path))
    assert line.startswith("LOOK  card, 0.")
    assert line.endswith('{"error": "ZeroDivisionError: division by zero"}')
    assert verdict("memory-qwen2.5", None) == "not made  memory-qwen2.5"
    assert not any(" " in name for name in tasks())  # they are names of files
    assert set(PREDICTED) <= set(tasks())


def test_without_a_gpu_it_says_so_and_with_one_it_goes_on_where_it_was(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "gpu.json"
    assert main(["--out", str(out)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    made = []

    class Part:
        def __init__(self, command, start_new_session, stdout):
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
        about = {"good": True, "seconds": 1.0, "predicted": "", "figures": {}}
        out.write_text(json.dumps(read(out) | {name: about}))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    killed = []
    monkeypatch.setattr(gpu_session.subprocess, "Popen", Part)
    monkeypatch.setattr(gpu_session.os, "killpg", lambda *about: killed.append(about))
    do_part("tokens")
    assert main(["--out", str(out), "--minutes", "3"]) == 1
    assert killed == [(-7, signal.SIGKILL)]
    assert made == [name for name in tasks() if name != "tokens"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(tasks()) + 1  # a verdict a line
    assert "not made  runs" in said
    do_part("runs")
    assert main(["--out", str(out)]) == 0
    assert len(made) == len(tasks()) - 1  # nothing twice
