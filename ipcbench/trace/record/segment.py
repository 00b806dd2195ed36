"""Segments: preallocated, memory-mapped files into which one thread puts records. Standard library only.

A file is allocated in full before it is mapped: writing through a mapping can then never meet a full disk, which would
end the process by a signal.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Any

from ipcbench.trace.format import HEADER_BYTES, RECORD_BYTES, SEGMENT_MAGIC, pack_header
from ipcbench.trace.record.hot import Slots


class Segment(Slots):
    """One file that takes records.

    Attributes:
        number: distinguishes the segments of one lane; -1 for the one that is always full.
    """

    __slots__ = ("number", "path")

    def __init__(self, path: Path, buffer: mmap.mmap | bytearray, number: int) -> None:
        super().__init__(buffer)
        self.path = path
        self.number = number

    def close(self) -> None:
        """Unmap the file, and cut off what was never used.

        Raises:
            OSError: it can no longer be changed; what was recorded is there all the same.
        """
        used = min(self.take(), self.limit)
        self.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()
            os.truncate(self.path, used)


FULL = Segment(Path(), bytearray(), -1)
"""Has no room, ever: what a lane without a file holds."""


def new_segment(path: Path, size_bytes: int, number: int, facts: dict[str, Any]) -> Segment:
    """Make a segment; `size_bytes` counts the header.

    Raises:
        OSError: there is no room, no permission, no such folder, or the file exists.
    """
    buffer = new_mapping(path, size_bytes)
    buffer[:HEADER_BYTES] = pack_header(SEGMENT_MAGIC, RECORD_BYTES, facts)
    return Segment(path, buffer, number)


def new_mapping(path: Path, size_bytes: int) -> mmap.mmap:
    """Make a file, all of it allocated, and map it.

    Raises:
        OSError: as for `new_segment`; nothing is left behind.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        allocate(descriptor, 0, size_bytes)
        return mmap.mmap(descriptor, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def allocate(descriptor: int, begin: int, size_bytes: int) -> None:
    """Reserve disk space for a part of a file.

    Raises:
        OSError: there is not enough.
    """
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, begin, size_bytes)
    else:
        os.pwrite(descriptor, bytes(size_bytes), begin)
