"""An event loop in a thread of its own, for a library of asyncio, and how other threads wait for what it does."""

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
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors
from ipcbench.sync.interrupts import start_thread

_LOOP_DESCRIPTORS = 4
"""More than an event loop opens."""

_Result = TypeVar("_Result")


class LoopThread:
    """The one loop of a library in this process.

    Attributes:
        pid: the process in which it was started last; 0 in none.
    """

    def __init__(self, library: str, *, bears_fork: bool = True) -> None:
        self.pid = 0
        self._library, self._bears_fork = library, bears_fork
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which the first call in a process starts; that of a parent is left alone.

        Raises:
            TransportError: there can be no thread, or no second process may use the library.
        """
        if not self._bears_fork and self.pid not in {0, os.getpid()}:
            raise TransportError(
                f"{self._library} cannot be used in a forked child of a process that has used it: start it by `spawn`"
            )
        with self._starting:
            if self.pid != os.getpid():
                with as_transport_errors(f"no loop for {self._library}"):
                    require_descriptors(_LOOP_DESCRIPTORS)  # one that fails half-way prints what nobody asked for
                    loop = asyncio.new_event_loop()
                try:
                    start_thread(loop.run_forever)
                except RuntimeError as error:
                    loop.close()
                    raise TransportError(
                        f"no thread for {self._library}: {error}; raise the limit of processes"
                    ) from error
                self._loop, self.pid = loop, os.getpid()
        return self._loop

    def done(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Have the loop do `work`; return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self.running()).result()

    def soon(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call `work`, if it still runs."""
        with suppress(RuntimeError):
            self.running().call_soon_threadsafe(partial(work, *arguments))


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
