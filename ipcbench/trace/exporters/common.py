"""Parts that several exporters share: what is left out, times since 1970, calls with both sides, tracks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.errors import StoreError
from ipcbench.trace.readers.calls import FAR_SIDES, Calls, Process, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("span", "<u8")])
_WINDOW = 8192


def left_out(source: Source, *more: str) -> tuple[str, ...]:
    """Return what is in no export of single calls: those without a record, and damaged ones."""
    remarks = [remark for remark in more if remark]
    count = source.without_record_count()
    if count:
        remarks.append(f"{count:,} calls that have no record of their own; --to prometheus counts them")
    if source.notes.damaged_count:
        remarks.append(f"{source.notes.damaged_count:,} damaged: {source.notes.examples[0]}")
    return tuple(remarks)


def require(count: int, source: Source, what: str = "call with a record") -> None:
    """Raise StoreError if nothing was written."""
    if not count:
        raise StoreError(f"{', '.join(map(str, source.paths))}: holds no {what}")


def at_ns(row: Row) -> int:
    """Return when a call began: ns since 1970, or since its host started where that is all that is known."""
    return row.begin_ns + (row.process.unix_ns or 0)


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a first reading.

    Attributes:
        origin_ns: when the first call began, see `at_ns`.
        linked: trace id as text, and span id, of calls that have both sides.
        timed_count: calls whose times on a clock are known.
    """

    origin_ns: int
    linked: frozenset[tuple[str, int]]
    timed_count: int


def scan(source: Source) -> Scan:
    """Read once.

    Raises:
        StoreError: no call has a time on a clock.
    """
    near: list[npt.NDArray[np.void]] = []
    far: list[npt.NDArray[np.void]] = []
    origin, count = 2**63, 0
    for calls in source.calls():
        begin = calls.batch.begin_ns[_drawable(calls)]
        if len(begin):
            count += len(begin)
            origin = min(origin, int(begin.min()) + (calls.process.unix_ns or 0))
        keys = _keys(calls)
        if keys is not None:
            near += [keys] if calls.batch.segment.role == CLIENT else []
            far += [keys] if calls.batch.segment.role in FAR_SIDES else []
    if not count:
        names = ", ".join(map(str, source.paths))
        raise StoreError(f"{names}: holds no call with a time on a clock; zmq_performance.log never has one")
    linked: frozenset[tuple[str, int]] = frozenset()
    if near and far:
        both = np.intersect1d(np.concatenate(near), np.concatenate(far))
        linked = frozenset((f"{high:016x}{low:016x}", span) for high, low, span in both.tolist())
    return Scan(origin, linked, count)


def _drawable(calls: Calls) -> npt.NDArray[np.bool_]:
    return (calls.batch.begin_ns >= 0) & (calls.batch.total_ns >= 0)


def _keys(calls: Calls) -> npt.NDArray[np.void] | None:
    if calls.trace is None or calls.span is None:
        return None
    keys = np.empty(len(calls.span), _KEY)
    keys["high"], keys["low"], keys["span"] = calls.trace[:, 0], calls.trace[:, 1], calls.span
    return keys


def stages_of(row: Row) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of each stage that took time; none that is before or beyond its call."""
    at = row.begin_ns
    for name, ns in zip(row.stages, row.stage_ns, strict=True):
        end = min(at + max(0, ns), row.end_ns)
        if end > at:
            yield name, at, end
        at = end


@dataclass(frozen=True, slots=True)
class Track:
    """A line on which calls follow one another and never overlap.

    Attributes:
        number: unique, from 1.
        index: from 0 within its thread.
    """

    number: int
    process: Process
    index: int


@dataclass(slots=True)
class Tracks:
    """Lays overlapping calls of a thread on different tracks."""

    tracks: list[Track] = field(default_factory=list)
    _ends: dict[Process, list[tuple[int, Track]]] = field(default_factory=dict)

    def place(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Track]]:
        """Yield each call that has a time with its track; on a track, times never go back."""
        for row in _by_begin(row for row in rows if row.begin_ns >= 0 and row.total_ns >= 0):
            tracks = self._ends.setdefault(row.process, [])
            for index, (end, track) in enumerate(tracks):
                if end <= row.begin_ns:
                    tracks[index] = (row.end_ns, track)
                    yield row, track
                    break
            else:
                track = Track(len(self.tracks) + 1, row.process, len(tracks))
                self.tracks.append(track)
                tracks.append((row.end_ns, track))
                yield row, track


def _by_begin(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows, which come in the order of their ends, in that of their begins; only nearly so if many overlap."""
    heap: list[tuple[int, int, int, Row]] = []
    for number, row in enumerate(rows):
        heapq.heappush(heap, (at_ns(row), -row.total_ns, number, row))
        if len(heap) > _WINDOW:
            yield heapq.heappop(heap)[3]
    while heap:
        yield heapq.heappop(heap)[3]
