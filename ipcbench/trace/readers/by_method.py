"""Totals over the calls of one method, those with records and those in histograms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from typing import Final, Protocol

import numpy as np

from ipcbench.stats.estimates import FloatArray
from ipcbench.stats.histogram import bin_index
from ipcbench.trace.readers.batch import Ints
from ipcbench.trace.readers.calls import Calls
from ipcbench.util.bins import BIN_COUNT, bin_bounds

MOST_METHODS: Final = 1000
"""More are not kept apart: names made of data must not fill the memory."""

OTHER: Final = "(other)"


class CountedCalls(Protocol):
    """What a histogram and its sums hold, or what they gained."""

    @property
    def stages(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> Ints: ...
    @property
    def untimed_count(self) -> int: ...
    @property
    def failed_count(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def recv_bytes(self) -> int: ...
    @property
    def total_ns(self) -> int: ...
    @property
    def stage_ns(self) -> Ints: ...


@dataclass(slots=True)
class MethodTotals:
    """Calls of one method; times below 0, which damaged logs have, count as 0.

    Attributes:
        counts: of timed calls by bin of ipcbench/util/bins.py, shape (BIN_COUNT,).
        untimed_count: further calls whose time is not known: they were only counted, or never made.
        longest_ns: exact for calls with records.
        sized_count: calls whose bytes were noted; `sent_bytes` and `recv_bytes` are theirs.
        staged_ns: the time of those calls whose bytes and stages are in the sums; those of a histogram may lag behind.
        stage_ns: by the names of the stages.
    """

    counts: Ints = field(default_factory=lambda: np.zeros(BIN_COUNT, np.int64))
    untimed_count: int = 0
    failed_count: int = 0
    total_ns: int = 0
    staged_ns: int = 0
    longest_ns: int = 0
    sized_count: int = 0
    sent_bytes: int = 0
    recv_bytes: int = 0
    stage_ns: dict[str, int] = field(default_factory=dict)

    @property
    def timed_count(self) -> int:
        """Calls whose time is known."""
        return int(self.counts.sum())

    @property
    def calls_count(self) -> int:
        """All calls."""
        return self.timed_count + self.untimed_count

    @property
    def moved_bytes(self) -> int | None:
        """Sent and received; None if no call noted it."""
        return self.sent_bytes + self.recv_bytes if self.sized_count else None

    @property
    def mean_bytes(self) -> float | None:
        """What a sized call moved; None if there are none."""
        return (self.sent_bytes + self.recv_bytes) / self.sized_count if self.sized_count else None

    def add_calls(self, calls: Calls, number: int) -> None:
        """Add the calls of the method with that number in the batch."""
        batch = calls.batch
        chosen = batch.method == number
        total: Ints = np.maximum(batch.total_ns[chosen], 0)
        if not len(total):
            return
        sized = chosen & batch.is_sized
        self.sized_count += int(np.count_nonzero(sized))
        self.sent_bytes += int(batch.sent_bytes[sized].sum())
        self.recv_bytes += int(batch.recv_bytes[sized].sum())
        if not batch.is_timed:
            self.untimed_count += len(total)
            return
        self.counts += np.bincount(bin_index(total), minlength=BIN_COUNT)
        self.failed_count += int(np.count_nonzero(batch.failed[chosen]))
        self.total_ns += int(total.sum())
        self.staged_ns += int(total.sum())
        self.longest_ns = max(self.longest_ns, int(total.max()))
        self._add_stages(zip(batch.stages, np.maximum(batch.stage_ns[chosen], 0).sum(axis=0).tolist(), strict=True))

    def add_histogram(self, histogram: CountedCalls, scale: float = 1.0, total_ns: int | None = None) -> None:
        """Add calls without records; their sums, which may lag behind their counts, times `scale`.

        Args:
            histogram: the calls.
            scale: by which its sums are short.
            total_ns: the time of all its calls, where that is known better.
        """
        self.counts[: len(histogram.counts)] += histogram.counts
        self.untimed_count += histogram.untimed_count
        self.failed_count += histogram.failed_count
        self.total_ns += round(histogram.total_ns * scale) if total_ns is None else total_ns
        self.staged_ns += round(histogram.total_ns * scale)
        filled = np.flatnonzero(histogram.counts)
        if filled.size:
            self.longest_ns = max(self.longest_ns, bin_bounds(int(filled[-1]))[0])
        if histogram.sent_bytes >= 0:
            self.sized_count += int(histogram.counts.sum())
            self.sent_bytes += round(histogram.sent_bytes * scale)
            self.recv_bytes += round(histogram.recv_bytes * scale)
        self._add_stages(
            (name, round(ns * scale)) for name, ns in zip(histogram.stages, histogram.stage_ns.tolist(), strict=True)
        )

    def add(self, other: MethodTotals) -> None:
        """Add what another one holds."""
        self.counts += other.counts
        self.untimed_count += other.untimed_count
        self.failed_count += other.failed_count
        self.total_ns += other.total_ns
        self.staged_ns += other.staged_ns
        self.longest_ns = max(self.longest_ns, other.longest_ns)
        self.sized_count += other.sized_count
        self.sent_bytes += other.sent_bytes
        self.recv_bytes += other.recv_bytes
        self._add_stages(other.stage_ns.items())

    def _add_stages(self, parts: Iterable[tuple[str, int]]) -> None:
        for name, ns in parts:
            self.stage_ns[name] = self.stage_ns.get(name, 0) + ns

    def quantile_ns(self, probability: float) -> float | None:
        """Return the ⌈probability · n⌉-th shortest time, within 0.4 %; None without a timed call."""
        total = self.timed_count
        if not total:
            return None
        rank = max(1, ceil(probability * total * (1.0 - 1e-12)))
        if rank == total and self.longest_ns:
            return float(self.longest_ns)
        low, high = bin_bounds(int(np.searchsorted(np.cumsum(self.counts), rank)))
        return min((low + high) / 2, float(self.longest_ns or high))


def binned_total_ns(counts: Ints) -> int:
    """Return the time of all calls of a histogram, within 0.4 %."""
    return round(float(counts @ _bin_middles()[: len(counts)]))


@cache
def _bin_middles() -> FloatArray:
    return np.array([sum(bin_bounds(index)) / 2 for index in range(BIN_COUNT)])
