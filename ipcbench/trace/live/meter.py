"""Rates, percentiles and shares of the last moments, by method.

What does not live here: where the calls come from (watch.py), and the screen (screen.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ipcbench.bins import BIN_COUNT, bin_bounds
from ipcbench.measure.histogram import bin_index
from ipcbench.measure.stats import FloatArray
from ipcbench.trace.live.watch import Growth, Watch
from ipcbench.trace.readers.batch import Ints
from ipcbench.trace.readers.calls import Calls
from ipcbench.trace.schema import SERVER_SIDE


@dataclass(slots=True)
class Sums:
    """Calls of one method in some time.

    Attributes:
        counts: of timed calls by bin of ipcbench/measure/histogram.py, shape (BIN_COUNT,).
        stage_ns: by the names of the stages.
    """

    calls_count: int = 0
    failed_count: int = 0
    total_ns: int = 0
    moved_bytes: int = 0
    counts: Ints = field(default_factory=lambda: np.zeros(BIN_COUNT, np.int64))
    stage_ns: dict[str, int] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        """Add what another one holds."""
        self.calls_count += other.calls_count
        self.failed_count += other.failed_count
        self.total_ns += other.total_ns
        self.moved_bytes += other.moved_bytes
        self.counts += other.counts
        self.add_stages(other.stage_ns)

    def add_stages(self, stage_ns: dict[str, int]) -> None:
        """Add times of stages."""
        for name, ns in stage_ns.items():
            self.stage_ns[name] = self.stage_ns.get(name, 0) + ns

    def quantile_ns(self, probability: float) -> float | None:
        """Return the quantile, within 0.4 %; None without a timed call."""
        total = int(self.counts.sum())
        if not total:
            return None
        rank = max(1, int(np.ceil(probability * total - 1e-9)))
        low, high = bin_bounds(int(np.searchsorted(np.cumsum(self.counts), rank)))
        return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows.

    Attributes:
        seconds: how long a time it is about.
        methods: (name, whether its server's side, sums), the one that took most time first.
        seen_count: calls since the beginning.
    """

    seconds: float
    methods: tuple[tuple[str, bool, Sums], ...]
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
        self._ticks: deque[tuple[float, dict[tuple[str, bool], Sums]]] = deque()
        self._begin_s: float | None = None
        self.seen_count = 0

    def look(self, now_s: float) -> None:
        """Take what is new; the first look takes what is there as old."""
        found: dict[tuple[str, bool], Sums] = {}
        for calls in self._watch.new_calls():
            _add_calls(found, calls)
        for growth in self._watch.growths():
            _add_growth(found, growth)
        self.seen_count += sum(one.calls_count for one in found.values())
        if self._begin_s is None:
            self._begin_s = now_s
            return
        self._ticks.append((now_s, found))
        while self._ticks[0][0] < now_s - self._window_s:
            self._begin_s = self._ticks.popleft()[0]

    def reading(self, now_s: float) -> Reading:
        """Return the rates since the window's begin."""
        together: dict[tuple[str, bool], Sums] = {}
        for _, found in self._ticks:
            for key, sums in found.items():
                together.setdefault(key, Sums()).add(sums)
        ordered = sorted(together.items(), key=lambda item: -item[1].total_ns)
        seconds = max(1e-9, now_s - (now_s if self._begin_s is None else self._begin_s))
        return Reading(seconds, tuple((name, server, sums) for (name, server), sums in ordered), self.seen_count)


def _add_calls(found: dict[tuple[str, bool], Sums], calls: Calls) -> None:
    batch = calls.batch
    server = batch.segment.role == SERVER_SIDE
    for number, name in enumerate(batch.methods):
        chosen = batch.method == number
        sums = found.setdefault((name, server), Sums())
        sums.calls_count += int(np.count_nonzero(chosen))
        sums.failed_count += int(np.count_nonzero(batch.failed[chosen]))
        total: Ints = np.maximum(batch.total_ns[chosen], 0)
        sums.total_ns += int(total.sum())
        sums.moved_bytes += int(batch.sent_bytes[chosen].sum() + batch.recv_bytes[chosen].sum())
        sums.counts += np.bincount(bin_index(total), minlength=BIN_COUNT)
        parts = batch.stage_ns[chosen].sum(axis=0).tolist()
        sums.add_stages(dict(zip(batch.stages, parts, strict=True)))


@cache
def _bin_middles() -> FloatArray:
    return np.array([sum(bin_bounds(index)) / 2 for index in range(BIN_COUNT)])


def _add_growth(found: dict[tuple[str, bool], Sums], growth: Growth) -> None:
    sums = found.setdefault((growth.method, growth.segment.role == SERVER_SIDE), Sums())
    timed = int(growth.counts.sum())
    sums.calls_count += timed + growth.untimed_count
    sums.failed_count += growth.failed_count
    sums.total_ns += round(float(growth.counts @ _bin_middles()[: len(growth.counts)]))  # sums come later than bins
    sums.moved_bytes += growth.sent_bytes + growth.recv_bytes
    sums.counts[: len(growth.counts)] += growth.counts
    sums.add_stages(dict(zip(growth.stages, growth.stage_ns.tolist(), strict=True)))
