"""Tables as data: heads, rows of strings, remarks and footnotes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ipcbench.util.units import format_significant

NOT_MEASURED = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is headed."""

    head: tuple[str, str]
    """Two lines, the unit in the second."""
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True)
class Table:
    """Strings in rows, with what belongs above and below them."""

    title: str
    remarks: tuple[str, ...]
    """Sentences between the title and the rows; the verdict is the first."""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """One string per column."""
    best_rows: frozenset[int]
    """Rows that hold the first rank."""
    footnotes: tuple[tuple[str, str], ...]
    """(letter, text)."""


def number(value: float | None, divisor: float = 1.0, absent: str = NOT_MEASURED) -> str:
    """Return value / divisor with three digits, or `absent`."""
    return absent if value is None else format_significant(value / divisor)
