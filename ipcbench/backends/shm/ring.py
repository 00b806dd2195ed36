"""The endpoints of an every_message channel. The writer fills an entry, then stores its first word; a reader that finds
the expected number there may use the message until its next read, which marks it as finished.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

from ipcbench.backend import PLAIN_TYPES, Address, Message, Waits, bytes_of, require_size, require_some
from ipcbench.backends.shm.endpoint import ShmReader, ShmWriter
from ipcbench.backends.shm.mapping import Mapping, in_lines
from ipcbench.backends.shm.native import NATIVE
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError
from ipcbench.sync.cursors import READER_SLEEPS, WRITER_SLEEPS
from ipcbench.sync.futex import HAS_FUTEX

_HOT_BYTES = 2**20
"""Where all of the arena is free, messages begin anew behind so many bytes of it: a cache may still hold these."""
_DOZES = 64
"""How many waits sleep on a word before Python has a say again."""
_WRITER_FENCES = 4
"""Word of the writer's line: set by a writer that orders each message before its look for sleepers."""


class PureRingWriter(ShmWriter):
    """Writer of an every_message channel."""

    _reserved_number = -1
    _found, _found_bytes = -1, 0
    """For which message there is room, and for how many bytes."""
    _room = 0
    """First sequence number that may not be written before the readers' progress is checked again."""

    def __init__(self, address: Address, mapping: Mapping) -> None:
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
            self._words[head + 2] = place
            payload = self._arena[place:]
        self._found, self._found_bytes = self._sequence, size_bytes
        return payload

    def _publish(self, size_bytes: int) -> bool:
        """Publish the message for which room was found; return False if another one was written meanwhile."""
        sequence, words = self._sequence, self._words
        if sequence != self._found:
            return False
        payload, head = self._entries[sequence % self._count]
        if size_bytes <= self._inline_bytes < self._found_bytes:
            payload[:size_bytes] = self._arena[words[head + 2] :][:size_bytes]
        words[head + 1] = size_bytes
        if self._fenced:
            self._cursors.fence()
        self._sequence = words[head] = sequence + 1  # both, whatever signals come: a published entry is not written to
        if self._fenced:
            self._cursors.fence()
        if words[self._sleep_word] or self._more_sleep_words:
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


class PureRingReader(ShmReader):
    """Reader of an every_message channel; its views are the segment's own memory."""

    def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
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
        wanted = sequence + 1
        if words[head] != wanted:
            waiter = self._waiter
            waiter.begun_count += 1
            for _ in waiter.looks:
                if words[head] == wanted:
                    break
            else:
                self._await(words, head, wanted, timeout_s)
        view = self._view(payload, head)
        self._sequence = wanted
        return view

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        require_some(most)
        first = self._sequence
        try:
            views = [self.read(timeout_s)]
            words, entries, count = self._words, self._entries, self._count
            for sequence in range(first + 1, first + most):
                payload, head = entries[sequence % count]
                if words[head] != sequence + 1:
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
        size_bytes: int = self._words[head + 1]
        if size_bytes <= self._inline_bytes:
            return payload[:size_bytes]
        place: int = self._words[head + 2]
        return self._arena[place : place + size_bytes]

    def _await(self, words: memoryview, head: int, wanted: int, timeout_s: float | None) -> None:
        self._cursors.require_open()
        if not self._cursors.wait_until(lambda: words[head] == wanted, timeout_s, counted=True):
            raise EndOfStream(f"channel ended after {wanted - 1} messages")


if NATIVE is None:
    RingWriter: Any = PureRingWriter
    RingReader: Any = PureRingReader
else:

    class NativeRingWriter(NATIVE.RingWriter, ShmWriter):  # type: ignore[misc]
        """The same with `write` in C, which calls these methods when it cannot go on by itself."""

        def __init__(self, address: Address, mapping: Mapping) -> None:
            super().__init__(address, mapping)
            self._prepare(*_place_of(mapping), self._fenced, self._limit_bytes, self._cursors.bells())
            mapping.words[_WRITER_FENCES] = 1

        def _await_room(self, count: int, timeout_s: float | None) -> None:
            try:
                self._cursors.require_open()
                self._cursors.wait_until_consumed(count, timeout_s)
            except PeerLost:
                self._release()  # every later call comes here
                raise

        def _too_large(self, size_bytes: int) -> NoReturn:
            raise MessageTooLarge(size_bytes, self._limit_bytes)

        def _close(self) -> None:
            self._forget_bells()
            super()._close()

        def let_go(self) -> None:
            self._forget_bells()
            super().let_go()

        def _drop(self) -> None:
            self._release()
            super()._drop()

    class NativeRingReader(NATIVE.RingReader, ShmReader):  # type: ignore[misc]
        """The same with `read` in C, which calls these methods when it cannot go on by itself."""

        def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
            super().__init__(address, mapping, index)
            self._prepare(*_place_of(mapping), self._fenced, 8 * self._consumed_word, 8 * READER_SLEEPS + index)
            self._dozes = HAS_FUTEX and address.channel.wait == "block"

        def fileno(self) -> int:
            self._dozes, self._dozes_left = False, 0  # a word cannot be waited on together with others
            self._bell = super().fileno()
            return self._bell

        def _may_look(self) -> int:
            """Count a wait, and return how it should begin: by polling (1), sleeping on a word (2, or more: then
            so many later waits do so, too, and are not told here), or else (0).
            """
            waiter = self._waiter
            waiter.begun_count += 1
            if waiter.looks:
                return 1
            if not HAS_FUTEX or self._cursors.is_watched:
                return 0
            skips_count = waiter.take_skips(_DOZES)
            return 1 + skips_count if skips_count else 0

        def _require_no_call(self) -> None:
            if self._waits_in_c:
                raise TransportError("a signal handler cannot close an endpoint whose `read` it interrupts")
            super()._require_no_call()

        @property
        def waits(self) -> Waits:
            waits = super().waits
            spun_count = waits.spun_count - self._known_dozes_count
            return Waits(spun_count, waits.yielded_count, waits.slept_count + self._dozes_count)

        def _await(self, wanted: int, timeout_s: float | None) -> None:
            self._cursors.require_open()
            words, (_, head) = self._words, self._entries[(wanted - 1) % self._count]
            if not self._cursors.wait_until(lambda: bool(words[head] == wanted), timeout_s, counted=True):
                raise EndOfStream(f"channel ended after {wanted - 1} messages")

        def _ring_writer(self) -> None:
            self._cursors.ring_writer()

        def _close(self) -> None:
            self._bell = -1  # first: the descriptor may then be another file's
            super()._close()

        def let_go(self) -> None:
            self._bell = -1
            super().let_go()

        def _drop(self) -> None:
            self._release()
            super()._drop()

    def _place_of(mapping: Mapping) -> tuple[memoryview, int, int, int, int, int, int]:
        """Return the segment's memory, and where in it everything is."""
        layout = mapping.layout
        arena_start = layout.total_bytes - layout.arena_bytes
        return (mapping.memory, layout.count, layout.entry_bytes, layout.inline_bytes, layout.start_bytes, arena_start,
                layout.arena_bytes)  # fmt: skip

    RingWriter, RingReader = NativeRingWriter, NativeRingReader
