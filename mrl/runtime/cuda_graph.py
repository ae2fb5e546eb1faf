"""Sampling with one CUDA graph a token. A reader can skip this file: rollout.py says the same.

A token of a small model is a thousand short kernels, and starting them takes several times as long
as they run. Here no tensor moves or grows and the host reads nothing, so the kernels of a token can
be recorded once and started together from then on. The price: rows that have ended stay in the
batch, and attention passes over places that are still empty.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from mrl.rollout import keeps_all

RECORD_AFTER = 3  # tokens: by then every kernel has been chosen and every weight cast
LOOK_EVERY = 16  # tokens: to ask whether all rows have ended makes the host wait for the device

# (logits [rows, vocab], uniform [rows]) -> a token a row and its log-prob
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def can_record(prefilled: DynamicCache, device: torch.device) -> bool:
    """Whether it is CUDA, and every layer keeps keys and values alone, and all of them."""
    return device.type == "cuda" and keeps_all(prefilled)


class FixedCache:
    """Keys and values, [rows, heads, places, size] a layer; the next token's go to `place`."""

    def __init__(self, prefilled: DynamicCache, places: int) -> None:
        seq = prefilled.get_seq_length()
        self.place = torch.tensor([seq], device=prefilled.layers[0].keys.device)
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layer in prefilled.layers:
            keys, values = (pad(x, (0, 0, 0, places - seq)) for x in (layer.keys, layer.values))
            self.layers.append((keys, values))
            layer.keys = layer.values = None  # so that only one layer is there twice

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
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
    (rows, seq), most, device = mask.shape, len(uniform), mask.device
    places = -(-(seq + most) // 8) * 8  # attention on CUDA would copy a mask of another width
    fixed = FixedCache(prefilled, places)
    dtype = fixed.layers[0][0].dtype
    bias = torch.full((rows, 1, 1, places), torch.finfo(dtype).min, dtype=dtype, device=device)
    bias[:, 0, 0, :seq].masked_fill_(mask, 0)  # added to attention's scores: 0 where a key is seen
    t = torch.zeros(1, dtype=torch.int64, device=device)
    token_ids = torch.zeros(rows, most, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, most, device=device)
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def step() -> None:  # everything in place: a graph knows addresses, not tensors
        chosen, found = choose(logits, uniform.index_select(0, t)[0])
        token_ids.index_copy_(1, t, chosen[:, None])
        logprobs.index_copy_(1, t, found[:, None])
        lengths.add_(~finished)
        finished.logical_or_((chosen[:, None] == end_ids).any(dim=1))
        bias.index_fill_(3, fixed.place, 0)
        positions.add_(1)
        output = model(
            input_ids=chosen[:, None],
            attention_mask=bias,
            position_ids=positions,
            past_key_values=fixed,
            use_cache=True,
        )
        logits.copy_(output.logits[:, -1])
        fixed.place.add_(1)
        t.add_(1)

    next_token = step
    for number in range(1, most + 1):
        next_token()
        if number == RECORD_AFTER and device.type == "cuda":
            next_token = _recorded(step)
        if number % LOOK_EVERY == 0 and bool(finished.all()):
            break
    return token_ids, logprobs, lengths, finished


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    """What does `step` again and again; `step` itself if it cannot be recorded."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()  # is not computed here
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        sentence = f"Sampling is slower than it could be: no CUDA graph of this model ({reason})."
        logging.get_logger(__name__).warning_once(sentence)
        return step
    return graph.replay
