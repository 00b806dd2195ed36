"""Channels between hosts against the contract: both ends are on this host, and use what they use between hosts."""

from __future__ import annotations

from dataclasses import replace

from ipcbench.backend import Address
from ipcbench.backends.stream.backend import Tcp
from ipcbench.backends.zmq.backend import ZmqTcp
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite


class FarTcp(Tcp):
    """TCP over the interface of a host that others reach."""

    def create(self, channel: ChannelSpec) -> Address:
        return super().create(replace(channel, host="127.0.0.1"))


class FarZmqTcp(ZmqTcp):
    """ZeroMQ over the interface of a host that others reach."""

    def create(self, channel: ChannelSpec) -> Address:
        return super().create(replace(channel, host="127.0.0.1"))


class TestFarTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarTcp"


class TestFarZmqTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarZmqTcp"
