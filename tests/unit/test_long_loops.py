"""Bins counted one message at a time are those that numpy finds, and their quantiles are close enough."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.harness.digest import tally_quantiles
from ipcbench.harness.long_loops import Tally
from ipcbench.stats.histogram import bin_index
from ipcbench.util.bins import BIN_COUNT


@given(st.lists(st.integers(min_value=0, max_value=2**62), min_size=1, max_size=50))
def test_a_tally_has_the_bins_of_the_histogram(values: list[int]) -> None:
    tally = Tally()
    for value in values:
        tally.add(value)
    assert len(tally.counts) == BIN_COUNT
    assert (np.bincount(bin_index(values), minlength=BIN_COUNT) == np.array(tally.counts)).all()
    assert (tally.sum_ns, tally.max_ns) == (sum(values), max(values))


def test_a_duration_below_zero_counts_as_zero() -> None:
    tally = Tally()
    tally.add(-5)
    assert (tally.counts[0], tally.sum_ns, tally.max_ns) == (1, 0, 0)


def test_quantiles_of_a_tally_are_within_one_percent() -> None:
    values = np.random.default_rng(5).lognormal(10.0, 1.0, 20_000).astype(np.int64)
    tally = Tally()
    for value in values.tolist():
        tally.add(value)
    found = tally_quantiles({"counts": tally.counts.tobytes(), "sum_ns": tally.sum_ns, "max_ns": tally.max_ns})
    for name, exact in (("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)):
        assert abs(getattr(found, name) / np.quantile(values, exact) - 1) < 0.01
    assert (found.count, found.max_ns) == (values.size, values.max())
    assert abs(found.mean_ns / values.mean() - 1) < 1e-9
