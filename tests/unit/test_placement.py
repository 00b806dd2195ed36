"""Which core each process gets, and the file of the probe."""

import resource

import pytest

from ipcbench.errors import ConfigError, StoreError
from ipcbench.harness.placement import cores_for, make_probe_file

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


def test_a_probe_file_that_the_system_refuses_fails_the_trial_and_not_the_run(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(StoreError, match=r"probe: File too large"):
            make_probe_file(tmp_path / "probe")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
