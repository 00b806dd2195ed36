"""The hot loops: what runs inside the measured window, and nothing else.

Each loop binds the names that it uses to locals, since a global or an attribute costs a lookup per message. The two
`long` loops are for paced windows too long to keep every message: histograms count all messages, the columns keep every
`stride`-th, so memory is bounded whatever the window. They cost about 0.3 µs more per message on either side, between
messages and outside their latency.

The two loops `in_runs` are for saturated windows of short messages, where reading the clock around every message would
take as long as sending it: they read it around one message in `RUN`.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from select import select

from ipcbench.spec import Touch
from ipcbench.util.bins import BIN_COUNT, bin_of
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import FLAGS, INTENDED, SENT, SEQUENCE, Outgoing, Phase, unpack_stamp, unpack_word

SPIN_NS = 150_000
"""A paced writer sleeps until this long before the intended time, then polls the clock."""

HASH_EVERY = 64
"""Inside the window, every message whose number is a multiple of this has its whole body hashed; a power of two."""

RUN = 17
"""Messages from one stamp to the next in the loops `in_runs`; odd. A prime: with 16, each stamp would meet one of the
same few slots of a ring, and never the one at which a transport does its periodic work."""

_PAGE_BYTES = 4096

Write = Callable[[bytearray, float], None]
Read = Callable[[float], memoryview]


def set_phase(messages: Sequence[Outgoing], phase: Phase) -> None:
    """Mark the messages as belonging to `phase`."""
    for message in messages:
        message.head[FLAGS] = phase


def alternating(messages: Sequence[Outgoing]) -> list[tuple[bytearray, memoryview, memoryview]]:
    """Return two (buffer, head, tail), to be indexed by `index & 1`; a single message is in both."""
    return [(message.buffer, message.head, message.tail) for message in messages] * (2 // len(messages))


def looking(touch: Touch) -> Callable[[memoryview], object] | None:
    """Return what a reader does with a message while it is timed: `pages` reads a byte of each 4 KiB, `all` copies
    every byte; None for `none` and `header`.
    """
    touches: dict[Touch, Callable[[memoryview], object]] = {
        "pages": lambda view: bytes(view[::_PAGE_BYTES]),
        "all": bytes,
    }
    return touches.get(touch)


def touching(read: Read, touch: Touch) -> Read:
    """Return a read that touches the message before it returns, so that touching is inside the timing.

    Args:
        read: of an endpoint.
        touch: see `looking`; `none` and `header` return `read` itself.
    """
    look = looking(touch)
    if look is None:
        return read

    def read_and_touch(timeout_s: float) -> memoryview:
        view = read(timeout_s)
        look(view)
        return view

    return read_and_touch


def write_flat_out(
    write: Write,
    messages: Sequence[Outgoing],
    sequence: int,
    stop_ns: int,
    stall_s: float,
    sent: array[int],
    written: array[int],
) -> int:
    """Write as fast as the transport takes messages, until `stop_ns` or until the columns are full; at least two.

    Args:
        messages: one or two messages of equal size, sent alternately, with their flags set.
        sequence: number of the message before the first.
        stop_ns: clock reading after which no message begins.
        stall_s: time-out of a single write.
        sent: filled with the clock before each write.
        written: filled with the duration of each write.

    Returns:
        How many messages were written.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    buffers = alternating(messages)
    for index in range(len(sent)):
        start = clock()
        if start >= stop_ns and index > 1:
            return index
        buffer, head, tail = buffers[index & 1]
        sequence += 1
        head[key_sequence] = tail[0] = sequence
        head[key_intended] = head[key_sent] = start
        write(buffer, stall_s)
        sent[index] = start
        written[index] = clock() - start
    return len(sent)


def write_in_runs(
    write: Write,
    messages: Sequence[Outgoing],
    sequence: int,
    stop_ns: int,
    stall_s: float,
    sent: array[int],
    written: array[int],
) -> int:
    """As `write_flat_out`, but with the clock read only around the first message and every `RUN`-th after it.

    The last message is always one of those, so `stop_ns` is noticed up to `RUN` messages late. There are at least two
    of them, unless the columns have room for one only. The columns get a value for each of them.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    buffers = alternating(messages)
    for index in range(len(sent)):
        number = sequence + 1 + RUN * index
        (buffer, head, tail), (other, other_head, other_tail) = buffers[index & 1], buffers[~index & 1]
        if index:  # in pairs, which costs less than looking up the message each time
            for unstamped in range(number + 1 - RUN, number, 2):
                head[key_sequence] = tail[0] = unstamped
                write(buffer, stall_s)
                other_head[key_sequence] = other_tail[0] = unstamped + 1
                write(other, stall_s)
        head[key_sequence] = tail[0] = number
        start = clock()
        head[key_intended] = head[key_sent] = start
        write(buffer, stall_s)
        end = clock()
        sent[index] = start
        written[index] = end - start
        if end >= stop_ns and index:
            return 1 + RUN * index
    return 1 + RUN * (len(sent) - 1)


def write_paced(
    write: Write,
    messages: Sequence[Outgoing],
    sequence: int,
    start_ns: int,
    interval_ns: float,
    first: int,
    count: int,
    stall_s: float,
    intended: array[int],
    sent: array[int],
    written: array[int],
) -> int:
    """Write `count` messages on a fixed schedule: message i is due at start_ns + i·interval_ns, however late we are.

    A writer that falls behind sends at once and never moves the schedule, so a stall shows in the latency of every
    message that was due during it (no coordinated omission). The columns are filled from index `first`. Other
    arguments and result as in `write_flat_out`.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    buffers = alternating(messages)
    for index in range(first, first + count):
        due = start_ns + int((index - first) * interval_ns)
        left = due - clock()
        if left > SPIN_NS:
            select((), (), (), (left - SPIN_NS) / 1e9)
        buffer, head, tail = buffers[index & 1]
        sequence += 1
        head[key_sequence] = tail[0] = sequence
        head[key_intended] = due
        start = clock()
        while start < due:
            start = clock()
        head[key_sent] = start
        write(buffer, stall_s)
        intended[index] = due
        sent[index] = start
        written[index] = clock() - start
    return count


WriteBatch = Callable[[list[bytearray]], None]


def batches_of(messages: Sequence[Outgoing], batch: int) -> list[tuple[list[bytearray], list[tuple[memoryview, ...]]]]:
    """Return one or more lists of `batch` messages, each as its buffers and its (head, tail)s, to be sent in turns."""
    lists = [messages[first : first + batch] for first in range(0, len(messages), batch)]
    return [([each.buffer for each in some], [(each.head, each.tail) for each in some]) for some in lists]


def write_batches(
    write: WriteBatch, messages: Sequence[Outgoing], batch: int, number: int, step: int, stop_ns: int
) -> int:
    """Write batch after batch as fast as the transport takes them, until `stop_ns`.

    Args:
        write: hands over all messages of a list.
        messages: with their flags set; a multiple of `batch`.
        batch: messages that are written together.
        number: of the first message.
        step: from the number of a message to that of the next.
        stop_ns: clock reading after which no batch begins.

    Returns:
        How many messages were written.
    """
    clock, key_sequence, key_intended = now_ns, SEQUENCE, INTENDED
    lists = batches_of(messages, batch)
    first, turn = number, 0
    while True:
        start = clock()
        if start >= stop_ns:
            return (number - first) // step
        buffers, marks = lists[turn % len(lists)]
        turn += 1
        for head, tail in marks:
            head[key_sequence] = tail[0] = number
            head[key_intended] = start
            number += step
        write(buffers)


def write_batches_paced(
    write: WriteBatch,
    messages: Sequence[Outgoing],
    batch: int,
    number: int,
    step: int,
    start_ns: int,
    interval_ns: float,
    count: int,
) -> int:
    """Write `count` batches on a fixed schedule: message i is due at start_ns + i·interval_ns, its batch when its last
    message is. As with `write_paced`, the schedule never moves. At a high rate the writer never sleeps; so it offers
    its core to others while it polls the clock, else readers and the threads of transports would wait for milliseconds.

    Returns:
        How many messages were written.
    """
    clock, others, key_sequence, key_intended = now_ns, os.sched_yield, SEQUENCE, INTENDED
    lists = batches_of(messages, batch)
    for turn in range(count):
        due = start_ns + int(((turn + 1) * batch - 1) * interval_ns)
        buffers, marks = lists[turn % len(lists)]
        for place, (head, tail) in enumerate(marks, 1 - batch):
            head[key_sequence] = tail[0] = number
            head[key_intended] = due + int(place * interval_ns)
            number += step
        left = due - clock()
        if left > SPIN_NS:
            select((), (), (), (left - SPIN_NS) / 1e9)
        while clock() < due:
            others()
        write(buffers)
    return count * batch


def read_every(
    read: Read,
    expected_bytes: int,
    tail: int,
    sequence: int,
    stall_s: float,
    body_matches: Callable[[memoryview], bool],
    received: array[int],
    waited: array[int],
    start: int,
    stop: int,
) -> tuple[int, memoryview | None, int, int]:
    """Read messages of the window, for columns `start` to `stop`, as long as each is whole and next in sequence.

    Args:
        expected_bytes: size of every message.
        tail: offset of the second sequence number to compare: that of the trailer, or that of the header if the end
            of the message must not be touched.
        sequence: number of the message before the first.
        stall_s: time-out of a single read.
        body_matches: hashes a message's body and compares; called for every `HASH_EVERY`-th message.
        received: filled with the clock after each read.
        waited: filled with the duration of each read.
        start: first index in the columns.
        stop: index after the last.

    Returns:
        (index after the last message stored, the message that ended the loop, clock before its read, clock after it);
        None and zeros if none did.
    """
    clock, stamp, word, measure, mask = now_ns, unpack_stamp, unpack_word, int(Phase.MEASURE), HASH_EVERY - 1
    for index in range(start, stop):
        sequence += 1
        before = clock()
        view = read(stall_s)
        after = clock()
        if len(view) != expected_bytes:
            return index, view, before, after
        number, _, _, flags = stamp(view)
        if number != sequence or flags != measure or word(view, tail)[0] != sequence:
            return index, view, before, after
        if not sequence & mask and not body_matches(view):
            return index, view, before, after
        received[index] = after
        waited[index] = after - before
    return stop, None, 0, 0


def _marks(expected_bytes: int, tail: int) -> Callable[[memoryview], tuple[int, int, int]]:
    """Return a function that unpacks (sequence, flags, sequence at `tail`), or raises if the size is another."""
    head = f"=q{8 * (FLAGS - 1)}xq"
    rest = expected_bytes - 8 * (FLAGS + 1)
    if tail > 8 * SEQUENCE:
        return struct.Struct(f"{head}{rest - 8}xq").unpack
    unpack = struct.Struct(f"{head}{rest}x").unpack

    def of_head(view: memoryview) -> tuple[int, int, int]:
        number, flags = unpack(view)
        return number, flags, number

    return of_head


def read_in_runs(
    read: Read,
    expected_bytes: int,
    tail: int,
    sequence: int,
    stall_s: float,
    body_matches: Callable[[memoryview], bool],
    received: array[int],
    waited: array[int],
    start: int,
    stop: int,
) -> tuple[int, int, memoryview | None, int, int]:
    """As `read_every`, but with the clock read only around every `RUN`-th message; the columns get those.

    The window's first message has been read, and message number `sequence` was stamped. Every message is checked.

    Returns:
        (index after the last message stored, number of the last message that was whole and in sequence, the message
        that ended the loop, clock before its read, clock after it). If that message was not to be stamped, the clock
        is read only after it.
    """
    clock, marks, measure, mask = now_ns, _marks(expected_bytes, tail), int(Phase.MEASURE), HASH_EVERY - 1
    for index in range(start, stop):
        stamped = sequence + RUN * (index + 1 - start)
        for number in range(stamped + 1 - RUN, stamped):
            view = read(stall_s)
            try:
                first, flags, last = marks(view)
            except struct.error:
                break
            if first != number or flags != measure or last != number or not (number & mask or body_matches(view)):
                break
        else:
            before = clock()
            view = read(stall_s)
            after = clock()
            try:
                first, flags, last = marks(view)
            except struct.error:
                return index, stamped - 1, view, before, after
            if first != stamped or flags != measure or last != stamped or not (stamped & mask or body_matches(view)):
                return index, stamped - 1, view, before, after
            received[index], waited[index] = after, after - before
            continue
        return index, number - 1, view, clock(), clock()
    return stop, sequence + RUN * (stop - start), None, 0, 0


def read_latest(
    read: Read,
    expected_bytes: int,
    tail: int,
    sequence: int,
    stall_s: float,
    body_matches: Callable[[memoryview], bool],
    received: array[int],
    waited: array[int],
    sequences: array[int],
    index: int,
) -> tuple[int, memoryview, int, int]:
    """As `read_every` for latest_value: each message must be newer than the last; `sequences` keeps their numbers."""
    clock, stamp, word, measure, mask = now_ns, unpack_stamp, unpack_word, int(Phase.MEASURE), HASH_EVERY - 1
    limit = len(received)
    while True:
        before = clock()
        view = read(stall_s)
        after = clock()
        if len(view) != expected_bytes or index == limit:
            return index, view, before, after
        number, _, _, flags = stamp(view)
        if number <= sequence or flags != measure or word(view, tail)[0] != number:
            return index, view, before, after
        if not index & mask and not body_matches(view):
            return index, view, before, after
        sequence = number
        received[index] = after
        waited[index] = after - before
        sequences[index] = number
        index += 1


@dataclass(slots=True)
class LoopTotals:
    """Durations of all messages of a long window: a histogram, their sum and their maximum."""

    counts: array[int] = field(default_factory=lambda: array("q", bytes(8 * BIN_COUNT)))
    sum_ns: int = 0
    max_ns: int = 0
    least_ns: int = 2**62
    """Of latencies: the least receipt − send time; negative if a clock is wrong."""
    least_sequence: int = 0
    """The number of that message."""

    def add(self, value_ns: int) -> None:
        """Count one duration; a negative one, possible between different clocks, counts as 0."""
        value_ns = max(value_ns, 0)
        self.counts[bin_of(value_ns)] += 1
        self.sum_ns += value_ns
        self.max_ns = max(self.max_ns, value_ns)

    def keep_least(self, value_ns: int, sequence: int) -> None:
        """Remember the time from the sending to the receipt of a message if it is the least so far."""
        if value_ns < self.least_ns:
            self.least_ns, self.least_sequence = value_ns, sequence

    def as_dict(self) -> dict[str, object]:
        """Return plain values for the control channel."""
        least = {"least_ns": self.least_ns, "least_sequence": self.least_sequence}
        return {"counts": self.counts.tobytes(), "sum_ns": self.sum_ns, "max_ns": self.max_ns, **least}


def write_long(
    write: Write,
    messages: Sequence[Outgoing],
    sequence: int,
    start_ns: int,
    interval_ns: float,
    count: int,
    stride: int,
    stall_s: float,
    columns: tuple[array[int], array[int], array[int]],
    writes: LoopTotals,
) -> int:
    """Write `count` messages on a fixed schedule, as `write_paced` does.

    Args:
        stride: the columns keep every `stride`-th message, beginning with the first.
        columns: filled with intended send time, actual send time and duration of the write.
        writes: counts the duration of every write.

    Returns:
        How many messages the columns hold.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    buffers = alternating(messages)
    intended, sent, written = columns
    kept = 0
    for index in range(count):
        due = start_ns + int(index * interval_ns)
        left = due - clock()
        if left > SPIN_NS:
            select((), (), (), (left - SPIN_NS) / 1e9)
        buffer, head, tail = buffers[index & 1]
        sequence += 1
        head[key_sequence] = tail[0] = sequence
        head[key_intended] = due
        start = clock()
        while start < due:
            start = clock()
        head[key_sent] = start
        write(buffer, stall_s)
        took = clock() - start
        writes.add(took)
        if not index % stride:
            intended[kept], sent[kept], written[kept] = due, start, took
            kept += 1
    return kept


def read_long(
    read: Read,
    expected_bytes: int,
    tail: int,
    sequence: int,
    stride: int,
    stall_s: float,
    body_matches: Callable[[memoryview], bool],
    columns: tuple[array[int], array[int], array[int]],
    count: int,
    latencies: LoopTotals,
    reads: LoopTotals,
) -> tuple[int, memoryview, int, int]:
    """Read messages of the window as long as each is whole and next in sequence, as `read_every` does.

    Args:
        stride: the columns keep every `stride`-th message.
        columns: filled with sequence number, receipt and duration of the read.
        count: messages of the window so far.
        latencies: counts receipt − intended send time of every message; keeps the least receipt − send time.
        reads: counts the duration of every read.

    Returns:
        (messages of the window so far, the message that ended the loop, clock before its read, clock after it).
    """
    clock, stamp, word, measure, mask = now_ns, unpack_stamp, unpack_word, int(Phase.MEASURE), HASH_EVERY - 1
    sequences, received, waited = columns
    while True:
        sequence += 1
        before = clock()
        view = read(stall_s)
        after = clock()
        if len(view) != expected_bytes:
            return count, view, before, after
        number, intended, sent, flags = stamp(view)
        if number != sequence or flags != measure or word(view, tail)[0] != sequence:
            return count, view, before, after
        if not sequence & mask and not body_matches(view):
            return count, view, before, after
        latencies.add(after - intended)
        latencies.keep_least(after - sent, number)
        reads.add(after - before)
        if not count % stride:
            kept = count // stride
            sequences[kept], received[kept], waited[kept] = sequence, after, after - before
        count += 1
