"""The endpoints of an MPI channel, and how they agree when to enter an MPI call so that it is certain to return.

A blocking collective has no time-out. So the endpoints first agree, in shared words that carry no data, that all will
take part; waiting for that has a deadline. Besides the cursors (ipcbench.sync.cursors) there are, for message k (from
0):

- *announced* = k + 1: the writer intends to send message k, unless it takes that back. Then *published* = k + 1: it
  will, and readers may enter the call. Only a few instructions lie between the two.
- a reader's *asked* = k + 1 (the cursors' `consumed`): it waits for message k or has it. Taken back on a time-out.
- a reader's *entered* = k + 1: nothing keeps it from the call for message k. A collective may relay a message through
  readers, so a reader enters only after those before it.
- *runs*: from which message on which length and which readers hold, so that most messages need no words of their own.

MPI keeps a few small messages for readers that have not called yet: the *window*. Outside of it, and for every message
too large for it, all readers must have asked before the writer announces. Taking back is safe because the endpoint that
takes back makes all processes execute a memory barrier and then checks what its peers have stored (Dekker's algorithm;
the fast path pays nothing).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ipcbench.backend import PLAIN_TYPES, Message, Reader, Waits, Writer, bytes_of
from ipcbench.backends.mpi.links import MpiLink
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.cursors import (
    CLOSED,
    GONE,
    MAX_READERS,
    OPEN,
    PUBLISHED,
    READER_SLEEPS,
    WRITER_SLEEPS,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    consumed_word,
    cursors_bytes,
)
from ipcbench.sync.fences import sleeper_barrier
from ipcbench.sync.locks import is_held
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

MOST_AHEAD = 64
"""Upper bound of every window, in messages."""

_ANNOUNCED, _RUNS = 2, 3  # words of the writer's line that the cursors leave free
_STATE, _LEFT, _ENTERED = 1, 2, 3  # words of a reader's line, relative to its `consumed`
_LEAVING, _HAS_LEFT = 1, 2  # `_LEFT`: 0, then _LEAVING, then _HAS_LEFT + number of messages it takes part in
RUN_WORDS = 4
_START, _LENGTH, _ABSENT, _ALL_ASKED = range(RUN_WORDS)

_MOST_LOOKS = 100
"""How many times a waiting endpoint looks before it does anything else."""

_YIELDING_NS = 40_000
"""How long it then yields after each look, before it waits as `ipcbench.sync.wait` does. MPI itself waits like this, so
processes that share a core hand it over at once. Yielding for as long as the copy of a large message takes would halve
the rate of four processes on two cores: a process that only yields still competes with one that is copying."""

_LOOKS_PER_CLOCK = 16
_NOWHERE = memoryview(bytearray(cursors_bytes(MAX_READERS))).cast("Q")
"""Words of a closed endpoint."""
_LOOKS_PER_YIELD = 32
_CLOSE_S = 5.0
"""How long a reader that closes waits for earlier readers, so that it can relay published messages to later ones."""


def _yield_until(cursors: WriterCursors | ReaderCursors, ready: Callable[[], bool], deadline: int | None) -> bool:
    """Look for a short time, yielding before each look; return whether `ready()` became true."""
    if cursors.channel.wait != "auto":
        return False
    stop = now_ns() + _YIELDING_NS
    stop = stop if deadline is None else min(stop, deadline)
    while now_ns() < stop:
        for _ in range(_LOOKS_PER_CLOCK):
            os.sched_yield()
            if ready():
                cursors.waiter.begun_count += 1
                cursors.waiter.yielded_count += 1
                return True
    return False


class _MpiEndpoint(CursorsEndpoint):
    """What both endpoints have in common."""

    _release: Callable[[], None]

    def _drop(self) -> None:
        self._words = _NOWHERE
        self._release()


class MpiWriter(_MpiEndpoint, Writer):
    """Writer of an MPI channel: it publishes a message and enters the call that sends it.

    Args:
        cursors: the writer's cursors.
        runs: index of the first word of the runs, and the number of runs.
        link: makes the MPI calls.
        release: unmaps the words.
    """

    _cursors: WriterCursors

    def __init__(
        self, cursors: WriterCursors, runs: tuple[int, int], link: MpiLink, release: Callable[[], None]
    ) -> None:
        self._cursors, self._link, self._release = cursors, link, release
        self._words = words = cursors.words
        self._runs_at, self._run_slots = runs
        self._limit_bytes = cursors.channel.max_message_bytes
        self._fenced = cursors.fenced
        self._spins = cursors.waiter.looks[:_MOST_LOOKS]
        self._more_sleep_words = cursors.sleep_words[1:]
        self._left_words = [consumed_word(index) + _LEFT for index in range(cursors.channel.readers)]
        alone = consumed_word(0)
        self._slowest: Callable[[], int] = (lambda: words[alone]) if len(self._left_words) == 1 else cursors.slowest
        # A small message is announced only where a reader that leaves could keep it from other readers.
        self._announces = link.relays and len(self._left_words) > 1
        self._simple = not (self._announces or self._fenced or self._more_sleep_words)
        self._send = link.send
        self._prepare = link.prepare
        self._errors = link.errors
        self._sequence = self._room = self._window = self._runs = self._run_start = self._absent = 0
        self._length_bytes = -1
        self._regroups = False
        self.opened()

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        sequence, length_bytes, data = self._sequence, len(message), message
        if self._prepare is not None and self._link.small_bytes < length_bytes <= self._limit_bytes:
            data = self._prepare(message)
        if sequence >= self._room or length_bytes != self._length_bytes:
            self._admit(length_bytes, timeout_s)
        if self._simple:
            words = self._words
            words[PUBLISHED] = sequence + 1
            if words[READER_SLEEPS]:
                self._wake_readers(timeout_s)
        else:
            self._publish(timeout_s)
        self._sequence = sequence + 1
        try:
            self._send(data)
        except self._errors as error:
            raise TransportError(f"MPI could not send message {sequence}: {error}") from error

    def _publish(self, timeout_s: float | None) -> None:
        words, sequence = self._words, self._sequence
        if self._announces:
            self._announce(sequence + 1)
        else:
            self._cursors.store_published(PUBLISHED, sequence + 1)
        if words[READER_SLEEPS] or self._more_sleep_words:
            self._wake_readers(timeout_s)
        words[PUBLISHED] = sequence + 1

    def _announce(self, value: int) -> None:
        if self._fenced:
            self._cursors.store_published(_ANNOUNCED, value)
        else:
            self._words[_ANNOUNCED] = value

    def _admit(self, length_bytes: int, timeout_s: float | None) -> None:
        """Wait until the next message may be published; record the run that it begins, if it begins one."""
        if self._cursors.closed or self._regroups or length_bytes != self._length_bytes:
            self._begin_run(length_bytes)
        sequence, window, slowest = self._sequence, self._window, self._slowest
        deadline: int | None = None
        while True:
            asked = slowest() + window
            if asked <= sequence:
                for _ in self._spins:
                    asked = slowest() + window
                    if asked > sequence:
                        self._cursors.waiter.begun_count += 1
                        break
                else:
                    deadline = deadline or deadline_ns(timeout_s)
                    if not _yield_until(self._cursors, lambda: slowest() + window > sequence, deadline):
                        self._cursors.wait_until_consumed(sequence + 1 - window, remaining_s(deadline))
                    asked = slowest() + window
            if window:
                self._room = asked
                return
            self._room = sequence + 1
            self._announce(sequence + 1)
            if slowest() > sequence:  # no reader has taken it back
                if self._words[READER_SLEEPS] or self._more_sleep_words:
                    self._wake_readers(timeout_s)
                return
            self._words[_ANNOUNCED] = sequence

    def _begin_run(self, length_bytes: int) -> None:
        self._cursors.require_open()
        if length_bytes > self._limit_bytes:
            raise MessageTooLarge(length_bytes, self._limit_bytes)
        self._length_bytes, self._room = length_bytes, 0
        self._window = 0 if self._regroups or length_bytes > self._link.small_bytes else self._link.window
        self._send = self._send_regrouped if self._regroups else self._link.sender(length_bytes)
        if not self._runs or self._run_start != self._sequence:  # else its first message was never sent
            self._runs += 1
        self._run_start = self._sequence
        words, run = self._words, self._runs_at + RUN_WORDS * (self._runs % self._run_slots)
        words[run + _START], words[run + _LENGTH] = self._sequence, length_bytes
        words[run + _ABSENT], words[run + _ALL_ASKED] = self._absent, not self._window
        if self._fenced:
            self._cursors.fence()
        words[_RUNS] = self._runs

    def _wake_readers(self, timeout_s: float | None) -> None:
        """Ring sleeping readers. If a reader has left, continue without it from a message that is not yet published."""
        words, sequence = self._words, self._sequence
        self._cursors.ring_sleepers()
        absent = sum(1 << index for index, word in enumerate(self._left_words) if words[word])
        if absent == self._absent:
            return
        published = words[PUBLISHED] > sequence
        if not published:
            words[_ANNOUNCED] = sequence
        while any(words[word] == _LEAVING for word in self._left_words):
            os.sched_yield()
            self._cursors.check_peers()
        self._absent, self._regroups, self._room = absent, True, 0
        if not published:
            self._admit(self._length_bytes, timeout_s)

    def _send_regrouped(self, data: Any) -> None:
        self._link.leave_out(self._absent)
        send = self._link.sender(self._length_bytes)
        self._regroups, self._length_bytes = False, -1
        send(data)

    def close(self) -> None:
        if not self.closed:
            self._cursors.close()
            self._link.close(drained=True)
            self._drop()

    def _drop(self) -> None:
        super()._drop()
        self._room = 0


class MpiReader(_MpiEndpoint, Reader):
    """Reader of an MPI channel: it asks for a message, waits until the call for it is certain to return, and enters it.

    Its views are private memory. The arguments are those of `MpiWriter` and the reader's index.
    """

    _cursors: ReaderCursors

    def __init__(
        self, cursors: ReaderCursors, runs: tuple[int, int], link: MpiLink, release: Callable[[], None], index: int
    ) -> None:
        self._cursors, self._link, self._release, self._index = cursors, link, release, index
        self._words = cursors.words
        self._runs_at, self._run_slots = runs
        self._fenced = cursors.fenced
        self._spins = cursors.waiter.looks[:_MOST_LOOKS]
        self._asked_word = cursors.consumed_word
        self._entered_word = cursors.consumed_word + _ENTERED
        self._relays = link.relays and index < cursors.channel.readers - 1
        self._elders = [consumed_word(elder) for elder in range(index)] if link.relays else []
        self._elders_entered = [elder + _ENTERED for elder in self._elders]
        self._barrier = sleeper_barrier()[0]
        self._elders_waiter = Waiter(
            cursors.channel.wait,
            cursors.channel.readers + 1,
            doorbell=None,
            arm=lambda: None,
            disarm=lambda: None,
            check_peers=self._check_elders,
        )
        self._receive = link.receive
        self._errors = link.errors
        self._sequence = self._ready = self._run = self._absent = 0
        self._all_asked = 0
        self._memory = bytearray()
        self._view: memoryview | None = None
        self.opened()

    @property
    def waits(self) -> Waits:
        return self._cursors.waiter.waits + self._elders_waiter.waits

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        words[self._asked_word] = sequence + 1
        if sequence >= self._ready:
            self._await(timeout_s)
        if self._relays:
            words[self._entered_word] = sequence + 1
        self._sequence = sequence + 1
        view = self._view
        try:
            if view is None:
                return memoryview(self._receive(None, 0))
            self._receive(view, 0)
        except self._errors as error:
            raise TransportError(f"MPI could not receive message {sequence}: {error}") from error
        return view

    def _await(self, timeout_s: float | None) -> None:
        """Wait until the call for the next message may be entered; store up to which message calls may be entered."""
        words, sequence = self._words, self._sequence
        deadline = deadline_ns(timeout_s) if self._elders else None
        if self._fenced:
            self._cursors.fence()
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        published = words[PUBLISHED]
        if published <= sequence:
            for _ in self._spins:
                published = words[PUBLISHED]
                if published > sequence:
                    self._cursors.waiter.begun_count += 1
                    break
            else:
                published = self._wait(timeout_s)
        if self._fenced:
            self._cursors.fence()
        ready = published if words[_RUNS] == self._run else sequence
        if not self._all_asked:
            for entered_word in self._elders_entered:
                ready = min(ready, words[entered_word])
        self._ready = ready if ready > sequence else self._turn(published, deadline)

    def _wait(self, timeout_s: float | None) -> int:
        """Wait until the next message is published; return how many are. On failure, take back the request for it."""
        cursors, words, sequence = self._cursors, self._words, self._sequence
        cursors.require_open()
        deadline = deadline_ns(timeout_s)
        if _yield_until(cursors, lambda: words[PUBLISHED] > sequence, deadline):
            return words[PUBLISHED]
        try:
            while not self._is_coming(sequence):
                if not cursors.wait_until(
                    lambda: words[PUBLISHED] > sequence or words[_ANNOUNCED] > sequence, remaining_s(deadline)
                ):
                    raise EndOfStream(f"channel ended after {sequence} messages")
        except TransportError:
            words[self._asked_word] = sequence
            self._barrier()
            if not self._is_coming(sequence):
                raise
        return words[PUBLISHED]

    def _is_coming(self, sequence: int) -> bool:
        """Return whether message `sequence` is published; if it is only announced, wait for the writer's decision."""
        words = self._words
        while words[PUBLISHED] <= sequence:
            if words[_ANNOUNCED] <= sequence:
                return False
            for _ in range(_LOOKS_PER_YIELD):
                if words[PUBLISHED] > sequence:
                    return True
            os.sched_yield()
            self._cursors.check_peers()
        return True

    def _turn(self, published: int, deadline: int | None) -> int:
        """Find the run of the next message and prepare for it; return the first message number for which that no longer
        holds.
        """
        words, sequence = self._words, self._sequence
        runs, end = words[_RUNS], published
        while self._run < runs:
            start = words[self._run_at(self._run + 1) + _START]
            if start > sequence:
                end = min(end, start)
                break
            self._run += 1
        run = self._run_at(self._run)
        self._all_asked = words[run + _ALL_ASKED]
        if self._elders and not self._all_asked:
            end = min(end, self._await_elders(deadline))
        if words[run + _ABSENT] != self._absent:
            self._absent = words[run + _ABSENT]
            self._link.leave_out(self._absent)
        self._receive = self._link.receiver(words[run + _LENGTH])
        if not self._link.makes_objects:
            self._make_view(words[run + _LENGTH])
        return end

    def _run_at(self, number: int) -> int:
        return self._runs_at + RUN_WORDS * (number % self._run_slots)

    def _make_view(self, length_bytes: int) -> None:
        if len(self._memory) < length_bytes:
            most = self._cursors.channel.max_message_bytes
            self._memory = bytearray(min(most, max(length_bytes, 2 * len(self._memory))))
        self._view = memoryview(self._memory)[:length_bytes]

    def _await_elders(self, deadline: int | None) -> int:
        """Wait until all earlier readers have entered the call; return the number of messages that all of them have
        entered.
        """
        words, sequence = self._words, self._sequence

        def entered() -> int:
            return min([words[word] for word in self._elders_entered])

        def ready() -> bool:
            return entered() > sequence

        if not (_yield_until(self._cursors, ready, deadline) or self._wait_for_elders(ready, deadline)):
            raise TransportTimeout(
                f"message {sequence} of channel {self._cursors.channel.name!r} is relayed by another reader, which has "
                "not asked for it yet"
            )
        return entered()

    def _wait_for_elders(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        self._elders_waiter.begun_count += 1
        return self._elders_waiter.until(ready, deadline)

    def _check_elders(self) -> None:
        """Raise PeerLost if the writer, or a reader that should relay the next message, is gone."""
        self._cursors.check_peers()
        words, directory = self._words, self._cursors.directory
        for number, elder in enumerate(self._elders):
            died = words[elder + _STATE] == OPEN and not is_held(directory, f"reader-{number}")
            if (died or words[elder + _STATE] == CLOSED) and words[elder + _ENTERED] <= self._sequence:
                raise PeerLost(f"reader {number}, which relays message {self._sequence}, has exited")

    def close(self) -> None:
        if not self.closed:
            drained = self._leave()
            self._cursors.close()
            self._link.close(drained=drained)
            self._drop()

    def _drop(self) -> None:
        super()._drop()
        self._ready = 0

    def _leave(self) -> bool:
        """Receive everything that was published; return whether all was. The writer sends nothing more here."""
        words, left_word = self._words, self._asked_word + _LEFT
        words[left_word] = _LEAVING
        words.cast("B")[8 * READER_SLEEPS + self._index] = 1  # makes the writer look
        self._barrier()
        last = words[PUBLISHED]
        try:
            while self._is_coming(last):
                last = words[PUBLISHED]
        except PeerLost:
            last = words[PUBLISHED]
        words[left_word] = _HAS_LEFT + last
        younger = range(self._index + 1, self._cursors.channel.readers)
        needed = self._link.relays and any(words[consumed_word(index) + _LEFT] < _HAS_LEFT for index in younger)
        deadline = deadline_ns(_CLOSE_S if needed else 0.0)
        try:
            while self._sequence < last:
                self.read(remaining_s(deadline))
        except TransportError:
            return False
        words[self._entered_word] = GONE
        return True
