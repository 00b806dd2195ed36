"""The α + β·bytes table: how long a message of each size takes on an idle channel, and so a list of calls.

Times are interpolated linearly between measured sizes, with α and β for each piece, and extrapolated beyond them. The
table ignores caches, throttled cores and sleeping processes: compared with a replay, it shows how much those matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipcbench.replay.traffic import ThreadCalls
from ipcbench.stats.estimates import FloatArray
from ipcbench.trace.readers.batch import UNKNOWN, Ints

_SIZES = (16, 1024, 8192, 2**16, 2**18, 2**20, 2**22, 2**24)
_NEARLY = 0.8
_REPEATS = ((2**17, 24), (2**24, 8))
_HUGE_REPEATS = 3
"""Round trips of each size: (below how many bytes, count)."""


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """One-way times of a backend.

    Attributes:
        sizes_bytes: ascending.
        one_way_ns: half the median round trip with messages of that size.
    """

    sizes_bytes: tuple[int, ...]
    one_way_ns: tuple[float, ...]

    def times_ns(self, sizes: Ints) -> FloatArray:
        """Return the time of one message of each size."""
        if len(self.sizes_bytes) == 1:
            return np.full(len(sizes), self.one_way_ns[0])
        xs, ys = np.array(self.sizes_bytes, dtype=np.float64), np.array(self.one_way_ns)
        piece = np.clip(np.searchsorted(xs, sizes) - 1, 0, len(xs) - 2)
        slope = (ys[piece + 1] - ys[piece]) / (xs[piece + 1] - xs[piece])
        times: FloatArray = np.maximum(ys[piece] + slope * (sizes - xs[piece]), 0.0)
        return times

    def thread_ns(self, thread: ThreadCalls) -> float:
        """Return how long that client would take; unknown work of the server counts as 0."""
        server = np.where(thread.server_ns == UNKNOWN, 0, thread.server_ns)
        work = int((thread.gap_ns + thread.before_ns + thread.after_ns + server).sum())
        return work + float(self.times_ns(thread.sent_bytes).sum() + self.times_ns(thread.recv_bytes).sum())


def ladder(largest_bytes: int) -> Ints:
    """Return the size of each round trip of a calibration, in order; none nearly as large as the largest."""
    sizes = [*(size for size in _SIZES if size < _NEARLY * largest_bytes), largest_bytes]
    repeats = [next((count for below, count in _REPEATS if size < below), _HUGE_REPEATS) for size in sizes]
    return np.repeat(np.array(sizes, dtype=np.int64), repeats)


def make_table(sizes: Ints, round_trips_ns: Sequence[Ints]) -> LatencyTable:
    """Return the table of several calibrations; each has a time for each of `sizes`."""
    every = np.stack(round_trips_ns)
    distinct = np.unique(sizes)
    halves = [float(np.median(every[:, sizes == size])) / 2 for size in distinct]
    return LatencyTable(tuple(distinct.tolist()), tuple(halves))
