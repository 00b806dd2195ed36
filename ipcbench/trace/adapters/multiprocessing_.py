"""Connections and queues of multiprocessing, recorded.

The objects stay the same; their class becomes one that records. A connection passed to another process arrives there
plain, a queue arrives recorded.
"""

from __future__ import annotations

from multiprocessing import BufferTooShort, connection
from multiprocessing.connection import Connection
from multiprocessing.queues import JoinableQueue, Queue, SimpleQueue
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from queue import Full
from typing import Any, NamedTuple, Self

from ipcbench.trace.adapters.messages import OBJECTS, ONE_WAY, Traffic
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.context import CONTEXT_BYTES, Context, unpack_context
from ipcbench.trace.record.serve import Receiving
from ipcbench.util.clock import now_ns


class _Carrier(Receiving):
    """The common part of connections and queues."""

    _traffic: Traffic

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call` (with `propagate`); it then has no record of its own."""
        self._traffic.carry(call)
        return self

    def _arrived(self, asked_ns: int, size: int, context: Context | None) -> None:
        self._traffic.arrive(asked_ns, size, context)
        self.arrival = self._traffic.arrival


class TracedConnection(_Carrier, Connection):  # type: ignore[type-arg, unused-ignore]
    """A connection that records each message, with its bytes."""

    def send(self, obj: Any) -> None:
        self.send_bytes(ForkingPickler.dumps(obj))

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        call = self._traffic.begin()
        try:
            view = memoryview(buf).cast("B")[offset:]
            payload = view if size is None else view[:size]
            if self._traffic.propagate and (size is None or len(payload) == size):
                super().send_bytes(b"".join((payload, self._traffic.context(call))))
            else:
                super().send_bytes(buf, offset, size)
        except BaseException as error:
            self._traffic.fail(call, error)
            raise
        self._traffic.end(call, len(payload))

    def recv(self) -> Any:
        return loads(self.recv_bytes())  # noqa: S301 # as multiprocessing itself does

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        asked_ns = now_ns()
        room = CONTEXT_BYTES if self._traffic.propagate and maxlength is not None else 0
        data = super().recv_bytes(None if maxlength is None else maxlength + room)
        context = None
        if self._traffic.propagate:
            context = unpack_context(data, len(data) - CONTEXT_BYTES) if len(data) >= CONTEXT_BYTES else None
            data = data if context is None else data[:-CONTEXT_BYTES]
        self._arrived(asked_ns, len(data), context)
        return data

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        if self._traffic.propagate:
            data = self.recv_bytes()
            view = memoryview(buf).cast("B")[offset:]
            if len(data) > len(view):
                raise BufferTooShort(data)
            view[: len(data)] = data
            return len(data)
        asked_ns = now_ns()
        size = super().recv_bytes_into(buf, offset)
        self._arrived(asked_ns, size, None)
        return size


class _Envelope(NamedTuple):
    """An object in a queue, with the context of its sending."""

    context: bytes
    content: Any


class _Queueing(_Carrier):
    """A queue that records each put and get. Sizes are unknown: objects are pickled in another thread."""

    def put(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        call = self._traffic.begin()
        try:
            content = _Envelope(self._traffic.context(call), obj) if self._traffic.propagate else obj
            super().put(content, *args, **kwargs)  # type: ignore[misc]
        except Full:
            self._traffic.abandon(call)
            raise
        except BaseException as error:
            self._traffic.fail(call, error)
            raise
        self._traffic.end(call, 0)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        asked_ns = now_ns()
        content = super().get(*args, **kwargs)  # type: ignore[misc]
        context = None
        if isinstance(content, _Envelope):
            context, content = unpack_context(content.context), content.content
        self._arrived(asked_ns, 0, context)
        return content

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        return state, self._traffic.method, self._traffic.propagate

    def __setstate__(self, state: Any) -> None:
        inner, method, propagate = state
        super().__setstate__(inner)  # type: ignore[misc]
        self._traffic = Traffic(method, kind=OBJECTS, propagate=propagate)


class TracedQueue(_Queueing, Queue):  # type: ignore[type-arg]
    """A multiprocessing.Queue that records."""


class TracedJoinableQueue(_Queueing, JoinableQueue):  # type: ignore[type-arg]
    """A multiprocessing.JoinableQueue that records."""


class TracedSimpleQueue(_Queueing, SimpleQueue):  # type: ignore[type-arg]
    """A multiprocessing.SimpleQueue that records."""


_KINDS: dict[type, type] = {
    Connection: TracedConnection,
    JoinableQueue: TracedJoinableQueue,
    Queue: TracedQueue,
    SimpleQueue: TracedSimpleQueue,
}


def _wrap(target: Any, name: str, propagate: bool) -> Any:
    if isinstance(target, _Carrier):
        return target
    if type(target) not in _KINDS:
        raise TypeError(f"trace.wrap takes multiprocessing's own classes, not a subclass such as {type(target)}")
    kind = OBJECTS if isinstance(target, (Queue, SimpleQueue)) else ONE_WAY
    target._traffic = Traffic(name, kind=kind, propagate=propagate)
    target.__class__ = _KINDS[type(target)]
    return target


def wrap_connection(target: Any, name: str = "", propagate: bool = False) -> Any:
    """Record a connection's messages, and return it."""
    reduce: Any = vars(connection)["reduce_connection"]  # another process gets a plain connection
    ForkingPickler.register(TracedConnection, reduce)
    return _wrap(target, name or "Connection", propagate)


def wrap_queue(target: Any, name: str = "", propagate: bool = False) -> Any:
    """Record a queue's puts and gets, and return it."""
    return _wrap(target, name or type(target).__name__, propagate)
