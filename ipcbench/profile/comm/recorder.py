"""Records a rank's communication calls, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipcbench.profile.records import Call
from ipcbench.util.clock import now_ns


class Recorder:
    """Keeps the calls that one rank makes between `begin` and `end` of a step; those outside are not kept.

    Args:
        rank: of this process.
        path: returns the dotted name of the module that is running.
    """

    def __init__(self, rank: int, path: Callable[[], str] = lambda: "") -> None:
        self.rank, self.path = rank, path
        self._rows: list[list[Any]] = []
        self._step: int | None = None
        self._sequence = self._left_ns = 0

    def begin(self, step: int, start_ns: int | None = None) -> None:
        """Begin a step; without `start_ns`, now."""
        self._step, self._sequence = step, 0
        self._left_ns = now_ns() if start_ns is None else start_ns

    def end(self) -> None:
        """End the step; what has not been waited for still gets its time."""
        self._step = None

    def enter(self, op: str, ranks: tuple[int, ...], size_bytes: int, dtype: str) -> list[Any] | None:
        """Note that a call begins, and return what `leave` needs."""
        if self._step is None:
            return None
        row = [self._step, self._sequence, op, ranks, size_bytes, dtype, self.path(), 0, None, None, None, 0]
        self._sequence += 1
        self._rows.append(row)
        row[7] = now = now_ns()
        row[11] = max(0, now - self._left_ns)
        return row

    def leave(self, row: list[Any] | None) -> None:
        """Note that a call has ended."""
        if row is not None:
            self._left_ns = row[8] = now_ns()

    def taken(self) -> list[Call]:
        """Return the calls since the last time, and forget them."""
        rows, self._rows = self._rows, []
        return [Call(self.rank, *row) for row in rows]
