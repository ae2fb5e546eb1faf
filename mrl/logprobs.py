"""Log-probs of completions under a model: each prompt computed once, no logits that nobody reads.

The completions of one prompt share a row, behind it: [prompt, c1, c2, ...]. A block mask hides
them from each other, and every completion's positions begin where the prompt ends, so that each
gets the numbers that it would get alone, up to rounding (bfloat16: 0.1 nats and more). Logits are
made for what predicts a completion token, TOKENS_AT_ONCE: [batch, seq, vocab] never exists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from mrl.rollout import attention_bias, scaled_logprobs

TOKENS_AT_ONCE = 1024  # whose logits exist at the same time


@dataclass(frozen=True)
class Packed:
    """Completions packed behind their prompts. `Place i` is the i-th completion token of all."""

    token_ids: Tensor  # [rows, seq]
    positions: Tensor  # [rows, seq]
    segments: Tensor  # [rows, seq]: 0 the prompt, 1.. its completions, -1 padding
    predictors: Tensor  # [places]: flat index (row * seq + position) of what predicts the token
    targets: Tensor  # [places]: the token
    outputs: Tensor  # [places]: flat index (completion * longest + t) where its log-prob goes
    mask: Tensor  # [completions, longest] bool, from lengths


def pack(prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> Packed:
    """Lay completions out behind their prompts; equal prompts share a row."""
    rows: dict[tuple[int, ...], list[int]] = {}  # prompt -> its completions' numbers
    for number, prompt in enumerate(prompts):
        rows.setdefault(tuple(prompt), []).append(number)
    longest = max(map(len, completions))
    width = max(len(p) + sum(len(completions[n]) for n in own) for p, own in rows.items())
    token_ids = torch.zeros(len(rows), width, dtype=torch.int64)
    positions = torch.zeros_like(token_ids)
    segments = torch.full_like(token_ids, -1)
    predictors, targets, outputs = [], [], []
    mask = torch.zeros(len(completions), longest, dtype=torch.bool)
    for row, (prompt, own) in enumerate(rows.items()):
        end = len(prompt)
        token_ids[row, :end] = torch.tensor(prompt)
        positions[row, :end] = torch.arange(end)
        segments[row, :end] = 0
        for segment, number in enumerate(own, start=1):
            completion = torch.tensor(completions[number])
            start, end = end, end + len(completion)
            token_ids[row, start:end] = completion
            positions[row, start:end] = len(prompt) + torch.arange(len(completion))
            segments[row, start:end] = segment
            before = torch.arange(start - 1, end - 1)
            before[0] = len(prompt) - 1  # the first token is predicted by the prompt's last
            predictors.append(row * width + before)
            targets.append(completion)
            outputs.append(number * longest + torch.arange(len(completion)))
            mask[number, : len(completion)] = True
    return Packed(
        token_ids, positions, segments,
        torch.cat(predictors), torch.cat(targets), torch.cat(outputs), mask,
    )  # fmt: skip


def cut_by_tokens(
    prompts: Sequence[list[int]], completions: Sequence[list[int]], most: int
) -> Iterator[slice]:
    """Neighbours that `pack` lays into up to `most` tokens, padding included.

    Completions of one prompt are parted only if they alone are more, and never one of them. Equal
    prompts that are no neighbours may make it more: `pack` joins them, too.
    """
    rows: list[list[int]] = []  # [number of its first completion, width]
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        shared = number > 0 and prompt == prompts[number - 1]
        if shared and rows[-1][1] + len(completion) <= most:
            rows[-1][1] += len(completion)
        else:
            rows.append([number, len(prompt) + len(completion)])
    start, height, widest = 0, 0, 0
    for number, width in rows:
        height, widest = height + 1, max(widest, width)
        if height > 1 and height * widest > most:
            yield slice(start, number)
            start, height, widest = number, 1, width
    if rows:
        yield slice(start, len(completions))


def packed_logprobs(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    suppressed: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs of completions and their mask, ([batch, seq] float32 nats, [batch, seq] bool).

    seq covers completions only; index t belongs to completion token t. The mask comes from lengths,
    never from token ids: a pad token may equal an end token.
    """
    packed = pack(prompts, completions)
    device = model.device
    segments = packed.segments.to(device)
    size = segments.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    key, query = segments[:, None, :], segments[:, :, None]
    visible = causal & ((key == 0) | (key == query))  # [rows, seq, seq]
    hidden = model.get_decoder()(
        input_ids=packed.token_ids.to(device),
        position_ids=packed.positions.to(device),
        attention_mask=attention_bias(visible, model)[:, None],
        use_cache=False,
    ).last_hidden_state  # [rows, seq, hidden]
    hidden = hidden.flatten(0, 1)[packed.predictors.to(device)]  # [places, hidden]
    targets = packed.targets.to(device)

    def some_logprobs(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = model.get_output_embeddings()(hidden)
        return scaled_logprobs(logits, suppressed, temperature).gather(1, targets[:, None])[:, 0]

    if len(targets) <= TOKENS_AT_ONCE:
        found = some_logprobs(hidden, targets)
    else:  # computed again in the backward pass, so that one part's logits exist at a time
        parts = zip(hidden.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE), strict=True)
        found = torch.cat([checkpoint(some_logprobs, *p, use_reentrant=False) for p in parts])
    mask = packed.mask.to(device)
    logprobs = found.new_zeros(mask.numel()).index_copy(0, packed.outputs.to(device), found)
    return logprobs.view_as(mask), mask
