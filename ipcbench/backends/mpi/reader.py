"""A reader of an MPI channel: it asks for a message, waits until the call for it must return, and enters it."""

from __future__ import annotations

import os
from collections.abc import Callable

from ipcbench.backend import Reader
from ipcbench.backends.mpi.flow import (
    ABSENT,
    ALL_ASKED,
    ANNOUNCED,
    ENTERED,
    HAS_LEFT,
    LEAVING,
    LEFT,
    LENGTH,
    MOST_LOOKS,
    NOWHERE,
    RUN_WORDS,
    RUNS,
    START,
    STATE,
    Link,
    offer_core,
)
from ipcbench.errors import EndOfStream, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.cursors import (
    CLOSED,
    GONE,
    OPEN,
    PUBLISHED,
    READER_SLEEPS,
    WRITER_SLEEPS,
    ReaderCursors,
    consumed_word,
)
from ipcbench.sync.fences import sleeper_barrier
from ipcbench.sync.locks import channel_directory, is_held
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns, remaining_s

_LOOKS_PER_YIELD = 32
_CLOSE_S = 5.0
"""How long a leaving reader waits for those before it, so that it can pass on what was published to those after it."""


class MpiReader(Reader):
    """Reader of such a channel; its views are private memory. Arguments as of `MpiWriter`, and which reader it is."""

    def __init__(
        self, cursors: ReaderCursors, runs: tuple[int, int], link: Link, release: Callable[[], None], index: int
    ) -> None:
        self._cursors, self._link, self._release, self._index = cursors, link, release, index
        self._words = cursors.words
        self._runs_at, self._run_slots = runs
        self._fenced = cursors.fenced
        self._spins = range(min(MOST_LOOKS, cursors.first_looks))
        self._asked_word = cursors.consumed_word
        self._entered_word = cursors.consumed_word + ENTERED
        self._passes_on = link.relays and index < cursors.channel.readers - 1
        self._elders = [consumed_word(elder) for elder in range(index)] if link.relays else []
        self._elders_entered = [elder + ENTERED for elder in self._elders]
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
            self._cursors.fence()
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        published = words[PUBLISHED]
        if published <= sequence:
            for _ in self._spins:
                published = words[PUBLISHED]
                if published > sequence:
                    break
            else:
                published = self._wait(timeout_s)
        if self._fenced:
            self._cursors.fence()
        ready = published if words[RUNS] == self._run else sequence
        if not self._all_asked:
            for entered_word in self._elders_entered:
                ready = min(ready, words[entered_word])
        self._ready = ready if ready > sequence else self._turn(published, deadline)

    def _wait(self, timeout_s: float | None) -> int:
        """Wait until the next message is published; return how many are. If that fails, take back having asked."""
        cursors, words, sequence = self._cursors, self._words, self._sequence
        cursors.require_open()
        deadline = deadline_ns(timeout_s)
        if offer_core(cursors, lambda: words[PUBLISHED] > sequence, deadline):
            return words[PUBLISHED]
        try:
            while not self._comes(sequence):
                if not cursors.wait_until(
                    lambda: words[PUBLISHED] > sequence or words[ANNOUNCED] > sequence, remaining_s(deadline)
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
            if words[ANNOUNCED] <= sequence:
                return False
            for _ in range(_LOOKS_PER_YIELD):
                if words[PUBLISHED] > sequence:
                    return True
            os.sched_yield()
            self._cursors.check_peers()
        return True

    def _turn(self, published: int, deadline: int | None) -> int:
        """Find the run of the next message and make ready for it; return up to which message that holds."""
        words, sequence = self._words, self._sequence
        runs, end = words[RUNS], published
        while self._run < runs:
            start = words[self._run_at(self._run + 1) + START]
            if start > sequence:
                end = min(end, start)
                break
            self._run += 1
        run = self._run_at(self._run)
        self._all_asked = words[run + ALL_ASKED]
        if self._elders and not self._all_asked:
            end = min(end, self._await_elders(deadline))
        if words[run + ABSENT] != self._absent:
            self._absent = words[run + ABSENT]
            self._link.leave_out(self._absent)
            self._receive = self._link.receive
        if not self._link.makes_objects:
            self._make_view(words[run + LENGTH])
        return end

    def _run_at(self, number: int) -> int:
        return self._runs_at + RUN_WORDS * (number % self._run_slots)

    def _make_view(self, length_bytes: int) -> None:
        if len(self._memory) < length_bytes:
            most = self._cursors.channel.max_message_bytes
            self._memory = bytearray(min(most, max(length_bytes, 2 * len(self._memory))))
        self._view = memoryview(self._memory)[:length_bytes]

    def _await_elders(self, deadline: int | None) -> int:
        """Wait until all readers before this one are in the call; return the number of messages that is true of."""
        words, sequence = self._words, self._sequence

        def entered() -> int:
            return min([words[word] for word in self._elders_entered])

        def ready() -> bool:
            return entered() > sequence

        if not (offer_core(self._cursors, ready, deadline) or self._elders_waiter.until(ready, deadline)):
            raise TransportTimeout(
                f"message {sequence} of channel {self._cursors.channel.name!r} comes by way of another reader, which "
                "has not asked for it yet"
            )
        return entered()

    def _check_elders(self) -> None:
        """Raise PeerLost if the writer, or a reader that should pass the next message on, is gone."""
        self._cursors.check_peers()
        words, directory = self._words, channel_directory(self._cursors.channel.name)
        for number, elder in enumerate(self._elders):
            died = words[elder + STATE] == OPEN and not is_held(directory, f"reader-{number}")
            if (died or words[elder + STATE] == CLOSED) and words[elder + ENTERED] <= self._sequence:
                raise PeerLost(f"reader {number}, by way of which message {self._sequence} comes, is gone")

    def close(self) -> None:
        if not self._cursors.closed:
            drained = self._leave()
            self._cursors.close()
            self._words, self._ready = NOWHERE, 0
            self._link.close(drained=drained)
            self._release()

    def _leave(self) -> bool:
        """Take part in what was published; return whether that is all done. The writer sends nothing more here then."""
        words, left_word = self._words, self._asked_word + LEFT
        words[left_word] = LEAVING
        words.cast("B")[8 * READER_SLEEPS + self._index] = 1  # makes the writer look
        self._barrier()
        last = words[PUBLISHED]
        try:
            while self._comes(last):
                last = words[PUBLISHED]
        except PeerLost:
            last = words[PUBLISHED]
        words[left_word] = HAS_LEFT + last
        younger = range(self._index + 1, self._cursors.channel.readers)
        needed = self._link.relays and any(words[consumed_word(index) + LEFT] < HAS_LEFT for index in younger)
        deadline = deadline_ns(_CLOSE_S if needed else 0.0)
        try:
            while self._sequence < last:
                self.read(remaining_s(deadline))
        except TransportError:
            return False
        words[self._entered_word] = GONE
        return True
