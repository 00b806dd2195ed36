"""The memory under the shared memory backend: a segment nobody else unlinks, and where the slots of a channel lie in
it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from multiprocessing import resource_tracker, shared_memory

from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import cursors_bytes

RING_BYTES = 2**22
"""A ring holds as many of its `depth` slots as fit in this, and at least `_MIN_SLOTS`: one that stays in the
processor's cache is worth more than one that holds many large messages."""

_MIN_SLOTS = 2
_HEAD_BYTES = 16
_LINE_BYTES = 64

_tracking = threading.Lock()


@contextmanager
def _untracked() -> Iterator[None]:
    """Keep the resource tracker out of it: it would start a process, and unlink what others still use. Python 3.13 has
    `track=False` for this; until it is the oldest one supported, its two calls are switched off around ours.
    """

    def ignore(name: Sized, rtype: str) -> None:
        del name, rtype

    with _tracking:
        register, unregister = resource_tracker.register, resource_tracker.unregister
        resource_tracker.register = resource_tracker.unregister = ignore
        try:
            yield
        finally:
            resource_tracker.register, resource_tracker.unregister = register, unregister


class Segment(shared_memory.SharedMemory):
    """A segment that no resource tracker unlinks behind our back, and that can be closed while views are out."""

    _fd: int  # of the base class, which does not declare them
    _mmap: object
    _buf: object

    def __init__(self, name: str, create_bytes: int = 0) -> None:
        """Attach, or create with all its memory reserved: touching a page later can then not fail."""
        with _untracked():
            super().__init__(name, create=bool(create_bytes), size=create_bytes)
        if create_bytes:
            try:
                os.posix_fallocate(self._fd, 0, create_bytes)
            except OSError:
                self.close()
                self.unlink()
                raise

    def close(self) -> None:
        """Unmap; memory that a caller still holds a view of stays mapped until that view is gone."""
        try:
            super().close()
        except BufferError:
            os.close(self._fd)
            self._fd, self._mmap, self._buf = -1, None, None

    def unlink(self) -> None:
        """Remove the name."""
        with _untracked():
            super().unlink()


class Layout:
    """Where the slots of one channel are."""

    __slots__ = ("slot_bytes", "slots", "start_bytes", "total_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        lines = -(-(_HEAD_BYTES + channel.max_message_bytes) // _LINE_BYTES)
        self.slot_bytes = lines * _LINE_BYTES
        if channel.delivery == "latest_value":
            self.slots = channel.readers + 2
        else:
            self.slots = max(_MIN_SLOTS, min(channel.depth, RING_BYTES // self.slot_bytes))
        self.start_bytes = cursors_bytes(channel.readers)
        self.total_bytes = self.start_bytes + self.slots * self.slot_bytes


class Mapping:
    """A segment in this process: its words, and each slot as (payload, index of its first word, of its second)."""

    def __init__(self, channel: ChannelSpec) -> None:
        layout = Layout(channel)
        try:
            self._segment = Segment(channel.name)
        except OSError as error:
            raise TransportError(f"there is no channel {channel.name!r}: {error.strerror}") from error
        buffer: memoryview = self._segment.buf  # type: ignore[assignment] # typeshed has None for a closed one
        self.words = buffer[: layout.total_bytes].cast("Q")
        starts = range(layout.start_bytes, layout.total_bytes, layout.slot_bytes)
        self.slots = tuple(
            (buffer[start + _HEAD_BYTES : start + _HEAD_BYTES + channel.max_message_bytes], start // 8, start // 8 + 1)
            for start in starts
        )

    def close(self) -> None:
        """Unmap; see `Segment.close`."""
        for payload, *_ in self.slots:
            payload.release()
        self.words.release()
        self._segment.close()
