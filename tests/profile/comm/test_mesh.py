"""Operations over every transport between processes: right bytes, the same sums at all ranks, one line for a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipcbench.errors import ConfigError
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm.collectives import Team
from ipcbench.profile.comm.mesh import PIECE_BYTES, Mesh, create_mesh
from ipcbench.registry import get_backend, status
from tests.profile.comm.ranks import ADD, SIZES, die, in_ranks, mesh_of, operations

_TRANSPORTS = [("shm", 2), ("shm", 4), ("pipe", 3), ("zmq", 2), ("tcp", 2), ("lmdb", 2), ("mpi-p2p", 3)]


@pytest.mark.parametrize(("backend", "world"), _TRANSPORTS)
def test_every_operation_brings_the_right_bytes_and_the_same_sums(backend: str, world: int) -> None:
    if not (found := status(backend)).available:
        pytest.skip(found.reason)
    launcher = get_backend(backend).capabilities.launcher
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard, mesh_of(backend, world) as addresses:
        roles = tuple(f"rank {rank}" for rank in range(world))
        group = Group(launcher, world - 1, switchboard, roles, verbs="tests.profile.comm.ranks:CheckedWorker")
        try:
            question = {"do": "check", "sizes": SIZES, "addresses": addresses}
            answers = group.connect().ask_all(question, 120)
            group.ask_all({"do": "close"}, 20)
            group.end()
        finally:
            group.kill()
    assert [len(each) for each in answers[0]["sums"]] == list(SIZES)
    assert all(answers[rank]["sums"] == answers[0]["sums"] for rank in range(world))


def test_64_mib_and_a_team_of_some_ranks() -> None:
    with mesh_of("shm", 3) as addresses:

        def work(rank: int) -> Any:
            with Mesh(addresses, rank, 20) as mesh:
                if rank == 1:
                    return len(list(operations(Mesh([], 0), [])))
                team = Team(mesh, (2, 0))
                buffer = np.full(2**24, 1.0 + rank, np.float32)
                team.all_reduce(buffer.view(np.uint8), ADD)
                parts = [np.zeros(1, np.uint8) for _ in range(2)]
                team.all_gather(np.full(1, rank, np.uint8), parts)
                return float(buffer.min()), float(buffer.max()), [int(part[0]) for part in parts]

        assert in_ranks(3, work) == [(4.0, 4.0, [2, 0]), 0, (4.0, 4.0, [2, 0])]


@pytest.mark.parametrize("backend", ["shm", "pipe"])
@pytest.mark.parametrize("size", [1000, 20 * PIECE_BYTES])
def test_a_killed_rank_ends_all_others_with_one_line(backend: str, size: int) -> None:
    with mesh_of(backend, 3) as addresses:

        def work(rank: int) -> None:
            with Mesh(addresses, rank, 20) as mesh:
                team = Team(mesh)
                team.barrier()
                if rank == 1:
                    die()
                while True:
                    team.all_reduce(np.zeros(size, np.uint8), ADD)

        first, killed, last = in_ranks(3, work)
    assert killed is None
    lines = {"PeerLost: rank 1 is gone", "PeerLost: rank 0 ended its part", "PeerLost: rank 2 ended its part"}
    assert {first, last} <= lines
    assert "PeerLost: rank 1 is gone" in {first, last}


def test_ranks_that_call_different_operations_are_told() -> None:
    with mesh_of("shm", 2) as addresses:

        def work(rank: int) -> None:
            with Mesh(addresses, rank, 20) as mesh:
                Team(mesh).all_reduce(np.zeros(8 + 8 * rank, np.uint8), ADD)

        assert "IntegrityError" in str(in_ranks(2, work))


def test_a_transport_of_one_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="between processes"):
        create_mesh("null", 2)
