"""Objects that travel as a head and parts."""

from __future__ import annotations

import array
import ctypes
import enum
import struct
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ipcbench.errors import EncodeError, TransportError
from ipcbench.workload.objects import ALIGN, Slot, pack, slot_bytes, unpack, unpack_shared

Point = namedtuple("Point", "x y")  # what users have


class Colour(enum.IntEnum):
    RED = 3


def message(obj: Any, prefix: bytes = b"") -> memoryview:
    packed = pack(obj, prefix)
    joined = b"".join(packed.buffers)
    assert len(joined) == packed.size_bytes
    return memoryview(bytearray(joined))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    return type(a) is type(b) and repr(a) == repr(b)  # nan, too


DTYPES = ("<f4", ">i8", "u1", "c16", "?", "<U3", "S2", "<M8[s]")

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=9000)
    | arrays.arrays(st.sampled_from(DTYPES), arrays.array_shapes(min_dims=0)),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN, st.booleans(), st.binary(max_size=70))
def test_what_is_packed_is_unpacked(obj: Any, copy: bool, prefix: bytes) -> None:
    assert equal(obj, unpack(message(obj, prefix), len(prefix), copy))


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
        (OrderedDict(a=1), {"a": 1}),
        (np.float64(1.5), np.float64(1.5)),
        (np.array(5.0), np.array(5.0)),
        (np.zeros((3, 0), "i2"), np.zeros((3, 0), "i2")),
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])),
        (np.arange(3, dtype=ml_dtypes.bfloat16), np.arange(3, dtype=ml_dtypes.bfloat16)),
        (np.zeros(3).view(np.recarray), np.zeros(3)),
        (bytearray(b"x" * 9000), b"x" * 9000),
        ({"deep": [b"y" * 100_000, (b"z" * 5000,)]}, {"deep": [b"y" * 100_000, (b"z" * 5000,)]}),
        ({(1, 2): "tuple as key", 3: 4}, {(1, 2): "tuple as key", 3: 4}),
    ],
)
def test_other_types_arrive_as_their_base(obj: Any, expected: Any) -> None:
    assert equal(expected, unpack(message(obj)))


def test_buffers_arrive_with_their_items() -> None:
    arrived = unpack(message(array.array("d", [1.5, 2.5])))
    assert isinstance(arrived, memoryview)
    assert arrived.tolist() == [1.5, 2.5]
    assert unpack(message(memoryview(np.eye(3)))) == np.eye(3).tobytes()


def test_columns_stay_columns() -> None:
    by_columns = np.arange(12.0).reshape(3, 4).T
    arrived = unpack(message(by_columns))
    assert equal(by_columns, arrived)
    assert arrived.flags.f_contiguous


def test_parts_are_aligned_and_shared_or_not() -> None:
    sent = [np.arange(5, dtype="u1"), np.arange(1000.0)]
    memory = np.zeros(len(message(sent)) + ALIGN, "u1")
    start = -memory.__array_interface__["data"][0] % ALIGN
    view = memoryview(memory[start:])[: len(message(sent))]
    view[:] = message(sent)
    shared = unpack(view, copy=False)
    for each in shared:
        assert each.__array_interface__["data"][0] % ALIGN == 0
        assert not each.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 1
    copied = unpack(view)
    view[:] = bytes(len(view))
    assert all((each == 0).all() for each in shared)
    assert all(map(equal, sent, copied))
    copied[0][0] = 9


def test_whoever_holds_the_memory_knows_whether_arrays_are_left() -> None:
    from sys import getrefcount

    obj, memory = unpack_shared(message([np.arange(9.0), array.array("i", [1])]))
    kept = obj[0][2:5].T
    alone = getrefcount(object())
    del obj
    assert getrefcount(memory) > alone + 1
    del kept
    assert getrefcount(memory) == alone + 1


def self_holding() -> list[Any]:
    found: list[Any] = []
    found.append([found])
    return found


@pytest.mark.parametrize(
    ("obj", "path", "reason"),
    [
        ({1, 2}, "it", "set does not travel"),
        ({"a": [1, {"b": {1}}]}, "it['a'][1]['b']", "set does not travel"),
        ([0, 2**70], "it[1]", "out of range"),
        ((np.zeros((4, 4))[::2, ::2],), "it[0]", "ascontiguousarray"),
        ([np.array([None])], "it[0]", "Python objects"),
        (np.ma.masked_array([1], [True]), "it", "its mask"),
        ([memoryview(b"abcd")[::2]], "it[0]", "contiguous"),
        (["\ud800"], "it[0]", "surrogates"),
        ({frozenset(): 1}, "key frozenset() of it", "frozenset does not travel"),
        ({"x": 1 + 2j}, "it['x']", "complex does not travel"),
        (self_holding(), "it", "holds itself"),
        ([lambda: None], "it[0]", "function does not travel"),
    ],
)
def test_what_cannot_travel_is_named_by_its_path(obj: Any, path: str, reason: str) -> None:
    with pytest.raises(EncodeError) as raised:
        pack(obj, what="it")
    assert raised.value.path == path
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
    assert unpack(message([1])) == [1], "the next one is not disturbed"


def test_an_array_in_a_slot_is_not_copied() -> None:
    slot = Slot(memoryview(bytearray(slot_bytes((4, 5), "f4"))), (4, 5), "f4")
    slot.array[:] = 7
    packed = pack({"a": [slot.array.reshape(20)]}, b"12345678", slot)
    assert packed.is_in_slot
    (only,) = packed.buffers
    assert only.obj is slot.memory.obj  # type: ignore[union-attr]
    (arrived,) = unpack(only, 8)["a"]  # type: ignore[arg-type]
    assert equal(np.full(20, 7, "f4"), arrived)


@pytest.mark.parametrize("more", [np.zeros(3), b"x" * 5000])
def test_a_slot_with_more_than_its_array_is_copied(more: Any) -> None:
    slot = Slot(memoryview(bytearray(slot_bytes(5, "f4"))), 5, "f4")
    slot.array[:] = 7
    packed = pack([slot.array, more, b"y" * (5000 if isinstance(more, bytes) else 0)], slot=slot)
    if not packed.is_in_slot:
        slot.memory[:] = bytes(len(slot.memory))
    assert equal(np.full(5, 7, "f4"), unpack(memoryview(b"".join(packed.buffers)))[0])


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_message_is_one_error(noise: bytes, at: int, value: int) -> None:
    whole = bytearray(message({"a": [np.arange(10.0), (1, b"x" * 5000)], "b": np.float32(1)}))
    whole[at] = value
    for damaged in (bytes(whole), bytes(whole[:at]), noise, struct.pack("<II", len(noise), 64) + noise):
        with suppress(TransportError):
            unpack(memoryview(damaged), copy=False)


def test_tensors_arrive_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    sent = [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.tensor(3.0, requires_grad=True), torch.zeros(0)]
    for copy in (True, False):
        arrived = unpack(message(sent), copy=copy)
        assert [each.dtype for each in arrived] == [each.dtype for each in sent]
        assert all(torch.equal(a, b) for a, b in zip(sent, arrived, strict=True))
        assert not any(each.requires_grad for each in arrived)
    with pytest.raises(EncodeError, match="contiguous"):
        pack(torch.zeros(4, 4).T)


@pytest.mark.parametrize("odd", [array.array("u", "ab"), (ctypes.c_int * 3)(1, 2, 3), ctypes.c_double(3.5)])
def test_a_buffer_that_no_view_can_be_made_of_is_refused_where_it_is_sent(odd: object) -> None:
    """It was sent, and only the receiver learned that it cannot be decoded."""
    with pytest.raises(EncodeError, match=r"the object\[1\] \(.*\) cannot be sent: a buffer of format"):
        pack([1, odd])


def test_an_object_that_cannot_be_looked_through_is_refused() -> None:
    class Evil(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise ValueError("evil")

    with pytest.raises(EncodeError, match="evil"):
        pack({"a": Evil([1])})


class Colour(str, enum.Enum):  # noqa: UP042 # a StrEnum is its value
    """Whose `str` is not its value."""

    RED = "red"


class Odd(int):
    def __int__(self) -> int:
        return 9


@pytest.mark.parametrize(("odd", "plain"), [(Colour.RED, "red"), (Odd(1), 1)])
def test_a_subclass_travels_with_the_value_that_it_holds(odd: Any, plain: object) -> None:
    """It was what its own `__str__` or `__int__` says: `Colour.RED`."""
    for obj, expected in ((odd, plain), ([odd], [plain]), ({odd: odd}, {plain: plain})):
        got = unpack(memoryview(b"".join(pack(obj).buffers)))
        assert got == expected
        assert repr(got) == repr(expected)
