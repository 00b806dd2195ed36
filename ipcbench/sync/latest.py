"""`latest_value` delivery on top of a reader of every message: a thread reads them all and keeps the latest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ipcbench.backend import Reader
from ipcbench.errors import EndpointClosed, TransportTimeout
from ipcbench.spec import WaitStrategy
from ipcbench.sync.ownership import Owned, Releasable
from ipcbench.util.clock import deadline_ns, remaining_s

_CLOSE_LOOK_S = 0.1
"""Interval at which the thread checks whether to stop."""


class Source(Releasable, Protocol):
    """A reader of every message, which its process owns."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        """Return the next message; see `Reader.read`."""

    def close(self) -> None:
        """Close it; see `Reader.close`."""


class _Inbox:
    """What the thread and the reader share. The thread knows no reader, so that one which is dropped can end it."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.latest: memoryview | bytes | None = None
        self.failure: Exception | None = None
        self.closing = False
        self.dropped = False

    def receive(self, source: Source, keep: Callable[[memoryview], memoryview | bytes]) -> None:
        """Read until the source fails or the reader is closed."""
        read, news = source.read, self.news
        failure: Exception | None = None
        while failure is None and not self.closing:
            try:
                value = keep(read(_CLOSE_LOOK_S))
            except TransportTimeout:
                continue
            except Exception as error:  # passed on to the caller of `read`
                failure = error
                continue
            with news:
                self.latest = value
                news.notify()
        with news:
            self.failure = failure
            news.notify()
        if self.dropped:
            source.let_go()


class LatestValueReader(Owned, Reader):
    """Returns the latest message that has arrived, each at most once and in order; those in between are skipped.

    The last message before the end of the stream, or before the writer's death, is always returned.
    """

    def __init__(self, source: Source, name: str, *, views_last: bool) -> None:
        """Start reading.

        Args:
            source: the reader of every message; it is closed together with this one.
            name: name of the thread.
            views_last: whether a view from `source` stays valid after its next read; if not, it is copied.
        """
        self._source = source
        self._inbox = inbox = _Inbox()
        arguments = source, memoryview if views_last else bytes
        self._thread = threading.Thread(target=inbox.receive, args=arguments, name=name, daemon=True)
        self._thread.start()
        self.opened()

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    @property
    def closed(self) -> bool:
        return self._inbox.closing

    def read(self, timeout_s: float | None = None) -> memoryview:
        inbox, deadline = self._inbox, deadline_ns(timeout_s)
        with inbox.news:
            while inbox.latest is None:
                if inbox.closing:
                    raise EndpointClosed("this reader is closed")
                if inbox.failure is not None:
                    raise inbox.failure.with_traceback(None)
                if not inbox.news.wait(remaining_s(deadline)) and not remaining_s(deadline) and inbox.latest is None:
                    raise TransportTimeout(f"no new value within {timeout_s} s")
            value, inbox.latest = inbox.latest, None
        return memoryview(value)

    def close(self) -> None:
        """Stop the thread and close the source."""
        inbox = self._inbox
        with inbox.news:
            inbox.closing, inbox.latest = True, None
        self._thread.join()
        self._source.close()

    def let_go(self) -> None:
        """Have the thread end, which then lets go of the source; a forked child has no thread, and nobody to free
        locks.
        """
        self._inbox.closing = self._inbox.dropped = True
        self._inbox = _Inbox()
        self._inbox.closing = True
