"""A small decoder in numpy whose linear layers and products of matrices are calls to a server in another process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from ipcbench import rpc, trace
from ipcbench.models import Model, read_model

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
METHODS = ("Embedding", "BatchLinear", "Matmul", "LMHead")


class Layers(Protocol):
    """What multiplies: here, or on a server."""

    def embed(self, ids: Any) -> Any: ...
    def linear(self, x: Any, *names: str) -> list[Any]: ...
    def matmul(self, a: Any, b: Any, *, transposed: bool) -> Any: ...
    def head(self, x: Any) -> Any: ...


@cache
def weight(path: str, dtype: str, name: str) -> Any:
    """Return a weight, the same in each process, by the names that `Here.linear` gets."""
    model = read_model(path)
    h, inner, kv, q = model.hidden_size, model.intermediate_size, model.key_value_size, model.query_size
    shapes = {"embedding": (model.vocab_size, h), "head": (model.vocab_size, h), "q": (q, h), "k": (kv, h),
              "v": (kv, h), "o": (h, q), "gate": (inner, h), "up": (inner, h), "down": (h, inner)}  # fmt: skip
    shape = shapes[name.partition("/")[0]]
    generator = np.random.default_rng([ord(letter) for letter in name])
    return (generator.standard_normal(shape) / np.sqrt(shape[1])).astype(DTYPES[dtype])


def times(a: Any, b: Any, dtype: str) -> Any:
    """Return the product of matrices, computed in single precision."""
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(DTYPES[dtype])


class Here:
    """Multiplies in this process."""

    def __init__(self, path: str, dtype: str) -> None:
        self.path, self.dtype = path, dtype

    def embed(self, ids: Any) -> Any:
        return weight(self.path, self.dtype, "embedding")[ids]

    def linear(self, x: Any, *names: str) -> list[Any]:
        return [times(x, weight(self.path, self.dtype, name).T, self.dtype) for name in names]

    def matmul(self, a: Any, b: Any, *, transposed: bool) -> Any:
        return times(a, b.swapaxes(1, 2) if transposed else b, self.dtype)

    def head(self, x: Any) -> Any:
        return self.linear(x, "head")[0]


class There:
    """Multiplies on a server, and records what each call sends and receives."""

    def __init__(self, client: rpc.Client, path: str, dtype: str) -> None:
        self._client, self._of = client, (path, dtype)

    def _call(self, method: str, name: str, arrays: tuple[Any, ...], *more: Any) -> Any:
        with trace.call(method) as call:
            call.serialized(sum(array.nbytes for array in arrays))
            call.sent()
            result = self._client.call(name, *self._of, *arrays, *more, timeout_s=30.0)
            call.received(sum(array.nbytes for array in (result if isinstance(result, list) else [result])))
        return result

    def embed(self, ids: Any) -> Any:
        return self._call("Embedding", "embed", (ids,))

    def linear(self, x: Any, *names: str) -> list[Any]:
        outputs: list[Any] = self._call("BatchLinear", "linear", (x,), *names)
        return outputs

    def matmul(self, a: Any, b: Any, *, transposed: bool) -> Any:
        return self._call("Matmul", "product", (a, b), transposed)

    def head(self, x: Any) -> Any:
        return self._call("LMHead", "head", (x,))


def serve(name: str) -> None:
    """Serve what `There` calls."""
    server = rpc.Server("shm", name)
    for method in ("embed", "linear", "head"):
        server.method(lambda path, dtype, *given, of=method: getattr(Here(path, dtype), of)(*given), name=method)
    server.method(lambda path, dtype, a, b, is_t: Here(path, dtype).matmul(a, b, transposed=is_t), name="product")
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.serve()


class Decoder:
    """Llama's layers around what multiplies, and Qwen3's norms of queries and keys.

    Args:
        layers: all linear layers.
        attention: the two products of attention.
    """

    def __init__(self, model: Model, dtype: str, layers: Layers, attention: Layers) -> None:
        self._model, self._dtype, self._layers, self._attention = model, DTYPES[dtype], layers, attention

    def logits(self, ids: Any) -> Any:
        """Return those of the token that follows."""
        x = self._layers.embed(ids)
        for layer in range(self._model.num_hidden_layers):
            x = x + self._attended(self._norm(x), layer)
            gate, up = self._layers.linear(self._norm(x), f"gate/{layer}", f"up/{layer}")
            (down,) = self._layers.linear(self._wide(lambda g, u: g / (1 + np.exp(-g)) * u, gate, up), f"down/{layer}")
            x = x + down
        return self._layers.head(self._norm(x)[-1:])

    def _attended(self, x: Any, layer: int) -> Any:
        model, tokens = self._model, len(x)
        q, k, v = self._layers.linear(x, *(f"{name}/{layer}" for name in "qkv"))
        q, k, v = (part.reshape(tokens, -1, model.head_dim).swapaxes(0, 1) for part in (q, k, v))
        if model.has_qk_norm:
            q, k = self._norm(q), self._norm(k)
        q, k = (self._wide(rotated, part) for part in (q, k))
        k, v = (np.repeat(part, model.num_attention_heads // len(part), axis=0) for part in (k, v))
        scores = self._attention.matmul(*map(np.ascontiguousarray, (q, k)), transposed=True)
        weights = self._wide(masked_softmax, scores / DTYPES["float32"](np.sqrt(model.head_dim)))
        mixed = self._attention.matmul(weights, np.ascontiguousarray(v), transposed=False)
        (out,) = self._layers.linear(np.ascontiguousarray(mixed.swapaxes(0, 1).reshape(tokens, -1)), f"o/{layer}")
        return out

    def _wide(self, function: Callable[..., Any], *parts: Any) -> Any:
        return function(*(part.astype(np.float32) for part in parts)).astype(self._dtype)

    def _norm(self, x: Any) -> Any:
        return self._wide(lambda wide: wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6), x)


def rotated(x: Any) -> Any:
    """Return heads with their rotary positions."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] / 10_000 ** (np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    turned = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
    return np.concatenate(turned, axis=-1)


def masked_softmax(scores: Any) -> Any:
    """Return weights of each token's predecessors and itself."""
    masked = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    powers = np.exp(masked - masked.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
