"""Split inference: rank 0, the client, keeps tensors, norms, rotations, softmax, activations and the cache; rank 1, the
server, has the embedding, all linear layers and the LM head, and computes the two products of attention.

A call sends its inputs, one after the other, and brings one tensor back: as `ipcbench diagnose`'s planned calls count,
6 a layer, one of the embedding and one of the LM head. Both know the order, so nothing but tensors is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import torch
from torch import nn

from ipcbench.models import Model
from ipcbench.profile.model import wire
from ipcbench.profile.model.decoder import MLP, Attention, Decoder, Form, Layer, Products

CLIENT: Final = 0
SERVER: Final = 1


def part(model: Model, rank: int, like: torch.Tensor) -> nn.Module:
    """Return the client or the server, called with inputs, cache and position; the client returns the logits."""
    with torch.device("meta"):
        decoder = Decoder(model, Form("eager", is_fused=True))
    if rank == SERVER:
        for layer in decoder.layers:  # norms are the client's
            layer.input_layernorm = layer.post_attention_layernorm = None
            layer.self_attn.q_norm = layer.self_attn.k_norm = None
        decoder.norm = None
        decoder.fill(like)
        return _Server(decoder, like)
    for owner in list(decoder.modules()):
        for name, module in list(owner.named_children()):
            if isinstance(module, nn.Linear | nn.Embedding):
                setattr(owner, name, _Remote(module, like))
    for layer in decoder.layers:
        layer.self_attn.products = _RemoteProducts()
    decoder.fill(like)
    return decoder


class _Remote(nn.Module):
    """A module of the server, called from the client."""

    def __init__(self, module: nn.Linear | nn.Embedding, like: torch.Tensor) -> None:
        super().__init__()
        is_table = isinstance(module, nn.Embedding)
        self._size = module.embedding_dim if is_table else module.out_features
        self._adds_size, self._like = is_table, like

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shape = inputs.shape if self._adds_size else inputs.shape[:-1]
        return _ask(self._like, (*shape, self._size), inputs)


class _RemoteProducts(Products):
    """The two products of attention, called from the client."""

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _ask(query, (*query.shape[:3], key.shape[2]), query, key)

    def attention(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _ask(weights, (*weights.shape[:3], value.shape[3]), weights, value)


def _ask(like: torch.Tensor, shape: tuple[int, ...], *inputs: torch.Tensor) -> torch.Tensor:
    """Make one call: send the inputs, and return the tensor of this shape that comes back, of the type of `like`."""
    for tensor in inputs:
        wire.send(tensor, SERVER)
    return wire.receive(shape, like, SERVER)


def _serve(function: Callable[..., torch.Tensor], like: torch.Tensor, *shapes: tuple[int, ...]) -> None:
    """Answer one call: take tensors of these shapes, and send what the function makes of them."""
    wire.send(function(*(wire.receive(shape, like, CLIENT) for shape in shapes)), CLIENT)


class _Server(nn.Module):
    """Answers the calls of one forward pass."""

    def __init__(self, decoder: Decoder, like: torch.Tensor) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head = cast(nn.Embedding, decoder.embed_tokens), cast(nn.Linear, decoder.lm_head)
        self.layers = nn.ModuleList([_ServedLayer(layer, like) for layer in decoder.layers])
        self._like, self._hidden_size = like, decoder.facts.hidden_size

    def forward(self, inputs: torch.Tensor, _cache: None, position: int) -> None:
        batch, tokens = inputs.shape
        ids = wire.receive((batch, tokens), self._like, CLIENT, torch.int64)
        wire.send(self.embed_tokens(ids), CLIENT)
        for layer in self.layers:
            layer(batch, tokens, position + tokens)
        _serve(self.lm_head, self._like, (batch, 1, self._hidden_size))


class _ServedLayer(nn.Module):
    def __init__(self, layer: Layer, like: torch.Tensor) -> None:
        super().__init__()
        self.self_attn, self.mlp = _ServedAttention(layer.self_attn, like), _ServedMLP(layer.mlp, like)

    def forward(self, batch: int, tokens: int, total: int) -> None:
        self.self_attn(batch, tokens, total)
        self.mlp(batch, tokens)


class _ServedAttention(nn.Module):
    def __init__(self, attention: Attention, like: torch.Tensor) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = cast(nn.Linear, attention.qkv_proj), attention.o_proj
        self._products, self._head_dim, self._like = attention.products, attention.head_dim, like

    def forward(self, batch: int, tokens: int, total: int) -> None:
        query_size = self.o_proj.in_features
        heads = query_size // self._head_dim
        of_tokens, of_all = (batch, heads, tokens, self._head_dim), (batch, heads, total, self._head_dim)
        _serve(self.qkv_proj, self._like, (batch, tokens, self.qkv_proj.in_features))
        _serve(self._products.scores, self._like, of_tokens, of_all)
        _serve(self._products.attention, self._like, (batch, heads, tokens, total), of_all)
        _serve(self.o_proj, self._like, (batch, tokens, query_size))


class _ServedMLP(nn.Module):
    def __init__(self, mlp: MLP, like: torch.Tensor) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj, self._like = cast(nn.Linear, mlp.gate_up_proj), mlp.down_proj, like

    def forward(self, batch: int, tokens: int) -> None:
        for linear in (self.gate_up_proj, self.down_proj):
            _serve(linear, self._like, (batch, tokens, linear.in_features))
