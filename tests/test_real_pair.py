"""The path of the real pair: its configurations, shrunk, tokenizers of its kind, chat templates."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from tokenizers import pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

import mini_mrl
from mrl.config import PolicyConfig, RunConfig
from mrl.learning import learn
from mrl.models.loading import load_policy
from mrl.run.launch import cores
from mrl.run.problems import save_problems
from mrl.samples import TrainingSample
from mrl.settings import pairs
from mrl.settings.pairs import choose_pair
from mrl.settings.read import run_config
from mrl.tiny.skills import SKILLS, generate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def chat_tokenizer(vocab_size, texts, **special):
    learner = Qwen2Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=learner, chat_template=CHATML, extra_special_tokens=["<|im_start|>"],
        **special,
    )  # fmt: skip


@pytest.fixture(scope="session")
def chat_pair(tmp_path_factory):
    """Qwen2.5-0.5B-Instruct and SmolLM2-360M-Instruct in small, with random weights."""
    directory = tmp_path_factory.mktemp("chat")
    texts = [problem.prompt for skill in SKILLS for problem, _ in generate(skill, "train", 20, 0)]
    qwen_words = chat_tokenizer(500, texts, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    # SmolLM2-Instruct: padding and end are the same token
    smol_words = chat_tokenizer(380, texts[::3], eos_token="<|im_end|>", pad_token="<|im_end|>")
    torch.manual_seed(0)
    qwen = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(qwen_words) + 27,  # the real one has rows without a token, too
            hidden_size=112, intermediate_size=304, num_hidden_layers=3, num_attention_heads=14,
            num_key_value_heads=2, max_position_embeddings=512, rope_theta=1e6, rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        )
    )  # fmt: skip
    smol = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(smol_words), hidden_size=120, intermediate_size=320,
            num_hidden_layers=4, num_attention_heads=15, num_key_value_heads=5,
            max_position_embeddings=512, rope_theta=1e5, tie_word_embeddings=True,
            pad_token_id=2, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    qwen.generation_config = GenerationConfig(eos_token_id=[2, 0], pad_token_id=0, do_sample=True)
    for name, model, tokenizer in (("qwen", qwen, qwen_words), ("smol", smol, smol_words)):
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    return directory


@pytest.fixture
def make_chat(chat_pair):
    def make(name, **settings):
        return load_policy(PolicyConfig(name, str(chat_pair / name), max_new_tokens=16, **settings))

    return make


def test_every_end_token_of_the_generation_config_ends_and_dead_rows_are_never_written(make_chat):
    qwen, smol = make_chat("qwen"), make_chat("smol")
    assert qwen.eos_ids == [2, 0]  # <|im_end|> first, then <|endoftext|>
    assert smol.eos_ids == [2]
    assert qwen.suppressed[len(qwen.tokenizer) :].all()
    assert not qwen.suppressed[qwen.eos_ids].any()
    assert not smol.suppressed[2]  # its padding token is its end token


@pytest.mark.slow
def test_three_steps_through_the_command_line(chat_pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for part in ("train", "heldout"):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, 2, 0)]
        save_problems(tmp_path / f"{part}.jsonl", made)
    arguments = ["--pair", f"{chat_pair}/qwen,{chat_pair}/smol", "--mode", "prp", "--steps", "3"]
    for setting in ("train=train.jsonl", "heldout=heldout.jsonl", "group_size=3"):
        arguments += ["--set", setting]
    arguments += ["--set", "prompts_per_step=4", "--placement", "resident"]
    assert mini_mrl.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("Training qwen (0.442 M parameters, learning rate 3e-05) and smol")
    text = Path("runs/prp-s0/metrics.jsonl").read_text()
    metrics = [json.loads(line) for line in text.splitlines()]
    assert len(metrics) == 6
    published = [  # random weights write much that is no UTF-8: refused, and counted
        sum(v for k, v in line.items() if k.startswith("exchange/refused/"))
        + line["exchange/published_records"]
        for line in metrics
    ]
    assert published == [12] * 6


@pytest.mark.parametrize("name", ["qwen", "smol"])
@pytest.mark.parametrize("settings", [{"dtype": "mixed"}, {"gradient_checkpointing": True}])
def test_other_precisions_and_checkpointing_learn_nearly_the_same(make_chat, name, settings):
    gradients = []
    for chosen in ({}, settings):
        policy = make_chat(name, max_grad_norm=1e9, **chosen)
        sample = TrainingSample([5, 6, 7], [9, 10, 11, 2], advantage=1.0)
        sample.behavior_logprobs = policy.logprobs_of([sample.prompt_ids], [sample.completion_ids])[
            0
        ]
        kept = []
        policy.optimizer.step = lambda kept=kept, policy=policy: kept.extend(
            p.grad.float().clone() for p in policy.model.parameters()
        )
        learn(policy, [sample])
        gradients.append(torch.cat([g.flatten() for g in kept]))
    cosine = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    assert cosine > (0.99999 if "gradient_checkpointing" in settings else 0.99)
    assert next(policy.model.parameters()).dtype == torch.float32


def test_a_pretrained_pair_has_a_recipe_by_device_and_problems(monkeypatch, tmp_path):
    on_cpu = run_config("qwen-smol", None, {}, [])
    assert [policy.name for policy in on_cpu.policies] == ["qwen2.5", "smollm2"]
    assert all("3+2=5" in policy.system_prompt for policy in on_cpu.policies)
    assert (on_cpu.steps, on_cpu.prompts_per_step, on_cpu.eval_samples) == (60, 8, 1)
    assert [policy.dtype for policy in on_cpu.policies] == ["mixed", "mixed"]
    assert on_cpu.heldout == [pairs.SHORT_HELDOUT]
    assert (on_cpu.placement, on_cpu.threads) == ("resident", min(cores(), 256))
    monkeypatch.setattr("mrl.settings.pairs.cores", lambda: 384)
    assert run_config("qwen-smol", None, {}, []).threads == 256  # the most that the setting takes
    card = SimpleNamespace(total_memory=24 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    short = run_config("qwen-smol", None, {"steps": 7}, [])  # an option wins over the recipe
    assert (short.steps, short.placement, short.threads) == (7, "auto", 1)
    assert short.heldout == [pairs.SHORT_HELDOUT]
    monkeypatch.setattr("mrl.settings.pairs.GSM8K", tmp_path)
    texts = {"train.jsonl": "", "test-264.jsonl": "", "system_prompt.txt": "Reason.\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    on_gpu = run_config("qwen-smol", None, {}, [])
    assert on_gpu.train == str(tmp_path / "train.jsonl")
    assert on_gpu.heldout == [str(tmp_path / "test-264.jsonl")]
    assert [policy.max_new_tokens for policy in on_gpu.policies] == [400, 400]
    assert {policy.max_tokens_per_forward for policy in short.policies} == {1024}
    assert {policy.max_tokens_per_forward for policy in on_gpu.policies} == {4096}
    card.total_memory = 80 * 2**30  # a large card computes more tokens at once
    on_large_gpu = run_config("qwen-smol", None, {}, [])
    assert {policy.max_tokens_per_forward for policy in on_large_gpu.policies} == {16384}
    # the rule's, as for all models: the papers' 1e-6 is for thousands of updates
    assert [policy.learning_rate for policy in on_gpu.policies] == [2e-6, 4e-6]
    assert [policy.system_prompt for policy in on_gpu.policies] == ["Reason.", "Reason."]


def test_directories_are_known_by_their_size(chat_pair, monkeypatch):
    pair = f"{chat_pair}/qwen,{chat_pair}/smol"
    small = run_config(pair, None, {}, [])
    assert (small.steps, small.prompts_per_step) == (RunConfig.steps, RunConfig.prompts_per_step)
    monkeypatch.setattr("mrl.settings.pairs.PRETRAINED_FROM", 1000)
    assert run_config(pair, None, {}, []).steps == 60


def test_without_network_the_real_pair_ends_in_one_sentence(capsys):
    assert mini_mrl.main(["--pair", "qwen-smol"]) == 2
    error = capsys.readouterr().err
    assert not are_progress_bars_disabled()  # the hub's own, while it downloads
    assert len(error.strip().splitlines()) == 1
    assert "gsm8k" in error or "Qwen" in error


@pytest.mark.parametrize("missing", ["nothing", "GPU", "a model", "GSM8K"])
def test_where_no_pair_is_named_it_is_the_tiny_one_unless_all_of_the_real_one_is_here(
    monkeypatch, tmp_path, missing
):
    """Whichever it is, the first sentence says how to get the other one."""
    files = {path: "/cache/model.safetensors" for path in pairs.QWEN_SMOL}
    if missing == "a model":
        del files[pairs.QWEN_SMOL[1]]
    if missing != "GSM8K":
        (tmp_path / "train.jsonl").write_text("")
    look_up = "huggingface_hub.try_to_load_from_cache"
    monkeypatch.setattr(look_up, lambda path, name: files.get(path))
    monkeypatch.setattr(pairs, "GSM8K", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: missing != "GPU")
    name, why = choose_pair()
    assert name == ("qwen-smol" if missing == "nothing" else "tiny")
    assert ("--pair tiny" if name == "qwen-smol" else "--pair qwen-smol") in why
