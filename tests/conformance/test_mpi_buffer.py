"""Backend `mpi-buffer` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestMpiBuffer(ConformanceSuite):
    backend = "mpi-buffer"
