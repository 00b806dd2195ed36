"""The hot path of a traced call in Python: the counterpart of the C files, with the same names and the same results.

Only what every call needs is here. The rare cases (a failure, a full segment, a note of buffers) go to methods of the
subclasses.
"""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable
from operator import index
from random import Random
from struct import error as StructError  # noqa: N812 # as an exception is written
from typing import Any, Generic, TypeVar

from ipcbench.trace.format import (
    CELL_BYTES,
    HEADER_BYTES,
    HISTOGRAMS_BYTES,
    LAST_OCTAVE,
    LATE_CHOICE,
    MARKER,
    OWN_TRACE,
    PACK_SUMS,
    PACKERS,
    RECORD_BYTES,
    SUM_CELLS,
    SUMS_EVERY,
    bin_of,
)
from ipcbench.trace.ids import TraceId
from ipcbench.trace.schema import MAX_STAGES, RPC, Schema
from ipcbench.util.bins import BINS_PER_OCTAVE
from ipcbench.util.clock import now_ns

_Call = TypeVar("_Call")

_SUMS_AT = (HEADER_BYTES + CELL_BYTES, HEADER_BYTES + SUM_CELLS // 2 * CELL_BYTES)
_MAX_SUM = 2**64 - 1
_MAX_BYTES = 2**63


class Slots:
    """The slots of a mapped file, taken one after the other.

    Attributes:
        take: returns the offset of the next free slot, atomically; at `limit` or above there is none.
        buffer: the mapped file.
        limit: its size in bytes.
    """

    __slots__ = ("buffer", "limit", "take")

    take: Callable[[], int]

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.limit = len(buffer)
        self.take = itertools.count(HEADER_BYTES, RECORD_BYTES).__next__

    def release(self) -> None:
        """Release the buffer; no free slots remain."""
        self.limit = 0


class HotHistograms:
    """The bins and sums of the calls of one method in one thread, in a mapped file."""

    __slots__ = ("_cells", "_stage_ns", "_sums", "_sums_at", "buffer")

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self._cells: memoryview[int] = memoryview(buffer)[HEADER_BYTES:HISTOGRAMS_BYTES].cast("Q")
        self._sums_at = _SUMS_AT[0]
        self._sums = [0] * 6
        self._stage_ns = [0] * MAX_STAGES

    def add(self, begin_ns: int, marks: list[int], end_ns: int, sent_bytes: int, recv_bytes: int, failed: bool) -> None:
        """Add one call: its begin, the ends of all stages but the last (at most 6), its end, and its bytes.

        Raises:
            ValueError, TypeError: times out of order, or byte counts that no sum can hold; nothing is added.
        """
        sent_bytes, recv_bytes = index(sent_bytes), index(recv_bytes)
        if not (0 <= sent_bytes < _MAX_BYTES and 0 <= recv_bytes < _MAX_BYTES):
            raise ValueError("a number of bytes is negative or too large")
        total_ns = end_ns - begin_ns
        if total_ns < 0:
            raise ValueError("a call ended before it began")
        octave = total_ns.bit_length() - 8
        if 0 < octave < LAST_OCTAVE:  # bin_of inline
            self._cells[SUM_CELLS + octave * BINS_PER_OCTAVE + (total_ns >> octave)] += 1
        else:
            self._cells[SUM_CELLS + bin_of(total_ns)] += 1
        sums = self._sums
        sums[0] = calls_count = sums[0] + 1
        sums[2] += sent_bytes
        sums[3] += recv_bytes
        sums[4] += total_ns
        sums[5] = max(sums[5], total_ns)
        stages = self._stage_ns
        stage = 0
        for mark in marks:
            stages[stage] += mark - begin_ns
            begin_ns = mark
            stage += 1  # quicker than enumerate
        stages[stage] += end_ns - begin_ns
        if failed or calls_count < SUMS_EVERY or not calls_count % SUMS_EVERY:
            sums[1] += failed
            self.put()

    def add_untimed(self, calls_count: int) -> None:
        """Add a number of calls that were not timed."""
        self._cells[0] += calls_count

    def put(self) -> None:
        """Write the sums to the copy that was not written last time (see format.PACK_SUMS)."""
        self._sums_at = _SUMS_AT[self._sums_at == _SUMS_AT[0]]
        sums = [value & _MAX_SUM for value in (*self._sums, *self._stage_ns, self._sums[0])]
        PACK_SUMS(self.buffer, self._sums_at, *sums)

    def release(self) -> None:
        """Release the buffer; nothing more can be added."""
        self._cells.release()


def _sum(old: Any, more: Any) -> Any:
    """Return the sum of two byte counts; None if one is not a number, which fails when the record is written."""
    try:
        return index(old) + index(more)
    except TypeError:
        return None


class HotCall:
    """The part of a call that every call goes through.

    Attributes:
        sent_bytes, recv_bytes: what the call moved; can be set, and the marks that take a number of bytes add to them.
    """

    __slots__ = ("_append", "_begin_ns", "_call_site", "_marks", "_noted", "_recorded", "_sized", "_span",
                 "_trace", "_warm_up", "recv_bytes", "sent_bytes")  # fmt: skip

    _recorded: bool
    _warm_up: bool

    def __init__(self, call_site: HotCallSite) -> None:
        self._call_site = call_site
        self._begin_ns = 0  # while it is not under way
        self._marks: list[int] = []
        self._append = self._marks.append
        self._trace: tuple[int, int] | None = None
        self._span = 0
        self._noted = self._sized = False
        self.sent_bytes = self.recv_bytes = 0

    def mark(self, recv_bytes: int = 0, sent_bytes: int = 0) -> None:
        """End the current stage; the end of the block ends the last one."""
        self._append(now_ns())
        if recv_bytes:
            self.recv_bytes = _sum(self.recv_bytes, recv_bytes) if self.recv_bytes else recv_bytes
        if sent_bytes:
            self.sent_bytes = _sum(self.sent_bytes, sent_bytes) if self.sent_bytes else sent_bytes

    def serialized(self, sent_bytes: int) -> None:
        """RPC: the request is serialized and has this size."""
        self._append(now_ns())
        self._sized = True
        self.sent_bytes = _sum(self.sent_bytes, sent_bytes) if self.sent_bytes else sent_bytes

    def sent(self) -> None:
        """RPC: the request has been sent."""
        self._append(now_ns())

    def received(self, recv_bytes: int) -> None:
        """RPC: the reply is here and has this size."""
        self._append(now_ns())
        self._sized = True
        self.recv_bytes = _sum(self.recv_bytes, recv_bytes) if self.recv_bytes else recv_bytes

    def _stamp(self, at_ns: int) -> None:
        """End the current stage at a given time."""
        self._append(at_ns)

    def _stamps(self) -> list[int]:
        """Return the ends of the stages so far."""
        return self._marks[:]

    def _cut(self, count: int) -> None:
        """Forget all stamps after the first `count`."""
        del self._marks[count:]

    def _end(self) -> None:
        """Reset the call and make it free for reuse."""
        self._marks.clear()
        self._noted = self._sized = False
        self._trace = None
        if self._begin_ns:  # a call that ends twice is freed once
            self._call_site._free.append(self)
        self._begin_ns = self.sent_bytes = self.recv_bytes = self._span = 0

    def _finish(self, begin_ns: int, end_ns: int) -> None:
        """End a call that lasted from one time to another, without an error."""
        self._begin_ns = begin_ns
        if self._warm_up:
            self._end()
        else:
            self._leave(end_ns, None)

    def __enter__(self) -> Any:
        self._begin_ns = now_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        end_ns = now_ns()
        begin_ns = self._begin_ns
        if self._warm_up or not begin_ns:
            self._end()
            return
        call_site = self._call_site
        marks = self._marks
        is_empty = self._sized and not (self.sent_bytes or self.recv_bytes)
        if kind is None and not self._noted and not is_empty and len(marks) <= call_site.last_stage:
            try:
                if self._recorded:
                    segment = call_site.segment
                    offset = segment.take()
                    if offset < segment.limit:
                        ends = len(marks) + 1
                        high, low = self._trace or OWN_TRACE
                        PACKERS[ends](segment.buffer, offset, call_site.heads[ends], high, low, self._span, begin_ns,
                                      *marks, end_ns, self.sent_bytes, self.recv_bytes, offset ^ MARKER)  # fmt: skip
                        if end_ns - begin_ns > call_site.slowest_ns:  # quicker than max
                            call_site.slowest_ns = end_ns - begin_ns
                        marks.clear()
                        self._trace, self._sized = None, False
                        self._begin_ns = self.sent_bytes = self.recv_bytes = self._span = 0
                        call_site._free.append(self)
                        if end_ns >= call_site.look_ns and not call_site.always:
                            call_site.look()
                        return
                elif end_ns - begin_ns <= call_site.slowest_ns and call_site.histograms is not None:
                    call_site.histograms.add(begin_ns, marks, end_ns, self.sent_bytes, self.recv_bytes, False)
                    self._end()
                    if end_ns >= call_site.look_ns and not call_site.always:
                        call_site.look()
                    return
            except (StructError, ValueError, TypeError, IndexError):
                pass  # _leave meets the same error again, and counts it
        self._leave(end_ns, kind)

    def _leave(self, end_ns: int, kind: type[BaseException] | None) -> None:
        """End a call that is not an ordinary one."""
        raise NotImplementedError


class HotNoOp(HotCall):
    """A call that is not timed: every mark is accepted, nothing happens."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing."""

    def mark(self, recv_bytes: int = 0, sent_bytes: int = 0) -> None:
        """Do nothing."""

    def serialized(self, sent_bytes: int) -> None:
        """Do nothing."""

    def sent(self) -> None:
        """Do nothing."""

    def received(self, recv_bytes: int) -> None:
        """Do nothing."""


class HotCallSite:
    """One method in one thread: which of its calls are recorded, and what they need at once.

    Attributes:
        kind: the class of its calls.
        segment: the segment that `heads` belong to.
        heads: the first bytes of its ordinary records, by the number of stage ends.
        histograms: of its calls without a record; None before the first.
        last_stage: the number of the last stage.
        always: whether every call is recorded; if not, on average one in `period`.
        untimed: whether the calls between recorded ones are counted without reading the clock.
        look_ns: the time from which the end of a timed call calls `look`: not its begin, since that takes a while.
        late_ns: the time from which the next look is overdue: calls have become rarer, or longer; 0 if it cannot be.
        slowest_ns: the longest call so far.

    Args:
        no_op: stands for calls that are only counted.
        seed: determines which calls are recorded.
    """

    __slots__ = ("_counted", "_free", "_no_op", "_passed", "_random", "_timed_left", "_unstored",
                 "_untimed_left", "always", "heads", "histograms", "kind", "last_stage", "late_ns", "look_ns", "period",
                 "segment", "slowest_ns", "untimed")  # fmt: skip

    kind: type[HotCall]
    segment: Slots
    heads: tuple[bytes, ...]
    last_stage: int

    def __init__(self, no_op: HotCall, seed: int) -> None:
        self._no_op = no_op
        self._random = Random(seed).random  # noqa: S311 # not a secret
        self._free: list[HotCall] = []
        self.histograms: HotHistograms | None = None
        self.always = self.untimed = False
        self.period = 1
        self.look_ns = self.slowest_ns = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew, with a call that is timed."""
        self._untimed_left = 0  # how many of the next calls are only counted
        self._timed_left = 1  # how many calls follow those, up to and including the next recorded one
        self._passed, self._counted = 1, 0  # what `passed` returns, plus what is left of both
        self._unstored = self.late_ns = 0

    def begin(self) -> Any:
        """Return a free call and decide whether it is recorded; return the no-op for a call that is only counted.

        Of those, the last before one that is timed is timed, too, and then discarded: the next one should find what it
        needs in the caches, as the calls do for which it stands.
        """
        is_counted = self._untimed_left > 0 and self._counts()
        if is_counted and self._untimed_left:
            return self._no_op
        call = self._free.pop() if self._free else self.kind(self)
        call._warm_up = is_counted
        if is_counted:
            call._recorded = False
            return call
        if self.always:
            call._recorded = True
            return call
        self._timed_left -= 1
        call._recorded = self._timed_left <= 0
        if call._recorded:
            self.draw()
        return call

    def _counts(self) -> bool:
        """Count a call; return False if it should be timed after all."""
        if self.late_ns and now_ns() >= self.late_ns:
            self._be_late()
            if not self._untimed_left:
                return False
        self._untimed_left -= 1
        histograms = self.histograms
        try:
            if histograms is not None:
                histograms.add_untimed(1)  # at once: the process may be killed
            else:
                self._unstored += 1
        except ValueError:  # they have just been closed
            self._unstored += 1
        return True

    def _be_late(self) -> None:
        """Time one of the next calls: since the latest look, calls have become rarer, or longer."""
        left = int(self._random() * LATE_CHOICE)
        self.late_ns = 0
        self.be_late()
        if left < self._untimed_left:
            self._passed -= self._untimed_left - left
            self._counted -= self._untimed_left - left
            self._untimed_left = left

    def take_unstored(self) -> int:
        """Return how many calls were only counted since the last time, while no histograms were there to count them."""
        unstored, self._unstored = self._unstored, 0
        return unstored

    def draw(self) -> None:
        """Choose the distance to the next recorded call: random, so that no rhythm of the application is hit."""
        count = 1 + int(self._random() * (2 * self.period - 1))
        untimed_count = count - 1 if self.untimed else 0
        self._passed += count - self._untimed_left - self._timed_left
        self._counted += untimed_count - self._untimed_left
        self._untimed_left, self._timed_left = untimed_count, count - untimed_count

    def passed(self) -> tuple[int, int]:
        """Return how many calls there were since the last time, and how many of them were only counted."""
        passed = self._passed - self._untimed_left - self._timed_left
        counted = self._counted - self._untimed_left
        self._passed -= passed
        self._counted -= counted
        return passed, counted

    def look(self) -> None:
        """Decide how calls are taken from now on; must at least set `look_ns`."""
        raise NotImplementedError

    def be_late(self) -> None:
        """Separate the calls so far from those to come, among which one will soon be timed."""
        raise NotImplementedError


class HotRecorder(Generic[_Call]):
    """Begins calls.

    Args:
        local: has the `entries` of each thread: call sites by method, or by method, id of the schema, and peer.
    """

    __slots__ = ("_local", "_rpc")

    def __init__(self, local: threading.local, rpc: Schema) -> None:
        self._local = local
        self._rpc = rpc

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> _Call:
        """Begin a call: use it with `with`. The arguments are those of `ipcbench.trace.call`."""
        try:
            call_site = self._local.entries[method if schema is RPC and not peer else (method, id(schema), peer)]
        except (AttributeError, KeyError):
            return self._slow_call(method, schema, peer, trace_id)
        if call_site._untimed_left and call_site._counts():  # as in `begin`: under a budget, most calls take this path
            no_op: _Call = call_site._no_op
            return no_op
        if trace_id is not None:
            return self._slow_call(method, schema, peer, trace_id)
        call: _Call = call_site.begin()
        return call

    def _slow_call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> _Call:
        """Begin a call whose call site does not exist yet, or one that is not ordinary."""
        raise NotImplementedError


class HotTraffic:
    """The messages of a socket, queue or connection.

    Attributes:
        method, peer: the names of its calls.
        kind: what its messages are, as in messages.py.
        propagate: whether messages carry contexts.
        received_ns: when the latest message was there.
        is_ordinary: whether the code in C may record the next message: without a context, at a known peer.
        sending: the call whose message is partly sent; None between two messages.
        is_partial: whether more frames of the message being received follow.
        pending: the next of them, if it had to be received early.
        pairs: which messages answer others; None if nothing can tell, or contexts tell.
        protocols: by which of those of correlate.py they do.
        sent_frames, received_frames: of the message that is being sent, and of the one being received; lists if there
            are `pairs`.
        asked_ns, begun_ns: when the message being received was asked for, and when the one being sent began, if there
            are `pairs`.
        sent_bytes, recv_bytes: of the frames so far.
    """

    __slots__ = ("_carried", "_context", "_open", "_serving", "asked_ns", "begun_ns", "is_ordinary", "is_partial",
                 "kind", "method", "pairs", "peer", "pending", "propagate", "protocols", "received_frames",
                 "received_ns", "recv_bytes", "sending", "sent_bytes", "sent_frames")  # fmt: skip

    def __init__(self, method: str, peer: str, kind: int, propagate: bool) -> None:
        self.method = method
        self.peer = peer
        self.kind = kind
        self.protocols = 0
        self.propagate = propagate
        self.is_ordinary = self.is_partial = False
        self.asked_ns = self.begun_ns = self.received_ns = self.sent_bytes = self.recv_bytes = 0
        self.sending: Any = None
        self.pending: Any = None
        self.pairs: Any = None
        self.sent_frames: Any = None
        self.received_frames: Any = None
        self._carried: Any = None
        self._context: Any = None
        self._open: Any = None
        self._serving: Any = None
