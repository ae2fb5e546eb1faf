"""You can skip this file on a first reading: it only makes sampling on a GPU faster.

rollout.py computes the same result. For one token, a small model runs about a thousand short GPU
kernels, and starting them takes several times as long as running them. A CUDA graph records them
once and then starts all of them together for each token. For this, no tensor may move or grow, and
the host may not read results. The cost is that finished rows stay in the batch, and that attention
also covers empty places.

Each model's first recording is checked: its first tokens are computed both ways, from the same
state. If the logits differ, or if there is an error, sampling continues without a recording and
prints a warning.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from mrl.decoder import one_token_decoder
from mrl.errors import is_out_of_memory
from mrl.rollout import keeps_all

RECORD_AFTER = 1  # tokens; after that, every kernel has been chosen and every weight cast
FREE = 4 * 2**30  # bytes; if less is free, the allocator's cache is emptied before a recording
COMPARED = 4  # tokens; with one, a value wrongly frozen into the recording would go unnoticed
CLOSE = {
    torch.float32: 1e-3,
    torch.bfloat16: 3e-2,
}  # as a share of the largest logit; TF32 alone causes 1e-3
LOOK_EVERY = 16  # tokens between checks for finished rows, in which the host waits for the GPU

# (logits [rows, vocab], uniform [rows]) -> one token per row, and its log-prob
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_compared: WeakSet[PreTrainedModel] = WeakSet()  # models whose recordings passed the check
# Failed recordings. After one failure nothing is recorded, because a failed recording keeps memory.
_failures: list[str] = []


def can_record(prefilled: DynamicCache, device: torch.device) -> bool:
    """Whether the device is CUDA, no recording has failed, and all layers cache keys and values."""
    return device.type == "cuda" and not _failures and keeps_all(prefilled)


class FixedCache:
    """Keys and values, [rows, heads, places, size] per layer. `place` is the next token's index."""

    def __init__(self, prefilled: DynamicCache, places: int) -> None:
        seq = prefilled.get_seq_length()
        more = (0, 0, 0, places - seq)
        # `can_record` knows that each of these layers has keys and values
        layers = cast(list[Any], prefilled.layers)
        self.place = torch.tensor([seq], device=layers[0].keys.device)
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layer in layers:
            self.layers.append((pad(layer.keys, more), pad(layer.values, more)))
            layer.keys = layer.values = None  # freed at once, so that only one layer exists twice

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Write one token's keys and values; returns those of all places."""
        for held, new in zip(self.layers[layer], (keys, values), strict=True):
            held.index_copy_(2, self.place, new.to(held.dtype))
        return self.layers[layer]


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    choose: Choose,
    logits: Tensor,
    mask: Tensor,
    positions: Tensor,
    prefilled: DynamicCache,
    uniform: Tensor,
    eos_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Sample completions from the state after the prompts; None if nothing can be recorded.

    logits: [rows, vocab]; mask: [rows, seq] bool; positions: [rows, 1] of the last token;
    prefilled: the cache after the prompts, which is emptied; uniform: [max_new_tokens, rows] in
    [0, 1); eos_ids: [ends]. Returns the fields of `Completions`.
    """
    if not can_record(prefilled, mask.device):
        return None

    rows, seq = mask.shape
    most, device = len(uniform), mask.device
    places = (seq + most + 7) // 8 * 8  # a multiple of 8, because attention would copy other masks
    fixed = FixedCache(prefilled, places)
    read = one_token_decoder(model) or partial(_read, model)
    dtype = fixed.layers[0][0].dtype
    bias = torch.full((rows, 1, 1, places), torch.finfo(dtype).min, dtype=dtype, device=device)
    bias[:, 0, 0, :seq].masked_fill_(mask, 0)  # added to the attention scores: 0 for a visible key

    # the samples so far; t is the number of tokens per row, and so the index of the next one
    t = torch.zeros(1, dtype=torch.int64, device=device)
    token_ids = torch.zeros(rows, most, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, most, device=device)
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def step() -> None:  # changes tensors in place, because a graph refers to fixed addresses
        token, logprob = choose(logits, uniform.index_select(0, t)[0])
        token_ids.index_copy_(1, t, token[:, None])
        logprobs.index_copy_(1, t, logprob[:, None])
        lengths.add_(~finished)
        finished.logical_or_((token[:, None] == eos_ids).any(dim=1))

        # the model reads the token and gives the logits of the next one
        bias.index_fill_(3, fixed.place, 0)
        positions.add_(1)
        logits.copy_(read(token, positions, bias, fixed))
        fixed.place.add_(1)
        t.add_(1)

    # everything that a token changes, except what the next token overwrites
    state = (logits, positions, bias, fixed.place, t, lengths, finished)
    # A recording is deleted when this function ends, so only one exists at a time. Then torch also
    # frees cuBLAS's memory for the stream of all recordings (pytorch issue 193402).
    next_token = step
    for number in range(1, most + 1):
        next_token()
        if number == RECORD_AFTER and number + COMPARED <= most:
            next_token = _recorded(model, step, state, CLOSE[dtype])
        if number % LOOK_EVERY == 0 and bool(finished.all()):
            break
    return token_ids, logprobs, lengths, finished


def _read(
    model: PreTrainedModel, token: Tensor, positions: Tensor, bias: Tensor, fixed: FixedCache
) -> Tensor:
    """The logits after one token per row, [rows, vocab], from the model's own forward pass."""
    output = model(
        input_ids=token[:, None], attention_mask=bias, position_ids=positions,
        cache=fixed, use_cache=True,
    )  # fmt: skip
    return output.logits[:, -1]


def _recorded(
    model: PreTrainedModel, step: Callable[[], None], state: Sequence[Tensor], close: float
) -> Callable[[], None]:
    """A recording that repeats `step`, or `step` itself if that cannot be recorded correctly."""
    try:
        replay = _capture(step)
        if model not in _compared:
            gap = _largest_gap(step, replay, state)
            if not gap < close:  # `not`, so that NaN fails as well
                raise RuntimeError(f"logits differ by {gap:.2g} of the largest one")
            _compared.add(model)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # not a fault of the model, and sampling without a recording needs as much memory
        _failures.append(str(error).strip().split("\n")[0])
        logging.get_logger(__name__).warning(
            "Sampling continues more slowly than possible: this model's kernels cannot be recorded "
            f"as a CUDA graph ({_failures[-1]}). The program will not try it again."
        )
        return step
    return replay


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """Record `step` without computing it. Raises RuntimeError with the cause if that fails.

    This does not use `torch.cuda.graph`, which would return all cached memory to the driver, so
    that learning had to allocate it again in every step. Since a recording cannot free cached
    memory by itself, we do so here if little memory is free.
    """
    torch.cuda.synchronize()
    if torch.cuda.mem_get_info()[0] < FREE:
        torch.cuda.empty_cache()

    graph, stream = torch.cuda.CUDAGraph(), _recording_stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
    except RuntimeError as error:
        # this error comes from ending the recording; its cause is the earlier error
        raise RuntimeError(str(error.__context__ or error)) from error
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


@cache
def _recording_stream() -> torch.cuda.Stream:
    """The stream of all recordings. There is only one, because cuBLAS keeps memory per stream."""
    return torch.cuda.Stream()


def _largest_gap(
    step: Callable[[], None], replay: Callable[[], None], state: Sequence[Tensor]
) -> float:
    """How far the logits of `step` and of its recording differ, as a share of the largest logit.

    state: the tensors that both change, the logits first. Their values are restored.
    """
    start = [tensor.clone() for tensor in state]
    gaps = []
    try:
        for _ in range(COMPARED):
            now = [tensor.clone() for tensor in state]
            step()
            wanted = state[0].clone()
            _put_back(
                state, now
            )  # the same input for both, because the last bit may change the drawn token
            replay()
            gaps.append((state[0] - wanted).abs().max() / wanted.abs().max())
    finally:
        _put_back(state, start)
    return float(torch.stack(gaps).max())


def _put_back(state: Sequence[Tensor], old: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, old, strict=True):
        tensor.copy_(value)
