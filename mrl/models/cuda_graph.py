"""Sampling with a CUDA graph that is recorded once and started again for each token.

A reader can skip it: rollout.py computes the same.

A token of a small model is a thousand short kernels, and starting them takes several times as long
as they run. Here no tensor moves or grows and the host reads nothing, so the kernels of a token can
be recorded once and started together from then on. The price: rows that have ended stay in the
batch, and attention passes over places that are still empty.

A recording is checked. The first tokens of each model's first one are computed both ways, from the
same state; if logits differ, or anything raises, sampling goes on unrecorded and says so.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from mrl.decoder import one_token_decoder
from mrl.errors import is_out_of_memory
from mrl.rollout import keeps_all

RECORD_AFTER = 1  # tokens: by then every kernel has been chosen and every weight cast
FREE = 4 * 2**30  # bytes; with less, the allocator's cache is emptied before a recording
COMPARED = 4  # tokens; one would not show a number that the recording keeps and should not
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}  # share of the largest logit; TF32 costs 1e-3
LOOK_EVERY = 16  # tokens: to ask whether all rows have ended makes the host wait for the device

# (logits [rows, vocab], uniform [rows]) -> a token a row and its log-prob
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_compared: WeakSet[PreTrainedModel] = WeakSet()  # models whose recorded tokens were right
# of recordings; after one failure nothing is recorded any more, because its memory stays taken
_failures: list[str] = []


def can_record(prefilled: DynamicCache, device: torch.device) -> bool:
    """Whether the device is CUDA, no recording failed, and all layers keep only keys and values."""
    return device.type == "cuda" and not _failures and keeps_all(prefilled)


class FixedCache:
    """Keys and values, [rows, heads, places, size] a layer; the next token's go to `place`."""

    def __init__(self, prefilled: DynamicCache, places: int) -> None:
        seq = prefilled.get_seq_length()
        more = (0, 0, 0, places - seq)
        self.place = torch.tensor([seq], device=prefilled.layers[0].keys.device)
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layer in prefilled.layers:
            self.layers.append((pad(layer.keys, more), pad(layer.values, more)))
            layer.keys = layer.values = None  # freed: only one layer at a time is held twice

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
    """The fields of `Completions`, from the state after the prompts; None where it cannot.

    logits: [rows, vocab]; mask: [rows, seq] bool; positions: [rows, 1] of the last token;
    prefilled: its cache, used up; uniform: [max_new_tokens, rows] in [0, 1); eos_ids: [ends].
    """
    if not can_record(prefilled, mask.device):
        return None

    rows, seq = mask.shape
    most, device = len(uniform), mask.device
    places = (seq + most + 7) // 8 * 8  # attention on CUDA would copy a mask of another width
    fixed = FixedCache(prefilled, places)
    read = one_token_decoder(model) or partial(_read, model)
    dtype = fixed.layers[0][0].dtype
    bias = torch.full((rows, 1, 1, places), torch.finfo(dtype).min, dtype=dtype, device=device)
    bias[:, 0, 0, :seq].masked_fill_(mask, 0)  # added to attention's scores: 0 where a key is seen

    # what is being sampled; t: how many tokens each row has, so where the next one is written
    t = torch.zeros(1, dtype=torch.int64, device=device)
    token_ids = torch.zeros(rows, most, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, most, device=device)
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def step() -> None:  # everything in place: a graph knows addresses, not tensors
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

    # all that a token changes, apart from what the next one writes again
    state = (logits, positions, bias, fixed.place, t, lengths, finished)
    # A recording ends with this function, so only one lives at a time. When one dies, torch frees
    # what cuBLAS keeps for the stream that all were recorded in (pytorch issue 193402).
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
    """The logits after one token per row, [rows, vocab], by the model's own forward pass."""
    output = model(
        input_ids=token[:, None], attention_mask=bias, position_ids=positions,
        cache=fixed, use_cache=True,
    )  # fmt: skip
    return output.logits[:, -1]


def _recorded(
    model: PreTrainedModel, step: Callable[[], None], state: Sequence[Tensor], close: float
) -> Callable[[], None]:
    """A recording that repeats `step`; `step` itself if that cannot be recorded, or not rightly."""
    try:
        replay = _capture(step)
        if model not in _compared:
            gap = _largest_gap(step, replay, state)
            if not gap < close:  # NaN is not, either
                raise RuntimeError(f"its logits are off by {gap:.2g} of the largest")
            _compared.add(model)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # nothing is wrong with the model, and the plain loop needs as much
        _failures.append(str(error).strip().split("\n")[0])
        logging.get_logger(__name__).warning(
            "Sampling is slower than it could be: a token's kernels cannot be recorded for this "
            f"model ({_failures[-1]}). It goes on without, and no recording is tried again."
        )
        return step
    return replay


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """A recording of `step`, which is not computed here; RuntimeError with the cause.

    `torch.cuda.graph` would give all cached memory back to the driver first, and learning would
    have to map it again in every step. A recording cannot free cached memory by itself, so that is
    done here when little is free.
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
        # this error comes from ending the recording; the earlier one is the cause
        raise RuntimeError(str(error.__context__ or error)) from error
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


@cache
def _recording_stream() -> torch.cuda.Stream:
    """The stream of all recordings: one, because cuBLAS keeps memory for each that it meets."""
    return torch.cuda.Stream()


def _largest_gap(
    step: Callable[[], None], replay: Callable[[], None], state: Sequence[Tensor]
) -> float:
    """The gap between the logits of `step` and of its recording, as a share of the largest logit.

    state: the tensors that they change, the logits first; their values are put back.
    """
    start = [tensor.clone() for tensor in state]
    gaps = []
    try:
        for _ in range(COMPARED):
            now = [tensor.clone() for tensor in state]
            step()
            wanted = state[0].clone()
            _put_back(state, now)  # the same input, because the last bit may decide what is drawn
            replay()
            gaps.append((state[0] - wanted).abs().max() / wanted.abs().max())
    finally:
        _put_back(state, start)
    return float(torch.stack(gaps).max())


def _put_back(state: Sequence[Tensor], old: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, old, strict=True):
        tensor.copy_(value)
