"""Segments: preallocated, memory-mapped files into which one thread puts records.

A file is allocated in full before it is mapped: a write through a mapping that meets a full disk would kill the process
with a signal (SIGBUS).
"""

from __future__ import annotations

import mmap
from os import truncate
from pathlib import Path
from typing import Any

from ipcbench.trace.format import HEADER_BYTES, RECORD_BYTES, SEGMENT_MAGIC, note_length, pack_header
from ipcbench.trace.record.hot import Slots
from ipcbench.trace.record.mapped import make_file


class SegmentWriter(Slots):
    """One file that takes records."""

    __slots__ = ("path",)

    def __init__(self, path: Path, buffer: mmap.mmap | bytearray) -> None:
        super().__init__(buffer)
        self.path = path

    def close(self) -> None:
        """Unmap the file, and truncate it to its used part.

        Raises:
            OSError: the file cannot be changed any more; what was recorded is in it all the same.
        """
        used = min(self.take(), self.limit)
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            note_length(self.buffer, used, is_used=True)
            self.buffer.close()
            truncate(self.path, used)


FULL = SegmentWriter(Path(), bytearray())
"""Never has room: what a thread without a file writes to."""


def new_segment(path: Path, size_bytes: int, facts: dict[str, Any]) -> SegmentWriter:
    """Make a segment of `size_bytes`, header included.

    Raises:
        OSError: no room, no permission, no such folder, or the file exists; nothing is left behind.
    """
    buffer = make_file(path, size_bytes)
    buffer[:HEADER_BYTES] = pack_header(SEGMENT_MAGIC, RECORD_BYTES, facts)
    note_length(buffer, size_bytes)
    return SegmentWriter(path, buffer)
