"""Reads all calls under some paths, from this package's own files or from logs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ipcbench.errors import StoreError
from ipcbench.trace.format import HISTOGRAMS_MAGIC, HISTOGRAMS_SUFFIX, SEGMENT_MAGIC, SEGMENT_SUFFIX
from ipcbench.trace.readers.batch import Bulk, Notes
from ipcbench.trace.readers.calls import Calls, Clocks, Row, log_calls, rows_of
from ipcbench.trace.readers.join import Servers, find_servers
from ipcbench.trace.readers.logs.text import grouped, read_log
from ipcbench.trace.readers.own import SegmentFile, read_histograms
from ipcbench.util.files import as_store_errors, regular


@dataclass(slots=True)
class Source:
    """What some paths hold. It may be read several times.

    Attributes:
        segments, histograms: the package's own files.
        logs: text logs, each the list of its parts.
        notes: of the last reading.
    """

    paths: tuple[Path, ...]
    segments: list[Path] = field(default_factory=list)
    histograms: list[Path] = field(default_factory=list)
    logs: list[list[Path]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def calls(self) -> Iterator[Calls]:
        """Yield all calls that have a record or a line, file by file.

        Raises:
            StoreError: a file cannot be read.
        """
        self.notes = Notes()
        clocks = Clocks()
        for path in self.segments:
            yield from self._segment(path, clocks)
        for parts in self.logs:
            for batch in read_log(parts, self.notes):
                yield log_calls(batch)

    def _segment(self, path: Path, clocks: Clocks) -> Iterator[Calls]:
        file = SegmentFile(path, clocks)
        try:
            yield from file.read_new()
        except StoreError as error:
            self.notes.damaged(path.name, str(error).removeprefix(f"{path}: "))
        self.notes.counts["torn records"] += file.unfinished_count
        if file.impossible_count:
            self.notes.damaged(path.name, f"{file.impossible_count:,} records with impossible numbers")

    def joined(self) -> Iterator[Calls]:
        """Yield the same as `calls`, clients' calls with what their servers' records say of them."""
        servers = find_servers(self.segments, Notes())
        for calls in self.calls():
            yield replace(calls, batch=servers.join(calls.batch))

    def bulks(self) -> Iterator[Bulk]:
        """Yield the histograms of calls without a record."""
        for path in self.histograms:
            try:
                yield from read_histograms(path, self.notes)
            except StoreError as error:
                self.notes.damaged(path.name, str(error).removeprefix(f"{path}: "))

    def in_order(self, *, joined: bool = False) -> Iterator[Row]:
        """Yield all calls one by one in the order in which they ended; those of logs as they stand there.

        Args:
            joined: whether clients' calls are to have what their servers' records say of them.
        """
        self.notes = Notes()
        clocks = Clocks()
        servers = find_servers(self.segments if joined else (), Notes())
        yield from heapq.merge(*(self._rows(path, clocks, servers) for path in self.segments), key=_moment)
        for parts in self.logs:
            for batch in read_log(parts, self.notes):
                yield from rows_of(log_calls(batch))

    def _rows(self, path: Path, clocks: Clocks, servers: Servers) -> Iterator[Row]:
        joined = (replace(calls, batch=servers.join(calls.batch)) for calls in self._segment(path, clocks))
        return _ordered(row for calls in joined for row in rows_of(calls))

    def stages(self) -> list[str]:
        """Return the names of all stages, in the order in which they are met."""
        return list(dict.fromkeys(stage for calls in self.calls() for stage in calls.batch.stages))

    def without_record_count(self) -> int:
        """Return how many calls are only in histograms."""
        return sum(int(bulk.counts.sum()) + bulk.untimed_count for bulk in self.bulks())


def _moment(row: Row) -> int:
    return row.end_ns + (row.process.unix_ns or 0)


_WINDOW = 4096


def _ordered(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of one file by their ends; they are nearly so already."""
    heap: list[tuple[int, int, Row]] = []
    for number, row in enumerate(rows):
        heapq.heappush(heap, (row.end_ns, number, row))
        if len(heap) > _WINDOW:
            yield heapq.heappop(heap)[2]
    while heap:
        yield heapq.heappop(heap)[2]


def find(paths: Sequence[Path]) -> Source:
    """Return what the paths hold: files, or folders with files of a trace or logs; their content tells which.

    Raises:
        StoreError: there is no such path, or it cannot be read.
    """
    source = Source(tuple(paths))
    texts: list[Path] = []
    for path in paths:
        with as_store_errors(path):
            if path.is_dir():
                inside = sorted(path.iterdir())
                own = [file for file in inside if file.suffix in {SEGMENT_SUFFIX, HISTOGRAMS_SUFFIX}]
                source.segments += [file for file in own if file.suffix == SEGMENT_SUFFIX]
                source.histograms += [file for file in own if file.suffix == HISTOGRAMS_SUFFIX]
                texts += [] if own else [file for file in inside if ".log" in file.name and file.is_file()]
                continue
            with regular(path).open("rb") as file:
                magic = file.read(8)
        kind = {SEGMENT_MAGIC: source.segments, HISTOGRAMS_MAGIC: source.histograms}.get(magic, texts)
        kind.append(path)
    source.logs = grouped(texts)
    return source
