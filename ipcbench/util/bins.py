"""Log-linear bins of durations: the bin of a value, and the bounds of a bin. Standard library only.

Each value below 256 has its own bin; above, every power of two is divided into 128 bins of equal width. This is the
layout of an HdrHistogram of two significant digits with a lowest value of 1.
"""

from __future__ import annotations

BINS_PER_OCTAVE = 128
LINEAR_BINS = 2 * BINS_PER_OCTAVE
"""Number of bins that hold a single value."""

OCTAVES = 55
"""Powers of two above the linear bins, up to 2⁶³ − 1."""

BIN_COUNT = LINEAR_BINS + OCTAVES * BINS_PER_OCTAVE

_LINEAR_BITS = LINEAR_BINS.bit_length() - 1


def bin_of(value: int) -> int:
    """Return the bin of an integer from 0 to 2⁶³ − 1."""
    octave = max(0, value.bit_length() - _LINEAR_BITS)
    return octave * BINS_PER_OCTAVE + (value >> octave)


def bin_bounds(index: int) -> tuple[int, int]:
    """Return the smallest and the largest value of a bin."""
    octave = max(0, index // BINS_PER_OCTAVE - 1)
    low = (index - octave * BINS_PER_OCTAVE) << octave
    return low, low + (1 << octave) - 1
