"""Which core each process gets."""

import pytest

from ipcbench.errors import ConfigError
from ipcbench.harness.placement import cores_for

CORES = frozenset({2, 3, 5})


@pytest.mark.parametrize(
    ("pin", "endpoints", "cores"),
    [("none", 2, None), ("auto", 3, (2, 3, 5)), ("auto", 4, None), ("5", 2, (5, 5)), ("3,2", 3, (3, 2, 3))],
)
def test_each_process_gets_the_core_that_pin_says(pin, endpoints, cores):
    assert cores_for(pin, endpoints, CORES) == cores


def test_a_core_that_is_not_allowed_is_refused_and_the_allowed_ones_are_named():
    with pytest.raises(ConfigError, match="2, 3, 5"):
        cores_for("0,2", 2, CORES)
