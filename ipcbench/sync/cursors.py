"""Cursors: the shared words that say how far each endpoint is, who sleeps and who has closed; and waiting on them.

Each word has a single writer, so plain aligned 8-byte stores suffice and no lock is needed. Words written by different
processes lie on different cache lines. The words:

    0        state of the writer: NEW, OPEN or CLOSED
    1        number of messages published
    8        1 while the writer sleeps
    16 … 23  one byte per reader, 1 while it sleeps (`MAX_READERS` bytes; the writer checks eight at a time)
    24 + 8i  reader i: [0] number of messages it has finished with, [1] its state
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ipcbench.backend import Address, Endpoint, Waits
from ipcbench.errors import EndpointClosed, PeerLost, TransportTimeout
from ipcbench.sync.directory import channel_directory
from ipcbench.sync.fences import STRONG_ORDER, make_fence, sleeper_barrier
from ipcbench.sync.futex import HAS_FUTEX, address_of, wake
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.sync.locks import (
    lock_endpoint,
    reader_role,
    reader_roles,
    was_released,
)
from ipcbench.sync.ownership import Owned, own
from ipcbench.sync.wait import Doorbell, Waiter, yield_ns_for
from ipcbench.util.clock import deadline_ns

MAX_READERS = 64

NEW, OPEN, CLOSED = 0, 1, 2
ON_BELL, ON_FUTEX = 1, 2
"""How an endpoint sleeps, in its byte."""

WRITER_STATE, PUBLISHED, WRITER_SLEEPS, READER_SLEEPS, FIRST_READER = 0, 1, 8, 16, 24
_WORDS_PER_READER = 8
GONE = 2**63
"""Message count stored by a reader that has closed, so that it never holds the writer back."""


def cursors_bytes(readers: int) -> int:
    """Return the size of a channel's cursors in bytes, a multiple of 64."""
    return 8 * (FIRST_READER + _WORDS_PER_READER * readers)


def consumed_word(reader: int) -> int:
    """Return the index of the word that counts the messages reader `reader` has finished with."""
    return FIRST_READER + _WORDS_PER_READER * reader


def make_doorbells(directory: Path, readers: int) -> None:
    """Make the doorbells of all endpoints in the channel's directory.

    Raises:
        OSError: one cannot be made, or there is no descriptor to remove them again, should the channel's creation fail.
    """
    os.close(os.open(directory, os.O_RDONLY | os.O_CLOEXEC))
    Doorbell.make(directory / "writer.bell")
    for index in range(readers):
        Doorbell.make(directory / f"reader-{index}.bell")


class Cursors(ABC):
    """One endpoint's access to the channel's cursors, with its endpoint lock, its doorbells and its way of waiting.

    Attributes:
        words: the shared words.
        address: the channel's.
        channel: the channel as it was asked for.
        waiter: how this endpoint waits.
        closed: whether `close` was called.
        loss: the error of a peer that has died, once it is known.
        check_carrier: raises PeerLost if something else has died without which no message arrives. It must not refer to
            the endpoint, which would then not be let go when it is dropped.
    """

    def __init__(
        self,
        role: str,
        peers: Sequence[str],
        state_word: int,
        words: memoryview,
        address: Address,
        *,
        adapts: bool,
    ) -> None:
        """Open the doorbells of `role` and of its `peers`, lock the endpoint and mark it open.

        Raises:
            TransportError: there is no such channel, or the endpoint is open or was open before.
        """
        self.words = words
        self._flags = words.cast("B")
        self._state_word = state_word
        self._adapts = adapts
        self.directory = directory = channel_directory(address)
        self.address, self.channel = address, address.channel
        self._barrier, wakers_fence = sleeper_barrier()
        self.fence = make_fence()
        self.fenced = wakers_fence or not STRONG_ORDER
        """Whether publishing needs `store_published`; if not, a plain store is enough and cheaper."""
        with ExitStack() as held:
            held.callback(self._flags.release)
            self._bell, *self._peers_bells = (
                held.enter_context(closing(Doorbell(directory / f"{each}.bell"))) for each in (role, *peers)
            )
            self._lock = lock_endpoint(address, role)
            held.callback(self._lock.release)
            self._held = held.pop_all()
        words[state_word] = OPEN
        self.closed = False
        self.loss: PeerLost | None = None
        self.check_carrier: Callable[[], object] = bool
        self.waiter: Waiter
        self._arm: Callable[[], None]
        own(self)

    def _waiter(self, sleep_byte: int) -> Waiter:
        flags, barrier = self._flags, self._barrier

        def arm() -> None:
            flags[sleep_byte] = ON_BELL
            barrier()

        def disarm() -> None:
            flags[sleep_byte] = 0

        self._arm = arm
        return Waiter(
            self.channel.wait,
            self.channel.readers + 1,
            doorbell=self._bell,
            arm=arm,
            disarm=disarm,
            check_peers=self.check_peers,
            yield_ns=yield_ns_for(self.channel.max_message_bytes),
            adapts=self._adapts,
        )

    def store_published(self, word: int, value: int) -> None:
        """Store a word that other processes act on, ordered after all earlier stores and before all later loads."""
        self.fence()
        self.words[word] = value
        self.fence()

    @abstractmethod
    def check_peers(self) -> None:
        """Raise PeerLost if a peer that this endpoint waits for has died."""

    def require_open(self) -> None:
        """Raise EndpointClosed after `close`, and again what was raised when a peer was found dead."""
        if self.closed:
            raise EndpointClosed(f"this endpoint of channel {self.channel.name!r} is closed")
        if self.loss is not None:
            raise self.loss.with_traceback(None)

    @abstractmethod
    def close(self) -> None:
        """Tell the peers that this endpoint closes, and release its place."""

    def abandon(self) -> None:
        """Undo the opening of an endpoint that then lacks something else; it may be tried again."""
        self.words[self._state_word] = NEW
        self._lock.abandon()
        self.let_go()

    def let_go(self) -> None:
        """Release what this process holds, and tell the peers nothing; see `ipcbench.sync.ownership`."""
        self.closed = True
        self._held.close()

    def _mark_closed(self) -> None:
        self.store_published(self._state_word, CLOSED)
        self.closed = True

    def _lost(self, role: str, state_word: int) -> bool:
        """Return whether that peer died without closing, perhaps before it was marked open, or the channel is gone."""
        words = self.words
        if words[state_word] == CLOSED or (self._lock.is_current() and not was_released(self.directory, role)):
            return False
        return words[state_word] != CLOSED


class CursorsEndpoint(Owned, Endpoint):
    """An endpoint that waits by its cursors, closes with them, and then drops what else it holds."""

    _cursors: Cursors

    @property
    def waits(self) -> Waits:
        return self._cursors.waiter.waits

    @property
    def closed(self) -> bool:
        return self._cursors.closed

    def _close(self) -> None:
        self._cursors.close()
        self._drop()

    def let_go(self) -> None:
        self._is_released = True
        self._cursors.let_go()
        self._drop()

    @abstractmethod
    def _drop(self) -> None:
        """Release what this process holds besides the cursors; use from now on must end in `require_open`."""


class WriterCursors(Cursors):
    """The writer's access to the cursors."""

    def __init__(self, words: memoryview, address: Address, *, adapts: bool = True) -> None:
        channel = address.channel
        super().__init__("writer", reader_roles(channel), WRITER_STATE, words, address, adapts=adapts)
        self.waiter = self._waiter(8 * WRITER_SLEEPS)
        self._consumed = [consumed_word(index) for index in range(channel.readers)]
        self.sleep_words = tuple(range(READER_SLEEPS, READER_SLEEPS + (channel.readers + 7) // 8))
        self._address = address_of(words) if HAS_FUTEX else 0

    def check_peers(self) -> None:
        self.check_carrier()
        for index in range(self.channel.readers):
            if self._lost(f"reader-{index}", consumed_word(index) + 1):
                self.loss = PeerLost(f"reader {index} of channel {self.channel.name!r} died without closing")
                raise self.loss

    def slowest(self) -> int:
        """Return how many messages the slowest reader has finished with; `GONE` if all have closed."""
        words = self.words
        return min([words[word] for word in self._consumed])

    def wait_until_consumed(self, count: int, timeout_s: float | None) -> int:
        """Wait until every reader has finished with `count` messages; return `slowest()`.

        Raises:
            TransportTimeout: a reader had not within `timeout_s`.
            PeerLost: a reader died.
        """
        slowest = self.slowest()
        if slowest < count:
            self.waiter.begun_count += 1
            if not self.waiter.until(lambda: self.slowest() >= count, deadline_ns(timeout_s)):
                behind = [i for i, word in enumerate(self._consumed) if self.words[word] < count]
                raise TransportTimeout(
                    f"no room in channel {self.channel.name!r} within {timeout_s} s: the channel is full; waiting for "
                    f"reader {', '.join(map(str, behind))}"
                )
            slowest = self.slowest()
        if self.fenced:
            self.fence()
        return slowest

    def ring_sleepers(self) -> None:
        """Wake the sleeping readers; call it after publishing. Each sleep byte is cleared before its doorbell rings."""
        words = self.words
        if not any(words[word] for word in self.sleep_words):
            return
        for index in range(len(self._peers_bells)):
            self.ring_sleeper(index)

    def ring_sleeper(self, index: int) -> None:
        """Wake that reader, if it sleeps."""
        flags, place = self._flags, 8 * READER_SLEEPS + index
        if how := flags[place]:
            flags[place] = 0
            if how == ON_FUTEX and self._address:
                self._wake(index)
            else:
                self._peers_bells[index].ring()

    def bells(self) -> tuple[int, ...]:
        """Return the descriptors of the readers' doorbells, until `close`."""
        return tuple(bell.fileno() for bell in self._peers_bells)

    def _wake(self, index: int) -> None:
        wake(self._address + (8 * READER_SLEEPS + index) // 4 * 4)

    def end(self) -> None:
        """Mark the end of the stream, and keep the place until `close`."""
        self._mark_closed()

    def close(self) -> None:
        """Mark the end of the stream and wake all readers."""
        self._mark_closed()
        for index, bell in enumerate(self._peers_bells):
            bell.ring()
            if self._flags[8 * READER_SLEEPS + index] == ON_FUTEX and self._address:
                self._flags[8 * READER_SLEEPS + index] = 0
                self._wake(index)
        self._held.close()


class ReaderCursors(Cursors):
    """One reader's access to the cursors."""

    def __init__(self, words: memoryview, address: Address, index: int, *, adapts: bool = True) -> None:
        role = reader_role(address.channel, index)
        self.consumed_word = consumed_word(index)
        self.is_watched = False
        super().__init__(role, ("writer",), self.consumed_word + 1, words, address, adapts=adapts)
        (self._writer_bell,) = self._peers_bells
        self.waiter = self._waiter(8 * READER_SLEEPS + index)

    def check_peers(self) -> None:
        self.check_carrier()
        if self._lost("writer", WRITER_STATE):
            raise PeerLost(f"the writer of channel {self.channel.name!r} died without closing")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None, *, counted: bool = False) -> bool:
        """Wait until `ready()` is true; return False if the writer has closed and it is still false.

        Args:
            ready: the condition; checked before the call.
            timeout_s: how long to wait; None waits forever.
            counted: whether the caller has added this wait to `waiter.begun_count`.

        Raises:
            TransportTimeout: neither happened within `timeout_s`.
            PeerLost: the writer died.
        """
        words = self.words
        deadline = deadline_ns(timeout_s)
        self.waiter.begun_count += not counted
        try:
            arrived = self.waiter.until(lambda: ready() or words[WRITER_STATE] == CLOSED, deadline)
        except PeerLost as loss:
            if is_of_handler(loss):
                raise
            if not ready():  # true if the writer's last message came just before the check that the writer lives
                self.loss = loss
                raise
            arrived = True
        if not arrived and self.is_watched:
            self._bell.sleep(0)
            self._arm()  # then look once more: who publishes after this look rings
            arrived = ready() or words[WRITER_STATE] == CLOSED
        if not arrived:
            raise TransportTimeout(f"no message in channel {self.channel.name!r} within {timeout_s} s")
        if self.fenced:
            self.fence()
        return ready()

    def watch(self) -> int:
        """Return a descriptor that becomes readable when there is something to wait for no longer, after each
        `wait_until` that timed out; see `Reader.fileno`.
        """
        self.require_open()
        if not self.is_watched:
            self.is_watched = True
            self._bell.ring()  # something may be there already
        return self._bell.fileno()

    def done_with(self, count: int) -> None:
        """Record that this reader has finished with `count` messages in all, and wake the writer if it sleeps."""
        if self.fenced:
            self.store_published(self.consumed_word, count)
        else:
            self.words[self.consumed_word] = count
        if self.words[WRITER_SLEEPS]:
            self.ring_writer()

    def ring_writer(self) -> None:
        """Wake the writer."""
        self._flags[8 * WRITER_SLEEPS] = 0
        self._writer_bell.ring()

    def close(self) -> None:
        """Close; the writer no longer waits for this reader."""
        self.words[self.consumed_word] = GONE  # first: whoever is killed in between has died, and holds nobody up
        self._mark_closed()
        self._writer_bell.ring()
        self._held.close()
