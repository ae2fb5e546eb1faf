"""You can skip this file on a first reading: it only makes sampling faster.

It computes one new token per row through the layers of a Qwen2 or Llama model, where sampling
spends nearly all of its time. `transformers` computes the same numbers with about twice as many
small operations. This file saves more than half of them by joining matrices that have the same
input: queries, keys and values are one matrix product, and so are the two halves of the MLP. In
float32 on a CPU the results are equal bit for bit (tests/test_decoder.py).

`one_token_decoder` returns None for models of other families, with adapters (LoRA), or with sliding
windows. Sampling then calls the model itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from mrl.logprobs import head_logits

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel

FAMILIES = ("qwen2", "llama")  # values of `model_type`


class Cache(Protocol):
    """Holds the keys and values of earlier tokens."""

    def add(self, new: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Add one token's keys and values, and return those of all tokens.

        new: [rows, 2 * key heads, 1, size], the keys before the values.
        """
        ...


class Layer(NamedTuple):
    """The weights of one layer. Matrices with the same input are joined along their output."""

    attention_norm: Tensor  # [hidden]
    # [heads * head size, hidden]; the heads are queries, keys, values and perhaps turned queries
    # and keys
    qkv: Tensor
    qkv_bias: Tensor | None
    attention_out: Tensor  # [hidden, query heads * head size]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * MLP size, hidden]
    mlp_out: Tensor  # [hidden, MLP size]


class OneTokenDecoder:
    """The forward pass of one new token per row, with copies of the model's current weights.

    turns_weights: whether the matrices of queries and keys also exist turned (see `quarter_turn`).
    On a GPU this saves two kernels per layer and token. On a CPU the larger product takes longer
    than turning the heads themselves.
    """

    def __init__(self, model: PreTrainedModel, turns_weights: bool) -> None:
        self.model, self.turns_weights = model, turns_weights
        config = model.config
        self.epsilon = config.rms_norm_eps
        self.query_heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads

        self.layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
            biases = [part.bias for part in qkv if part.bias is not None]  # three or none
            size = attention.head_dim
            weights = Layer(
                attention_norm=layer.input_layernorm.weight,
                qkv=_for_products(self._joined([part.weight for part in qkv], size)),
                qkv_bias=_for_products(self._joined(biases, size)) if biases else None,
                attention_out=_for_products(attention.o_proj.weight),
                mlp_norm=layer.post_attention_layernorm.weight,
                gate_up=_for_products(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                mlp_out=_for_products(mlp.down_proj.weight),
            )
            self.layers.append(weights)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, bias: Tensor | None, cache: Cache
    ) -> Tensor:
        """The logits of the token after `token_ids`, [rows, vocab].

        token_ids: [rows]. positions: [rows, 1], the positions of these tokens. bias: [rows, 1, 1,
        keys], added to the attention scores (`logprobs.attention_bias`), or None if every row sees
        all its keys.
        """
        decoder = self.model.model
        rows, queries = len(token_ids), self.query_heads
        rotated = queries + self.key_heads  # values are not rotated

        hidden = embedding(token_ids, decoder.embed_tokens.weight)  # [rows, hidden]
        cos, sin = decoder.rotary_emb(hidden, positions)  # [rows, 1, head size] each

        for number, layer in enumerate(self.layers):
            # attention: the new query of each row attends to the keys of all tokens in the row
            normed = rms_norm(
                hidden, layer.attention_norm.shape, layer.attention_norm, self.epsilon
            )
            # [rows, heads, head size]: queries, keys, values (and turned queries and keys)
            heads = linear(normed, layer.qkv, layer.qkv_bias).view(rows, -1, cos.shape[-1])
            plain, after = heads[:, :rotated], heads[:, rotated + self.key_heads :]
            turned = after if self.turns_weights else quarter_turn(plain, dim=2)
            torch.add(plain * cos, turned * sin, out=plain)  # rotated by the position's angles
            keys, values = cache.add(heads[:, queries : rotated + self.key_heads, None], number)
            query = plain[:, :queries, None]  # [rows, query heads, 1, head size]
            if bias is None:
                seen = scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            else:
                # with a mask, the fast kernel needs the query heads that share a key head as rows
                query = query.reshape(rows, self.key_heads, -1, query.shape[-1])
                seen = scaled_dot_product_attention(query, keys, values, attn_mask=bias)
            hidden = hidden + linear(seen.reshape(rows, -1), layer.attention_out)

            # MLP: silu(gate) decides how much of each `up` value passes
            normed = rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self.epsilon)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.mlp_out)

        norm = decoder.norm.weight
        return head_logits(self.model, rms_norm(hidden, norm.shape, norm, self.epsilon))

    def _joined(self, qkv: list[Tensor], size: int) -> Tensor:
        """Matrices (or biases) of queries, keys and values as one; behind them the turned ones."""
        if self.turns_weights:
            for part in qkv[:2]:  # values are not rotated
                heads = part.view(-1, size, *part.shape[1:])
                qkv.append(quarter_turn(heads, dim=1).reshape(part.shape))
        return torch.cat(qkv)


def quarter_turn(heads: Tensor, dim: int) -> Tensor:
    """Turn the pairs (i, i + size / 2) along `dim` by 90 degrees: (a, b) becomes (-b, a).

    Rotary position embedding rotates each pair of a head by an angle that depends on the position:
    cos(angle) * heads + sin(angle) * quarter_turn(heads).
    """
    first, second = heads.chunk(2, dim)
    return torch.cat([-second, first], dim)


def one_token_decoder(model: PreTrainedModel) -> OneTokenDecoder | None:
    """A decoder for a model whose layers are written out here; None for any other model."""
    config = model.config
    known = config.model_type in FAMILIES and config._attn_implementation == "sdpa"
    if not known or config.hidden_act != "silu":
        return None
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return None
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return None  # Llama may have these biases, but this file does not add them
    if any(type(module).__module__.startswith("peft.") for module in model.modules()):
        return None  # layers with adapters compute more than their weights say
    return OneTokenDecoder(model, turns_weights=model.device.type == "cuda")


def _for_products(weight: Tensor) -> Tensor:
    """A weight in the dtype of matrix products, so that autocast does not cast it at each token."""
    device = weight.device.type
    if torch.is_autocast_enabled(device):
        return weight.to(torch.get_autocast_dtype(device))
    return weight
