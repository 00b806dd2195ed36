"""Objects to bytes and back: pickle, pickle5 (out-of-band buffers in one contiguous message), msgpack, numpy, raw; and
the user's own.
"""

from __future__ import annotations

import io
import pickle
import struct
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

from ipcbench.errors import ConfigError
from ipcbench.util.reference import load_reference, users_own

_ALIGN = 64
_COUNT = struct.Struct("=QQ")


class Codec(ABC):
    """Encodes an object as contiguous bytes, and decodes it."""

    name: ClassVar[str]

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Return the encoded object."""

    @abstractmethod
    def decode(self, view: memoryview) -> Any:
        """Return the object; with some codecs it shares the memory of `view`."""


class Pickle(Codec):
    """pickle at its highest protocol; decoding copies."""

    name = "pickle"

    def encode(self, obj: Any) -> bytes:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)

    def decode(self, view: memoryview) -> Any:
        return pickle.loads(view)  # noqa: S301 - our own payload, from our own writer


class Pickle5(Codec):
    """Pickle protocol 5 with out-of-band buffers (PEP 574) in one message; decoding copies no buffer.

    Layout: number of buffers and size of the pickle (two words), the size of each buffer (one word each), the pickle,
    then each buffer at a multiple of 64 bytes from the start. A decoded array shares the message's memory: it is
    read-only if the view is, and valid as long as the view.
    """

    name = "pickle5"

    def encode(self, obj: Any) -> bytes:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(obj, 5, buffer_callback=buffers.append)
        raws = [buffer.raw() for buffer in buffers]
        parts: list[bytes | memoryview] = [
            _COUNT.pack(len(raws), len(head)),
            struct.pack(f"={len(raws)}Q", *(raw.nbytes for raw in raws)),
            head,
        ]
        at = sum(len(part) for part in parts)
        for raw in raws:
            padding = -at % _ALIGN
            parts += [bytes(padding), raw]
            at += padding + raw.nbytes
        return b"".join(parts)

    def decode(self, view: memoryview) -> Any:
        count, head_bytes = _COUNT.unpack_from(view)
        sizes = struct.unpack_from(f"={count}Q", view, _COUNT.size)
        at = _COUNT.size + 8 * count
        head = view[at : at + head_bytes]
        at += head_bytes
        buffers = []
        for size in sizes:
            at += -at % _ALIGN
            buffers.append(view[at : at + size])
            at += size
        return pickle.loads(head, buffers=buffers)  # noqa: S301 - our own payload, from our own writer


class Msgpack(Codec):
    """msgpack, with distinct types for text and bytes; decoding copies."""

    name = "msgpack"

    def encode(self, obj: Any) -> bytes:
        import msgpack

        packed: bytes = msgpack.packb(obj, use_bin_type=True)
        return packed

    def decode(self, view: memoryview) -> Any:
        import msgpack

        return msgpack.unpackb(view, raw=False)


class Numpy(Codec):
    """One array in NumPy's file format (.npy): a head with dtype and shape, then the items; decoding copies nothing.

    A decoded array shares the message's memory, as with `Pickle5`.
    """

    name = "numpy"

    def encode(self, obj: Any) -> bytes:
        import numpy as np

        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(obj), allow_pickle=False)
        return file.getvalue()

    def decode(self, view: memoryview) -> Any:
        import numpy as np

        size = _NPY_V1.unpack_from(view, _NPY_MAGIC_BYTES)[0] + _NPY_V1.size
        if view[6] > 1:
            size = _NPY_V2.unpack_from(view, _NPY_MAGIC_BYTES)[0] + _NPY_V2.size
        at = _NPY_MAGIC_BYTES + size
        shape, order, dtype = _array_head(bytes(view[:at]))
        return np.ndarray(shape, dtype, view, at, order=order)


_NPY_MAGIC_BYTES = 8
_NPY_V1, _NPY_V2 = struct.Struct("<H"), struct.Struct("<I")


@lru_cache(maxsize=64)
def _array_head(head: bytes) -> tuple[Any, Any, Any]:
    """Return shape, order and dtype; messages of one stream have few different heads, and parsing one takes a while."""
    import numpy as np

    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file, max_header_size=len(head))
    return shape, "F" if by_columns else "C", dtype


class Raw(Codec):
    """No encoding: the object is bytes, and decoding returns the view itself."""

    name = "raw"

    def encode(self, obj: Any) -> bytes:
        return memoryview(obj).tobytes()

    def decode(self, view: memoryview) -> Any:
        return view


_CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Pickle, Pickle5, Msgpack, Numpy, Raw)}


def get_codec(name: str) -> Codec:
    """Return the codec of that name, or an object of the user's own class `module:Codec`.

    Raises:
        ConfigError: unknown name; or a class that does not encode and decode.
    """
    if name in _CODECS:
        return _CODECS[name]()
    if ":" not in name:
        raise ConfigError("codec", name, (*_CODECS, "module:Class"))
    own = load_reference(name, "codec")
    if not (isinstance(own, type) and all(callable(getattr(own, verb, None)) for verb in ("encode", "decode"))):
        raise ConfigError("codec", name, "a class with the methods `encode(object)` and `decode(view)`")
    with users_own("codec", name, "a class that needs no arguments"):
        codec: Codec = own()
    return codec
