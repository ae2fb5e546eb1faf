import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mrl.cli import command_line
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models import loading, memory_estimate
from mrl.models.lora import add_adapters, new_adapters
from mrl.models.memory_estimate import (
    Size,
    choose_placement,
    free_in_container,
    free_memory,
    needed,
    peak_memory,
    size_of,
)
from mrl.run.run import Run
from mrl.run.view import make_view
from mrl.samples import TrainingSample
from mrl.settings.read import run_config
from tests.conftest import pytest_configure
from tests.sentences import names_it

CPU = torch.device("cpu")
SHAPES = {
    "qwen2.5": ("qwen", 896, 4864, 24, 151936, 14, 2),
    "smollm2": ("llama", 960, 2560, 32, 49152, 15, 5),
    "qwen2.5-1.5b": ("qwen", 1536, 8960, 28, 151936, 12, 2),
    "llama-3.2-1b": ("llama", 2048, 8192, 16, 128256, 32, 8),
}


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


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, {"frozen": True}, {"kl_coef": 0.1}], ids=str
)
def test_what_is_counted_is_what_a_policy_has_after_an_update(make_policy, dtype, settings):
    policy = make_policy(dtype=dtype, learning_rate=1e-4, **settings)
    tensors = list(policy.model.parameters())
    moved = [parameter for parameter in tensors if parameter.requires_grad]
    if not policy.config.frozen:
        learn(policy, [TrainingSample([2], [3, 4], loss="imitation")])
        moved += [value for state in policy.optimizer.state.values() for value in state.values()
                  if value.dim()]  # fmt: skip
    if policy.config.kl_coef:
        moved += policy.reference.parameters()
    got = size_of(policy.config, CPU)
    if policy.config.frozen:
        assert got == (0, sum(p.nbytes for p in tensors), 0)
    else:
        fixed = sum(p.nbytes for p in tensors if not p.requires_grad)
        learnt = sum(p.nbytes for p in tensors if p.requires_grad)
        assert got == (fixed, sum(tensor.nbytes for tensor in moved), learnt)


def test_placements_add_up_what_is_there_at_the_same_time():
    sizes = [Size(stays=100, moves=30, gradients=10), Size(stays=0, moves=60, gradients=20)]
    assert needed(sizes, "resident") == 100 + 30 + 60 + 20
    assert needed(sizes, "swap") == 100 + 60 + 20
    assert needed(sizes, "parallel") == 100 + 30 + 10 + 60 + 20


def true_shape(config):
    """A model at its true shape, without its weights; in the place of `shape_of`."""
    with torch.device("meta"):
        model = model_of(*SHAPES[config.name])
        if config.lora_rank:
            add_adapters(model, new_adapters(config.lora_rank))
    return model


@pytest.fixture
def card(monkeypatch):
    """A function that chooses the placement of two models for a device with so many GiB free."""
    monkeypatch.setattr(memory_estimate, "shape_of", true_shape)
    monkeypatch.setattr(memory_estimate, "uses_bfloat16", lambda dtype, device: True)

    def plan(free, device="cuda:0", placement="auto", mine=None, pair=("qwen2.5", "smollm2"), **of):
        monkeypatch.setattr(
            "mrl.models.memory_estimate.free_memory", {device: int(free * 2**30)}.get
        )
        config = RunConfig([PolicyConfig(name, "x", **of) for name in pair], placement=placement)
        chosen, sentence = choose_placement(config, mine or pair, device)
        return SimpleNamespace(placement=chosen, sentence=sentence)

    return plan


def test_the_real_pair_is_resident_in_24_gigabytes_and_swaps_in_12(card):
    assert card(23.2).placement == "resident"
    assert card(11.8).placement == "swap"
    assert card(11.8, placement="resident").placement == "resident"  # a person may try it


def test_with_lora_larger_models_stay_in_24_gigabytes(card):
    pair = ("qwen2.5-1.5b", "llama-3.2-1b")
    assert card(23.2, pair=pair, lora_rank=16).placement == "resident"
    with pytest.raises(MrlError):
        card(22.0, pair=pair)


@pytest.mark.parametrize(
    ("free", "device", "placement"),
    [(7.3, "cuda:0", "auto"), (11.3, "cuda:0", "resident"), (11.3, "cpu", "auto")],
)
def test_a_run_that_cannot_fit_is_refused(card, free, device, placement):
    with pytest.raises(MrlError) as refused:
        card(free, device, placement)
    assert names_it(str(refused.value), f"{free} {device} lora_rank")
    assert card(11.5, device, placement).placement in ("resident", "swap")


def test_processes_are_counted_together_unless_each_has_a_card(card, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert names_it(card(23.2, mine=["qwen2.5"]).sentence, "parallel 12.8 23.2")
    with pytest.raises(MrlError):
        card(12.0, mine=["qwen2.5"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert names_it(card(12.0, mine=["qwen2.5"]).sentence, "parallel 7.36 12 cuda:0")


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux says what is available")
def test_the_memory_that_can_be_had_is_known(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 24) * (device == "cuda:1"))
    assert free_memory("cuda:1") == 5
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**28 < free_memory("cpu") < whole
    monkeypatch.setattr(memory_estimate, "free_in_container", lambda: 12345)
    assert free_memory("cpu") == 12345


@pytest.mark.parametrize("version", [0, 1])
def test_the_containers_limit_counts(monkeypatch, tmp_path, version):
    names = list(memory_estimate.CGROUPS.values())[version]
    monkeypatch.setattr(memory_estimate, "CGROUPS", {tmp_path: names, tmp_path / "none": names})
    assert free_in_container() == sys.maxsize
    limit, used = (tmp_path / name for name in names)
    used.write_text("700\n")
    stat = "inactive_file 100\nactive_file 50\ntotal_inactive_file 9\nanon 550\n"
    (tmp_path / "memory.stat").write_text(stat)
    limit.write_text("1000\n")
    assert free_in_container() == 1000 - 700 + 150
    limit.write_text("max\n")
    assert free_in_container() == sys.maxsize


def test_a_run_that_does_not_fit_loads_no_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_estimate, "free_memory", lambda device: 2**10)
    monkeypatch.setattr(loading, "load_policies", lambda *about: pytest.fail("loaded"))
    config = run_config("tiny", None, {"placement": "resident"}, [f"runs={tmp_path}"])
    with pytest.raises(MrlError, match="cannot fit"):
        Run(config, make_view(Console(quiet=True), config, plain=True))
    assert not list(tmp_path.iterdir())


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
