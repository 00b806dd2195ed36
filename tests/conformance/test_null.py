"""Backend `null` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestNull(ConformanceSuite):
    backend = "null"
