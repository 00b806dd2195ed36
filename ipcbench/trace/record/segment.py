"""Segments: preallocated, memory-mapped files into which one thread puts records.

A file is allocated in full before it is mapped: a write through a mapping that meets a full disk would kill the process
with a signal (SIGBUS).
"""

from __future__ import annotations

import mmap
from os import truncate
from pathlib import Path
from typing import Any

from ipcbench.trace.format import HEADER_BYTES, RECORD_BYTES, SEGMENT_MAGIC, note_length, note_wait, pack_header
from ipcbench.trace.record.hot import Slots
from ipcbench.trace.record.mapped import make_file
from ipcbench.util.clock import run_queue_wait_ns


class SegmentWriter(Slots):
    """One file that takes records."""

    __slots__ = ("_thread", "_waited_ns", "path")

    def __init__(self, path: Path, buffer: mmap.mmap | bytearray, thread: str = "") -> None:
        super().__init__(buffer)
        self.path = path
        self._thread = thread
        self._waited_ns = self._wait_ns()

    def _wait_ns(self) -> int | None:
        return run_queue_wait_ns(self._thread) if self._thread else None

    def close(self) -> None:
        """Unmap the file, and truncate it to its used part.

        Raises:
            OSError: the file cannot be changed any more; what was recorded is in it all the same.
        """
        used = min(self.take(), self.limit)
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            note_length(self.buffer, used, is_used=True)
            note_wait(self.buffer, self._waited_ns, self._wait_ns())
            self.buffer.close()
            truncate(self.path, used)


FULL = SegmentWriter(Path(), bytearray())
"""Never has room: what a thread without a file writes to."""


def new_segment(path: Path, size_bytes: int, facts: dict[str, Any], thread: str = "") -> SegmentWriter:
    """Make a segment of `size_bytes`, header included.

    Args:
        path: of the file.
        size_bytes: at first.
        facts: for the header.
        thread: the folder in /proc of the thread that records, whose waits for a core are noted; empty for none.

    Raises:
        OSError: no room, no permission, no such folder, or the file exists; nothing is left behind.
    """
    buffer = make_file(path, size_bytes)
    buffer[:HEADER_BYTES] = pack_header(SEGMENT_MAGIC, RECORD_BYTES, facts)
    note_length(buffer, size_bytes)
    return SegmentWriter(path, buffer, thread)
