"""A policy: model, tokenizer, optimizer, prompt template and objective. It writes completions.

How they are scored is in logprobs.py, and what is learnt from them in learning.py. Nothing here
knows of modes or of the exchange.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.logprobs import cut_by_tokens, packed_logprobs
from mrl.objectives import OBJECTIVES
from mrl.rollout import Completions, sample_completions
from mrl.samples import Group, Problem, Rollout

# Put before each chat template in place of today's date: a run goes on tomorrow as it began today.
SAME_DAY = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}\n"
QUESTION = "\ue000"  # stands for a question in a template; a private character, so no text has it


def uses_bfloat16(dtype: str, device: torch.device) -> bool:
    """Whether matrix products are in bfloat16: not on a card that would emulate it, slowly."""
    if device.type == "cuda":
        return dtype != "float32" and torch.cuda.is_bf16_supported(including_emulation=False)
    return dtype == "mixed"


class Policy:
    """One learner. `version` counts its optimizer updates."""

    def __init__(
        self,
        config: PolicyConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        reference: PreTrainedModel | None = None,
        index: int = 0,
    ) -> None:
        self.config = config
        self.name = config.name
        self.index = index  # its place in the run: part of every random seed
        self.version = 0
        self.sampler_is_wrong = False  # learning has warned of it

        self.tokenizer = tokenizer
        self.codec = ByteCodec(tokenizer)
        self.model = model.eval()  # no dropout, ever: sampling and scoring must agree
        self.reference = reference  # frozen, only if there is a KL term
        self.graph_decode = None  # on CUDA, a faster way to sample: models/cuda_graph.py

        self.begin_ids = self._find_begin_ids()
        self.eos_ids = self._find_eos_ids()
        self.eos_id = self._find_eos_id()  # for a peer's completion, retokenize for this policy
        if self.eos_id not in self.eos_ids:  # known from the chat template alone
            self.eos_ids.append(self.eos_id)
        self.suppressed = self._find_suppressed().to(model.device)
        # the longest text that it writes, and that it learns from
        self.max_new_tokens = config.max_new_tokens
        self.max_tokens_per_forward = (
            config.max_tokens_per_forward
        )  # in tokens; see halve_micro_batch

        # What learns is float32 always, because in bfloat16 0.02 + 1e-6 rounds back to 0.02.
        # Mixed precision is about the matrix products alone.
        self.mixed_precision = uses_bfloat16(config.dtype, model.device)

        self.objective = OBJECTIVES[config.objective]
        if config.clip_low is not None:
            self.objective = replace(self.objective, clip_low=config.clip_low)
        if config.clip_high is not None:
            self.objective = replace(self.objective, clip_high=config.clip_high)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def precision(self) -> torch.autocast:
        """A context in which a "mixed" policy computes its matrix products in bfloat16."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision)

    def step_optimizer(self) -> None:
        """Update the weights by the gradients that they hold, and count the update."""
        self.optimizer.step()
        self.version += 1

    def save(self, folder: str | Path) -> None:
        """Write weights and tokenizer into a folder, as `from_pretrained` of transformers reads it.

        Raises MrlError for LoRA, whose weights belong to another model: a run saves those.
        """
        if self.config.lora_rank:
            raise MrlError(f"{self.name} learns by LoRA, so it has no whole weights of its own.")
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def halve_tokens_per_forward(self) -> str:
        """Compute fewer tokens at once from now on; returns a sentence that says so."""
        self.max_tokens_per_forward //= 2
        now = self.max_tokens_per_forward
        return f"{self.name} ran out of memory; it goes on with {now} tokens per forward pass."

    def _find_begin_ids(self) -> list[int]:
        """What the tokenizer adds before a text: mostly nothing, or the token that begins one.

        What it adds after a text is left out, because a prompt must not end before its completion.
        """
        plain = self.tokenizer("1", add_special_tokens=False).input_ids
        whole = self.tokenizer("1").input_ids
        for place in range(len(whole)):
            if whole[place : place + len(plain)] == plain:
                return whole[:place]
        return []

    def _find_eos_ids(self) -> list[int]:
        """The tokenizer's end token first, then the others that the generation config names."""
        configured = self.model.generation_config.eos_token_id
        named = [self.tokenizer.eos_token_id]
        named += configured if isinstance(configured, list) else [configured]

        ends = list(dict.fromkeys(named))  # each once, in their order
        if None in ends:
            ends.remove(None)
        if not ends:
            raise MrlError(
                f"{self.config.path}: neither tokenizer nor generation config names an end token; "
                "a completion could never end."
            )
        return ends

    def _find_eos_id(self) -> int:
        """The end token that the policy itself writes: the one that ends a turn.

        A chat model may have several. Gemma's tokenizer names <eos>, but its turns end in
        <end_of_turn>, so the model never writes <eos> there: as the end of a peer's completion it
        would be next to impossible. The chat template shows which one follows an answer: the first
        special token, whether or not tokenizer and generation config name it.
        """
        if not self.has_chat_template:
            return self.eos_ids[0]

        answer = "42"
        turns = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": answer}]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception:  # a template is a program; if prompts fail, too, loading says why
            return self.eos_ids[0]
        behind = text.rpartition(answer)[2]
        ends = {*self.eos_ids, *self.codec.markup.values()} - {self.tokenizer.unk_token_id}
        for token_id in self.tokenizer(behind, add_special_tokens=False).input_ids:
            if token_id in ends:
                return token_id
        return self.eos_ids[0]  # the template writes none

    def _find_suppressed(self) -> Tensor:
        """Tokens that must not be written, [vocab] bool.

        They are the rows of the embedding for which the tokenizer has no token, and the padding
        token, which has no text, unless it also ends a completion.
        """
        vocab_size = self.model.get_input_embeddings().num_embeddings
        suppressed = torch.ones(vocab_size, dtype=torch.bool)
        token_ids = torch.tensor(list(self.tokenizer.get_vocab().values()))  # may have gaps
        suppressed[token_ids[token_ids < vocab_size]] = False
        pad_id = self.tokenizer.pad_token_id
        if pad_id is not None and pad_id not in self.eos_ids:
            suppressed[pad_id] = True
        return suppressed

    # -------------------------------------------------------------------------- sampling

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts are in the tokenizer's chat template, which the setting replaces."""
        return not self.config.template and self.tokenizer.chat_template is not None

    def prompt_ids(self, prompt: str) -> list[int]:
        """The prompt in this policy's own template and tokens, up to where a completion starts."""
        token_ids = self.tokenizer(self.prompt_text(prompt), add_special_tokens=False).input_ids
        if len(self.codec.split_markup(prompt)) > 1:  # it spells a special token
            token_ids = self._with_question_as_text(prompt)

        # a chat template writes special tokens itself, and so may one of a person's own
        if self.has_chat_template or token_ids[: len(self.begin_ids)] == self.begin_ids:
            return token_ids
        return self.begin_ids + token_ids

    def _with_question_as_text(self, prompt: str) -> list[int]:
        """The template's special tokens are tokens here; those that the prompt spells are text."""
        token_ids = []
        for part in self.codec.split_markup(self.prompt_text(QUESTION)):
            if part in self.codec.markup:
                token_ids.append(self.codec.markup[part])
            else:
                token_ids += self.codec.encode_as_text(part.replace(QUESTION, prompt))
        return token_ids

    def prompt_text(self, prompt: str) -> str:
        """The prompt in the setting `template`, which leaves the system prompt out; without one, in
        the tokenizer's chat template; without that, as plain text behind the system prompt.
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
            self.tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # it would think until the limit
            chat_template=SAME_DAY + self.tokenizer.get_chat_template(),
        )
        try:
            return as_text(messages)
        except TemplateError:  # Gemma's takes no system message
            return as_text([{"role": "user", "content": both}])

    def rollout(
        self,
        problems: Sequence[Problem],
        generator: torch.Generator,
        group_size: int | None = None,
    ) -> list[Group]:
        """Sample a group for each problem; verdicts are still missing."""
        prompts = [self.prompt_ids(problem.prompt) for problem in problems]
        group_size = group_size or self.config.group_size

        # what is sampled is what is scored: same temperature, same suppressed tokens, no top-k
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
        if not bool(sampled.logprobs.isfinite().all()):  # once: at each token, a GPU would wait
            raise FloatingPointError("the model's log-probs are not finite")

        rollouts = self._as_rollouts(sampled)
        groups = []
        for number, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
            start = number * group_size
            groups.append(Group(problem, prompt, rollouts[start : start + group_size]))
        return groups

    def _as_rollouts(self, sampled: Completions) -> list[Rollout]:
        """Tensors become lists, each cut to its own length, with its text."""
        lengths, finished = sampled.lengths.tolist(), sampled.finished.tolist()
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()

        rollouts = []
        for row, length in enumerate(lengths):
            rollout = Rollout(token_ids[row][:length], logprobs[row][:length], finished[row])
            rollout.version = self.version
            # special tokens stay visible: without them a text would be judged that was not written
            rollout.text = self.tokenizer.decode(rollout.content_ids, skip_special_tokens=False)
            rollouts.append(rollout)
        return rollouts

    def score(
        self,
        prompts: Sequence[list[int]],
        completions: Sequence[list[int]],
        model: PreTrainedModel | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of completions under the current parameters, or `model`'s, and their mask.

        ([batch, seq] float32 nats with gradient, [batch, seq] bool), see `packed_logprobs`.
        """
        model = model or self.model
        # Gradient checkpointing works in training mode alone. This brings no dropout back, because
        # loading the model has set it to 0.
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
