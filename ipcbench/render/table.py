"""The one table model: columns, rows of strings, remarks and footnotes. `render.text` and the pages give it a form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ipcbench.util.units import format_significant

NOT_MEASURED = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is headed and aligned."""

    head: tuple[str, ...]
    """One line, or two with the unit in the second."""
    align: Literal["left", "right"] = "right"
    names_row: bool = False
    """Whether its cells name their rows: a page keeps them in sight, each part of a divided table repeats them."""


@dataclass(frozen=True, slots=True)
class Table:
    """Strings in rows, with what belongs above and below them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """One string per column."""
    remarks: tuple[str, ...] = ()
    """Sentences between the title and the rows; the verdict is the first."""
    best_rows: frozenset[int] = frozenset()
    """Indices of the rows with the first rank."""
    best_cells: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells with the first rank, where it is not the same for a whole row."""
    footnotes: tuple[tuple[str, str], ...] = ()
    """(letter, text)."""

    def without_empty_columns(self) -> Table:
        """Return the table without the columns that every row leaves empty."""
        kept = [index for index in range(len(self.columns)) if any(row[index] for row in self.rows)]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)


def make_columns(heads: Sequence[str], left: Collection[int] = (0,), name: int = 0) -> tuple[Column, ...]:
    """Return columns with heads of one line.

    Args:
        heads: one per column.
        left: indices of the columns that are aligned left; the others are aligned right.
        name: index of the column that names the rows.
    """
    return tuple(
        Column((head,), "left" if index in left else "right", index == name) for index, head in enumerate(heads)
    )


def footnote_letters(texts: Iterable[str]) -> dict[str, str]:
    """Return text → letter, in the order of appearance: a to z, then aa, ab …"""
    return {
        text: (chr(96 + index // 26) if index >= 26 else "") + chr(97 + index % 26)
        for index, text in enumerate(dict.fromkeys(texts))
    }


def number(value: float | None, divisor: float = 1.0, absent: str = NOT_MEASURED, digits: int = 3) -> str:
    """Return value / divisor with so many digits, or `absent`."""
    return absent if value is None else format_significant(value / divisor, digits)
