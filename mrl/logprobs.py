"""Log-probs of completions under a model, with each prompt computed only once.

The completions of one prompt stand in one row behind it: [prompt, c1, c2, ...]. A block mask hides
them from each other, and the positions of each completion begin where the prompt ends, so that each
gets the numbers that it would get alone, up to rounding (bfloat16: 0.1 nats and more).

Logits are computed only at the positions that predict a completion token, and TOKENS_AT_ONCE of
them at a time, because a whole [batch, seq, vocab] is what a large vocabulary cannot afford.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

TOKENS_AT_ONCE = 1024  # whose logits exist at the same time


def scaled_logprobs(logits: Tensor, suppressed: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the tokens that are not suppressed.

    The one distribution of a policy: what rollout.py samples from is what is scored here.

    logits: [..., vocab]; suppressed: [vocab] bool.  Returns [..., vocab] float32, nats.
    """
    logits = logits.float()
    if temperature != 1:
        logits = logits / temperature
    return torch.log_softmax(logits.masked_fill(suppressed, -torch.inf), dim=-1)


@dataclass(frozen=True)
class Packed:
    """Completions packed behind their prompts.

    A place is one completion token. Places are counted row by row, so where equal prompts are no
    neighbours they are not in the order of the completions; `destinations` puts that right. A
    column counts along a row, and a position is the number that the model gets for it.
    """

    token_ids: Tensor  # [rows, seq]
    positions: Tensor  # [rows, seq]: in every completion they go on from the prompt's end
    segments: Tensor  # [rows, seq]: 0 the prompt, 1.. its completions, -1 padding
    predictors: Tensor  # [places]: flat index (row * seq + column) of what predicts the token
    targets: Tensor  # [places]: the token
    destinations: Tensor  # [places]: flat index (completion * longest + t) where its log-prob goes
    mask: Tensor  # [completions, longest] bool, from lengths


def pack(prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> Packed:
    """Lay completions out behind their prompts; equal prompts share a row."""
    numbers_of: dict[tuple[int, ...], list[int]] = {}  # prompt -> its completions' numbers
    for number, prompt in enumerate(prompts):
        numbers_of.setdefault(tuple(prompt), []).append(number)

    longest = max(len(completion) for completion in completions)
    width = 0
    for prompt, numbers in numbers_of.items():
        width = max(width, len(prompt) + sum(len(completions[n]) for n in numbers))

    token_ids = torch.zeros(len(numbers_of), width, dtype=torch.int64)
    positions = torch.zeros_like(token_ids)
    segments = torch.full_like(token_ids, -1)
    mask = torch.zeros(len(completions), longest, dtype=torch.bool)
    predictors, targets, destinations = [], [], []

    for row, (prompt, numbers) in enumerate(numbers_of.items()):
        end = len(prompt)
        token_ids[row, :end] = torch.tensor(prompt)
        positions[row, :end] = torch.arange(end)
        segments[row, :end] = 0

        for segment, number in enumerate(numbers, start=1):
            completion = torch.tensor(completions[number])
            start, end = end, end + len(completion)
            token_ids[row, start:end] = completion
            positions[row, start:end] = len(prompt) + torch.arange(len(completion))
            segments[row, start:end] = segment
            mask[number, : len(completion)] = True

            # each token is predicted by the one before it, the first by the prompt's last
            before = torch.arange(start - 1, end - 1)
            before[0] = len(prompt) - 1
            predictors.append(row * width + before)
            targets.append(completion)
            destinations.append(number * longest + torch.arange(len(completion)))

    return Packed(
        token_ids, positions, segments,
        torch.cat(predictors), torch.cat(targets), torch.cat(destinations), mask,
    )  # fmt: skip


def cut_by_tokens(
    prompts: Sequence[list[int]], completions: Sequence[list[int]], most: int
) -> Iterator[slice]:
    """Slices of neighbouring completions, each of at most `most` tokens when packed, with padding.

    A single completion is never cut, however long it is. Neighbours with the same prompt are
    separated only where their common row would exceed `most`. A slice may still get longer where
    equal prompts are no neighbours, because `pack` joins them, too.
    """
    # 1. the rows that `pack` would make: the index of each one's first completion, and its width
    firsts: list[int] = []
    widths: list[int] = []
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        same_prompt = number > 0 and prompt == prompts[number - 1]
        if same_prompt and widths[-1] + len(completion) <= most:
            widths[-1] += len(completion)
        else:
            firsts.append(number)
            widths.append(len(prompt) + len(completion))

    # 2. neighbouring rows together, while their rectangle holds no more than `most` tokens
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
    never from token ids: a pad token may equal an end token.
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
    hidden = hidden.flatten(0, 1)[packed.predictors.to(device)]  # [places, hidden]
    targets = packed.targets.to(device)

    # 2. the head, only where a completion token is predicted
    def target_logprobs(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = head_logits(model, hidden)
        return scaled_logprobs(logits, suppressed, temperature).gather(1, targets[:, None])[:, 0]

    if len(targets) <= TOKENS_AT_ONCE:
        place_logprobs = target_logprobs(hidden, targets)
    else:  # computed again in the backward pass, so that one part's logits exist at a time
        parts = []
        pairs = zip(hidden.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE), strict=True)
        for some_hidden, some_targets in pairs:
            parts.append(
                checkpoint(target_logprobs, some_hidden, some_targets, use_reentrant=False)
            )
        place_logprobs = torch.cat(parts)

    # 3. each to its completion and token
    mask = packed.mask.to(device)
    logprobs = place_logprobs.new_zeros(mask.numel())
    logprobs = logprobs.index_copy(0, packed.destinations.to(device), place_logprobs)
    return logprobs.view_as(mask), mask


def attention_masks(model: PreTrainedModel, packed: Packed) -> Tensor | dict[str, Tensor]:
    """What attention adds to its scores, [rows, 1, seq, seq]: one mask, or one per kind of layer.

    A completion sees the prompt and itself. A sliding window also hides what lies `window` or more
    *positions* back. Columns would not do, because other completions stand between.
    """
    segments = packed.segments.to(model.device)
    size = segments.shape[1]
    key, query = segments[:, None, :], segments[:, :, None]
    causal = torch.ones(size, size, dtype=torch.bool, device=model.device).tril()
    visible = causal & ((key == 0) | (key == query))  # [rows, seq, seq]

    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or int(packed.positions.max()) < window:  # nothing lies so far back
        return attention_bias(visible, model)

    positions = packed.positions.to(model.device)
    near = positions[:, :, None] - positions[:, None, :] < window
    if not getattr(config, "layer_types", None):  # all layers have the window
        return attention_bias(visible & near, model)
    return {
        "full_attention": attention_bias(visible, model),
        "sliding_attention": attention_bias(visible & near, model),
    }


def attention_bias(visible: Tensor, model: PreTrainedModel) -> Tensor:
    """What attention adds to its scores: 0 where a query sees a key, else the most negative number.

    It has the dtype of the products, and its rows lie a multiple of 8 numbers apart, because CUDA
    would keep a copy of any other mask in every layer.

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
    """What the model's own forward makes of hidden states, with the head's scale and soft cap."""
    config = model.config.get_text_config()
    logits = model.get_output_embeddings()(hidden)
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    if scale != 1.0:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    if cap:
        logits = cap * torch.tanh(logits / cap)
    return logits
