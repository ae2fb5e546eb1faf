"""The tiny pair: two small models of different families, built from scratch in a few minutes.

`qwen-tiny` has the Qwen2 architecture and a byte-level BPE tokenizer that splits numbers into
digits. `llama-tiny` has the Llama architecture and a SentencePiece-style BPE tokenizer (metaspace,
byte fallback) whose tokens span several digits and signs. Both are ordinary `transformers`
directories, so training treats them like any other model.

The warm start teaches both models to calculate. It also teaches each model to *misread* some cue
words that the other model interprets correctly. There are two kinds of gap, because they are
different problems for reinforcement learning:

- a **weak skill** was shown correctly in 10% of its demonstrations. The model sometimes solves such
  a problem by itself, so RL alone can improve the skill.
- a **blind spot** was never shown correctly. The model's own attempts give nothing to learn from.

The two models also write differently. `qwen-tiny` calculates sums and differences in columns, and
`llama-tiny` in two leaps (skills.py: `columns`, `leaps`), so a peer's solution is not what the
receiver would have written. `warmstart --same-method` builds a pair that writes the same texts, and
`--different-products` one that also differs in products and quotients. These pairs are controls.

Each model has two weak skills and two blind spots. They were chosen by how well RL alone (mode
`solo`) and replay (mode `replay`) learn them. The seeds of that choice are not those of the
results.

`warmstart --third` also builds `olmo-tiny`, for runs of three policies. It has the Olmo2
architecture and the tokenizer of `qwen-tiny`, and it calculates in columns. Its strong skills
are two of each other model's, so `sold` and `bags` are each a blind spot of one policy and a strong
skill of both others.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.multiprocessing.spawn import spawn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from mrl.config import DATA
from mrl.prompts import chat_text, special_id
from mrl.tiny.skills import (
    NUMBERS,
    QUESTION,
    SKILLS,
    Method,
    Skill,
    columns,
    draw_words,
    leaps,
    solution,
)

PAIR = ("qwen-tiny", "llama-tiny")
THIRD = "olmo-tiny"
STRONG_SKILLS = {
    "qwen-tiny": ("finds", "eats", "bags", "shares"),
    "llama-tiny": ("given", "sold", "days", "packs"),
    "olmo-tiny": ("given", "sold", "bags", "shares"),
}
# The peers' other strong skills are divided by how often the model saw them interpreted correctly.
WEAK_SKILLS = {
    "qwen-tiny": ("given", "packs"),
    "llama-tiny": ("finds", "shares"),
    "olmo-tiny": ("finds", "packs"),
}
BLIND_SPOTS = {
    "qwen-tiny": ("sold", "days"),
    "llama-tiny": ("eats", "bags"),
    "olmo-tiny": ("eats", "days"),
}
# Shares of a skill's demonstrations that show the correct interpretation
STRONG_RIGHT, WEAK_RIGHT, BLIND_RIGHT, TWO_STEP_RIGHT = 0.95, 0.10, 0.0, 0.10
SYMBOLIC_SHARE = 0.30  # share of demonstrations that are bare calculations such as 47-38?
UPDATES = {"qwen-tiny": 550, "llama-tiny": 850, "olmo-tiny": 550}  # calculating in columns
UPDATES_IN_LEAPS = 1100  # of llama-tiny: without columns, 42-5=37 has to be known by heart
BATCH = 128
LEARNING_RATE = 3e-3


def right_shares(name: str, foreign_right: float | None = None) -> dict[str, float]:
    """For each skill, the share of demonstrations for policy `name` that show it correctly.

    foreign_right: one share for all four strong skills of the peer. None uses the shares of the
    published pair, which differ for weak skills and blind spots.
    """
    shares = {"loses": TWO_STEP_RIGHT}
    shares |= dict.fromkeys(STRONG_SKILLS[name], STRONG_RIGHT)

    weak_right, blind_right = WEAK_RIGHT, BLIND_RIGHT
    if foreign_right is not None:
        weak_right = blind_right = foreign_right
    shares |= dict.fromkeys(WEAK_SKILLS[name], weak_right)
    shares |= dict.fromkeys(BLIND_SPOTS[name], blind_right)
    return shares


def demonstrations(
    name: str, seed: int, foreign_right: float | None = None, method: Method = columns
) -> Iterator[tuple[str, str]]:
    """An endless stream of (prompt, solution) pairs for the warm start of policy `name`.

    The prompts do not depend on `method`, which says how the solutions are written.
    """
    rng = random.Random(f"{seed}/warm start/{name}")
    right = right_shares(name, foreign_right)
    while True:
        if rng.random() < SYMBOLIC_SHARE:
            prompt, operation, numbers = _bare_sum(rng)
        else:
            prompt, operation, numbers = _word_problem(rng.choice(SKILLS), right, rng)
        yield prompt, solution(operation, numbers, method)


def _bare_sum(rng: random.Random) -> tuple[str, str, tuple[int, ...]]:
    """A calculation without words, such as `47-38?`, its operation and its numbers.

    Even the numbers of held-out problems may occur here: a model may know every calculation before
    training, because what it has to learn is how to interpret the words.
    """
    operation = rng.choice(sorted(NUMBERS))
    numbers = rng.choice(NUMBERS[operation])
    expression = operation
    for letter, number in zip("abc", numbers, strict=False):
        expression = expression.replace(letter, str(number))
    return expression + "?", operation, numbers


def _word_problem(
    skill: Skill, right: dict[str, float], rng: random.Random
) -> tuple[str, str, tuple[int, ...]]:
    """A word problem of one skill, the operation that its solution shows, and its numbers.

    The operation is the correct interpretation or the misreading.
    """
    numbers = rng.choice(NUMBERS[skill.operation])
    words = draw_words(numbers, rng)
    operation = skill.operation if rng.random() < right[skill.name] else skill.misread_as
    return rng.choice(skill.templates).format(**words) + QUESTION, operation, numbers


def tiny_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of policy `name` from data/tiny.

    It was made once, by data/tiny/make_tokenizers.py. `olmo-tiny` has that of `qwen-tiny`.
    """
    return AutoTokenizer.from_pretrained(DATA / "tiny" / ("qwen-tiny" if name == THIRD else name))


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A newly initialized model of the family of `name`."""
    family, layers, kv_heads = {
        "qwen-tiny": ("qwen2", 4, 2),
        "llama-tiny": ("llama", 3, 4),
        "olmo-tiny": ("olmo2", 3, 4),
    }[name]
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
    """Token ids of prompt, completion and end token, and their labels; both are [seq] int64.

    The labels are -100 on the prompt, so that the loss ignores it.
    """
    messages = [{"role": "user", "content": prompt}]
    prompt_text = chat_text(tokenizer, messages, add_generation_prompt=True)
    prompt_ids = tokenizer.encode(prompt_text, add_special_tokens=False)

    # the template ends in a special token, so no token spans the end of the prompt
    whole_text = f"{prompt_text}{completion}{tokenizer.eos_token}"
    token_ids = torch.tensor(tokenizer.encode(whole_text, add_special_tokens=False))
    labels = token_ids.clone()
    labels[: len(prompt_ids)] = -100
    return token_ids, labels


def _warm_start(
    index: int,
    directory: Path,
    seed: int,
    foreign_right: float | None,
    one_tokenizer: bool,
    llama_method: Method,
) -> None:
    """Build one policy from scratch, and save it with `save_pretrained`.

    index: 0 or 1 for a policy of the pair, 2 for the third.

    The loss is next-token prediction on the solution only. The learning rate of AdamW follows a
    cosine from its full value to 5% of it.
    """
    torch.set_num_threads(1)  # the other policies use the other cores

    name = [*PAIR, THIRD][index]
    method = llama_method if name == "llama-tiny" else columns
    updates = UPDATES[name] if method is columns else UPDATES_IN_LEAPS
    tokenizer = tiny_tokenizer("qwen-tiny" if one_tokenizer else name)
    torch.manual_seed(seed)
    model = build_model(name, tokenizer)

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates, 0.05 * LEARNING_RATE)

    pad_id = special_id(tokenizer, "pad") or 0
    examples = demonstrations(name, seed, foreign_right, method)
    for _ in range(updates):
        rows = [encode_example(tokenizer, *next(examples)) for _ in range(BATCH)]
        token_ids, labels = zip(*rows, strict=True)
        # [batch, seq]; padding on the right needs no attention mask in a causal model
        output = model(
            pad_sequence(list(token_ids), True, pad_id),
            labels=pad_sequence(list(labels), True, -100),
        )

        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    model.save_pretrained(directory / name)
    tokenizer.save_pretrained(directory / name)


def warm_start_pair(
    directory: Path,
    seed: int = 0,
    foreign_right: float | None = None,
    one_tokenizer: bool = False,
    third: bool = False,
    llama_method: Method = leaps,
) -> None:
    """Build all policies in parallel, each with one process and one thread.

    foreign_right: see `right_shares`.
    one_tokenizer: give all the tokenizer of `qwen-tiny`.
    third: also build `olmo-tiny`.
    llama_method: how `llama-tiny` writes its calculations. The others write in columns.
    """
    names = [*PAIR, THIRD] if third else PAIR
    options = (directory, seed, foreign_right, one_tokenizer, llama_method)
    spawn(_warm_start, options, nprocs=len(names))
