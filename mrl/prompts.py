"""How a question becomes a policy's prompt, and which tokens begin and end what it writes.

A policy's own template and tokens are used. A special token that a question spells out is encoded
as text, so a question cannot end a turn. One prompt is looked at when a model is loaded, because a
template may leave out what it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import AddedToken
from torch import Tensor

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.errors import MrlError

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Written before each chat template. It overrides `strftime_now`, so that a template which prints
# today's date always prints the same one; otherwise a run resumed tomorrow would see other prompts.
SAME_DAY = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}\n"
# Stands for the question in a template. It is a private-use character, so no text contains it.
QUESTION = "\ue000"


# Three helpers, for what transformers' type hints do not say:


def special_id(tokenizer: PreTrainedTokenizerFast, role: str) -> int | None:
    """The id of a special token, or None. role: "eos", "pad" or "unk"."""
    return getattr(tokenizer, f"{role}_token_id")


def chat_text(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], **options: Any
) -> str:
    """The messages as text, in the tokenizer's chat template."""
    return cast(str, tokenizer.apply_chat_template(messages, tokenize=False, **options))


def embedding_rows(model: PreTrainedModel) -> int:
    """The number of token ids that a model has, which may be more than its tokenizer uses."""
    return len(cast(torch.nn.Embedding, model.get_input_embeddings()).weight)


class Prompts:
    """The prompts of one policy: its template, and its begin, end and suppressed tokens."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, config: PolicyConfig
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config

        self.begin_ids = self._find_begin_ids()
        self.eos_ids = self._find_eos_ids(model)  # every token that ends a completion
        self.eos_id = self._find_eos_id()  # put at the end of a peer's finished completion
        if self.eos_id not in self.eos_ids:  # only the chat template names this token
            self.eos_ids.append(self.eos_id)
        self._mark_ends_as_special()
        self.suppressed = self._find_suppressed(model)
        self.tokens_without_row = [
            token.content
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token_id >= len(self.suppressed)
        ]
        self.codec = ByteCodec(tokenizer, rows=len(self.suppressed))
        self._check_prompt()

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts use the tokenizer's chat template; the setting `template` replaces it."""
        return not self.config.template and self.tokenizer.chat_template is not None

    def ids(self, prompt: str) -> list[int]:
        """The prompt in this policy's own template and tokens, up to where a completion starts.

        Raises MrlError for a token that the tokenizer has and the model has not.
        """
        token_ids = self.tokenizer(self.text(prompt), add_special_tokens=False).input_ids
        if len(self.codec.split_markup(prompt)) > 1:  # the prompt spells a special token
            token_ids = self._encode_question_as_text(prompt)
        rows = len(self.suppressed)
        for token_id in token_ids:
            if token_id >= rows:
                token = self.tokenizer.convert_ids_to_tokens(token_id)
                raise MrlError(
                    f"{self.config.path}: a prompt has the token {token!r}, but the model's "
                    f"embedding has no row for it ({rows} rows). Remove {token!r} from the "
                    "template and the problems, or resize the model's embedding and train the row."
                )

        # a chat template writes special tokens itself, and your own template may also do so
        if self.has_chat_template or token_ids[: len(self.begin_ids)] == self.begin_ids:
            return token_ids
        return self.begin_ids + token_ids

    def _encode_question_as_text(self, prompt: str) -> list[int]:
        """Encode the template's special tokens as tokens, but those in the question as text."""
        token_ids = []
        for part in self.codec.split_markup(self.text(QUESTION)):
            if part in self.codec.markup:
                token_ids.append(self.codec.markup[part])
            else:
                token_ids += self.codec.encode_as_text(part.replace(QUESTION, prompt))
        return token_ids

    def text(self, prompt: str) -> str:
        """The prompt as text, made by the first of these that exists:

        1. the setting `template` (it leaves the system prompt out)
        2. the tokenizer's chat template
        3. the system prompt, a blank line and the prompt, as plain text

        Raises MrlError if the chat template fails.
        """
        system = self.config.system_prompt
        both = f"{system}\n\n{prompt}" if system else prompt
        if self.config.template:
            return self.config.template.replace("{prompt}", prompt)
        if self.tokenizer.chat_template is None:
            return both + "\n"

        user = {"role": "user", "content": prompt}
        if system:
            try:
                text = self._chat_text([{"role": "system", "content": system}, user])
            except Exception:  # for example, Gemma's template accepts no system message
                text = ""
            # a template that names the role, as the tiny pair's, leaves the message out on purpose
            if system.strip() in text or (text and "system" in str(self.tokenizer.chat_template)):
                return text
            user["content"] = both  # the template refuses system messages, or does not know them
        try:
            return self._chat_text([user])
        except Exception as error:  # a template is a program, which may raise anything
            raise MrlError(
                f"{self.config.path}: the chat template fails ({error}). Set the policy's "
                "`template` to another one that contains {prompt}."
            ) from error

    def _chat_text(self, messages: list[dict[str, str]]) -> str:
        return chat_text(
            self.tokenizer,
            messages,
            add_generation_prompt=True,
            enable_thinking=False,  # thinking would use up the token limit
            chat_template=SAME_DAY + self.tokenizer.get_chat_template(),
        )

    def _check_prompt(self) -> None:
        """Look at one prompt. Raises MrlError if the question is not in it, or for a missing row.

        Templates of image models, for example, expect a list of parts instead of a text, and leave
        out a text without an error.
        """
        question = "6*7?"
        if question not in self.text(question):
            raise MrlError(
                f"{self.config.path}: the chat template leaves the question out of the prompt. Set "
                "the policy's `template` to another one that contains {prompt}."
            )
        self.ids(question)

    def _find_begin_ids(self) -> list[int]:
        """The tokens that the tokenizer adds before a text: usually none, or a BOS token.

        Tokens that it adds after a text are left out, because a prompt must not end before its
        completion.
        """
        plain = self.tokenizer("1", add_special_tokens=False).input_ids
        whole = self.tokenizer("1").input_ids
        for place in range(len(whole)):
            if whole[place : place + len(plain)] == plain:
                return whole[:place]
        return []

    def _find_eos_ids(self, model: PreTrainedModel) -> list[int]:
        """Every EOS token: first the tokenizer's, then those of the generation config."""
        configured = model.generation_config.eos_token_id
        named = [special_id(self.tokenizer, "eos")]
        named += configured if isinstance(configured, list) else [configured]

        # without duplicates, in the same order
        ends = [token_id for token_id in dict.fromkeys(named) if token_id is not None]
        if not ends:
            raise MrlError(
                f"{self.config.path}: neither the tokenizer nor the generation config names an "
                "end token, so no completion could end. Set eos_token in tokenizer_config.json."
            )
        return ends

    def _find_eos_id(self) -> int:
        """The EOS token that the policy itself writes at the end of its turn.

        A chat model may have several EOS tokens. For example, Gemma's tokenizer names <eos>, but
        its turns end in <end_of_turn>. The model almost never writes <eos> there, so a peer's
        completion must not end in <eos>. The chat template shows which one the model writes: we
        take the first added token after an answer, even if it is not marked as special and neither
        the tokenizer nor the generation config names it.
        """
        if not self.has_chat_template:
            return self.eos_ids[0]

        answer = "42"
        turns = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": answer}]
        try:
            text = chat_text(self.tokenizer, turns)
        except Exception:  # a template is a program; `text` reports it if prompts fail as well
            return self.eos_ids[0]
        after_answer = text.rpartition(answer)[2]
        ends = set(self.eos_ids)
        for token_id, token in self.tokenizer.added_tokens_decoder.items():
            if token.content.strip():  # some tokenizers have added tokens for runs of spaces
                ends.add(token_id)
        ends.discard(special_id(self.tokenizer, "unk"))
        for token_id in self.tokenizer(after_answer, add_special_tokens=False).input_ids:
            if token_id in ends:
                return token_id
        return self.eos_ids[0]  # the template writes no EOS after an answer

    def _mark_ends_as_special(self) -> None:
        """Mark added end tokens as special: an end stands for no text, and no text may hold it."""
        for token_id in self.eos_ids:
            token = self.tokenizer.added_tokens_decoder.get(token_id)
            if token and not token.special:
                special = AddedToken(token.content, special=True, normalized=False)
                self.tokenizer.backend_tokenizer.add_special_tokens([special])

    def _find_suppressed(self, model: PreTrainedModel) -> Tensor:
        """The tokens that must never be sampled, [vocab] bool.

        These are the rows of the embedding for which the tokenizer has no token, and the padding
        token, which has no text. A padding token that is also EOS stays allowed.
        """
        vocab_size = embedding_rows(model)
        suppressed = torch.ones(vocab_size, dtype=torch.bool)
        token_ids = torch.tensor(list(self.tokenizer.get_vocab().values()))  # ids may have gaps
        suppressed[token_ids[token_ids < vocab_size]] = False
        pad_id = special_id(self.tokenizer, "pad")
        if pad_id is not None and pad_id not in self.eos_ids:
            suppressed[pad_id] = True
        return suppressed
