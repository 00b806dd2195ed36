"""A log-linear histogram of int64 durations: bounded memory, mergeable, any quantile within 1 %."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import numpy.typing as npt

from ipcbench.stats.estimates import IntArray
from ipcbench.util.bins import BIN_COUNT, BINS_PER_OCTAVE, LINEAR_BINS, OCTAVES, bin_bounds

SIGNIFICANT_DIGITS = 2
"""The resolution in HdrHistogram's terms."""

_WIDER: IntArray = np.left_shift(np.int64(LINEAR_BINS), np.arange(OCTAVES, dtype=np.int64))
"""The values from which bins are twice as wide: 2⁸ to 2⁶²."""


def bin_index(values: npt.ArrayLike) -> IntArray:
    """Return the bin of each value; values are integers ≥ 0."""
    array = np.asarray(values, dtype=np.int64)
    octave = np.searchsorted(_WIDER, array, side="right").astype(np.int64)
    index: IntArray = octave * BINS_PER_OCTAVE + (array >> octave)
    return index


class Histogram:
    """Counts of durations.

    Attributes:
        counts: shape (BIN_COUNT,), number of values in each bin.
        total_count: number of values.
        min: the least value, exact; 0 while empty.
        max: the largest value, exact; 0 while empty.
    """

    __slots__ = ("counts", "max", "min", "total_count")

    def __init__(self, values: npt.ArrayLike = ()) -> None:
        self.counts: IntArray = np.zeros(BIN_COUNT, dtype=np.int64)
        self.total_count = 0
        self.min = 0
        self.max = 0
        self.record(values)

    @classmethod
    def of_counts(cls, counts: IntArray, largest: int) -> Self:
        """Return a histogram of counts in the same bins.

        Args:
            counts: shape (BIN_COUNT,).
            largest: the largest value, exact.
        """
        histogram = cls()
        histogram.counts = counts.copy()
        histogram.total_count = int(counts.sum())
        filled = np.flatnonzero(counts)
        if filled.size:
            histogram.min, histogram.max = bin_bounds(int(filled[0]))[0], largest
        return histogram

    def record(self, values: npt.ArrayLike) -> None:
        """Add values, in ns or any other unit, of any shape.

        Raises:
            ValueError: a value is negative or not an integer; none is added then.
        """
        array = np.asarray(values).ravel()
        if array.size == 0:
            return
        if array.dtype.kind not in "iu":
            raise ValueError(f"a histogram holds integers, not {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > np.iinfo(np.int64).max:
            raise ValueError(f"a histogram holds values from 0 to 2⁶³ − 1, not {low if low < 0 else high:,}")
        self.counts += np.bincount(bin_index(array), minlength=BIN_COUNT)
        self._include(array.size, low, high)

    def merge(self, other: Histogram) -> None:
        """Add all values of `other`."""
        if other.total_count:
            self.counts += other.counts
            self._include(other.total_count, other.min, other.max)

    def _include(self, count: int, low: int, high: int) -> None:
        self.min = min(self.min, low) if self.total_count else low
        self.max = max(self.max, high)
        self.total_count += count

    def variation_ratio(self) -> float:
        """Return the standard deviation of the values over their mean, within 1 % of it; 0 without values."""
        filled = np.flatnonzero(self.counts)
        if not filled.size:
            return 0.0
        middles = np.array([sum(bin_bounds(int(index))) / 2 for index in filled])
        mean = float(np.average(middles, weights=self.counts[filled]))
        variance = float(np.average((middles - mean) ** 2, weights=self.counts[filled]))
        return math.sqrt(variance) / mean if mean else 0.0

    def quantile(self, probability: float) -> float:
        """Return the ⌈probability · n⌉-th smallest value (the first for 0), within 0.4 % of it.

        The smallest, the largest and values below 256 are exact.

        Raises:
            ValueError: it is empty, or the probability is not within 0 to 1.
        """
        if not self.total_count or not 0.0 <= probability <= 1.0:
            raise ValueError(f"no quantile {probability} of {self.total_count:,} values")
        # 0.07 · 100 is slightly more than 7 in binary; the rank must still be 7.
        rank = max(1, math.ceil(probability * self.total_count * (1.0 - 1e-12)))
        if rank in (1, self.total_count):
            return float(self.min if rank == 1 else self.max)
        low, high = bin_bounds(int(np.searchsorted(np.cumsum(self.counts), rank)))
        return min(max((low + high) / 2, float(self.min)), float(self.max))
