"""Backend `mpi` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestMpi(ConformanceSuite):
    backend = "mpi"
