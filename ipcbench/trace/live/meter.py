"""Rates, percentiles and shares of the last moments, by method."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ipcbench.trace.live.watch import Growth, Watch
from ipcbench.trace.readers.by_method import MOST_METHODS, OTHER, MethodTotals, binned_total_ns
from ipcbench.trace.readers.calls import FAR_SIDES, Calls


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of a meter.

    Attributes:
        seconds: the length of the window.
        methods: (name, role, totals), by time, the longest first.
        seen_count: calls since the beginning; calls at far sides count only if there are no others.
    """

    seconds: float
    methods: tuple[tuple[str, int, MethodTotals], ...]
    seen_count: int


class Meter:
    """Keeps what a watch saw in the last moments.

    Args:
        watch: its folder; what it holds at the first look does not count as new.
        window_s: the time that rates and percentiles are about.
    """

    def __init__(self, watch: Watch, window_s: float) -> None:
        self._watch = watch
        self._window_s = window_s
        self._ticks: deque[tuple[float, dict[tuple[str, int], MethodTotals]]] = deque()
        self._begin_s: float | None = None
        self._near_count = self._far_count = 0

    def look(self, now_s: float) -> None:
        """Take what is new since the last look."""
        totals: dict[tuple[str, int], MethodTotals] = {}
        for calls in self._watch.new_calls():
            _add_calls(totals, calls)
        for growth in self._watch.growths():
            _add_growth(totals, growth)
        for (_, role), sums in totals.items():
            if role in FAR_SIDES:
                self._far_count += sums.calls_count
            else:
                self._near_count += sums.calls_count
        if self._begin_s is None:
            self._begin_s = now_s
            return
        self._ticks.append((now_s, totals))
        while self._ticks[0][0] < now_s - self._window_s:
            self._begin_s = self._ticks.popleft()[0]

    def reading(self, now_s: float) -> Reading:
        """Return the rates since the window's begin."""
        together: dict[tuple[str, int], MethodTotals] = {}
        for _, totals in self._ticks:
            for key, sums in totals.items():
                together.setdefault(key, MethodTotals()).add(sums)
        ordered = sorted(together.items(), key=lambda item: -item[1].total_ns)
        seconds = max(1e-9, now_s - (now_s if self._begin_s is None else self._begin_s))
        methods = tuple((name, role, sums) for (name, role), sums in ordered)
        return Reading(seconds, methods, self._near_count or self._far_count)


def _of(totals: dict[tuple[str, int], MethodTotals], method: str, role: int) -> MethodTotals:
    key = (method, role) if (method, role) in totals or len(totals) < MOST_METHODS else (OTHER, role)
    return totals.setdefault(key, MethodTotals())


def _add_calls(totals: dict[tuple[str, int], MethodTotals], calls: Calls) -> None:
    for number, name in enumerate(calls.batch.methods):
        _of(totals, name, calls.batch.segment.role).add_calls(calls, number)


def _add_growth(totals: dict[tuple[str, int], MethodTotals], growth: Growth) -> None:
    # The sums of a histogram lag some calls behind its counts, so the time comes from the counts.
    total_ns = binned_total_ns(growth.counts)
    _of(totals, growth.method, growth.segment.role).add_histogram(growth, total_ns=total_ns)
