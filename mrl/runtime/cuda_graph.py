"""Sampling with a CUDA graph that is recorded once and started again for each token.

A reader can skip it: rollout.py computes the same.

A token of a small model is a thousand short kernels, and starting them takes several times as long
as they run. Here no tensor moves or grows and the host reads nothing, so the kernels of a token can
be recorded once and started together from then on. The price: rows that have ended stay in the
batch, and attention passes over places that are still empty.

A model is sampled in this way before it is trained, too, and refused if its log-probs are not those
of its plain forward pass (loading.py: packing_problem). Where a step cannot be recorded, sampling
goes on unrecorded and says so.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from mrl.errors import is_out_of_memory
from mrl.rollout import keeps_all

RECORD_AFTER = 3  # tokens: by then every kernel has been chosen and every weight cast
LOOK_EVERY = 16  # tokens: to ask whether all rows have ended makes the host wait for the device

# (logits [rows, vocab], uniform [rows]) -> a token a row and its log-prob
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

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
    end_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The fields of `Completions`, from the state after the prompts; None where it cannot.

    logits: [rows, vocab]; mask: [rows, seq] bool; positions: [rows, 1] of the last token;
    prefilled: its cache, used up; uniform: [max_new_tokens, rows] in [0, 1); end_ids: [ends].
    """
    if not can_record(prefilled, mask.device):
        return None

    rows, seq = mask.shape
    most, device = len(uniform), mask.device
    places = (seq + most + 7) // 8 * 8  # attention on CUDA would copy a mask of another width
    fixed = FixedCache(prefilled, places)
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
        finished.logical_or_((token[:, None] == end_ids).any(dim=1))

        # the model reads the token and gives the logits of the next one
        bias.index_fill_(3, fixed.place, 0)
        positions.add_(1)
        output = model(
            input_ids=token[:, None], attention_mask=bias, position_ids=positions,
            cache=fixed, use_cache=True,
        )  # fmt: skip
        logits.copy_(output.logits[:, -1])
        fixed.place.add_(1)
        t.add_(1)

    # A recording ends with this function, so only one lives at a time. When one dies, torch frees
    # what cuBLAS keeps for the stream that all were recorded in (pytorch issue 193402).
    next_token = step
    for number in range(1, most + 1):
        next_token()
        if number == RECORD_AFTER and number < most:
            next_token = _recorded(step)
        if number % LOOK_EVERY == 0 and bool(finished.all()):
            break
    return token_ids, logprobs, lengths, finished


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    """A recording that repeats `step`; `step` itself if that cannot be recorded."""
    try:
        return _capture(step)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise  # nothing is wrong with the model, and the plain loop needs as much
        _failures.append(str(error).strip().split("\n")[0])
        logging.get_logger(__name__).warning(
            "Sampling is slower than it could be: a token's kernels cannot be recorded for this "
            f"model ({_failures[-1]}). It goes on without, and no recording is tried again."
        )
        return step


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """A recording of `step`, which is not computed here; RuntimeError with the cause."""
    stream = torch.cuda.current_stream()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:
        torch.cuda.set_stream(stream)  # the recording's own would stay
        # this error comes from ending the recording; the earlier one is the cause
        raise RuntimeError(str(error.__context__ or error)) from error
    return graph.replay
