"""A policy: model, tokenizer, optimizer, prompt template and objective. It samples completions.

logprobs.py computes the log-probs of completions, and learning.py updates the weights. Nothing in
this file knows about modes or about the exchange.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.logprobs import cut_by_tokens, packed_logprobs
from mrl.objectives import OBJECTIVES
from mrl.rollout import Completions, Decode, sample_completions
from mrl.samples import Group, Problem, Rollout

# Written before each chat template. It overrides `strftime_now`, so that a template which prints
# today's date always prints the same one; otherwise a run resumed tomorrow would see other prompts.
SAME_DAY = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}\n"
# Stands for the question in a template. It is a private-use character, so no text contains it.
QUESTION = "\ue000"


def uses_bfloat16(dtype: str, device: torch.device) -> bool:
    """Whether matrix products use bfloat16; False on a GPU that could only emulate it, slowly."""
    if device.type == "cuda":
        return dtype != "float32" and torch.cuda.is_bf16_supported(including_emulation=False)
    return dtype == "mixed"


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
    return cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings


class Policy:
    """One learner. `version` counts its optimizer updates."""

    def __init__(
        self,
        config: PolicyConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        reference: PreTrainedModel | None = None,
        index: int = 0,
    ) -> None:
        self.config = config
        self.name = config.name
        self.index = index  # position among the run's policies; part of every random seed
        self.version = 0
        self.sampler_is_wrong = False  # True once learning has warned about it

        self.tokenizer = tokenizer
        self.codec = ByteCodec(tokenizer)
        self.model = model.eval()  # no dropout, ever: sampling and scoring must agree
        self.reference = reference  # the frozen model of the KL term; None without a KL term
        # on CUDA, a faster sampling loop: models/cuda_graph.py
        self.graph_decode: Decode | None = None

        self.begin_ids = self._find_begin_ids()
        self.eos_ids = self._find_eos_ids()
        self.eos_id = self._find_eos_id()  # put at the end of a peer's finished completion
        if self.eos_id not in self.eos_ids:  # only the chat template names this token
            self.eos_ids.append(self.eos_id)
        self.suppressed = self._find_suppressed().to(model.device)
        self.vocab_size = len(self.suppressed)
        # the token limit of a completion, whether it is the policy's own or a peer's
        self.max_new_tokens = config.max_new_tokens
        self.max_tokens_per_forward = config.max_tokens_per_forward  # halved if memory runs out

        # Trainable weights are always float32: in bfloat16, 0.02 + 1e-6 rounds back to 0.02.
        # Mixed precision concerns only the matrix products.
        self.mixed_precision = uses_bfloat16(config.dtype, model.device)

        self.objective = OBJECTIVES[config.objective]
        if config.clip_low is not None:
            self.objective = replace(self.objective, clip_low=config.clip_low)
        if config.clip_high is not None:
            self.objective = replace(self.objective, clip_high=config.clip_high)
        if config.learning_rate is None:
            raise MrlError(f"{self.name} has no learning rate; `load_policy` chooses one.")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def precision(self) -> torch.autocast:
        """A context in which a mixed-precision policy computes its products in bfloat16."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision)

    def zero_grad(self) -> None:
        """Forget the current gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def step_optimizer(self) -> None:
        """Update the weights with the current gradients, and count the update."""
        self.optimizer.step()
        self.version += 1

    def save(self, folder: str | Path) -> None:
        """Write weights and tokenizer into a folder that transformers' `from_pretrained` can read.

        Raises MrlError for a LoRA policy, which has no full model of its own.
        """
        if self.config.lora_rank:
            raise MrlError(
                f"{self.name} was trained with LoRA, so there is no full model to save; "
                "a run saves its adapter."
            )
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

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

    def _find_eos_ids(self) -> list[int]:
        """Every EOS token: first the tokenizer's, then those of the generation config."""
        configured = self.model.generation_config.eos_token_id
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
        take the first special token after an answer, even if neither the tokenizer nor the
        generation config names it.
        """
        if not self.has_chat_template:
            return self.eos_ids[0]

        answer = "42"
        turns = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": answer}]
        try:
            text = chat_text(self.tokenizer, turns)
        except Exception:  # a template is a program; loading reports it if prompts fail as well
            return self.eos_ids[0]
        after_answer = text.rpartition(answer)[2]
        ends = {*self.eos_ids, *self.codec.markup.values()} - {special_id(self.tokenizer, "unk")}
        for token_id in self.tokenizer(after_answer, add_special_tokens=False).input_ids:
            if token_id in ends:
                return token_id
        return self.eos_ids[0]  # the template writes no EOS after an answer

    def _find_suppressed(self) -> Tensor:
        """The tokens that must never be sampled, [vocab] bool.

        These are the rows of the embedding for which the tokenizer has no token, and the padding
        token, which has no text. A padding token that is also EOS stays allowed.
        """
        vocab_size = embedding_rows(self.model)
        suppressed = torch.ones(vocab_size, dtype=torch.bool)
        token_ids = torch.tensor(list(self.tokenizer.get_vocab().values()))  # ids may have gaps
        suppressed[token_ids[token_ids < vocab_size]] = False
        pad_id = special_id(self.tokenizer, "pad")
        if pad_id is not None and pad_id not in self.eos_ids:
            suppressed[pad_id] = True
        return suppressed

    # -------------------------------------------------------------------------- sampling

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts use the tokenizer's chat template; the setting `template` replaces it."""
        return not self.config.template and self.tokenizer.chat_template is not None

    def prompt_ids(self, prompt: str) -> list[int]:
        """The prompt in this policy's own template and tokens, up to where a completion starts."""
        token_ids = self.tokenizer(self.prompt_text(prompt), add_special_tokens=False).input_ids
        if len(self.codec.split_markup(prompt)) > 1:  # the prompt spells a special token
            token_ids = self._encode_question_as_text(prompt)

        # a chat template writes special tokens itself, and your own template may also do so
        if self.has_chat_template or token_ids[: len(self.begin_ids)] == self.begin_ids:
            return token_ids
        return self.begin_ids + token_ids

    def _encode_question_as_text(self, prompt: str) -> list[int]:
        """Encode the template's special tokens as tokens, but those in the question as text."""
        token_ids = []
        for part in self.codec.split_markup(self.prompt_text(QUESTION)):
            if part in self.codec.markup:
                token_ids.append(self.codec.markup[part])
            else:
                token_ids += self.codec.encode_as_text(part.replace(QUESTION, prompt))
        return token_ids

    def prompt_text(self, prompt: str) -> str:
        """The prompt as text, made by the first of these that exists:

        1. the setting `template` (it leaves the system prompt out)
        2. the tokenizer's chat template
        3. the system prompt, a blank line and the prompt, as plain text
        """
        system = self.config.system_prompt
        both = f"{system}\n\n{prompt}" if system else prompt
        if self.config.template:
            return self.config.template.replace("{prompt}", prompt)
        if self.tokenizer.chat_template is None:
            return both + "\n"

        messages = [{"role": "user", "content": prompt}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        as_text = partial(
            chat_text,
            self.tokenizer,
            add_generation_prompt=True,
            enable_thinking=False,  # thinking would use up the token limit
            chat_template=SAME_DAY + self.tokenizer.get_chat_template(),
        )
        try:
            return as_text(messages)
        except TemplateError:  # for example, Gemma's template accepts no system message
            return as_text([{"role": "user", "content": both}])

    def rollout(
        self,
        problems: Sequence[Problem],
        generator: torch.Generator,
        group_size: int | None = None,
    ) -> list[Group]:
        """Sample one group for each problem. Verdicts are filled in later."""
        prompts = [self.prompt_ids(problem.prompt) for problem in problems]
        group_size = group_size or self.config.group_size

        # as in `score`: the same temperature, the same suppressed tokens, and no top-k
        with self.precision():
            sampled = sample_completions(
                self.model.eval(),  # learning may have left it in training mode
                prompts,
                group_size,
                max_new_tokens=self.max_new_tokens,
                temperature=self.config.temperature,
                eos_ids=torch.tensor(self.eos_ids, device=self.model.device),
                suppressed=self.suppressed,
                generator=generator,
                decode=self.graph_decode,
            )
        # checked only once, at the end, because the check makes a GPU wait
        if not bool(sampled.logprobs.isfinite().all()):
            raise FloatingPointError("the model's log-probs are not finite")

        rollouts = self._as_rollouts(sampled)
        groups = []
        for number, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
            start = number * group_size
            groups.append(Group(problem, prompt, rollouts[start : start + group_size]))
        return groups

    def _as_rollouts(self, sampled: Completions) -> list[Rollout]:
        """Turn each row into a rollout: cut it to its length, and add its text."""
        lengths, finished = sampled.lengths.tolist(), sampled.finished.tolist()
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()

        rollouts = []
        for row, length in enumerate(lengths):
            rollout = Rollout(token_ids[row][:length], logprobs[row][:length], finished[row])
            rollout.version = self.version
            # keep special tokens, so that the verifier sees exactly what was written
            text = self.tokenizer.decode(rollout.content_ids, skip_special_tokens=False)
            rollout.text = cast(str, text)
            rollouts.append(rollout)
        return rollouts

    def score(
        self,
        prompts: Sequence[list[int]],
        completions: Sequence[list[int]],
        model: PreTrainedModel | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of completions under the current weights (or under `model`), and their mask.

        Returns ([batch, seq] float32 nats with gradient, [batch, seq] bool); see
        `packed_logprobs`.
        """
        model = model or self.model
        # Gradient checkpointing only works in training mode. This mode does not bring dropout back,
        # because dropout was set to 0 when the model was loaded.
        model.train(self.config.gradient_checkpointing and torch.is_grad_enabled())
        with self.precision():
            return packed_logprobs(
                model, prompts, completions, self.suppressed, self.config.temperature
            )

    @torch.no_grad()
    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs of completions under the current weights, [completions][tokens], nats."""
        scored: list[list[float]] = []
        for part in cut_by_tokens(prompts, completions, self.max_tokens_per_forward):
            logprobs, _ = self.score(prompts[part], completions[part])
            for completion, row in zip(completions[part], logprobs.tolist(), strict=True):
                scored.append(row[: len(completion)])
        return scored
