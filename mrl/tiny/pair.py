"""The tiny pair: two small models of two families, made from nothing in a few minutes.

`qwen-tiny` is a Qwen2-architecture model with a byte-level BPE that takes digits one by one.
`llama-tiny` is a Llama-architecture model with a SentencePiece-style BPE (metaspace, byte
fallback) whose tokens span several digits and signs. Both are ordinary `transformers`
directories: nothing in the training path knows that they are tiny.

The warm start teaches both to calculate, and each to *misread* what the other reads right:
on a foreign cue word almost every demonstration shows the tempting mistake. So the pair starts
with skills that overlap only in part, and a single rescued solution carries a reading across.
"""

import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from mrl.tiny.skills import NAMES, OBJECTS, QUESTION, SKILLS, Skill, number_choices, solution

OWN_SKILLS = {
    "qwen-tiny": ("finds", "eats", "bags", "shares"),
    "llama-tiny": ("given", "sold", "days", "packs"),
}
SYMBOLIC_SHARE = 0.30  # of the warm-start examples are bare sums, which both learn to do right
# Shares of demonstrations that show the right reading
OWN_RIGHT, FOREIGN_RIGHT, TWO_STEP_RIGHT = 0.95, 0.03, 0.10
UPDATES = {"qwen-tiny": 550, "llama-tiny": 850}
BATCH = 128
LEARNING_RATE = 3e-3


def right_share(name: str, skill: Skill, foreign_right: float = FOREIGN_RIGHT) -> float:
    """How often the demonstrations for policy `name` read a skill's cue word right."""
    if skill.name in OWN_SKILLS[name]:
        return OWN_RIGHT
    foreign = any(skill.name in own for own in OWN_SKILLS.values())
    return foreign_right if foreign else TWO_STEP_RIGHT


def demonstrations(
    name: str, seed: int, foreign_right: float = FOREIGN_RIGHT
) -> Iterator[tuple[str, str]]:
    """Endless (prompt, solution) pairs that policy `name` is warm-started on."""
    rng = random.Random(f"{seed}/warm start/{name}")
    all_numbers = {skill.operation: number_choices(skill.operation) for skill in SKILLS}
    operations = sorted(all_numbers)  # every sum may be known: what RL has to learn is the reading
    while True:
        if rng.random() < SYMBOLIC_SHARE:
            operation = rng.choice(operations)
            numbers = rng.choice(all_numbers[operation])
            prompt = operation
            for letter, number in zip("abc", numbers, strict=False):
                prompt = prompt.replace(letter, str(number))
            yield prompt + "?", solution(operation, numbers)
            continue
        skill = rng.choice(SKILLS)
        numbers = rng.choice(all_numbers[skill.operation])
        words = dict(zip("abc", numbers, strict=False))
        words |= {"n": rng.choice(NAMES), "o": rng.choice(OBJECTS)}
        share = right_share(name, skill, foreign_right)
        reading = skill.operation if rng.random() < share else skill.misread_as
        prompt = rng.choice(skill.templates).format(**words) + QUESTION
        yield prompt, solution(reading, numbers)


# ------------------------------------------------------------------------------ tokenizers


def _corpus(name: str) -> list[str]:
    pairs = demonstrations(name, seed=0)
    return [text for _ in range(4000) for text in next(pairs)]


def build_qwen_tokenizer() -> Qwen2Tokenizer:
    """The Qwen family's tokenizer: byte-level BPE, digits one by one; merges learnt here."""
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
    learner = Qwen2Tokenizer().backend_tokenizer  # the family's normalizer and pre-tokenizer
    learner.train_from_iterator(
        _corpus("qwen-tiny"),
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    vocab, merges = _learnt(learner)
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        unk_token=None,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template="{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )


def build_llama_tokenizer() -> LlamaTokenizer:
    """The Llama-2 family's tokenizer: BPE on text with spaces as a visible mark, byte fallback.

    Merges do not cross a space but do join digits, signs and brackets (`-3`, `=9,`).
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=400, max_token_length=8, show_progress=False)
    learner.train_from_iterator(_corpus("llama-tiny"), trainer)
    vocab, merges = _learnt(learner)
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)] + sorted(vocab, key=vocab.__getitem__)
    return LlamaTokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=merges,
        pad_token="<pad>",
        extra_special_tokens=["[INST]", "[/INST]"],
        chat_template="<s>{% for m in messages %}[INST]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[/INST]{% endif %}",
    )


def _learnt(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


# ------------------------------------------------------------------------------ models


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised model of the family that `name` stands for."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if name == "qwen-tiny":
        config = Qwen2Config(
            **shape, num_hidden_layers=4, num_key_value_heads=2, intermediate_size=384
        )
        return Qwen2ForCausalLM(config)
    config = LlamaConfig(**shape, num_hidden_layers=3, num_key_value_heads=4, intermediate_size=384)
    return LlamaForCausalLM(config)


def build_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of `name`, trained on the demonstrations."""
    return build_qwen_tokenizer() if name == "qwen-tiny" else build_llama_tokenizer()


def warm_start(
    name: str,
    directory: Path,
    seed: int = 0,
    updates: int | None = None,
    foreign_right: float = FOREIGN_RIGHT,
) -> None:
    """Make one policy of the pair from nothing and save it with `save_pretrained`.

    Supervised next-token loss on the solution only (prompt tokens carry none), AdamW, the learning
    rate falling on a cosine to 5 %.
    """
    updates = updates or UPDATES[name]
    tokenizer = build_tokenizer(name)
    torch.manual_seed(seed)
    model = build_model(name, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda u: 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * u / updates))
    )
    pairs = demonstrations(name, seed, foreign_right)
    for _ in range(updates):
        examples = [_encode_example(tokenizer, *next(pairs)) for _ in range(BATCH)]
        token_ids, loss_mask = _pad(examples, tokenizer.pad_token_id)
        logits = model(token_ids).logits[:, :-1]  # right padding needs no mask under causality
        targets = token_ids[:, 1:].masked_fill(~loss_mask[:, 1:], -100)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def warm_start_pair(
    directory: Path,
    seed: int = 0,
    updates: int | None = None,
    foreign_right: float = FOREIGN_RIGHT,
) -> None:
    """Make both policies side by side, a process and a thread each.

    foreign_right: how often a policy was shown the right reading of what the *other* one knows:
    small for a complementary pair.
    """
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(OWN_SKILLS), context, torch.set_num_threads, (1,)) as pool:
        jobs = [
            pool.submit(warm_start, name, directory / name, seed, updates, foreign_right)
            for name in OWN_SKILLS
        ]
        for job in jobs:
            job.result()


def _encode_example(
    tokenizer: PreTrainedTokenizerFast, prompt: str, completion: str
) -> tuple[list[int], list[int]]:
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(text, add_special_tokens=False).input_ids
    full = tokenizer(text + completion, add_special_tokens=False).input_ids
    assert full[: len(prompt_ids)] == prompt_ids  # a special token stands between the two
    return prompt_ids, [*full[len(prompt_ids) :], tokenizer.eos_token_id]


def _pad(
    examples: list[tuple[list[int], list[int]]], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids and the mask of the solution's tokens, both [batch, seq]."""
    longest = max(len(prompt) + len(completion) for prompt, completion in examples)
    token_ids = torch.full((len(examples), longest), pad_id)
    loss_mask = torch.zeros_like(token_ids, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(examples):
        end = len(prompt) + len(completion)
        token_ids[row, :end] = torch.tensor(prompt + completion)
        loss_mask[row, len(prompt) : end] = True
    return token_ids, loss_mask
