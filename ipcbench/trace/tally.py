"""Tallies: how many calls of one method there were that have no record of their own, how long they took and what they
moved, in a mapped file. Standard library only.

What does not live here: records (segment.py); reading (readers/own.py).

A call is in a record, or in a tally, never in both: together they hold every call.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from ipcbench.bins import BINS_PER_OCTAVE
from ipcbench.trace.layout import (
    CELL_BYTES,
    HEADER_BYTES,
    LAST_OCTAVE,
    PACK_SUMS,
    SUM_CELLS,
    TALLY_BYTES,
    TALLY_MAGIC,
    bin_of,
    pack_header,
)
from ipcbench.trace.schema import MAX_STAGES
from ipcbench.trace.segment import allocate

BLOCK_BYTES = -(-TALLY_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
_SUMS_AT = (HEADER_BYTES + CELL_BYTES, HEADER_BYTES + SUM_CELLS // 2 * CELL_BYTES)

_SUMS_EVERY = 64
"""Calls from one look of the sums at the file to the next; bins, which hold the exact count, are there at once."""


class TallyFile:
    """A file of tallies, one block each; it grows by whole blocks that are allocated before they are mapped."""

    __slots__ = ("_count", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def new_block(self, facts: dict[str, Any]) -> mmap.mmap:
        """Return a new block of zeros behind a header of `facts`.

        Raises:
            OSError: there is no room or no permission.
        """
        exclusive = 0 if self._count else os.O_EXCL
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | exclusive, 0o644)
        try:
            offset = self._count * BLOCK_BYTES
            allocate(descriptor, offset, BLOCK_BYTES)
            block = mmap.mmap(descriptor, BLOCK_BYTES, offset=offset)
        finally:
            os.close(descriptor)
        self._count += 1
        block[:HEADER_BYTES] = pack_header(TALLY_MAGIC, BLOCK_BYTES, facts)
        return block


class Tally:
    """The tally of one method in one thread.

    Attributes:
        cells: the block behind its header as 64-bit numbers; the first counts calls that were not timed.
    """

    __slots__ = (
        "_buffer",
        "_sums_at",
        "calls_count",
        "cells",
        "failed_count",
        "longest_ns",
        "recv_bytes",
        "sent_bytes",
        "stage_ns",
        "total_ns",
    )

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self._buffer = buffer
        self._sums_at = _SUMS_AT[0]
        self.cells: memoryview[int] = memoryview(buffer)[HEADER_BYTES:TALLY_BYTES].cast("Q")
        self.calls_count = self.failed_count = self.sent_bytes = self.recv_bytes = self.total_ns = self.longest_ns = 0
        self.stage_ns = [0] * MAX_STAGES

    def add(self, begin_ns: int, marks: list[int], end_ns: int, sent_bytes: int, recv_bytes: int, failed: bool) -> None:
        """Add one call: its begin, the ends of its stages but the last (at most 6), its end, and its bytes."""
        total_ns = end_ns - begin_ns
        self.cells[SUM_CELLS + bin_of(total_ns)] += 1
        self.calls_count = calls_count = self.calls_count + 1
        self.total_ns += total_ns
        self.longest_ns = max(self.longest_ns, total_ns)
        if sent_bytes:
            self.sent_bytes += sent_bytes
        if recv_bytes:
            self.recv_bytes += recv_bytes
        stages = self.stage_ns
        number = 0
        for mark in marks:
            stages[number] += mark - begin_ns
            begin_ns = mark
            number += 1  # a counter of one's own is quicker than enumerate
        stages[number] += end_ns - begin_ns
        if failed or calls_count < _SUMS_EVERY or not calls_count % _SUMS_EVERY:
            self.failed_count += failed
            self._put_sums()

    def add_rpc(self, times_ns: tuple[int, int, int, int, int], sent_bytes: int, recv_bytes: int) -> None:
        """Add one whole call of four stages, by its begin and their ends; the same as `add`, and quicker."""
        begin_ns, first_ns, second_ns, third_ns, end_ns = times_ns
        total_ns = end_ns - begin_ns
        octave = total_ns.bit_length() - 8
        if 0 < octave < LAST_OCTAVE:
            self.cells[SUM_CELLS + octave * BINS_PER_OCTAVE + (total_ns >> octave)] += 1
        else:
            self.cells[SUM_CELLS + bin_of(total_ns)] += 1
        self.calls_count += 1
        self.total_ns += total_ns
        self.sent_bytes += sent_bytes
        self.recv_bytes += recv_bytes
        stages = self.stage_ns
        stages[0] += first_ns - begin_ns
        stages[1] += second_ns - first_ns
        stages[2] += third_ns - second_ns
        stages[3] += end_ns - third_ns
        self.longest_ns = max(self.longest_ns, total_ns)  # quicker than max
        if self.calls_count < _SUMS_EVERY or not self.calls_count % _SUMS_EVERY:
            self._put_sums()

    def _put_sums(self) -> None:
        self._sums_at = _SUMS_AT[self._sums_at == _SUMS_AT[0]]
        PACK_SUMS(
            self._buffer,
            self._sums_at,
            self.calls_count,
            self.failed_count,
            self.sent_bytes,
            self.recv_bytes,
            self.total_ns,
            self.longest_ns,
            *self.stage_ns,
            self.calls_count,
        )

    def close(self) -> None:
        """Put the last sums, and unmap the block."""
        self._put_sums()
        self.cells.release()
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()


def in_memory() -> Tally:
    """Return a tally without a file, for when none can be made."""
    return Tally(bytearray(BLOCK_BYTES))
