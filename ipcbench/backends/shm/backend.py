"""Shared memory: a ring of slots for every_message, spare buffers for latest_value; reads copy nothing.

Ring: slot k of `depth` holds `[sequence + 1][size][payload …]`. The writer fills a slot, then stores its first word. A
reader that finds the expected number there may use the slot until its next read, which marks the slot as finished.
"""

from __future__ import annotations

import errno
import os
import sys
from _posixshmem import shm_unlink  # type: ignore[import-not-found] # which typeshed does not know
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import (
    PLAIN_TYPES,
    Address,
    Backend,
    Capabilities,
    Message,
    Reader,
    Writer,
    bytes_of,
)
from ipcbench.errors import BackendUnavailable, EndOfStream, MessageTooLarge, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import (
    MAX_READERS,
    WRITER_SLEEPS,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    cursors_bytes,
    make_doorbells,
)
from ipcbench.sync.directory import (
    is_still,
    new_directory,
    no_channel,
    open_directory,
    remove_with_file,
    require_ours,
)
from ipcbench.sync.hazard import ReaderHazardSlots, WriterHazardSlots
from ipcbench.sync.interrupts import is_of_handler, no_fork, whole
from ipcbench.util.files import advice_on
from ipcbench.util.units import format_bytes

RING_BYTES = 2**22
"""A ring has as many of its `depth` slots as fit in this, and at least `_MIN_SLOTS`: staying in the CPU cache is
worth more than holding many large messages."""

_MIN_SLOTS = 2
_HEAD_BYTES = 16
_LINE_BYTES = 64

_SEGMENTS = Path("/dev/shm")  # noqa: S108 - where Linux shows them; elsewhere they have no path

_NOWHERE = memoryview(bytearray(8 * 64)).cast("Q")
"""Words of a closed endpoint: nothing arrives there and no peer sleeps, so the fast path ends in the slow one."""
_NO_SLOTS = ((memoryview(b""), 8, 9),)


@contextmanager
def _untracked(ours: str) -> Iterator[None]:
    """Keep a segment from the resource tracker, which would start a process and unlink it while it is in use. Python
    3.13 has `track=False` for this; as long as older ones are supported, the tracker's two functions are replaced,
    which other threads may call meanwhile.
    """

    def unless_ours(act: Callable[[Any, str], None]) -> Any:
        return lambda name, rtype: None if name.lstrip("/") == ours else act(name, rtype)

    with no_fork():  # a fork finds them as they were
        register, unregister = resource_tracker.register, resource_tracker.unregister
        resource_tracker.register, resource_tracker.unregister = unless_ours(register), unless_ours(unregister)
        try:
            yield
        finally:
            resource_tracker.register, resource_tracker.unregister = register, unregister


class SharedSegment(shared_memory.SharedMemory):
    """A segment that no resource tracker unlinks, and that can be closed while views of it exist."""

    _fd: int  # of the base class, which does not declare them
    _mmap: object
    _buf: object
    _is_attaching = False

    def __init__(self, name: str, create_bytes: int = 0) -> None:
        """Attach, or create it with all memory reserved, so that touching a page later cannot fail."""
        self._is_attaching = not create_bytes
        try:
            with _untracked(name):
                super().__init__(name, create=bool(create_bytes), size=create_bytes)
        except OSError:
            self.close()  # the base class leaves the descriptor to the garbage collector
            raise
        self._is_attaching = False
        if create_bytes:
            try:
                os.posix_fallocate(self._fd, 0, create_bytes)
            except OSError:
                self.close()
                self.unlink()
                raise

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._fd

    def unlink_made(self, made: os.stat_result) -> None:
        """Remove the name if it is still that of the segment that was made, where that can be found out."""
        if not _SEGMENTS.is_dir() or is_still(_SEGMENTS / self.name, made):
            with suppress(FileNotFoundError):
                self.unlink()

    def require_ours(self) -> None:
        """Close it and raise TransportError if it is not this user's alone."""
        try:
            require_ours(self._fd)
        except TransportError:
            self.close()
            raise

    def close(self) -> None:
        """Unmap; memory that a caller still has a view of stays mapped until the view is gone."""
        with no_fork():
            try:
                super().close()
            except BufferError:
                os.close(self._fd)
                self._fd, self._mmap, self._buf = -1, None, None

    def unlink(self) -> None:
        """Remove the name. The base class does so, too, if it cannot map a segment, even one that it did not make: then
        the name stays.
        """
        if not self._is_attaching:
            with _untracked(self.name):
                super().unlink()


class Layout:
    """Where the slots of a channel lie in its segment."""

    __slots__ = ("can_be_shorter", "slot_bytes", "slots", "start_bytes", "total_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        lines = -(-(_HEAD_BYTES + channel.max_message_bytes) // _LINE_BYTES)
        self.slot_bytes = lines * _LINE_BYTES
        if channel.delivery == "latest_value":
            self.slots = channel.readers + 2
        else:
            self.slots = max(_MIN_SLOTS, min(channel.depth, RING_BYTES // self.slot_bytes))
        self.can_be_shorter = channel.delivery == "every_message" and self.slots > _MIN_SLOTS
        self.start_bytes = cursors_bytes(channel.readers)
        self.total_bytes = self.start_bytes + self.slots * self.slot_bytes


class Mapping:
    """A channel's segment in this process: words, and slots as (payload, index of first word, of second)."""

    def __init__(self, address: Address) -> None:
        open_directory(address)
        layout = Layout(channel := address.channel)
        try:
            self._segment = SharedSegment(channel.name)
        except ValueError as error:  # it is empty, since whoever made it was killed
            raise TransportError(f"there is no channel {channel.name!r}: {error}") from error
        except OSError as error:
            raise no_channel(f"segment {channel.name}", error) from error
        self._segment.require_ours()
        buffer: memoryview = self._segment.buf  # type: ignore[assignment] # typeshed has None for a closed one
        if (size_bytes := buffer.nbytes) < layout.total_bytes:
            buffer.release()
            self._segment.close()
            raise TransportError(
                f"the segment of channel {channel.name!r} has {size_bytes:,} bytes, and needs {layout.total_bytes:,}: "
                "it was cut short; destroy the channel and create it anew"
            )
        self.words = buffer[: layout.total_bytes].cast("Q")
        starts = range(layout.start_bytes, layout.total_bytes, layout.slot_bytes)
        self.slots = tuple(
            (buffer[start + _HEAD_BYTES : start + _HEAD_BYTES + channel.max_message_bytes], start // 8, start // 8 + 1)
            for start in starts
        )

    def close(self) -> None:
        """Unmap; see `SharedSegment.close`."""
        for payload, *_ in self.slots:
            payload.release()
        self.words.release()
        self._segment.close()


class _ShmEndpoint(CursorsEndpoint):
    """What all four endpoints have in common."""

    _map: Mapping
    _slots: tuple[tuple[memoryview, int, int], ...]

    def _drop(self) -> None:
        self._words, self._slots, self._count = _NOWHERE, _NO_SLOTS, 1
        self._map.close()


class _ShmWriter(_ShmEndpoint, Writer):
    """State of both writers; a subclass chooses the next slot."""

    _cursors: WriterCursors

    def __init__(self, address: Address, mapping: Mapping) -> None:
        self._cursors = WriterCursors(mapping.words, address)
        self._map = mapping
        self._words = mapping.words
        self._slots = mapping.slots
        self._count = len(mapping.slots)
        self._limit_bytes = address.channel.max_message_bytes
        self._fenced = self._cursors.fenced
        self._sequence = 0
        self.opened()


class _ShmReader(_ShmEndpoint, Reader):
    """State of both readers."""

    _cursors: ReaderCursors

    def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
        self._cursors = ReaderCursors(mapping.words, address, index)
        self._map = mapping
        self._words = mapping.words
        self._slots = mapping.slots
        self._count = len(mapping.slots)
        self._consumed_word = self._cursors.consumed_word
        self._fenced = self._cursors.fenced
        self._waiter = self._cursors.waiter
        self._sequence = 0
        self.opened()

    def _drop(self) -> None:
        super()._drop()
        self._consumed_word = 0


class RingWriter(_ShmWriter):
    """Writer of an every_message channel."""

    _room = 0
    """First sequence number that may not be written before the readers' progress is checked again."""

    def __init__(self, address: Address, mapping: Mapping) -> None:
        super().__init__(address, mapping)
        first, *self._more_sleep_words = self._cursors.sleep_words
        self._sleep_word = first

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        sequence = self._sequence
        if sequence >= self._room:
            self._make_room(timeout_s)
        payload, head, size_word = self._slots[sequence % self._count]
        words = self._words
        size_bytes = len(message)
        try:
            payload[:size_bytes] = message
        except ValueError as error:  # its slot is smaller
            if is_of_handler(error):
                raise
            raise MessageTooLarge(size_bytes, self._limit_bytes) from error
        words[size_word] = size_bytes
        if self._fenced:
            self._cursors.fence()
        self._sequence = words[head] = sequence + 1  # both, whatever signals come: a published slot is not written to
        if self._fenced:
            self._cursors.fence()
        if words[self._sleep_word] or self._more_sleep_words:
            self._cursors.ring_sleepers()

    def _make_room(self, timeout_s: float | None) -> None:
        self._cursors.require_open()
        self._room = self._cursors.wait_until_consumed(self._sequence + 1 - self._count, timeout_s) + self._count

    def _drop(self) -> None:
        super()._drop()
        self._room = 0


class RingReader(_ShmReader):
    """Reader of an every_message channel; its views are the ring's own memory."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        if self._fenced:
            self._cursors.store_published(self._consumed_word, sequence)
        else:
            words[self._consumed_word] = sequence  # finished with the last view
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        payload, head, size_word = self._slots[sequence % self._count]
        wanted = sequence + 1
        if words[head] != wanted:
            waiter = self._waiter
            waiter.begun_count += 1
            for _ in waiter.looks:
                if words[head] == wanted:
                    break
            else:
                self._await(words, head, wanted, timeout_s)
        if self._fenced:
            self._cursors.fence()
        self._sequence = wanted
        return payload[: words[size_word]]

    def _await(self, words: memoryview, head: int, wanted: int, timeout_s: float | None) -> None:
        self._cursors.require_open()
        if not self._cursors.wait_until(lambda: words[head] == wanted, timeout_s, counted=True):
            raise EndOfStream(f"channel ended after {wanted - 1} messages")


class LatestWriter(_ShmWriter):
    """Writer of a latest_value channel; it never waits."""

    def __init__(self, address: Address, mapping: Mapping) -> None:
        super().__init__(address, mapping)
        self._hazard_slots = WriterHazardSlots(
            self._cursors, mapping.words, address.channel.readers, len(mapping.slots)
        )

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        del timeout_s  # there is always a free slot
        self._cursors.require_open()
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        slot = self._hazard_slots.free()
        payload, head, _ = self._slots[slot]
        payload[:size_bytes] = message
        self._words[head + 1] = size_bytes
        self._hazard_slots.announce(slot)


class LatestReader(_ShmReader):
    """Reader of a latest_value channel; its views are the slot's own memory, pinned."""

    def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
        super().__init__(address, mapping, index)
        self._hazard_slots = ReaderHazardSlots(self._cursors, mapping.words)

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._cursors.require_open()
        payload, head, _ = self._slots[self._hazard_slots.take(timeout_s)]
        view = payload[: self._words[head + 1]]
        self._hazard_slots.done()
        return view


def _why_not(error: OSError, directory: Path, layout: Layout) -> str:
    """Return why a channel cannot be made, and what helps."""
    if isinstance(error, FileExistsError):
        return f"a shared memory segment {directory.name!r} exists already; run `ipcbench clean`"
    if Path(str(error.filename)).parent == directory:
        return f"cannot make {error.filename}: {error.strerror}{advice_on(error)}"
    what = f"no shared memory segment of {format_bytes(layout.total_bytes)}: {error.strerror}"
    if error.errno in {errno.EROFS, errno.EACCES}:
        return f"{what}; mount /dev/shm so that it can be written"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return what + advice_on(error)
    smaller = "smaller messages or a smaller depth" if layout.can_be_shorter else "smaller messages"
    return f"{what}; use {smaller}, or free or enlarge /dev/shm (`docker run --shm-size`)"


class Shm(Backend):
    """POSIX shared memory."""

    name: ClassVar[str] = "shm"
    summary: ClassVar[str] = "shared memory ring (POSIX shm), zero-copy reads"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**40,
        max_readers=MAX_READERS,
        zero_copy_read=True,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls) -> None:
        if sys.platform == "win32":
            raise BackendUnavailable(cls.name, "it needs POSIX shared memory and file locks", "use Linux or macOS")

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        layout = Layout(channel)
        with new_directory(channel.name) as (directory, location, undo):
            try:
                make_doorbells(directory, channel.readers)
                segment = SharedSegment(channel.name, layout.total_bytes)
            except OSError as error:
                raise TransportError(_why_not(error, directory, layout)) from error
            undo.callback(segment.unlink_made, os.fstat(segment.fileno()))
            segment.close()
        return Address(self.name, channel, location)

    @whole
    def open_writer(self, address: Address) -> Writer:
        kind = LatestWriter if address.channel.delivery == "latest_value" else RingWriter
        mapping = Mapping(address)
        try:
            return kind(address, mapping)
        except TransportError:
            mapping.close()
            raise

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        kind = LatestReader if address.channel.delivery == "latest_value" else RingReader
        mapping = Mapping(address)
        try:
            return kind(address, mapping, index)
        except TransportError:
            mapping.close()
            raise

    @whole
    def destroy(self, address: Address) -> None:
        name = address.channel.name
        remove_with_file(address, _SEGMENTS / name, lambda: shm_unlink(f"/{name}"))
