"""`latest_value` delivery on top of a reader of every message: a thread reads them all and keeps the latest."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from ipcbench.backend import Reader
from ipcbench.errors import EndpointClosed, TransportError, TransportTimeout
from ipcbench.spec import WaitStrategy
from ipcbench.sync.interrupts import start_thread
from ipcbench.sync.ownership import Owned, Releasable
from ipcbench.util.clock import deadline_ns, remaining_s

_CLOSE_LOOK_S = 0.1
"""Interval at which the thread checks whether to stop."""


def _may_pass(error: Exception) -> bool:
    """Return whether another try may succeed: this process may not open a file now, but later perhaps."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in {errno.EMFILE, errno.ENFILE}


def _ring(end: socket.socket) -> None:
    with suppress(OSError):  # it is full, and so has rung, or closed
        end.send(b"\0")


class Source(Releasable, Protocol):
    """A reader of every message, which its process owns."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        """Return the next message; see `Reader.read`."""

    def close(self) -> None:
        """Close it; see `Reader.close`."""


class _Inbox:
    """What the thread and the reader share. The thread knows no reader, so that one which is dropped can end it.

    Nothing is guarded by a lock: a signal handler may raise an exception in the reader at any moment, which would leave
    it held. Whoever changes something releases `news` afterwards, and the reader looks again when it has acquired it. A
    queue would do the same, but `SimpleQueue.get` waits forever if a signal comes just at the end of its time-out.
    """

    def __init__(self) -> None:
        self.source: Source | None = None
        self.opened = threading.Event()
        """Set when the source is open, or could not be opened."""
        self.news = threading.Lock()
        self.news.acquire()
        self.latest: tuple[memoryview | bytes] | None = None
        """Replaced by the thread, by another tuple for each value, and never by the reader."""
        self.failure: Exception | None = None
        self.bell: Callable[[], object] | None = None
        """Makes the descriptor readable on which the caller waits, if any."""
        self.closing = False
        self.dropped = False
        self.ended = threading.Event()
        """Set when the source is no longer read."""

    def receive(self, keep: Callable[[memoryview], memoryview | bytes]) -> None:
        """Read, as soon as there is a source, until it fails or the reader is closed."""
        self.opened.wait()
        source = self.source
        if source is None:
            return
        read = source.read
        while not self.closing:
            try:
                value = keep(read(_CLOSE_LOOK_S))
            except TransportTimeout:
                self.failure = None
                continue
            except Exception as error:  # passed on to the caller of `read`
                self.failure = error
                if not _may_pass(error):
                    break
                self.tell()
                self.ended.wait(_CLOSE_LOOK_S)  # which nobody sets yet
                continue
            self.latest, self.failure = (value,), None
            self.tell()
        self.tell()
        self.ended.set()
        if self.dropped:
            source.let_go()

    def tell(self) -> None:
        """Have the reader look again."""
        with suppress(RuntimeError):  # it is released already
            self.news.release()
        if (bell := self.bell) is not None:
            bell()


class LatestValueReader(Owned, Reader):
    """Returns the latest message that has arrived, each at most once and in order; those in between are skipped.

    The last message before the end of the stream, or before the writer's death, is always returned.
    """

    def __init__(self, open_source: Callable[[], Source], name: str, *, views_last: bool) -> None:
        """Start reading.

        Args:
            open_source: opens the reader of every message, when nothing else can refuse this one any more: to its
                peers, a source that is closed again has been there. It is closed together with this reader.
            name: of this reader, for the user.
            views_last: whether a view from the source stays valid after its next read; if not, it is copied.

        Raises:
            TransportError: there can be no thread, or the source cannot be opened.
        """
        self._inbox = inbox = _Inbox()
        self._taken: tuple[memoryview | bytes] | None = None
        self._ends: tuple[socket.socket, socket.socket] | None = None
        try:
            start_thread(partial(inbox.receive, memoryview if views_last else bytes))
        except RuntimeError as error:
            raise TransportError(f"cannot open {name}: {error}; raise the limit of processes or of memory") from error
        try:
            self._source = inbox.source = open_source()
            self.opened()
        finally:
            inbox.opened.set()

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    @property
    def closed(self) -> bool:
        return self._inbox.closing

    def fileno(self) -> int:
        if self.closed:
            raise EndpointClosed("this reader is closed")
        if self._ends is None:
            self._ends = ends = socket.socketpair()
            for end in ends:
                end.setblocking(False)
            self._inbox.bell = partial(_ring, ends[1])
            self._inbox.bell()  # something may be there already
        return self._ends[0].fileno()

    def _silence(self) -> bool:
        """Let the descriptor be readable no more, until the next news; return whether there is one."""
        if self._ends is None:
            return False
        with suppress(BlockingIOError):
            self._ends[0].recv(4096)
        return True

    def read(self, timeout_s: float | None = None) -> memoryview:
        inbox, deadline = self._inbox, deadline_ns(timeout_s)
        while True:
            if inbox.closing:
                raise EndpointClosed("this reader is closed")
            failure, latest = inbox.failure, inbox.latest  # in this order: the last value comes before the failure
            if latest is not None and latest is not self._taken:
                view = memoryview(latest[0])
                self._taken = latest  # last: whoever is interrupted before gets the value again
                return view
            if failure is not None:
                raise failure.with_traceback(None)
            left_s = remaining_s(deadline)
            if left_s == 0.0:
                if self._silence() and (inbox.latest is not latest or inbox.failure is not failure):
                    continue
                raise TransportTimeout(f"no new value within {timeout_s} s")
            inbox.news.acquire(timeout=-1 if left_s is None else min(left_s, threading.TIMEOUT_MAX))

    def _close(self) -> None:
        self._inbox.closing = True
        self._inbox.tell()
        if sys.is_finalizing():  # the thread does not run any more
            self._close_ends()
            self._source.let_go()
            return
        self._inbox.ended.wait()
        self._inbox.latest = self._taken = None
        self._close_ends()
        self._source.close()

    def let_go(self) -> None:
        """Have the thread end, which then lets go of the source; a forked child has no thread, and nobody to free
        locks.
        """
        self._is_released = True
        self._inbox.closing = self._inbox.dropped = True
        self._close_ends()
        self._inbox = _Inbox()
        self._inbox.closing = True

    def _close_ends(self) -> None:
        for end in self._ends or ():
            end.close()
