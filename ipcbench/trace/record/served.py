"""One call as its server sees it: queued, worked on, answered. Standard library only."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ipcbench.trace.record.call import Call
from ipcbench.trace.record.no_op import Nothing
from ipcbench.util.clock import now_ns

if TYPE_CHECKING:
    from ipcbench.trace.record.context import Context
    from ipcbench.trace.record.thread_recorder import Site


class ServerCall(Call):
    """A call under way at its server. Its block begins with the work.

    Attributes:
        request: what was received, where it was received for the server.
    """

    __slots__ = ("_arrived_ns", "request")

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._arrived_ns = 0
        self.request: Any = None

    def arrive(self, context: Context | None, asked_ns: int, received_ns: int) -> None:
        """Begin the queue, and record what the caller records, as far as a budget here allows it.

        The request came at `received_ns`. As far as the server had not asked for one before `asked_ns`, and the request
        was sent before that, by the same clock, it waited for the server and not on its way. Where `asked_ns` is 0, the
        end of this thread's call before stands for it.
        """
        if context is None:
            self._arrived_ns = received_ns
            return
        self.follow(context)
        lane = self._site.lane
        ready_ns = min(asked_ns or lane.served_ns, received_ns)
        waited = context.boot == lane.boot and 0 < context.sent_ns < ready_ns
        self._arrived_ns = received_ns - (ready_ns - context.sent_ns) if waited else received_ns

    def replying(self, sent_bytes: int = 0) -> None:
        """End the work: a reply of so many bytes is handed over next."""
        self.mark(0, sent_bytes)

    def work_on(self) -> None:
        """Go on with the work: the reply could not be handed over yet."""
        self._cut(1)

    def __enter__(self) -> ServerCall:
        begun_ns = now_ns()
        self._begin_ns = self._arrived_ns or begun_ns
        self._arrived_ns = 0
        self._stamp(begun_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.request = None
        self._site.lane.served_ns = now_ns()


class NotServed(Nothing, ServerCall):
    """A call at its server that is not timed."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing but the request."""
        super().__init__()
        self.request = None

    def arrive(self, context: Context | None, asked_ns: int, received_ns: int) -> None:
        """Ignore it."""

    def replying(self, sent_bytes: int = 0) -> None:
        """Ignore it."""

    def work_on(self) -> None:
        """Ignore it."""

    def __enter__(self) -> ServerCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End nothing."""


NOT_SERVED = NotServed()
