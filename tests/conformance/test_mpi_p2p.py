"""Backend `mpi-p2p` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestMpiP2p(ConformanceSuite):
    backend = "mpi-p2p"
