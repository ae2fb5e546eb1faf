"""How the two tokenizers of the tiny pair were made: `python data/tiny/make_tokenizers.py`.

Their merges were learned from demonstrations that show each skill of the peer correctly in 3% of
the cases, all of them calculated in columns. All pairs have these tokenizers, whatever their own
demonstrations show, so that pairs differ only in their weights. The command writes the same files
again, and a test compares them.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from mrl.tiny.pair import demonstrations
from mrl.tiny.skills import columns

HERE = Path(__file__).resolve().parent
CHAT = (  # no system message in the warm start, so a problem set's own must not reach them later
    "{% for m in messages if m['role'] != 'system' %}USER{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT{% endif %}"
)


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with one token per digit, as the Qwen2 family has it."""
    end, user, assistant, pad = specials = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
    vocab, merges = _learn_merges(
        "qwen-tiny",
        Qwen2Tokenizer().backend_tokenizer,  # the family's normalizer and pre-tokenizer
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    return Qwen2Tokenizer(
        vocab, merges, unk_token=None, eos_token=end, pad_token=pad,
        extra_special_tokens=[user, assistant],
        chat_template=CHAT.replace("USER", user).replace("ASSISTANT", assistant),
    )  # fmt: skip


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE as Llama 2 has it: on text with spaces as a visible mark, with byte fallback.

    Its merges do not cross a space but do join digits, signs and brackets (`-3`, `=9,`).
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    vocab, merges = _learn_merges("llama-tiny", learner, max_token_length=8)
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
    examples = demonstrations(name, seed=0, foreign_right=0.03, method=columns)
    texts = []
    for _ in range(4000):
        texts += next(examples)

    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **options)
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    return learnt["vocab"], [tuple(merge) for merge in learnt["merges"]]


if __name__ == "__main__":
    qwen_tokenizer().save_pretrained(HERE / "qwen-tiny")
    llama_tokenizer().save_pretrained(HERE / "llama-tiny")
