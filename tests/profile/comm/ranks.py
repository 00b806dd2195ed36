"""Ranks of the tests of communication: forks of the test's process, or workers of a group, which MPI can start, too."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ipcbench.harness.worker import Worker
from ipcbench.profile.comm.collectives import Bytes, Team, folding
from ipcbench.profile.comm.mesh import PIECE_BYTES, Mesh, create_mesh, destroy_mesh

SIZES = (0, 4, 1000, PIECE_BYTES, PIECE_BYTES + 4, 3 * 2**20)
ADD = folding(np.add, np.float32)


@contextmanager
def mesh_of(backend: str, world: int) -> Iterator[list[dict[str, Any]]]:
    """The addresses of a mesh, whose channels are gone afterwards."""
    addresses = create_mesh(backend, world)
    try:
        yield addresses
    finally:
        destroy_mesh(addresses)


def in_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work(rank)` returns in a process of its own; an error's text in its place; None if it was killed."""
    pipes, children = [os.pipe() for _ in range(world)], []
    for rank, (_, into) in enumerate(pipes):
        child = os.fork()
        if not child:
            try:
                data = pickle.dumps(work(rank))
            except Exception as error:
                data = pickle.dumps(f"{type(error).__name__}: {error}")
                traceback.print_exc()
            with os.fdopen(into, "wb") as file:
                file.write(data)
            os._exit(0)
        os.close(into)
        children.append(child)
    results = []
    for out, _ in pipes:
        with os.fdopen(out, "rb") as file:
            data = file.read()
        results.append(pickle.loads(data) if data else None)
    for child in children:
        os.waitpid(child, 0)
    return results


def numbers(rank: int, size_bytes: int) -> Bytes:
    """What a rank has, of sums that depend on the order in which they are added up."""
    return np.random.default_rng(rank).standard_normal(size_bytes // 4, np.float32).view(np.uint8)


class CheckedWorker(Worker):
    """A worker that is a rank of a mesh."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.verbs["check"] = partial(check, self)


def check(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Try every operation; answers with the bytes of all sums, which must be those of the other ranks."""
    mesh = worker.hold(Mesh(request["addresses"], worker.index, 20))
    return {"sums": [each.tobytes() for each in operations(mesh, request["sizes"])]}


def operations(mesh: Mesh, sizes: list[int]) -> Iterator[Bytes]:
    """Carry out every operation, check what came, and yield each sum."""
    team, world, rank = Team(mesh), mesh.world, mesh.rank
    after, before = (rank + 1) % world, (rank - 1) % world
    for size in sizes:
        every, empty = [numbers(each, size) for each in range(world)], [np.zeros(size, np.uint8) for _ in range(world)]
        own = every[rank].copy()
        team.all_reduce(own, ADD)
        sums = np.sum([each.view(np.float32) for each in every], axis=0)
        assert np.allclose(own.view(np.float32), sums, atol=1e-5)
        yield own
        team.all_gather(every[rank], empty)
        assert all(map(np.array_equal, empty, every))
        team.reduce_scatter([every[rank]] * world, empty[0], ADD)
        assert np.allclose(empty[0].view(np.float32), sums, atol=1e-5)
        team.broadcast(own if rank == 1 else empty[1], 1)
        assert rank == 1 or np.array_equal(empty[1], own)
        team.scatter(every if rank == 0 else [], empty[0], 0)
        assert np.array_equal(empty[0], every[rank])
        team.gather(every[rank], empty, 1)
        assert rank != 1 or all(map(np.array_equal, empty, every))
        team.all_to_all([every[rank]] * world, empty)
        assert all(map(np.array_equal, empty, every))
        team.barrier()
        mesh.start_send(after, every[rank])  # all ranks send first
        mesh.flush(after) if rank % 2 else None
        mesh.receive_into(before, own)
        mesh.flush(after)
        assert np.array_equal(own, every[before])


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)
