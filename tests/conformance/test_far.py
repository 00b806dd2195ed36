"""Channels between hosts against the contract: both ends are on this host, and use what they use between hosts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.backend import Address
from ipcbench.backends.grpc.backend import GrpcTcp
from ipcbench.backends.mpi.backend import MpiBuffer, MpiNative, MpiP2p, MpiPkl5
from ipcbench.backends.redis.backend import Redis
from ipcbench.backends.stream.backend import Tcp
from ipcbench.backends.zenoh.backend import Zenoh
from ipcbench.backends.zmq.backend import ZmqTcp
from ipcbench.backends.zmq.hybrid import Hybrid
from ipcbench.errors import ConfigError
from ipcbench.processes.launch import find_mpiexec
from ipcbench.registry import status
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.leaks import traces


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


class FarZenoh(_Far, Zenoh):
    """zenoh over the interface of a host that others reach."""


class _FarMpi(_Far):
    """MPI finds out by itself that all readers are near."""

    def create(self, channel: ChannelSpec) -> Address:
        far = replace(channel, host="127.0.0.1", near=tuple(range(channel.readers)))
        return super(_Far, self).create(far)  # type: ignore[misc]


class FarMpi(_FarMpi, MpiNative):
    """MPI's bcast by messages of MPI alone."""


class FarMpiPkl5(_FarMpi, MpiPkl5):
    """The same by pickle protocol 5."""


class FarMpiBuffer(_FarMpi, MpiBuffer):
    """The same of buffers."""


class FarMpiP2p(_FarMpi, MpiP2p):
    """MPI point to point, by messages of MPI alone."""


class FarHybrid(_Far, Hybrid):
    """Every second reader is on the writer's host."""


def test_near_channels_of_alike_names_do_not_meet(channel_name: str) -> None:
    """Those of two long names, and that of `NAME` and a channel called `NAME-near`, were one."""
    backend = Hybrid()
    stem = f"{channel_name}{'k' * 48}"[:47]
    names = [f"{stem}A", f"{stem}B", channel_name, f"{channel_name}-near"]
    made = [backend.create(ChannelSpec(name, 2, host="127.0.0.1", near=(0,))) for name in names]
    for address in made:
        readers = [backend.open_reader(address, index) for index in range(2)]
        with backend.open_writer(address) as writer:
            writer.write(address.channel.name.encode(), 30.0)
            assert {bytes(reader.read(30.0)) for reader in readers} == {address.channel.name.encode()}
        for reader in readers:
            reader.close()
    for address in made:
        backend.destroy(address)
    assert traces(channel_name) == []


def test_a_reader_is_near_once() -> None:
    with pytest.raises(ConfigError, match="each reader once"):
        Hybrid().create(ChannelSpec("ipcb-near", 2, host="127.0.0.1", near=(0, 0)))


LOOKING = """
import os, select, sys
from pathlib import Path
from mpi4py import MPI
from ipcbench import ChannelSpec, get_backend
from ipcbench.errors import TransportTimeout

comm, folder = MPI.COMM_WORLD, Path(sys.argv[2])
backend, near = get_backend("mpi-buffer")(), tuple(range(comm.size - 1))
channel = ChannelSpec(sys.argv[1], comm.size - 1, max_message_bytes=100_000, host="127.0.0.1", near=near)
address = comm.bcast(backend.create(channel) if comm.rank == 0 else None)
if comm.rank == 0:
    with backend.open_writer(address) as writer:
        while len(list(folder.iterdir())) < comm.size - 1:  # in no call of MPI
            select.select((), (), (), 0.01)
        writer.write(bytes(100_000), 30.0)
else:
    with backend.open_reader(address, comm.rank - 1) as reader:
        for _ in range(300):
            try:
                reader.read(0.0)
            except TransportTimeout:
                continue
        (folder / str(comm.rank)).touch()
        print(len(reader.read(30.0)), flush=True)
comm.Barrier()
if comm.rank == 0:
    backend.destroy(address)
"""


def test_readers_that_look_often_wait_for_no_writer_that_is_busy(channel_name: str, tmp_path: Path) -> None:
    """What they told it filled MPI's room for it, and then a look took until it called MPI again."""
    if not (available := status("mpi-buffer")).available:
        pytest.skip(available.reason)
    command = [*find_mpiexec(), "-n", "4", sys.executable, "-c", LOOKING, channel_name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.count("100000") == 3, done.stderr  # lines of several ranks may run into each other


class TestFarTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarTcp"


class TestFarZmqTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarZmqTcp"


class TestFarGrpcTcp(ConformanceSuite):
    backend = "tests.conformance.test_far:FarGrpcTcp"


class TestFarRedis(ConformanceSuite):
    backend = "tests.conformance.test_far:FarRedis"


class TestFarZenoh(ConformanceSuite):
    backend = "tests.conformance.test_far:FarZenoh"


class TestFarMpi(ConformanceSuite):
    backend = "tests.conformance.test_far:FarMpi"


class TestFarMpiPkl5(ConformanceSuite):
    backend = "tests.conformance.test_far:FarMpiPkl5"


class TestFarMpiBuffer(ConformanceSuite):
    backend = "tests.conformance.test_far:FarMpiBuffer"


class TestFarMpiP2p(ConformanceSuite):
    backend = "tests.conformance.test_far:FarMpiP2p"


class TestFarHybrid(ConformanceSuite):
    backend = "tests.conformance.test_far:FarHybrid"


class TestHybrid(ConformanceSuite):
    backend = "hybrid"
