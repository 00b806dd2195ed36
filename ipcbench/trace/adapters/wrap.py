"""`wrap` records what something sends and receives from now on; it chooses the adapter by class."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from ipcbench.trace.adapters.correlate import Correlate

_Target = TypeVar("_Target")

_ADAPTERS = {
    ("ipcbench.backend", "Backend"): ("backend", "wrap_backend"),
    ("ipcbench.backend", "Writer"): ("backend", "wrap_writer"),
    ("ipcbench.backend", "Reader"): ("backend", "wrap_reader"),
    ("zmq.asyncio", "Socket"): ("zmq_async", "wrap_socket"),
    ("zmq.sugar.socket", "Socket"): ("zmq_", "wrap_socket"),
    ("multiprocessing.connection", "_ConnectionBase"): ("multiprocessing_", "wrap_connection"),
    ("multiprocessing.queues", "Queue"): ("multiprocessing_", "wrap_queue"),
    ("multiprocessing.queues", "SimpleQueue"): ("multiprocessing_", "wrap_queue"),
}


def wrap(
    target: _Target, name: str = "", propagate: bool = False, correlate: Correlate | str | None = "auto"
) -> _Target:
    """Record every message that `target` sends and receives from now on, and return it or its replacement.

    A Backend, Writer or Reader is replaced by another around it. Both sides must be wrapped, because each message then
    begins with 40 bytes of context. Sockets, connections and queues are changed in place; they send the same bytes as
    before unless `propagate` is set.

    Args:
        target: an ipcbench Backend, Writer or Reader, a ZeroMQ socket (also of zmq.asyncio), a multiprocessing
            Connection, Queue, JoinableQueue or SimpleQueue.
        name: of its calls in reports; by default its kind or channel, of a ZeroMQ socket its type and endpoint.
        propagate: let messages carry the context: as the last frame of a ZeroMQ message, as 40 bytes after what a
            connection sends, as an envelope in a queue. Both sides must be wrapped with it.
        correlate: returns for the frames of a message on a ZeroMQ socket its `Ids`, so that a DEALER's requests and a
            ROUTER's replies are told; or `jupyter` or `envelope`. By default, the messages of Jupyter, and those of a
            REQ at a ROUTER, are told.

    Raises:
        TypeError: `target` is none of these.
        ConfigError: `propagate` needs messages of several frames, which this kind of socket does not have.
    """
    for kind in type(target).__mro__:
        adapter = _ADAPTERS.get((kind.__module__, kind.__name__))
        if adapter is not None:
            module, function = adapter
            options = {"correlate": correlate} if module.startswith("zmq") else {}
            wrapped: _Target = getattr(import_module(f"ipcbench.trace.adapters.{module}"), function)(
                target, name, propagate, **options
            )
            return wrapped
    raise TypeError(
        f"trace.wrap takes an ipcbench Backend, Writer or Reader, a ZeroMQ socket, or a multiprocessing Connection or "
        f"Queue, not {type(target).__module__}.{type(target).__qualname__}"
    )


def instrument_zmq(propagate: bool = False) -> Callable[[], None]:
    """Record the messages of every ZeroMQ socket from now on, those of zmq.asyncio and zmq.green too; return a function
    that undoes it.

    Args:
        propagate: as for `wrap`; every process that these sockets talk to must do the same. An asyncio socket must be
            made after this.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
    """
    undo: Callable[[], None] = import_module("ipcbench.trace.adapters.zmq_").instrument(propagate)
    if not propagate:
        return undo
    undo_async: Callable[[], None] = import_module("ipcbench.trace.adapters.zmq_async").instrument()

    def undo_both() -> None:
        undo_async()
        undo()

    return undo_both
