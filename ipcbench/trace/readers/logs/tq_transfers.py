"""Transfers of one log's [TQ-DETAIL] and [TQ-LOG] lines, by worker."""

from __future__ import annotations

from collections.abc import Iterator

from ipcbench.trace.readers.batch import UNKNOWN_NS
from ipcbench.trace.readers.logs.tq_calls import TqCall

_MOST_SIZES = 1024
_LONGEST_NAME = 300
_MOST_LISTS = 1000
_OTHERS = "(other operations)"


class Transfers:
    """What was got and put.

    Attributes:
        done_count: transfers since `take` was last called.
    """

    __slots__ = ("_calls", "_sizes", "done_count")

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[TqCall]] = {}
        self._sizes: dict[str, list[int]] = {}
        self.done_count = 0

    def size(self, worker: str, size_bytes: int) -> None:
        """Take note of how much the worker's next put moves."""
        waiting = self._sizes.get(worker)
        if waiting is None:
            waiting = self._sizes[worker] = []
        waiting.append(size_bytes)
        if len(waiting) > _MOST_SIZES:
            del waiting[0]

    def got(self, worker: str, at_ns: int | None, duration_ns: int, size_bytes: int) -> None:
        """Add data got until `at_ns`; None if the log does not say when."""
        begin_ns = UNKNOWN_NS if at_ns is None else at_ns - duration_ns
        self._add(worker, "TQ_CLIENT_GET", (begin_ns, duration_ns, (duration_ns, 0, 0), 0, size_bytes))

    def put(self, worker: str, at_ns: int | None, duration_ns: int, mib_per_s: float) -> None:
        """Add data put until `at_ns`; the speed tells how much if no size was noted."""
        begin_ns = UNKNOWN_NS if at_ns is None else at_ns - duration_ns
        waiting = self._sizes.get(worker)
        size_bytes = waiting.pop(0) if waiting else 0
        size_bytes = size_bytes or int(mib_per_s * 2**20 * duration_ns / 1e9)
        self._add(worker, "TQ_CLIENT_PUT", (begin_ns, duration_ns, (0, 0, duration_ns), size_bytes, 0))

    def done(self, worker: str, operation: str, duration_ns: int) -> None:
        """Add an operation of which nothing else is known."""
        self._add(worker, operation[:_LONGEST_NAME], (UNKNOWN_NS, duration_ns, (duration_ns, 0, 0), 0, 0))

    def _add(self, worker: str, name: str, call: TqCall) -> None:
        calls = self._calls.get((worker, name))
        if calls is None:
            key = (worker, name) if len(self._calls) < _MOST_LISTS else ("", _OTHERS)
            calls = self._calls.setdefault(key, [])
        calls.append(call)
        self.done_count += 1

    def take(self) -> Iterator[tuple[str, str, list[TqCall]]]:
        """Yield worker, operation and calls, each once."""
        calls, self._calls = self._calls, {}
        self.done_count = 0
        for (worker, name), done in calls.items():
            yield worker, name, done
