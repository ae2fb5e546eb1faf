"""Sample groups of completions, with a KV cache that computes each prompt only once.

A completion is sampled from exactly the distribution under which it is scored later:
softmax(logits / temperature) over the tokens that the policy may write (`scaled_logprobs` in
logprobs.py). There is no top-k and no top-p, because a loss that ignores them is silently
off-policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mrl.decoder import one_token_decoder
from mrl.logprobs import attention_bias, head_logits, scaled_logprobs

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel

pad_left = partial(pad_sequence, batch_first=True, padding_side="left")  # [batch, seq]
# If fewer than this share of the rows are still running, they are copied into a smaller batch.
COMPACT_BELOW = 0.8
# The vocabulary from which on `draw` works on two levels, and the tokens of one block.
SMALL_VOCABULARY, BLOCK = 4096, 128
# The type of a faster sampling loop. It returns None if it cannot sample for this model.
Decode = Callable[..., tuple[Tensor, ...] | None]


class _Cache(DynamicCache):
    """A cache that stores keys in the dtype of the values.

    Under autocast the keys are float32, and each would be cast again for every later token.
    """

    def update(
        self, keys: Tensor, values: Tensor, layer: int, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(keys.to(values.dtype), values, layer, **kwargs)

    def add(self, new: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add one token for decoder.py (see its `Cache`)."""
        keys, values = new.chunk(2, dim=1)
        return self.update(keys, values, layer)


class _Rows:
    """The rows of a batch between two tokens: what they have read, and how they read the next."""

    def __init__(
        self, model: PreTrainedModel, mask: Tensor, positions: Tensor, cache: _Cache
    ) -> None:
        self.model, self.mask, self.positions = model, mask, positions
        self.cache = cache
        self.decoder = one_token_decoder(model)

    def keep(self, goes_on: Tensor) -> None:
        """Drop the rows that are False in `goes_on`, [rows] bool."""
        self.cache.batch_select_indices(goes_on.nonzero().squeeze(1))
        self.mask, self.positions = self.mask[goes_on], self.positions[goes_on]

    def read(self, tokens: Tensor) -> Tensor:
        """Let the model read one token per row, [rows]; returns the next logits, [rows, vocab]."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        self.positions = self.positions + 1
        if not self.decoder:
            return _last_logits(self.model, tokens[:, None], self.mask, self.positions, self.cache)
        bias = None  # without padding, every row sees all its keys
        if not self.mask.all():
            bias = attention_bias(self.mask[:, None, :], self.model)
        return self.decoder(tokens, self.positions, bias, self.cache)


@dataclass(frozen=True)
class Completions:
    """What `sample_completions` returns. The rows of one prompt are adjacent."""

    token_ids: Tensor  # [rows, max_new_tokens] int64; valid up to `lengths`
    logprobs: Tensor  # [rows, max_new_tokens] float32, nats
    lengths: Tensor  # [rows] int64, EOS included
    finished: Tensor  # [rows] bool: True if EOS was sampled


def keeps_all(cache: DynamicCache) -> bool:
    """Whether every layer caches the keys and values of all tokens, and nothing else."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    logprobs: [rows, vocab]; uniform: [rows] in [0, 1).  Returns [rows] int64.
    One uniform number per row is enough; torch.multinomial would draw one exponential per logit.
    The cumulative sum is in float64, so that the tail of a large vocabulary is not rounded away.
    (The uniform number is float32, a multiple of 2^-24, so a probability is accurate to 6e-8.) A
    token of probability 0 is never drawn, because the first entry *above* the uniform number is
    taken.
    """
    vocabulary = logprobs.shape[-1]
    if vocabulary > SMALL_VOCABULARY:
        drawn = _draw_on_two_levels(logprobs, uniform.double()[:, None])
    else:
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        threshold = uniform.double()[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True)
    # without the limit, NaN would give an invalid index; `Policy.rollout` raises an error later
    return drawn.squeeze(-1).clamp(max=vocabulary - 1)


def _draw_on_two_levels(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The same for a large vocabulary: first draw a block of tokens, then a token of the block.

    Only the sums of blocks and the drawn block are in float64, which saves most of the memory that
    the other way reads and writes.  logprobs: [rows, vocab]; uniform and result: [rows, 1].
    """
    rows, vocabulary = logprobs.shape
    number = -(-vocabulary // BLOCK)  # rounded up; the last block may end in zeros
    probabilities = logprobs.new_zeros(rows, number * BLOCK)
    torch.exp(logprobs, out=probabilities[:, :vocabulary])
    blocks = probabilities.view(rows, number, BLOCK)

    sums = blocks.sum(dim=-1, dtype=torch.float64)  # [rows, number]
    cumulative = sums.cumsum(dim=-1)
    threshold = uniform * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, threshold, right=True).clamp(max=number - 1)

    before = (cumulative - sums).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(dim=-1)
    # rounding could push the threshold out of the block, on either side
    below = torch.nextafter(inside[:, -1:], torch.zeros_like(threshold))
    threshold = torch.minimum((threshold - before).clamp(min=0), below)
    return block * BLOCK + torch.searchsorted(inside, threshold, right=True)


@torch.no_grad()
def sample_completions(
    model: PreTrainedModel,
    prompts: list[list[int]],
    group_size: int,
    *,
    max_new_tokens: int,
    temperature: float,
    eos_ids: Tensor,
    suppressed: Tensor,
    generator: torch.Generator,
    decode: Decode | None = None,
) -> Completions:
    """Sample `group_size` completions for each prompt.

    eos_ids: [ends] int64, every token that ends a completion; suppressed: [vocab] bool.
    generator: on the CPU. Each row's uniform numbers are drawn before the first token, so that its
    completion does not depend on when other rows finish.
    decode: replaces the loop below (models/cuda_graph.py); it returns None if it cannot.
    """
    device = model.device
    rows = len(prompts) * group_size
    # drawn on the CPU, so that a seed gives the same numbers on every device
    uniform = torch.rand(max_new_tokens, rows, generator=generator).to(device)

    suppressed_ids = suppressed.nonzero().squeeze(1)

    def choose(logits: Tensor, uniform_now: Tensor) -> tuple[Tensor, Tensor]:
        # the next token of each row and its log-prob
        scaled = scaled_logprobs(logits, suppressed_ids, temperature)  # [rows, vocab]
        tokens = draw(scaled, uniform_now)
        return tokens, scaled.gather(1, tokens[:, None])[:, 0]

    # 1. compute every prompt once, and repeat its cache for the group
    logits, mask, positions, cache = _prefill(model, prompts, group_size)
    if decode:
        decoded = decode(model, choose, logits, mask, positions, cache, uniform, eos_ids)
        if decoded:
            return Completions(*decoded)

    # 2. sample one token per round for each row that is still running
    token_ids = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, max_new_tokens, device=device)
    lengths = torch.full((rows,), max_new_tokens, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    # batch row -> output row; finished rows stay in the batch until the others are copied out
    in_batch = torch.arange(rows, device=device)
    batch = _Rows(model, mask, positions, cache)
    for t in range(max_new_tokens):
        tokens, token_logprobs = choose(logits, uniform[t, in_batch])  # [rows in batch] each

        # a finished row may still be computed, but its tokens are no longer stored
        writes = ~finished[in_batch]
        rows_now = in_batch[writes]
        token_ids[rows_now, t] = tokens[writes]
        logprobs[rows_now, t] = token_logprobs[writes]
        ended = rows_now[torch.isin(tokens[writes], eos_ids)]
        finished[ended] = True
        lengths[ended] = t + 1

        goes_on = ~finished[in_batch]
        still_running = int(goes_on.sum())
        if still_running == 0 or t + 1 == max_new_tokens:
            break

        # drop finished rows, but rarely, because this copies the cache of the other rows
        if still_running < COMPACT_BELOW * len(in_batch):
            batch.keep(goes_on)
            in_batch, tokens = in_batch[goes_on], tokens[goes_on]
        logits = batch.read(tokens)

    return Completions(token_ids, logprobs, lengths, finished)


def _prefill(
    model: PreTrainedModel, prompts: list[list[int]], group_size: int
) -> tuple[Tensor, Tensor, Tensor, _Cache]:
    """Read the prompts. Returns logits [rows, vocab], mask [rows, seq], positions [rows, 1], cache.

    The logits are those of the first completion token.
    """
    prompt_ids = pad_left([torch.tensor(p) for p in prompts]).to(model.device)
    # made from lengths, never from token ids: the padding token may also be an EOS token
    mask = pad_left([torch.ones(len(p), dtype=torch.bool) for p in prompts]).to(model.device)
    cache = _Cache(config=model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)  # padding on the left is not counted
    logits = _last_logits(model, prompt_ids, _prompt_mask(model, mask, cache), positions, cache)

    cache.batch_repeat_interleave(group_size)
    logits = logits.repeat_interleave(group_size, dim=0)
    mask = mask.repeat_interleave(group_size, dim=0)
    positions = positions[:, -1:].repeat_interleave(group_size, dim=0)
    return logits, mask, positions, cache


def _prompt_mask(model: PreTrainedModel, mask: Tensor, cache: DynamicCache) -> Tensor:
    """The `attention_mask` of the prompts: a bias [prompts, 1, seq, seq], or `mask` itself.

    In the bias, a padding position sees itself, because an attention row that sees nothing becomes
    NaN in some CUDA kernels. If some layer does not keep all tokens (`keeps_all`), the model gets
    `mask`, [prompts, seq], and makes a bias of its own for each kind of layer.
    """
    if not keeps_all(cache):
        return mask

    square = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device)
    itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    visible = (square.tril() & mask[:, None, :]) | itself
    return attention_bias(visible, model)


def _last_logits(
    model: PreTrainedModel, token_ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache
) -> Tensor:
    """The logits of the token after each row's last one, [rows, vocab]."""
    output = model.get_decoder()(
        input_ids=token_ids,
        attention_mask=mask,
        position_ids=positions,
        cache=cache,
        use_cache=True,
    )
    # Slice to [rows, hidden] before the head: a slice [rows, 1, hidden] in bfloat16 has strides
    # for which a CPU would copy the head's matrix once per row.
    return head_logits(model, output.last_hidden_state[:, -1])
