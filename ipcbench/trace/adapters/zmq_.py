"""ZeroMQ sockets, recorded: one record per message, whatever the number of its frames.

The object stays the same, only its class becomes one that records, so pollers and options go on working. It sends the
same bytes unless `propagate` is set: then each message except a REP's reply ends with one more frame of 40 bytes, which
the receiver takes off. A receive that finds nothing (zmq.Again) is not a call.
"""

from __future__ import annotations

from typing import Any, Self

import zmq
import zmq.backend

from ipcbench.errors import ConfigError
from ipcbench.trace.adapters.messages import ONE_WAY, REPLIES, REQUESTS, Traffic
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.context import CONTEXT_BYTES, unpack_context
from ipcbench.trace.record.serve import Receiving
from ipcbench.util.clock import now_ns

_SNDMORE = int(zmq.SNDMORE)

# What zmq.Socket's own methods call in the end. A frame that is not copied knows whether more follow; asking the socket
# takes longer than receiving.
_Base: Any = zmq.backend.Socket
_send, _recv = _Base.send, _Base.recv

_KINDS = {zmq.REQ: REQUESTS, zmq.REP: REPLIES}
_FRAMED = {zmq.PAIR, zmq.PUB, zmq.SUB, zmq.REQ, zmq.REP, zmq.DEALER, zmq.ROUTER, zmq.PULL, zmq.PUSH, zmq.XPUB, zmq.XSUB}


def _size_of(frame: Any) -> int:
    """Return the size of a frame in bytes, without copying it."""
    return len(frame) if type(frame) is bytes or isinstance(frame, zmq.Frame) else memoryview(frame).nbytes


class SocketTraffic(Traffic):
    """The messages of a socket, frame by frame.

    Attributes:
        sending: the call whose message is partly sent; None between two messages.
        is_partial: whether more frames of the message being received follow.
        pending: the next of them, if it had to be received early.
    """

    __slots__ = ("asked_ns", "is_partial", "pending", "recv_bytes", "sending", "sent_bytes")

    def __init__(self, socket: zmq.Socket[Any], name: str, propagate: bool) -> None:
        kind: Any = socket.get(zmq.TYPE)
        if propagate and kind not in _FRAMED:
            raise ConfigError("propagate", propagate, "False for a socket whose messages have one frame")
        super().__init__(name or zmq.SocketType(kind).name, kind=_KINDS.get(kind, ONE_WAY), propagate=propagate)
        self.sending: Call | None = None
        self.pending: Any = None
        self.is_partial = False
        self.asked_ns = self.recv_bytes = self.sent_bytes = 0

    def look_up_peer(self, socket: zmq.Socket[Any]) -> None:
        """Note the endpoint, if there is one yet."""
        endpoint: Any = socket.get(zmq.LAST_ENDPOINT)
        self.peer = endpoint.rstrip(b"\0").decode("utf-8", "replace")


class TracedSocket(zmq.Socket, Receiving):  # type: ignore[type-arg]
    """A socket that records. A socket of an instrumented context begins with its first message.

    Attributes:
        propagates: what `propagate` is for the sockets of an instrumented context.
    """

    _traffic: SocketTraffic | None = None
    propagates = False

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
        self.traffic().carry(call)
        return self

    def traffic(self) -> SocketTraffic:
        """Return what records this socket's messages."""
        if self._traffic is None:
            self._traffic = SocketTraffic(self, "", self.propagates)
        return self._traffic

    def send(  # type: ignore[override]
        self, data: Any, flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any
    ) -> Any:
        traffic = self._traffic or self.traffic()
        call = traffic.sending
        if call is None:
            if not traffic.peer:
                traffic.look_up_peer(self)
            call = traffic.begin()
        flags = int(flags)
        more = flags & _SNDMORE
        adds = traffic.propagate and not more and traffic.kind != REPLIES
        data_flags = flags | _SNDMORE if adds else flags
        try:
            if kwargs:
                sent = super().send(data, data_flags, copy, track, **kwargs)
            else:
                sent = _send(self, data, data_flags, copy, track)
            if adds:
                _send(self, traffic.context(call), flags)
            traffic.sent_bytes += _size_of(data)
        except BaseException as error:
            (traffic.abandon(call) if isinstance(error, zmq.Again) else traffic.fail(call, error))
            traffic.sending = None
            traffic.sent_bytes = 0
            raise
        if more:
            traffic.sending = call
        else:
            traffic.end(call, traffic.sent_bytes)
            traffic.sending = None
            traffic.sent_bytes = 0
        return sent

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        traffic = self._traffic or self.traffic()
        if not traffic.is_partial:
            traffic.asked_ns = now_ns()
        frame = traffic.pending
        if frame is None:
            frame = _recv(self, flags, False, track)
        else:
            traffic.pending = None
        self._count_frame(traffic, len(frame), frame.more, flags)
        return frame.bytes if copy else frame

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        traffic = self._traffic or self.traffic()
        if traffic.pending is not None:
            frame = self.recv(flags)
            view = memoryview(buffer).cast("B")
            room = min(nbytes or len(view), len(view), len(frame))
            view[:room] = frame[:room]
            return len(frame)
        if not traffic.is_partial:
            traffic.asked_ns = now_ns()
        size: int = super().recv_into(buffer, nbytes=nbytes, flags=flags)
        self._count_frame(traffic, size, bool(super().get(zmq.RCVMORE)), flags)
        return size

    def _count_frame(self, traffic: SocketTraffic, size: int, more: bool, flags: int) -> None:
        """Count a frame, and end the message with its last one; the context frame does not count."""
        traffic.recv_bytes += size
        context = None
        if more and traffic.propagate:
            following = _recv(self, flags, False)
            if len(following) == CONTEXT_BYTES and not following.more:
                context = unpack_context(following.buffer)
            if context is None:
                traffic.pending = following
            else:
                more = False
        traffic.is_partial = more
        if not more:
            if not traffic.peer:
                traffic.look_up_peer(self)
            traffic.arrive(traffic.asked_ns, traffic.recv_bytes, context)
            self.__dict__["arrival"] = traffic.arrival
            traffic.recv_bytes = 0

    def get(self, option: int) -> Any:
        if option == zmq.RCVMORE and self._traffic is not None and self._traffic.propagate:
            return int(self._traffic.is_partial)
        return super().get(option)

    getsockopt = get

    def close(self, linger: int | None = None) -> None:
        if self._traffic is not None:
            self._traffic.close()
        super().close(linger)


def wrap_socket(socket: zmq.Socket[Any], name: str = "", propagate: bool = False) -> zmq.Socket[Any]:
    """Record a socket's messages, and return it."""
    if not isinstance(socket, TracedSocket):
        traffic = SocketTraffic(socket, name, propagate)
        socket.__class__ = TracedSocket
        socket._traffic = traffic
    return socket
