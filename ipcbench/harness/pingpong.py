"""Round trips: the writer's process sends to all readers and waits for every reply; each comes on its own channel.

A reader's process sends back the very view that it read. It records when the message came, so a round trip splits into
the way there and the way back, which add up to it by construction.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ipcbench.backend import Reader, Writer
from ipcbench.errors import IntegrityError
from ipcbench.harness.integrity import Tracker
from ipcbench.harness.loops import HASH_EVERY, alternating, set_phase, touching
from ipcbench.harness.plan import Plan
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


@dataclass(frozen=True, slots=True)
class Pinged:
    """What the writer's process reports."""

    columns: dict[str, array[int]]
    """`sent_ns`, `round_trip_ns` (to the last reply), and for each reader when its reply came, `heard-0_ns` …"""
    messages_count: int
    total_count: int
    warmup_count: int
    steady: bool
    usage: Usage
    gc_count: int


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
        self._sequence = 0
        column = bytes(8 * plan.column_count)
        self._sent, self._trips = array("q", column), array("q", column)
        self._heard = [array("q", column) for _ in replies]

    def run(self) -> Pinged:
        """Warm up, measure, end; any TransportError goes to the caller.

        Raises:
            IntegrityError: a reply differs from the message that was sent.
        """
        trial = self._plan.trial
        set_phase(self._messages, Phase.WARMUP)
        start = now_ns()
        while self._sequence < _WARMUP_TRIPS or now_ns() - start < trial.warmup_s * 1e9:
            self._bounce(1, 2**62)
        warmup_count = self._sequence
        set_phase(self._messages, Phase.MEASURE)
        meter = UsageMeter()
        count = self._bounce(self._plan.column_count, now_ns() + int(trial.window_s * 1e9))
        usage, collections = meter.stop()
        self._end()
        heard = {f"heard-{index}_ns": column[:count] for index, column in enumerate(self._heard)}
        return Pinged(
            columns={"sent_ns": self._sent[:count], "round_trip_ns": self._trips[:count], **heard},
            messages_count=count,
            total_count=self._sequence,
            warmup_count=warmup_count,
            steady=True,
            usage=usage,
            gc_count=collections,
        )

    def _bounce(self, limit: int, stop_ns: int) -> int:
        """Make up to `limit` round trips, until `stop_ns`; the hot loop."""
        clock, stamp, write, stall_s = now_ns, unpack_stamp, self._writer.write, self._plan.stall_s
        buffers = alternating(self._messages)
        replies = [(reader.read, column) for reader, column in zip(self._replies, self._heard, strict=True)]
        sent, trips, sequence, size, mask = self._sent, self._trips, self._sequence, len(buffers[0][0]), HASH_EVERY - 1
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

    def _end(self) -> None:
        set_phase(self._messages, Phase.END)
        last = self._messages[0]
        self._sequence += 1
        last.head[SEQUENCE] = last.tail[0] = self._sequence
        self._writer.write(last.buffer, self._plan.stall_s)


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
    """A reader's side of a round-trip trial: send back each message until the end mark.

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
        self._received = array("q", bytes(8 * plan.column_count))
        self._warmup_count = 0

    def run(self) -> Ponged:
        """Reply until the end mark; any TransportError goes to the caller."""
        stall_s, tracker = self._plan.stall_s, self._tracker
        while True:
            view = self._read(stall_s)
            phase = unpack_stamp(view)[3]
            if phase == Phase.MEASURE:
                break
            tracker.accept(view, hashing=True)
            if phase == Phase.END:
                return self._outcome(0, *UsageMeter().stop())
            self._warmup_count += 1
            self._reply.write(view, stall_s)
        meter = UsageMeter()
        count = self._reply_to_all(view)
        return self._outcome(count, *meter.stop())

    def _reply_to_all(self, view: memoryview) -> int:
        """Send back the window's messages, beginning with `view`; the hot loop."""
        clock, stamp, stall_s = now_ns, unpack_stamp, self._plan.stall_s
        read, write = self._read, self._reply.write
        received, measure, index, sequence = self._received, int(Phase.MEASURE), 0, self._tracker.last
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
        if index:
            self._tracker.advance(index, sequence, 0)
        self._tracker.accept(view, hashing=True)
        return index

    def _outcome(self, count: int, usage: Usage, collections: int) -> Ponged:
        first = self._warmup_count + 1
        return Ponged(
            columns={
                "sequence": array("q", range(first, first + count)),
                "received_ns": self._received[:count],
            },
            messages_count=count,
            warmup_count=self._warmup_count,
            usage=usage,
            gc_count=collections,
            integrity=self._tracker.result(self._tracker.last),
        )
