"""The writer's connection to a reader, and the thread that later sends what the kernel did not accept at once."""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ipcbench.sync.interrupts import is_of_handler, start_thread
from ipcbench.util.clock import deadline_ns, now_ns

_MOST_PIECES = 64
_POLL_MS = 50
"""How soon the thread notices a connection that is added while it waits for others, or that the process ends."""
_STOP_S = 5.0
"""How long the end of the process waits for a thread to stop: one without memory may have died anywhere."""

_threads: set[threading.Event] = set()
"""One for each thread that sends, set when it has stopped."""
_ends = threading.Event()


def _stop_threads() -> None:
    """Have all threads stop between two sends, as the interpreter would stop them anywhere: nobody knows what one has
    sent that stops in a send. What they leave, `Pump.join` sends.
    """
    _ends.set()
    for stopped in list(_threads):
        stopped.wait(_STOP_S)


atexit.register(_stop_threads)
os.register_at_fork(after_in_child=_threads.clear)


def _no_thread_runs() -> bool:
    return _ends.is_set() or sys.is_finalizing()


class Connection:
    """A connection to one reader.

    Attributes:
        role: the reader's role.
        socket: the connected socket.
        read: number of messages for which the reader has sent receipts.
        held: whether the pump has data to send here, behind which everything else must queue.
        ends: whether nothing comes after what is held.
    """

    __slots__ = ("backlog", "ends", "held", "read", "role", "socket")

    def __init__(self, role: str, endpoint: socket.socket) -> None:
        self.role = role
        self.socket = endpoint
        self.read = 0
        self.held = self.ends = False
        self.backlog: list[memoryview] = []

    def push(self, pieces: list[memoryview]) -> bool:
        """Send as much as the kernel accepts now and remove it from `pieces`; return whether nothing is left.

        Raises:
            OSError: the reader is gone.
        """
        try:
            sent = self.socket.sendmsg(pieces[:_MOST_PIECES], (), socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            if is_of_handler(error):
                raise
            return False
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]
        return not pieces


class Pump:
    """Sends backlogs from a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._idle = threading.Event()
        self._idle.set()

    def add(self, connection: Connection, pieces: Iterable[memoryview], *, start: bool) -> bool:
        """Copy `pieces` and send them after everything that is held for this connection.

        Args:
            connection: where to send.
            pieces: what to send.
            start: False to do so only if the connection still holds something.

        Returns:
            Whether the pieces were taken.

        Raises:
            RuntimeError: there can be no thread, or it has stopped in the middle of a frame as the interpreter ends.
        """
        with self._locked():
            if not (connection.held or start):
                return False
            if self._idle.is_set():
                if not _no_thread_runs():  # then `join` sends
                    stopped = threading.Event()
                    start_thread(partial(self._run_thread, stopped))  # and it waits for the lock
                    _threads.add(stopped)
                self._idle.clear()
            connection.backlog.append(memoryview(b"".join(pieces)))
            if not connection.held:
                connection.held = True
                self._connections.append(connection)
            return True

    def cut(self, connections: Iterable[Connection]) -> None:
        """Have each connection end without an end of the stream, as soon as nothing is held for it."""
        with self._locked():
            for connection in connections:
                connection.ends = True
                self._end_if_done(connection)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=not sys.is_finalizing()):
            raise RuntimeError("the thread has stopped")
        try:
            yield
        finally:
            self._lock.release()

    def join(self, timeout_s: float) -> bool:
        """Wait until everything is sent; return whether it is."""
        if not _no_thread_runs():
            return self._idle.wait(timeout_s)
        if not self._idle.is_set() and self._lock.acquire(blocking=False):  # else the thread stopped in the middle
            self._lock.release()
            self._run(deadline_ns(timeout_s))
        return self._idle.is_set()

    def _run_thread(self, stopped: threading.Event) -> None:
        try:
            self._run(None)
        finally:
            _threads.discard(stopped)
            stopped.set()

    def _run(self, deadline: int | None) -> None:
        """Send until nothing is left, the deadline is over or, without one, the process ends."""
        while not _ends.is_set() if deadline is None else now_ns() < deadline:
            poller = select.poll()
            with self._lock:
                self._connections = [connection for connection in self._connections if not self._is_done(connection)]
                if not self._connections:
                    self._idle.set()
                    return
                for connection in self._connections:
                    poller.register(connection.socket, select.POLLOUT)
            poller.poll(_POLL_MS)

    @staticmethod
    def _is_done(connection: Connection) -> bool:
        try:
            connection.held = not connection.push(connection.backlog)
        except OSError:  # the writer notices the loss itself and reports it
            connection.backlog.clear()
            connection.held = False
        Pump._end_if_done(connection)
        return not connection.held

    @staticmethod
    def _end_if_done(connection: Connection) -> None:
        if connection.ends and not connection.held:
            with suppress(OSError):  # the reader is gone
                connection.socket.shutdown(socket.SHUT_WR)
