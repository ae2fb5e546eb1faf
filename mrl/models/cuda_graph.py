"""You can skip this file on a first reading: it only makes sampling on a GPU faster.

rollout.py computes the same result without it. For one token, a small model runs about a thousand
short GPU kernels, and starting them takes several times as long as running them. A CUDA graph
records them once and then starts all of them together for each token. A recorded step must not move
or enlarge a tensor, and the host must not read its results. The cost is that finished rows stay in
the batch, and that attention also covers empty places.

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

RECORD_AFTER = 1  # tokens before a recording; by then each kernel is chosen and each weight is cast
FREE = 4 * 2**30  # bytes; if less is free, the allocator's cache is emptied before a recording
# tokens that are computed both ways; one token would not reveal a value that the recording froze
COMPARED = 4
# largest accepted gap between logits, as a share of the largest logit; TF32 alone causes 1e-3
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
LOOK_EVERY = 16  # tokens between checks for finished rows; each check makes the host wait

# (logits [rows, vocab], uniform [rows]) -> one token per row, and its log-prob
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_compared: WeakSet[PreTrainedModel] = WeakSet()  # models whose recordings passed the check
# Failed recordings. After one failure nothing is recorded, because a failed recording keeps memory.
_failures: list[str] = []


def can_record(prefilled: DynamicCache, device: torch.device) -> bool:
    """Whether the device is CUDA, no recording has failed, and all layers cache keys and values."""
    return device.type == "cuda" and not _failures and keeps_all(prefilled)


class FixedCache:
    """A cache that does not grow: per layer one tensor, [rows, 2 * key heads, places, size].

    It holds the keys of a layer before its values. `place` is the index at which the next token is
    written.
    """

    def __init__(self, prefilled: DynamicCache, places: int) -> None:
        seq = prefilled.get_seq_length()
        more = (0, 0, 0, places - seq)
        # `can_record` has checked that each of these layers has keys and values
        layers = cast(list[Any], prefilled.layers)
        self.place = torch.tensor([seq], device=layers[0].keys.device)
        self.layers: list[Tensor] = []
        for layer in layers:
            self.layers.append(pad(torch.cat([layer.keys, layer.values], dim=1), more))
            layer.keys = layer.values = None  # so that only one layer at a time exists twice

    def add(self, new: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write one token's keys and values, and return those of all places (see `Cache`)."""
        held = self.layers[layer]
        held.index_copy_(2, self.place, new.to(held.dtype))
        keys, values = held.chunk(2, dim=1)
        return keys, values

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """The same for the layers of `transformers`, which have keys and values apart."""
        return self.add(torch.cat([keys, values], dim=1), layer)


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
    """Sample completions from the state after the prompts.

    logits: [rows, vocab]; mask: [rows, seq] bool; positions: [rows, 1], those of the last tokens;
    prefilled: the cache after the prompts, which this function empties; uniform: [max_new_tokens,
    rows] in [0, 1); eos_ids: [number of end tokens].
    Returns the fields of `Completions`, or None if nothing can be recorded.
    """
    if not can_record(prefilled, mask.device):
        return None

    rows, seq = mask.shape
    most, device = len(uniform), mask.device
    places = (seq + most + 7) // 8 * 8  # attention would copy masks of any other length
    fixed = FixedCache(prefilled, places)
    read = one_token_decoder(model) or partial(_read, model)
    dtype = fixed.layers[0].dtype
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
    # A recording is deleted when this function ends, so only one exists at a time. At its deletion,
    # torch also frees cuBLAS's memory for the stream of all recordings (pytorch issue 193402).
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
    """A recording that repeats `step`, or `step` itself if it cannot be recorded correctly."""
    try:
        replay = _capture(step)
        if model not in _compared:
            gap = _largest_gap(step, replay, state)
            if not gap < close:  # `not`, so that NaN fails as well
                raise RuntimeError(f"logits differ by {gap:.2g} of the largest one")
            _compared.add(model)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # not the model's fault, and sampling without a recording needs as much memory
        _failures.append(str(error).strip().split("\n")[0])
        logging.get_logger(__name__).warning(
            "Sampling continues without a CUDA graph, which is slower: this model's kernels cannot "
            f"be recorded ({_failures[-1]}). The program will not try again."
        )
        return step
    return replay


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """Record `step` without computing it. Raises RuntimeError with the cause if that fails.

    This does not use `torch.cuda.graph`, which would return all cached memory to the driver: in
    every step, learning would have to allocate that memory again. A recording cannot free cached
    memory by itself, so we empty the cache here if little memory is free.
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
        # the error raised last is about ending the recording; the earlier one is its cause
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

    state: the tensors that both change, the logits first. Their values are restored afterwards.
    """
    start = [tensor.clone() for tensor in state]
    gaps = []
    try:
        for _ in range(COMPARED):
            now = [tensor.clone() for tensor in state]
            step()
            wanted = state[0].clone()
            # both get the same input, because a difference in the last bit may change the token
            _put_back(state, now)
            replay()
            gaps.append((state[0] - wanted).abs().max() / wanted.abs().max())
    finally:
        _put_back(state, start)
    return float(torch.stack(gaps).max())


def _put_back(state: Sequence[Tensor], old: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, old, strict=True):
        tensor.copy_(value)
