"""One traced call: a context manager whose marks end its stages. Standard library only."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812 # as an exception is written
from typing import TYPE_CHECKING

from ipcbench.trace.format import CALL, FAILED, KEPT, MARKER, OVERRUN, OWN_TRACE, PACK_HEAD, PACKERS
from ipcbench.trace.record.buffers import describe
from ipcbench.trace.record.context import MAGIC, NO_CONTEXT, SAMPLED, VERSION, pack_context
from ipcbench.trace.record.hot import HotCall
from ipcbench.util.clock import now_ns

if TYPE_CHECKING:
    from ipcbench.trace.record.context import Context
    from ipcbench.trace.record.thread_recorder import Site


class Call(HotCall):
    """A call under way. It belongs to its `with` block and must not be used after it.

    Attributes:
        sent_bytes, recv_bytes: what the call moved; may be set, and are by the marks that take a number of bytes.
    """

    __slots__ = ("__weakref__", "_buffers")

    _site: Site

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._buffers = ""

    def context(self) -> bytes:
        """Return the 40 bytes that are to travel with the request, stamped now; ask for them just before it is sent.

        The record then has a trace id and a span id, by which the server's record is joined to it. A call that is not
        recorded asks for no record there either.
        """
        if not self._recorded:
            return NO_CONTEXT
        lane = self._site.lane
        if not self._span:
            self._span = next(lane.spans)
            if self._trace is None:
                self._trace = (lane.trace_high, self._span)
        high, low = self._trace or OWN_TRACE
        return pack_context(MAGIC, VERSION, SAMPLED, lane.boot, high, low, self._span, now_ns())

    def buffers(self, *request: object) -> None:
        """Say what the request is made of: arrays, other buffers, or texts such as `float32[64,128]`."""
        if self._recorded:
            self._buffers = describe(request) + self._buffers[self._buffers.find(">") :] * (">" in self._buffers)
            self._noted = True

    def reply_buffers(self, *reply: object) -> None:
        """Say what the reply is made of."""
        if self._recorded:
            self._buffers = f"{self._buffers.partition('>')[0]}>{describe(reply)}"
            self._noted = True

    def follow(self, context: Context | None) -> None:
        """Be of the call that a context is of, recorded if that is, as far as a budget here allows it."""
        if context is not None:
            if context.sampled is not None:
                self._recorded = bool(context.sampled) and (self._site.lane.governor is None or self._recorded)
            if context.span:
                self._trace, self._span = (context.high, context.low), context.span

    def forget(self) -> None:
        """There was no call after all, such as when a socket had nothing to give; use it instead of ending the call."""
        self._buffers = ""
        self._end()

    def _leave(self, end_ns: int, kind: type[BaseException] | None) -> None:
        """End a call that is not an ordinary recorded one."""
        site, marks = self._site, self._stamps()
        flags = 0 if kind is None else FAILED
        if len(marks) > site.last:
            flags |= OVERRUN
            del marks[site.last :]
        total_ns = end_ns - self._begin_ns
        if not self._recorded and (total_ns > site.slowest_ns or flags & FAILED):
            flags |= KEPT
            self._recorded = True
        site.slowest_ns = max(total_ns, site.slowest_ns)
        try:
            if not (self._recorded and self._record(marks, end_ns, flags, kind)):
                tally = site.tally or site.lane.tally(site)
                tally.add(self._begin_ns, marks, end_ns, self.sent_bytes, self.recv_bytes, bool(flags & FAILED))
        except (StructError, ValueError, TypeError):
            site.lane.lost_count += 1
        self._buffers = ""
        self._end()

    def _record(self, marks: list[int], end_ns: int, flags: int, kind: type[BaseException] | None) -> bool:
        """Write the record, with whatever it needs beside it; return whether there was room."""
        site, lane = self._site, self._site.lane
        segment = site.segment
        layout_id = lane.name_id(self._buffers) or 0 if self._buffers else 0  # a name is in front of what uses it
        offset: int | None = segment.take()
        if offset is None or offset >= segment.limit:
            offset = lane.room(site)
            if offset is None:
                return False
            segment = site.segment
            layout_id = lane.name_id(self._buffers) or 0 if self._buffers else 0
        ends = len(marks) + 1
        if flags or layout_id:
            error_id = 0 if kind is None else lane.name_id(kind.__name__) or 0
            head = PACK_HEAD(CALL, flags, ends, site.schema.role, *site.ids, error_id, layout_id)
        else:
            head = site.heads[ends]
        high, low = self._trace or OWN_TRACE
        PACKERS[ends](segment.buffer, offset, head, high, low, self._span, self._begin_ns, *marks, end_ns,
                      self.sent_bytes, self.recv_bytes, offset ^ MARKER)  # fmt: skip
        return True
