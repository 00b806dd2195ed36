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
import threading
from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgpack
import numpy as np

from ipcbench.errors import ConfigError, EncodeError, TransportError

ALIGN: Final = 64
"""Parts begin at multiples of so many bytes: a cache line, and what vector instructions like."""

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<II")
_PART = struct.Struct("<QQBB")
"""Where a part is, behind the head; its size; how many dimensions it has; whether it is stored by columns. The lengths
of the dimensions and the name of the type follow."""
_SHAPES = tuple(struct.Struct(f"<{count}q") for count in range(65))
_TUPLE, _ARRAY, _SCALAR, _TENSOR, _BUFFER, _BYTES = range(1, 7)
"""Types of msgpack's extensions."""
_LARGE_BYTES = 4096
"""From this size on, bytes become a part: in the head they would be copied once more."""
_LARGE_HEAD_BYTES = _PACKER_BYTES = 65_536
_MOST_LEVELS = 512
"""So deep msgpack goes."""
_PADDING = bytes(ALIGN)
_MOST_KNOWN = 1024


class Packed:
    """A packed object.

    Attributes:
        buffers: what to write, one behind the other.
        size_bytes: all together.
        is_in_slot: whether the message lies in the slot already.
    """

    __slots__ = ("buffers", "is_in_slot", "size_bytes")

    def __init__(self, buffers: list[Buffer], size_bytes: int, is_in_slot: bool = False) -> None:
        self.buffers = buffers
        self.size_bytes = size_bytes
        self.is_in_slot = is_in_slot


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
    """Return the size of a slot for an array.

    Raises:
        ConfigError: there is no such array, or it has Python objects.
    """
    lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if any(not isinstance(length, int | np.integer) or length < 0 for length in lengths):
        raise ConfigError("shape", shape, "a length, or several")
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError("dtype", dtype, "a type of NumPy") from error
    if kind.hasobject:
        raise ConfigError("dtype", dtype, "a type without Python objects")
    size_bytes: int = math.prod(map(int, lengths)) * kind.itemsize
    return Slot.ROOM_BYTES + size_bytes


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
    packer = getattr(_of_thread, "packer", None)
    if packer is None:
        packer = _of_thread.packer = _Packer()
    try:
        head, parts = packer.pack(obj)
        if len(head) > _LARGE_HEAD_BYTES:  # there may be large bytes in it
            head, parts = packer.pack(_lifted(obj))
    except Exception as error:  # also what an object's own `__dlpack__` raises
        raise _first_failure(obj, what, error) from error
    start_bytes = len(prefix) + _PREFIX.size + len(head)
    if slot is not None:
        if len(parts) == 1 and slot.holds(parts[0]) and start_bytes <= Slot.ROOM_BYTES:
            slot.memory[:start_bytes] = prefix + _PREFIX.pack(len(head), Slot.ROOM_BYTES) + head
            size_bytes = Slot.ROOM_BYTES + len(parts[0])
            return Packed([slot.memory[:size_bytes]], size_bytes, is_in_slot=True)
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
    return _unpack(view, prefix_bytes, copy)[0]


_DAMAGES = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, SyntaxError, struct.error,
    msgpack.UnpackException,
)  # fmt: skip


def unpack_shared(view: memoryview, prefix_bytes: int = 0) -> tuple[Any, object]:
    """Return the object of a message, without a copy, and what all its arrays, tensors and buffers hold a reference to:
    whoever has the only one knows that none of them is left.

    Raises:
        as `unpack`.
    """
    return _unpack(view, prefix_bytes, copy=False)


def _unpack(view: memoryview, prefix_bytes: int, copy: bool) -> tuple[Any, object]:
    try:
        head_bytes, data_offset = _PREFIX.unpack_from(view, prefix_bytes)
        start = prefix_bytes + _PREFIX.size
        if not start + head_bytes <= len(view) or data_offset > -(-len(view) // ALIGN) * ALIGN:
            raise ValueError(f"a head of {head_bytes} bytes in a message of {len(view)}")
        unpacker = _Unpacker(view, data_offset, copy)
        return unpacker.object_in(view[start : start + head_bytes]), unpacker.parts if not copy else None
    except TransportError:
        raise
    except _DAMAGES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TransportError(
            f"a message cannot be decoded: {reason}; do both sides have the same version of ipcbench?"
        ) from error


class _Packer:
    """Packs objects, one after another.

    Attributes:
        parts: of the object that is being packed, in order.
    """

    __slots__ = ("_end", "_is_busy", "_packer", "parts")

    def __init__(self) -> None:
        self._packer = msgpack.Packer(default=self._extension, strict_types=True, buf_size=_PACKER_BYTES)
        self._is_busy = False
        self.parts: list[Buffer] = []
        self._end = 0

    def pack(self, obj: Any) -> tuple[bytes, list[Buffer]]:
        """Return the head and the parts of an object."""
        if self._is_busy:  # this is a signal handler's call, or one of an object's own `__dlpack__`
            return _Packer().pack(obj)
        self._is_busy = True
        try:
            head: bytes = self._packer.pack(obj)
        except BaseException:
            self._packer.reset()
            raise
        else:
            return head, self.parts
        finally:
            self.parts, self._end, self._is_busy = [], 0, False

    def _packed(self, obj: Any) -> bytes:
        packed: bytes = msgpack.packb(obj, default=self._extension, strict_types=True)
        return packed

    def _extension(self, obj: Any) -> Any:
        """Return what msgpack can pack in place of an object that it cannot."""
        kind = type(obj)
        if kind is np.ndarray:
            at = -(-self._end // ALIGN) * ALIGN
            known = _known_arrays.get((at, obj.shape, obj.dtype)) if obj.flags.c_contiguous else None
            if known is None:
                return self._array(obj)
            self.parts.append(_bytes_of(obj))
            self._end = at + obj.nbytes
            return known
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._packed(list(obj)))
        if isinstance(obj, np.generic) and not isinstance(obj, np.character):
            return msgpack.ExtType(_SCALAR, _described(0, 0, (), _dtype_text(obj.dtype)) + obj.tobytes())
        if kind is _Large:
            return self._part(_BYTES, memoryview(obj.value), (), b"")
        return self._rarer(obj)

    def _rarer(self, obj: Any) -> Any:
        for base, plain in _BASES:
            if isinstance(obj, base):
                return plain(obj)
        torch = sys.modules.get("torch")
        if isinstance(obj, tuple):
            return self._extension(tuple(obj))
        if torch is not None and isinstance(obj, torch.Tensor):
            return self._tensor(torch, obj)
        if isinstance(obj, np.ma.MaskedArray):
            raise TypeError("a masked array does not travel; pass its data and its mask")
        if isinstance(obj, np.ndarray) or hasattr(obj, "__dlpack__"):
            return self._array(np.asarray(obj) if isinstance(obj, np.ndarray) else np.from_dlpack(obj))
        return self._buffer(obj)

    def _array(self, array: np.ndarray[Any, Any]) -> msgpack.ExtType:
        by_columns = not array.flags.c_contiguous
        if by_columns:
            if not array.flags.f_contiguous:
                raise ValueError(f"the array of shape {array.shape} is not contiguous; pass numpy.ascontiguousarray(…)")
            array = array.T
        at = -(-self._end // ALIGN) * ALIGN
        part = self._part(_ARRAY, _bytes_of(array), array.shape, _dtype_text(array.dtype), by_columns)
        if not by_columns:
            if len(_known_arrays) >= _MOST_KNOWN:
                _known_arrays.clear()
            _known_arrays[at, array.shape, array.dtype] = part
        return part

    def _tensor(self, torch: Any, tensor: Any) -> msgpack.ExtType:
        if tensor.device.type != "cpu":
            raise ValueError(f"the tensor is on {tensor.device}; pass .cpu()")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"a tensor of layout {tensor.layout} and type {tensor.dtype} does not travel")
        if not tensor.is_contiguous():
            raise ValueError(f"the tensor of shape {tuple(tensor.shape)} is not contiguous; pass .contiguous()")
        plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        part = memoryview(plain.view(torch.uint8).numpy()) if plain.numel() else b""
        return self._part(_TENSOR, part, tensor.shape, str(tensor.dtype)[6:].encode())

    def _buffer(self, obj: Any) -> msgpack.ExtType:
        try:
            view = memoryview(obj)
        except TypeError:
            raise TypeError(f"{type(obj).__qualname__} does not travel; convert it to what does") from None
        if not view.c_contiguous:
            raise ValueError(f"the {type(obj).__qualname__} is not contiguous; pass a copy")
        try:
            memoryview(bytes(view.itemsize)).cast(view.format)  # type: ignore[call-overload] # which formats can, it says
        except ValueError:
            raise TypeError(f"a buffer of format {view.format!r} does not travel; pass a NumPy array") from None
        return self._part(_BUFFER, view.cast("B") if view.nbytes else b"", view.shape or (), view.format.encode())

    def _part(
        self, kind: int, part: Buffer, shape: Sequence[int], text: bytes, by_columns: bool = False
    ) -> msgpack.ExtType:
        at = -(-self._end // ALIGN) * ALIGN
        self.parts.append(part)
        self._end = at + len(part)
        return msgpack.ExtType(kind, _described(at, len(part), shape, text, by_columns))


def _described(at: int, size_bytes: int, shape: Sequence[int], text: bytes, by_columns: bool = False) -> bytes:
    count = len(shape)
    return _PART.pack(at, size_bytes, count, by_columns) + _SHAPES[count].pack(*shape) + text + _END


_known_arrays: dict[tuple[int, tuple[int, ...], np.dtype[Any]], msgpack.ExtType] = {}
"""What arrays became lately, by place, shape and type: most programs send the same kinds again and again."""

_of_thread = threading.local()
"""Has a packer: to make one costs more than to pack a small object."""


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


def _bytes_of(array: np.ndarray[Any, Any]) -> Buffer:
    """Return the bytes of an array of any type, contiguous in C order."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError, BufferError):  # it is empty, or of a type that buffers do not have
        return array.reshape(-1).view(np.uint8).data if array.nbytes else b""


@lru_cache(maxsize=256)
def _dtype_text(dtype: np.dtype[Any]) -> bytes:
    """Return what `_dtype_of` makes the type from: NumPy's description, or the name where another package adds it."""
    if dtype.hasobject:
        raise TypeError("an array of Python objects does not travel; convert it to numbers")
    is_added = dtype.kind == "V" and dtype.names is None and dtype.type is not np.void
    return repr(dtype.name if is_added else np.lib.format.dtype_to_descr(dtype)).encode()


def _first_failure(obj: Any, what: str, error: Exception) -> EncodeError:
    """Return the error for the first thing in an object that cannot be packed."""
    path, reason = what, error
    if type(obj) in {dict, list, tuple}:
        level = 0
        children: Any
        while type(obj) in {dict, list, tuple} and level < _MOST_LEVELS:
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
        _Packer().pack(obj)
    except Exception as error:
        return error
    return None


class _Unpacker:
    """Unpacks one message."""

    __slots__ = ("_begin", "_copy", "_parts", "_view")

    def __init__(self, view: memoryview, begin: int, copy: bool) -> None:
        self._view, self._begin, self._copy = view, begin, copy
        self._parts: np.ndarray[Any, Any] | None = None

    @property
    def parts(self) -> np.ndarray[Any, Any]:
        """Return the memory of the parts; what is not copied refers to it."""
        if self._parts is None:
            data = self._view[self._begin :]
            self._parts = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        return self._parts

    def object_in(self, head: Buffer) -> Any:
        return msgpack.unpackb(head, ext_hook=self._object, strict_map_key=False)

    def _object(self, kind: int, raw: bytes) -> Any:
        if kind == _TUPLE:
            return tuple(self.object_in(raw))
        at, size_bytes, shape, text, rest, by_columns = _part_in(raw)
        if size_bytes and at + size_bytes > len(self._view) - self._begin:
            raise ValueError(f"a part of {size_bytes} bytes at {at} of {len(self._view) - self._begin}")
        if kind == _ARRAY:
            return self._array(at, size_bytes, shape, _dtype_of(text), by_columns)
        if kind == _BYTES:
            return self.parts[at : at + size_bytes].tobytes()
        if kind == _SCALAR:
            return np.frombuffer(rest, _dtype_of(text))[0]
        if kind == _TENSOR:
            return self._tensor(at, size_bytes, shape, text.decode())
        if kind == _BUFFER:
            part: Any = self._array(at, size_bytes, (size_bytes,), _BYTE, False).data
            return part.cast(text.decode(), shape) if size_bytes else part.cast(text.decode())
        raise ValueError(f"an extension of type {kind}")

    def _array(
        self, at: int, size_bytes: int, shape: tuple[int, ...], dtype: np.dtype[Any], by_columns: bool
    ) -> np.ndarray[Any, Any]:
        if not size_bytes:
            array = np.empty(shape, dtype)
        elif self._copy:
            array = np.ndarray(shape, dtype, self._view, self._begin + at).copy()
        else:
            array = np.ndarray(shape, dtype, self.parts, at)
            if array.flags.aligned:
                array.flags.writeable = False
            else:
                array = array.copy()
        if array.nbytes != size_bytes:
            raise ValueError(f"an array of shape {shape} in {size_bytes} bytes")
        return array.T if by_columns else array

    def _tensor(self, at: int, size_bytes: int, shape: tuple[int, ...], name: str) -> Any:
        try:
            import torch
        except ImportError:
            raise TransportError(
                "a torch tensor was sent, and torch is not installed here; install it, or send NumPy arrays"
            ) from None
        dtype = getattr(torch, name, None)
        if type(dtype) is not torch.dtype:
            raise ValueError(f"a tensor of type {name!r}, which torch {torch.__version__} does not have")
        if not size_bytes:
            return torch.empty(shape, dtype=dtype)
        raw = self._array(at, size_bytes, (size_bytes,), _BYTE, False)
        if not raw.flags.writeable:  # torch has no others, and warns; writing to it is undefined all the same
            raw = np.ndarray((size_bytes,), _BYTE, self.parts, at)
        return torch.from_numpy(raw).view(dtype).reshape(shape)


@lru_cache(maxsize=_MOST_KNOWN)
def _part_in(raw: bytes) -> tuple[int, int, tuple[int, ...], bytes, bytes, bool]:
    """Return what an extension says: as `_described` was called, and what follows."""
    at, size_bytes, count, by_columns = _PART.unpack_from(raw)
    shape = _SHAPES[count].unpack_from(raw, _PART.size)
    text, _, rest = raw[_PART.size + 8 * count :].partition(_END)
    return at, size_bytes, shape, text, rest, bool(by_columns)


@lru_cache(maxsize=256)
def _dtype_of(text: bytes) -> np.dtype[Any]:
    descr = literal_eval(text.decode())
    try:
        return np.lib.format.descr_to_dtype(descr)
    except TypeError as error:
        try:
            import ml_dtypes
        except ImportError:
            raise TransportError(
                f"an array of type {descr!r} was sent, for which ml_dtypes is not installed here; install it, or send "
                "a torch tensor"
            ) from error
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, descr))
        return dtype


_BYTE = np.dtype(np.uint8)
_END = b"\0"
_BASES: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (str, str.__str__), (bytes, lambda obj: bytes.__getitem__(obj, slice(None))), (int, int.__int__),
    (float, float.__float__), (dict, dict), (list, list),
)  # fmt: skip
"""Subclasses of these travel as these, with the value that they hold, whatever their own `__str__` and so on say."""
_BYTES_TYPES = frozenset({bytes, bytearray})
