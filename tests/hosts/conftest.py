"""Emulated hosts, where this machine lets its user make namespaces."""

from __future__ import annotations

import pytest

from ipcbench.errors import ConfigError, TrialError
from ipcbench.hosts.simulated.cluster import simulated_hosts


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip what needs hosts if this machine lets nobody emulate any."""
    try:
        with simulated_hosts(1):
            pass
    except (ConfigError, TrialError) as error:
        pytest.skip(f"no emulated hosts here: {error}")
