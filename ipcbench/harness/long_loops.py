"""The hot loops of a paced window that is too long to keep every message: a histogram takes them all, columns every so
many.

Memory is bounded whatever the window. A message costs about 0.3 µs more than in an ordinary loop, on either side,
between messages and not inside their latency.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from select import select

from ipcbench.harness.loops import HASH_EVERY, SPIN_NS, Read, Write
from ipcbench.util.bins import BIN_COUNT, bin_of
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import INTENDED, SENT, SEQUENCE, Outgoing, Phase, unpack_stamp, unpack_word


@dataclass(slots=True)
class Tally:
    """Durations of all messages, in bins, and the sum and extremes of the same."""

    counts: array[int] = field(default_factory=lambda: array("q", bytes(8 * BIN_COUNT)))
    sum_ns: int = 0
    max_ns: int = 0

    def add(self, value_ns: int) -> None:
        """Count one duration; a negative one, which clocks may give that differ by ns, counts as 0."""
        value_ns = max(value_ns, 0)
        self.counts[bin_of(value_ns)] += 1
        self.sum_ns += value_ns
        self.max_ns = max(self.max_ns, value_ns)

    def facts(self) -> dict[str, object]:
        """Return plain values for the control channel."""
        return {"counts": self.counts.tobytes(), "sum_ns": self.sum_ns, "max_ns": self.max_ns}


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
    writes: Tally,
) -> int:
    """Write `count` messages on a fixed schedule, as `write_paced` does.

    Args:
        stride: of every so many messages, the first is kept in the columns.
        columns: filled with intended and real time of sending and duration of the write of those.
        writes: takes the duration of every write.

    Returns:
        How many messages the columns hold.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    turns = [(one.buffer, one.head, one.tail) for one in messages] * (2 // len(messages))
    intended, sent, written = columns
    kept = 0
    for index in range(count):
        due = start_ns + int(index * interval_ns)
        left = due - clock()
        if left > SPIN_NS:
            select((), (), (), (left - SPIN_NS) / 1e9)
        buffer, head, tail = turns[index & 1]
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
    latencies: Tally,
    reads: Tally,
) -> tuple[int, memoryview, int, int]:
    """Read messages of the window for as long as each is whole and the very next one, as `read_every` does.

    Args:
        sequence: that of the message before the first.
        stride: of every so many messages, the first is kept in the columns.
        columns: filled with sequence, receipt and duration of the read of those.
        count: messages of the window so far.
        latencies: takes receipt − intended send time of every message.
        reads: takes the duration of every read.

    Returns:
        (messages of the window so far, the first message that is not the next one of it, clock before that read, clock
        after it).
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
        found, intended, _, flags = stamp(view)
        if found != sequence or flags != measure or word(view, tail)[0] != sequence:
            return count, view, before, after
        if not sequence & mask and not body_matches(view):
            return count, view, before, after
        latencies.add(after - intended)
        reads.add(after - before)
        if not count % stride:
            kept = count // stride
            sequences[kept], received[kept], waited[kept] = sequence, after, after - before
        count += 1
