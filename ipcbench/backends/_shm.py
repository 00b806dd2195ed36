"""Shared memory: a ring of slots for every_message, spare buffers for latest_value; reads copy nothing.

What does not live here: waiting, wake-ups and the words that the endpoints share (ipcbench/board.py).

Ring: slot k of `depth` holds `[sequence + 1][size][payload …]`. The writer fills a slot, then stores its first word; a
reader that finds the number it expects there may read the slot until it says it is done with it, at its next read.

Latest value: `readers + 2` slots. The writer fills one that is neither the newest nor pinned by a reader, then announces
it in one word. A reader pins the announced slot and looks again; if the word has not changed, the slot was not reused
before the pin was visible, and it cannot be until the pin is moved (hazard pointers, Michael 2004).
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing import resource_tracker, shared_memory
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Message, Reader, Writer
from ipcbench.board import (
    MAX_READERS,
    WRITER_SLEEPS,
    ReaderSide,
    WriterSide,
    board_bytes,
    consumed_word,
    make_doorbells,
)
from ipcbench.errors import BackendUnavailable, EndOfStream, MessageTooLarge, TransportError
from ipcbench.memory_order import make_fence
from ipcbench.seats import channel_directory, make_directory, remove_directory
from ipcbench.spec import ChannelSpec
from ipcbench.units import format_bytes

RING_BYTES = 2**20
"""A ring holds as many of its `depth` slots as fit in this, and at least `_MIN_SLOTS`: one that stays in the processor's
cache is worth more than one that holds many large messages."""

_MIN_SLOTS = 2
_HEAD_BYTES = 16
_LINE_BYTES = 64
_ANNOUNCED = 2  # word of the board's first line that this backend uses: version << 16 | slot
_PIN = 2  # word of a reader's line, relative to its `consumed` word: pinned slot + 1

_tracking = threading.Lock()


class _Segment(shared_memory.SharedMemory):
    """A segment that no resource tracker unlinks behind our back, and that can be closed while views are out."""

    def __init__(self, name: str, create_bytes: int = 0) -> None:
        """Attach, or create with all its memory reserved: touching a page later can then not fail."""
        with _tracking:  # before Python 3.13 there is no `track=False`; registering would start a tracker process
            register, resource_tracker.register = resource_tracker.register, lambda _name, _kind: None
            try:
                super().__init__(name, create=bool(create_bytes), size=create_bytes)
            finally:
                resource_tracker.register = register
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
        unregister, resource_tracker.unregister = resource_tracker.unregister, lambda _name, _kind: None
        try:
            super().unlink()
        finally:
            resource_tracker.unregister = unregister


class _Layout:
    """Where the slots of one channel are."""

    __slots__ = ("slot_bytes", "slots", "start_bytes", "total_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        lines = -(-(_HEAD_BYTES + channel.max_message_bytes) // _LINE_BYTES)
        self.slot_bytes = lines * _LINE_BYTES
        if channel.delivery == "latest_value":
            self.slots = channel.readers + 2
        else:
            self.slots = max(_MIN_SLOTS, min(channel.depth, RING_BYTES // self.slot_bytes))
        self.start_bytes = board_bytes(channel.readers)
        self.total_bytes = self.start_bytes + self.slots * self.slot_bytes


class _Mapping:
    """A segment in this process: its words, and each slot as (payload, index of its first word)."""

    def __init__(self, channel: ChannelSpec) -> None:
        layout = _Layout(channel)
        try:
            self._segment = _Segment(channel.name)
        except OSError as error:
            raise TransportError(f"there is no channel {channel.name!r}: {error.strerror}") from error
        buffer = memoryview(self._segment.buf)
        self.words = buffer[: layout.total_bytes].cast("Q")
        starts = range(layout.start_bytes, layout.total_bytes, layout.slot_bytes)
        self.slots = tuple(
            (buffer[start + _HEAD_BYTES : start + _HEAD_BYTES + channel.max_message_bytes], start // 8) for start in starts
        )

    def close(self) -> None:
        for payload, _ in self.slots:
            payload.release()
        self.words.release()
        self._segment.close()


_NOWHERE = memoryview(bytearray(8 * 64)).cast("Q")
"""What a closed endpoint looks at: nothing arrives there and nobody sleeps, so its fast path ends in the slow one."""
_NO_SLOTS = ((memoryview(b""), 0),)


class _ShmWriter(Writer):
    """What both writers hold; a subclass knows which slot comes next."""

    def __init__(self, channel: ChannelSpec, mapping: _Mapping) -> None:
        self._side = WriterSide(mapping.words, channel, channel_directory(channel.name))
        self._map = mapping
        self._words = mapping.words
        self._slots = mapping.slots
        self._limit_bytes = channel.max_message_bytes
        self._weak_fence = self._side.weak_fence
        self._wake_fence = self._side.wake_fence
        self._sleep_words = self._side.sleep_words
        self._sequence = 0

    def close(self) -> None:
        if not self._side.closed:
            self._side.close()
            self._words, self._slots = _NOWHERE, _NO_SLOTS
            self._map.close()


class _ShmReader(Reader):
    """What both readers hold."""

    def __init__(self, channel: ChannelSpec, mapping: _Mapping, index: int) -> None:
        self._side = ReaderSide(mapping.words, channel, channel_directory(channel.name), index)
        self._map = mapping
        self._words = mapping.words
        self._slots = mapping.slots
        self._consumed_word = self._side.consumed_word
        self._weak_fence = self._side.weak_fence
        self._wake_fence = self._side.wake_fence
        self._sequence = 0

    def close(self) -> None:
        if not self._side.closed:
            self._side.close()
            self._words, self._slots = _NOWHERE, _NO_SLOTS
            self._consumed_word = 0
            self._map.close()


class RingWriter(_ShmWriter):
    """Writer of an every_message channel."""

    _room = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        sequence = self._sequence
        if sequence >= self._room:
            self._make_room(timeout_s)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        payload, head = self._slots[sequence % len(self._slots)]
        words = self._words
        payload[:size_bytes] = message
        words[head + 1] = size_bytes
        if self._weak_fence is not None:
            self._weak_fence()
        self._sequence = words[head] = sequence + 1
        if self._wake_fence is not None:
            self._wake_fence()
        for word in self._sleep_words:
            if words[word]:
                self._side.ring_sleepers()

    def _make_room(self, timeout_s: float | None) -> None:
        self._side.require_open()
        slots = len(self._slots)
        self._room = self._side.wait_until_consumed(self._sequence + 1 - slots, timeout_s) + slots

    def close(self) -> None:
        super().close()
        self._room = 0


class RingReader(_ShmReader):
    """Reader of an every_message channel; its views are the ring's own memory."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        if self._weak_fence is not None:
            self._weak_fence()  # the last view was read before the writer hears that it is free
        words[self._consumed_word] = sequence
        if self._wake_fence is not None:
            self._wake_fence()
        if words[WRITER_SLEEPS]:
            self._side.ring_writer()
        payload, head = self._slots[sequence % len(self._slots)]
        if words[head] != sequence + 1:
            self._await(words, head, sequence + 1, timeout_s)
        if self._weak_fence is not None:
            self._weak_fence()
        self._sequence = sequence + 1
        return payload[: words[head + 1]]

    def _await(self, words: memoryview, head: int, wanted: int, timeout_s: float | None) -> None:
        self._side.require_open()
        if not self._side.wait_until(lambda: words[head] == wanted, timeout_s):
            raise EndOfStream(f"channel ended after {wanted - 1} messages")


class LatestWriter(_ShmWriter):
    """Writer of a latest_value channel; it never waits."""

    def __init__(self, channel: ChannelSpec, mapping: _Mapping) -> None:
        super().__init__(channel, mapping)
        self._pin_words = [consumed_word(index) + _PIN for index in range(channel.readers)]
        self._fence = make_fence()
        self._newest = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        del timeout_s  # there is always a free slot
        self._side.require_open()
        size_bytes = len(message)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        words = self._words
        self._fence()  # the last announcement is visible before the pins are looked at
        taken = {words[word] - 1 for word in self._pin_words}
        taken.add(self._newest)
        slot = next(index for index in range(len(self._slots)) if index not in taken)
        payload, head = self._slots[slot]
        payload[:size_bytes] = message
        words[head + 1] = size_bytes
        if self._weak_fence is not None:
            self._weak_fence()
        self._sequence += 1
        self._newest = slot
        words[_ANNOUNCED] = self._sequence << 16 | slot
        self._side.wake_readers()


class LatestReader(_ShmReader):
    """Reader of a latest_value channel; its views are the slot's own memory, pinned."""

    def __init__(self, channel: ChannelSpec, mapping: _Mapping, index: int) -> None:
        super().__init__(channel, mapping, index)
        self._pin_word = self._consumed_word + _PIN
        self._fence = make_fence()

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._side.require_open()
        words = self._words
        if words[_ANNOUNCED] >> 16 <= self._sequence:
            seen = self._sequence
            if not self._side.wait_until(lambda: words[_ANNOUNCED] >> 16 > seen, timeout_s):
                raise EndOfStream(f"channel ended with version {seen}")
        self._fence()  # the last view was read before its slot is unpinned
        while True:
            announced = words[_ANNOUNCED]
            slot = announced & 0xFFFF
            words[self._pin_word] = slot + 1
            self._fence()
            if words[_ANNOUNCED] == announced:
                break
        self._sequence = announced >> 16
        payload, head = self._slots[slot]
        return payload[: words[head + 1]]


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

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        directory = make_directory(channel.name)
        total_bytes = _Layout(channel).total_bytes
        try:
            make_doorbells(directory, channel.readers)
            _Segment(channel.name, total_bytes).close()
        except OSError as error:
            remove_directory(channel.name)
            if isinstance(error, FileExistsError):
                raise TransportError(
                    f"a shared memory segment {channel.name!r} exists already; run `ipcbench clean`"
                ) from error
            raise TransportError(
                f"no shared memory segment of {format_bytes(total_bytes)}: {error.strerror}; free some of /dev/shm, or "
                "use smaller messages or a smaller depth"
            ) from error
        return Address(self.name, channel, "")

    def open_writer(self, address: Address) -> Writer:
        kind = LatestWriter if address.channel.delivery == "latest_value" else RingWriter
        mapping = _Mapping(address.channel)
        try:
            return kind(address.channel, mapping)
        except TransportError:
            mapping.close()
            raise

    def open_reader(self, address: Address, index: int) -> Reader:
        kind = LatestReader if address.channel.delivery == "latest_value" else RingReader
        mapping = _Mapping(address.channel)
        try:
            return kind(address.channel, mapping, index)
        except TransportError:
            mapping.close()
            raise

    def destroy(self, address: Address) -> None:
        try:
            segment = _Segment(address.channel.name)
        except FileNotFoundError:
            pass
        else:
            segment.unlink()
            segment.close()
        remove_directory(address.channel.name)
