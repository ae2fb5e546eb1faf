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
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from mrl.tiny.skills import NUMBERS, QUESTION, SKILLS, draw_words, solution

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
CHAT = (  # no system message in the warm start, so a problem set's own must not reach them later
    "{% for m in messages if m['role'] != 'system' %}USER{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT{% endif %}"
)


def demonstrations(
    name: str, seed: int, foreign_right: float = FOREIGN_RIGHT
) -> Iterator[tuple[str, str]]:
    """Endless (prompt, solution) pairs that policy `name` is warm-started on."""
    rng = random.Random(f"{seed}/warm start/{name}")
    operations = sorted(NUMBERS)  # every sum may be known: what RL has to learn is the reading
    right = dict.fromkeys((skill.name for skill in SKILLS), foreign_right)
    right |= dict.fromkeys(OWN_SKILLS[name], OWN_RIGHT) | {"loses": TWO_STEP_RIGHT}
    while True:
        if rng.random() < SYMBOLIC_SHARE:
            operation = rng.choice(operations)
            numbers = rng.choice(NUMBERS[operation])
            number_of = dict(zip("abc", map(str, numbers), strict=False))
            yield operation.translate(str.maketrans(number_of)) + "?", solution(operation, numbers)
            continue
        skill = rng.choice(SKILLS)
        numbers = rng.choice(NUMBERS[skill.operation])
        words = draw_words(numbers, rng)
        reading = skill.operation if rng.random() < right[skill.name] else skill.misread_as
        yield rng.choice(skill.templates).format(**words) + QUESTION, solution(reading, numbers)


def build_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of `name`, of its family, with merges learnt from the demonstrations.

    qwen-tiny: byte-level BPE, digits one by one. llama-tiny: as Llama 2, BPE on text with spaces as
    a visible mark, byte fallback; its merges do not cross a space but do join digits, signs and
    brackets (`-3`, `=9,`).
    """
    if name == "qwen-tiny":
        end, user, assistant, pad = specials = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
        vocab, merges = _learn_merges(
            name,
            Qwen2Tokenizer().backend_tokenizer,  # the family's normalizer and pre-tokenizer
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        return Qwen2Tokenizer(
            vocab, merges, unk_token=None, eos_token=end, pad_token=pad,
            extra_special_tokens=[user, assistant],
            chat_template=CHAT.replace("USER", user).replace("ASSISTANT", assistant),
        )  # fmt: skip
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    vocab, merges = _learn_merges(name, learner, max_token_length=8)
    tokens = ["<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]"]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)] + sorted(vocab, key=vocab.get)
    return LlamaTokenizer(
        {token: index for index, token in enumerate(tokens)},
        merges,
        pad_token="<pad>",
        extra_special_tokens=["[INST]", "[/INST]"],
        chat_template="<s>" + CHAT.replace("USER", "[INST]").replace("ASSISTANT", "[/INST]"),
    )


def _learn_merges(
    name: str, learner: Tokenizer, **options: object
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a BPE with 400 tokens, from 4,000 demonstrations for `name`."""
    pairs = demonstrations(name, seed=0)
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **options)
    learner.train_from_iterator([text for _ in range(4000) for text in next(pairs)], trainer)
    learnt = json.loads(learner.to_str())["model"]
    return learnt["vocab"], [tuple(merge) for merge in learnt["merges"]]


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised model of the family that `name` stands for."""
    family, layers, kv_heads = {"qwen-tiny": ("qwen2", 4, 2), "llama-tiny": ("llama", 3, 4)}[name]
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=kv_heads, intermediate_size=384,
        max_position_embeddings=256, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def encode_example(
    tokenizer: PreTrainedTokenizerFast, prompt: str, completion: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of both with the end token, and labels: -100 on the prompt. [seq] int64 each."""
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    # nothing merges across their edge: a special token stands there
    prompt_ids, token_ids = (
        tokenizer(part, add_special_tokens=False, return_tensors="pt").input_ids[0]
        for part in (text, text + completion + tokenizer.eos_token)
    )
    labels = token_ids.clone()
    labels[: len(prompt_ids)] = -100
    return token_ids, labels


def _warm_start(
    index: int, directory: Path, seed: int, updates: int | None, foreign_right: float
) -> None:
    """Make one policy of the pair from nothing and save it with `save_pretrained`.

    Supervised next-token loss on the solution only (prompt tokens carry none), AdamW, the learning
    rate falling on a cosine to 5 %.
    """
    torch.set_num_threads(1)  # the other policy has the other core
    name = list(OWN_SKILLS)[index]
    updates = updates or UPDATES[name]
    tokenizer = build_tokenizer(name)
    torch.manual_seed(seed)
    model = build_model(name, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates, 0.05 * LEARNING_RATE)
    pairs = demonstrations(name, seed, foreign_right)
    for _ in range(updates):
        examples = (encode_example(tokenizer, *next(pairs)) for _ in range(BATCH))
        token_ids, labels = zip(*examples, strict=True)
        loss = model(  # right padding needs no mask under causality
            pad_sequence(token_ids, True, tokenizer.pad_token_id),  # [batch, seq]
            labels=pad_sequence(labels, True, -100),
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    for part in (model, tokenizer):
        part.save_pretrained(directory / name)


def warm_start_pair(
    directory: Path, seed: int = 0, updates: int | None = None, foreign_right: float = FOREIGN_RIGHT
) -> None:
    """Make both policies side by side, a process and a thread each.

    foreign_right: how often a policy was shown the right reading of what the *other* one knows:
    small for a complementary pair.
    """
    arguments = (directory, seed, updates, foreign_right)
    torch.multiprocessing.spawn(_warm_start, arguments, nprocs=len(OWN_SKILLS))
