"""Ordinary [TQ-TRACE] and [TQ-DETAIL] lines of a block as columns: what each says, found from its end backwards.

All is done on the bytes of a block by NumPy. A line is ordinary if it has one marker and ends as the tracer writes it,
to the byte: its stage, its numbers with six and two decimals, its timestamp.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import Ints

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"
_Words: TypeAlias = "npt.NDArray[np.uint64]"
_Mask: TypeAlias = "npt.NDArray[np.bool_]"

FOREIGN: Final = 0
ODD: Final = 1
NOTHING: Final = 2
START: Final = 3
END: Final = 4
PART: Final = 5
GOT: Final = 8
SIZE: Final = 9
PUT: Final = 10
"""What a line is: of others; of ours in an unusual form; one that need not be looked at; the start or the end of a
call; the end of part 0, and, with 1 and 2 more, of parts 1 and 2; of details: data got, the size of data, data put."""

_FRONT, _BACK = 128, 64
"""Zeros around a block, so that looking around a place needs no check."""

_NEWLINE, _BRACKET, _PARENTHESIS, _POINT = b"\n[)."
_FOUR_BYTES = 0xFFFFFFFF
_ZEROS = np.uint64(0x3030303030303030)
_SIX = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_TIMESTAMP = b" | timestamp="
_PART_KEYS = (b" | stage=GET_END | duration=", b" | stage=COMPUTE_END | duration=", b" | stage=PUT_END | duration=")
_END_KEYS = (b"% | put_ratio=", b"% | compute_ratio=", b"s | get_ratio=")
_TOTAL = b" | stage=FUNCTION_END | total_duration="
_STARTS = (b" | stage=COMPUTE_START", b" | stage=PUT_START", b" | stage=GET_START")
_FUNCTION = b" | stage=FUNCTION_START"
_BATCH = b" | batch_size="
_DETAIL_KEYS = (b"s | data_size_mb=", b"s | throughput_mbps=")
_DETAIL_ENDS = (b" | stage=TQ_CLIENT_GET_END | duration=", b" | stage=TQ_CLIENT_PUT_END | duration=")


class Columns(NamedTuple):
    """The lines of a block as columns of shape (n,).

    Attributes:
        kinds: FOREIGN to PUT.
        begins, ends: where each line is in the block.
        markers: where its marker is, of lines from NOTHING on.
        workers: behind its first closing parenthesis, of lines from NOTHING on; `begins` if the marker is before that.
        heads: where what tells trace id and function ends, of lines from START on.
        at_us: timestamps.
        durations_us: of parts, ends and transfers.
        hundredths: shape (n, 3): of ends the ratios of put, compute and get in %; else size or speed in MiB.
    """

    kinds: npt.NDArray[np.int8]
    begins: Ints
    ends: Ints
    markers: Ints
    workers: Ints
    heads: Ints
    at_us: Ints
    durations_us: Ints
    hundredths: Ints


class _Text:
    """The bytes of a block, also as words of eight bytes that begin at each of them."""

    def __init__(self, block: bytes) -> None:
        padded = b"".join([bytes(_FRONT), block, b"\n", bytes(_BACK)])
        self.bytes: _Bytes = np.frombuffer(padded, np.uint8)
        self.words: _Words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))

    def ends_with(self, key: bytes, at: Ints) -> _Mask:
        """Return whether the key stands right before each place."""
        good: _Mask = np.ones(at.size, np.bool_)
        for begin in (*range(0, len(key) - 7, 8), len(key) - 8):
            good &= self.words[at - (len(key) - begin)] == int.from_bytes(key[begin : begin + 8], "little")
        return good

    def numbers(self, at: Ints, decimals: int) -> tuple[Ints, Ints, _Mask]:
        """Return the numbers right before each place in units of their last decimal, where they begin, and if they are.

        One has so many decimals, six at most, and at most seven digits before its point.
        """
        values: _Words = np.zeros(at.size, np.uint64)
        good: _Mask = np.ones(at.size, np.bool_)
        point = at
        if decimals:
            point = at - decimals - 1
            behind = (self.words[at - 8] ^ _ZEROS) & np.uint64(2**64 - 2 ** (64 - 8 * decimals))
            good = (_no_digits(behind) == 0) & (self.bytes[point] == _POINT)
            values = _value(behind)
        before = self.words[point - 8] ^ _ZEROS
        # The highest set bit tells the last byte that is no digit; a float's exponent tells the highest set bit.
        highest = (_no_digits(before).astype(np.float64).view(np.int64) >> 52) - 1023
        widths = 7 - (highest >> 3)  # 0 if all are digits: -1023 >> 3 is far below, and the width far above 7
        good = good & (widths > 0) & (widths < 8)
        shift = (64 - 8 * (widths & 7)).astype(np.uint64) & np.uint64(63)
        values = values + _value(before >> shift << shift) * np.uint64(10**decimals)
        return values.astype(np.int64), point - widths, good


def _no_digits(words: _Words) -> _Words:
    """Return the highest bit of each byte that is no digit, of words from which the zeros were taken."""
    return (words | ((words & ~_HIGH) + _SIX)) & _HIGH


def _value(words: _Words) -> _Words:
    """Return the numbers of eight digits each, of words from which the zeros were taken."""
    words = words * np.uint64(10) + (words >> np.uint64(8))
    high = (words & _PAIRS) * np.uint64(0x000F424000000064)
    low = ((words >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return (high + low) >> np.uint64(32)


def columns(block: bytes) -> Columns:
    """Return the lines of a block as columns."""
    text = _Text(block)
    ends = np.flatnonzero(text.bytes == _NEWLINE)
    begins = np.concatenate([[_FRONT], ends[:-1] + 1])
    brackets = np.flatnonzero(text.bytes == _BRACKET)
    places = brackets[text.words[brackets] & _FOUR_BYTES == int.from_bytes(b"[TQ-", "little")]
    lines = np.searchsorted(ends, places)
    counts = np.bincount(lines, minlength=ends.size)
    markers = begins.copy()
    markers[lines] = places
    parens = np.append(np.flatnonzero(text.bytes == _PARENTHESIS), ends[-1])
    workers = parens[np.searchsorted(parens, begins)] + 1
    workers = np.where(workers > markers, begins, workers)
    zeros = np.zeros((6, ends.size), np.int64)
    found = Columns(
        (counts > 0).astype(np.int8),  # FOREIGN or ODD
        begins - _FRONT, ends - _FRONT, markers - _FRONT, workers - _FRONT, zeros[0], zeros[1], zeros[2],
        zeros[3:].T.copy(),
    )  # fmt: skip
    one = np.flatnonzero(counts == 1)
    if one.size:
        stamps, starts, good = text.numbers(ends[one], 6)
        good &= text.ends_with(_TIMESTAMP, starts)
        one, behind = one[good], starts[good] - len(_TIMESTAMP)
        found.at_us[one] = stamps[good]
        for key, classify in ((b"[TQ-TRACE] trace_id=", _trace), (b"[TQ-DETAIL] trace_id=", _detail)):
            chosen = text.ends_with(key, markers[one] + len(key))
            if chosen.any():
                classify(text, one[chosen], behind[chosen], found)
    return found


def _fill(found: Columns, lines: Ints, kind: int, heads: Ints) -> None:
    found.kinds[lines] = kind
    found.heads[lines] = heads - _FRONT


def _skip(text: _Text, lines: Ints, behind: Ints, key: bytes, found: Columns) -> None:
    """Fill in the lines of which nothing but a size of the batch follows the key."""
    _, starts, good = text.numbers(behind, 0)
    good &= text.ends_with(_BATCH, starts)
    found.kinds[lines[good][text.ends_with(key, starts[good] - len(_BATCH))]] = NOTHING


def _durations(text: _Text, lines: Ints, at: Ints, found: Columns) -> tuple[Ints, Ints]:
    """Fill in the durations before the places; return the lines that have one, and where it begins."""
    values, starts, good = text.numbers(at, 6)
    lines = lines[good]
    found.durations_us[lines] = values[good]
    return lines, starts[good]


def _trace(text: _Text, lines: Ints, behind: Ints, found: Columns) -> None:
    """Fill in what lines with [TQ-TRACE] are; `behind` is where each one's timestamp field begins."""
    last = text.bytes[behind - 1]
    word = last == ord("T")
    chosen, at = lines[word], behind[word]
    for key in _STARTS:
        found.kinds[chosen[text.ends_with(key, at)]] = NOTHING
    good = text.ends_with(_FUNCTION, at)
    _fill(found, chosen[good], START, at[good] - len(_FUNCTION))
    digit = (last >= ord("0")) & (last <= ord("9"))
    _skip(text, lines[digit], behind[digit], _STARTS[-1], found)
    seconds = last == ord("s")
    chosen, at = _durations(text, lines[seconds], behind[seconds] - 1, found)
    for part, key in enumerate(_PART_KEYS):
        good = text.ends_with(key, at)
        _fill(found, chosen[good], PART + part, at[good] - len(key))
    percent = last == ord("%")
    _ends(text, lines[percent], behind[percent] - 1, found)


def _ends(text: _Text, lines: Ints, at: Ints, found: Columns) -> None:
    """Fill in the ends of calls; `at` is where the last ratio's sign stands."""
    for column, key in enumerate(_END_KEYS):
        values, starts, good = text.numbers(at, 2)
        good &= text.ends_with(key, starts)
        lines, at = lines[good], starts[good] - len(key)
        found.hundredths[lines, column] = values[good]
    lines, at = _durations(text, lines, at, found)
    good = text.ends_with(_TOTAL, at)
    _fill(found, lines[good], END, at[good] - len(_TOTAL))


def _detail(text: _Text, lines: Ints, behind: Ints, found: Columns) -> None:
    """Fill in what lines with [TQ-DETAIL] are; `behind` is where each one's timestamp field begins."""
    sized = text.bytes[behind - 3] == _POINT
    _skip(text, lines[~sized], behind[~sized], b" | stage=TQ_CLIENT_GET_START", found)
    lines, behind = lines[sized], behind[sized]
    values, starts, good = text.numbers(behind, 2)
    lines, starts = lines[good], starts[good]
    found.hundredths[lines, 0] = values[good]
    good = text.ends_with(b"]) | data_size_mb=", starts)
    _fill(found, lines[good], SIZE, starts[good])
    for key, stage, kind in zip(_DETAIL_KEYS, _DETAIL_ENDS, (GOT, PUT), strict=True):
        good = text.ends_with(key, starts)
        chosen, at = _durations(text, lines[good], starts[good] - len(key), found)
        good = text.ends_with(stage, at)
        _fill(found, chosen[good], kind, at[good] - len(stage))
