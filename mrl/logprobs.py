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

from mrl.rollout import scaled_logprobs

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
    mixed = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if mixed else model.dtype
    hidden = model.get_decoder()(
        input_ids=packed.token_ids.to(device),
        position_ids=packed.positions.to(device),
        attention_mask=_attention_masks(model, packed, dtype),
        use_cache=False,
    ).last_hidden_state  # [rows, seq, hidden]
    hidden = hidden.flatten(0, 1)[packed.predictors.to(device)]  # [places, hidden]
    targets = packed.targets.to(device)

    def some_logprobs(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = _logits(model, hidden)
        return scaled_logprobs(logits, suppressed, temperature).gather(1, targets[:, None])[:, 0]

    if len(targets) <= TOKENS_AT_ONCE:
        found = some_logprobs(hidden, targets)
    else:  # computed again in the backward pass, so that one part's logits exist at a time
        parts = zip(hidden.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE), strict=True)
        found = torch.cat([checkpoint(some_logprobs, *p, use_reentrant=False) for p in parts])
    mask = packed.mask.to(device)
    logprobs = found.new_zeros(mask.numel()).index_copy(0, packed.outputs.to(device), found)
    return logprobs.view_as(mask), mask


def _attention_masks(
    model: PreTrainedModel, packed: Packed, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """What attention adds to its scores, [rows, 1, seq, seq]: one mask, or one a kind of layer.

    A completion sees the prompt and itself. A sliding window also hides what lies `window` or more
    *positions* back: places in the row would not do, because other completions stand between.
    """
    segments = packed.segments.to(model.device)
    rows, size = segments.shape
    key, query = segments[:, None, :], segments[:, :, None]
    causal = torch.ones(size, size, dtype=torch.bool, device=model.device).tril()
    visible = causal & ((key == 0) | (key == query))  # [rows, seq, seq]

    def added(visible: Tensor) -> Tensor:
        """0 where a key is seen, the smallest number where it is not."""
        # in another dtype, or with rows not 8 apart, CUDA would keep a copy of it in every layer
        bias = torch.zeros(rows, size, -(-size // 8) * 8, dtype=dtype, device=model.device)
        return bias[..., :size].masked_fill_(~visible, torch.finfo(dtype).min)[:, None]

    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or int(packed.positions.max()) < window:  # nothing lies so far back
        return added(visible)
    positions = packed.positions.to(model.device)
    near = positions[:, :, None] - positions[:, None, :] < window
    if not getattr(config, "layer_types", None):  # all layers have the window
        return added(visible & near)
    return {"full_attention": added(visible), "sliding_attention": added(visible & near)}


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """What the model's own forward makes of hidden states, with the head's scale and soft cap."""
    config = model.config.get_text_config()
    logits = model.get_output_embeddings()(hidden)
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    if scale != 1.0:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return cap * torch.tanh(logits / cap) if cap else logits
