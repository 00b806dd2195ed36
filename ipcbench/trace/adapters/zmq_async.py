"""ZeroMQ sockets of zmq.asyncio, recorded, and contexts that make recorded sockets.

An asyncio socket moves its messages through a plain socket under it, at the moment when they really go and come. The
plain socket records, so a future that waits or is cancelled is not a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import zmq
import zmq.asyncio

from ipcbench.trace.adapters import zmq_
from ipcbench.trace.adapters.correlate import Correlate
from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.serve import Arrival, Receiving


class TracedAsyncSocket(zmq.asyncio.Socket, Receiving):
    """A socket of zmq.asyncio that records."""

    propagates = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[misc]
        zmq_.wrap_socket(self._under, "", self.propagates)

    @property
    def _under(self) -> Any:
        return self._shadow_sock

    @property
    def arrival(self) -> Arrival:  # type: ignore[override]
        """How the latest message arrived."""
        arrival: Arrival = self._under.arrival
        return arrival

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
        self._under.carry(call)
        return self

    def recv(self, *rest: Any, **named: Any) -> Any:
        if zmq_.traffic_of(self._under).pending is None:
            return super().recv(*rest, **named)
        return self._done(self._under.recv(*rest, **named))

    def recv_multipart(self, *rest: Any, **named: Any) -> Any:
        if zmq_.traffic_of(self._under).pending is None:
            return super().recv_multipart(*rest, **named)
        return self._done(self._under.recv_multipart(*rest, **named))

    def _done(self, result: Any) -> Any:
        """Return a finished future, for a frame that is here already: polling the socket would not show it."""
        future: Any = self._Future()
        future.set_result(result)
        return future

    def get(self, key: int) -> Any:
        return self._under.get(key) if key == zmq.RCVMORE else super().get(key)

    getsockopt = get  # type: ignore[assignment]

    def close(self, *rest: Any, **named: Any) -> None:
        zmq_.traffic_of(self._under).close()
        super().close(*rest, **named)


@cache
def _traced(kind: type[zmq.asyncio.Socket]) -> type[TracedAsyncSocket]:
    """Return a class of sockets that record and otherwise do as those of `kind` do."""
    return (
        TracedAsyncSocket
        if kind is zmq.asyncio.Socket
        else type(f"Traced{kind.__name__}", (TracedAsyncSocket, kind), {})
    )


def wrap_socket(
    socket: zmq.asyncio.Socket, name: str = "", propagate: bool = False, correlate: Correlate | str | None = "auto"
) -> zmq.asyncio.Socket:
    """Record a socket's messages, and return it."""
    if not isinstance(socket, TracedAsyncSocket):
        under: Any = socket._shadow_sock
        zmq_.wrap_socket(under, name, propagate, correlate)
        kind: Any = type(socket)
        socket.__class__ = _traced(kind)
    return socket


def instrument() -> Callable[[], None]:
    """Let contexts make sockets that record and propagate; return a function that undoes it for sockets made later."""
    kind = type("TracedAsyncSocket", (TracedAsyncSocket,), {"__doc__": TracedAsyncSocket.__doc__, "propagates": True})
    return replaced((zmq.asyncio.Context, {"_socket_class": kind}))
