"""Histograms of the calls that have no record of their own: how many, how long they took, what they moved.

They are in a mapped file. A call is in a record or in a histogram, never in both: together they hold every call.
"""

from __future__ import annotations

import mmap
from os import O_CLOEXEC, O_CREAT, O_EXCL, close
from os import open as open_file
from pathlib import Path
from typing import Any

from ipcbench.trace.format import HEADER_BYTES, HISTOGRAMS_BYTES, HISTOGRAMS_MAGIC, note_length, pack_header
from ipcbench.trace.record.hot import HotHistograms
from ipcbench.trace.record.mapped import extend_file

BLOCK_BYTES = -(-HISTOGRAMS_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class HistogramsFile:
    """A file of histograms, one block per method; it grows by whole blocks, each allocated before it is mapped.

    Raises:
        OSError: no permission, or the file exists.
    """

    __slots__ = ("_count", "_first", "_path")

    def __init__(self, path: Path) -> None:
        close(open_file(path, O_CREAT | O_EXCL | O_CLOEXEC, 0o644))
        self._path = path
        self._count = 0
        self._first: mmap.mmap | None = None

    def new_block(self, facts: dict[str, Any]) -> mmap.mmap:
        """Return a new block of zeros after a header of `facts`.

        Raises:
            OSError: no room or no permission.
        """
        block = extend_file(self._path, self._count * BLOCK_BYTES, BLOCK_BYTES)
        self._count += 1
        block[:HEADER_BYTES] = pack_header(HISTOGRAMS_MAGIC, BLOCK_BYTES, facts)
        self._first = self._first or block
        if not self._first.closed:
            note_length(self._first, self._count * BLOCK_BYTES)
        return block


class MethodHistograms(HotHistograms):
    """The histograms of one method in one thread."""

    __slots__ = ("_is_closed",)

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        super().__init__(buffer)
        self._is_closed = False

    def close(self) -> None:
        """Write the last sums, and unmap the block; again, do nothing: several call sites may share it."""
        if self._is_closed:
            return
        self._is_closed = True
        self.put()
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()


class _Spare(MethodHistograms):
    """What all share where there is no memory for others."""

    __slots__ = ()

    def close(self) -> None:
        """Do nothing."""


_SPARE = _Spare(bytearray(BLOCK_BYTES))


def in_memory() -> MethodHistograms:
    """Return histograms without a file, for when none can be made."""
    try:
        return MethodHistograms(bytearray(BLOCK_BYTES))
    except MemoryError:
        return _SPARE
