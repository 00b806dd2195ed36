"""The newest of several slots for every reader, and none that one still looks at: hazard pointers (Michael 2004).

There are `readers + 2` slots. The writer fills one that is neither the newest nor pinned by a reader, then announces it
in one word. A reader pins the announced slot and looks again; if the word has not changed, the slot was not reused
before the pin was visible, and it cannot be until the pin is moved.
"""

from __future__ import annotations

from ipcbench.errors import EndOfStream
from ipcbench.sync.cursors import ReaderSide, WriterSide, consumed_word

_ANNOUNCED = 2
"""Word of the board's first line that is not the board's own: version << 16 | slot."""

_PIN = 2
"""Word of a reader's line, relative to its `consumed` word: pinned slot + 1."""

_SLOT_MASK = 0xFFFF


class SlotWriter:
    """The writer's part; a writer that opens anew goes on after the last announced version."""

    __slots__ = ("_newest", "_pin_words", "_side", "_slots", "_version", "_words")

    def __init__(self, side: WriterSide, words: memoryview, readers: int, slots: int) -> None:
        self._side = side
        self._words = words
        self._slots = range(slots)
        self._pin_words = [consumed_word(index) + _PIN for index in range(readers)]
        self._version, self._newest = words[_ANNOUNCED] >> 16, words[_ANNOUNCED] & _SLOT_MASK

    def free(self) -> int:
        """Return a slot that nobody looks at; it stays so until it is announced."""
        words = self._words
        self._side.fence()  # the last announcement is visible before the pins are looked at
        taken = {words[word] - 1 for word in self._pin_words}
        taken.add(self._newest)
        return next(index for index in self._slots if index not in taken)

    def announce(self, slot: int) -> None:
        """Make that slot the newest; what was written into it is visible to whoever sees the announcement."""
        self._version += 1
        self._newest = slot
        self._side.store_published(_ANNOUNCED, self._version << 16 | slot)
        self._side.ring_sleepers()


class SlotReader:
    """A reader's part."""

    __slots__ = ("_pin_word", "_side", "_version", "_words")

    def __init__(self, side: ReaderSide, words: memoryview) -> None:
        self._side = side
        self._words = words
        self._pin_word = side.consumed_word + _PIN
        self._version = 0

    def take(self, timeout_s: float | None) -> int:
        """Return a newer slot than the last; nobody writes into it until the next call.

        Raises:
            TransportTimeout, EndOfStream, TransportError: as `Reader.read`.
        """
        words, seen = self._words, self._version
        if words[_ANNOUNCED] >> 16 <= seen and not self._side.wait_until(
            lambda: words[_ANNOUNCED] >> 16 > seen, timeout_s
        ):
            raise EndOfStream(f"channel ended with version {seen}")
        self._side.fence()  # the last view was read before its slot is unpinned
        while True:
            announced: int = words[_ANNOUNCED]
            slot = announced & _SLOT_MASK
            words[self._pin_word] = slot + 1
            self._side.fence()
            if words[_ANNOUNCED] == announced:
                break
        self._version = announced >> 16
        return slot
