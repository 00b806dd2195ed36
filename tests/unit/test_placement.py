"""Which core each process gets, and what a reader looks at."""

import pytest

from ipcbench.errors import ConfigError
from ipcbench.harness.placement import cores_for, touching

CORES = frozenset({2, 3, 5})


@pytest.mark.parametrize(
    ("pin", "endpoints", "cores"),
    [("none", 2, None), ("auto", 3, (2, 3, 5)), ("auto", 4, None), ("5", 2, (5, 5)), ("3,2", 3, (3, 2, 3))],
)
def test_each_process_gets_the_core_that_pin_says(pin, endpoints, cores):
    assert cores_for(pin, endpoints, CORES) == cores


def test_a_core_that_may_not_be_used_is_refused_with_those_that_may():
    with pytest.raises(ConfigError, match="2, 3, 5"):
        cores_for("0,2", 2, CORES)


@pytest.mark.parametrize("touch", ["header", "pages", "all"])
def test_touching_returns_the_same_view(touch):
    view = memoryview(bytes(10_000))
    assert touching(lambda _timeout_s: view, touch)(1.0) is view


def test_touching_only_the_header_costs_no_call():
    def read(_timeout_s: float) -> memoryview:
        return memoryview(b"")

    assert touching(read, "header") is read
