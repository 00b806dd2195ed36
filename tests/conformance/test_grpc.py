"""The gRPC backends against the contract."""

from __future__ import annotations

from ipcbench.testing import ConformanceSuite


class TestGrpc(ConformanceSuite):
    backend = "grpc"


class TestGrpcTcp(ConformanceSuite):
    backend = "grpc-tcp"
