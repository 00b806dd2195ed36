"""The operations of a forward pass with their shapes and FLOPs, and the number of a model's parameters.

What is counted are the embedding, the linear layers and the products of matrices, which do nearly all the work. Norms,
rotations, activations and the softmax have no operation here; the weights of norms count as parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ipcbench.models.config import Model
from ipcbench.spec.checks import whole_number

Shape: TypeAlias = "tuple[int, ...]"
Kind: TypeAlias = Literal["embedding", "linear", "matmul", "lm_head"]

MOST_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. Shapes are those of one sequence, without a dimension for a batch.

    Attributes:
        name: `embedding`, `qkv`, `scores`, `attention`, `o`, `gate_up`, `down` or `lm_head`.
        kind: `linear` layers and the `lm_head` have weights; a `matmul` multiplies its two inputs.
        layer: from 0; None outside the layers.
        inputs: of the embedding, the ids of the tokens.
        weights: each (elements of an output, elements of an input); of the embedding, (vocabulary, hidden).
        outputs: as many as weights; one of a matmul.
        flops_count: 2·m·n·k for each product of an m×k and a k×n matrix; 0 for the embedding, which only looks up.
    """

    name: str
    kind: Kind
    layer: int | None
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    flops_count: int


def operations(model: Model, tokens: int) -> Iterator[Operation]:
    """Return the operations of a forward pass over a sequence of `tokens`, in order.

    Keys and values are repeated to all heads of the queries, and scores are computed for every pair of tokens, also
    those that a causal mask hides. The LM head works on the last token only.

    Raises:
        ConfigError: `tokens` is not a whole number from 1 to 1,048,576.
    """
    return _operations(model, whole_number("tokens", tokens, 1, MOST_TOKENS))


def _operations(model: Model, tokens: int) -> Iterator[Operation]:
    hidden, table = model.hidden_size, (model.vocab_size, model.hidden_size)
    yield Operation("embedding", "embedding", None, ((tokens,),), (table,), ((tokens, hidden),), 0)
    for layer in range(model.num_hidden_layers):
        yield from _layer(model, tokens, layer)
    yield _linear("lm_head", None, 1, hidden, model.vocab_size, kind="lm_head")


def _layer(model: Model, tokens: int, layer: int) -> Iterator[Operation]:
    hidden, query, inner = model.hidden_size, model.query_size, model.intermediate_size
    heads, of_head = model.num_attention_heads, (model.num_attention_heads, tokens, model.head_dim)
    scores, flops_count = (heads, tokens, tokens), 2 * heads * tokens * tokens * model.head_dim
    yield _linear("qkv", layer, tokens, hidden, query, model.key_value_size, model.key_value_size)
    yield Operation("scores", "matmul", layer, (of_head, of_head), (), (scores,), flops_count)
    yield Operation("attention", "matmul", layer, (scores, of_head), (), (of_head,), flops_count)
    yield _linear("o", layer, tokens, query, hidden)
    yield _linear("gate_up", layer, tokens, hidden, inner, inner)
    yield _linear("down", layer, tokens, inner, hidden)


def _linear(name: str, layer: int | None, rows: int, size: int, *outputs: int, kind: Kind = "linear") -> Operation:
    """Return linear layers with the same input."""
    return Operation(
        name,
        kind,
        layer,
        inputs=((rows, size),),
        weights=tuple((output, size) for output in outputs),
        outputs=tuple((rows, output) for output in outputs),
        flops_count=2 * rows * size * sum(outputs),
    )


def parameters_count(model: Model) -> int:
    """Return the number of all parameters: weights, biases and norms; an embedding that the LM head shares, once."""
    hidden, inner, query, key_value = (
        model.hidden_size,
        model.intermediate_size,
        model.query_size,
        model.key_value_size,
    )
    layer = 2 * hidden * query + 2 * hidden * key_value + 3 * hidden * inner
    layer += 2 * hidden + 2 * model.head_dim * model.has_qk_norm
    layer += (query + 2 * key_value + hidden) * model.attention_bias + (2 * inner + hidden) * model.mlp_bias
    tables_count = 1 if model.tie_word_embeddings else 2
    return tables_count * model.vocab_size * hidden + model.num_hidden_layers * layer + hidden
