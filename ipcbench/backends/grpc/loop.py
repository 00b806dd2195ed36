"""The process's one event loop for gRPC, in a thread of its own, and how other threads wait for what it does."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.interrupts import start_thread

_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""Read by gRPC as it is imported: what goes wrong is raised, not printed; and a fork does nothing to its parent."""

for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)
try:
    import grpc.aio
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
    library: Any = None
else:
    absence, library = None, grpc
"""Why the library is not there; the backend's `probe` says how to install it."""

SERVICE, METHOD = "ipcbench.Channel", "Read"

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),  # nobody else may listen at the writer's port
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each reader
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 2**24 - 1),  # a large message is not cut into 16 KiB
)

_CREDIT_BYTES, _LEAST_COUNT = 2**24, 4

_Result = TypeVar("_Result")
_starting = threading.Lock()
_loops: list[tuple[int, asyncio.AbstractEventLoop]] = []
"""The loop, with its process."""
kept: list[object] = []
"""In a forked child: its parent's objects. To free them would touch a library whose threads the child does not have."""


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt."""
    count = min(channel.depth, max(_LEAST_COUNT, _CREDIT_BYTES // max(1, channel.max_message_bytes)))
    batch = max(1, count // 2)
    return count + batch - 1, batch


def running() -> asyncio.AbstractEventLoop:
    """Return the loop of this process, which the first call starts.

    Raises:
        TransportError: there can be no thread, or this is a forked child of a process that has used gRPC.
    """
    with _starting:
        if not _loops:
            loop = asyncio.new_event_loop()
            try:
                start_thread(loop.run_forever)
            except RuntimeError as error:
                loop.close()
                raise TransportError(f"no thread for gRPC: {error}; raise the limit of processes") from error
            _loops.append((os.getpid(), loop))
    pid, loop = _loops[0]
    if pid != os.getpid():
        raise TransportError("gRPC cannot be used in a forked child of a process that has used it: start it by `spawn`")
    return loop


def done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Have the loop do `work`; return what it returns."""
    return asyncio.run_coroutine_threadsafe(work, running()).result()


class News:
    """What one thread waits for: the loop tells that it has changed something. There is no lock that an exception of a
    signal handler could leave held; see `ipcbench.sync.latest`.
    """

    def __init__(self) -> None:
        self._told = threading.Lock()
        self._told.acquire()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self.is_awaited = False
        """Whether somebody may be in `wait`, or waits on the descriptor."""

    def tell(self) -> None:
        """Have whoever waits look again."""
        with suppress(RuntimeError):  # it is released already
            self._told.release()
        if self._ends is not None:
            with suppress(OSError):  # it is full, and so has rung, or closed
                self._ends[1].send(b"\0")

    def wait(self, ready: Callable[[], object], timeout_s: float) -> None:
        """Return when it is told, or after `timeout_s`; at once if `ready`."""
        self.is_awaited = True
        if not ready():
            self._told.acquire(timeout=timeout_s)
        self.is_awaited = self._ends is not None

    def fileno(self) -> int:
        """Return a descriptor that is readable from the next `tell` until `silence`."""
        if self._ends is None:
            ends = socket.socketpair()
            for end in ends:
                end.setblocking(False)
            self._ends, self.is_awaited = ends, True
            self.tell()  # something may be there already
        return self._ends[0].fileno()

    def silence(self) -> None:
        """Let the descriptor be readable no more; look once more after it."""
        if self._ends is not None:
            with suppress(BlockingIOError):
                self._ends[0].recv(4096)

    def close(self) -> None:
        """Release the descriptor."""
        for end in self._ends or ():
            end.close()


def soon(work: Callable[..., object], *arguments: Any) -> None:
    """Have the loop call `work`, if it still runs."""
    with suppress(RuntimeError):
        running().call_soon_threadsafe(partial(work, *arguments))
