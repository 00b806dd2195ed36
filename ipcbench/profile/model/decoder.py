"""A decoder shaped like Llama or Qwen3, in plain torch: norm, attention with grouped keys and values, norm, gated MLP.

Its modules have the names that transformers gives them. Weights follow from a seed and the name of the parameter alone,
so that every rank makes those of its own part, fused or not, and all agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from ipcbench.models import Model

Turns: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""Cosines and sines by which queries and keys are rotated, each (tokens, head_dim)."""

SEED: Final = 20_240_601
_EPSILON = 1e-6
_ROPE_BASE = 10_000.0
_WEIGHT_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class Form:
    """How the same function is computed.

    Attributes:
        attention: `sdpa` uses torch's fused kernel; `eager` multiplies, masks, takes the softmax and multiplies.
        is_fused: whether q, k and v are one linear layer, and gate and up another.
    """

    attention: Literal["eager", "sdpa"] = "sdpa"
    is_fused: bool = False


class Cache:
    """Keys and values of the tokens so far, in memory that is taken once."""

    def __init__(self, layers: int, batch: int, capacity: int, key_values: tuple[int, int], like: torch.Tensor) -> None:
        """Take the memory.

        Args:
            layers: of this rank.
            batch: sequences.
            capacity: most tokens of a sequence.
            key_values: heads of keys and values of this rank, and elements of a head.
            like: has the type and the device.
        """
        heads, of_head = key_values
        shape = (layers, 2, batch, heads, capacity, of_head)
        self._tensor = torch.zeros(shape, dtype=like.dtype, device=like.device)

    def put(
        self, layer: int, position: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put keys and values, each (batch, heads, tokens, head_dim), behind those of `position` tokens; return all."""
        keys, values = self._tensor[layer]
        end = position + key.shape[2]
        keys[:, :, position:end] = key
        values[:, :, position:end] = value
        return keys[:, :, :end], values[:, :, :end]


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last dimension, and multiply by weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, self.weight.shape, self.weight, _EPSILON)


class Rotary(nn.Module):
    """Cosines and sines of positions, from tables that are made once and grow when they must."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self._tables: tuple[torch.Tensor, ...] = ()

    def forward(self, start: int, count: int, like: torch.Tensor) -> Turns:
        end = start + count
        if not self._tables or self._tables[0].shape[0] < end:
            exponents = torch.arange(0, self.head_dim, 2, device=like.device, dtype=torch.float32) / self.head_dim
            positions = torch.arange(2 * end, device=like.device, dtype=torch.float32)
            angles = torch.outer(positions, _ROPE_BASE**-exponents).repeat(1, 2)
            self._tables = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        cosines, sines = self._tables
        return cosines[start:end], sines[start:end]


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


class Products:
    """The two products of eager attention."""

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return query · keyᵀ, (batch, heads, tokens, all tokens)."""
        return query @ key.transpose(2, 3)

    def attention(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return weights · value, (batch, heads, tokens, head_dim)."""
        return weights @ value


class Fused(nn.Linear):
    """Linear layers of the same input in one.

    Attributes:
        parts: name of each → its elements of the output.
    """

    def __init__(self, size: int, parts: dict[str, int], *, bias: bool) -> None:
        super().__init__(size, sum(parts.values()), bias=bias)
        self.parts = parts


def _linears(owner: nn.Module, size: int, parts: dict[str, int], fused: str | None, *, bias: bool) -> None:
    """Give a module linear layers of the same input, by their names, or one in their place."""
    if fused is not None:
        setattr(owner, fused, Fused(size, parts, bias=bias))
        return
    for name, part in parts.items():
        setattr(owner, name, nn.Linear(size, part, bias=bias))


class Attention(nn.Module):
    """Attention of each token to those before it; the number of heads follows from the weights that are there."""

    def __init__(self, model: Model, form: Form, index: int) -> None:
        super().__init__()
        self.form, self.head_dim, self.layer_idx = form, model.head_dim, index
        self.group = model.num_attention_heads // model.num_key_value_heads
        hidden, query, key_value = model.hidden_size, model.query_size, model.key_value_size
        sizes = {"q_proj": query, "k_proj": key_value, "v_proj": key_value}
        _linears(self, hidden, sizes, "qkv_proj" if form.is_fused else None, bias=model.attention_bias)
        self.o_proj = nn.Linear(query, hidden, bias=model.attention_bias)
        self.q_norm = RMSNorm(model.head_dim) if model.has_qk_norm else nn.Identity()
        self.k_norm = RMSNorm(model.head_dim) if model.has_qk_norm else nn.Identity()
        self.products = Products()

    def forward(self, hidden: torch.Tensor, turns: Turns, cache: Cache, position: int) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in self._qkv(hidden))
        query, key = _rotated(self.q_norm(query), *turns), _rotated(self.k_norm(key), *turns)
        key, value = cache.put(self.layer_idx, position, key, value)
        mixed = self._eager(query, key, value) if self.form.attention == "eager" else self._fused(query, key, value)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _qkv(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.form.is_fused:
            return self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        fused: torch.Tensor = self.qkv_proj(hidden)
        each = fused.shape[-1] // (self.group + 2)
        return tuple(fused.split((self.group * each, each, each), dim=-1))

    def _fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        is_causal = query.shape[2] > 1
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=self.group > 1
        )

    def _eager(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        tokens, total = query.shape[2], key.shape[2]
        key, value = key.repeat_interleave(self.group, 1), value.repeat_interleave(self.group, 1)
        scores = self.products.scores(query * self.head_dim**-0.5, key)
        if tokens > 1:
            hidden = torch.ones((tokens, total), dtype=torch.bool, device=query.device).triu(total - tokens + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        return self.products.attention(weights, value)


class MLP(nn.Module):
    """The gated MLP: down(silu(gate(x)) · up(x))."""

    def __init__(self, model: Model, form: Form) -> None:
        super().__init__()
        hidden, inner = model.hidden_size, model.intermediate_size
        sizes = {"gate_proj": inner, "up_proj": inner}
        _linears(self, hidden, sizes, "gate_up_proj" if form.is_fused else None, bias=model.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=model.mlp_bias)
        self.is_fused = form.is_fused

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = (
            self.gate_up_proj(hidden).chunk(2, dim=-1)
            if self.is_fused
            else (self.gate_proj(hidden), self.up_proj(hidden))
        )
        return self.down_proj(functional.silu(gate) * up)


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and added to what it was given."""

    def __init__(self, model: Model, form: Form, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model.hidden_size)
        self.self_attn = Attention(model, form, index)
        self.post_attention_layernorm = RMSNorm(model.hidden_size)
        self.mlp = MLP(model, form)

    def forward(self, hidden: torch.Tensor, turns: Turns, cache: Cache, position: int) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turns, cache, position)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """The decoder, or the layers of one stage of it: the first has the embedding, the last the norm and the LM head.

    Make it under `torch.device("meta")`; `fill` then takes the memory and gives the weights.
    """

    def __init__(self, model: Model, form: Form = Form(), layers: range | None = None) -> None:
        super().__init__()
        self.facts, self.form, self.first = model, form, layers.start if layers else 0
        layers = layers or range(model.num_hidden_layers)
        is_first, is_last = layers.start == 0, layers.stop == model.num_hidden_layers
        table = torch.empty(model.vocab_size, model.hidden_size)  # drawing it on `meta` would load torch's compiler
        self.embed_tokens = nn.Embedding.from_pretrained(table) if is_first else None
        self.layers = nn.ModuleList([Layer(model, form, index) for index in range(len(layers))])
        self.rotary_emb = Rotary(model.head_dim)
        self.norm = RMSNorm(model.hidden_size) if is_last else None
        self.lm_head = nn.Linear(model.hidden_size, model.vocab_size, bias=False) if is_last else None
        if self.lm_head and self.embed_tokens and model.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, inputs: torch.Tensor, cache: Cache, position: int) -> torch.Tensor:
        """Return the logits of the last token, (batch, 1, vocabulary); of a stage before the last, its hidden states.

        Args:
            inputs: ids of tokens, (batch, tokens); or the hidden states of the stage before, (batch, tokens, hidden).
            cache: with the tokens before these.
            position: how many these are.
        """
        hidden = self.embed_tokens(inputs) if self.embed_tokens else inputs
        turns = self.rotary_emb(position, inputs.shape[1], hidden)
        for layer in self.layers:
            hidden = layer(hidden, turns, cache, position)
        return self.lm_head(self.norm(hidden[:, -1:])) if self.lm_head and self.norm else hidden

    def fill(self, like: torch.Tensor, shard: Callable[[nn.Module], None] | None = None) -> None:
        """Take memory of the type and on the device of `like` for the weights of the seed; on `meta` there are none.

        Args:
            like: has the type and the device.
            shard: called with each layer as soon as it has its weights, to leave only this rank's part of them.
        """
        self.to(like.dtype)
        is_tied = self.facts.tie_word_embeddings
        has_table = isinstance(self.embed_tokens, nn.Embedding)
        for index, layer in enumerate(self.layers):
            _fill(layer, f"layers.{self.first + index}", like)
            if shard is not None:
                shard(layer)
        for name in ("embed_tokens", "norm", "lm_head"):
            module = getattr(self, name)
            if module is not None and not (name == "lm_head" and is_tied and has_table):
                _fill(module, "embed_tokens" if name == "lm_head" and is_tied else name, like)
        if is_tied and self.lm_head and self.embed_tokens and has_table:
            self.lm_head.weight = self.embed_tokens.weight


def _fill(module: nn.Module, path: str, like: torch.Tensor) -> None:
    if like.is_meta:
        return
    for name, owner in module.named_modules(prefix=path):
        for kind, parameter in list(owner.named_parameters(recurse=False)):
            stem = name.rpartition(".")[0]
            parts = {f"{stem}.{part}": size for part, size in owner.parts.items()} if isinstance(owner, Fused) else {}
            drawn = [
                _drawn(f"{part}.{kind}", (size, *parameter.shape[1:]), is_norm=isinstance(owner, RMSNorm))
                for part, size in (parts or {name: parameter.shape[0]}).items()
            ]
            setattr(owner, kind, nn.Parameter(torch.cat(drawn).to(like.device, like.dtype), requires_grad=False))


def _drawn(name: str, shape: tuple[int, ...], *, is_norm: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator, dtype=torch.float32).mul_(_WEIGHT_DEVIATION)
    return values.add_(1.0) if is_norm else values
