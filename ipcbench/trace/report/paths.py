"""Paths: the calls that have one trace id, in order, through all functions and processes; and the slowest of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns
from ipcbench.render.text import aligned, csv_text, markdown_table
from ipcbench.trace.ids import format_trace_id
from ipcbench.trace.readers.batch import Batch
from ipcbench.trace.readers.calls import Row, method_name
from ipcbench.trace.readers.everything import Source
from ipcbench.util.text import printable
from ipcbench.util.units import format_duration_ns, format_ms, format_significant

_MOST_PATHS = 200_000
_SHOWN = 5
_LATEST = 2**62
_HALVES = np.dtype([("high", "<u8"), ("low", "<u8")])


@dataclass(slots=True)
class Path:
    """The calls of one trace id.

    Attributes:
        begin_ns, end_ns: of the first and of the last of them, on their host's clock.
    """

    trace_id: str
    calls_count: int
    begin_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """From the first begin to the last end."""
        return self.end_ns - self.begin_ns


class PathSums:
    """The first 200,000 paths of a trace, each by its extent."""

    def __init__(self) -> None:
        self._paths: dict[object, list[int]] = {}

    def add(self, batch: Batch) -> None:
        """Add the calls that somebody gave a trace id, and whose times are known."""
        if batch.traces is not None:
            halves = np.ascontiguousarray(batch.traces).view(_HALVES)[:, 0]
            chosen = np.flatnonzero((batch.traces != 0).any(axis=1) & (batch.begin_ns >= 0))
            names, place = np.unique(halves[chosen], return_inverse=True)
            ids: list[object] = names.tolist()
        elif batch.trace_ids:
            chosen = np.flatnonzero(np.array(list(map(bool, batch.trace_ids))) & (batch.begin_ns >= 0))
            texts, place = np.unique(np.array(batch.trace_ids, object)[chosen].astype(str), return_inverse=True)
            ids = texts.tolist()
        else:
            return
        begin, end = (np.full(len(ids), edge, np.int64) for edge in (_LATEST, 0))
        np.minimum.at(begin, place, batch.begin_ns[chosen])
        np.maximum.at(end, place, (batch.begin_ns + batch.total_ns)[chosen])
        counts = np.bincount(place, minlength=len(ids)).tolist()
        for name, count, first, last in zip(ids, counts, begin.tolist(), end.tolist(), strict=True):
            path = self._paths.get(name)
            if path is not None:
                path[:] = path[0] + count, min(path[1], first), max(path[2], last)
            elif len(self._paths) < _MOST_PATHS:
                self._paths[name] = [count, first, last]

    def slowest(self) -> list[Path]:
        """Return the five slowest paths of two or more calls."""
        several = [(path[1] - path[2], number, name) for number, (name, path) in enumerate(self._paths.items())
                   if path[0] > 1]  # fmt: skip
        return [Path(_text(name), *self._paths[name]) for _, _, name in sorted(several)[:_SHOWN]]


def _text(name: object) -> str:
    return format_trace_id(*name) if isinstance(name, tuple) else str(name)


def path_of(source: Source, trace_id: str) -> list[Row]:
    """Return the calls of a trace id in the order of their begins; those without a time as they stand.

    Raises:
        StoreError: there is none.
    """
    wanted = _plain(trace_id)
    rows = [row for row in source.in_order(joined=True) if row.trace_id and _plain(row.trace_id) == wanted]
    if not rows:
        names = ", ".join(map(str, source.paths))
        raise StoreError(f"{names}: no call has the trace id {trace_id!r}; `ipcbench trace tail` prints them")
    return sorted(rows, key=_at_ns) if all(row.begin_ns >= 0 for row in rows) else rows


def _plain(trace_id: str) -> str:
    return trace_id.replace("-", "").strip().lower()


def _at_ns(row: Row) -> int:
    return row.begin_ns + (row.process.unix_ns or 0)


def _process(row: Row) -> str:
    process = row.process
    return " ".join(filter(None, (process.service, process.host, str(process.pid or ""))))


def _table(rows: list[Row]) -> Table:
    stages = list(dict.fromkeys(name for row in rows for name in row.stages))
    first = _at_ns(rows[0])

    def cells(row: Row) -> Iterator[str]:
        times = row.stages_ns
        yield format_ms(_at_ns(row) - first) if row.begin_ns >= 0 else NOT_MEASURED
        yield printable(_process(row))
        yield printable(method_name(row.method, row.role)) + (" (failed)" if row.failed else "")
        yield format_ms(row.known_total_ns)
        yield from (format_ms(times.get(name)) for name in stages)
        yield NOT_MEASURED if row.moved_bytes is None else format_significant(row.moved_bytes / 1024)

    heads = ("begin ms", "process", "method", "total ms", *(f"{name} ms" for name in stages), "KiB")
    return Table("", make_columns(heads, left=(1, 2), name=2), tuple(tuple(cells(row)) for row in rows))


def _head(rows: list[Row]) -> str:
    ends = [_at_ns(row) + row.total_ns for row in rows]
    span = f" in {format_duration_ns(max(ends) - _at_ns(rows[0]))}" if all(row.begin_ns >= 0 for row in rows) else ""
    return f"trace {printable(rows[0].trace_id)}: {len(rows):,} calls{span}"


def as_text(rows: list[Row]) -> str:
    """Return the calls of a path for a terminal."""
    return "\n".join([_head(rows), "", *aligned(_table(rows), indent="  ")]) + "\n"


def as_markdown(rows: list[Row]) -> str:
    """Return the calls of a path in Markdown."""
    return f"# {_head(rows)}\n\n{markdown_table(_table(rows))}\n"


def _values(row: Row) -> dict[str, object]:
    return {
        "begin_unix_ns": row.begin_unix_ns, "begin_ns": row.begin_ns if row.begin_ns >= 0 else None,
        "process": asdict(row.process), "method": row.method, "role": row.role, "failed": row.failed,
        "total_ns": row.known_total_ns, "stages_ns": row.stages_ns,
        "sent_bytes": row.sent_bytes, "recv_bytes": row.recv_bytes,
    }  # fmt: skip


def as_json(rows: list[Row]) -> str:
    """Return the calls of a path as JSON, times in ns."""
    return document("trace path", {"trace_id": rows[0].trace_id, "calls": [_values(row) for row in rows]})


def as_csv(rows: list[Row]) -> str:
    """Return the calls of a path as CSV, times in ns."""
    flat = []
    for row in rows:
        values = _values(row)
        stages = {f"{name}_ns": ns for name, ns in row.stages_ns.items()}
        flat.append({**values, "process": _process(row), **stages})
        del flat[-1]["stages_ns"]
    return csv_text(flat, list(dict.fromkeys(name for values in flat for name in values)))
