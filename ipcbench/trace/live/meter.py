"""Rates, percentiles and shares of the last moments, by method."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ipcbench.trace.live.watch import Growth, Watch
from ipcbench.trace.readers.by_method import MOST_METHODS, OTHER, Sums, binned_total_ns
from ipcbench.trace.readers.calls import FAR_SIDES, Calls


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows.

    Attributes:
        seconds: how long a time it is about.
        methods: (name, role, sums), the one that took most time first.
        seen_count: calls since the beginning; those of far sides only if there are no others.
    """

    seconds: float
    methods: tuple[tuple[str, int, Sums], ...]
    seen_count: int


class Meter:
    """Looks at a watch again and again, and keeps what came in the last moments.

    Args:
        watch: what is looked at; what it holds already is not counted as new.
        window_s: of how long a time rates and percentiles are given.
    """

    def __init__(self, watch: Watch, window_s: float) -> None:
        self._watch = watch
        self._window_s = window_s
        self._ticks: deque[tuple[float, dict[tuple[str, int], Sums]]] = deque()
        self._begin_s: float | None = None
        self._near_count = self._far_count = 0

    def look(self, now_s: float) -> None:
        """Take what is new; the first look takes what is there as old."""
        found: dict[tuple[str, int], Sums] = {}
        for calls in self._watch.new_calls():
            _add_calls(found, calls)
        for growth in self._watch.growths():
            _add_growth(found, growth)
        for (_, role), sums in found.items():
            if role in FAR_SIDES:
                self._far_count += sums.calls_count
            else:
                self._near_count += sums.calls_count
        if self._begin_s is None:
            self._begin_s = now_s
            return
        self._ticks.append((now_s, found))
        while self._ticks[0][0] < now_s - self._window_s:
            self._begin_s = self._ticks.popleft()[0]

    def reading(self, now_s: float) -> Reading:
        """Return the rates since the window's begin."""
        together: dict[tuple[str, int], Sums] = {}
        for _, found in self._ticks:
            for key, sums in found.items():
                together.setdefault(key, Sums()).add(sums)
        ordered = sorted(together.items(), key=lambda item: -item[1].total_ns)
        seconds = max(1e-9, now_s - (now_s if self._begin_s is None else self._begin_s))
        methods = tuple((name, role, sums) for (name, role), sums in ordered)
        return Reading(seconds, methods, self._near_count or self._far_count)


def _of(found: dict[tuple[str, int], Sums], method: str, role: int) -> Sums:
    key = (method, role) if (method, role) in found or len(found) < MOST_METHODS else (OTHER, role)
    return found.setdefault(key, Sums())


def _add_calls(found: dict[tuple[str, int], Sums], calls: Calls) -> None:
    for number, name in enumerate(calls.batch.methods):
        _of(found, name, calls.batch.segment.role).add_calls(calls, number)


def _add_growth(found: dict[tuple[str, int], Sums], growth: Growth) -> None:
    # A tally's sums are put some calls after its counts: the time is taken from those.
    total_ns = binned_total_ns(growth.counts)
    _of(found, growth.method, growth.segment.role).add_tallied(growth, total_ns=total_ns)
