"""The collective operations on bytes, over a mesh: each rank of a team calls the same one in the same order.

Reductions have the same result at all ranks, bit by bit: small ones are added up in the order of the ranks at each of
them; of a large one, each rank adds up a part, which all others get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.profile.comm.mesh import Mesh, Take

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""One-dimensional and contiguous."""

Fold: TypeAlias = Callable[[Bytes, memoryview], None]
"""Reduces a piece into equally many bytes of the result."""

DIRECT_BYTES: Final = 2**16
"""Up to this size more than two ranks all send all they have to all others; above it, parts go round a ring."""
_LINE_BYTES = 64
"""Parts of a ring begin at multiples of it, so that no element is divided."""


def folding(ufunc: np.ufunc, dtype: npt.DTypeLike) -> Fold:
    """Return how numpy reduces: `folding(np.add, np.float32)` is the sum of float32."""
    kind = np.dtype(dtype)

    def fold(into: Bytes, piece: memoryview) -> None:
        target = into.view(kind)
        with np.errstate(all="ignore"):  # as torch: what overflows becomes infinite
            ufunc(target, np.frombuffer(piece, kind), out=target)

    return fold


class Team:
    """Ranks that call collective operations together; several teams may use a mesh in turn.

    Buffers are arrays of bytes. An error of one rank (see `Mesh.send`) leaves the team unusable.

    Args:
        mesh: of this process.
        ranks: those that take part, in the order by which results are arranged; all if none are given.
    """

    def __init__(self, mesh: Mesh, ranks: Sequence[int] = ()) -> None:
        self.mesh = mesh
        self.ranks = tuple(ranks) or tuple(range(mesh.world))
        self.place = self.ranks.index(mesh.rank)
        self.size = len(self.ranks)
        self._after = self.ranks[(self.place + 1) % self.size]
        self._before = self.ranks[self.place - 1]

    def all_reduce(self, buffer: Bytes, fold: Fold) -> None:
        """Reduce the buffers of all ranks into each of them."""
        if self.size == 2:  # both send all; the order of two operands makes no difference
            peer = self._after
            self.mesh.shift(peer, buffer, peer, buffer.nbytes, _folded(buffer, fold))
        elif self.size > 2 and buffer.nbytes <= min(DIRECT_BYTES, self.mesh.piece_bytes):
            parts = [np.empty_like(buffer) if rank != self.mesh.rank else buffer.copy() for rank in self.ranks]
            self._swap([parts[self.place]] * self.size, parts)
            buffer[:] = parts[0]
            for part in parts[1:]:
                fold(buffer, part.data)
        elif self.size > 2:
            parts = _parts(buffer, self.size)
            self._reduce_around(parts, fold)
            self._gather_around(parts)

    def all_gather(self, own: Bytes, parts: Sequence[Bytes]) -> None:
        """Copy each rank's `own` to its place in everybody's `parts`."""
        parts[self.place][:] = own
        if self.size == 2 or own.nbytes > DIRECT_BYTES:
            self._gather_around(parts)
        else:
            self._swap([own] * self.size, parts)

    def reduce_scatter(self, parts: Sequence[Bytes], own: Bytes, fold: Fold) -> None:
        """Reduce part i of every rank into the `own` of rank i of the team. `parts` are left as they are."""
        copies = [part.copy() for part in parts]
        self._reduce_around(copies, fold)
        own[:] = copies[self.place]

    def broadcast(self, buffer: Bytes, root: int) -> None:
        """Copy the buffer of the rank at place `root` to all others."""
        self.scatter([buffer] * self.size, buffer, root)

    def scatter(self, parts: Sequence[Bytes], own: Bytes, root: int) -> None:
        """Copy part i of the rank at place `root` to the `own` of rank i; the others' `parts` are not used."""
        if self.place != root:
            self.mesh.receive_into(self.ranks[root], own)
            return
        if own is not parts[root]:
            own[:] = parts[root]
        for place in self._others():
            self.mesh.start_send(self.ranks[place], parts[place])
        for place in self._others():
            self.mesh.flush(self.ranks[place])

    def gather(self, own: Bytes, parts: Sequence[Bytes], root: int) -> None:
        """Copy each rank's `own` to its place in the `parts` of the rank at place `root`."""
        if self.place != root:
            self.mesh.send(self.ranks[root], own)
            return
        parts[root][:] = own
        for place, part in enumerate(parts):
            if place != root:
                self.mesh.receive_into(self.ranks[place], part)

    def all_to_all(self, outs: Sequence[Bytes], parts: Sequence[Bytes]) -> None:
        """Copy `outs[j]` of rank i to `parts[i]` of rank j; the two must have the same size."""
        parts[self.place][:] = outs[self.place]
        self._swap(outs, parts)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        nothing = np.empty(0, np.uint8)
        self._swap([nothing] * self.size, [nothing] * self.size)

    def _others(self) -> list[int]:
        return [place for place in range(self.size) if place != self.place]

    def _swap(self, outs: Sequence[Bytes], into: Sequence[Bytes]) -> None:
        """Exchange a message with each other rank. Unbuffered, the pairs of ranks have their turns in one order."""
        if not self.mesh.is_buffered:
            for place in self._others():
                self.mesh.exchange(self.ranks[place], outs[place], into[place])
            return
        for place in self._others():
            self.mesh.start_send(self.ranks[place], outs[place])
        for place in self._others():
            self.mesh.receive_into(self.ranks[place], into[place])
        for place in self._others():
            self.mesh.flush(self.ranks[place])

    def _reduce_around(self, parts: Sequence[Bytes], fold: Fold) -> None:
        """Reduce part i of all ranks into that of rank i, by passing each part once around the ring."""
        self._around(parts, self.place - 1, fold)

    def _gather_around(self, parts: Sequence[Bytes]) -> None:
        """Copy part i of rank i to all others, by passing each part once around the ring."""
        self._around(parts, self.place, _copy)

    def _around(self, parts: Sequence[Bytes], first: int, fold: Fold) -> None:
        """Send part after part, downwards from `first`, and fold what comes into the one that is sent next."""
        is_even = self.place % 2 == 0
        for place in range(first, first - self.size + 1, -1):
            out, into = parts[place % self.size], parts[(place - 1) % self.size]
            self.mesh.shift(self._after, out, self._before, into.nbytes, _folded(into, fold), sends_first=is_even)


def _copy(into: Bytes, piece: memoryview) -> None:
    into.data[:] = piece


def _folded(buffer: Bytes, fold: Fold) -> Take:
    def take(begin: int, piece: memoryview) -> None:
        fold(buffer[begin : begin + len(piece)], piece)

    return take


def _parts(buffer: Bytes, count: int) -> list[Bytes]:
    """Return views of nearly equal parts of a buffer."""
    lines = -(-buffer.nbytes // _LINE_BYTES)
    ends = [min(lines * place // count * _LINE_BYTES, buffer.nbytes) for place in range(count + 1)]
    return [buffer[begin:end] for begin, end in pairwise(ends)]
