"""Channels between hosts against the contract: both ends are on this host, and use what they use between hosts."""

from __future__ import annotations

from dataclasses import replace

from ipcbench.backend import Address
from ipcbench.backends.grpc.backend import GrpcTcp
from ipcbench.backends.redis.backend import Redis
from ipcbench.backends.stream.backend import Tcp
from ipcbench.backends.zmq.backend import ZmqTcp
from ipcbench.backends.zmq.hybrid import Hybrid
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite


class _Far:
    """Makes channels as they are between hosts."""

    def create(self, channel: ChannelSpec) -> Address:
        near = tuple(range(0, channel.readers, 2))
        return super().create(replace(channel, host="127.0.0.1", near=near))  # type: ignore[misc]


class FarTcp(_Far, Tcp):
    """TCP over the interface of a host that others reach."""


class FarZmqTcp(_Far, ZmqTcp):
    """ZeroMQ over the interface of a host that others reach."""


class FarGrpcTcp(_Far, GrpcTcp):
    """gRPC over the interface of a host that others reach."""


class FarRedis(_Far, Redis):
    """Redis in a server that other hosts reach."""


class FarHybrid(_Far, Hybrid):
    """Every second reader is on the writer's host."""


class TestFarTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarTcp"


class TestFarZmqTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarZmqTcp"


class TestFarGrpcTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarGrpcTcp"


class TestFarRedis(ConformanceSuite):
    backend = "tests.conformance.test_far:FarRedis"


class TestFarHybrid(ConformanceSuite):
    backend = "tests.conformance.test_far:FarHybrid"


class TestHybrid(ConformanceSuite):
    backend = "hybrid"
