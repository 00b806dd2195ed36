"""Hazard slots: the latest of several slots for every reader, none reused while a reader looks at it (Michael 2004).

There are `readers + 2` slots. The writer fills one that is neither the latest nor marked as in use by a reader, then
announces it in one word. A reader marks the announced slot as in use and looks again; if the word has not changed, the
slot was not reused before the mark was visible, and it cannot be until the mark is moved.
"""

from __future__ import annotations

from collections.abc import Iterator

from ipcbench.errors import EndOfStream, TransportError
from ipcbench.sync.cursors import ReaderCursors, WriterCursors, consumed_word

_ANNOUNCED = 2
"""Word of the writer's line that the cursors leave free: version << 16 | slot."""

_IN_USE = 2
"""Word of a reader's line, relative to its `consumed` word: slot in use + 1."""

_SLOT_MASK = 0xFFFF


class WriterHazardSlots:
    """The writer's part."""

    __slots__ = ("_cursors", "_in_use_words", "_slots", "_words")

    def __init__(self, cursors: WriterCursors, words: memoryview, readers: int, slots: int) -> None:
        self._cursors = cursors
        self._words = words
        self._slots = range(slots)
        self._in_use_words = [consumed_word(index) + _IN_USE for index in range(readers)]

    def free(self) -> int:
        """Return a slot that no reader looks at; none will until it is announced."""
        return next(self.all_free())

    def all_free(self) -> Iterator[int]:
        """Yield all such slots."""
        words = self._words
        self._cursors.fence()  # the last announcement is visible before the marks are read
        taken = {words[word] - 1 for word in self._in_use_words}
        taken.add(words[_ANNOUNCED] & _SLOT_MASK)  # as readers see it, whatever a signal cut short
        return (index for index in self._slots if index not in taken)

    def announce(self, slot: int) -> None:
        """Make `slot` the latest; a reader that sees the announcement sees what was written into the slot before."""
        version = (self._words[_ANNOUNCED] >> 16) + 1
        self._cursors.store_published(_ANNOUNCED, version << 16 | slot)
        self._cursors.ring_sleepers()


class ReaderHazardSlots:
    """A reader's part."""

    __slots__ = ("_cursors", "_in_use_word", "_slots", "_taken", "_version", "_words")

    def __init__(self, cursors: ReaderCursors, words: memoryview) -> None:
        self._cursors = cursors
        self._words = words
        self._slots = range(cursors.channel.readers + 2)
        self._in_use_word = cursors.consumed_word + _IN_USE
        self._version = self._taken = 0

    def take(self, timeout_s: float | None) -> int:
        """Wait for a slot newer than the last one and return it; the writer leaves it alone until the next call. Call
        `done` when its value is the caller's; else the next call may return the same slot.

        Raises:
            TransportTimeout, EndOfStream, TransportError: as `Reader.read`.
        """
        words, seen = self._words, self._version
        if words[_ANNOUNCED] >> 16 <= seen and not self._cursors.wait_until(
            lambda: words[_ANNOUNCED] >> 16 > seen, timeout_s
        ):
            raise EndOfStream(f"channel ended with version {seen}")
        self._cursors.fence()  # the last view was read before the mark leaves its slot
        while True:
            announced: int = words[_ANNOUNCED]
            slot = announced & _SLOT_MASK
            words[self._in_use_word] = slot + 1
            self._cursors.fence()
            if words[_ANNOUNCED] == announced:
                break
        if slot not in self._slots:
            raise TransportError(f"channel {self._cursors.channel.name!r} is damaged: there is no slot {slot}")
        self._taken = announced >> 16
        return slot

    def done(self) -> None:
        """Wait next time for a newer slot."""
        self._version = self._taken
