"""The writer of an MPI channel: it publishes a message and enters the call that sends it."""

from __future__ import annotations

import os
from collections.abc import Callable

from ipcbench.backend import Message, Writer
from ipcbench.backends.mpi.flow import (
    ABSENT,
    ALL_ASKED,
    ANNOUNCED,
    LEAVING,
    LEFT,
    LENGTH,
    MOST_LOOKS,
    NOWHERE,
    RUN_WORDS,
    RUNS,
    START,
    Link,
    offer_core,
)
from ipcbench.errors import MessageTooLarge, TransportError
from ipcbench.sync.cursors import PUBLISHED, READER_SLEEPS, WriterCursors, consumed_word
from ipcbench.util.clock import deadline_ns, remaining_s


class MpiWriter(Writer):
    """Writer of a channel whose readers see the same words.

    Args:
        cursors: its hold on the board.
        runs: index of the first word of the runs, and how many there are.
        link: what sends.
        release: gives back the memory of the words.
    """

    def __init__(self, cursors: WriterCursors, runs: tuple[int, int], link: Link, release: Callable[[], None]) -> None:
        self._cursors, self._link, self._release = cursors, link, release
        self._words = words = cursors.words
        self._runs_at, self._run_slots = runs
        self._limit_bytes = cursors.channel.max_message_bytes
        self._fenced = cursors.fenced
        self._spins = range(min(MOST_LOOKS, cursors.first_looks))
        self._more_sleep_words = cursors.sleep_words[1:]
        self._left_words = [consumed_word(index) + LEFT for index in range(cursors.channel.readers)]
        alone = consumed_word(0)
        self._slowest: Callable[[], int] = (lambda: words[alone]) if len(self._left_words) == 1 else cursors.slowest
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
            self._cursors.store_published(PUBLISHED, sequence + 1)
        if words[READER_SLEEPS] or self._more_sleep_words:
            self._attend(timeout_s)
        words[PUBLISHED] = sequence + 1

    def _announce(self, value: int) -> None:
        if self._fenced:
            self._cursors.store_published(ANNOUNCED, value)
        else:
            self._words[ANNOUNCED] = value

    def _admit(self, length_bytes: int, timeout_s: float | None) -> None:
        """Wait until the next message may be published; note the run that it begins, if it begins one."""
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
                        break
                else:
                    deadline = deadline or deadline_ns(timeout_s)
                    if not offer_core(self._cursors, lambda: slowest() + window > sequence, deadline):
                        self._cursors.wait_until_consumed(sequence + 1 - window, remaining_s(deadline))
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
            self._words[ANNOUNCED] = sequence

    def _begin_run(self, length_bytes: int) -> None:
        self._cursors.require_open()
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
        words[run + START], words[run + LENGTH] = self._sequence, length_bytes
        words[run + ABSENT], words[run + ALL_ASKED] = self._absent, not self._window
        if self._fenced:
            self._cursors.fence()
        words[RUNS] = self._runs

    def _attend(self, timeout_s: float | None) -> None:
        """Ring the readers that sleep. If one has left, go on without it from a message that is not published yet."""
        words, sequence = self._words, self._sequence
        self._cursors.ring_sleepers()
        absent = sum(1 << index for index, word in enumerate(self._left_words) if words[word])
        if absent == self._absent:
            return
        published = words[PUBLISHED] > sequence
        if not published:
            words[ANNOUNCED] = sequence
        while any(words[word] == LEAVING for word in self._left_words):
            os.sched_yield()
            self._cursors.check_peers()
        self._absent, self._regroups, self._room = absent, True, 0
        if not published:
            self._admit(self._length_bytes, timeout_s)

    def _send_regrouped(self, message: Message) -> None:
        self._link.leave_out(self._absent)
        self._send, self._regroups, self._length_bytes = self._link.send, False, -1
        self._send(message)

    def close(self) -> None:
        if not self._cursors.closed:
            self._cursors.close()
            self._words, self._room = NOWHERE, 0
            self._link.close(drained=True)
            self._release()
