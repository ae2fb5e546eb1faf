import gc
import os
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.learning import learn
from mrl.policy import Policy
from mrl.runtime.evaluation import problems_at_once
from mrl.runtime.loading import _enable_checkpointing
from mrl.runtime.lora import add_adapters
from mrl.runtime.memory import (
    HEADROOM,
    choose_placement,
    estimate,
    needed,
    peak_memory,
)
from mrl.runtime.pairs import pair_settings
from mrl.runtime.settings import run_config
from mrl.samples import TrainingSample
from tests.conftest import pytest_configure


class Tracker(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most that there were."""

    def __init__(self):
        super().__init__()
        self.sizes, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor):
                self.track(tensor)
        return out

    def track(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, storage._cdata)

    def free(self, key):
        self.now -= self.sizes.pop(key)


def model_of(kind, hidden, inner, layers, vocab, heads=4, kv_heads=2):
    config, model = {
        "qwen": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    return model(
        config(
            hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, vocab_size=vocab,
            num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
        )
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (("qwen", 128, 640, 6, 4000), {"dtype": "float32"}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed"}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "checkpointing": True}),
        (("llama", 160, 480, 8, 2000), {"dtype": "mixed"}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "float32", "lora_rank": 4}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "lora_rank": 4}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "lora_rank": 4, "base": torch.bfloat16}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "lora_rank": 4, "checkpointing": True}),
    ],
)
def test_the_estimate_is_what_a_learning_turn_needs(make_policy, shape, settings):
    model = model_of(*shape)
    if settings.get("checkpointing"):
        _enable_checkpointing(model)
    about = {"learning_rate": 1e-4, "max_new_tokens": 60, "group_size": 8, "micro_batch": 1100}
    about |= settings
    base = about.pop("base", torch.float32)  # of LoRA in mixed precision: bfloat16
    if about.get("lora_rank"):
        model = model.to(base)
        add_adapters(model, about["lora_rank"])
    policy = Policy(PolicyConfig("x", "x", **about), model, make_policy().tokenizer)
    samples = [
        TrainingSample([2] * 49 + [3 + prompt], [5] * 60, advantage=(-1.0) ** n,
                       sampled_logprobs=[-1.0] * 60)
        for prompt in range(6) for n in range(8)
    ]  # fmt: skip
    learn(policy, samples)  # the optimizer's state is there now
    gc.collect()
    tracker = Tracker()
    state = [value for values in policy.optimizer.state.values() for value in values.values()]
    for tensor in (*policy.model.parameters(), *state):
        tracker.track(tensor)
    at_rest, tracker.peak = tracker.now, 0
    with tracker:
        learn(policy, samples)
    got = estimate(policy, RunConfig([policy.config], prompts_per_step=6, eval_samples=1), 50)
    assert got.at_rest == pytest.approx(at_rest, rel=0.01)
    assert got.peak == pytest.approx(tracker.peak, rel=0.1)


def test_a_frozen_policy_needs_its_weights_and_what_sampling_takes(make_policy):
    learner, teacher = make_policy(), make_policy(frozen=True)
    config = RunConfig([learner.config])
    learning, sampling = (estimate(policy, config, 50) for policy in (learner, teacher))
    assert learning.at_rest == 3 * sampling.at_rest
    assert sampling.turn < learning.turn


SHAPES = {
    "qwen2.5": ("qwen", 896, 4864, 24, 151936, 14, 2),
    "smollm2": ("llama", 960, 2560, 32, 49152, 15, 5),
}
# GiB at the peak of a learning step with fake tensors on a pretended CUDA device: prompts of 150
SIMULATED = [  # tokens, with eight completions of 400 each
    ("qwen2.5", 21.09, {"micro_batch": 8192}),
    ("qwen2.5", 21.66, {"micro_batch": 8192}),  # completions of 50 to 400
    ("qwen2.5", 15.83, {}), ("qwen2.5", 16.73, {}),
    ("qwen2.5", 13.31, {"micro_batch": 2048}),
    ("qwen2.5", 10.99, {"micro_batch": 8192, "checkpointing": True}),
    ("qwen2.5", 18.21, {"dtype": "float32"}),
    ("smollm2", 17.57, {"micro_batch": 8192}),
    ("smollm2", 18.14, {"micro_batch": 8192}),
    ("smollm2", 12.19, {}), ("smollm2", 13.11, {}),
    ("smollm2", 9.61, {"micro_batch": 2048}),
    ("smollm2", 7.64, {"micro_batch": 8192, "checkpointing": True}),
    ("smollm2", 14.15, {"dtype": "float32"}),
]  # fmt: skip


def true_estimate(name, **settings):
    """Of a model at its true shape, without its weights."""
    config = PolicyConfig(name, "x", **{"dtype": "mixed", **settings})
    with torch.device("meta"):
        model = model_of(*SHAPES[name])
        if config.lora_rank:
            add_adapters(model.bfloat16(), config.lora_rank)
    policy = SimpleNamespace(
        name=name, config=config, reference=None, model=model,
        mixed_precision=config.dtype == "mixed",
    )  # fmt: skip
    return estimate(policy, RunConfig([config], eval_samples=1), prompt_tokens=150)


@pytest.mark.parametrize(("name", "peak", "settings"), SIMULATED)
def test_the_estimate_at_the_true_shapes_is_that_of_a_simulation(name, peak, settings):
    settings = {"micro_batch": 4096, "max_new_tokens": 400} | settings
    assert true_estimate(name, **settings).peak / 2**30 == pytest.approx(peak, rel=0.1)


def test_the_real_pair_is_resident_in_24_gigabytes_and_swaps_in_12(monkeypatch, tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    monkeypatch.setattr("mrl.runtime.pairs.GSM8K", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    presets = {policy.name: policy for policy in pair_settings("qwen-smol")["policies"]}
    assert [p.micro_batch for p in presets.values()] == [4096] * 2
    estimates = [true_estimate(name, micro_batch=4096, max_new_tokens=400) for name in presets]
    # the weights are loaded when the choice is made: a third of what rests, with AdamW's moments
    weights = sum(each.at_rest for each in estimates) / 3
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: weights)
    free = 23.2 * 2**30 - weights
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 24 * 2**30))
    assert choose_placement(estimates, "auto", "cuda:0")[0] == "resident"
    small = {"micro_batch": 4096, "max_new_tokens": 400, "checkpointing": True}
    assert needed([true_estimate(n, **small) for n in presets], "swap") < 0.9 * 12 * 2**30


def test_the_setting_for_a_t4_is_within_its_memory(monkeypatch):
    """14.7 GiB of it can be had, and a plan fills nine tenths of that."""
    path = DATA / "examples" / "t4.toml"
    config = run_config(None, path, {}, [])
    on_cuda = problems_at_once(torch.device("cuda"), config.eval_samples)
    monkeypatch.setattr("mrl.runtime.memory.problems_at_once", lambda device, samples: on_cuda)
    estimates = []
    for policy in config.policies:
        settings = {name: getattr(policy, name) for name in ("dtype", "max_new_tokens")}
        estimates.append(true_estimate(policy.name, micro_batch=policy.micro_batch, **settings))
    assert needed(estimates, "swap") < HEADROOM * 14.7 * 2**30
    assert f"expects is {needed(estimates, 'swap') / 2**30:.1f} GiB" in path.read_text()
    longer = true_estimate("smollm2", micro_batch=1024, dtype="float32", max_new_tokens=400)
    assert longer.peak > HEADROOM * 14.7 * 2**30  # as its comment says


def test_with_lora_a_pair_of_1500_and_1000_million_fits_24_gigabytes():
    """Qwen2.5-1.5B and Llama-3.2-1B with a bfloat16 base; without LoRA neither fits alone."""
    shapes = {
        "qwen2.5-1.5b": ("qwen", 1536, 8960, 28, 151936, 12, 2),
        "llama-3.2-1b": ("llama", 2048, 8192, 16, 128256, 32, 8),
    }
    SHAPES.update(shapes)
    about = {"micro_batch": 4096, "max_new_tokens": 400}
    small = [true_estimate(name, lora_rank=16, **about) for name in shapes]
    whole = [true_estimate(name, **about) for name in shapes]
    assert needed(small, "resident") < 0.9 * 24 * 2**30 < min(each.peak for each in whole)
    assert needed(small, "swap") < needed(small, "resident")
    for each in small:  # the base stays, adapters and moments are what moves
        assert each.stays > 10 * (each.at_rest - each.stays)


def test_sampling_counts_where_it_is_larger_and_placements_add_up(make_policy):
    policy = make_policy(group_size=4, max_new_tokens=10, micro_batch=30)
    one, many = (
        estimate(policy, RunConfig([policy.config], prompts_per_step=n, eval_samples=1), 20)
        for n in (2, 20_000)
    )
    shape, rows = policy.model.config, 20_000 * 4
    kv_cache = rows * 30 * 2 * 4 * 2 * 32 * 4  # tokens, k and v, layers, KV heads, size, bytes
    assert many.turn == kv_cache + rows * shape.vocab_size * 22 > one.turn
    twice = RunConfig([policy.config], prompts_per_step=20_000, eval_samples=1)
    assert estimate(policy, twice, 20, rollout_factor=2).turn == 2 * many.turn  # solo-x2
    parameters = sum(p.numel() for p in policy.model.parameters())
    assert one.at_rest == many.at_rest == (4 + 8) * parameters  # weights, two moments of AdamW
    assert needed([one, many], "swap") == many.peak
    assert needed([one, many], "resident") == many.peak + one.at_rest


def test_these_tests_see_no_gpu_and_the_allocator_is_set(monkeypatch):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # a plan for every shape; NaN at some
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr="gpu")))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_plan_follows_the_memory_that_is_free(make_policy, monkeypatch):
    policy = make_policy()
    estimates = [estimate(policy, RunConfig([policy.config]), 20)] * 2
    both, one = needed(estimates, "resident"), needed(estimates, "swap")
    assert one < both

    def plan(free):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
        return choose_placement(estimates, "auto", "cuda:0")

    assert plan(2 * both)[0] == "resident"
    placement, sentence = plan(1.1 * both)  # only nine tenths of what is free are planned for
    assert placement == "swap"
    assert "may not fit" not in sentence
    most = 2 * sum(each.at_rest for each in estimates) / 2**30  # a pinned tensor may take twice
    assert sentence.endswith(f"; those that wait take up to {most:.1f} GiB of host memory.")
    assert "lower micro_batch" in plan(one)[1]
    assert choose_placement(estimates, "auto", "cpu")[0] == "resident"
    assert choose_placement(estimates, "swap", "cpu") == (
        "swap",
        f"Placement swap: {one / 2**30:.1f} GiB of tensors at the peak "
        f"(qwen-tiny {one / 2**30:.1f}, qwen-tiny {one / 2**30:.1f} alone).",
    )


def test_the_peak_counts_bytes_of_the_whole_process():
    before = peak_memory("cpu")
    size = before + 50 * 2**20  # more than all that earlier tests of this process ever held
    held = bytearray(size)  # untouched zeros may take no memory
    held[::4096] = b"x" * len(held[::4096])
    assert 10 * 2**20 < before < size <= peak_memory("cpu") < before + size + 100 * 2**20
