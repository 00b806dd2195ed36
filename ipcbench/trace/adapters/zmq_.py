"""ZeroMQ sockets, recorded: one record per message, whatever the number of its frames.

The object stays the same, only its class becomes one that records, so pollers and options go on working; an instrument
lets the class itself record. It sends the same bytes unless `propagate` is set: then each message except a REP's reply
ends with one more frame of 40 bytes, which the receiver takes off. A receive that finds nothing (zmq.Again) is not a
call; so sockets of gevent, which wait outside libzmq, record as others do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import zmq
import zmq.backend

from ipcbench.errors import ConfigError
from ipcbench.trace.adapters.correlate import Correlate, Pairs, correlate_of
from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.adapters.messages import ONE_WAY, REPLIES, REQUESTS, Traffic
from ipcbench.trace.record.call import NO_OP_SERVER_CALL, Call
from ipcbench.trace.record.context import CONTEXT_BYTES, unpack_context
from ipcbench.trace.record.files import PYZMQS_OWN
from ipcbench.trace.record.hot import SOCKET_FUNCTIONS
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.record.serve import Arrival, Receiving
from ipcbench.trace.schema import EXCHANGE, RECEIVE, SEND, SERVER
from ipcbench.util.clock import now_ns

_SNDMORE = int(zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)

_KINDS = {zmq.REQ: REQUESTS, zmq.REP: REPLIES}
_FRAMED = {zmq.PAIR, zmq.PUB, zmq.SUB, zmq.REQ, zmq.REP, zmq.DEALER, zmq.ROUTER, zmq.PULL, zmq.PUSH, zmq.XPUB, zmq.XSUB}
_OPTIONS = ("SNDHWM", "RCVHWM", "SNDBUF", "RCVBUF", "LINGER", "IMMEDIATE")
"""Those that are told of a socket: how much it and the kernel keep, and what becomes of that."""


class Raw(NamedTuple):
    """What a class of sockets does without recording."""

    send: Callable[..., Any]
    send_to: Callable[..., Any]
    """With a routing id or a group."""
    recv: Callable[..., Any]
    recv_into: Callable[..., Any]
    get: Callable[..., Any]
    close: Callable[..., Any]


def _raw_of(kind: type[zmq.Socket[Any]]) -> Raw:
    return Raw(kind.send, kind.send, kind.recv, kind.recv_into, kind.get, kind.close)


# A plain socket sends and receives by what zmq.Socket's own methods call in the end. A frame that is not copied knows
# whether more follow; asking the socket takes longer than receiving.
_Base: Any = zmq.backend.Socket
_PLAIN = _raw_of(zmq.Socket)._replace(send=_Base.send, recv=_Base.recv)


def _size_of(frame: Any) -> int:
    """Return the size of a frame in bytes, without copying it."""
    return len(frame) if type(frame) is bytes or isinstance(frame, zmq.Frame) else memoryview(frame).nbytes


class SocketTraffic(Traffic):
    """The messages of a socket, frame by frame.

    Attributes:
        is_ordinary: whether the next message may be one that the code in C records: of one frame, without a context,
            and not paired by ids.
        sending: the call whose message is partly sent; None between two messages.
        is_partial: whether more frames of the message being received follow.
        pending: the next of them, if it had to be received early.
        pairs: which of its messages answer others; None if nothing can tell, or contexts tell.
    """

    __slots__ = ("asked_ns", "begun_ns", "is_ordinary", "is_partial", "pairs", "pending", "recv_bytes", "sending",
                 "sent_bytes")  # fmt: skip

    def __init__(self, socket: zmq.Socket[Any], name: str, propagate: bool, correlate: Correlate | str | None) -> None:
        kind: Any = socket.get(zmq.TYPE)
        if propagate and kind not in _FRAMED:
            raise ConfigError("propagate", propagate, "False for a socket whose messages have one frame")
        super().__init__(name, kind=_KINDS.get(kind, ONE_WAY), propagate=propagate)
        find = None if propagate else correlate_of(correlate, zmq.SocketType(kind).name)
        self.pairs = None if find is None else Pairs(self, find, asks=kind != zmq.ROUTER)
        self.sending: Call | None = None
        self.pending: Any = None
        self.is_partial = self.is_ordinary = False
        self.asked_ns = self.begun_ns = self.recv_bytes = self.sent_bytes = 0

    def settle(self) -> None:
        """Set `is_ordinary` after whatever may change it."""
        state = (self.propagate, self.pairs, self.is_partial, self.pending, self.sending, self._carried)
        self.is_ordinary = bool(self.peer) and not any(state)

    def carry(self, call: Call) -> None:
        super().carry(call)
        self.settle()

    def failed(self, call: Call, error: BaseException) -> None:
        """End a message whose sending failed, or take it back if it may be sent again."""
        self.abandon(call) if isinstance(error, zmq.Again) else self.fail(call, error)

    def received_frame(self, socket: Any, frame: Any, flags: int) -> None:
        """Take a frame that has arrived."""
        _count_frame(socket, self, len(frame), frame.more, flags)

    def close(self) -> None:
        """End requests that got no reply."""
        super().close()
        if self.pairs is not None:
            self.pairs.close()

    def look_up_peer(self, socket: zmq.Socket[Any]) -> None:
        """Note the endpoint, if there is one yet; without a name, the calls are called by type and endpoint."""
        endpoint: Any = socket.get(zmq.LAST_ENDPOINT)
        self.peer = endpoint.rstrip(b"\0").decode("utf-8", "replace")
        kind: Any = socket.get(zmq.TYPE)
        if not self.method:
            self.method = f"{zmq.SocketType(kind).name} {self.peer}".rstrip()
        options = " ".join(f"{name}={_option(socket, name, self.peer)}" for name in _OPTIONS)
        if PYZMQS_OWN not in self.method:
            STATE.recorder.describe(f"{self.method}: {options}")


def _option(socket: zmq.Socket[Any], name: str, peer: str) -> str:
    """Return the value of an option; where the kernel decides, what that is."""
    value: Any = socket.get(getattr(zmq, name))
    if name not in {"SNDBUF", "RCVBUF"} or value >= 0:
        return str(value)
    side = "w" if name == "SNDBUF" else "r"
    paths = {"tcp": f"ipv4/tcp_{side}mem", "ipc": f"core/{side}mem_default"}
    try:
        words = Path("/proc/sys/net", paths[peer.partition(":")[0]]).read_text(encoding="ascii").split()
    except (OSError, KeyError):
        return str(value)
    return f"{value} (the kernel begins with {int(words[len(words) // 2]):,} B)"  # least, default, most; or default


def traffic_of(socket: Any) -> SocketTraffic:
    """Return what records a socket's messages; one of an instrumented class begins with its first message."""
    traffic: SocketTraffic | None = socket._traffic
    if traffic is None:
        traffic = socket._traffic = SocketTraffic(socket, "", socket._propagates, "auto")
    return traffic


def _carry(self: Any, call: Call) -> Any:
    """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
    traffic_of(self).carry(call)
    return self


def _send(self: Any, data: Any, flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any) -> Any:
    traffic = self._traffic or traffic_of(self)
    if traffic.pairs is not None:
        return _send_paired(self, traffic, data, int(flags), copy, track, **kwargs)
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
            sent = self._raw.send_to(self, data, data_flags, copy, track, **kwargs)
        else:
            sent = self._raw.send(self, data, data_flags, copy, track)
        if adds:
            self._raw.send(self, traffic.context(call), flags)
        traffic.sent_bytes += _size_of(data)
    except BaseException as error:
        traffic.failed(call, error)
        traffic.sending = None
        traffic.sent_bytes = 0
        traffic.settle()
        raise
    if more:
        traffic.sending = call
    else:
        traffic.end(call, traffic.sent_bytes)
        traffic.sending = None
        traffic.sent_bytes = 0
    traffic.settle()
    return sent


def _send_paired(self: Any, traffic: SocketTraffic, data: Any, flags: int, *rest: Any, **kwargs: Any) -> Any:
    """Send a frame on a socket whose messages are told apart when they are whole."""
    pairs: Any = traffic.pairs
    if not pairs.frames:
        if not traffic.peer:
            traffic.look_up_peer(self)
        traffic.begun_ns = now_ns()
    try:
        sent = self._raw.send_to(self, data, flags, *rest, **kwargs)
    except BaseException as error:
        if not isinstance(error, zmq.Again):
            pairs.sent(traffic.begun_ns, traffic.sent_bytes, error)
        pairs.frames.clear()
        traffic.sent_bytes = 0
        raise
    pairs.frames.append(data)
    traffic.sent_bytes += _size_of(data)
    if not flags & _SNDMORE:
        pairs.sent(traffic.begun_ns, traffic.sent_bytes)
        traffic.sent_bytes = 0
    return sent


def _recv(self: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
    traffic = self._traffic or traffic_of(self)
    if not traffic.is_partial:
        traffic.asked_ns = now_ns()
    frame = traffic.pending
    if frame is None:
        frame = self._raw.recv(self, flags, False, track)
    else:
        traffic.pending = None
    if traffic.pairs is not None:
        traffic.pairs.received_frames.append(frame)
    _count_frame(self, traffic, len(frame), frame.more, flags)
    return frame.bytes if copy else frame


def _recv_into(self: Any, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
    traffic = self._traffic or traffic_of(self)
    if traffic.pending is not None:
        frame = self.recv(flags)
        view = memoryview(buffer).cast("B")
        room = min(nbytes or len(view), len(view), len(frame))
        view[:room] = frame[:room]
        return len(frame)
    if not traffic.is_partial:
        traffic.asked_ns = now_ns()
    size: int = self._raw.recv_into(self, buffer, nbytes=nbytes, flags=flags)
    if traffic.pairs is not None:
        traffic.pairs.received_frames.append(memoryview(buffer).cast("B")[:size])
    _count_frame(self, traffic, size, bool(self._raw.get(self, zmq.RCVMORE)), flags)
    return size


def _count_frame(socket: Any, traffic: SocketTraffic, size: int, more: bool, flags: int) -> None:
    """Count a frame, and end the message with its last one; the context frame does not count."""
    traffic.recv_bytes += size
    context = None
    if more and traffic.propagate:
        following = socket._raw.recv(socket, flags, False)
        if len(following) == CONTEXT_BYTES and not following.more:
            context = unpack_context(following.buffer)
        if context is None:
            traffic.pending = following
        else:
            more = False
    traffic.is_partial = more
    if not more:
        if not traffic.peer:
            traffic.look_up_peer(socket)
        if traffic.pairs is None:
            traffic.arrive(traffic.asked_ns, traffic.recv_bytes, context)
        else:
            traffic.pairs.received(traffic.asked_ns, traffic.recv_bytes)
        traffic.recv_bytes = 0
    traffic.settle()


def _get(self: Any, option: int) -> Any:
    if option == _RCVMORE and self._traffic is not None and self._traffic.propagate:
        return int(self._traffic.is_partial)
    return self._raw.get(self, option)


def _close(self: Any, linger: int | None = None) -> None:
    if self._traffic is not None:
        self._traffic.close()
    self._raw.close(self, linger)


def _arrival(self: Any) -> Arrival:
    arrival: Arrival = (Receiving if self._traffic is None else self._traffic).arrival
    return arrival


if SOCKET_FUNCTIONS is not None:
    SOCKET_FUNCTIONS.set_socket_functions(_send, _recv, STATE, SEND, EXCHANGE, RECEIVE, SERVER, NO_OP_SERVER_CALL)
_METHODS: dict[str, Any] = {
    "send": _send if SOCKET_FUNCTIONS is None else SOCKET_FUNCTIONS.socket_send,
    "recv": _recv if SOCKET_FUNCTIONS is None else SOCKET_FUNCTIONS.socket_recv,
    "recv_into": _recv_into,
    "get": _get,
    "getsockopt": _get,
    "close": _close,
    "carry": _carry,
    "arrival": property(_arrival),
    "_traffic": None,
    "_propagates": False,
}
"""What a class that records has."""


class TracedSocket(Receiving):
    """A socket that records."""

    _traffic: SocketTraffic | None
    carry: Callable[[Call], Self]


def _raw_members(raw: Raw) -> dict[str, Any]:
    return {"_raw": raw, "_raw_send": staticmethod(raw.send), "_raw_recv": staticmethod(raw.recv)}


@cache
def _traced(kind: type[zmq.Socket[Any]]) -> type[zmq.Socket[Any]]:
    """Return a class of sockets that record and otherwise do as those of `kind` do."""
    raw = _PLAIN if kind is zmq.Socket else _raw_of(kind)
    members = {**_METHODS, **_raw_members(raw), "__doc__": f"{kind.__name__}, recorded.", "_repr_cls": kind.__name__}
    return type(f"Traced{kind.__name__.lstrip('_')}", (TracedSocket, kind), members)


def wrap_socket(
    socket: zmq.Socket[Any], name: str = "", propagate: bool = False, correlate: Correlate | str | None = "auto"
) -> zmq.Socket[Any]:
    """Record a socket's messages, and return it."""
    if not isinstance(socket, TracedSocket):
        traffic = SocketTraffic(socket, name, propagate, correlate)
        if not hasattr(zmq.Socket, "_traffic"):  # an instrumented class records already
            kind: Any = type(socket)
            socket.__class__ = _traced(kind)
        recorded: Any = socket
        recorded._traffic = traffic
    return socket


def instrument(propagate: bool = False) -> Callable[[], None]:
    """Let every socket record from now on, those that exist too; return a function that undoes it."""
    members = {**_METHODS, **_raw_members(_PLAIN), "_propagates": propagate}
    return replaced((zmq.Socket, members))
