import gc
import json
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mrl.cli import command_line
from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models import loading
from mrl.models.loading import _enable_gradient_checkpointing, shape_of
from mrl.models.lora import add_adapters, new_adapters
from mrl.models.memory import (
    HEADROOM,
    estimate,
    free_in_container,
    free_memory,
    needed,
    peak_memory,
    plan_memory,
    problems_at_once,
)
from mrl.policy import Policy
from mrl.run.run import Run
from mrl.run.view import make_view
from mrl.samples import Problem, TrainingSample
from mrl.settings.settings import complete, load_config, run_config
from tests.conftest import pytest_configure
from tests.sentences import names_it

CPU = torch.device("cpu")


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
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "gradient_checkpointing": True}),
        (("llama", 160, 480, 8, 2000), {"dtype": "mixed"}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "float32", "lora_rank": 4}),
        (("qwen", 128, 640, 6, 4000), {"dtype": "mixed", "lora_rank": 4}),
        (
            ("qwen", 128, 640, 6, 4000),
            {"dtype": "mixed", "lora_rank": 4, "gradient_checkpointing": True},
        ),
    ],
)
def test_the_estimate_is_what_a_learning_turn_needs(make_policy, shape, settings):
    model = model_of(*shape)
    if settings.get("gradient_checkpointing"):
        _enable_gradient_checkpointing(model)
    about = {
        "learning_rate": 1e-4,
        "max_new_tokens": 60,
        "group_size": 8,
        "max_tokens_per_forward": 1100,
    }
    about |= settings
    if about.get("lora_rank"):
        add_adapters(model, new_adapters(about["lora_rank"]))
        for parameter in model.parameters():
            if about["dtype"] == "mixed" and not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    policy = Policy(PolicyConfig("x", "x", **about), model, make_policy().tokenizer)
    samples = [
        TrainingSample([2] * 49 + [3 + prompt], [5] * 60, advantage=(-1.0) ** n,
                       behavior_logprobs=[-1.0] * 60)
        for prompt in range(2) for n in range(8)
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
    got = estimate(policy.model, policy.config, 48, 110, CPU)
    assert got.stays + got.moves == pytest.approx(at_rest, rel=0.01)
    # too much is the safe side: rows that are filled with short prompts need less
    assert 0.75 * tracker.peak < got.peak < 1.4 * tracker.peak


def test_a_frozen_policy_needs_its_weights_and_what_sampling_takes(make_policy):
    learner, teacher = make_policy(), make_policy(frozen=True)
    learning, sampling = (
        estimate(policy.model, policy.config, 128, 100, CPU) for policy in (learner, teacher)
    )
    assert learning.moves == 3 * sampling.moves
    assert sampling.turn < learning.turn


def test_a_frozen_policy_is_kept_in_the_dtype_that_it_is_used_in(make_policy):
    """Float32 weights were twice the memory, and autocast copied them for every token."""
    for dtype, want in (("mixed", torch.bfloat16), ("float32", torch.float32)):
        policy = make_policy(frozen=True, dtype=dtype)
        assert {p.dtype for p in policy.model.parameters()} == {want}
        got = estimate(shape_of(policy.config), policy.config, 128, 100, CPU)
        assert got.moves == sum(p.nbytes for p in policy.model.parameters())


MEASURED = json.loads((DATA / "results" / "gpu.json").read_text(encoding="utf-8"))
SHAPES = {
    "qwen2.5": ("qwen", 896, 4864, 24, 151936, 14, 2),
    "smollm2": ("llama", 960, 2560, 32, 49152, 15, 5),
}
# GiB at the peak of a learning step with fake tensors on a pretended CUDA device: prompts of 150
SIMULATED = [  # tokens, with eight completions of 400 each
    ("qwen2.5", 21.09, {"max_tokens_per_forward": 8192}),
    ("qwen2.5", 21.66, {"max_tokens_per_forward": 8192}),  # completions of 50 to 400
    ("qwen2.5", 15.83, {}), ("qwen2.5", 16.73, {}),
    ("qwen2.5", 13.31, {"max_tokens_per_forward": 2048}),
    ("qwen2.5", 10.99, {"max_tokens_per_forward": 8192, "gradient_checkpointing": True}),
    ("qwen2.5", 18.21, {"dtype": "float32"}),
    ("smollm2", 17.57, {"max_tokens_per_forward": 8192}),
    ("smollm2", 18.14, {"max_tokens_per_forward": 8192}),
    ("smollm2", 12.19, {}), ("smollm2", 13.11, {}),
    ("smollm2", 9.61, {"max_tokens_per_forward": 2048}),
    ("smollm2", 7.64, {"max_tokens_per_forward": 8192, "gradient_checkpointing": True}),
    ("smollm2", 14.15, {"dtype": "float32"}),
]  # fmt: skip


def true_shape(config):
    """A model at its true shape, without its weights; in the place of `shape_of`."""
    with torch.device("meta"):
        model = model_of(*SHAPES[config.name])
        if config.lora_rank:
            add_adapters(model, new_adapters(config.lora_rank))
    return model


def true_estimate(name, rows=128, **settings):
    config = PolicyConfig(name, "x", **{"dtype": "mixed", **settings})
    return estimate(true_shape(config), config, rows, 150 + config.max_new_tokens, CPU)


@pytest.mark.parametrize(("name", "peak", "settings"), SIMULATED)
def test_the_estimate_at_the_true_shapes_is_that_of_a_simulation(name, peak, settings):
    settings = {"max_tokens_per_forward": 4096, "max_new_tokens": 400} | settings
    assert true_estimate(name, **settings).peak / 2**30 == pytest.approx(peak, rel=0.25)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_within_a_quarter_of_what_an_h100_measured(name, checkpointing):
    tokens = 8192 if checkpointing else 4096
    about = {"gradient_checkpointing": checkpointing, "max_tokens_per_forward": tokens}
    measured = MEASURED[f"memory-{name}" + checkpointing * "-checkpointing"]["figures"]["peak"]
    got = true_estimate(name, max_new_tokens=400, **about)
    assert got.peak / 2**30 == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("placement", ["resident", "swap"])
def test_so_is_that_of_the_pair(placement):
    about = {"max_new_tokens": 400, "max_tokens_per_forward": 4096}
    both = [true_estimate(name, **about) for name in ("qwen2.5", "smollm2")]
    measured = MEASURED[f"whole-{placement}"]["figures"]["peak"]
    assert needed(both, placement) / 2**30 == pytest.approx(measured, rel=0.25)


@pytest.fixture
def card(monkeypatch):
    """A function that plans the real pair for a card, with GiB that are free there and in the host.

    Prompts of 150 tokens; eight completions of 400.
    """
    problems = [Problem("a", "x" * 270, "1")]
    monkeypatch.setattr("mrl.models.memory.shape_of", true_shape)
    monkeypatch.setattr("mrl.models.memory.uses_bfloat16", lambda dtype, device: True)

    both = ["qwen2.5", "smollm2"]

    def plan(free, host=64.0, device="cuda:0", placement="auto", names=both, **settings):
        bytes_of = {"cpu": int(host * 2**30), device: int(free * 2**30)}
        monkeypatch.setattr("mrl.models.memory.free_memory", bytes_of.get)
        about = {"max_new_tokens": 400, "max_tokens_per_forward": 4096, **settings}
        policies = [PolicyConfig(name, "x", **about) for name in both]
        config = RunConfig(policies, eval_samples=1, placement=placement)
        chosen, sentence = plan_memory(config, names, problems, device, 1)
        return SimpleNamespace(placement=chosen, sentence=sentence)

    return plan


def test_the_real_pair_is_resident_in_24_gigabytes_and_swaps_in_12(card):
    assert card(23.2).placement == "resident"
    small = card(11.8, gradient_checkpointing=True)
    assert small.placement == "swap"
    assert "may not fit" not in small.sentence


def test_a_smaller_micro_batch_lets_both_stay_on_the_device(card):
    """A desktop on a 24 GB card: swap takes host memory, and time in every turn."""
    assert card(21.0, host=12.0).placement == "swap"
    desktop = card(21.0, host=9.0, max_tokens_per_forward=2048)
    assert desktop.placement == "resident"
    assert names_it(desktop.sentence, "resident qwen2.5 smollm2 21 cuda:0")


def test_swap_is_refused_where_the_host_does_not_hold_what_waits(card):
    """It ended in step 1 or 2, by a kill or a traceback, before any checkpoint."""
    swapping = card(19.0, host=16.0)
    assert swapping.placement == "swap"
    assert swapping.sentence.endswith("; 10.5 GiB in host memory.")
    with pytest.raises(MrlError) as refused:
        card(19.0, host=10.0)
    assert names_it(str(refused.value), "swap qwen2.5 smollm2 19 cuda:0 10.5 10.0")
    assert card(40.0, host=1.0).placement == "resident"  # nothing waits there


def test_processes_are_counted_together_but_for_those_with_a_card_each(card, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    shared = card(23.2, names=["qwen2.5"]).sentence
    assert names_it(shared, "parallel qwen2.5 smollm2 23")
    assert "may not fit" in shared
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    sentence = card(23.2, names=["qwen2.5"]).sentence
    assert names_it(sentence, "parallel qwen2.5 23 cuda:0")
    assert "smollm2" not in sentence
    with pytest.raises(MrlError, match=r"20\.0 GiB free.*another placement"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        card(20.0, host=20.0, device="cpu", max_tokens_per_forward=2048, names=["qwen2.5"])


def test_a_run_that_a_cpu_cannot_hold_is_refused_before_weights_are_loaded(card):
    with pytest.raises(MrlError) as refused:
        card(14.0, host=14.0, device="cpu", max_tokens_per_forward=2048)
    assert names_it(str(refused.value), "resident qwen2.5 smollm2 14.0")
    light = card(14.0, host=14.0, device="cpu", max_tokens_per_forward=2048, lora_rank=16)
    assert light.placement == "resident"
    assert card(20.0, host=20.0, device="cpu", max_tokens_per_forward=2048).placement == "resident"
    with pytest.raises(MrlError, match="in host memory"):  # it holds both
        card(20.0, host=20.0, device="cpu", max_tokens_per_forward=2048, placement="swap")


def test_a_gpu_that_cannot_hold_the_weights_is_refused_before_they_are_loaded(card):
    """A smaller micro-batch cannot help there, so a warning would only cost minutes."""
    with pytest.raises(MrlError) as refused:
        card(5.0)
    assert names_it(str(refused.value), "5 cuda:0")
    assert "may not fit" in card(8.0).sentence


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux says what is available")
def test_the_memory_that_can_be_had_is_known(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 24) * (device == "cuda:1"))
    assert free_memory("cuda:1") == 5
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**28 < free_memory("cpu") < whole


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seen_from", ["host", "container"])
def test_the_containers_limit_counts(monkeypatch, tmp_path, version, seen_from):
    limit, used = "memory.max", "memory.current"
    tree, line = tmp_path / "fs", "0::"
    if version == 1:
        limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        tree, line = tree / "memory", "4:memory:"
    groups = tmp_path / "cgroup"
    groups.write_text(f"1:cpu:/other\n{line}/docker/box\n")

    def limited(folder, bytes_allowed):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{bytes_allowed}\n")
        (folder / used).write_text("700\n")
        stat = "inactive_file 100\nactive_file 50\ntotal_inactive_file 9\nanon 550\n"
        (folder / "memory.stat").write_text(stat)

    # in a container's own view the group's files are at the top, whatever its path says
    limited(tree / "docker" / "box" if seen_from == "host" else tree, 1000)
    if seen_from == "host":
        limited(tree, "max" if version == 2 else 2**63 - 4096)
    assert free_in_container(groups, tmp_path / "fs") == 1000 - 700 + 150
    if seen_from == "host":
        limited(tree / "docker", 600)  # all containers together: nothing is left
        assert free_in_container(groups, tmp_path / "fs") == 50
    assert free_in_container(tmp_path / "none", tmp_path) == sys.maxsize

    monkeypatch.setattr("mrl.models.memory.free_in_container", lambda: 12345)
    assert free_memory("cpu") == 12345


def test_a_run_that_does_not_fit_loads_no_weights(monkeypatch, tmp_path):
    monkeypatch.setattr("mrl.models.memory.free_memory", lambda device: 2**20)
    monkeypatch.setattr("mrl.models.loading.load_policies", lambda *about: pytest.fail("loaded"))
    config = run_config("tiny", None, {"placement": "resident"}, [f"runs={tmp_path}"])
    with pytest.raises(MrlError, match=r"0\.0 GiB free.* or smaller models\.$"):
        Run(config, make_view(Console(quiet=True), config, plain=True))
    assert not list(tmp_path.iterdir())


def test_the_setting_for_a_t4_is_within_its_memory():
    """14.7 GiB of it can be had, and a plan fills nine tenths of that."""
    path = DATA / "examples" / "t4.toml"
    config = complete(load_config(path))
    rows = problems_at_once(torch.device("cuda"), config.eval_samples) * config.eval_samples
    names = ("dtype", "max_new_tokens", "max_tokens_per_forward")
    estimates = []
    for policy in config.policies:
        settings = {name: getattr(policy, name) for name in names}
        estimates.append(true_estimate(policy.name, rows, **settings))
    assert needed(estimates, "swap") < HEADROOM * 14.7 * 2**30
    assert f"expects is {needed(estimates, 'swap') / 2**30:.1f} GiB" in path.read_text()
    about = {"max_tokens_per_forward": 1024, "dtype": "float32", "max_new_tokens": 400}
    longer = true_estimate("smollm2", rows, **about)
    assert longer.peak > HEADROOM * 14.7 * 2**30  # as its comment says


def test_with_lora_a_pair_of_1500_and_1000_million_fits_24_gigabytes():
    """Qwen2.5-1.5B and Llama-3.2-1B with a bfloat16 base; without LoRA neither fits alone."""
    shapes = {
        "qwen2.5-1.5b": ("qwen", 1536, 8960, 28, 151936, 12, 2),
        "llama-3.2-1b": ("llama", 2048, 8192, 16, 128256, 32, 8),
    }
    SHAPES.update(shapes)
    about = {"max_tokens_per_forward": 4096, "max_new_tokens": 400}
    small = [true_estimate(name, lora_rank=16, **about) for name in shapes]
    whole = [true_estimate(name, **about) for name in shapes]
    assert needed(small, "resident") < 0.9 * 24 * 2**30 < min(each.peak for each in whole)
    assert needed(small, "swap") < needed(small, "resident")
    for each in small:  # the base stays, adapters and moments are what moves
        assert each.stays > 10 * each.moves


def test_sampling_counts_where_it_is_larger_and_placements_add_up(make_policy):
    policy = make_policy(group_size=4, max_new_tokens=10, max_tokens_per_forward=30)
    few, many, twice = (
        estimate(policy.model, policy.config, rows, 30, CPU) for rows in (8, 80_000, 160_000)
    )
    kv_cache = 30 * 2 * 2 * 2 * 32 * 4  # tokens, k and v, layers, KV heads, size, bytes
    assert many.turn > 80_000 * kv_cache
    assert twice.turn == 2 * many.turn
    assert few.turn < many.turn
    parameters = sum(p.numel() for p in policy.model.parameters())
    assert few.moves == many.moves == (4 + 8) * parameters  # weights, two moments of AdamW
    assert needed([few, many], "swap") == many.peak
    assert needed([few, many], "resident") == many.peak + few.moves
    assert needed([few, many], "parallel") == many.peak + few.peak


def test_these_tests_see_no_gpu_and_the_allocator_is_set_but_where_a_person_did(monkeypatch):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    for before, after in ((None, "True"), ("False", "False")):
        monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
        if before:
            monkeypatch.setenv("PYTORCH_ALLOC_CONF", f"expandable_segments:{before}")
        assert command_line.run_command(["--version"]) == (0, "")
        assert os.environ["PYTORCH_ALLOC_CONF"] == f"expandable_segments:{after}"
    loading.claim_process()
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # a plan for every shape; NaN at some
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr="gpu", dist="load")))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_peak_counts_bytes_of_the_whole_process():
    before = peak_memory("cpu")
    size = before + 50 * 2**20  # more than all that earlier tests of this process ever held
    held = bytearray(size)  # untouched zeros may take no memory
    held[::4096] = b"x" * len(held[::4096])
    assert 10 * 2**20 < before < size <= peak_memory("cpu") < before + size + 100 * 2**20
