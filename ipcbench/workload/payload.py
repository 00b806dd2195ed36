"""The objects that are sent, by kind and size: the same for every backend, process and run."""

from __future__ import annotations

import random
from typing import Any

from ipcbench.errors import ConfigError

_SEED = 20_240_229
_ROW_BYTES = 4096


def _entries(count: int) -> dict[str, dict[str, Any]]:
    return {
        f"key_{i}": {"value": i, "squared": i * i, "text": f"test_value_{i}", "float": i / 3.0} for i in range(count)
    }


def _ndarray(size_bytes: int, variant: int) -> Any:
    """Return random bits: float32 of shape (size/4096, 1024) or (size/4,) if those divide, else uint8 of (size,)."""
    import numpy as np

    raw = np.random.default_rng(_SEED + variant).integers(0, 256, size_bytes, dtype=np.uint8)
    if size_bytes and size_bytes % _ROW_BYTES == 0:
        return raw.view(np.float32).reshape(-1, _ROW_BYTES // 4)
    return raw.view(np.float32) if size_bytes and size_bytes % 4 == 0 else raw


def build(kind: str, size: int, variant: int = 0) -> Any:
    """Return the payload object.

    Args:
        kind: `dict` (entries of {value, squared, text, float}), `bytes` (random) or `ndarray` (random bits).
        size: entries of a dict, otherwise bytes.
        variant: 0 or 1: payloads of equal size and different content, so that a message mixed from two consecutive ones
            has the wrong hash. Variant 1 of a dict has its entries in reverse order.

    Raises:
        ConfigError: unknown kind.
    """
    if kind == "dict":
        entries = _entries(size)
        return dict(reversed(entries.items())) if variant else entries
    if kind == "bytes":
        return random.Random(_SEED + variant).randbytes(size)  # noqa: S311 - content, not a secret
    if kind == "ndarray":
        return _ndarray(size, variant)
    raise ConfigError("payload", kind, "dict, bytes or ndarray")
