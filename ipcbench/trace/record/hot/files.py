"""What is written into the mapped files: slots of segments, and the sums of tallies. Standard library only."""

from __future__ import annotations

import itertools
from operator import index
from typing import TYPE_CHECKING

from ipcbench.trace.format import (
    CELL_BYTES,
    HEADER_BYTES,
    LAST_OCTAVE,
    PACK_SUMS,
    RECORD_BYTES,
    SUM_CELLS,
    SUMS_EVERY,
    TALLY_BYTES,
    bin_of,
)
from ipcbench.trace.schema import MAX_STAGES
from ipcbench.util.bins import BINS_PER_OCTAVE

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

_SUMS_AT = (HEADER_BYTES + CELL_BYTES, HEADER_BYTES + SUM_CELLS // 2 * CELL_BYTES)

_MOST_BYTES = 2**63
_LARGEST = 2**64 - 1


class Slots:
    """The slots of a mapped file, taken one after the other.

    Attributes:
        take: returns the offset of the next free slot, atomically; at `limit` or above there is none.
        buffer: the mapped file.
        limit: its size in bytes.
    """

    __slots__ = ("buffer", "limit", "take")

    take: Callable[[], int]

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.limit = len(buffer)
        self.take = itertools.count(HEADER_BYTES, RECORD_BYTES).__next__

    def release(self) -> None:
        """Let go of the buffer; there is no free slot any more."""
        self.limit = 0


class Sums:
    """The bins and sums of the calls of one method in one thread, in a mapped file."""

    __slots__ = ("_cells", "_stage_ns", "_sums", "_sums_at", "buffer")

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self._cells: memoryview[int] = memoryview(buffer)[HEADER_BYTES:TALLY_BYTES].cast("Q")
        self._sums_at = _SUMS_AT[0]
        self._sums = [0] * 6
        self._stage_ns = [0] * MAX_STAGES

    def add(self, begin_ns: int, marks: list[int], end_ns: int, sent_bytes: int, recv_bytes: int, failed: bool) -> None:
        """Add one call: its begin, the ends of its stages but the last (at most 6), its end, and its bytes.

        Raises:
            ValueError, TypeError: times in the wrong order, or numbers of bytes that no sum can hold; nothing is added.
        """
        sent_bytes, recv_bytes = index(sent_bytes), index(recv_bytes)
        if not (0 <= sent_bytes < _MOST_BYTES and 0 <= recv_bytes < _MOST_BYTES):
            raise ValueError("a number of bytes is not possible")
        total_ns = end_ns - begin_ns
        if total_ns < 0:
            raise ValueError("a call ended before it began")
        octave = total_ns.bit_length() - 8
        if 0 < octave < LAST_OCTAVE:
            self._cells[SUM_CELLS + octave * BINS_PER_OCTAVE + (total_ns >> octave)] += 1
        else:
            self._cells[SUM_CELLS + bin_of(total_ns)] += 1
        sums = self._sums
        sums[0] = calls_count = sums[0] + 1
        sums[2] += sent_bytes
        sums[3] += recv_bytes
        sums[4] += total_ns
        sums[5] = max(sums[5], total_ns)
        stages = self._stage_ns
        number = 0
        for mark in marks:
            stages[number] += mark - begin_ns
            begin_ns = mark
            number += 1  # a counter of one's own is quicker than enumerate
        stages[number] += end_ns - begin_ns
        if failed or calls_count < SUMS_EVERY or not calls_count % SUMS_EVERY:
            sums[1] += failed
            self.put()

    def add_untimed(self, calls_count: int) -> None:
        """Add so many calls that were not timed."""
        self._cells[0] += calls_count

    def put(self) -> None:
        """Write the sums: those at the place that was not written last time (see layout.PACK_SUMS)."""
        self._sums_at = _SUMS_AT[self._sums_at == _SUMS_AT[0]]
        sums = [one & _LARGEST for one in (*self._sums, *self._stage_ns, self._sums[0])]
        PACK_SUMS(self.buffer, self._sums_at, *sums)

    def release(self) -> None:
        """Let go of the buffer; nothing can be added any more."""
        self._cells.release()
