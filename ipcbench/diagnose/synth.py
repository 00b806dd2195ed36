"""Traffic from a model's config alone: the calls of a client whose layers multiply on a server, and a trace of them.

The client keeps tensors, norms, rotations, activations and the softmax; each linear layer and each product of matrices
is a call that takes its inputs there and brings its outputs back. No time of it is known, and none is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ipcbench.models import Model, Operation, operations
from ipcbench.spec.checks import require_choice
from ipcbench.trace.record.planned import PlannedCall, write_planned

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
Attention: TypeAlias = Literal["server", "client"]

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Type of the tensors → bytes of an element."""

TOKEN_ID_BYTES: Final = 8
"""Of an int64, whatever the type of the tensors."""

METHODS: Final = {"embedding": "Embedding", "linear": "BatchLinear", "matmul": "Matmul", "lm_head": "LMHead"}
"""Kind of an operation → the method that is called."""


def split_calls(
    model: Model, tokens: int, dtype: Dtype = "float32", attention: Attention = "server"
) -> tuple[PlannedCall, ...]:
    """Return the calls of one forward pass in order: method, bytes sent, bytes received. Bytes are those of the arrays.

    Args:
        model: whose layers they are.
        tokens: of the sequence.
        dtype: of all tensors but the ids of the tokens.
        attention: where the two products of attention are computed; on the client they are no calls.

    Raises:
        ConfigError: a value is not allowed.
    """
    require_choice("dtype", dtype, tuple(ITEM_BYTES))
    require_choice("attention", attention, ("server", "client"))
    return tuple(_calls(operations(model, tokens), ITEM_BYTES[dtype], skips_matmul=attention == "client"))


def _calls(steps: Iterator[Operation], item_bytes: int, *, skips_matmul: bool) -> Iterator[PlannedCall]:
    for step in steps:
        if step.kind == "matmul" and skips_matmul:
            continue
        sent, received = tensors_bytes(step, item_bytes)
        yield METHODS[step.kind], sum(sent), sum(received)


def tensors_bytes(step: Operation, item_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each tensor that the call of an operation sends, and of each that it brings back."""
    sent_bytes = TOKEN_ID_BYTES if step.kind == "embedding" else item_bytes
    return tuple(sent_bytes * prod(shape) for shape in step.inputs), tuple(
        item_bytes * prod(shape) for shape in step.outputs
    )


def write_trace(
    folder: Path, model: Model, tokens: int, dtype: Dtype = "float32", attention: Attention = "server"
) -> Path:
    """Write the calls of `split_calls` as a trace, for `ipcbench trace report`, `export` and `ipcbench replay`.

    Returns the file in the folder.

    Raises:
        ConfigError: a value is not allowed.
        StoreError: the folder holds a trace already, or the file cannot be written.
    """
    calls = split_calls(model, tokens, dtype, attention)
    return write_planned(folder, describe(model, tokens, dtype, attention), calls)


def describe(model: Model, tokens: int, dtype: Dtype = "float32", attention: Attention = "server") -> str:
    """Return in words whose calls `split_calls` returns."""
    where = ", attention on the client" if attention == "client" else ""
    return f"{model.name}, {tokens:,} tokens, {dtype}{where}"
