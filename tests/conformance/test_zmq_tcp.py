"""Backend `zmq-tcp` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestZmqTcp(ConformanceSuite):
    backend = "zmq-tcp"
