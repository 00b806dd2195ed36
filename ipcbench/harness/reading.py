"""A reader's part in a trial: follow the writer's phases, keep the window's columns, count what is wrong.

What does not live here: the loops inside the window (loops.py) and the rules of integrity
(ipcbench/measure/integrity.py).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ipcbench.backend import Reader
from ipcbench.clock import now_ns
from ipcbench.codec import Codec
from ipcbench.harness.loops import HASH_EVERY, read_every, read_latest
from ipcbench.harness.placement import touching
from ipcbench.harness.plan import Plan
from ipcbench.measure.integrity import Tracker
from ipcbench.measure.usage import UsageMeter
from ipcbench.message import (
    FLAGS,
    OVERHEAD_BYTES,
    SEQUENCE,
    TRAILER_BYTES,
    Phase,
    body_matches,
    message_bytes,
    payload_of,
    unpack_word,
)
from ipcbench.result import Integrity, Usage


@dataclass(frozen=True, slots=True)
class Received:
    """What a reader reports: columns of int64 over the window, and counts."""

    columns: dict[str, array[int]]
    """`sequence`, `received_ns`, `read_ns`; and `decode_ns`, one for each message of the decode phase."""
    messages_count: int
    warmup_count: int
    usage: Usage
    gc_count: int
    integrity: Integrity


def _anything(_: memoryview) -> bool:
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
        self._bytes = message_bytes(plan.trial.payload_bytes)
        self._tail = 8 * SEQUENCE if plan.trial.touch == "none" else self._bytes - TRAILER_BYTES
        self._body_matches = _anything if plan.trial.touch == "none" else body_matches
        self._lossless = plan.trial.delivery == "every_message"
        self._tracker = Tracker(plan.trial.delivery, self._bytes)
        column = bytes(8 * (plan.column_count + 1))
        self._received, self._waited = array("q", column), array("q", column)
        self._sequences = array("q", column)
        self._decoded = array("q")
        self._index = 0
        self._warmup_count = 0

    def run(self) -> Received:
        """Read until the end mark; any TransportError goes to the caller."""
        meter = UsageMeter()
        usage, collections = meter.stop()
        measuring = False
        pending: tuple[memoryview, int, int] | None = None
        while True:
            view, before, after = pending or self._read_one()
            pending = None
            fresh = self._tracker.accept(view, hashing=True)
            phase = unpack_word(view, 8 * FLAGS)[0] if len(view) >= OVERHEAD_BYTES else 0
            if measuring and phase > Phase.MEASURE:
                usage, collections = meter.stop()
                measuring = False
            if phase == Phase.WARMUP:
                self._warmup_count += 1
            elif phase == Phase.MEASURE:
                if not measuring:
                    measuring = True
                    meter.start()
                if fresh and self._index < self._plan.column_count:
                    self._keep(view, before, after)
                pending = self._measure()
            elif phase == Phase.DECODE and fresh:
                self._decode(view)
            elif phase == Phase.END:  # even if something is wrong with it: nothing will follow
                return self._outcome(usage, collections)

    def _read_one(self) -> tuple[memoryview, int, int]:
        before = now_ns()
        view = self._read(self._plan.stall_s)
        return view, before, now_ns()

    def _keep(self, view: memoryview, before: int, after: int) -> None:
        self._received[self._index] = after
        self._waited[self._index] = after - before
        self._sequences[self._index] = unpack_word(view, 8 * SEQUENCE)[0]
        self._index += 1

    def _measure(self) -> tuple[memoryview, int, int]:
        """Run the hot loop; return the message that it did not understand, and the clock around its read."""
        start, last = self._index, self._tracker.last
        read, stall_s, hashing = self._read, self._plan.stall_s, self._plan.trial.touch != "none"
        if self._lossless:
            end, view, before, after = read_every(
                read, self._bytes, self._tail, last, stall_s, self._body_matches, self._received, self._waited, start
            )
            count = end - start
            self._sequences[start:end] = array("q", range(last + 1, last + 1 + count))
            hashed = ((last + count) // HASH_EVERY - last // HASH_EVERY) * hashing
        else:
            columns = self._received, self._waited, self._sequences
            end, view, before, after = read_latest(
                read, self._bytes, self._tail, last, stall_s, self._body_matches, *columns, start
            )
            count = end - start
            hashed = (-(-end // HASH_EVERY) - -(-start // HASH_EVERY)) * hashing
        self._index = end
        if count:
            self._tracker.advance(count, self._sequences[end - 1], hashed)
        return view, before, after

    def _decode(self, view: memoryview) -> None:
        payload = payload_of(view)
        before = now_ns()
        decoded = self._codec.decode(payload)
        self._decoded.append(now_ns() - before)
        del decoded  # it may share the view's memory, which the next read takes back

    def _outcome(self, usage: Usage, collections: int) -> Received:
        count = self._index
        return Received(
            columns={
                "sequence": self._sequences[:count],
                "received_ns": self._received[:count],
                "read_ns": self._waited[:count],
                "decode_ns": self._decoded,
            },
            messages_count=count,
            warmup_count=self._warmup_count,
            usage=usage,
            gc_count=collections,
            integrity=self._tracker.result(self._tracker.last),
        )
