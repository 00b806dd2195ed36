"""The histogram: every quantile within 1 % of the exact one, merging as if recorded together, bounded memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.stats.histogram import Histogram, bin_index
from ipcbench.util.bins import BIN_COUNT, bin_bounds

LARGEST = 2**63 - 1
durations = st.one_of(
    st.integers(0, 600),
    st.integers(0, 10**12),
    st.integers(0, 62).map(lambda power: 2**power),
    st.integers(1, 63).map(lambda power: 2**power - 1),
    st.integers(0, LARGEST),
)


def exact_quantile(values: list[int], permille: int) -> int:
    """Return the ⌈permille · n / 1000⌉-th smallest value, by integers alone."""
    rank = max(1, -(-permille * len(values) // 1000))
    return sorted(values)[rank - 1]


@given(st.lists(durations, min_size=1, max_size=200), st.integers(0, 1000))
def test_any_quantile_is_within_one_percent(values: list[int], permille: int) -> None:
    exact = exact_quantile(values, permille)
    assert abs(Histogram(values).quantile(permille / 1000) - exact) <= 0.01 * exact


@given(st.lists(st.integers(0, 255), min_size=1, max_size=50), st.integers(0, 1000))
def test_small_values_are_exact(values: list[int], permille: int) -> None:
    assert Histogram(values).quantile(permille / 1000) == exact_quantile(values, permille)


@given(st.lists(durations, max_size=50), st.lists(durations, max_size=50))
def test_merging_is_recording_together(first: list[int], second: list[int]) -> None:
    merged, together = Histogram(first), Histogram(first + second)
    merged.merge(Histogram(second))
    assert merged.counts.tolist() == together.counts.tolist()
    assert (merged.total_count, merged.min, merged.max) == (together.total_count, together.min, together.max)


@given(durations)
def test_a_value_is_in_its_bin(value: int) -> None:
    low, high = bin_bounds(int(bin_index(value)))
    assert low <= value <= high


def test_bins_follow_one_another_without_a_gap_up_to_the_largest_int64() -> None:
    bounds = [bin_bounds(index) for index in range(BIN_COUNT)]
    assert bounds[0] == (0, 0)
    assert bounds[-1][1] == LARGEST
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(bounds))


def test_memory_does_not_grow() -> None:
    histogram = Histogram()
    size = histogram.counts.nbytes
    for seed in range(5):
        histogram.record(np.random.default_rng(seed).integers(0, LARGEST, 10_000))
    assert histogram.counts.nbytes == size <= 64 * 2**10
    assert histogram.total_count == histogram.counts.sum() == 50_000


def test_the_least_and_the_largest_are_exact() -> None:
    histogram = Histogram([1_000_003, 5_000_011, 9_000_017])
    assert (histogram.quantile(0.0), histogram.quantile(1.0)) == (1_000_003.0, 9_000_017.0)
    assert (histogram.min, histogram.max) == (1_000_003, 9_000_017)


def test_a_rank_is_not_pushed_up_by_binary_fractions() -> None:
    assert Histogram(range(1, 101)).quantile(0.07) == 7.0


@pytest.mark.parametrize("values", [[5, -1], [1.5], ["x"], [2**63]], ids=str)
def test_what_is_not_a_duration_is_refused_and_nothing_recorded(values: list[object]) -> None:
    histogram = Histogram([7])
    with pytest.raises(ValueError, match="a histogram holds"):
        histogram.record(values)
    assert (histogram.total_count, histogram.min, histogram.max) == (1, 7, 7)


@pytest.mark.parametrize(("values", "probability"), [([], 0.5), ([1], -0.1), ([1], 1.1), ([1], float("nan"))], ids=str)
def test_a_quantile_that_is_not_there(values: list[int], probability: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        Histogram(values).quantile(probability)
