"""`wrap`: what sends and receives messages, recorded from now on. Each kind of thing has a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

_One = TypeVar("_One")

_HOMES = {
    ("ipcbench.backend", "Backend"): ("backend", "wrap_backend"),
    ("ipcbench.backend", "Writer"): ("backend", "wrap_writer"),
    ("ipcbench.backend", "Reader"): ("backend", "wrap_reader"),
    ("zmq.asyncio", "Socket"): ("zmq_async", "wrap_socket"),
    ("zmq.sugar.socket", "Socket"): ("zmq_", "wrap_socket"),
    ("multiprocessing.connection", "_ConnectionBase"): ("multiprocessing_", "wrap_connection"),
    ("multiprocessing.queues", "Queue"): ("multiprocessing_", "wrap_queue"),
    ("multiprocessing.queues", "SimpleQueue"): ("multiprocessing_", "wrap_queue"),
}


def wrap(one: _One, name: str = "", propagate: bool = False) -> _One:
    """Record every message that something sends and receives from now on, and return it, or what takes its place.

    A Backend, its Writer or its Reader is put behind another of the same kind; both sides must be, for a message then
    begins with 40 bytes of context. Sockets, connections and queues are themselves changed; they send the same bytes as
    before unless `propagate` is set.

    Args:
        one: an ipcbench Backend, Writer or Reader, a ZeroMQ socket (also of zmq.asyncio), a multiprocessing Connection,
            Queue, JoinableQueue or SimpleQueue.
        name: what its calls are called in reports; by default its kind or channel.
        propagate: let messages carry the context: a last frame of a ZeroMQ message, 40 bytes behind what a connection
            sends, an envelope in a queue. Both sides must be wrapped so.

    Raises:
        TypeError: it is nothing of this kind.
        ConfigError: this kind of socket has no messages of several frames, which `propagate` needs.
    """
    for kind in type(one).__mro__:
        home = _HOMES.get((kind.__module__, kind.__name__))
        if home is not None:
            module, function = home
            made: Callable[..., Any] = getattr(import_module(f"ipcbench.trace.adapters.{module}"), function)
            done: _One = made(one, name, propagate)
            return done
    raise TypeError(
        f"trace.wrap takes an ipcbench Backend, Writer or Reader, a ZeroMQ socket, or a multiprocessing Connection or "
        f"Queue, not {type(one).__module__}.{type(one).__qualname__}"
    )


def instrument_zmq(propagate: bool = False) -> Callable[[], None]:
    """Wrap every socket that a zmq.Context or zmq.asyncio.Context makes from now on, and return what undoes it.

    Args:
        propagate: as for `wrap`; every process that these sockets talk to must do the same.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
    """
    made: Callable[[bool], Callable[[], None]] = import_module("ipcbench.trace.adapters.zmq_async").instrument
    return made(propagate)
