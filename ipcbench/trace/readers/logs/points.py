"""Rows of fixed-point numbers, thousands at once: each number is found by its decimal point.

All is done on the bytes of a block by NumPy. Whatever is not exactly an id, a name and so many numbers, each with as
many decimals as in the first row and without a sign, is not read here but refused.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import Ints
from ipcbench.trace.readers.logs.rows import Floats, Rows

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

_BLANK, _NEWLINE, _POINT, _ZERO = b" \n.0"
_NOT_A_DIGIT = 10
_ID_WIDTH = 5
_MOST_DIGITS = 12
_LONGEST_NAME = 128
_HASH = np.uint64(0x9E3779B97F4A7C15)


def rows_by_points(block: bytes, columns_count: int) -> Rows | None:
    """Return lines of an id, a name and so many fixed-point numbers; None if one of them is anything else."""
    text = np.frombuffer(block + b"\n", np.uint8)
    found_points = np.flatnonzero(text == _POINT)
    ends = np.flatnonzero(text == _NEWLINE)
    if found_points.size != ends.size * columns_count:
        return None
    points = found_points.reshape(-1, columns_count)
    begins = np.concatenate([[0], ends[:-1] + 1])
    if (points[:, 0] < begins).any() or (points[:, -1] > ends).any():
        return None
    digits = text - np.uint8(_ZERO)  # wraps: what is no digit is 10 or more
    found = _numbers(text, digits, points)
    ids = _ids(text, digits, begins)
    if found is None or ids is None:
        return None
    table, starts, seen_count = found
    numbers, widths = ids
    names = _names(text, begins + np.maximum(widths, _ID_WIDTH) + 1, starts)
    if names is None:
        return None
    methods, chosen, name_count = names
    if text.size - int(np.count_nonzero(text == _BLANK)) != seen_count + int(widths.sum()) + name_count + ends.size:
        return None
    return Rows(numbers, methods, chosen, table)


def _numbers(text: _Bytes, digits: _Bytes, points: Ints) -> tuple[Floats, Ints, int] | None:
    """Return the table of shape (columns, n), where the first numbers begin, and how many bytes all numbers have."""
    columns_count = points.shape[1]
    decimals = [_decimals(digits, int(point)) for point in points[0]]
    table = np.empty((columns_count, len(points)))
    seen_count = points.size
    starts = points[:, 0]
    first = 0
    while first < columns_count:
        count = decimals[first]
        last = first + 1
        while last < columns_count and decimals[last] == count:
            last += 1
        at = np.ascontiguousarray(points[:, first:last].T).ravel()
        found = _fixed(text, digits, at, count)
        if found is None:
            return None
        values, widths = found
        seen_count += int(widths.sum()) + count * at.size
        table[first:last] = (values / 10.0**count).reshape(last - first, -1)
        if first == 0:
            starts = starts - widths[: len(starts)]
        first = last
    return table, starts, seen_count


def _fixed(text: _Bytes, digits: _Bytes, at: Ints, decimals: int) -> tuple[Ints, Ints] | None:
    """Return the numbers around these points, in units of their last decimal, and the widths before the points.

    None unless each has so many decimals, one at least, and blanks around it.
    """
    if not decimals:
        return None
    values = np.zeros(at.size, np.int64)
    for step in range(1, decimals + 1):
        found = digits.take(at + step, mode="clip")
        if found.max() >= _NOT_A_DIGIT:
            return None
        values = values * 10 + found
    behind = text.take(at + decimals + 1, mode="clip")
    whole = _digits_before(digits, at)
    if whole is None or ((behind != _BLANK) & (behind != _NEWLINE)).any():
        return None
    return values + whole[0] * 10**decimals, whole[1]


def _decimals(digits: _Bytes, point: int) -> int:
    """Return how many digits follow a point, at most six."""
    behind = digits[point + 1 : point + 8] < _NOT_A_DIGIT
    return int(behind.argmin()) if behind.size and not behind.all() else 0


def _digits_before(digits: _Bytes, at: Ints) -> tuple[Ints, Ints] | None:
    """Return the whole numbers that end before these places, and their widths; None unless blanks precede them."""
    values = digits.take(at - 1, mode="wrap").astype(np.int64)
    if values.max() >= _NOT_A_DIGIT:
        return None
    widths = np.ones(at.size, np.int64)
    going, rest = np.arange(at.size), at
    for step in range(2, _MOST_DIGITS + 2):
        found = digits.take(rest - step, mode="wrap")
        on = found < _NOT_A_DIGIT
        if (~on & (found != _wrapped(_BLANK))).any():
            return None
        if not on.any():
            return values, widths
        if not on.all():
            going, rest, found = going[on], rest[on], found[on]
        values[going] += found * np.int64(10 ** (step - 1))
        widths[going] += 1
    return None


def _ids(text: _Bytes, digits: _Bytes, begins: Ints) -> tuple[Ints, Ints] | None:
    """Return the numbers that begin at these places, and their widths; None unless blanks follow them."""
    values = np.zeros(begins.size, np.int64)
    widths = np.zeros(begins.size, np.int64)
    going = np.ones(begins.size, np.bool_)
    for step in range(_MOST_DIGITS + 1):
        found = digits.take(begins + step, mode="clip")
        going &= found < _NOT_A_DIGIT
        if not going.any():
            break
        values = np.where(going, values * 10 + found, values)
        widths += going
    else:
        return None
    if not widths.all() or (text.take(begins + widths, mode="clip") != _BLANK).any():
        return None
    return values, widths


def _names(text: _Bytes, begins: Ints, ends: Ints) -> tuple[list[str], Ints, int] | None:
    """Return the different names between these places, which row has which, and how many bytes they all have."""
    widths = ends - begins
    width = int(widths.max())
    if int(widths.min()) < 2 or width > _LONGEST_NAME:
        return None
    table = np.full((begins.size, -(-width // 8) * 8), _BLANK, np.uint8)
    table[:, :width] = text.take(begins[:, None] + np.arange(width), mode="clip")
    if int(widths.min()) < width:
        table[np.arange(table.shape[1]) >= widths[:, None]] = _BLANK
    if (table[:, 0] == _BLANK).any():
        return None
    words = table.view(np.uint64)
    keys = words[:, 0].copy()
    for index in range(1, words.shape[1]):
        keys = keys * _HASH ^ words[:, index]
    _, first, chosen = np.unique(keys, return_index=True, return_inverse=True)
    if (words != words[first][chosen]).any():
        return None
    names = [" ".join(bytes(table[row]).decode("utf-8", "replace").split()) for row in first.tolist()]
    return names, chosen.astype(np.int64), int(np.count_nonzero(table != _BLANK))


def _wrapped(byte: int) -> int:
    return (byte - _ZERO) % 256
