"""Backend `mpi-pkl5` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestMpiPkl5(ConformanceSuite):
    backend = "mpi-pkl5"
