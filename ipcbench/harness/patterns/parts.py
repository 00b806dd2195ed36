"""What the endpoints of a queue or fan-in do: writers offer messages when they are told, readers take what comes."""

from __future__ import annotations

import mmap
import os
import signal
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipcbench.backend import Reader, Writer
from ipcbench.errors import EndOfStream, TransportTimeout
from ipcbench.harness.loops import (
    HASH_EVERY,
    WriteBatch,
    looking,
    set_phase,
    write_batches,
    write_batches_paced,
)
from ipcbench.harness.plan import Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Usage
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import (
    Outgoing,
    Phase,
    body_matches,
    is_whole,
    message_bytes,
    unpack_stamp,
)

LEAD_RATIO = 1 / 3
"""Flat out, writers write for this share of a window before it, so that it begins with full channels."""

DIES_AT = 8
"""The worker that is to be killed dies while it works on this message of the window."""

_IDLE_S = 600.0
"""Longest time without a message, while other backends are measured."""
_WORD_BYTES = 8
_TASKS_OF_VICTIM = 2**20


@dataclass(frozen=True, slots=True)
class Offered:
    """What a writer says of one window."""

    first: int
    """Number of the window's first message; the next one of this writer has this plus the number of writers."""
    count: int
    begin_ns: int
    """When the window began for this writer: as planned, or when it learned of it later."""
    end_ns: int
    """After the last write."""


class Offering:
    """A writer of a queue or fan-in. Its messages are numbered index, index + writers, index + 2 · writers …

    Args:
        writer: the endpoint.
        index: its number among the writers.
        payloads: one or two contents, sent in turns.
        plan: the trial.
    """

    def __init__(self, writer: Writer, index: int, payloads: Sequence[bytes], plan: Plan) -> None:
        self._writer = writer
        self._index, self._step = index, plan.trial.writers
        self._batch = plan.trial.batch
        self._stall_s = plan.stall_s
        self._drains = plan.trial.pattern == "queue" and hasattr(writer, "drain")
        count = len(payloads) * self._batch
        self._messages = [Outgoing(payloads[place % len(payloads)]) for place in range(count)]
        self._sent_count = 0
        self._meter = UsageMeter([writer])

    def offer(self, begin_ns: int, window_ns: int, rate_per_s: float, phase: Phase) -> Offered:
        """Write for `window_ns`, at this writer's rate, or flat out if it is 0; of a queue, wait until all is finished.

        Args:
            begin_ns: when the window begins, on the clock that all writers share; one that learns of it later begins
                at once.
            window_ns: for how long; flat out, who begins later ends with the others.
            rate_per_s: messages per second of this writer.
            phase: which the messages belong to.

        Raises:
            TransportError: as of the endpoint.
        """
        own_begin_ns = max(begin_ns, now_ns())
        set_phase(self._messages, Phase.WARMUP)
        if not rate_per_s:
            self._flat_out(begin_ns)
        set_phase(self._messages, phase)
        first, before = self._next_number, self._sent_count
        self._meter.start()
        if rate_per_s:
            self._paced(own_begin_ns, window_ns, 1e9 / rate_per_s)
        else:
            self._flat_out(begin_ns + window_ns)
        end_ns = now_ns()
        self._meter.stop()
        if self._drains:
            self._writer.drain(self._stall_s)  # type: ignore[attr-defined] # of the writers of queues
        return Offered(first, self._sent_count - before, own_begin_ns, end_ns)

    @property
    def _next_number(self) -> int:
        return self._index + self._step * self._sent_count

    def _flat_out(self, stop_ns: int) -> None:
        self._sent_count += write_batches(
            self._write, self._messages, self._batch, self._next_number, self._step, stop_ns
        )

    def _paced(self, begin_ns: int, window_ns: int, interval_ns: float) -> None:
        """Write what is due within the window; the writers of a fan-in are due in turns."""
        self._sent_count += write_batches_paced(
            self._write,
            self._messages,
            self._batch,
            self._next_number,
            self._step,
            begin_ns + int(interval_ns * (1 + self._index / self._step)),
            interval_ns,
            int(window_ns / interval_ns) // self._batch,
        )

    @property
    def _write(self) -> WriteBatch:
        writer, stall_s = self._writer, self._stall_s
        if self._batch == 1:
            write = writer.write
            return lambda buffers: write(buffers[0], stall_s)

        def write_all(buffers: list[bytearray]) -> None:
            done = 0
            while done < len(buffers):
                done += writer.write_many(buffers[done:], stall_s)

        return write_all

    def finish(self) -> dict[str, Any]:
        """Close the endpoint, with which the readers' streams end, and return what it did."""
        self._writer.close()
        usage, collections = self._meter.total()
        facts = {
            "total_count": self._sent_count,
            "redelivered_count": getattr(self._writer, "redelivered_count", None),
            "usage": asdict(usage),
            "gc_count": collections,
        }
        return {"facts": facts}


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reader or worker reports: columns of int64 with one value for each message, of all phases."""

    columns: dict[str, array[int]]
    """`number`, `intended_ns`, `received_ns`: when the read had returned, or the message was touched."""
    count: int
    first_ns: int
    """First receipt; 0 without one."""
    last_ns: int
    torn_count: int
    hashed_count: int
    usage: Usage
    gc_count: int


class Taking:
    """The reader of a fan-in, or a worker of a queue, until its stream ends.

    Args:
        reader: the endpoint.
        plan: the trial.
        began: path of a file for the numbers of the messages of a worker that is to be killed; None for all others.
    """

    def __init__(self, reader: Reader, plan: Plan, began: str | None) -> None:
        self._reader = reader
        self._trial = plan.trial
        self._stall_s = plan.stall_s
        self._bytes = message_bytes(plan.trial.payload_bytes)
        self._look = looking(plan.trial.touch)
        self._columns = array("q"), array("q"), array("q")
        self._torn_count = self._hashed_count = 0
        self._left = DIES_AT
        self._began = None if began is None else _mapped(Path(began))

    def run(self) -> Taken:
        """Take messages until the stream ends.

        Raises:
            TransportError: as of the endpoint; TransportTimeout if nothing came for ten minutes.
        """
        meter = UsageMeter([self._reader])
        meter.start()
        idle_since_ns = now_ns()
        while True:
            try:
                views = self._read()
            except TransportTimeout:  # others are measured meanwhile
                if now_ns() - idle_since_ns > 1e9 * _IDLE_S:
                    raise
                continue
            except EndOfStream:
                break
            for view in views:
                self._take(view)
            idle_since_ns = now_ns()
        meter.stop()
        usage, collections = meter.total()
        numbers, intended, received = self._columns
        return Taken(
            columns={"number": numbers, "intended_ns": intended, "received_ns": received},
            count=len(numbers),
            first_ns=received[0] if received else 0,
            last_ns=received[-1] if received else 0,
            torn_count=self._torn_count,
            hashed_count=self._hashed_count,
            usage=usage,
            gc_count=collections,
        )

    def _read(self) -> list[memoryview]:
        if self._trial.batch == 1:
            return [self._reader.read(self._stall_s)]
        return self._reader.read_many(self._trial.batch, self._stall_s)

    def _take(self, view: memoryview) -> None:
        if self._look is not None:
            self._look(view)
        received = now_ns()
        if not is_whole(view, self._bytes):
            self._torn_count += 1
            return
        number, intended, _, flags = unpack_stamp(view)
        for column, value in zip(self._columns, (number, intended, received), strict=True):
            column.append(value)
        if not number % HASH_EVERY:
            self._hashed_count += 1
            self._torn_count += not body_matches(view)
        if self._began is not None:
            self._die_in_time(number, flags)

    def _die_in_time(self, number: int, flags: int) -> None:
        """Keep the number where it outlives this process; at the last message that it is to begin, kill it."""
        assert self._began is not None  # noqa: S101 - the caller has checked
        self._began[0] += 1
        self._began[self._began[0]] = number
        if flags == Phase.MEASURE:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def make_began_file(path: Path) -> None:
    """Make the file in which a worker that is to be killed keeps the numbers of its messages: first their count."""
    path.write_bytes(b"")
    os.truncate(path, _WORD_BYTES * (1 + _TASKS_OF_VICTIM))


def _mapped(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")


def began_numbers(path: Path) -> array[int]:
    """Return the numbers of the messages that a worker that was killed had begun to work on."""
    words = array("q", path.read_bytes())
    return words[1 : 1 + words[0]]
