"""Rows of a log as numbers: many at once by NumPy's reader, or one by one where something is odd.

What does not live here: what the columns are (zmq_log.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import Ints

Floats: TypeAlias = "npt.NDArray[np.float64]"

_LONGEST_NAME = 100
_LARGEST_ID_DIGITS = 18


class Rows(NamedTuple):
    """Rows as columns.

    Attributes:
        ids: shape (n,).
        names: n methods.
        table: shape (columns, n).
    """

    ids: Ints
    names: list[str]
    table: Floats


def rows_at_once(lines: Sequence[str], columns_count: int) -> Rows | None:
    """Return lines of an id, a word and so many numbers; None if one of them is anything else."""
    kind = np.dtype([("id", "<i8"), ("name", f"U{_LONGEST_NAME}"), ("values", "<f8", (columns_count,))])
    try:
        read = np.atleast_1d(np.loadtxt(lines, dtype=kind, comments=None))
    except (ValueError, OverflowError):
        return None
    names = read["name"].tolist()
    if len(names) != len(lines) or max(map(len, names)) >= _LONGEST_NAME or (read["id"] < 0).any():
        return None
    return Rows(read["id"].copy(), names, np.ascontiguousarray(read["values"].T))


def rows_one_by_one(rows: Sequence[Sequence[str]], columns_count: int) -> tuple[Rows, list[Sequence[str]]]:
    """Return the rows that hold numbers behind an id and a name, and those that do not."""
    sound, values, damaged = [], [], []
    for row in rows:
        found = numbers(row[2:])
        if found is None:
            damaged.append(row)
        else:
            sound.append(row)
            values.append(found)
    ids = np.array([int(row[0][:_LARGEST_ID_DIGITS]) for row in sound], dtype=np.int64)
    table = np.array(values, dtype=np.float64).reshape(-1, columns_count).T
    return Rows(ids, [row[1] for row in sound], table), damaged


def numbers(words: Sequence[str]) -> list[float] | None:
    """Return the words as numbers; None if one is none."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return None
