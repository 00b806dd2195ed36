"""ZeroMQ sockets of zmq.asyncio, recorded, and contexts that make recorded sockets.

An asyncio socket moves its messages through a plain socket under it, at the moment when they really go and come. The
plain socket records, so a future that waits or is cancelled is not a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import zmq
import zmq.asyncio

from ipcbench.trace.adapters.zmq_ import TracedSocket
from ipcbench.trace.adapters.zmq_ import wrap_socket as wrap_plain
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.serve import Arrival, Receiving


class TracedAsyncSocket(zmq.asyncio.Socket, Receiving):
    """A socket of zmq.asyncio that records."""

    propagates = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[misc]
        _wrap_under(self, "", self.propagates)

    @property
    def _under(self) -> TracedSocket:
        under: Any = self._shadow_sock
        return under  # type: ignore[no-any-return] # _wrap_under made it one

    @property
    def arrival(self) -> Arrival:  # type: ignore[override]
        """How the latest message arrived."""
        return self._under.arrival

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
        self._under.carry(call)
        return self

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._under.traffic().pending is None:
            return super().recv(flags, copy, track)
        return self._done(self._under.recv(flags, copy, track))

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._under.traffic().pending is None:
            return super().recv_multipart(flags, copy, track)
        return self._done(self._under.recv_multipart(flags, copy, track))

    def _done(self, result: Any) -> Any:
        """Return a finished future, for a frame that is here already: polling the socket would not show it."""
        future: Any = self._Future()
        future.set_result(result)
        return future

    def get(self, key: int) -> Any:
        return self._under.get(key) if key == zmq.RCVMORE else super().get(key)

    getsockopt = get  # type: ignore[assignment]

    def close(self, linger: int | None = None) -> None:
        self._under.traffic().close()
        super().close(linger)


def _wrap_under(socket: zmq.asyncio.Socket, name: str, propagate: bool) -> None:
    under: Any = socket._shadow_sock
    wrap_plain(under, name, propagate)


def wrap_socket(socket: zmq.asyncio.Socket, name: str = "", propagate: bool = False) -> zmq.asyncio.Socket:
    """Record a socket's messages, and return it."""
    if not isinstance(socket, TracedAsyncSocket):
        _wrap_under(socket, name, propagate)
        socket.__class__ = TracedAsyncSocket
    return socket


def instrument(propagate: bool) -> Callable[[], None]:
    """Let contexts make recording sockets; return a function that undoes it for sockets made later."""
    kinds: list[tuple[Any, type]] = [(zmq.Context, TracedSocket), (zmq.asyncio.Context, TracedAsyncSocket)]
    before = [(context, context.__dict__["_socket_class"]) for context, _ in kinds]
    for context, kind in kinds:
        context._socket_class = type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "propagates": propagate})

    def undo() -> None:
        for context, kind in before:
            context._socket_class = kind

    return undo
