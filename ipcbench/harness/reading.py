"""The reader's part of a one-way trial: follow the writer's phases, keep the window's times, check every message."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ipcbench.backend import Reader
from ipcbench.harness.integrity import Tracker
from ipcbench.harness.loops import (
    HASH_EVERY,
    RUN,
    LoopTotals,
    read_every,
    read_in_runs,
    read_latest,
    read_long,
    touching,
)
from ipcbench.harness.plan import Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Integrity, Usage
from ipcbench.util.clock import now_ns
from ipcbench.workload.codec import Codec
from ipcbench.workload.message import (
    FLAGS,
    INTENDED,
    OVERHEAD_BYTES,
    SENT,
    SEQUENCE,
    STAMP_EVERY,
    TRAILER_BYTES,
    Phase,
    body_matches,
    message_bytes,
    payload_of,
    unpack_word,
)


@dataclass(frozen=True, slots=True)
class Received:
    """What a reader reports: counts, and columns of int64 with one value for each kept message of the window."""

    columns: dict[str, array[int]]
    """`sequence`, `received_ns`, `read_ns`; and `decode_ns`, one for each message of the decode phase."""
    messages_count: int
    warmup_count: int
    usage: Usage
    gc_count: int
    integrity: Integrity
    stamp_stride: int
    """The clock was read around every Nth message of the window, and the columns have no other."""
    totals: dict[str, dict[str, object]]
    """`latency`, `read`: the `LoopTotals` of all messages of a long window; else empty."""


_Read = tuple[memoryview, int, int]
"""A message, and the clock before and after its read."""

_FOREVER = 2**62
_STOPS = {Phase.PAUSE, Phase.END}


def _unchecked(_: memoryview) -> bool:
    return True


class ReaderPart:
    """Follows one trial on an open reader, until the end mark.

    Args:
        reader: the endpoint.
        codec: decodes the messages of the decode phase.
        plan: the trial.
    """

    def __init__(self, reader: Reader, codec: Codec, plan: Plan) -> None:
        self._read = touching(reader.read, plan.trial.touch)
        self._codec = codec
        self._plan = plan
        self._in_runs = False
        self._bytes = message_bytes(plan.trial.payload_bytes)
        self._hashing = plan.trial.touch != "none"
        self._tail = self._bytes - TRAILER_BYTES if self._hashing else 8 * SEQUENCE
        self._body_matches = body_matches if self._hashing else _unchecked
        self._lossless = plan.trial.delivery == "every_message"
        self._tracker = Tracker(plan.trial.delivery, self._bytes)
        column = bytes(8 * (plan.column_count + 1))
        self._received, self._waited = array("q", column), array("q", column)
        self._sequences = array("q", column)
        self._decoded = array("q")
        self._index = self._count = 0
        self._long = (LoopTotals(), LoopTotals()) if plan.stride > 1 and self._lossless else None
        self._warmup_count = 0
        self._meter = UsageMeter([reader])
        self._turns = 0
        self._measuring = False

    def run(self) -> Received:
        """Read until the end mark; any TransportError goes to the caller."""
        return self.finish()

    def warm_up(self) -> None:
        """Read the messages of the warm-up of a trial that takes turns."""
        paced = self._plan.trial.mode == "paced"
        self._follow(sum(self._plan.paced_warmup_counts()) if paced else _FOREVER)

    def turn(self) -> None:
        """Read the messages of the next turn."""
        self._turns += 1
        last = _FOREVER
        if self._plan.trial.mode == "paced":
            window = min(self._turns * self._plan.turn_count(), self._plan.column_count)
            last = sum(self._plan.paced_warmup_counts()) + window
        self._follow(last)
        self._stop_measuring()

    def finish(self) -> Received:
        """Read until the end mark and return what was measured."""
        self._follow(_FOREVER)
        return self._outcome(*self._meter.total())

    def _follow(self, last: int) -> None:
        """Read until message number `last`, a later one, a pause, or the end mark has come."""
        pending: _Read | None = None
        while pending or self._tracker.last < last:
            view, before, after = pending or self._read_one()
            pending = None
            fresh = self._tracker.accept(view, hashing=True)
            phase = unpack_word(view, 8 * FLAGS)[0] if len(view) >= OVERHEAD_BYTES else 0
            if phase > Phase.MEASURE:
                self._stop_measuring()
            if phase == Phase.WARMUP:
                self._warmup_count += 1
            elif phase == Phase.MEASURE:
                if not self._measuring:
                    self._measuring = True
                    self._in_runs = self._lossless and unpack_word(view, 8 * STAMP_EVERY)[0] == RUN
                    self._meter.start()
                if fresh and self._index < self._plan.column_count:
                    self._keep(view, before, after)
                if self._tracker.last < last:
                    pending = self._measure(last) if self._long is None else self._measure_long()
            elif phase == Phase.DECODE and fresh:
                self._decode(view)
            elif phase in _STOPS:  # even a damaged one: nothing follows it
                return

    def _stop_measuring(self) -> None:
        self._meter.stop()
        self._measuring = False

    def _read_one(self) -> _Read:
        before = now_ns()
        view = self._read(self._plan.stall_s)
        return view, before, now_ns()

    def _keep(self, view: memoryview, before: int, after: int) -> None:
        self._received[self._index] = after
        self._waited[self._index] = after - before
        self._sequences[self._index] = unpack_word(view, 8 * SEQUENCE)[0]
        self._index += 1
        self._count += 1
        if self._long is not None:
            self._long[0].add(after - unpack_word(view, 8 * INTENDED)[0])
            self._long[0].keep_least(after - unpack_word(view, 8 * SENT)[0], self._sequences[self._index - 1])
            self._long[1].add(after - before)

    def _measure_long(self) -> _Read:
        """Run the hot loop of a window that is too long to keep every message; otherwise as `_measure`."""
        assert self._long is not None  # noqa: S101 - the caller has checked
        last = self._tracker.last
        count, view, before, after = read_long(
            self._read,
            self._bytes,
            self._tail,
            last,
            self._plan.stride,
            self._plan.stall_s,
            self._body_matches,
            (self._sequences, self._received, self._waited),
            self._count,
            *self._long,
        )
        fresh, self._count = count - self._count, count
        self._index = -(-count // self._plan.stride)
        if fresh:
            hashed = (last + fresh) // HASH_EVERY - last // HASH_EVERY
            self._tracker.advance(fresh, last + fresh, hashed * self._hashing)
        return view, before, after

    def _measure(self, until: int) -> _Read | None:
        """Run the hot loop up to message number `until`; return the message at which it stopped early, if any."""
        start, last, stall_s = self._index, self._tracker.last, self._plan.stall_s
        common = self._read, self._bytes, self._tail, last, stall_s, self._body_matches, self._received, self._waited
        if self._in_runs:
            end, reached, view, before, after = read_in_runs(*common, start, self._plan.column_count)
            self._sequences[start:end] = array("q", range(last + RUN, last + 1 + RUN * (end - start), RUN))
        elif self._lossless:
            stop = min(self._plan.column_count, start + until - last)
            end, view, before, after = read_every(*common, start, stop)
            self._sequences[start:end] = array("q", range(last + 1, last + 1 + end - start))
            reached = last + end - start
        else:
            end, view, before, after = read_latest(*common, self._sequences, start)
            reached = self._sequences[end - 1] if end > start else last
        # What is hashed goes by the sequence number, for latest_value by the index.
        first, final = (last, reached) if self._lossless else (start - 1, end - 1)
        self._index = end
        self._count += final - first
        if final > first:
            hashed = final // HASH_EVERY - first // HASH_EVERY
            self._tracker.advance(final - first, reached, hashed * self._hashing)
        return None if view is None else (view, before, after)

    def _decode(self, view: memoryview) -> None:
        payload = payload_of(view)
        before = now_ns()
        decoded = self._codec.decode(payload)
        self._decoded.append(now_ns() - before)
        del decoded  # it may share the view's memory, which the next read reclaims

    def _outcome(self, usage: Usage, collections: int) -> Received:
        kept = self._index
        return Received(
            columns={
                "sequence": self._sequences[:kept],
                "received_ns": self._received[:kept],
                "read_ns": self._waited[:kept],
                "decode_ns": self._decoded,
            },
            messages_count=self._count,
            warmup_count=self._warmup_count,
            usage=usage,
            gc_count=collections,
            integrity=self._tracker.result(self._tracker.last),
            stamp_stride=RUN if self._in_runs else 1,
            totals={} if self._long is None else {"latency": self._long[0].as_dict(), "read": self._long[1].as_dict()},
        )
