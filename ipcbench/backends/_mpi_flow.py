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
    OPEN,
    PUBLISHED,
    READER_SLEEPS,
    WRITER_SLEEPS,
    ReaderSide,
    WriterSide,
    consumed_word,
)
from ipcbench.clock import deadline_ns, remaining_s
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

_LOOKS_PER_YIELD = 32
_CLOSE_S = 5.0
"""How long a leaving reader waits for those before it, so that it can pass on what was published to those after it."""

_NOWHERE = memoryview(bytearray(8 * 128)).cast("Q")


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
        self._words = side.words
        self._runs_at, self._run_slots = runs
        self._fenced = side.fenced
        self._more_sleep_words = side.sleep_words[1:]
        self._left_words = [consumed_word(index) + _LEFT for index in range(side.channel.readers)]
        self._looks = side.first_looks
        self._send = link.send
        self._errors = link.errors
        self._sequence = self._room = self._runs = self._run_start = self._absent = 0
        self._length_bytes = -1

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        sequence = self._sequence
        if sequence >= self._room or len(message) != self._length_bytes:
            self._admit(len(message), timeout_s)
        words = self._words
        if self._fenced:
            self._side.store_published(_ANNOUNCED, sequence + 1)
        else:
            words[_ANNOUNCED] = sequence + 1
        if words[READER_SLEEPS] or (self._more_sleep_words and any(words[word] for word in self._more_sleep_words)):
            self._attend(len(message), timeout_s)
        words[PUBLISHED] = self._sequence = sequence + 1
        try:
            self._send(message, 0)
        except self._errors as error:
            raise TransportError(f"MPI could not send message {sequence}: {error}") from error

    def _admit(self, length_bytes: int, timeout_s: float | None) -> None:
        """Wait until the next message may be announced; note the run that it begins, if it begins one."""
        side, words, sequence = self._side, self._words, self._sequence
        side.require_open()
        if length_bytes > side.channel.max_message_bytes:
            raise MessageTooLarge(length_bytes, side.channel.max_message_bytes)
        regroups = self._send == self._send_regrouped
        window = 0 if regroups or length_bytes > self._link.small_bytes else self._link.window
        deadline = deadline_ns(timeout_s)
        while True:
            asked = self._await_asked(sequence + 1 - window, deadline)
            if regroups or length_bytes != self._length_bytes:
                self._begin_run(length_bytes, all_asked=not window)
            if window:
                self._room = asked + window
                return
            self._room = sequence + 1
            self._announce(sequence + 1)
            if side.slowest() > sequence:  # nobody has taken it back
                return
            words[_ANNOUNCED] = sequence

    def _announce(self, value: int) -> None:
        if self._fenced:
            self._side.store_published(_ANNOUNCED, value)
        else:
            self._words[_ANNOUNCED] = value

    def _await_asked(self, count: int, deadline: int | None) -> int:
        slowest = self._side.slowest
        for _ in range(self._looks):
            if (asked := slowest()) >= count:
                return asked
        try:
            return self._side.wait_until_consumed(count, remaining_s(deadline))
        except TransportTimeout as error:
            channel = self._side.channel
            raise TransportTimeout(
                f"no room in channel {channel.name!r} in time: a reader is as far behind as it may be; MPI holds "
                f"{self._link.window} messages of up to {self._link.small_bytes} bytes, and none that is larger"
            ) from error

    def _begin_run(self, length_bytes: int, *, all_asked: bool) -> None:
        words = self._words
        if not self._runs or self._run_start != self._sequence:  # else the message it was begun for was not sent
            self._runs += 1
        run = self._runs_at + RUN_WORDS * (self._runs % self._run_slots)
        self._length_bytes, self._run_start = length_bytes, self._sequence
        words[run + _START], words[run + _LENGTH] = self._sequence, length_bytes
        words[run + _ABSENT], words[run + _ALL_ASKED] = self._absent, all_asked
        if self._fenced:
            self._side.fence()
        words[_RUNS] = self._runs

    def _attend(self, length_bytes: int, timeout_s: float | None) -> None:
        """Ring the readers that sleep; take the announcement back while a reader leaves, then go on without it."""
        words, sequence = self._words, self._sequence
        while True:
            self._side.ring_sleepers()
            absent = sum(1 << index for index, word in enumerate(self._left_words) if words[word])
            if absent == self._absent:
                return
            words[_ANNOUNCED] = sequence
            self._room = 0
            while any(words[word] == _LEAVING for word in self._left_words):
                os.sched_yield()
                self._side.check_peers()
            self._absent = absent
            self._send = self._send_regrouped
            self._admit(length_bytes, timeout_s)
            self._announce(sequence + 1)

    def _send_regrouped(self, message: Message, root: int) -> None:
        self._link.leave_out(self._absent)
        self._send = self._link.send
        self._length_bytes = -1
        self._send(message, root)

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
        self._consumed_word = side.consumed_word
        self._entered_word = side.consumed_word + _ENTERED
        self._elders = [consumed_word(elder) for elder in range(index)] if link.relays else []
        self._barrier = sleeper_barrier()[0]
        self._fenced = side.fenced
        self._elders_waiter = Waiter(
            side.channel.wait,
            side.channel.readers + 1,
            doorbell=None,
            arm=lambda: None,
            disarm=lambda: None,
            check_peers=self._check_elders,
        )
        self._looks = side.first_looks
        self._receive = link.receive
        self._errors = link.errors
        self._sequence = self._ready = self._run = self._absent = 0
        self._memory = bytearray()
        self._view: memoryview | None = None

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        if sequence >= self._ready:
            self._await(timeout_s)
        words = self._words
        words[self._consumed_word] = words[self._entered_word] = self._sequence = sequence + 1
        if self._fenced:
            self._side.fence()
        if words[WRITER_SLEEPS]:
            self._side.ring_writer()
        view = self._view
        try:
            if view is None:
                return memoryview(self._receive(None, 0))
            self._receive(view, 0)
        except self._errors as error:
            raise TransportError(f"MPI could not receive message {sequence}: {error}") from error
        return view[:]

    def _await(self, timeout_s: float | None) -> None:
        """Wait until the call for the next message may be entered; find its length, and how far all that holds."""
        side, words, sequence = self._side, self._words, self._sequence
        side.require_open()
        deadline = deadline_ns(timeout_s)
        if words[PUBLISHED] <= sequence:
            self._ask(deadline)
        published = words[PUBLISHED]
        if self._fenced:
            side.fence()
        runs = words[_RUNS]
        while self._run < runs and words[self._run_at(self._run + 1) + _START] <= sequence:
            self._run += 1
        run = self._run_at(self._run)
        end = words[self._run_at(self._run + 1) + _START] if self._run < runs else published
        entered = published if words[run + _ALL_ASKED] else self._await_elders(deadline)
        if words[run + _ABSENT] != self._absent:
            self._absent = words[run + _ABSENT]
            self._link.leave_out(self._absent)
            self._receive = self._link.receive
        self._make_view(words[run + _LENGTH])
        self._ready = min(published, end, entered)

    def _run_at(self, number: int) -> int:
        return self._runs_at + RUN_WORDS * (number % self._run_slots)

    def _make_view(self, length_bytes: int) -> None:
        if self._link.makes_objects or (self._view is not None and len(self._view) == length_bytes):
            return
        if len(self._memory) < length_bytes:
            most = self._side.channel.max_message_bytes
            self._memory = bytearray(min(most, max(length_bytes, 2 * len(self._memory))))
        self._view = memoryview(self._memory)[:length_bytes]

    def _ask(self, deadline: int | None) -> None:
        """Ask for the next message and wait until it is published."""
        side, words, sequence = self._side, self._words, self._sequence
        side.done_with(sequence + 1)
        for _ in range(self._looks):
            if words[PUBLISHED] > sequence:
                return
        try:
            while True:
                if not side.wait_until(lambda: words[_ANNOUNCED] > sequence, remaining_s(deadline)):
                    raise EndOfStream(f"channel ended after {sequence} messages")
                if self._comes(sequence):
                    return
        except TransportError:
            words[self._consumed_word] = sequence
            self._barrier()
            if not self._comes(sequence):
                raise

    def _comes(self, sequence: int) -> bool:
        """Return whether message `sequence` is published; wait for the writer's decision if it is only announced."""
        words = self._words
        while words[_ANNOUNCED] > sequence:
            for _ in range(_LOOKS_PER_YIELD):
                if words[PUBLISHED] > sequence:
                    return True
            os.sched_yield()
            self._side.check_peers()
        return False

    def _await_elders(self, deadline: int | None) -> int:
        """Wait until all readers before this one are in the call; return the number of messages that is true of."""
        words, sequence = self._words, self._sequence
        if not self._elders:
            return GONE

        def entered() -> int:
            return min([words[elder + _ENTERED] for elder in self._elders])

        if not self._elders_waiter.until(lambda: entered() > sequence, deadline):
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
        words, left_word = self._words, self._consumed_word + _LEFT
        words[left_word] = _LEAVING
        words.cast("B")[8 * READER_SLEEPS + self._index] = 1  # makes the writer look
        self._barrier()
        last = words[PUBLISHED]
        younger = range(self._index + 1, self._side.channel.readers)
        try:
            while self._comes(last):
                last = words[PUBLISHED]
        except PeerLost:
            younger = range(0)
        words[left_word] = _HAS_LEFT + last
        passes_on = self._link.relays and any(words[consumed_word(index) + _LEFT] < _HAS_LEFT for index in younger)
        deadline = deadline_ns(_CLOSE_S if passes_on else 0.0)
        try:
            while self._sequence < last:
                self.read(remaining_s(deadline))
        except TransportError:
            return False
        words[self._entered_word] = GONE
        return True
