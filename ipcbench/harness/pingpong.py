"""Round trips: the writer's process sends to all readers and waits for every reply; each comes on its own channel.

In a closed loop, the next message follows the last reply. Paced round trips are an open loop: messages are sent on a
schedule, however many replies are still to come, and a round trip begins when its message was due. So it has what a
message waits for behind others, and needs no second clock.

A reader's process sends back the very view that it read. It records when the message came, so a round trip splits into
the way there and the way back, which add up to it by construction.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from select import select

from ipcbench.backend import Reader, Writer
from ipcbench.errors import IntegrityError, TransportTimeout
from ipcbench.harness.integrity import Tracker
from ipcbench.harness.loops import HASH_EVERY, SPIN_NS, alternating, set_phase, touching
from ipcbench.harness.plan import MIN_COLUMN, START_NS, Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Integrity, Usage
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import (
    INTENDED,
    SENT,
    SEQUENCE,
    Outgoing,
    Phase,
    body_matches,
    is_whole,
    message_bytes,
    unpack_stamp,
)

_WARMUP_TRIPS = 20
_PATIENCE_S = 0.001
"""How long a writer that keeps a schedule waits for room until it takes replies."""


@dataclass(frozen=True, slots=True)
class Pinged:
    """What the writer's process reports."""

    columns: dict[str, array[int]]
    """`sent_ns`, `round_trip_ns` (to the last reply), and for each reader when its reply came, `heard-0_ns` …; paced,
    also `intended_ns` and `write_ns`.
    """
    messages_count: int
    total_count: int
    warmup_count: int
    steady: bool
    usage: Usage
    gc_count: int
    turns: list[tuple[int, int]]
    """Of each part of the window: number of its first message, and how many messages it has."""


class PingPart:
    """The writer's side of a round-trip trial.

    Args:
        writer: of the channel to all readers.
        replies: readers of the channels back, one for each reader.
        messages: one or two messages of equal size, sent alternately.
        plan: the trial.
    """

    def __init__(self, writer: Writer, replies: Sequence[Reader], messages: Sequence[Outgoing], plan: Plan) -> None:
        self._writer = writer
        self._replies = replies
        self._messages = messages
        self._plan = plan
        self._sequence = self._warmup_count = 0
        self._turns: list[tuple[int, int]] = []
        heard = (f"heard-{index}_ns" for index in range(len(replies)))
        self._names = ["sent_ns", "round_trip_ns", *heard, *(["intended_ns", "write_ns"] * plan.trial.is_paced)]
        self._columns = self._make_columns(0)
        self._room = self._columns
        self._window_ns = 0
        self._meter = UsageMeter([writer, *replies])

    def _make_columns(self, count: int) -> list[array[int]]:
        """Return columns as `_names` says."""
        return [array("q", bytes(8 * count)) for _ in self._names]

    def run(self) -> Pinged:
        """Warm up, measure, end; any TransportError goes to the caller.

        Raises:
            IntegrityError: a reply differs from the message that was sent.
        """
        self.warm_up()
        self.ready(int(self._plan.trial.window_s * 1e9))
        self.turn()
        return self.finish()

    def warm_up(self) -> None:
        """Make round trips; none of them is kept."""
        set_phase(self._messages, Phase.WARMUP)
        least_ns = now_ns() + int(self._plan.trial.warmup_s * 1e9)
        self._room = self._make_columns(1)
        while self._sequence < _WARMUP_TRIPS or now_ns() < least_ns:
            self._bounce(2**62)
        self._warmup_count = self._sequence

    def pause(self) -> None:
        """Tell the readers that a pause follows."""
        self._tell(Phase.PAUSE)

    def ready(self, window_ns: int) -> None:
        """Make room for the next turn, which takes `window_ns`."""
        self._window_ns = window_ns
        self._room = self._make_columns(self._plan.column_within(window_ns, len(self._columns[0])))

    def turn(self) -> None:
        """Make round trips for the time given, soon after now."""
        if len(self._room[0]) < MIN_COLUMN:
            return
        set_phase(self._messages, Phase.MEASURE)
        select((), (), (), START_NS / 1e9)  # the readers are in `read` by then
        first = self._sequence + 1
        self._meter.start()
        count = self._paced() if self._plan.trial.is_paced else self._bounce(now_ns() + self._window_ns)
        self._meter.stop()
        self._turns.append((first, count))
        for column, fresh in zip(self._columns, self._room, strict=True):
            column.extend(fresh[:count])

    def finish(self) -> Pinged:
        """Send the end mark and return what was measured."""
        self._tell(Phase.END)
        usage, collections = self._meter.total()
        return Pinged(
            columns=dict(zip(self._names, self._columns, strict=True)),
            messages_count=len(self._columns[0]),
            total_count=self._sequence,
            warmup_count=self._warmup_count,
            steady=True,
            usage=usage,
            gc_count=collections,
            turns=self._turns,
        )

    def _bounce(self, stop_ns: int) -> int:
        """Make round trips until `stop_ns` or until there is no more room; the hot loop."""
        clock, stamp, write, stall_s = now_ns, unpack_stamp, self._writer.write, self._plan.stall_s
        buffers = alternating(self._messages)
        sent, trips, *columns = self._room
        replies = [(reader.read, column) for reader, column in zip(self._replies, columns, strict=False)]
        sequence, size, mask, limit = self._sequence, len(buffers[0][0]), HASH_EVERY - 1, len(sent)
        for index in range(limit):
            buffer, head, tail = buffers[index & 1]
            sequence += 1
            head[SEQUENCE] = tail[0] = sequence
            start = clock()
            if start >= stop_ns and index > 1:
                return index
            head[INTENDED] = head[SENT] = start
            write(buffer, stall_s)
            for read, heard in replies:
                view = read(stall_s)
                heard[index] = clock()
                if len(view) != size or stamp(view)[0] != sequence:
                    raise IntegrityError(f"the reply to message {sequence} is a different message")
            sent[index] = start
            trips[index] = heard[index] - start
            self._sequence = sequence
            if not sequence & mask and not (is_whole(view, size) and body_matches(view)):
                raise IntegrityError(f"payload mismatch in the reply to message {sequence}")
        return limit

    def _paced(self) -> int:
        """Make the round trips of a turn on a schedule that begins one interval from now; the hot loop."""
        clock, interval_ns, stall_s = now_ns, self._plan.interval_ns(), self._plan.stall_s
        count = min(len(self._room[0]), max(1, round(self._window_ns / interval_ns)))
        start = clock() + int(interval_ns)
        first, sent = self._sequence + 1, 0
        replies = _Replies(self._replies, self._room, first, len(self._messages[0].buffer))
        while sent < count:
            due = start + int(sent * interval_ns)
            while (left := due - clock()) > 0:
                if replies.count == sent:
                    if left > SPIN_NS:
                        select((), (), (), (left - SPIN_NS) / 1e9)
                elif not replies.take(0.0) and left > SPIN_NS:
                    replies.wait((left - SPIN_NS) / 1e9)
            replies.take_all(sent)  # behind the schedule, too
            self._send(sent, due, replies)
            sent += 1
        while replies.count < count:
            if not replies.take(stall_s):
                raise TransportTimeout(f"no reply to message {first + replies.count} within {stall_s:.0f} s")
        return count

    def _send(self, index: int, due: int, replies: _Replies) -> None:
        """Send the next message of a schedule. While there is no room, take replies: a reader that cannot hand over one
        reads no message.
        """
        message = self._messages[index % len(self._messages)]
        self._sequence += 1
        head = message.head
        head[SEQUENCE] = message.tail[0] = self._sequence
        head[INTENDED] = due
        head[SENT] = start = now_ns()
        last, patience_s = start + int(1e9 * self._plan.stall_s), 0.0
        while True:
            try:
                self._writer.write(message.buffer, patience_s)
                break
            except TransportTimeout:
                if now_ns() > last:
                    raise
                patience_s = 0.0 if replies.take_all(index) else _PATIENCE_S
        sent, *_, intended, written = self._room
        written[index] = now_ns() - start
        sent[index], intended[index] = start, due

    def _tell(self, phase: Phase) -> None:
        set_phase(self._messages, phase)
        last = self._messages[0]
        self._sequence += 1
        last.head[SEQUENCE] = last.tail[0] = self._sequence
        self._writer.write(last.buffer, self._plan.stall_s)


class _Replies:
    """The replies to the messages of a schedule. They are taken message by message, and of each reader by reader.

    Args:
        readers: of the channels back.
        columns: filled with the times, see `PingPart`.
        first: number of the first message.
        size_bytes: of each reply.

    Attributes:
        count: to how many messages all replies have come.
    """

    def __init__(self, readers: Sequence[Reader], columns: Sequence[array[int]], first: int, size_bytes: int) -> None:
        self._readers, self._first, self._size_bytes = readers, first, size_bytes
        _, self._trips, *heard, self._intended, _ = columns
        self._heard = heard
        self._next = self.count = 0

    def take(self, timeout_s: float) -> bool:
        """Take the next reply if it comes in time; return whether it did."""
        try:
            view = self._readers[self._next].read(timeout_s)
        except TransportTimeout:
            return False
        now, sequence = now_ns(), self._first + self.count
        self._heard[self._next][self.count] = now
        if len(view) != self._size_bytes or unpack_stamp(view)[0] != sequence:
            raise IntegrityError(f"the reply to message {sequence} is a different message")
        if not sequence & (HASH_EVERY - 1) and not (is_whole(view, self._size_bytes) and body_matches(view)):
            raise IntegrityError(f"payload mismatch in the reply to message {sequence}")
        self._next += 1
        if self._next == len(self._readers):
            self._trips[self.count] = now - self._intended[self.count]
            self._next, self.count = 0, self.count + 1
        return True

    def take_all(self, sent: int) -> bool:
        """Take the replies that are there, of so many messages that were sent; return whether there were any."""
        before = self.count, self._next
        while self.count < sent and self.take(0.0):
            pass
        return (self.count, self._next) != before

    def wait(self, timeout_s: float) -> None:
        """Wait until the next reply may be there; without a descriptor to wait on, not at all."""
        descriptor = self._readers[self._next].fileno()
        if descriptor is not None:
            select((descriptor,), (), (), timeout_s)


@dataclass(frozen=True, slots=True)
class Ponged:
    """What a reader's process reports."""

    columns: dict[str, array[int]]
    """`sequence`, `received_ns`."""
    messages_count: int
    warmup_count: int
    usage: Usage
    gc_count: int
    integrity: Integrity


class PongPart:
    """A reader's side of a round-trip trial: send back each message until a pause or the end mark.

    Args:
        reader: of the channel from the writer.
        reply: writer of this reader's channel back.
        plan: the trial.
    """

    def __init__(self, reader: Reader, reply: Writer, plan: Plan) -> None:
        self._read = touching(reader.read, plan.trial.touch)
        self._reply = reply
        self._plan = plan
        self._bytes = message_bytes(plan.trial.payload_bytes)
        self._tracker = Tracker("every_message", self._bytes)
        self._sequences = array("q")
        self._received = array("q", bytes(8 * plan.column_count))
        self._meter = UsageMeter([reader, reply])
        self._warmup_count = 0

    def run(self) -> Ponged:
        """Reply until the end mark; any TransportError goes to the caller."""
        return self.finish()

    def warm_up(self) -> None:
        """Reply until the writer pauses."""
        self._follow()

    def turn(self) -> None:
        """Reply to the messages of the next turn."""
        self._follow()

    def finish(self) -> Ponged:
        """Read until the end mark and return what was measured."""
        self._follow()
        usage, collections = self._meter.total()
        return Ponged(
            columns={"sequence": self._sequences, "received_ns": self._received[: len(self._sequences)]},
            messages_count=len(self._sequences),
            warmup_count=self._warmup_count,
            usage=usage,
            gc_count=collections,
            integrity=self._tracker.result(self._tracker.last),
        )

    def _follow(self) -> None:
        """Send back each message until a pause, the end mark, or one of the window that is damaged."""
        stall_s, tracker = self._plan.stall_s, self._tracker
        while True:
            view = self._read(stall_s)
            if unpack_stamp(view)[3] == Phase.MEASURE:
                self._meter.start()
                view = self._reply_to_all(view)
                self._meter.stop()
            phase = unpack_stamp(view)[3]
            tracker.accept(view, hashing=True)
            if phase != Phase.WARMUP:
                return
            self._warmup_count += 1
            self._reply.write(view, stall_s)

    def _reply_to_all(self, view: memoryview) -> memoryview:
        """Send back the window's messages, beginning with `view`, and return the one after; the hot loop."""
        clock, stamp, stall_s = now_ns, unpack_stamp, self._plan.stall_s
        read, write = self._read, self._reply.write
        received, measure, sequence = self._received, int(Phase.MEASURE), self._tracker.last
        first = index = len(self._sequences)
        after = clock()
        while True:
            number, _, _, flags = stamp(view)
            if flags != measure or number != sequence + 1:
                break
            sequence = number
            write(view, stall_s)
            received[index] = after
            index += 1
            view = read(stall_s)
            after = clock()
        count = index - first
        if count:
            self._sequences.extend(range(sequence + 1 - count, sequence + 1))
            self._tracker.advance(count, sequence, 0)
        return view
