"""`latest_value` delivery on top of a reader of every message: a thread reads them all and keeps the latest."""

from __future__ import annotations

import threading

from ipcbench.backend import Reader
from ipcbench.errors import EndpointClosed, TransportTimeout
from ipcbench.spec import WaitStrategy
from ipcbench.util.clock import deadline_ns, remaining_s

_CLOSE_LOOK_S = 0.1
"""Interval at which the thread checks whether to stop."""


class LatestValueReader(Reader):
    """Returns the latest message that has arrived, each at most once and in order; those in between are skipped.

    The last message before the end of the stream, or before the writer's death, is always returned.
    """

    __slots__ = ("_closing", "_failure", "_keep", "_latest", "_news", "_source", "_thread")

    def __init__(self, source: Reader, name: str, *, views_last: bool) -> None:
        """Start reading.

        Args:
            source: the reader of every message; it is closed together with this one.
            name: name of the thread.
            views_last: whether a view from `source` stays valid after its next read; if not, it is copied.
        """
        self._source = source
        self._keep = memoryview if views_last else bytes
        self._news = threading.Condition()
        self._latest: memoryview | bytes | None = None
        self._failure: Exception | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._receive, name=name, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        read, news, keep = self._source.read, self._news, self._keep
        failure: Exception | None = None
        while failure is None and not self._closing:
            try:
                value = keep(read(_CLOSE_LOOK_S))
            except TransportTimeout:
                continue
            except Exception as error:  # passed on to the caller of `read`
                failure = error
                continue
            with news:
                self._latest = value
                news.notify()
        with news:
            self._failure = failure
            news.notify()

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def read(self, timeout_s: float | None = None) -> memoryview:
        deadline = deadline_ns(timeout_s)
        with self._news:
            while self._latest is None:
                if self._closing:
                    raise EndpointClosed("this reader is closed")
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
                if not self._news.wait(remaining_s(deadline)) and not remaining_s(deadline) and self._latest is None:
                    raise TransportTimeout(f"no new value within {timeout_s} s")
            value, self._latest = self._latest, None
        return memoryview(value)

    def close(self) -> None:
        """Stop the thread and close the source."""
        with self._news:
            self._closing, self._latest = True, None
        self._thread.join()
        self._source.close()
