"""The MPI backends against the contract."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ipcbench import get_backend
from ipcbench.errors import BackendUnavailable
from ipcbench.processes.launch import find_mpiexec
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


_TWENTY_CHANNELS = """
import os
from pathlib import Path
from mpi4py import MPI
from ipcbench import get_backend
from ipcbench.spec import ChannelSpec

backend, world = get_backend("mpi-rma")(), MPI.COMM_WORLD
counts = []
for number in range(20):
    made = None if world.rank else backend.create(ChannelSpec(f"ipcb-rma-{os.getpid()}-{number}"))
    address = world.bcast(made)
    if world.rank == 0:
        with backend.open_writer(address) as writer:
            writer.write(b"x", 60.0)
    else:
        with backend.open_reader(address, 0) as reader:
            assert bytes(reader.read(60.0)) == b"x"
    counts.append(sum("/dev/shm/" in line for line in Path("/proc/self/maps").read_text().splitlines()))
    world.Barrier()
    if made:
        backend.destroy(made)
assert counts[-1] == counts[1], counts
"""


def test_windows_are_freed_when_the_same_ranks_open_their_next_channel() -> None:
    backend = get_backend("mpi-rma")
    try:
        backend.probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    command = [*find_mpiexec(sys.executable), "-n", "2", sys.executable, "-c", _TWENTY_CHANNELS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
