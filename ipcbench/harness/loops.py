"""The hot loops: what runs inside the timed window, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from select import select

from ipcbench.util.clock import now_ns
from ipcbench.workload.message import FLAGS, INTENDED, SENT, SEQUENCE, Outgoing, Phase, unpack_stamp, unpack_word

SPIN_NS = 150_000
"""A paced writer sleeps until this long before the intended time and polls the clock from there on."""

HASH_EVERY = 64
"""Inside the window every such message has its whole body hashed; a power of two."""

Write = Callable[[bytearray, float], None]
Read = Callable[[float], memoryview]


def write_flat_out(
    write: Write,
    messages: Sequence[Outgoing],
    sequence: int,
    stop_ns: int,
    stall_s: float,
    sent: array[int],
    written: array[int],
) -> int:
    """Write as fast as the transport takes it until `stop_ns` or until the columns are full; at least two messages.

    Args:
        messages: two messages of equal size, sent in turn, with their flags set.
        sequence: of the message before the first.
        stop_ns: reading of the clock after which no message begins.
        stall_s: time-out of a single write.
        sent: filled with the clock before each write.
        written: filled with the duration of each write.

    Returns:
        How many messages were written.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    turns = [(one.buffer, one.head, one.tail) for one in messages] * (2 // len(messages))
    for index in range(len(sent)):
        start = clock()
        if start >= stop_ns and index > 1:
            return index
        buffer, head, tail = turns[index & 1]
        sequence += 1
        head[key_sequence] = tail[0] = sequence
        head[key_intended] = head[key_sent] = start
        write(buffer, stall_s)
        sent[index] = start
        written[index] = clock() - start
    return len(sent)


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
    arguments and result as `write_flat_out`.
    """
    clock, key_sequence, key_intended, key_sent = now_ns, SEQUENCE, INTENDED, SENT
    turns = [(one.buffer, one.head, one.tail) for one in messages] * (2 // len(messages))
    for index in range(first, first + count):
        due = start_ns + int((index - first) * interval_ns)
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
        intended[index] = due
        sent[index] = start
        written[index] = clock() - start
    return count


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
    """Read messages of the window, up to index `stop`, for as long as each is whole and the very next one.

    Args:
        expected_bytes: size of every message.
        tail: where in it the sequence number stands again: at its end, or at its start if the end is not to be touched.
        sequence: that of the message before the first.
        stall_s: time-out of a single read.
        body_matches: hashes a message's body and says whether it is right; called for every `HASH_EVERY`-th.
        received: filled from `start` with the clock after each read.
        waited: filled from `start` with the duration of each read.
        start: where to begin in the columns.
        stop: where to end.

    Returns:
        (index after the last one stored, the first message that is not the next one of the window, clock before that
        read, clock after it); None and zeros for the message if all went well.
    """
    clock, stamp, word, measure, mask = now_ns, unpack_stamp, unpack_word, int(Phase.MEASURE), HASH_EVERY - 1
    for index in range(start, stop):
        sequence += 1
        before = clock()
        view = read(stall_s)
        after = clock()
        if len(view) != expected_bytes:
            return index, view, before, after
        found, _, _, flags = stamp(view)
        if found != sequence or flags != measure or word(view, tail)[0] != sequence:
            return index, view, before, after
        if not sequence & mask and not body_matches(view):
            return index, view, before, after
        received[index] = after
        waited[index] = after - before
    return stop, None, 0, 0


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
    """As `read_every` for latest_value: each message must be newer than the last, and gaps are kept in `sequences`."""
    clock, stamp, word, measure, mask = now_ns, unpack_stamp, unpack_word, int(Phase.MEASURE), HASH_EVERY - 1
    limit = len(received)
    while True:
        before = clock()
        view = read(stall_s)
        after = clock()
        if len(view) != expected_bytes or index == limit:
            return index, view, before, after
        found, _, _, flags = stamp(view)
        if found <= sequence or flags != measure or word(view, tail)[0] != found:
            return index, view, before, after
        if not index & mask and not body_matches(view):
            return index, view, before, after
        sequence = found
        received[index] = after
        waited[index] = after - before
        sequences[index] = found
        index += 1


def set_phase(messages: Sequence[Outgoing], phase: Phase) -> None:
    """Mark the messages as belonging to `phase`."""
    for one in messages:
        one.head[FLAGS] = phase
