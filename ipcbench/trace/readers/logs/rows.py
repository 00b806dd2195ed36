"""Rows of a log as numbers: many at once by NumPy's reader, or one by one where something is odd."""

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
        methods: different names, into which `method` points.
        method: shape (n,).
        table: shape (columns, n).
    """

    ids: Ints
    methods: list[str]
    method: Ints
    table: Floats

    def take(self, chosen: npt.NDArray[np.bool_] | list[int]) -> Rows:
        """Return some of the rows."""
        return Rows(self.ids[chosen], self.methods, self.method[chosen], self.table[:, chosen])


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
    return _rows(read["id"].copy(), names, np.ascontiguousarray(read["values"].T))


def _rows(ids: Ints, names: Sequence[str], table: Floats) -> Rows:
    methods = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return Rows(ids, list(methods), np.array([methods[name] for name in names], dtype=np.int64), table)


def rows_one_by_one(rows: Sequence[Sequence[str]], columns_count: int) -> Rows:
    """Return rows of an id, a name, and words that are numbers."""
    ids = np.array([int(row[0][:_LARGEST_ID_DIGITS]) for row in rows], dtype=np.int64)
    table = np.array([numbers(row[2:]) for row in rows], dtype=np.float64).reshape(-1, columns_count).T
    return _rows(ids, [row[1][:_LONGEST_NAME] for row in rows], table)


def numbers(words: Sequence[str]) -> list[float] | None:
    """Return the words as numbers; None if one is none."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return None
