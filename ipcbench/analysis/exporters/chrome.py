"""Chrome JSON trace of the messages around the worst ones of each paced trial, for ui.perfetto.dev.

Each window is a separate process with its own zero of time; its writer and readers are threads. It has a slice for each
write and for each read up to the receipt, an arrow from the send to each receipt, and a mark at each intended send
time. Slices of a track never overlap.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipcbench.analysis.exporters.common import Export, MatchedRows, Selection, matched_rows, select
from ipcbench.analysis.summary.cells import Setting
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import size_words
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.stats.estimates import IntArray
from ipcbench.util.units import format_duration_ns

WORST_COUNT = 3
"""Windows per trial."""
NEIGHBOURS_COUNT = 4
"""Messages shown before and after the outlier."""

_INSIDE_NS = 100
"""An arrow ends this far inside its slice, where no rounding of a viewer can move it outside."""

_Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Slice:
    """A call of one endpoint; times are of CLOCK_MONOTONIC."""

    row: int
    """Row of the message in the writer's columns."""
    start_ns: int
    end_ns: int
    arguments: Mapping[str, Any]

    @property
    def margin_ns(self) -> int:
        return min(_INSIDE_NS, (self.end_ns - self.start_ns) // 2)


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """The stored messages of a trial."""

    trial: TrialResult
    columns: Mapping[str, IntArray]
    rows: Mapping[str, MatchedRows]
    """By reader."""
    worst_ns: IntArray
    """Latency of each message at the reader that got it last; 0 if no receipt is stored."""


def as_chrome(run: Run) -> Export:
    """Return the windows around the worst messages of each paced trial.

    Raises:
        StoreError: there is no paced trial with samples.
    """
    selection = select(run, ("paced",), "perfetto")
    numbers = itertools.count(1)
    events: list[_Event] = []
    for trial in selection.trials:
        traffic = _traffic(selection, trial)
        if traffic is not None:
            for rank, row in enumerate(_outliers(traffic), 1):
                events += _Window(traffic, row, rank, numbers).events()
    selection.require(events, "samples for perfetto")
    other = {"run": run.info.run_id, "ipcbench": run.info.versions.get("ipcbench", "unknown")}
    document = {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}
    return selection.export(json.dumps(document, allow_nan=False) + "\n")


def _traffic(selection: Selection, trial: TrialResult) -> _Traffic | None:
    columns = selection.samples(trial)
    if not columns:
        return None
    rows: dict[str, MatchedRows] = {}
    for reader in trial.readers:
        matched = matched_rows(columns, reader.role)
        calls, received = columns.get(f"{reader.role}.read_ns"), columns.get(f"{reader.role}.received_ns")
        if matched is None or calls is None or received is None or calls.size != received.size:
            selection.leave_out(trial, f"{reader.role} has no one-way times that fit its receipts")
            return None
        rows[reader.role] = matched
    sent, writes = columns["writer.sent_ns"], columns.get("writer.write_ns")
    if writes is None or writes.size != sent.size:
        selection.leave_out(trial, "the writer has no times of its writes")
        return None
    worst: IntArray = np.zeros(sent.size, dtype=np.int64)
    for role, matched in rows.items():
        np.maximum.at(worst, matched.writer, columns[f"{role}.latency_ns"][matched.reader])
    return _Traffic(trial, columns, rows, worst)


def _outliers(traffic: _Traffic) -> list[int]:
    """Return the rows of the worst messages, the worst first; none lies in the window of a worse one."""
    chosen: list[int] = []
    for row in np.argsort(-traffic.worst_ns, kind="stable").tolist():
        if len(chosen) == WORST_COUNT or traffic.worst_ns[row] <= 0:
            break
        if all(abs(row - other) > NEIGHBOURS_COUNT for other in chosen):
            chosen.append(row)
    return chosen


def _apart(slices: Iterable[_Slice]) -> list[_Slice]:
    """Return the slices of a track without overlap: each begins no earlier than the previous one ends."""
    kept: list[_Slice] = []
    for call in slices:
        start_ns = max(call.start_ns, kept[-1].end_ns) if kept else call.start_ns
        if start_ns < call.end_ns:
            kept.append(replace(call, start_ns=start_ns))
    return kept


class _Window:
    """One outlier and its neighbours.

    Args:
        traffic: the trial's.
        row: the outlier's.
        rank: 1 for the worst of the trial.
        numbers: yields numbers that are unique in the file, for processes, threads and arrows.
    """

    def __init__(self, traffic: _Traffic, row: int, rank: int, numbers: Iterator[int]) -> None:
        self._traffic = traffic
        self._row = row
        self._rank = rank
        self._numbers = numbers
        self._first = max(0, row - NEIGHBOURS_COUNT)
        self._last = min(traffic.worst_ns.size - 1, row + NEIGHBOURS_COUNT)
        self._tracks = {"writer": self._writes(), **{role: self._reads(role) for role in traffic.rows}}
        self._process = next(numbers)
        self._threads = {role: next(numbers) for role in self._tracks}
        starts = [call.start_ns for track in self._tracks.values() for call in track]
        self._origin_ns = min([*starts, *self._column("writer.intended_ns")])

    def events(self) -> Iterator[_Event]:
        """Yield names first, then slices, marks and arrows."""
        yield from self._names()
        for role, track in self._tracks.items():
            for call in track:
                more = {"dur": (call.end_ns - call.start_ns) / 1e3, "args": call.arguments}
                yield self._event("X", "write" if role == "writer" else "read", role, call.start_ns, **more)
        for due_ns in self._column("writer.intended_ns"):
            yield self._event("i", "due", "writer", due_ns, s="t")
        yield from self._arrows()

    def _column(self, name: str) -> list[int]:
        """Return the part of a writer's column that lies in the window."""
        part: list[int] = self._traffic.columns[name][self._first : self._last + 1].tolist()
        return part

    def _writes(self) -> list[_Slice]:
        names = ("writer.intended_ns", "writer.sent_ns", "writer.write_ns")
        calls = zip(*(self._column(name) for name in names), strict=True)
        return _apart(
            _Slice(row, sent, sent + call, {"message": row, "send delay us": (sent - intended) / 1e3})
            for row, (intended, sent, call) in enumerate(calls, self._first)
        )

    def _reads(self, role: str) -> list[_Slice]:
        columns, rows = self._traffic.columns, self._traffic.rows[role]
        inside = np.flatnonzero((rows.writer >= self._first) & (rows.writer <= self._last))
        slices = []
        for row, place in zip(rows.writer[inside].tolist(), rows.reader[inside].tolist(), strict=True):
            received, call, latency = (
                int(columns[f"{role}.{name}"][place]) for name in ("received_ns", "read_ns", "latency_ns")
            )
            about = {"message": row, "latency us": latency / 1e3, "outlier": row == self._row}
            slices.append(_Slice(row, received - call, received, about))
        return _apart(slices)

    def _names(self) -> Iterator[_Event]:
        trial = self._traffic.trial
        spec, worst = trial.spec, format_duration_ns(float(self._traffic.worst_ns[self._row]))
        title = f"{spec.backend}, {spec.payload} of {size_words(Setting.of(trial))}, round {spec.round_index}"
        names: list[tuple[str, str, Any]] = [
            ("writer", "process_name", f"{title}: outlier {self._rank}, {worst}"),
            ("writer", "process_sort_index", self._process),
        ]
        if trial.notes:  # shown beside the name of the process
            names.append(("writer", "process_labels", one_line("; ".join(trial.notes))))
        for role, number in self._threads.items():
            names += [(role, "thread_name", role), (role, "thread_sort_index", number)]
        for role, name, value in names:
            key = name.partition("_")[2]  # name, sort_index or labels
            yield {"ph": "M", "name": name, "pid": self._process, "tid": self._threads[role], "args": {key: value}}

    def _arrows(self) -> Iterator[_Event]:
        """Yield both ends of an arrow from every write to each read of the same message."""
        writes = {write.row: write for write in self._tracks["writer"]}
        for role, track in self._tracks.items():
            for read in track if role != "writer" else ():
                write, received_ns = writes.get(read.row), read.end_ns - max(1, read.margin_ns)
                if write is not None and write.start_ns <= received_ns:
                    sent_ns, number = min(write.start_ns + write.margin_ns, received_ns), next(self._numbers)
                    yield self._event("s", "message", "writer", sent_ns, id=number)
                    yield self._event("f", "message", role, received_ns, id=number, bp="e")

    def _event(self, phase: str, name: str, role: str, at_ns: int, **more: Any) -> _Event:
        """Return an event at a moment, in µs since the start of the window."""
        moment = {"pid": self._process, "tid": self._threads[role], "ts": (at_ns - self._origin_ns) / 1e3}
        return {"ph": phase, "name": name, "cat": "ipcbench", **moment, **more}
