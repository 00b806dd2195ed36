"""A traced call: a context manager whose marks end its stages.

`Call` is a call at its client, or without sides; `ServerCall` is a call at its server. A no-op stands for a call that
is not timed; under a budget, most calls are no-ops.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812 # as an exception is written
from typing import Any
from weakref import ref

from ipcbench.trace.buffers import describe
from ipcbench.trace.format import CALL, EMPTY, FAILED, KEPT, MARKER, OVERRUN, OWN_TRACE, PACK_HEAD, PACKERS
from ipcbench.trace.record.context import MAGIC, SAMPLED, VERSION, Context, pack_context
from ipcbench.trace.record.files import BOOT
from ipcbench.trace.record.hot import HotCall, HotNoOp
from ipcbench.trace.record.thread_recorder import CallSite
from ipcbench.trace.schema import SERVER, Schema
from ipcbench.util.clock import now_ns


class Call(HotCall):
    """A call under way. It belongs to its `with` block and must not be used after it."""

    __slots__ = ("__weakref__", "_buffers")

    _call_site: CallSite

    def __init__(self, call_site: CallSite) -> None:
        super().__init__(call_site)
        self._buffers = ""

    def context(self) -> bytes:
        """Return the 40 bytes that travel with the request, stamped now; ask for them just before sending.

        The record then has a trace id and a span id, by which the server's record is joined to it. The context of a
        call that is not recorded asks the server for no record either; how long it waits there is known all the same.
        """
        if not self._recorded:
            return pack_context(MAGIC, VERSION, 0, self._call_site.thread.boot, 0, 0, 0, now_ns())
        thread = self._call_site.thread
        if not self._span:
            self._span = next(thread.spans)
            if self._trace is None:
                self._trace = (thread.trace_high, self._span)
        high, low = self._trace or OWN_TRACE
        return pack_context(MAGIC, VERSION, SAMPLED, thread.boot, high, low, self._span, now_ns())

    def buffers(self, *request: object) -> None:
        """Note what the request consists of: arrays, other buffers, or texts such as `float32[64,128]`."""
        if self._recorded:
            self._buffers = describe(request) + self._buffers[self._buffers.find(">") :] * (">" in self._buffers)
            self._noted = True

    def reply_buffers(self, *reply: object) -> None:
        """Note what the reply consists of."""
        if self._recorded:
            self._buffers = f"{self._buffers.partition('>')[0]}>{describe(reply)}"
            self._noted = True

    def follow(self, context: Context | None) -> None:
        """Belong to the caller's trace, and be recorded if the caller is, as far as the budget here allows it."""
        if context is not None:
            if context.sampled is not None:
                self._recorded = bool(context.sampled) and (self._call_site.thread.governor is None or self._recorded)
            if context.span:
                self._trace, self._span = (context.high, context.low), context.span

    def forget(self) -> None:
        """Discard the call instead of ending it, for example when a socket had nothing to give."""
        self._buffers = ""
        self._end()

    def _leave(self, end_ns: int, kind: type[BaseException] | None) -> None:
        """End a call that is not an ordinary recorded one."""
        call_site, marks = self._call_site, self._stamps()
        flags = 0 if kind is None else FAILED
        if self._sized and not (self.sent_bytes or self.recv_bytes):
            flags |= EMPTY
        if len(marks) > call_site.last_stage:
            flags |= OVERRUN
            del marks[call_site.last_stage :]
        total_ns = end_ns - self._begin_ns
        if not self._recorded and (total_ns > call_site.slowest_ns or flags & FAILED):
            flags |= KEPT
            self._recorded = True
        call_site.slowest_ns = max(total_ns, call_site.slowest_ns)
        try:
            if not (self._recorded and self._record(marks, end_ns, flags, kind)):
                histograms = call_site.histograms or call_site.thread.make_histograms(call_site)
                histograms.add(self._begin_ns, marks, end_ns, self.sent_bytes, self.recv_bytes, bool(flags & FAILED))
        except (StructError, ValueError, TypeError):
            call_site.thread.lost_count += 1
        self._buffers = ""
        self._end()
        if end_ns >= call_site.look_ns and not call_site.always:
            call_site.look()

    def _record(self, marks: list[int], end_ns: int, flags: int, kind: type[BaseException] | None) -> bool:
        """Write the record and the names that it needs; return whether there was room."""
        call_site, thread = self._call_site, self._call_site.thread
        segment = call_site.segment
        buffers_id = (
            thread.name_id(self._buffers) or 0 if self._buffers else 0
        )  # names precede the record that uses them
        offset: int | None = segment.take()
        if offset is None or offset >= segment.limit:
            offset = thread.take_slot(call_site)
            if offset is None:
                return False
            segment = call_site.segment
            buffers_id = thread.name_id(self._buffers) or 0 if self._buffers else 0
        ends = len(marks) + 1
        if flags or buffers_id:
            error_id = 0 if kind is None else thread.name_id(kind.__name__) or 0
            head = PACK_HEAD(CALL, flags, ends, call_site.schema.role, *call_site.ids, error_id, buffers_id)
        else:
            head = call_site.heads[ends]
        high, low = self._trace or OWN_TRACE
        PACKERS[ends](segment.buffer, offset, head, high, low, self._span, self._begin_ns, *marks, end_ns,
                      self.sent_bytes, self.recv_bytes, offset ^ MARKER)  # fmt: skip
        return True


class ServerCall(Call):
    """A call under way at its server. Its block begins with the work.

    Attributes:
        request: what was received, where `requests` received it for the server.
    """

    __slots__ = ("_arrived_ns", "request")

    def __init__(self, call_site: CallSite) -> None:
        super().__init__(call_site)
        self._arrived_ns = 0
        self.request: Any = None

    def arrive(self, context: Context | None, asked_ns: int, received_ns: int) -> None:
        """Begin the queue stage, and record the call if its caller does, as far as the budget here allows it.

        The request came at `received_ns`. If it was sent, by the same clock, before the server asked for it at
        `asked_ns`, it spent the time between in the server's queue and not on its way. Where `asked_ns` is 0, the end
        of this thread's previous call stands for it.
        """
        if context is None:
            self._arrived_ns = received_ns
            return
        self.follow(context)
        thread = self._call_site.thread
        ready_ns = min(asked_ns or thread.served_ns, received_ns)
        waited = context.boot == thread.boot and 0 < context.sent_ns < ready_ns
        self._arrived_ns = received_ns - (ready_ns - context.sent_ns) if waited else received_ns

    def replying(self, sent_bytes: int = 0) -> None:
        """End the work: a reply of this size is sent next."""
        self.mark(0, sent_bytes)

    def work_on(self) -> None:
        """Go back to the work: the reply could not be sent yet."""
        self._cut(1)

    def __enter__(self) -> ServerCall:
        begun_ns = now_ns()
        self._begin_ns = self._arrived_ns or begun_ns
        self._arrived_ns = 0
        self._stamp(begun_ns)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        self.request = None
        self._call_site.thread.served_ns = now_ns()


class NoOpCall(HotNoOp, Call):
    """A call that is not timed: everything is accepted, nothing happens."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing; what is set is ignored."""
        self.sent_bytes = self.recv_bytes = 0

    def context(self) -> bytes:
        """Return a context that asks for no record."""
        return pack_context(MAGIC, VERSION, 0, BOOT, 0, 0, 0, now_ns())

    def _ignore(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""

    buffers = reply_buffers = follow = forget = _ignore


NO_OP = NoOpCall()

# A `with` statement calls these faster than methods, which it would have to bind first. Most calls take this path.
NoOpCall.__enter__ = ref(NO_OP)  # type: ignore[method-assign, assignment] # returns it
NoOpCall.__exit__ = "".format  # type: ignore[method-assign, assignment] # takes anything, returns something false


class NoOpServerCall(NoOpCall, ServerCall):
    """A call at its server that is not timed."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing but the request."""
        super().__init__()
        self.request = None

    arrive = replying = work_on = NoOpCall._ignore

    def __enter__(self) -> ServerCall:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Do nothing."""


NO_OP_SERVER_CALL = NoOpServerCall()


def call_kind(schema: Schema) -> type[Call]:
    """Return the class of the calls of a schema."""
    return ServerCall if schema is SERVER else Call
