"""ZeroMQ sockets, recorded: one record per message, whatever the number of its frames.

The object stays the same, only its class becomes one that records, so pollers and options go on working; an instrument
lets the class itself record. It sends the same bytes unless `propagate` is set: then each message except a REP's reply
ends with one more frame of 40 bytes, which the receiver takes off. A receive that finds nothing (zmq.Again) is not a
call; so sockets of gevent, which wait outside libzmq, record as others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, Self

import zmq
import zmq.backend

from ipcbench.errors import ConfigError
from ipcbench.trace.adapters.correlate import Correlate, Pairs, correlate_of, protocols_of
from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.adapters.messages import ONE_WAY, REPLIES, REQUESTS, Traffic
from ipcbench.trace.record.call import NO_OP, Call
from ipcbench.trace.record.context import CONTEXT_BYTES, unpack_context
from ipcbench.trace.record.files import PYZMQS_OWN
from ipcbench.trace.record.hot import HOT_FUNCTIONS
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.record.serve import Arrival, Receiving
from ipcbench.util.clock import now_ns

_SNDMORE = int(zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)

_LONGEST_COPY = 255
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
    send_multipart: Callable[..., Any]
    recv_multipart: Callable[..., Any]
    get: Callable[..., Any]
    close: Callable[..., Any]


def _raw_of(kind: type[zmq.Socket[Any]]) -> Raw:
    multipart = kind.send_multipart, kind.recv_multipart
    return Raw(kind.send, kind.send, kind.recv, kind.recv_into, *multipart, kind.get, kind.close)


# A plain socket sends and receives by what zmq.Socket's own methods call in the end. A frame that is not copied knows
# whether more follow; asking the socket takes longer than receiving.
_Base: Any = zmq.backend.Socket
_PLAIN = _raw_of(zmq.Socket)._replace(send=_Base.send, recv=_Base.recv)


def _size_of(frame: Any) -> int:
    """Return the size of a frame in bytes, without copying it."""
    if type(frame) is bytes or isinstance(frame, zmq.Frame):
        return len(frame)
    try:
        return memoryview(frame).nbytes
    except (ValueError, TypeError, BufferError):  # an array of a type that buffers cannot tell
        return int(getattr(frame, "nbytes", 0))


def _number(flags: Any) -> int:
    """Return flags as a number; 0 for what is none, which the socket refuses."""
    try:
        return int(flags)
    except (TypeError, ValueError):
        return 0


def _as_it_is(frame: Any) -> Any:
    """Return a frame, or a copy of a short one: its buffer may be used again before the message is whole."""
    if type(frame) is bytes or _size_of(frame) > _LONGEST_COPY:
        return frame
    try:
        return bytes(frame)
    except (ValueError, TypeError, BufferError):
        return frame


class SocketTraffic(Traffic):
    """The messages of a socket, frame by frame."""

    __slots__ = ()

    def __init__(self, socket: zmq.Socket[Any], name: str, propagate: bool, correlate: Correlate | str | None) -> None:
        kind: Any = _Base.get(socket, zmq.TYPE)
        if propagate and kind not in _FRAMED:
            raise ConfigError("propagate", propagate, "False for a socket whose messages have one frame")
        super().__init__(name, kind=_KINDS.get(kind, ONE_WAY), propagate=propagate)
        find = None if propagate else correlate_of(correlate, zmq.SocketType(kind).name)
        if find is not None:
            self.pairs = Pairs(self, find, asks=kind != zmq.ROUTER)
            self.protocols = protocols_of(find)
            self.sent_frames, self.received_frames = [], []

    def settle(self) -> None:
        """Set `is_ordinary` after whatever may change it."""
        self.is_ordinary = bool(self.peer) and not self.propagate and self._carried is None

    def carry(self, call: Call) -> None:
        super().carry(call)
        self.settle()

    def start(self, socket: zmq.Socket[Any]) -> tuple[Call | None, int]:
        """Begin a message, unless it is partly sent; return its call, and the bytes that were sent before. A signal
        handler may send on the same socket meanwhile, so nothing of this message stays here until it is sent.
        """
        if not self.peer:
            self.look_up_peer(socket)
        if self.pairs is not None:
            if not self.sent_frames:
                self.begun_ns = now_ns()
            return None, self.sent_bytes
        call, self.sending = self.sending or self.begin(), None
        size, self.sent_bytes = self.sent_bytes, 0
        return call, size

    def sent(self, frame: Any, more: bool, started: tuple[Call | None, int]) -> None:
        """Count a frame that was sent, and end the message with its last one."""
        self.sending, self.sent_bytes = started
        self.sent_bytes += _size_of(frame)
        if self.pairs is not None:
            self.sent_frames.append(_as_it_is(frame))
        if not more:
            size, self.sent_bytes = self.sent_bytes, 0
            if self.pairs is not None:
                self.pairs.sent(self.sent_frames, self.begun_ns, size)
            else:
                call, self.sending = self.sending, None
                self.end(call, size)
            self.settle()

    def failed(self, error: BaseException) -> None:
        """End a message whose sending failed; if it may be sent again, it is not a call."""
        call, self.sending = self.sending, None
        size, self.sent_bytes = self.sent_bytes, 0
        if self.pairs is not None:
            if not isinstance(error, zmq.Again):
                self.pairs.sent(self.sent_frames, self.begun_ns, size, error)
            self.sent_frames.clear()
        elif call is not None:
            self.abandon(call) if isinstance(error, zmq.Again) else self.fail(call, error)
        self.settle()

    def close(self) -> None:
        """End requests that got no reply."""
        super().close()
        if self.pairs is not None:
            self.pairs.close()

    def look_up_peer(self, socket: zmq.Socket[Any]) -> None:
        """Note the endpoint, if there is one yet; without a name, the calls are called by type and endpoint."""
        endpoint: Any = _Base.get(socket, zmq.LAST_ENDPOINT)
        self.peer = endpoint.rstrip(b"\0").decode("utf-8", "replace")
        kind: Any = _Base.get(socket, zmq.TYPE)
        if not self.method:
            self.method = f"{zmq.SocketType(kind).name} {self.peer}".rstrip()
        options = " ".join(f"{name}={_option(socket, name, self.peer)}" for name in _OPTIONS)
        if PYZMQS_OWN not in self.method:
            STATE.recorder.describe(f"{self.method}: {options}")


def _option(socket: zmq.Socket[Any], name: str, peer: str) -> str:
    """Return the value of an option; where the kernel decides, what that is."""
    value: Any = _Base.get(socket, getattr(zmq, name))
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
    traffic: SocketTraffic | None = socket._ipcbench_traffic
    if traffic is None:
        traffic = socket._ipcbench_traffic = SocketTraffic(socket, "", socket._ipcbench_propagates, "auto")
    return traffic


def _carry(self: Any, call: Call) -> Any:
    """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
    traffic_of(self).carry(call)
    return self


_PLAIN_ARGUMENTS = 3
"""Of `send`, after the data: flags, copy, track. Then come a routing id and a group, which only pyzmq's own takes."""


@wraps(zmq.Socket.send)
def _send(self: Any, data: Any, *rest: Any, **kwargs: Any) -> Any:
    traffic = self._ipcbench_traffic or traffic_of(self)
    flags = rest[0] if rest else kwargs.get("flags", 0)
    more = bool(_number(flags) & _SNDMORE)
    adds = traffic.propagate and not more and traffic.kind != REPLIES
    if adds and rest:
        rest = (_number(flags) | _SNDMORE, *rest[1:])
    elif adds:
        kwargs = {**kwargs, "flags": _number(flags) | _SNDMORE}
    is_addressed = len(rest) > _PLAIN_ARGUMENTS or "routing_id" in kwargs or "group" in kwargs
    send = self._ipcbench_raw.send_to if is_addressed else self._ipcbench_raw.send
    started = traffic.start(self)
    try:
        sent = send(self, data, *rest, **kwargs)
        if adds:
            _PLAIN.send(self, traffic.context(started[0] or NO_OP), flags)
    except BaseException as error:
        traffic.sending, traffic.sent_bytes = started
        traffic.failed(error)
        raise
    traffic.sent(data, more, started)
    return sent


@wraps(zmq.Socket.recv)
def _recv(self: Any, *rest: Any, **kwargs: Any) -> Any:
    traffic = self._ipcbench_traffic or traffic_of(self)
    flags = rest[0] if rest else kwargs.get("flags", 0)
    copy = rest[1] if len(rest) > 1 else kwargs.get("copy", True)
    with _receiving(self, traffic):
        if traffic.pending is not None:
            pending, traffic.pending = traffic.pending, None
            frame, more = pending.bytes if copy else pending, pending.more
        else:
            frame = self._ipcbench_raw.recv(self, *rest, **kwargs)  # a class' own may return anything
            more = frame.more if isinstance(frame, zmq.Frame) else bool(_Base.get(self, zmq.RCVMORE))
        size = _size_of(frame)
        if traffic.pairs is not None:
            traffic.received_frames.append(frame if size else b"")
        _count_frame(self, traffic, size, more, flags)
    if isinstance(frame, zmq.Frame):
        frame.more = traffic.is_partial  # a context is no frame of the program's
    return frame


@wraps(zmq.Socket.recv_into)
def _recv_into(self: Any, buffer: Any, /, **kwargs: Any) -> int:
    traffic = self._ipcbench_traffic or traffic_of(self)
    flags = kwargs.get("flags", 0)
    if traffic.pending is not None:
        frame = self.recv(flags)
        view = memoryview(buffer).cast("B")
        room = min(kwargs.get("nbytes", 0) or len(view), len(view), len(frame))
        view[:room] = frame[:room]
        return len(frame)
    with _receiving(self, traffic):
        size: int = self._ipcbench_raw.recv_into(self, buffer, **kwargs)
        if traffic.pairs is not None:
            traffic.received_frames.append(_as_it_is(memoryview(buffer).cast("B")[:size]))
        _count_frame(self, traffic, size, bool(_Base.get(self, zmq.RCVMORE)), flags)
    return size


@contextmanager
def _receiving(socket: Any, traffic: SocketTraffic) -> Iterator[None]:
    """Begin with a message unless it is partly received; a frame whose receiving a handler interrupts is lost."""
    if not traffic.is_partial:
        traffic.asked_ns = now_ns()
        traffic.recv_bytes = 0
        if traffic.pairs is not None:
            traffic.received_frames.clear()
    try:
        yield
    except zmq.Again:
        raise
    except BaseException:
        traffic.is_partial = traffic.is_partial and not socket.closed and bool(_Base.get(socket, zmq.RCVMORE))
        raise


def _count_frame(socket: Any, traffic: SocketTraffic, size: int, more: bool, flags: int) -> None:
    """Count a frame, and end the message with its last one; the context frame does not count."""
    traffic.recv_bytes += size
    context = None
    if more and traffic.propagate:
        following = _PLAIN.recv(socket, flags, False)
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
            traffic.pairs.received(traffic.received_frames, traffic.asked_ns, traffic.recv_bytes)
        traffic.recv_bytes = 0
    traffic.settle()


@wraps(zmq.Socket.close)
def _close(self: Any, *rest: Any, **kwargs: Any) -> None:
    for each in (self, getattr(self, "_shadow_sock", None)):  # an asyncio socket closes the one below it unseen
        if each is not None and each._ipcbench_traffic is not None:
            each._ipcbench_traffic.close()
    self._ipcbench_raw.close(self, *rest, **kwargs)


def _arrival(self: Any) -> Arrival:
    arrival: Arrival = (Receiving if self._ipcbench_traffic is None else self._ipcbench_traffic).arrival
    return arrival


# What a class that records has.
_METHODS: dict[str, Any] = {
    "send": _send,
    "recv": _recv,
    "recv_into": _recv_into,
    "close": _close,
    "carry": _carry,
    "arrival": property(_arrival),
    "_ipcbench_traffic": None,
    "_ipcbench_propagates": False,
}
_HOT_METHODS: dict[str, Any] = {}
if HOT_FUNCTIONS is not None:
    HOT_FUNCTIONS.set_socket_functions(_send, _recv)
    _HOT_METHODS = HOT_FUNCTIONS.socket_methods
_REPLACED = ("send", "recv", "send_multipart", "recv_multipart", "recv_into", "close", "get")


class TracedSocket(Receiving):
    """A socket that records."""

    _ipcbench_traffic: SocketTraffic | None
    carry: Callable[[Call], Self]


def _raw_members(raw: Raw) -> dict[str, Any]:
    return {
        "_ipcbench_raw": raw,
        "_ipcbench_send": staticmethod(raw.send),
        "_ipcbench_recv": staticmethod(raw.recv),
        "_ipcbench_get": staticmethod(raw.get),
    }


@cache
def _traced(kind: type[zmq.Socket[Any]]) -> type[zmq.Socket[Any]]:
    """Return a class of sockets that record and otherwise do as those of `kind` do."""
    is_plain = all(getattr(kind, name) is getattr(zmq.Socket, name) for name in _REPLACED)
    methods = {**_METHODS, **_HOT_METHODS} if is_plain else _METHODS  # a subclass' own may take other arguments
    raw = _PLAIN if is_plain else _raw_of(kind)
    members = {**methods, **_raw_members(raw), "__doc__": f"{kind.__name__}, recorded.", "_repr_cls": kind.__name__}
    return type(f"Traced{kind.__name__.lstrip('_')}", (TracedSocket, kind), members)


@cache
def _propagating(kind: type[zmq.Socket[Any]]) -> type[zmq.Socket[Any]]:
    """Return a class of sockets that record, and that do not show the frame of a context."""
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, **_getters(kind.get)})


def _getters(raw_get: Callable[..., Any]) -> dict[str, Any]:
    def get(self: Any, option: int) -> Any:
        if option == _RCVMORE and self._ipcbench_traffic is not None and self._ipcbench_traffic.propagate:
            return int(self._ipcbench_traffic.is_partial)
        return raw_get(self, option)

    return {"get": get, "getsockopt": get}


def wrap_socket(
    socket: zmq.Socket[Any], name: str = "", propagate: bool = False, correlate: Correlate | str | None = "auto"
) -> zmq.Socket[Any]:
    """Record a socket's messages, and return it."""
    if not isinstance(socket, TracedSocket):
        kind: Any = type(socket)
        traffic = SocketTraffic(socket, name, propagate, correlate)
        if not hasattr(zmq.Socket, "_ipcbench_traffic"):  # an instrumented class records already
            socket.__class__ = _traced(kind)
        if propagate:
            kind = type(socket)
            socket.__class__ = _propagating(kind)
        recorded: Any = socket
        recorded._ipcbench_traffic = traffic
    return socket


def instrument(propagate: bool = False) -> Callable[[], None]:
    """Let every socket record from now on, those that exist too; return a function that undoes it."""
    members = {**_METHODS, **_HOT_METHODS, **_raw_members(_PLAIN), "_ipcbench_propagates": propagate}
    return replaced((zmq.Socket, {**members, **_getters(_PLAIN.get)} if propagate else members))
