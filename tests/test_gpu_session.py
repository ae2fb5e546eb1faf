"""The session for a GPU, at small shapes on a CPU: every part's code, and that nothing is lost."""

import importlib.util
import multiprocessing
import time
from weakref import WeakSet

import pytest

from mrl.decoder import OneTokenDecoder
from mrl.models import cuda_graph
from tests.bench import gpu_session
from tests.bench.gpu_session import LADDER, MODELS, PARTS, PREDICTED, Scale, read, run_part, session

pytestmark = pytest.mark.slow  # a benchmark, which is run by hand

SHAPE = {
    "vocab_size": 2000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SIZES = (100, 200)
SCALE = Scale("cpu", prompts=4, group=4, prompt=14, completion=12, micro_batches=SIZES, shape=SHAPE)
BOTH = ["qwen2.5", pytest.param("smollm2", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """As on CUDA, but that a recording is the step itself."""
    monkeypatch.setattr(cuda_graph, "_failures", [])
    monkeypatch.setattr(cuda_graph, "_compared", WeakSet())
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: not cuda_graph._failures)
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: step)


def entry_of(part, tmp_path):
    """What a part writes when it runs in this process."""
    run_part(part, SCALE, tmp_path / "gpu.json")
    return read(tmp_path / "gpu.json")[part]


def test_on_a_cpu_the_tiny_pair_equals_itself(tmp_path):
    entry = entry_of("tiny", tmp_path)
    assert entry["good"]
    for numbers in entry["results"].values():
        assert numbers["equal"] == 1
        assert numbers["completions"] == 4 * 8
        assert numbers["predicted"]


@pytest.mark.parametrize("name", BOTH)
def test_each_variant_has_the_time_of_a_token_and_the_gap_of_its_recording(tmp_path, name):
    entry = entry_of(f"token-{name}", tmp_path)
    assert entry["good"]
    assert list(entry["results"]) == list(LADDER)
    for numbers in entry["results"].values():
        assert len(numbers["token_ms"]) == len(numbers["rollout_s"]) == 2
        assert min(numbers["token_ms"]) > 0
        assert numbers["gap"] == 0  # a step, against itself


def test_a_recording_that_is_wrong_is_not_good(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: lambda: None)
    entry = entry_of("token-qwen2.5", tmp_path)
    assert not entry["good"]
    assert all(numbers["failures"] for numbers in entry["results"].values())


@pytest.mark.parametrize("name", BOTH)
def test_learning_is_timed_for_each_size_and_length_before_and_now(tmp_path, name):
    entry = entry_of(f"learning-{name}", tmp_path)
    assert entry["good"]
    assert len(entry["results"]) == 2 * len(SIZES) * 2
    for numbers in entry["results"].values():
        assert len(numbers["seconds"]) == len(numbers["peak_GiB"]) == 2
        assert min(numbers["seconds"]) > 0


def test_a_step_trains_both_policies_in_turn_as_before_and_as_now(tmp_path):
    entry = entry_of("whole", tmp_path)
    assert entry["good"], entry
    assert list(entry["results"]) == ["1 before", "2 now", "3 before", "4 now"]
    for numbers in entry["results"].values():
        assert {f"{name} learn_s" for name in MODELS} < set(numbers)


def test_each_variant_has_one_change_more(monkeypatch):
    """What a rollout uses: the class's norm, tokens before a recording, memory, the decoder."""
    policy = gpu_session.policy_of(SCALE, "qwen2.5")
    decoded = []
    forward = OneTokenDecoder.__call__
    monkeypatch.setattr(
        OneTokenDecoder, "__call__", lambda *given: decoded.append(1) or forward(*given)
    )

    def settings():
        return cuda_graph.RECORD_AFTER, cuda_graph.FREE

    now, found = settings(), []
    for variant in LADDER:
        with gpu_session.program(variant, [policy.model]):
            decoded.clear()
            gpu_session.sample(policy, SCALE, 10)
            own_norm = "forward" in vars(policy.model.model.norm)
            record_after, free = settings()
            found.append((own_norm, record_after == now[0], free == now[1], bool(decoded)))
    assert found == [tuple(n < count for n in range(4)) for count in range(5)]
    assert settings() == now


@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="trl is installed")
def test_without_trl_its_part_is_skipped(tmp_path):
    entry = entry_of("trl", tmp_path)
    assert entry["good"]
    assert list(entry["results"]) == ["skipped"]


def test_what_was_found_before_an_error_is_kept(tmp_path, monkeypatch):
    def fails(scale, note):
        note("first", {"ms": 1})
        raise ZeroDivisionError

    monkeypatch.setitem(PARTS, "tiny", (fails, 30))
    entry = entry_of("tiny", tmp_path)
    assert not entry["good"]
    assert entry["results"] == {"first": {"ms": 1}}
    assert "ZeroDivisionError" in entry["ended"]


def test_a_part_whose_time_is_up_keeps_its_results_and_the_next_one_runs(tmp_path, monkeypatch):
    def hangs(scale, note):
        note("first", {"ms": 1})
        time.sleep(60)

    fork = multiprocessing.get_context("fork")  # has this process's parts, and need not import
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: fork)
    monkeypatch.setitem(PARTS, "whole", (hangs, 2))
    monkeypatch.setitem(PARTS, "tiny", (lambda scale, note: True, 60))
    out = tmp_path / "runs" / "gpu.json"
    assert not session(["whole", "tiny"], SCALE, out)
    entries = read(out)
    assert [entry["good"] for entry in entries.values()] == [False, True]
    assert entries["whole"]["results"] == {"first": {"ms": 1}}
    for entry in entries.values():
        assert len(entry["before"]["load"]) == 3
        assert entry["before"]["on_the_card"]


def test_predictions_are_about_results_that_there_are():
    assert set(PREDICTED) == set(PARTS)
    sizes = Scale().micro_batches
    for name in MODELS:
        assert set(PREDICTED[f"token-{name}"]) <= set(LADDER)
        for key in PREDICTED[f"learning-{name}"]:
            length, size, variant = key.split()
            assert length in ("full", "ragged")
            assert int(size) in sizes
            assert variant in LADDER


def test_without_a_gpu_it_says_so(tmp_path, capsys):
    assert gpu_session.main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()
