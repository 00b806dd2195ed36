"""The endpoints of an every_message channel. The writer fills an entry, then stores its first word; a reader that finds
the expected number there may use the message until its next read, which marks it as finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NoReturn

from ipcbench.backend import (
    PLAIN_TYPES,
    Address,
    Message,
    Reader,
    Writer,
    bytes_of,
    require_size,
    require_some,
)
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost
from ipcbench.sync.cursors import WRITER_SLEEPS, CursorsEndpoint, ReaderCursors, WriterCursors
from ipcbench.sync.ring_memory import RingMemory, in_lines

_HOT_BYTES = 2**20
"""Where all of the arena is free, messages begin anew behind so many bytes of it: a cache may still hold these."""
_NOWHERE = memoryview(bytearray(8 * 64)).cast("Q")
"""Words of a closed endpoint: nothing arrives there and no peer sleeps, so the fast path ends in the slow one."""
_NO_ENTRIES = ((memoryview(b""), 8),)


class _RingMemoryEndpoint(CursorsEndpoint):
    _map: RingMemory
    _heads: memoryview
    """Words in which the heads of the entries lie."""
    _entries: tuple[tuple[memoryview, int], ...]

    def _drop(self) -> None:
        self._words = self._heads = _NOWHERE
        self._entries, self._count, self._fenced = _NO_ENTRIES, 1, False
        self._map.close()


class RingMemoryWriter(_RingMemoryEndpoint, Writer):
    """State of both writers; a subclass chooses the next entry, and has room for a message there."""

    _cursors: WriterCursors

    def __init__(self, address: Address, mapping: RingMemory) -> None:
        self._cursors = mapping.cursors(WriterCursors, address)
        self._map = mapping
        self._words, self._heads = self._cursors.words, mapping.words
        self._entries = mapping.entries
        self._count = len(mapping.entries)
        self._limit_bytes = address.channel.max_message_bytes
        self._fenced = self._cursors.fenced
        self._sequence = 0
        self.opened()

    def _nothing_reserved(self) -> NoReturn:
        self._cursors.require_open()
        super()._nothing_reserved()

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        pieces = [part if type(part) in PLAIN_TYPES else bytes_of(part) for part in parts]
        room, end = self.reserve(sum(map(len, pieces)), timeout_s), 0
        for piece in pieces:
            begin, end = end, end + len(piece)
            room[begin:end] = piece
        self.commit()

    def _drop(self) -> None:
        self._give_up_reserved()
        super()._drop()


class RingMemoryReader(_RingMemoryEndpoint, Reader):
    """State of both readers."""

    _cursors: ReaderCursors

    def __init__(self, address: Address, mapping: RingMemory, index: int) -> None:
        self._cursors = mapping.cursors(ReaderCursors, address, index)
        self._map = mapping
        self._words, self._heads = self._cursors.words, mapping.words
        self._entries = mapping.entries
        self._count = len(mapping.entries)
        self._consumed_word = self._cursors.consumed_word
        self._fenced = self._cursors.fenced
        self._waiter = self._cursors.waiter
        self._sequence = 0
        self.opened()

    def fileno(self) -> int:
        return self._cursors.watch()

    def _drop(self) -> None:
        super()._drop()
        self._consumed_word = 0


class PureRingWriter(RingMemoryWriter):
    """Writer of an every_message channel."""

    _reserved_number = -1
    _found, _found_bytes = -1, 0
    """For which message there is room, and for how many bytes."""
    _room = 0
    """First sequence number that may not be written before the readers' progress is checked again."""

    def __init__(self, address: Address, mapping: RingMemory) -> None:
        super().__init__(address, mapping)
        first, *self._more_sleep_words = self._cursors.sleep_words
        self._sleep_word = first
        self._inline_bytes = mapping.layout.inline_bytes
        self._arena = mapping.arena
        self._arena_bytes = mapping.layout.arena_bytes
        self._placed: deque[tuple[int, int]] = deque()  # of messages in the arena: number, and where they end
        self._next_place, self._end_of_room = 0, self._arena_bytes  # they only grow; places are these modulo its size

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        self._find_room(size_bytes, timeout_s)[:size_bytes] = message
        if self._reserved is not None:
            self._give_up_reserved()
        self._publish(size_bytes)

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        require_size(size_bytes)
        self._give_up_reserved()
        self._reserved = self._find_room(size_bytes, timeout_s)[:size_bytes]
        return self._reserved

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        is_sent = self._publish(len(self._committed(size_bytes)))
        self._give_up_reserved()
        if not is_sent:
            self._nothing_reserved()

    def _find_room(self, size_bytes: int, timeout_s: float | None) -> memoryview:
        """Return memory for the next message, of that size or larger, once it is free.

        Raises:
            MessageTooLarge, TransportTimeout, PeerLost, EndpointClosed: as `write`.
        """
        if self._sequence >= self._room:
            self._make_room(timeout_s)
        payload, head = self._entries[self._sequence % self._count]
        if size_bytes > self._inline_bytes:
            place = self._place(size_bytes, timeout_s)
            self._heads[head + 2] = place
            payload = self._arena[place:]
        self._found, self._found_bytes = self._sequence, size_bytes
        return payload

    def _publish(self, size_bytes: int) -> bool:
        """Publish the message for which room was found; return False if another one was written meanwhile."""
        sequence, heads = self._sequence, self._heads
        if sequence != self._found:
            return False
        payload, head = self._entries[sequence % self._count]
        if size_bytes <= self._inline_bytes < self._found_bytes:
            payload[:size_bytes] = self._arena[heads[head + 2] :][:size_bytes]
        heads[head + 1] = size_bytes
        if self._fenced:
            self._cursors.fence()
        self._sequence = heads[head] = sequence + 1  # both, whatever signals come: a published entry is not written to
        if self._fenced:
            self._cursors.fence()
        if self._words[self._sleep_word] or self._more_sleep_words:
            self._cursors.ring_sleepers()
        return True

    def _make_room(self, timeout_s: float | None) -> None:
        self._cursors.require_open()
        self._room = self._cursors.wait_until_consumed(self._sequence + 1 - self._count, timeout_s) + self._count

    def _place(self, size_bytes: int, timeout_s: float | None) -> int:
        """Return where in the arena the next message goes.

        Raises:
            MessageTooLarge, TransportTimeout, PeerLost: as `write`.
        """
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        needed = in_lines(size_bytes)
        placed = self._placed
        while placed and placed[-1][0] == self._sequence:  # it was interrupted before the message was published
            placed.pop()
            self._next_place = placed[-1][1] if placed else self._next_place
        begin = self._next_place
        if begin % self._arena_bytes + needed > self._arena_bytes:
            begin = self._beginning(begin)
        if begin % self._arena_bytes >= _HOT_BYTES and self._cursors.slowest() >= self._sequence:
            begin = self._free_place(begin, needed, timeout_s)
        if begin + needed > self._end_of_room:
            begin = self._free_place(begin, needed, timeout_s)
        self._next_place = begin + needed
        placed.append((self._sequence, begin + needed))
        return begin % self._arena_bytes

    def _beginning(self, place: int) -> int:
        return -(-place // self._arena_bytes) * self._arena_bytes

    def _free_place(self, begin: int, needed: int, timeout_s: float | None) -> int:
        """Wait until so many bytes are free at `begin`, or all are; return where they begin."""
        self._cursors.require_open()
        placed = self._placed
        enough = (number for number, end in placed if begin + needed <= end + self._arena_bytes)
        last = next(enough, placed[-1][0] if placed else self._sequence - 1)
        try:
            consumed = self._cursors.wait_until_consumed(last + 1, timeout_s)
        except PeerLost:
            self._room = 0  # every later write, also of a smaller message, looks at the peers first
            raise
        while placed and placed[0][0] < consumed:
            self._end_of_room = placed.popleft()[1] + self._arena_bytes
        if not placed:
            begin = self._beginning(begin)
            self._end_of_room = begin + self._arena_bytes
        return begin

    def _drop(self) -> None:
        super()._drop()
        self._room = 0


class PureRingReader(RingMemoryReader):
    """Reader of an every_message channel; its views are the segment's own memory."""

    def __init__(self, address: Address, mapping: RingMemory, index: int) -> None:
        self._inline_bytes = mapping.layout.inline_bytes
        self._arena = mapping.arena
        super().__init__(address, mapping, index)

    def release(self) -> None:
        if self.closed:
            return
        if self._fenced:
            self._cursors.store_published(self._consumed_word, self._sequence)
        else:
            self._words[self._consumed_word] = self._sequence
        if self._words[WRITER_SLEEPS]:
            self._cursors.ring_writer()

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        if self._fenced:
            self._cursors.store_published(self._consumed_word, sequence)
        else:
            words[self._consumed_word] = sequence  # finished with the last view
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        payload, head = self._entries[sequence % self._count]
        heads, wanted = self._heads, sequence + 1
        if heads[head] != wanted:
            waiter = self._waiter
            waiter.begun_count += 1
            for _ in waiter.looks:
                if heads[head] == wanted:
                    break
            else:
                self._await(heads, head, wanted, timeout_s)
        view = self._view(payload, head)
        self._sequence = wanted
        return view

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        require_some(most)
        first = self._sequence
        try:
            views = [self.read(timeout_s)]
            heads, entries, count = self._heads, self._entries, self._count
            for sequence in range(first + 1, first + most):
                payload, head = entries[sequence % count]
                if heads[head] != sequence + 1:
                    break
                views.append(self._view(payload, head))
        except BaseException:
            self._sequence = first  # the next call returns the same messages
            raise
        self._sequence = first + len(views)
        return views

    def _view(self, payload: memoryview, head: int) -> memoryview:
        """Return the message of an entry."""
        if self._fenced:
            self._cursors.fence()
        size_bytes: int = self._heads[head + 1]
        if size_bytes <= self._inline_bytes:
            return payload[:size_bytes]
        place: int = self._heads[head + 2]
        return self._arena[place : place + size_bytes]

    def _await(self, heads: memoryview, head: int, wanted: int, timeout_s: float | None) -> None:
        self._cursors.require_open()
        if not self._cursors.wait_until(lambda: heads[head] == wanted, timeout_s, counted=True):
            raise EndOfStream(f"channel ended after {wanted - 1} messages")
