"""Objects to bytes and back: pickle, pickle5 (out-of-band buffers in one contiguous message), msgpack, raw."""

from __future__ import annotations

import pickle
import struct
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ipcbench.errors import ConfigError

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


class Raw(Codec):
    """No encoding: the object is bytes, and decoding returns the view itself."""

    name = "raw"

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, view: memoryview) -> Any:
        return view


_CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Pickle, Pickle5, Msgpack, Raw)}


def get_codec(name: str) -> Codec:
    """Return the codec of that name.

    Raises:
        ConfigError: unknown name.
    """
    if name not in _CODECS:
        raise ConfigError("codec", name, ", ".join(_CODECS))
    return _CODECS[name]()
