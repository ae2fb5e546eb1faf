"""The session for a GPU: its parts at tiny shapes on a CPU, and what holds them together."""

import json
import subprocess

import pytest
import torch

from tests.bench import gpu_session
from tests.bench.gpu_session import Scale, do, main, table, tasks

SMALL = {
    "vocab_size": 600, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SLOW = ("runs", "decode smollm2", "update smollm2", "memory smollm2 checkpointing")
SCALE = Scale("cpu", 14, 8, 6, 4, micro_batch=120, steps=1, shape=SMALL)


@pytest.mark.parametrize("name", [name for name in tasks() if name not in SLOW])
def test_a_part_finds_its_figures(tmp_path, name):
    do(name, SCALE, tmp_path)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["good"], found
    figures = found["figures"]
    if name == "tokens":
        assert [figures[name]["equal"] for name in figures] == [1, 1]
        assert 0 < figures["qwen-tiny"]["gap_max"] < 0.5
    if name.startswith("decode"):
        assert figures["same_tokens"] == 1
        assert figures["plain_ms"] > 0
    if name.startswith("memory"):
        assert figures["notes"] == []
    if name.startswith("update"):
        assert set(figures) == {"seconds_60", "seconds_120", "seconds_240", "shares"}
        assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.02)
    if name == "twice":
        assert figures["usual"]["equal"]
        assert figures["strict"]["equal"]


@pytest.mark.slow
def test_the_slow_parts(tmp_path):
    for name in SLOW:
        do(name, SCALE, tmp_path)
        assert json.loads((tmp_path / f"{name}.json").read_text())["good"]
    found = json.loads((tmp_path / "runs.json").read_text())
    assert found["figures"]["first_differing_step"] is None


def test_an_error_is_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "card", lambda scale: 1 / 0)
    do("card", SCALE, tmp_path)
    text, good = table(tmp_path)
    assert not good
    assert '| **look** | {"error": "ZeroDivisionError: division by zero"} |' in text
    assert text.count("not made") == len(tasks()) - 1


def test_without_a_gpu_it_says_so_and_with_one_it_goes_on_where_it_was(
    tmp_path, monkeypatch, capsys
):
    assert main(["--out", str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    made = []

    def run(command, timeout):
        made.append(command[-1])
        if command[-1] == "runs":
            raise subprocess.TimeoutExpired(command, timeout)
        do_part(command[-1])

    def do_part(name):
        about = {"part": name, "good": True, "seconds": 1.0, "figures": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps(about))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_session.subprocess, "run", run)
    do_part("tokens")
    assert main(["--out", str(tmp_path)]) == 1
    assert made == [name for name in tasks() if name != "tokens"]
    assert "| runs | | not made | |" in (tmp_path / "table.md").read_text()
    do_part("runs")
    assert main(["--out", str(tmp_path)]) == 0
    assert len(made) == len(tasks()) - 1  # nothing twice
