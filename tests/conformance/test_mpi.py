"""The MPI backends against the contract."""

from ipcbench.testing import ConformanceSuite


class TestMpi(ConformanceSuite):
    backend = "mpi"


class TestMpiPkl5(ConformanceSuite):
    backend = "mpi-pkl5"


class TestMpiBuffer(ConformanceSuite):
    backend = "mpi-buffer"


class TestMpiP2p(ConformanceSuite):
    backend = "mpi-p2p"


class TestMpiRma(ConformanceSuite):
    backend = "mpi-rma"
