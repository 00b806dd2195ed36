"""What the processes of a bandwidth sweep do: join over a backend or gloo, and move bytes in rounds, timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ipcbench.backend import Endpoint
from ipcbench.harness.worker import Worker
from ipcbench.profile.comm.collectives import Team, folding
from ipcbench.profile.comm.mesh import Mesh
from ipcbench.util.clock import now_ns

Move: TypeAlias = Callable[[], Any]


class _OverMesh(Endpoint):
    """Moves over a backend."""

    def __init__(self, addresses: list[dict[str, Any]], rank: int) -> None:
        self._mesh = Mesh(addresses, rank)
        self._team = Team(self._mesh)
        self.barrier: Move = self._team.barrier

    def move(self, what: str, size_bytes: int, direction: str) -> Move:
        """Return what moves a message of this size, in buffers that are allocated and touched."""
        team, mesh, peer = self._team, self._mesh, 1 - self._mesh.rank
        whole = np.ones(size_bytes, np.uint8)
        if what == "send" and mesh.rank > 1:
            return lambda: None
        if what == "send" and direction == "both ways":
            other = np.ones(size_bytes, np.uint8)
            return lambda: mesh.exchange(peer, whole, other)
        if what == "send":
            return lambda: mesh.receive_into(peer, whole) if mesh.rank else mesh.send(peer, whole)
        if what == "broadcast":
            return lambda: team.broadcast(whole, 0)
        fold = folding(np.add, np.float32)
        if what == "all_reduce":
            return lambda: team.all_reduce(whole, fold)
        parts = np.split(whole, team.size)
        own = parts[0].copy()
        return lambda: team.all_gather(own, parts) if what == "all_gather" else team.reduce_scatter(parts, own, fold)

    def close(self) -> None:
        self._mesh.close()


class _OverGloo(Endpoint):
    """Moves over gloo, by torch."""

    def __init__(self, place: str, rank: int, world: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
        self._rank, self._world = rank, world
        self.barrier: Move = dist.barrier

    def move(self, what: str, size_bytes: int, direction: str) -> Move:
        """Return what moves a message of this size, in buffers that are allocated and touched."""
        import torch
        import torch.distributed as dist

        whole, peer, rank = torch.ones(size_bytes // 4), 1 - self._rank, self._rank
        if what == "send" and rank > 1:
            return lambda: None
        if what == "send" and direction == "both ways":
            other = torch.ones(size_bytes // 4)
            return lambda: _both_ways(whole, other, peer)
        if what == "send":
            return lambda: dist.recv(whole, peer) if rank else dist.send(whole, peer)
        if what == "broadcast":
            return lambda: dist.broadcast(whole, 0)
        if what == "all_reduce":
            return lambda: dist.all_reduce(whole)
        parts = [*whole.chunk(self._world)]
        own = parts[0].clone()
        return lambda: dist.all_gather(parts, own) if what == "all_gather" else dist.reduce_scatter(own, parts)

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


def _both_ways(out: Any, into: Any, peer: int) -> None:
    import torch.distributed as dist

    sent = dist.isend(out, peer)
    dist.recv(into, peer)
    sent.wait()


class _Copying(Endpoint):
    """Copies within one process."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def move(self, _: str, size_bytes: int, __: str) -> Move:
        """Return what copies that many bytes between two buffers, both touched."""
        source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
        return lambda: np.copyto(target, source)

    def close(self) -> None:
        """Nothing is open."""


def join(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this process's ends."""
    if request["world"] == 1:
        worker.hold(_Copying())
    elif request["addresses"]:
        worker.hold(_OverMesh(request["addresses"], worker.index))
    else:
        worker.hold(_OverGloo(request["place"], worker.index, request["world"]))
    return {}


def move(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Move a message in rounds; answers with `enter_ns` and `exit_ns` of each round, of `count` moves.

    All processes begin a round together.
    """
    (mover,) = worker.endpoints
    assert isinstance(mover, _OverMesh | _OverGloo | _Copying)  # noqa: S101 - `join` opens no other
    once = mover.move(request["what"], request["bytes"], request["direction"])
    once()
    entered, left = [], []
    for _ in range(request["rounds"]):
        mover.barrier()
        entered.append(now_ns())
        for _ in range(request["count"]):
            once()
        left.append(now_ns())
    return {"enter_ns": entered, "exit_ns": left}
