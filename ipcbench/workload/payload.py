"""The objects that are sent: built-in kinds, by kind and size the same for every backend, process and run; and the
user's own, from a function or a file.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipcbench.errors import ConfigError
from ipcbench.util.files import status_of
from ipcbench.util.reference import load_reference, users_own

_SEED = 20_240_229
_ROW_BYTES = 4096


def _entries(count: int) -> dict[str, dict[str, Any]]:
    return {
        f"key_{i}": {"value": i, "squared": i * i, "text": f"test_value_{i}", "float": i / 3.0} for i in range(count)
    }


def _records(entries: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a dict's entries as one structured array of shape (entries,)."""
    import numpy as np

    rows = [(key, *fields.values()) for key, fields in entries.items()]
    fields = [("key", "S16"), ("value", "i8"), ("squared", "i8"), ("text", "S24"), ("float", "f8")]
    return np.array(rows, dtype=fields)


def _ndarray(size_bytes: int, variant: int) -> Any:
    """Return random bits: float32 of shape (size/4096, 1024) or (size/4,) if those divide, else uint8 of (size,)."""
    import numpy as np

    raw = np.random.default_rng(_SEED + variant).integers(0, 256, size_bytes, dtype=np.uint8)
    if size_bytes and size_bytes % _ROW_BYTES == 0:
        return raw.view(np.float32).reshape(-1, _ROW_BYTES // 4)
    return raw.view(np.float32) if size_bytes and size_bytes % 4 == 0 else raw


def build(kind: str, size: int, variant: int = 0) -> Any:
    """Return the payload object of a built-in kind.

    Args:
        kind: `dict` (entries of {value, squared, text, float}), `records` (the same as one structured NumPy array),
            `bytes` (random) or `ndarray` (random bits).
        size: entries of a dict or of records, otherwise bytes.
        variant: 0 or 1: payloads of equal size and different content, so that a message mixed from two consecutive ones
            has the wrong hash. Variant 1 of a dict or of records has its entries in reverse order.

    Raises:
        ConfigError: unknown kind.
    """
    if kind in {"dict", "records"}:
        entries = _entries(size)
        entries = dict(reversed(entries.items())) if variant else entries
        return entries if kind == "dict" else _records(entries)
    if kind == "bytes":
        return random.Random(_SEED + variant).randbytes(size)  # noqa: S311 - content, not a secret
    if kind == "ndarray":
        return _ndarray(size, variant)
    raise ConfigError("payload", kind, ("dict", "records", "bytes", "ndarray"))


def make(reference: str, size: int) -> Any:
    """Return what the user's function `module:function` makes of a size.

    Raises:
        ConfigError: there is no such function, or it fails.
    """
    function = load_reference(reference, "payload")
    with users_own("payload", reference, f"a function that makes an object of size {size}"):
        return function(size)


def _load_npy(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except ValueError as error:  # NumPy advises to load it as a pickle
        raise ValueError("not an array as `numpy.save` writes it, or one of objects") from error


def _load_pickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - the user was told what that means


def _load_msgpack(path: Path) -> Any:
    import msgpack

    return msgpack.unpackb(path.read_bytes(), raw=False, strict_map_key=False)


def _load_json(path: Path) -> Any:
    import json

    return json.loads(path.read_bytes())


_LOADERS: Mapping[str, Callable[[Path], Any]] = {
    ".npy": _load_npy,
    ".pkl": _load_pickle,
    ".pickle": _load_pickle,
    ".msgpack": _load_msgpack,
    ".json": _load_json,
}
"""Ending of a sample's name → how the object in it is loaded; the object of any other file is its bytes."""

RUNS_CODE = (".pkl", ".pickle")
"""Samples that are loaded by running code that is in them."""


def load_sample(path: Path) -> Any:
    """Return the object in a file: an array, what was pickled, a message, a JSON document, or else its bytes.

    Raises:
        ConfigError: it cannot be read, or is not what its name says.
    """
    with users_own("sample", str(path), "a file with what its name says"):  # a pickle runs code
        try:
            status_of(path)
            return _LOADERS.get(path.suffix.lower(), Path.read_bytes)(path)
        except OSError as error:
            raise ConfigError("sample", str(path), f"a file that can be read ({error.strerror or error})") from error
