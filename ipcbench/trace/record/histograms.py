"""Tallies: how many calls of one method there were that have no record of their own, how long they took and what they
moved, in a mapped file. Standard library only.

A call is in a record, or in a tally, never in both: together they hold every call.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipcbench.trace.format import HEADER_BYTES, TALLY_BYTES, TALLY_MAGIC, pack_header
from ipcbench.trace.record.hot import Sums
from ipcbench.trace.record.segment import allocate

if TYPE_CHECKING:
    from collections import deque

    from ipcbench.trace.record.thread_recorder import Site

BLOCK_BYTES = -(-TALLY_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


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


class Tally(Sums):
    """The tally of one method in one thread."""

    __slots__ = ()

    def close(self) -> None:
        """Put the last sums, and unmap the block."""
        self.put()
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()


Addition = tuple["Site", str, tuple[Any, ...]]
"""To which site's tally something is to be added, by which method, and what."""


class Late:
    """Stands for the tally of a site while its thread makes one, and keeps what is to be added to it.

    Only a signal handler's call can come then. If it made a tally itself, the next signal's would amid that, and so on.
    """

    __slots__ = ("_kept", "_site")

    def __init__(self, site: Site, kept: deque[Addition]) -> None:
        self._site = site
        self._kept = kept

    def add(self, *call: Any) -> None:
        """Keep one call."""
        self._kept.append((self._site, "add", call))

    def add_untimed(self, calls_count: int) -> None:
        """Keep so many calls that were not timed."""
        self._kept.append((self._site, "add_untimed", (calls_count,)))


def in_memory() -> Tally:
    """Return a tally without a file, for when none can be made."""
    return Tally(bytearray(BLOCK_BYTES))
