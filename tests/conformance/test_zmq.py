"""The ZeroMQ backends against the contract."""

from ipcbench.testing import ConformanceSuite


class TestZmq(ConformanceSuite):
    backend = "zmq"


class TestZmqTcp(ConformanceSuite):
    backend = "zmq-tcp"
