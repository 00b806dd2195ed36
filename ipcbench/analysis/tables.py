"""A run as tables: one per payload, then backend × payload; strings in rows, the same for every format.

What does not live here: figures (summary.py), sentences (wording.py) and formats (render.py, export.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ipcbench.analysis.notes import one_line
from ipcbench.analysis.cells import CellSummary, SettingSummary, Summary, summarise
from ipcbench.analysis.wording import LEGEND, header, ratio_words, setting_title, verdict
from ipcbench.store import Run
from ipcbench.units import format_significant

NOT_MEASURED = "–"
TOO_FEW = "n/a"


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
    legend: tuple[str, ...]
    summary: Summary


def tables(run: Run) -> Tables:
    """Return the tables of a stored run; the same run gives the same tables."""
    from ipcbench.analysis.matrix import matrices

    summary = summarise(run)
    return Tables(
        header=tuple(one_line(line) for line in header(summary)),
        payload_tables=tuple(_payload_table(one) for one in summary.settings),
        matrices=matrices(summary),
        legend=LEGEND,
        summary=summary,
    )


def rank_text(rank: int | None, ranks: Iterable[int | None]) -> str:
    """Return a rank, with `=` behind it if others of `ranks` share it."""
    if rank is None:
        return NOT_MEASURED
    return f"{rank}=" if sum(one == rank for one in ranks) > 1 else str(rank)


def number(value: float | None, divisor: float = 1.0, absent: str = NOT_MEASURED) -> str:
    """Return value / divisor with three digits, or `absent`."""
    return absent if value is None else format_significant(value / divisor)


def _microseconds(value_ns: float | None) -> str:
    return number(value_ns, 1e3)


def _p50(cell: CellSummary) -> str:
    if cell.status != "ok":
        return cell.status
    return _microseconds(cell.latency_p50_ns.estimate if cell.latency_p50_ns else None)


def _p99(cell: CellSummary) -> str:
    if cell.latency_p99_ns is not None:
        return _microseconds(cell.latency_p99_ns.estimate)
    return TOO_FEW if cell.latency_p50_ns is not None else NOT_MEASURED


def _ratio(cell: CellSummary) -> str:
    if cell.ratio is None:
        return NOT_MEASURED
    return "1" if cell.ratio.low == cell.ratio.high == 1.0 else ratio_words(cell.ratio)


_FIGURES: tuple[tuple[Column, Callable[[CellSummary], str]], ...] = (
    (Column(("one-way", "p50 µs")), _p50),
    (Column(("one-way", "p99 µs")), _p99),
    (Column(("× best", "[95 %]")), _ratio),
    (Column(("read", "p50 µs")), lambda cell: _microseconds(cell.read_p50_ns)),
    (Column(("decode", "p50 µs")), lambda cell: _microseconds(cell.decode_p50_ns)),
    (Column(("k msg/s", "/reader")), lambda cell: number(cell.throughput_per_s, 1e3)),
    (Column(("MB/s", "/reader")), lambda cell: number(cell.throughput_bytes_per_s, 1e6)),
    (Column(("CPU µs", "writer")), lambda cell: _microseconds(cell.writer_cpu_ns)),
    (Column(("CPU µs", "reader")), lambda cell: _microseconds(cell.reader_cpu_ns)),
)


def _payload_table(one: SettingSummary) -> Table:
    common = _common_notes(one.cells)
    letters = _letters(one.cells, common)
    ranks = [cell.rank for cell in one.cells]
    rows = tuple(
        (
            rank_text(cell.rank, ranks),
            cell.backend,
            *(text(cell) for _, text in _FIGURES),
            " ".join(letters[note] for note in cell_remarks(cell) if note in letters),
        )
        for cell in one.cells
    )
    return Table(
        title=setting_title(one.setting),
        remarks=(verdict(one), *(f"All: {note}." for note in common)),
        columns=(
            Column(("", "rank")),
            Column(("", "backend"), "left"),
            *(column for column, _ in _FIGURES),
            Column(("", "notes"), "left"),
        ),
        rows=rows,
        best_rows=frozenset(index for index, rank in enumerate(ranks) if rank == 1),
        footnotes=tuple((letter, note) for note, letter in letters.items()),
    )


def cell_remarks(cell: CellSummary) -> tuple[str, ...]:
    """Return what stands beside a cell: why it has no figures, or the notes of those it has."""
    return cell.notes if cell.status == "ok" else (f"{cell.status}: {one_line(cell.reason)}",)


def _common_notes(cells: Sequence[CellSummary]) -> tuple[str, ...]:
    """Return the notes that every measured cell bears, if there are several: they are said once, above."""
    measured = [cell.notes for cell in cells if cell.status == "ok"]
    if len(measured) < 2:
        return ()
    return tuple(note for note in measured[0] if all(note in notes for notes in measured))


def _letters(cells: Sequence[CellSummary], common: Sequence[str]) -> dict[str, str]:
    """Return note → letter, in the order of appearance: a to z, then aa, ab …"""
    notes = dict.fromkeys(note for cell in cells for note in cell_remarks(cell) if note not in common)
    return {note: chr(97 + index) if index < 26 else _letter_pair(index) for index, note in enumerate(notes)}


def _letter_pair(index: int) -> str:
    return chr(96 + index // 26) + chr(97 + index % 26)
