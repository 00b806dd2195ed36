"""Backend `zmq` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestZmq(ConformanceSuite):
    backend = "zmq"
