"""When an endpoint of an MPI channel may enter the MPI call, so that the call is certain to return.

What does not live here: MPI. The calls that move the messages are in ipcbench/backends/_mpi.py.

A blocking collective has no time-out. So the endpoints first agree, in shared words that carry no data, that all will take
part; waiting for that has a deadline. Besides the words of ipcbench/board.py there are, for message k (from 0):

- *announced* = k + 1: the writer means to send message k, unless it takes that back. Then *published* = k + 1: it does, and
  who reads may enter the call. Only a few instructions lie between the two.
- a reader's *asked* = k + 1 (the board's `consumed`): it waits for message k or has got it. Taken back on a time-out.
- a reader's *entered* = k + 1: nothing keeps it from the call for message k. A collective may reach a reader by way of
  another one, so a reader enters only after those before it.
- *runs*: from which message on which length and which readers hold; so most messages need no word of their own.

MPI keeps a few small messages for readers that have not called yet: the *window*. Outside of it, and for every message too
large for that, all readers must have asked before the writer announces. Taking back is safe because who takes back makes all
processes pass a memory barrier and then looks at what the other side has said (Dekker's handshake; the hot side pays nothing).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ipcbench.backend import Message, Reader, Writer
from ipcbench.board import (
    CLOSED,
    GONE,
    MAX_READERS,
    OPEN,
    PUBLISHED,
    READER_SLEEPS,
    WRITER_SLEEPS,
    ReaderSide,
    WriterSide,
    board_bytes,
    consumed_word,
)
from ipcbench.clock import deadline_ns, now_ns, remaining_s
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.memory_order import sleeper_barrier
from ipcbench.seats import channel_directory, is_held
from ipcbench.wait import Waiter

MOST_AHEAD = 64
"""No window is larger, in messages."""

_ANNOUNCED, _RUNS = 2, 3  # words of the writer's line that the board leaves to its users
_STATE, _LEFT, _ENTERED = 1, 2, 3  # words of a reader's line, relative to its `consumed`
_LEAVING, _HAS_LEFT = 1, 2  # `_LEFT`: 0, then _LEAVING, then _HAS_LEFT + number of messages it takes part in
RUN_WORDS = 4
_START, _LENGTH, _ABSENT, _ALL_ASKED = range(RUN_WORDS)

_MOST_LOOKS = 100
_OFFERING_NS = 200_000
"""How long a waiting endpoint looks without anything else, and how long it then offers its core to others after each look,
before it waits in the way of ipcbench/wait.py: much as MPI itself waits, so that channels whose processes share a core
pass it on at once."""

_LOOKS_PER_CLOCK = 16
_LOOKS_PER_YIELD = 32
_CLOSE_S = 5.0
"""How long a leaving reader waits for those before it, so that it can pass on what was published to those after it."""

_NOWHERE = memoryview(bytearray(board_bytes(MAX_READERS))).cast("Q")
"""What a closed endpoint looks at."""


class Link(ABC):
    """The MPI side of one endpoint: the named call, on the channel's own communicator; the writer is its rank 0."""

    window: int
    """How many small messages MPI keeps for a reader that has not called; at most `MOST_AHEAD`."""
    small_bytes: int
    """What counts as small."""
    relays: bool
    """True if a message may reach a reader by way of other readers."""
    makes_objects: bool
    """True if `receive` returns the message; False if it fills the buffer that it is given."""
    errors: type[Exception]
    """What the calls raise."""
    send: Callable[[Any, int], Any]
    """Send a message; the second argument is 0."""
    receive: Callable[[Any, int], Any]
    """Receive into a buffer, or an object if the first argument is None; the second argument is 0."""

    @abstractmethod
    def leave_out(self, absent: int) -> None:
        """Go on without the readers whose bits are set in `absent`; all others do the same now."""

    @abstractmethod
    def close(self, *, drained: bool) -> None:
        """Release the communicator, if all that was sent over it has been received here."""


class MpiWriter(Writer):
    """Writer of a channel whose readers see the same words.

    Args:
        side: its hold on the board.
        runs: index of the first word of the runs, and how many there are.
        link: what sends.
        release: gives back the memory of the words.
    """

    def __init__(self, side: WriterSide, runs: tuple[int, int], link: Link, release: Callable[[], None]) -> None:
        self._side, self._link, self._release = side, link, release
        self._words = words = side.words
        self._runs_at, self._run_slots = runs
        self._limit_bytes = side.channel.max_message_bytes
        self._fenced = side.fenced
        self._spins = range(min(_MOST_LOOKS, side.first_looks))
        self._more_sleep_words = side.sleep_words[1:]
        self._left_words = [consumed_word(index) + _LEFT for index in range(side.channel.readers)]
        alone = consumed_word(0)
        self._slowest = (lambda: words[alone]) if len(self._left_words) == 1 else side.slowest
        # A small message need not be announced where a reader that leaves keeps it from nobody else.
        self._announces = link.relays and len(self._left_words) > 1
        self._simple = not (self._announces or self._fenced or self._more_sleep_words)
        self._send = link.send
        self._errors = link.errors
        self._sequence = self._room = self._window = self._runs = self._run_start = self._absent = 0
        self._length_bytes = -1
        self._regroups = False

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        sequence = self._sequence
        if sequence >= self._room or len(message) != self._length_bytes:
            self._admit(len(message), timeout_s)
        if self._simple:
            words = self._words
            words[PUBLISHED] = sequence + 1
            if words[READER_SLEEPS]:
                self._attend(timeout_s)
        else:
            self._publish(timeout_s)
        self._sequence = sequence + 1
        try:
            self._send(message)
        except self._errors as error:
            raise TransportError(f"MPI could not send message {sequence}: {error}") from error

    def _publish(self, timeout_s: float | None) -> None:
        words, sequence = self._words, self._sequence
        if self._announces:
            self._announce(sequence + 1)
        else:
            self._side.store_published(PUBLISHED, sequence + 1)
        if words[READER_SLEEPS] or self._more_sleep_words:
            self._attend(timeout_s)
        words[PUBLISHED] = sequence + 1

    def _announce(self, value: int) -> None:
        if self._fenced:
            self._side.store_published(_ANNOUNCED, value)
        else:
            self._words[_ANNOUNCED] = value

    def _admit(self, length_bytes: int, timeout_s: float | None) -> None:
        """Wait until the next message may be published; note the run that it begins, if it begins one."""
        if self._side.closed or self._regroups or length_bytes != self._length_bytes:
            self._begin_run(length_bytes)
        sequence, window, slowest = self._sequence, self._window, self._slowest
        deadline: int | None = None
        while True:
            asked = slowest() + window
            if asked <= sequence:
                for _ in self._spins:
                    asked = slowest() + window
                    if asked > sequence:
                        break
                else:
                    deadline = deadline or deadline_ns(timeout_s)
                    if not _offer_core(self._side, lambda: slowest() + window > sequence, deadline):
                        self._side.wait_until_consumed(sequence + 1 - window, remaining_s(deadline))
                    asked = slowest() + window
            if window:
                self._room = asked
                return
            self._room = sequence + 1
            self._announce(sequence + 1)
            if slowest() > sequence:  # nobody has taken it back
                if self._words[READER_SLEEPS] or self._more_sleep_words:
                    self._attend(timeout_s)
                return
            self._words[_ANNOUNCED] = sequence

    def _begin_run(self, length_bytes: int) -> None:
        self._side.require_open()
        if length_bytes > self._limit_bytes:
            raise MessageTooLarge(length_bytes, self._limit_bytes)
        self._length_bytes, self._room = length_bytes, 0
        self._window = 0 if self._regroups or length_bytes > self._link.small_bytes else self._link.window
        if self._regroups:
            self._send = self._send_regrouped
        if not self._runs or self._run_start != self._sequence:  # else the message that it began with was never sent
            self._runs += 1
        self._run_start = self._sequence
        words, run = self._words, self._runs_at + RUN_WORDS * (self._runs % self._run_slots)
        words[run + _START], words[run + _LENGTH] = self._sequence, length_bytes
        words[run + _ABSENT], words[run + _ALL_ASKED] = self._absent, not self._window
        if self._fenced:
            self._side.fence()
        words[_RUNS] = self._runs

    def _attend(self, timeout_s: float | None) -> None:
        """Ring the readers that sleep. If one has left, go on without it, from a message on that is not published yet."""
        words, sequence = self._words, self._sequence
        self._side.ring_sleepers()
        absent = sum(1 << index for index, word in enumerate(self._left_words) if words[word])
        if absent == self._absent:
            return
        published = words[PUBLISHED] > sequence
        if not published:
            words[_ANNOUNCED] = sequence
        while any(words[word] == _LEAVING for word in self._left_words):
            os.sched_yield()
            self._side.check_peers()
        self._absent, self._regroups, self._room = absent, True, 0
        if not published:
            self._admit(self._length_bytes, timeout_s)

    def _send_regrouped(self, message: Message) -> None:
        self._link.leave_out(self._absent)
        self._send, self._regroups, self._length_bytes = self._link.send, False, -1
        self._send(message)

    def close(self) -> None:
        if not self._side.closed:
            self._side.close()
            self._words, self._room = _NOWHERE, 0
            self._link.close(drained=True)
            self._release()


class MpiReader(Reader):
    """Reader of such a channel; its views are private memory. Arguments as of `MpiWriter`, and which reader it is."""

    def __init__(
        self, side: ReaderSide, runs: tuple[int, int], link: Link, release: Callable[[], None], index: int
    ) -> None:
        self._side, self._link, self._release, self._index = side, link, release, index
        self._words = side.words
        self._runs_at, self._run_slots = runs
        self._fenced = side.fenced
        self._spins = range(min(_MOST_LOOKS, side.first_looks))
        self._asked_word = side.consumed_word
        self._entered_word = side.consumed_word + _ENTERED
        self._passes_on = link.relays and index < side.channel.readers - 1
        self._elders = [consumed_word(elder) for elder in range(index)] if link.relays else []
        self._barrier = sleeper_barrier()[0]
        self._elders_waiter = Waiter(
            side.channel.wait,
            side.channel.readers + 1,
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

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        words[self._asked_word] = sequence + 1
        if sequence >= self._ready:
            self._await(timeout_s)
        if self._passes_on:
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
        """Wait until the call for the next message may be entered; find how far no further look is needed."""
        words, sequence = self._words, self._sequence
        deadline = deadline_ns(timeout_s) if self._elders else None
        if self._fenced:
            self._side.fence()
        if words[WRITER_SLEEPS]:
            self._side.ring_writer()
        published = words[PUBLISHED]
        if published <= sequence:
            for _ in self._spins:
                published = words[PUBLISHED]
                if published > sequence:
                    break
            else:
                published = self._wait(timeout_s)
        if self._fenced:
            self._side.fence()
        if words[_RUNS] == self._run and (self._all_asked or not self._elders):
            self._ready = published
        else:
            self._ready = self._turn(published, deadline)

    def _wait(self, timeout_s: float | None) -> int:
        """Wait until the next message is published; return how many are. If that fails, take back the question for it."""
        side, words, sequence = self._side, self._words, self._sequence
        side.require_open()
        deadline = deadline_ns(timeout_s)
        if _offer_core(side, lambda: words[PUBLISHED] > sequence, deadline):
            return words[PUBLISHED]
        try:
            while not self._comes(sequence):
                if not side.wait_until(
                    lambda: words[PUBLISHED] > sequence or words[_ANNOUNCED] > sequence, remaining_s(deadline)
                ):
                    raise EndOfStream(f"channel ended after {sequence} messages")
        except TransportError:
            words[self._asked_word] = sequence
            self._barrier()
            if not self._comes(sequence):
                raise
        return words[PUBLISHED]

    def _comes(self, sequence: int) -> bool:
        """Return whether message `sequence` is published; wait for the writer's decision if it is only announced."""
        words = self._words
        while words[PUBLISHED] <= sequence:
            if words[_ANNOUNCED] <= sequence:
                return False
            for _ in range(_LOOKS_PER_YIELD):
                if words[PUBLISHED] > sequence:
                    return True
            os.sched_yield()
            self._side.check_peers()
        return True

    def _turn(self, published: int, deadline: int | None) -> int:
        """Find the run of the next message and make ready for it; return up to which message that holds."""
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
            self._receive = self._link.receive
        if not self._link.makes_objects:
            self._make_view(words[run + _LENGTH])
        return end

    def _run_at(self, number: int) -> int:
        return self._runs_at + RUN_WORDS * (number % self._run_slots)

    def _make_view(self, length_bytes: int) -> None:
        if len(self._memory) < length_bytes:
            most = self._side.channel.max_message_bytes
            self._memory = bytearray(min(most, max(length_bytes, 2 * len(self._memory))))
        self._view = memoryview(self._memory)[:length_bytes]

    def _await_elders(self, deadline: int | None) -> int:
        """Wait until all readers before this one are in the call; return the number of messages that is true of."""
        words, sequence = self._words, self._sequence

        def entered() -> int:
            return min([words[elder + _ENTERED] for elder in self._elders])

        def ready() -> bool:
            return entered() > sequence

        if not (_offer_core(self._side, ready, deadline) or self._elders_waiter.until(ready, deadline)):
            raise TransportTimeout(
                f"message {sequence} of channel {self._side.channel.name!r} comes by way of another reader, which has "
                "not asked for it yet"
            )
        return entered()

    def _check_elders(self) -> None:
        """Raise PeerLost if the writer, or a reader that should pass the next message on, is gone."""
        self._side.check_peers()
        words, directory = self._words, channel_directory(self._side.channel.name)
        for number, elder in enumerate(self._elders):
            died = words[elder + _STATE] == OPEN and not is_held(directory, f"reader-{number}")
            if (died or words[elder + _STATE] == CLOSED) and words[elder + _ENTERED] <= self._sequence:
                raise PeerLost(f"reader {number}, by way of which message {self._sequence} comes, is gone")

    def close(self) -> None:
        if not self._side.closed:
            drained = self._leave()
            self._side.close()
            self._words, self._ready = _NOWHERE, 0
            self._link.close(drained=drained)
            self._release()

    def _leave(self) -> bool:
        """Take part in what was published; return whether that is all done. The writer sends nothing more here then."""
        words, left_word = self._words, self._asked_word + _LEFT
        words[left_word] = _LEAVING
        words.cast("B")[8 * READER_SLEEPS + self._index] = 1  # makes the writer look
        self._barrier()
        last = words[PUBLISHED]
        try:
            while self._comes(last):
                last = words[PUBLISHED]
        except PeerLost:
            last = words[PUBLISHED]
        words[left_word] = _HAS_LEFT + last
        younger = range(self._index + 1, self._side.channel.readers)
        needed = self._link.relays and any(words[consumed_word(index) + _LEFT] < _HAS_LEFT for index in younger)
        deadline = deadline_ns(_CLOSE_S if needed else 0.0)
        try:
            while self._sequence < last:
                self.read(remaining_s(deadline))
        except TransportError:
            return False
        words[self._entered_word] = GONE
        return True


def _offer_core(side: WriterSide | ReaderSide, ready: Callable[[], bool], deadline: int | None) -> bool:
    """Look again and again, but let others run in between, for a short time; return whether it became true."""
    if side.channel.wait != "auto":
        return False
    stop = now_ns() + _OFFERING_NS
    stop = stop if deadline is None else min(stop, deadline)
    while now_ns() < stop:
        for _ in range(_LOOKS_PER_CLOCK):
            os.sched_yield()
            if ready():
                return True
    return False
