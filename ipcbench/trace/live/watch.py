"""Watches a folder of a trace: new calls with records, and how the histograms grew since the last look.

Files are read, not mapped: a process cuts its file when it closes it, and touching a mapping beyond the cut would kill
the reader by a signal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.trace.format import HISTOGRAMS_SUFFIX, SEGMENT_SUFFIX
from ipcbench.trace.readers.batch import UNKNOWN, Bulk, Ints, Notes, Segment
from ipcbench.trace.readers.calls import Calls, Clocks
from ipcbench.trace.readers.own import SegmentFile, read_histograms
from ipcbench.util.files import as_store_errors


@dataclass(frozen=True, slots=True)
class Growth:
    """What one histogram gained: calls without records.

    Attributes:
        counts: by bin, shape (bins,).
        stage_ns: of `stages`.
    """

    segment: Segment
    stages: tuple[str, ...]
    method: str
    counts: Ints
    untimed_count: int
    failed_count: int
    sent_bytes: int
    recv_bytes: int
    total_ns: int
    stage_ns: Ints


class Watch:
    """A folder that need not exist yet, and that any number of processes may be writing to.

    Attributes:
        problems: files that could not be read, by name, each with its reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: dict[str, str] = {}
        self._clocks = Clocks()
        self._segments: dict[Path, SegmentFile] = {}
        self._histograms: dict[tuple[Path, int], Bulk] = {}

    @property
    def files_count(self) -> int:
        """Files of a trace that were met."""
        return len(self._segments) + len({path for path, _ in self._histograms})

    def new_calls(self) -> Iterator[Calls]:
        """Yield the calls recorded since the last time, of files that are new too.

        Raises:
            StoreError: the folder is there and cannot be read.
        """
        for path in self._files(SEGMENT_SUFFIX):
            file = self._segments.get(path)
            if file is None:
                file = self._segments[path] = SegmentFile(path, self._clocks, growing=True)
            try:
                yield from file.read_new()
            except StoreError as error:
                self._refuse(path, error)

    def growths(self) -> Iterator[Growth]:
        """Yield how the histograms grew since the last time.

        Raises:
            StoreError: the folder is there and cannot be read.
        """
        for path in self._files(HISTOGRAMS_SUFFIX):
            try:
                bulks = list(read_histograms(path, Notes()))
            except StoreError as error:
                self._refuse(path, error)
                continue
            for number, bulk in enumerate(bulks):
                before = self._histograms.get((path, number))
                self._histograms[path, number] = bulk
                growth = _growth(bulk, before)
                if growth is not None:
                    yield growth

    def _refuse(self, path: Path, error: StoreError) -> None:
        """Say once why a file is not read; one that vanished is no problem."""
        if path.exists():
            self.problems.setdefault(path.name, str(error))

    def _files(self, suffix: str) -> list[Path]:
        if not self.folder.exists():
            return []
        with as_store_errors(self.folder):
            return sorted(path for path in self.folder.iterdir() if path.suffix == suffix and path.is_file())


def _growth(bulk: Bulk, before: Bulk | None) -> Growth | None:
    """Return what a histogram gained; None if nothing."""
    if before is None:
        before = Bulk(bulk.segment, bulk.stages, bulk.method, np.zeros_like(bulk.counts), 0, 0, 0, 0, 0, 0, 0,
                      np.zeros_like(bulk.stage_ns))  # fmt: skip
    counts: Ints = np.maximum(bulk.counts - before.counts, 0)
    untimed = max(0, bulk.untimed_count - before.untimed_count)
    sums = (bulk.failed_count - before.failed_count, bulk.sent_bytes - before.sent_bytes,
            bulk.recv_bytes - before.recv_bytes, bulk.total_ns - before.total_ns)  # fmt: skip
    failed, sent, recv, total = (max(0, growth) for growth in sums)
    if not bulk.is_sized:
        sent = recv = UNKNOWN
    if not (untimed or total or failed or counts.any()):
        return None
    stage_ns: Ints = np.maximum(bulk.stage_ns - before.stage_ns, 0)
    return Growth(bulk.segment, bulk.stages, bulk.method, counts, untimed, failed, sent, recv, total, stage_ns)
