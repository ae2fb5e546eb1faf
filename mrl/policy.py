"""A policy: model, tokenizer, optimizer and objective. It samples and scores completions.

prompts.py makes its prompts, logprobs.py computes log-probs, and learning.py updates the weights.
Nothing in this file knows about modes or about the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.logprobs import cut_by_tokens, packed_logprobs
from mrl.objectives import OBJECTIVES
from mrl.prompts import Prompts
from mrl.rollout import Completions, Decode, sample_completions
from mrl.samples import Group, Problem, Rollout, SecondAttempt

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def uses_bfloat16(dtype: str, device: torch.device) -> bool:
    """Whether matrix products use bfloat16; False on a GPU that could only emulate it, slowly."""
    if device.type == "cuda":
        return dtype != "float32" and torch.cuda.is_bf16_supported(including_emulation=False)
    return dtype == "mixed"


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
        self.prompts = Prompts(tokenizer, model, config)
        self.codec = self.prompts.codec
        self.model = model.eval()  # no dropout, ever: sampling and scoring must agree
        self.reference = reference  # the frozen model of the KL term; None without a KL term
        # on CUDA, a faster sampling loop: models/cuda_graph.py
        self.graph_decode: Decode | None = None

        self.eos_ids, self.eos_id = self.prompts.eos_ids, self.prompts.eos_id
        self.suppressed = self.prompts.suppressed.to(model.device)
        self.vocab_size = len(self.suppressed)
        # the token limit of a completion, whether it is the policy's own or a peer's
        self.max_new_tokens = config.max_new_tokens
        self.max_tokens_per_forward = config.max_tokens_per_forward  # halved if memory runs out

        # Trainable weights are always float32: in bfloat16, 0.02 + 1e-6 rounds back to 0.02.
        # Mixed precision concerns only the matrix products.
        self.mixed_precision = uses_bfloat16(config.dtype, model.device)

        self.objective = OBJECTIVES[config.objective]
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=model.device.type == "cpu",  # three times as fast there
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

    def prompt_ids(self, prompt: str) -> list[int]:
        """The prompt in this policy's own template and tokens, up to where a completion starts."""
        return self.prompts.ids(prompt)

    def prompt_text(self, prompt: str) -> str:
        """The prompt as text, in this policy's own template."""
        return self.prompts.text(prompt)

    def rollout(
        self,
        problems: Sequence[Problem],
        generator: torch.Generator,
        group_size: int | None = None,
    ) -> list[Group]:
        """Sample one group for each problem. Verdicts are filled in later."""
        prompts = [self.prompt_ids(problem.prompt) for problem in problems]
        group_size = group_size or self.config.group_size

        rollouts = self._sample(prompts, group_size, self.max_new_tokens, generator)
        groups = []
        for number, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
            start = number * group_size
            groups.append(Group(problem, prompt, rollouts[start : start + group_size]))
        return groups

    def continue_from(
        self,
        prompts: Sequence[list[int]],
        beginnings: Sequence[list[int]],
        generator: torch.Generator,
    ) -> list[SecondAttempt]:
        """Sample one completion of each prompt, which starts with the beginning of the same index.

        A completion has at most `max_new_tokens` tokens, and its beginning counts among them.
        """
        begun = [prompt + ids for prompt, ids in zip(prompts, beginnings, strict=True)]
        most = self.max_new_tokens - min(map(len, beginnings))
        attempts = []
        for ids, sampled in zip(beginnings, self._sample(begun, 1, most, generator), strict=True):
            # all rows were sampled up to the same limit, so a row with a long beginning is cut
            room = self.max_new_tokens - len(ids)
            attempt = SecondAttempt(
                completion_ids=ids + sampled.completion_ids[:room],
                logprobs=sampled.logprobs[:room],
                finished=sampled.finished and len(sampled.completion_ids) <= room,
                version=self.version,
                given=len(ids),
            )
            attempt.text = self._text(attempt)
            attempts.append(attempt)
        return attempts

    def _sample(
        self,
        prompts: list[list[int]],
        group_size: int,
        max_new_tokens: int,
        generator: torch.Generator,
    ) -> list[Rollout]:
        """Sample `group_size` completions of each prompt. Those of one prompt are adjacent."""
        # as in `score`: the same temperature, the same suppressed tokens, and no top-k
        with self.precision():
            sampled = sample_completions(
                self.model.eval(),  # learning may have left it in training mode
                prompts,
                group_size,
                max_new_tokens=max_new_tokens,
                temperature=self.config.temperature,
                eos_ids=torch.tensor(self.eos_ids, device=self.model.device),
                suppressed=self.suppressed,
                generator=generator,
                decode=self.graph_decode,
            )
        # checked only once, at the end, because the check makes a GPU wait
        if not bool(sampled.logprobs.isfinite().all()):
            raise FloatingPointError("the model's log-probs are not finite")
        return self._as_rollouts(sampled)

    def _as_rollouts(self, sampled: Completions) -> list[Rollout]:
        """Turn each row into a rollout: cut it to its length, and add its text."""
        lengths, finished = sampled.lengths.tolist(), sampled.finished.tolist()
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()

        rollouts = []
        for row, length in enumerate(lengths):
            rollout = Rollout(token_ids[row][:length], logprobs[row][:length], finished[row])
            rollout.version = self.version
            rollout.text = self._text(rollout)
            rollouts.append(rollout)
        return rollouts

    def _text(self, rollout: Rollout) -> str:
        """The text of a completion, with its special tokens: exactly what the verifier must see."""
        return cast(str, self.tokenizer.decode(rollout.content_ids, skip_special_tokens=False))

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
