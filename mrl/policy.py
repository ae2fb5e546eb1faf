"""A policy: model, tokenizer, optimizer, prompt template and objective. It samples and scores.

What it learns and how is in learning.py; nothing here knows of modes or exchange.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.logprobs import cut_by_tokens, packed_logprobs
from mrl.objectives import OBJECTIVES
from mrl.rollout import sample_completions
from mrl.samples import Group, Problem, Rollout

# before each chat template, in place of the day of the call: a run goes on tomorrow as it began
SAME_DAY = "{% macro strftime_now(form) %}26 Jul 2024{% endmacro %}\n"


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
        self.graph_decode = None  # on CUDA, a faster way to sample: runtime/cuda_graph.py
        self.sampled_version = -1  # of the weights that wrote its newest groups
        self.micro_batch = config.micro_batch  # in tokens; halved where the memory does not suffice
        self.tokenizer = tokenizer
        self.model = model.eval()  # no dropout, ever: who samples is who is scored
        self.reference = reference  # frozen, only if there is a KL term
        self.codec = ByteCodec(self.tokenizer)
        self.end_ids = self._find_end_ids()
        self.end_id = self.end_ids[0]  # for a peer's completion, retokenized for this policy
        self.max_new_tokens = config.max_new_tokens  # what it writes, and so what it imitates
        self.suppressed = self._find_suppressed().to(model.device)
        # weights are float32 always: in bfloat16 0.02 + 1e-6 rounds back to 0.02
        self.mixed_precision = uses_bfloat16(config.dtype, model.device)
        clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
        given = {name: clip for name, clip in clips.items() if clip is not None}
        self.objective = replace(OBJECTIVES[config.objective], **given)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def _precision(self) -> torch.autocast:
        """bfloat16 for the matrix products of a "mixed" policy."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision)

    def _find_end_ids(self) -> list[int]:
        """The tokenizer's end token first, then every other one of the generation config."""
        configured = self.model.generation_config.eos_token_id
        configured = configured if isinstance(configured, list) else [configured]
        ends = [self.tokenizer.eos_token_id, *configured]
        ends = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
        if not ends:
            raise MrlError(
                f"{self.config.path}: neither tokenizer nor generation config names an end token; "
                "a completion could never end."
            )
        return ends

    def _find_suppressed(self) -> Tensor:
        """Tokens that must not be written, [vocab] bool.

        The padding token, which has no text, unless it ends a completion; and rows of the embedding
        for which the tokenizer has no token.
        """
        suppressed = torch.zeros(self.model.get_input_embeddings().num_embeddings, dtype=torch.bool)
        suppressed[len(self.tokenizer) :] = True
        pad_id = self.tokenizer.pad_token_id
        if pad_id is not None and pad_id not in self.end_ids:
            suppressed[pad_id] = True
        return suppressed

    # -------------------------------------------------------------------------- sampling

    def prompt_ids(self, prompt: str) -> list[int]:
        """The prompt in this policy's own template and tokens, up to where a completion starts."""
        own = bool(self.config.template) or self.tokenizer.chat_template is None
        # a chat template writes special tokens itself; some would be there twice
        return self.tokenizer(self.prompt_text(prompt), add_special_tokens=own).input_ids

    def prompt_text(self, prompt: str) -> str:
        """The prompt in the policy's template; without one, behind the system prompt."""
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
        temperature: float | None = None,
    ) -> list[Group]:
        """Sample a group for each problem; verdicts are still missing."""
        prompts = [self.prompt_ids(problem.prompt) for problem in problems]
        group_size = group_size or self.config.group_size
        self.sampled_version = self.version
        # what is sampled is what is scored: same temperature, same suppressed tokens, no top-k
        with self._precision():
            sampled = sample_completions(
                self.model.eval(),
                prompts,
                group_size,
                max_new_tokens=self.max_new_tokens,
                temperature=self.config.temperature if temperature is None else temperature,
                end_ids=torch.tensor(self.end_ids, device=self.model.device),
                suppressed=self.suppressed,
                generator=generator,
                decode=self.graph_decode,
            )
        if not bool(sampled.logprobs.isfinite().all()):  # once: at each token, a GPU would wait
            raise FloatingPointError("the model's log-probs are not finite")
        rollouts = []
        lengths, finished = sampled.lengths.tolist(), sampled.finished.tolist()
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        for row, length in enumerate(lengths):
            rollout = Rollout(token_ids[row][:length], logprobs[row][:length], finished[row])
            # special tokens stay visible: dropping them would verify a text that was not written
            rollout.text = self.tokenizer.decode(rollout.content_ids, skip_special_tokens=False)
            rollouts.append(rollout)
        return [
            Group(problem, prompt, rollouts[i * group_size : (i + 1) * group_size])
            for i, (problem, prompt) in enumerate(zip(problems, prompts, strict=True))
        ]

    # -------------------------------------------------------------------------- scoring

    def completion_logprobs(
        self,
        prompts: Sequence[list[int]],
        completions: Sequence[list[int]],
        model: PreTrainedModel | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of completions under the current parameters (or `model`'s), and their mask.

        ([batch, seq] float32 nats, [batch, seq] bool), see logprobs.py.
        """
        model = model or self.model
        # transformers computes activations again only in training mode, which has no dropout here
        model.train(self.config.checkpointing and torch.is_grad_enabled())
        temperature = self.config.temperature
        with self._precision():
            return packed_logprobs(model, prompts, completions, self.suppressed, temperature)

    @torch.no_grad()
    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs of each completion's tokens under the current parameters, nats."""
        scored: list[list[float]] = []  # [completions][tokens]
        for rows in cut_by_tokens(prompts, completions, self.micro_batch):
            chosen = completions[rows]
            logprobs, _ = self.completion_logprobs(prompts[rows], chosen)
            pairs = zip(chosen, logprobs.tolist(), strict=True)
            scored += [row[: len(completion)] for completion, row in pairs]
        return scored
