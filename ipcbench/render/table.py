"""Tables as data: heads, rows of strings, remarks and footnotes.

What does not live here: what is in them (tables.py, matrix.py) and formats (render.py, export.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ipcbench.analysis.cells import Summary
from ipcbench.analysis.explain import Finding
from ipcbench.units import format_significant

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


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that is said of a run, ready for any format."""

    header: tuple[str, ...]
    payload_tables: tuple[Table, ...]
    """One per setting."""
    matrices: tuple[Table, ...]
    """Latency and throughput over the sizes, for each payload kind of several sizes."""
    findings: tuple[Finding, ...]
    """What stands out; often nothing."""
    legend: tuple[str, ...]
    """What each column is; only of those that are shown."""
    summary: Summary


def rank_text(rank: int | None, ranks: Iterable[int | None]) -> str:
    """Return a rank, with `=` behind it if others of `ranks` share it."""
    if rank is None:
        return NOT_MEASURED
    return f"{rank}=" if sum(one == rank for one in ranks) > 1 else str(rank)


def number(value: float | None, divisor: float = 1.0, absent: str = NOT_MEASURED) -> str:
    """Return value / divisor with three digits, or `absent`."""
    return absent if value is None else format_significant(value / divisor)
