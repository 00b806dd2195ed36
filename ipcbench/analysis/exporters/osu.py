"""Text in the form of the OSU micro-benchmarks: a latency and a bandwidth table per backend, sizes in payload bytes.

OSU's latency is half a round trip between two processes. Here one-way latency is timed one way, and half a round trip
has its own table that says so; the two are never one column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ipcbench.analysis.exporters.common import Export, select
from ipcbench.analysis.summary.cells import CellSummary, Setting, cells_of
from ipcbench.analysis.summary.notes import printable
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import family_words
from ipcbench.results.store import Run

_SIZE_WIDTH = 10
_FIELD_WIDTH = 20

_LATENCY = "Latency (us)"
_BANDWIDTH = "Bandwidth (MB/s)"


def _one_way_us(cell: CellSummary) -> float | None:
    return cell.latency_p50_ns.estimate / 1e3 if cell.latency_p50_ns is not None else None


def _half_round_trip_us(cell: CellSummary) -> float | None:
    return cell.round_trip_p50_ns.estimate / 2e3 if cell.round_trip_p50_ns is not None else None


def _mb_per_s(cell: CellSummary) -> float | None:
    return cell.throughput_bytes_per_s / 1e6 if cell.throughput_bytes_per_s is not None else None


_TABLES: tuple[tuple[str, str, Callable[[CellSummary], float | None]], ...] = (
    ("one-way latency, median, from the intended send time", _LATENCY, _one_way_us),
    ("half round trip, median, to the last reader's reply", _LATENCY, _half_round_trip_us),
    ("bandwidth to each reader, MB = 10^6 bytes of payload", _BANDWIDTH, _mb_per_s),
)
"""(what the table shows, OSU's title of its column, the figure)."""


def as_osu(run: Run) -> Export:
    """Return the tables, backend by backend, separated by empty lines.

    Raises:
        StoreError: there is no trial, or no figure, to write.
    """
    selection = select(run, ("paced", "pingpong", "saturate"), "osu")
    selection.check_samples()
    families: dict[tuple[str, Setting], list[CellSummary]] = {}
    for cell in cells_of(summarise(run).settings):
        families.setdefault((cell.backend, cell.setting.without_size()), []).append(cell)
    tables = [table for _, cells in sorted(families.items()) for table in _tables(cells)]
    selection.require(tables, "figure for osu")
    return selection.export("\n".join(tables))


def _tables(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the tables of one backend that have rows."""
    for what, title, figure in _TABLES:
        rows = {cell.setting: value for cell in cells if (value := figure(cell)) is not None}
        if rows:
            notes = [
                (cell.setting.payload_bytes, note) for cell in cells for note in cell.notes if cell.setting in rows
            ]
            yield "".join(f"{line}\n" for line in _lines(cells[0], what, title, rows, notes))


def _lines(
    cell: CellSummary, what: str, title: str, rows: dict[Setting, float], notes: Sequence[tuple[int, str]]
) -> Iterator[str]:
    yield f"# ipcbench {printable(cell.backend)}: {what}"
    yield f"# Payload: {cell.setting.payload}, {family_words(cell.setting)}."
    yield from (f"# {size:,} B: {note}" for size, note in sorted(notes))
    yield f"{'# Size':<{_SIZE_WIDTH}}{title:>{_FIELD_WIDTH}}"
    for setting, value in sorted(rows.items(), key=lambda row: row[0].payload_bytes):
        yield f"{setting.payload_bytes:<{_SIZE_WIDTH}}{value:>{_FIELD_WIDTH}.2f}"
