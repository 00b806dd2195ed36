"""When a quantity counts as settled."""

import pytest

from ipcbench.stats.steady import is_steady


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        ([100, 101, 99, 100], True),
        ([100, 105, 98, 103, 99, 101], True),
        ([100, 110, 120, 130], False),
        ([100, 100, 140, 140], False),
        ([100, 100, 100], False),
        ([100, 100, 0, 100], False),
        ([], False),
    ],
)
def test_steady_means_neither_drift_nor_jump(values, steady):
    assert is_steady(values) is steady
