"""Whether a quantity has settled: fio's slope test and a test of two halves, on values of consecutive intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

MAX_DRIFT_RATIO = 0.2
"""Largest change over all intervals along the fitted line, relative to the mean."""

MAX_HALVES_RATIO = 0.15
"""Largest difference of the medians of the two halves, relative to the whole's median."""

MIN_INTERVALS = 4


def is_steady(values: Sequence[float]) -> bool:
    """Return whether `values` (one per interval, equally spaced, at least `MIN_INTERVALS`) neither drift nor jump."""
    count = len(values)
    if count < MIN_INTERVALS or min(values) <= 0:
        return False
    mean_x, mean_y = (count - 1) / 2, fmean(values)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) / sum(
        (x - mean_x) ** 2 for x in range(count)
    )
    if abs(slope) * (count - 1) > MAX_DRIFT_RATIO * mean_y:
        return False
    first, second = median(values[: count // 2]), median(values[-(count // 2) :])
    return abs(first - second) <= MAX_HALVES_RATIO * median(values)
