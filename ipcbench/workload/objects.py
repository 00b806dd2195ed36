"""Objects as one message: a head of msgpack, and each array or buffer as a part of its own, which is copied once.

Layout of a message: `[head bytes][data offset][what the caller adds]`, the head, then each part at a multiple of 64
bytes from the start. The head never holds code, so that a message from a stranger can be wrong, but runs nothing.

What travels: None, bool, int (64 bits), float, str, bytes, list, tuple, dict, NumPy arrays and scalars, torch tensors
on the CPU (detached), anything with the buffer protocol (arrives as memoryview) or DLPack (arrives as NumPy array).
Subclasses arrive as these types.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgpack
import numpy as np

from ipcbench.errors import EncodeError, TransportError

ALIGN: Final = 64
"""Parts begin at multiples of so many bytes: a cache line, and what vector instructions like."""

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<II")
_TUPLE, _ARRAY, _SCALAR, _TENSOR, _BUFFER, _BYTES = range(1, 7)
"""Types of msgpack's extensions."""
_LARGE_BYTES = 4096
"""From this size on, bytes become a part: in the head they would be copied once more."""
_LARGE_HEAD_BYTES = 65_536
_MOST_LEVELS = 512
"""So deep msgpack goes."""
_PADDING = bytes(ALIGN)


class Packed:
    """A packed object.

    Attributes:
        buffers: what to write, one behind the other.
        size_bytes: all together.
    """

    __slots__ = ("buffers", "size_bytes")

    def __init__(self, buffers: list[Buffer], size_bytes: int) -> None:
        self.buffers = buffers
        self.size_bytes = size_bytes


class Slot:
    """Memory of a transport in which an array is made that is then sent without a copy.

    Attributes:
        memory: the whole message; the array is its only part, at `ROOM_BYTES`.
        array: the array, with undefined contents.
    """

    ROOM_BYTES = 4096
    """Left for the head."""

    def __init__(self, memory: memoryview, shape: Any, dtype: Any) -> None:
        self.memory = memory
        self._bytes = np.frombuffer(memory, np.uint8)
        self.array = self._bytes[self.ROOM_BYTES :].view(dtype).reshape(shape)

    def holds(self, part: Buffer) -> bool:
        """Return whether a part begins where the array of this slot does; it then lies in its memory."""
        return len(part) > 0 and _address(part) == _address(self._bytes) + self.ROOM_BYTES

    def overlaps(self, part: Buffer) -> bool:
        """Return whether a part lies in this slot's memory."""
        return 0 <= _address(part) - _address(self._bytes) < len(self.memory)


def _address(buffer: Any) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] if len(buffer) else -1
    return address


def slot_bytes(shape: Any, dtype: Any) -> int:
    """Return the size of a slot for an array."""
    return Slot.ROOM_BYTES + math.prod(shape if isinstance(shape, Iterable) else (shape,)) * np.dtype(dtype).itemsize


def pack(obj: Any, prefix: bytes = b"", slot: Slot | None = None, what: str = "the object") -> Packed:
    """Pack an object; its buffers are not copied yet.

    Args:
        obj: the object.
        prefix: bytes of the caller's own that `unpack` skips, at the start of the message; always equally many.
        slot: if the object holds the array of this slot, the result has one buffer: the memory of the slot, filled.
        what: the object's name in errors.

    Raises:
        EncodeError: something in it cannot travel; the text has its path.
    """
    packer = _Packer()
    try:
        head = packer.head(obj)
        if len(head) > _LARGE_HEAD_BYTES:  # there may be large bytes in it
            packer = _Packer()
            head = packer.head(_lifted(obj))
    except (TypeError, ValueError, OverflowError, RecursionError, BufferError) as error:
        raise _first_failure(obj, what, error) from error
    parts, start_bytes = packer.parts, len(prefix) + _PREFIX.size + len(head)
    if slot is not None:
        if len(parts) == 1 and slot.holds(parts[0]) and start_bytes <= Slot.ROOM_BYTES:
            slot.memory[:start_bytes] = prefix + _PREFIX.pack(len(head), Slot.ROOM_BYTES) + head
            size_bytes = Slot.ROOM_BYTES + len(parts[0])
            return Packed([slot.memory[:size_bytes]], size_bytes)
        # The memory of the slot may become that of this very message.
        parts = [bytes(part) if slot.overlaps(part) else part for part in parts]
    data_offset = -(-start_bytes // ALIGN) * ALIGN
    buffers: list[Buffer] = [prefix + _PREFIX.pack(len(head), data_offset) + head]
    at = start_bytes
    for part in parts:
        if padding := -at % ALIGN:
            buffers.append(_PADDING[:padding])
        buffers.append(part)
        at += padding + len(part)
    return Packed(buffers, at)


def unpack(view: memoryview, prefix_bytes: int = 0, copy: bool = True) -> Any:
    """Return the object of a message.

    Args:
        view: the message.
        prefix_bytes: how many bytes the caller has put before it.
        copy: False has arrays, tensors and buffers share the memory of `view`; they are then read-only.

    Raises:
        TransportError: the message is damaged, or holds what needs a module that is not installed here.
    """
    try:
        head_bytes, data_offset = _PREFIX.unpack_from(view, prefix_bytes)
        start = prefix_bytes + _PREFIX.size
        if not start + head_bytes <= len(view) or data_offset > -(-len(view) // ALIGN) * ALIGN:
            raise ValueError(f"a head of {head_bytes} bytes in a message of {len(view)}")
        return _Unpacker(view, data_offset, copy).object_in(view[start : start + head_bytes])
    except TransportError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, struct.error) as error:
        raise TransportError(f"a message cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}; "
                             "do both sides have the same version of ipcbench?") from error  # fmt: skip
    except msgpack.UnpackException as error:
        raise TransportError(f"a message cannot be decoded: {error}") from error


class _Packer:
    """Packs one object.

    Attributes:
        parts: its parts, in order.
    """

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self._end = 0

    def head(self, obj: Any) -> bytes:
        packed: bytes = msgpack.Packer(default=self._extension, strict_types=True, use_bin_type=True).pack(obj)
        return packed

    def _extension(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is np.ndarray:
            return self._array(obj)
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self.head(list(obj)))
        if kind is _Large:
            return msgpack.ExtType(_BYTES, _plain(self._part(memoryview(obj.value).cast("B"))))
        if isinstance(obj, np.generic):
            return msgpack.ExtType(_SCALAR, _plain((_dtype_text(obj.dtype), obj.tobytes())))
        for base in _BASES:
            if isinstance(obj, base):
                return base(obj)
        if isinstance(obj, tuple):
            return self._extension(tuple(obj))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            return self._tensor(torch, obj)
        if isinstance(obj, np.ma.MaskedArray):
            raise TypeError("a masked array does not travel; pass its data and its mask")
        if isinstance(obj, np.ndarray):
            return self._array(np.asarray(obj))
        if hasattr(obj, "__dlpack__"):
            return self._array(np.from_dlpack(obj))
        return self._buffer(obj)

    def _array(self, array: np.ndarray[Any, Any]) -> msgpack.ExtType:
        if array.dtype.hasobject:
            raise TypeError("an array of Python objects does not travel; convert it to numbers")
        by_columns = not array.flags.c_contiguous
        if by_columns and not array.flags.f_contiguous:
            raise ValueError(f"the array of shape {array.shape} is not contiguous; pass numpy.ascontiguousarray(…)")
        place = self._part(_bytes_of(array.T if by_columns else array))
        return msgpack.ExtType(_ARRAY, _plain((*place, _dtype_text(array.dtype), array.shape, by_columns)))

    def _tensor(self, torch: Any, tensor: Any) -> msgpack.ExtType:
        if tensor.device.type != "cpu":
            raise ValueError(f"the tensor is on {tensor.device}; pass .cpu()")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"a tensor of layout {tensor.layout} and type {tensor.dtype} does not travel")
        if not tensor.is_contiguous():
            raise ValueError(f"the tensor of shape {tuple(tensor.shape)} is not contiguous; pass .contiguous()")
        plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        part = memoryview(plain.view(torch.uint8).numpy()) if plain.numel() else b""
        return msgpack.ExtType(_TENSOR, _plain((*self._part(part), str(tensor.dtype)[6:], tuple(tensor.shape))))

    def _buffer(self, obj: Any) -> msgpack.ExtType:
        try:
            view = memoryview(obj)
        except TypeError:
            raise TypeError(f"{type(obj).__qualname__} does not travel; convert it to what does") from None
        if not view.c_contiguous:
            raise ValueError(f"the {type(obj).__qualname__} is not contiguous; pass a copy")
        place = self._part(view.cast("B") if view.nbytes else b"")
        return msgpack.ExtType(_BUFFER, _plain((*place, view.format, view.shape)))

    def _part(self, part: Buffer) -> tuple[int, int]:
        """Take a part; return its place behind the head, and its size."""
        at = -(-self._end // ALIGN) * ALIGN
        self.parts.append(part)
        self._end = at + len(part)
        return at, len(part)


class _Large:
    """Marks bytes that become a part."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _lifted(obj: Any) -> Any:
    """Return an object with large bytes in it marked. It is no deeper than msgpack goes, since it was packed."""
    kind = type(obj)
    if kind in _BYTES_TYPES:
        return _Large(obj) if len(obj) >= _LARGE_BYTES else obj
    if kind is dict:
        return {key: _lifted(value) for key, value in obj.items()}
    return kind(map(_lifted, obj)) if kind in {list, tuple} else obj


def _plain(values: Iterable[Any]) -> bytes:
    packed: bytes = msgpack.packb(tuple(values))
    return packed


def _bytes_of(array: np.ndarray[Any, Any]) -> Buffer:
    """Return the bytes of a contiguous array of any type."""
    return memoryview(array.reshape(-1).view(np.uint8)) if array.nbytes else b""


def _dtype_text(dtype: np.dtype[Any]) -> Any:
    """Return what `_dtype_of` makes the type from: NumPy's description, or the name of one that another package adds."""
    is_added = dtype.kind == "V" and dtype.names is None and dtype.type is not np.void
    return dtype.name if is_added else np.lib.format.dtype_to_descr(dtype)


def _first_failure(obj: Any, what: str, error: Exception) -> EncodeError:
    """Return the error for the first thing in an object that cannot be packed."""
    path, reason = what, error
    if isinstance(obj, dict | list | tuple):
        level = 0
        children: Any
        while isinstance(obj, dict | list | tuple) and level < _MOST_LEVELS:
            level += 1
            children = [(f"{path}[{key!r}]", value) for key, value in (
                obj.items() if isinstance(obj, dict) else enumerate(obj))]  # fmt: skip
            children += [(f"key {key!r} of {path}", key) for key in obj] if isinstance(obj, dict) else []
            for child_path, child in children:
                failure = _failure(child)
                if failure is not None:
                    path, obj, reason = child_path, child, failure
                    break
            else:
                break
        if level == _MOST_LEVELS:
            path, reason = what, ValueError("it holds itself, or is too deep")
    return EncodeError(path, type(obj).__qualname__, str(reason))


def _failure(obj: Any) -> Exception | None:
    try:
        _Packer().head(obj)
    except (TypeError, ValueError, OverflowError, RecursionError, BufferError) as error:
        return error
    return None


class _Unpacker:
    """Unpacks one message."""

    def __init__(self, view: memoryview, data_offset: int, copy: bool) -> None:
        self._data = view[data_offset:]
        self._copy = copy
        self._kinds: dict[int, Callable[..., Any]] = {
            _TUPLE: lambda raw: tuple(self.object_in(raw)),
            _ARRAY: lambda raw: self._array(*self.object_in(raw)),
            _SCALAR: lambda raw: _scalar(*self.object_in(raw)),
            _TENSOR: lambda raw: self._tensor(*self.object_in(raw)),
            _BUFFER: lambda raw: self._buffer(*self.object_in(raw)),
            _BYTES: lambda raw: bytes(self._part(*self.object_in(raw))),
        }

    def object_in(self, head: Buffer) -> Any:
        return msgpack.unpackb(head, ext_hook=self._object, strict_map_key=False)

    def _object(self, kind: int, raw: bytes) -> Any:
        if kind not in self._kinds:
            raise ValueError(f"an extension of type {kind}")
        return self._kinds[kind](raw)

    def _part(self, at: int, size_bytes: int) -> memoryview:
        if not 0 <= at <= at + size_bytes <= len(self._data):
            raise ValueError(f"a part of {size_bytes} bytes at {at} of {len(self._data)}")
        return self._data[at : at + size_bytes]

    def _array(self, at: int, size_bytes: int, text: Any, shape: list[int], by_columns: bool) -> Any:
        dtype = _dtype_of(text)
        raw = self._bytes(at, size_bytes, dtype.alignment)
        array = np.ndarray(shape[::-1] if by_columns else shape, dtype, raw) if raw.size else np.empty(shape, dtype)
        if array.nbytes != size_bytes:
            raise ValueError(f"an array of shape {tuple(shape)} in {size_bytes} bytes")
        return array.T if by_columns else array

    def _tensor(self, at: int, size_bytes: int, name: str, shape: list[int]) -> Any:
        try:
            import torch
        except ImportError:
            raise TransportError("a torch tensor was sent, and torch is not installed here; install it, or send "
                                 "NumPy arrays") from None  # fmt: skip
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"a tensor of type {name!r}, which torch {torch.__version__} does not have")
        if not size_bytes:
            return torch.empty(shape, dtype=dtype)
        raw = self._bytes(at, size_bytes, dtype.itemsize)
        raw.flags.writeable = True  # torch knows no other; the memory of a message is writable, if anybody insists
        return torch.from_numpy(raw).view(dtype).reshape(shape)

    def _buffer(self, at: int, size_bytes: int, form: str, shape: list[int]) -> memoryview:
        part = self._part(at, size_bytes)
        part = memoryview(bytearray(part)) if self._copy else part.toreadonly()
        return part.cast(form, shape) if 0 not in shape else part.cast(form)

    def _bytes(self, at: int, size_bytes: int, alignment: int) -> np.ndarray[Any, Any]:
        """Return the bytes of a part, in memory of their own if they are to be copied, or are not aligned."""
        shared = np.frombuffer(self._part(at, size_bytes), np.uint8)
        if self._copy or shared.__array_interface__["data"][0] % alignment:
            return shared.copy()
        shared.flags.writeable = False
        return shared


def _dtype_of(text: Any) -> np.dtype[Any]:
    try:
        return np.lib.format.descr_to_dtype(text) if not isinstance(text, str) else np.dtype(text)
    except TypeError as error:
        if not isinstance(text, str):
            raise
        try:
            import ml_dtypes
        except ImportError:
            raise TransportError(f"an array of type {text!r} was sent, for which ml_dtypes is not installed here; "
                                 "install it, or send a torch tensor") from error  # fmt: skip
        return np.dtype(getattr(ml_dtypes, text))


def _scalar(text: Any, raw: bytes) -> Any:
    return np.frombuffer(raw, _dtype_of(text))[0]


_BASES = (str, int, float, dict, list)
"""Subclasses of these travel as these."""
_BYTES_TYPES = frozenset({bytes, bytearray})
