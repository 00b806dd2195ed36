"""All connections of multiprocessing, recorded, those inside queues and pools too.

A queue's objects are recorded where their bytes pass, once on each side, even if a pool passes them by the queue's own
methods. This must import nothing of multiprocessing but the module that has just been imported: the others may be half
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.adapters.messages import Traffic
from ipcbench.trace.record.hot import HOT_FUNCTIONS
from ipcbench.trace.record.serve import Receiving
from ipcbench.util.clock import now_ns


def instrument() -> Callable[[], None]:
    """Let every Connection record its messages from now on; return a function that undoes it."""
    kind: Any = Connection
    send, receive = kind._send_bytes, kind._recv_bytes

    def send_bytes(self: Any, buf: Any) -> None:
        if isinstance(self, Receiving):
            return send(self, buf)  # type: ignore[no-any-return] # it records by itself
        traffic = _traffic_of(self)
        call = traffic.begin()
        try:
            send(self, buf)
        except BaseException as error:
            traffic.fail(call, error)
            raise
        traffic.end(call, len(buf))
        return None

    def recv_bytes(self: Any, maxsize: int | None = None) -> Any:
        if isinstance(self, Receiving):
            return receive(self, maxsize)
        asked_ns = now_ns()
        data = receive(self, maxsize)
        if data is not None:
            _traffic_of(self).arrive(asked_ns, data.tell(), None)
        return data

    methods = {"_send_bytes": send_bytes, "_recv_bytes": recv_bytes, "_ipcbench_traffic": None}
    if HOT_FUNCTIONS is not None:
        HOT_FUNCTIONS.set_connection_functions(send_bytes, recv_bytes, send, receive)
        methods.update(HOT_FUNCTIONS.connection_methods)
    return replaced((kind, methods))


def instrument_queues() -> Callable[[], None]:
    """Give the connections in queues and pools the names of their queues; return a function that undoes it."""
    from multiprocessing.queues import Queue, SimpleQueue

    return replaced(*[
        (queue, {name: _naming(getattr(queue, name)) for name in ("__init__", "__setstate__")})
        for queue in (Queue, SimpleQueue)
    ])  # fmt: skip


def _traffic_of(connection: Any) -> Traffic:
    traffic: Traffic | None = connection._ipcbench_traffic
    if traffic is None:
        traffic = connection._ipcbench_traffic = _ordinary("Connection")
    return traffic


def _ordinary(name: str) -> Traffic:
    """Return the traffic of a connection whose messages the code in C may record."""
    traffic = Traffic(name)
    traffic.is_ordinary = True
    return traffic


def _naming(method: Any) -> Any:
    """Return a queue's method that also gives its connections their names."""

    @wraps(method)
    def naming(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        self._reader._ipcbench_traffic = _ordinary(f"{type(self).__name__} get")
        if self._writer is not None:
            self._writer._ipcbench_traffic = _ordinary(f"{type(self).__name__} put")

    return naming
