import os
from types import SimpleNamespace

import torch

from mrl.config import RunConfig
from mrl.experiment.memory import choose_placement, estimate, needed
from tests.conftest import pytest_configure


def test_the_estimate_against_arithmetic_by_hand(make_policy):
    policy = make_policy(group_size=4, max_new_tokens=10, micro_batch=2048)
    config = RunConfig([policy.config], prompts_per_step=2)
    got = estimate(policy, config, prompt_tokens=20)
    shape = policy.model.config
    parameters = sum(p.numel() for p in policy.model.parameters())
    tokens = 2 * 4 * 30  # prompts * group * (prompt + completion)
    kv_cache = tokens * 2 * 4 * 2 * 32 * 4  # k and v, layers, KV heads, size, bytes
    activations = tokens * 4 * 128 * 32 * 4
    logits = tokens * shape.vocab_size * 4 * 4
    assert got.at_rest == (4 + 8) * parameters  # weights, two moments of AdamW
    assert got.turn == 4 * parameters + activations + logits > kv_cache
    long = make_policy(group_size=4, max_new_tokens=10, micro_batch=30)
    sampling = estimate(long, RunConfig([long.config], prompts_per_step=2000), prompt_tokens=20)
    assert sampling.turn == 1000 * kv_cache
    both = [got, got]
    assert needed(both, "swap") == got.peak
    assert needed(both, "resident") == got.peak + got.at_rest


def test_these_tests_see_no_gpu_and_the_allocator_is_set(monkeypatch):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr="gpu")))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_plan_follows_the_memory_that_is_free(make_policy, monkeypatch):
    policy = make_policy()
    estimates = [estimate(policy, RunConfig([policy.config]), 20)] * 2
    both, one = needed(estimates, "resident"), needed(estimates, "swap")
    assert one < both

    def plan(free):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
        return choose_placement(estimates, "auto", "cuda:0")

    assert plan(2 * both).name == "resident"
    tight = plan(1.1 * both)  # only nine tenths of what is free are planned for
    assert tight.name == "swap"
    assert "may not fit" not in tight.sentence
    assert "lower micro_batch" in plan(one).sentence
    assert choose_placement(estimates, "auto", "cpu").name == "resident"
    chosen = choose_placement(estimates, "swap", "cpu")
    assert chosen.name == "swap"
    assert chosen.sentence == (
        f"Placement swap: {one / 2**30:.1f} GiB of tensors at the peak "
        f"(qwen-tiny {one / 2**30:.1f}, qwen-tiny {one / 2**30:.1f} alone)."
    )
