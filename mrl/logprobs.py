"""Log-probs of completions under a model. Each prompt is computed only once.

You can skip the packing on a first reading (`Packed`, `pack`, `cut_by_tokens`, `attention_masks`).
It only saves time: completions of the same prompt share one row, [prompt, c1, c2, ...], and a short
row also takes other prompts with their completions. A block mask hides what does not belong
together, and the position ids of each completion continue from the end of its prompt. So each
completion gets the log-probs that it would get alone, up to rounding (0.1 nats or more in
bfloat16).

Logits are computed only where they predict a completion token, and only TOKENS_AT_ONCE at a time:
with a large vocabulary, a complete tensor [batch, seq, vocab] would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel

TOKENS_AT_ONCE = 1024  # number of tokens whose logits exist at the same time


def scaled_logprobs(logits: Tensor, suppressed_ids: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the tokens that are not suppressed.

    This is the one distribution of a policy: rollout.py samples from it, and learning scores by it.

    logits: [..., vocab]; suppressed_ids: [number of suppressed tokens] int64.  Returns [..., vocab]
    float32, nats.
    """
    scaled = logits.to(torch.float32, copy=True)  # a copy, which the next lines may change
    if temperature != 1:
        scaled /= temperature
    return torch.log_softmax(scaled.index_fill_(-1, suppressed_ids, -torch.inf), dim=-1)


@dataclass(frozen=True)
class Packed:
    """You can skip this on a first reading: prompts and their completions, packed into rows.

    One row, with the prompt "P Q R", its completions "a b" and "x y z", and the prompt "S" with its
    completion "c":

        token_ids    P  Q  R  a  b  x  y  z  S  c  .
        segments     0  0  0  1  1  2  2  2  3  4 -1     a prompt or a completion; -1: padding
        contexts     0  0  0  0  0  0  0  0  3  3 -1     the segment of the token's prompt
        positions    0  1  2  3  4  3  4  5  0  1  .     a completion continues from its prompt
        predicts     -  - a,x b  -  y  z  -  c  -  -     R predicts both a and x

    `predictors`, `targets` and `destinations` list the completion tokens a, b, x, y, z, c, prompt
    by prompt. If equal prompts are not adjacent, this is not the order of the completions;
    `destinations` restores that order.
    """

    token_ids: Tensor  # [rows, seq]
    positions: Tensor  # [rows, seq]: the position ids that the model receives
    segments: Tensor  # [rows, seq]
    contexts: Tensor  # [rows, seq]
    predictors: Tensor  # [tokens]: index of the token that predicts it, row * seq + column
    targets: Tensor  # [tokens]: the completion token itself
    destinations: Tensor  # [tokens]: index where its log-prob goes, completion * longest + t
    mask: Tensor  # [completions, longest] bool: True on completion tokens; made from lengths


def pack(prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> Packed:
    """Put completions behind their prompts; short prompts with their completions share a row."""
    numbers_of: dict[tuple[int, ...], list[int]] = {}  # prompt -> numbers of its completions
    for number, prompt in enumerate(prompts):
        numbers_of.setdefault(tuple(prompt), []).append(number)

    widths = []  # of each prompt with its completions
    for prompt, numbers in numbers_of.items():
        widths.append(len(prompt) + sum(len(completions[n]) for n in numbers))
    starts, rows = _fill_rows(widths)

    width, longest = max(widths), max(len(completion) for completion in completions)
    token_ids = torch.zeros(rows, width, dtype=torch.int64)
    positions = torch.zeros_like(token_ids)
    segments, contexts = torch.full_like(token_ids, -1), torch.full_like(token_ids, -1)
    mask = torch.zeros(len(completions), longest, dtype=torch.bool)
    predictors, targets, destinations = [], [], []

    segment = 0
    for (prompt, numbers), (row, start) in zip(numbers_of.items(), starts, strict=True):
        context, end = segment, start + len(prompt)
        token_ids[row, start:end] = torch.tensor(prompt)
        positions[row, start:end] = torch.arange(len(prompt))
        segments[row, start:end] = contexts[row, start:end] = context
        last = end - 1  # of the prompt; it predicts the first token of each completion

        for number in numbers:
            segment += 1
            completion = torch.tensor(completions[number])
            start, end = end, end + len(completion)
            token_ids[row, start:end] = completion
            positions[row, start:end] = len(prompt) + torch.arange(len(completion))
            segments[row, start:end], contexts[row, start:end] = segment, context
            mask[number, : len(completion)] = True

            before = torch.arange(start - 1, end - 1)  # each token is predicted by the one before
            before[0] = last
            predictors.append(row * width + before)
            targets.append(completion)
            destinations.append(number * longest + torch.arange(len(completion)))
        segment += 1

    return Packed(
        token_ids, positions, segments, contexts,
        torch.cat(predictors), torch.cat(targets), torch.cat(destinations), mask,
    )  # fmt: skip


def _fill_rows(widths: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Put pieces of these widths into rows as wide as the widest piece.

    Returns the (row, column) where each piece starts, and the number of rows. The widest piece is
    placed first, and each piece goes into the first row in which it fits.
    """
    width, starts = max(widths), [(0, 0)] * len(widths)
    used: list[int] = []  # columns in each row
    for piece in sorted(range(len(widths)), key=lambda piece: -widths[piece]):
        fits = [row for row, columns in enumerate(used) if columns + widths[piece] <= width]
        if not fits:
            used.append(0)
        row = fits[0] if fits else len(used) - 1
        starts[piece] = row, used[row]
        used[row] += widths[piece]
    return starts, len(used)


def cut_by_tokens(
    prompts: Sequence[list[int]], completions: Sequence[list[int]], most: int
) -> Iterator[slice]:
    """Slices of adjacent completions; each packs into at most `most` tokens, padding included.

    A single completion is never cut, however long it is. Adjacent completions of one prompt are
    separated only if their common row would exceed `most`. A slice can exceed `most` if equal
    prompts in it are not adjacent, because `pack` joins these as well.
    """
    # 1. the rows that `pack` would make: the index of their first completion, and their width
    firsts: list[int] = []
    widths: list[int] = []
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        same_prompt = number > 0 and prompt == prompts[number - 1]
        if same_prompt and widths[-1] + len(completion) <= most:
            widths[-1] += len(completion)
        else:
            firsts.append(number)
            widths.append(len(prompt) + len(completion))

    # 2. join adjacent rows as long as their rectangle holds at most `most` tokens
    start, height, widest = 0, 0, 0
    for first, width in zip(firsts, widths, strict=True):
        height += 1
        widest = max(widest, width)
        if height > 1 and height * widest > most:
            yield slice(start, first)
            start, height, widest = first, 1, width
    if firsts:
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
    never from token ids: the padding token may also be an EOS token.
    """
    device = model.device
    packed = pack(prompts, completions)

    # 1. one forward pass over all rows, without the head
    hidden = model.get_decoder()(
        input_ids=packed.token_ids.to(device),
        position_ids=packed.positions.to(device),
        attention_mask=attention_masks(model, packed),
        use_cache=False,
    ).last_hidden_state  # [rows, seq, hidden]
    hidden = hidden.flatten(0, 1)[packed.predictors.to(device)]  # [tokens, hidden]
    targets = packed.targets.to(device)
    suppressed_ids = suppressed.nonzero().squeeze(1)

    # 2. the head, only where it predicts a completion token
    def target_logprobs(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = head_logits(model, hidden)
        logprobs = scaled_logprobs(logits, suppressed_ids, temperature)
        return logprobs.gather(1, targets[:, None])[:, 0]

    if len(targets) <= TOKENS_AT_ONCE:
        token_logprobs = target_logprobs(hidden, targets)
    else:  # the backward pass computes each part again, so only one part's logits exist at a time
        parts = []
        pairs = zip(hidden.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE), strict=True)
        for some_hidden, some_targets in pairs:
            parts.append(
                checkpoint(target_logprobs, some_hidden, some_targets, use_reentrant=False)
            )
        token_logprobs = torch.cat(parts)

    # 3. copy each log-prob to the row of its completion and the column of its token
    mask = packed.mask.to(device)
    logprobs = token_logprobs.new_zeros(mask.numel())
    logprobs = logprobs.index_copy(0, packed.destinations.to(device), token_logprobs)
    return logprobs.view_as(mask), mask


def attention_masks(model: PreTrainedModel, packed: Packed) -> Tensor | dict[str, Tensor]:
    """The bias of the attention scores, [rows, 1, seq, seq]: one for all, or one per layer kind.

    A completion sees its prompt and itself. A sliding window also hides tokens that lie `window` or
    more *positions* back. Columns cannot be used for this, because other completions may lie in
    between.
    """
    segments, contexts = packed.segments.to(model.device), packed.contexts.to(model.device)
    size = segments.shape[1]
    key = segments[:, None, :]
    causal = torch.ones(size, size, dtype=torch.bool, device=model.device).tril()
    visible = causal & ((key == segments[:, :, None]) | (key == contexts[:, :, None]))

    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or int(packed.positions.max()) < window:  # no token lies that far back
        return attention_bias(visible, model)

    positions = packed.positions.to(model.device)
    near = positions[:, :, None] - positions[:, None, :] < window
    if not getattr(config, "layer_types", None):  # the window applies to every layer
        return attention_bias(visible & near, model)
    return {
        "full_attention": attention_bias(visible, model),
        "sliding_attention": attention_bias(visible & near, model),
    }


def attention_bias(visible: Tensor, model: PreTrainedModel) -> Tensor:
    """What is added to the attention scores: 0 where a query sees a key, else the lowest number.

    It has the dtype of the matrix products. Its rows start at multiples of 8 numbers, because CUDA
    would otherwise keep a copy of the mask in every layer.

    visible: [batch, queries, keys] bool.  Returns [batch, 1, queries, keys].
    """
    device, size = visible.device, visible.shape[-1]
    dtype = model.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)

    padded = (size + 7) // 8 * 8
    bias = torch.zeros(*visible.shape[:-1], padded, dtype=dtype, device=device)[..., :size]
    return bias.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def head_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The logits of hidden states, with the scale and the soft cap of the model's own head."""
    config = model.config.get_text_config()
    head = cast(torch.nn.Module, model.get_output_embeddings())  # every causal model has one
    logits = head(hidden)
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    if scale != 1.0:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    if cap:
        logits = cap * torch.tanh(logits / cap)
    return logits
