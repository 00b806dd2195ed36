"""Backend `shm` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestShm(ConformanceSuite):
    backend = "shm"
