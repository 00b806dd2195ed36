"""What a wrapped socket, connection, queue or channel does with each message: record it, and add its context."""

from __future__ import annotations

from typing import Final

from ipcbench.trace.record.call import NO_OP, NO_OP_SERVER_CALL, Call, ServerCall
from ipcbench.trace.record.context import NO_DECISION, Context
from ipcbench.trace.record.hot import HOT_FUNCTIONS, HotTraffic
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.record.serve import Arrival, serve
from ipcbench.trace.schema import EXCHANGE, QUEUE_GET, QUEUE_PUT, RECEIVE, RECEIVER, SEND, SERVER, Schema
from ipcbench.util.clock import now_ns

ONE_WAY: Final = 0
REQUESTS: Final = 1
REPLIES: Final = 2
OBJECTS: Final = 3
"""What a socket's messages are: independent, requests that get replies, or requests that it receives and replies to;
and the objects of a queue, whose sizes nobody knows.
"""


_SENT: Final = {ONE_WAY: SEND, REQUESTS: EXCHANGE, OBJECTS: QUEUE_PUT}


if HOT_FUNCTIONS is not None:
    HOT_FUNCTIONS.set_traffic(STATE, SEND, EXCHANGE, RECEIVE, SERVER, NO_OP_SERVER_CALL)


class Traffic(HotTraffic):
    """The messages of a socket, queue or connection: what happens to each (see HotTraffic)."""

    __slots__ = ()

    _context: Context | None
    _carried: Call | None
    _open: Call | None
    _serving: ServerCall

    def __init__(self, method: str, peer: str = "", kind: int = ONE_WAY, propagate: bool = False) -> None:
        super().__init__(method, peer, kind, propagate)
        self._serving = NO_OP_SERVER_CALL

    @property
    def arrival(self) -> Arrival:
        """How the latest message arrived; when it was asked for says nothing, as that may be after a poll."""
        return Arrival(self._context, 0, self.received_ns)

    def carry(self, call: Call) -> None:
        """Let the next message carry the context of `call`, recorded elsewhere; it then has no record of its own."""
        self._carried = call

    def begin(self) -> Call:
        """Return the call of the message that is about to be sent; pass it to `end`, `abandon` or `fail`."""
        if self._carried is not None:
            return self._carried
        if self.kind == REPLIES:
            self._serving.replying()
            return self._serving
        call = STATE.recorder.call(self.method, _SENT[self.kind], self.peer)
        call.__enter__()
        return call

    def context(self, call: Call) -> bytes:
        """Return the context that travels with the message of a call."""
        return call.context() if STATE.recorder.enabled else NO_DECISION

    def end(self, call: Call, sent_bytes: int) -> None:
        """End a message that was sent."""
        if call is self._carried:
            self._carried = None
        elif self.kind == REQUESTS:
            call.mark(0, sent_bytes)
            self.close()
            self._open = call
        else:
            call.sent_bytes, call._sized = sent_bytes, self.kind != OBJECTS
            call.__exit__(None, None, None)
            if self.kind == REPLIES:
                self._serving = NO_OP_SERVER_CALL

    def abandon(self, call: Call) -> None:
        """Take back a message that was not sent and may be sent again: it is not a call."""
        if self.kind == REPLIES:
            self._serving.work_on()
        elif call is not self._carried:
            call.forget()

    def fail(self, call: Call, error: BaseException) -> None:
        """End a message whose sending failed."""
        if call is self._carried:
            self._carried = None
        else:
            call.__exit__(type(error), error, None)
            if self.kind == REPLIES:
                self._serving = NO_OP_SERVER_CALL

    def arrive(self, asked_ns: int, recv_bytes: int, context: Context | None) -> None:
        """Record a message that arrived, after it was asked for at `asked_ns`."""
        received_ns = self.received_ns = now_ns()
        self._context = context
        if self.kind == REQUESTS:
            if self._open is not None:
                self._open.recv_bytes = recv_bytes
                self._open.__exit__(None, None, None)
                self._open = None
        elif self.kind == REPLIES:
            self._serving = serve(self.arrival, self.method, self.peer)
            self._serving.recv_bytes, self._serving._sized = recv_bytes, True
            self._serving.__enter__()
        else:
            schema = QUEUE_GET if self.kind == OBJECTS else RECEIVE
            self.one_way(schema, asked_ns, received_ns, recv_bytes, context=context)

    def one_way(
        self,
        schema: Schema,
        begin_ns: int,
        end_ns: int,
        size_bytes: int,
        error: BaseException | None = None,
        context: Context | None = None,
    ) -> None:
        """Record a message that is sent (SEND) or received (RECEIVE), and that nobody answers."""
        call = STATE.recorder.call(self.method, schema, self.peer)
        if call is NO_OP:
            return
        call.follow(context)
        call._sized = self.kind != OBJECTS
        if schema.role == RECEIVER:
            call.recv_bytes = size_bytes
        else:
            call.sent_bytes = size_bytes
        if error is None:
            call._finish(begin_ns, end_ns)
        else:
            call._begin_ns = begin_ns
            call._leave(end_ns, type(error))

    def close(self) -> None:
        """End a request that got no reply: that is a failure."""
        if self._open is not None:
            self._open.__exit__(TimeoutError, None, None)
            self._open = None
