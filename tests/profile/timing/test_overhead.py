"""The cost of spans is claimed only where it can be told."""

from __future__ import annotations

import numpy as np
import pytest

from ipcbench.profile.timing.overhead import overhead


@pytest.mark.parametrize(
    ("added", "noise", "is_resolved"),
    [(0.0, 0.1, False), (0.0, 0.0005, True), (0.2, 0.02, True), (-0.2, 0.02, False)],
    ids=["lost in the noise", "nothing, for sure", "found", "a gain, which spans cannot bring"],
)
def test_it_is_resolved_where_the_interval_says_something(added: float, noise: float, is_resolved: bool) -> None:
    generator = np.random.default_rng(5)
    plain = generator.normal(1e7, noise * 1e7, 40)
    found = overhead(list(plain), list(plain * (1.0 + added) * (1.0 + generator.normal(0, noise, 40))))
    assert found.ratio is not None
    assert found.ratio.low <= added <= found.ratio.high
    assert found.is_resolved is is_resolved


def test_nothing_is_claimed_on_two_pairs() -> None:
    found = overhead([1e7, 1e7, 1e7], [1.1e7, 1.1e7])
    assert (found.ratio, found.pairs_count, found.is_resolved) == (None, 2, False)
