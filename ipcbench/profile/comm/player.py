"""A rank of a replay: sends what it is told, does as much work in between as took place there, and times both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ipcbench.backend import Endpoint
from ipcbench.harness.worker import Worker, verb
from ipcbench.profile.comm.collectives import Bytes, Fold, Team, folding
from ipcbench.profile.comm.mesh import Mesh
from ipcbench.replay.work import BY_TIME, Work
from ipcbench.util.clock import longest_wait_ns, now_ns, run_queue_waits_ns

_REPEATS = 8
_ADD_FLOATS, _ADD_BYTES = folding(np.add, np.float32), folding(np.add, np.uint8)


class Player(Endpoint):
    """The mesh of one rank, and memory for the largest message so far."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self._work = mesh, Work()
        self._teams: dict[tuple[int, ...], Team] = {}
        self._own = self._other = np.empty(0, np.uint8)

    def call(self, op: str, ranks: tuple[int, ...], size_bytes: int) -> Callable[[], None]:
        """Return what carries out a call as `Call` has it, `exchange` of two ranks, or `memcpy` of one.

        Its memory is touched.
        """
        if size_bytes > len(self._own):
            self._own, self._other = (np.ones(size_bytes, np.uint8) for _ in range(2))
        mesh, own, other = self.mesh, self._own[:size_bytes], self._other[:size_bytes]
        if op in {"send", "recv", "exchange"}:
            source, to = ranks
            moves: dict[str, Callable[[], None]] = {
                "send": partial(mesh.send, to, own),
                "recv": partial(mesh.receive_into, source, other),
                "exchange": partial(mesh.exchange, source + to - mesh.rank, own, other),
            }
            return moves[op]
        team = self._teams.get(ranks) or self._teams.setdefault(ranks, Team(mesh, ranks))
        outs, into = _parts(own, team.size), _parts(other, team.size)
        operations: dict[str, Callable[[], None]] = {
            "memcpy": partial(np.copyto, other, own),
            "barrier": team.barrier,
            "all_reduce": partial(team.all_reduce, own, _adding(own)),
            "broadcast": partial(team.broadcast, own, 0),
            "all_gather": partial(team.all_gather, outs[team.place], into),
            "reduce_scatter": partial(team.reduce_scatter, outs, into[team.place], _adding(outs[0])),
            "all_to_all": partial(team.all_to_all, outs, into),
            "scatter": partial(team.scatter, outs, into[team.place], 0),
            "gather": partial(team.gather, outs[team.place], into, 0),
        }
        return operations[op]

    def step(self, calls: Sequence[Sequence[Any]], rest_ns: int) -> tuple[int, int]:
        """Carry out the calls of a step, and the work after them; return when it began and ended."""
        made = [(self.call(op, tuple(ranks), size), size, gap) for op, ranks, size, gap, _ in calls]
        self.call("barrier", tuple(range(self.mesh.world)), 0)()
        now = begin = now_ns()
        for call, size_bytes, gap_ns in made:
            if gap_ns:
                self._work.do(BY_TIME, now + gap_ns, size_bytes)
            call()
            now = now_ns()
        if rest_ns:
            now = self._work.do(BY_TIME, now + rest_ns, 0)
        return begin, now

    def time_ns(self, op: str, ranks: tuple[int, ...], size_bytes: int) -> float | None:
        """Return what a call takes on an idle machine, one after the other; None if this rank has no part in it."""
        if self.mesh.rank not in ranks:
            return None
        if op == "send":  # there and back
            ends = (("send", ranks), ("recv", ranks[::-1]))
            ways = ends if self.mesh.rank == ranks[0] else (("recv", ranks), ("send", ranks[::-1]))
            calls = [self.call(*way, size_bytes) for way in ways]
        else:
            calls = [self.call(op, ranks, size_bytes)]
        times = []
        for _ in range(_REPEATS):
            begin = now_ns()
            for call in calls:
                call()
            times.append((now_ns() - begin) / len(calls))
        return float(np.median(times))

    def close(self) -> None:
        self.mesh.close()


def _adding(buffer: Bytes) -> Fold:
    return _ADD_BYTES if buffer.nbytes % 4 else _ADD_FLOATS


def _parts(buffer: Bytes, count: int) -> list[Bytes]:
    size = len(buffer) // count
    return [buffer[place * size : (place + 1) * size] for place in range(count)]


@verb
def join(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this rank's end of the mesh."""
    worker.hold(Player(Mesh(request["addresses"], worker.index)))
    return {}


@verb
def play(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out this rank's calls; answers with the begin and end of each step, and how long it waited for a core."""
    waits = run_queue_waits_ns()
    times_ns = [_of(worker).step(calls, rest) for calls, rest in request["programs"][worker.index]]
    return {"times_ns": times_ns, "core_wait_ns": longest_wait_ns(waits, run_queue_waits_ns()) or 0}


@verb
def measure(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Time calls alone; answers with the time of each."""
    return {"times_ns": [_of(worker).time_ns(op, tuple(ranks), size) for op, ranks, size in request["calls"]]}


def _of(worker: Worker) -> Player:
    (player,) = (each for each in worker.endpoints if isinstance(each, Player))
    return player
