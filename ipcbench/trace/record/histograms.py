"""Histograms of the calls that have no record of their own: how many, how long they took, what they moved.

They are in a mapped file. A call is in a record or in a histogram, never in both: together they hold every call.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from ipcbench.trace.format import HEADER_BYTES, HISTOGRAMS_BYTES, HISTOGRAMS_MAGIC, pack_header
from ipcbench.trace.record.hot import HotHistograms
from ipcbench.trace.record.segment import allocate

BLOCK_BYTES = -(-HISTOGRAMS_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class HistogramsFile:
    """A file of histograms, one block per method; it grows by whole blocks, each allocated before it is mapped.

    Raises:
        OSError: no permission, or the file exists.
    """

    __slots__ = ("_count", "_path")

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        self._path = path
        self._count = 0

    def new_block(self, facts: dict[str, Any]) -> mmap.mmap:
        """Return a new block of zeros after a header of `facts`.

        Raises:
            OSError: no room or no permission.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            offset = self._count * BLOCK_BYTES
            allocate(descriptor, offset, BLOCK_BYTES)
            block = mmap.mmap(descriptor, BLOCK_BYTES, offset=offset)
        finally:
            os.close(descriptor)
        self._count += 1
        block[:HEADER_BYTES] = pack_header(HISTOGRAMS_MAGIC, BLOCK_BYTES, facts)
        return block


class MethodHistograms(HotHistograms):
    """The histograms of one method in one thread."""

    __slots__ = ()

    def close(self) -> None:
        """Write the last sums, and unmap the block; again, do nothing: several call sites may share it."""
        if isinstance(self.buffer, mmap.mmap) and self.buffer.closed:
            return
        self.put()
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()


def in_memory() -> MethodHistograms:
    """Return histograms without a file, for when none can be made."""
    return MethodHistograms(bytearray(BLOCK_BYTES))
