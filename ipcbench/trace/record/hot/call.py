"""The stages of a call, and its record if nothing is out of the ordinary. Standard library only."""

from __future__ import annotations

from operator import index
from struct import error as StructError  # noqa: N812 # as an exception is written
from types import TracebackType
from typing import Any

from ipcbench.trace.format import MARKER, OWN_TRACE, PACKERS
from ipcbench.util.clock import now_ns


def _sum(one: Any, more: Any) -> Any:
    """Return both together; what is not a number is found out when the record is written."""
    try:
        return index(one) + index(more)
    except TypeError:
        return None


class HotCall:
    """The part of a call that every call goes through.

    Attributes:
        sent_bytes, recv_bytes: what the call moved; may be set, and are by the marks that take a number of bytes.
    """

    __slots__ = ("_append", "_begin_ns", "_marks", "_noted", "_recorded", "_site", "_span", "_trace",
                 "recv_bytes", "sent_bytes")  # fmt: skip

    _recorded: bool

    def __init__(self, site: Any) -> None:
        self._site = site
        self._begin_ns = 0  # while it is not under way
        self._marks: list[int] = []
        self._append = self._marks.append
        self._trace: tuple[int, int] | None = None
        self._span = 0
        self._noted = False
        self.sent_bytes = self.recv_bytes = 0

    def mark(self, recv_bytes: int = 0, sent_bytes: int = 0) -> None:
        """End the current stage; the last one is ended by the end of the block."""
        self._append(now_ns())
        if recv_bytes:
            self.recv_bytes = _sum(self.recv_bytes, recv_bytes) if self.recv_bytes else recv_bytes
        if sent_bytes:
            self.sent_bytes = _sum(self.sent_bytes, sent_bytes) if self.sent_bytes else sent_bytes

    def serialized(self, sent_bytes: int) -> None:
        """RPC: the request is serialized; it has that many bytes."""
        self._append(now_ns())
        self.sent_bytes = _sum(self.sent_bytes, sent_bytes) if self.sent_bytes else sent_bytes

    def sent(self) -> None:
        """RPC: the request is handed over."""
        self._append(now_ns())

    def received(self, recv_bytes: int) -> None:
        """RPC: the reply is here; it has that many bytes."""
        self._append(now_ns())
        self.recv_bytes = _sum(self.recv_bytes, recv_bytes) if self.recv_bytes else recv_bytes

    def _stamp(self, at_ns: int) -> None:
        """End the current stage at a given time."""
        self._append(at_ns)

    def _stamps(self) -> list[int]:
        """Return the ends of the stages so far."""
        return self._marks[:]

    def _cut(self, count: int) -> None:
        """Forget all stamps behind the first so many."""
        del self._marks[count:]

    def _end(self) -> None:
        """Make it ready for the next call, and free."""
        self._marks.clear()
        self._noted = False
        self._trace = None
        if self._begin_ns:  # ended twice, it is free once
            self._site._free.append(self)
        self._begin_ns = self.sent_bytes = self.recv_bytes = self._span = 0

    def __enter__(self) -> Any:
        self._begin_ns = now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_ns = now_ns()
        begin_ns = self._begin_ns
        if not begin_ns:
            return
        site = self._site
        marks = self._marks
        if kind is None and not self._noted and len(marks) <= site.last:
            try:
                if self._recorded:
                    segment = site.segment
                    offset = segment.take()
                    if offset < segment.limit:
                        ends = len(marks) + 1
                        high, low = self._trace or OWN_TRACE
                        PACKERS[ends](segment.buffer, offset, site.heads[ends], high, low, self._span, begin_ns,
                                      *marks, end_ns, self.sent_bytes, self.recv_bytes, offset ^ MARKER)  # fmt: skip
                        if end_ns - begin_ns > site.slowest_ns:  # quicker than max
                            site.slowest_ns = end_ns - begin_ns
                        marks.clear()
                        self._trace = None
                        self._begin_ns = self.sent_bytes = self.recv_bytes = self._span = 0
                        site._free.append(self)
                        return
                elif end_ns - begin_ns <= site.slowest_ns and site.tally is not None:
                    site.tally.add(begin_ns, marks, end_ns, self.sent_bytes, self.recv_bytes, False)
                    self._end()
                    return
            except (StructError, ValueError, TypeError, IndexError):
                pass  # what is wrong is found once more, and counted, on the other way
        self._leave(end_ns, kind)

    def _leave(self, end_ns: int, kind: type[BaseException] | None) -> None:
        """End a call that is not an ordinary one."""
        raise NotImplementedError


class HotNothing(HotCall):
    """A call that is not timed: every mark is accepted, nothing happens."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing."""

    def mark(self, recv_bytes: int = 0, sent_bytes: int = 0) -> None:
        """Ignore it."""

    def serialized(self, sent_bytes: int) -> None:
        """Ignore it."""

    def sent(self) -> None:
        """Ignore it."""

    def received(self, recv_bytes: int) -> None:
        """Ignore it."""
