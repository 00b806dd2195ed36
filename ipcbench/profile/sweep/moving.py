"""What the processes of a bandwidth sweep do: join over a backend or gloo, and move bytes in rounds, timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from ipcbench.backend import Endpoint
from ipcbench.harness.worker import Worker, verb
from ipcbench.profile.comm.mesh import Mesh
from ipcbench.profile.comm.player import Player
from ipcbench.util.clock import now_ns

Move: TypeAlias = Callable[[], Any]


class _OverMesh(Endpoint):
    """Moves over a backend, or within one process."""

    def __init__(self, addresses: list[dict[str, Any]], rank: int) -> None:
        mesh = Mesh(addresses, rank)
        self._rank, self._ranks, self._player = rank, tuple(range(mesh.world)), Player(mesh)
        self.barrier: Move = self._player.call("barrier", self._ranks, 0)

    def move(self, what: str, size_bytes: int, direction: str) -> Move:
        """Return what moves a message of this size, in buffers that are allocated and touched."""
        if what != "send":
            return self._player.call(what, self._ranks, size_bytes)
        if self._rank > 1:
            return lambda: None
        one_way = "recv" if self._rank else "send"
        return self._player.call("exchange" if direction == "both ways" else one_way, (0, 1), size_bytes)

    def close(self) -> None:
        self._player.close()


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

        whole, other, peer = torch.ones(size_bytes // 4), torch.ones(size_bytes // 4), 1 - self._rank
        if what == "send" and self._rank > 1:
            return lambda: None
        parts, into = [*whole.chunk(self._world)], [*other.chunk(self._world)]

        def both_ways() -> None:
            sent = dist.isend(whole, peer)
            dist.recv(other, peer)
            sent.wait()

        one_way = partial(dist.recv if self._rank else dist.send, whole, peer)
        moves: dict[str, Move] = {
            "send": both_ways if direction == "both ways" else one_way,
            "broadcast": partial(dist.broadcast, whole, 0),
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather, into, parts[0]),
            "reduce_scatter": partial(dist.reduce_scatter, into[0], parts),
        }
        return moves[what]

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


@verb
def join(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this process's ends."""
    if request["addresses"] or request["world"] == 1:
        worker.hold(_OverMesh(request["addresses"], worker.index))
    else:
        worker.hold(_OverGloo(request["place"], worker.index, request["world"]))
    return {}


@verb
def move(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Move a message in rounds; answers with `enter_ns` and `exit_ns` of each round, of `count` moves.

    All processes begin a round together.
    """
    (mover,) = worker.endpoints
    assert isinstance(mover, _OverMesh | _OverGloo)  # noqa: S101 - `join` opens no other
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
