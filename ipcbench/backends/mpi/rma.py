"""One-sided MPI on one host: a ring in a window of shared memory, which every rank loads from and stores to.

The window lies in the writer's memory (`Win.Allocate_shared`, `Shared_query`), and all ranks lock it as long as it
lives (`Lock_all`). The ring is that of `shm`. The order of loads and stores, which the standard's unified memory model
leaves to the program, is kept by atomic ones in C, or by `Win.Sync` where the ring is in Python: before the writer
stores the number of a message, after a reader has found it, and before a reader gives a message up. The readers'
progress, places and sleep are the cursors' (ipcbench.sync.cursors).

To free a window is collective, and may wait for a process that is dead. So `close` frees none: the same processes free
it, when all have closed it, as they open their next channel, and MPI's end frees the rest.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from ipcbench.backend import Address
from ipcbench.backends.mpi.links import join
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import Cursors, ReaderCursors, WriterCursors
from ipcbench.sync.futex import address_of
from ipcbench.sync.native_ring import RingReader, RingWriter
from ipcbench.sync.ring_memory import LINE_BYTES, Layout, RingMemory

_Cursors = TypeVar("_Cursors", bound=Cursors)
_numbers = itertools.count()


class Window(RingMemory):
    """A channel's window in this process: where its ring lies."""

    _closed: ClassVar[dict[frozenset[int], dict[tuple[int, int], Any]]] = {}
    """Ranks → windows of theirs that are closed here, by the rank that asked for them and its number."""
    _given: Any
    _release: Callable[[], None]

    def __init__(self, mpi: Any, channel: ChannelSpec) -> None:
        self.layout = layout = Layout(channel)
        comm = join(mpi, channel)
        self._idle = self._closed.setdefault(frozenset(channel.process_numbers()), {})
        for key in sorted(set.intersection(*map(set, comm.allgather(list(self._idle))))):
            window = self._idle.pop(key)
            window.Unlock_all()
            window.Free()
        self._key = comm.bcast((mpi.COMM_WORLD.Get_rank(), next(_numbers)))
        is_writer = comm.Get_rank() == 0
        info = mpi.Info.Create({"mpi_minimum_memory_alignment": str(LINE_BYTES)})
        self._window = mpi.Win.Allocate_shared(layout.total_bytes if is_writer else 0, 1, info, comm)
        info.Free()
        self._window.Lock_all(mpi.MODE_NOCHECK)
        memory, _ = self._window.Shared_query(0)
        self._lay_out(memoryview(memory))
        if is_writer:  # MPI promises no zeros; and no page is missing later
            ctypes.memset(address_of(self.words), 0, layout.total_bytes)
            self._window.Sync()
        comm.Barrier()
        self._window.Sync()
        comm.Free()

    def give(self, cursors: Cursors, release: Callable[[], None]) -> None:
        """Take the cursors of the endpoint, and what to do when it closes."""
        self._given, self._release = cursors, release
        cursors.fence, cursors.fenced = self._window.Sync, True

    def cursors(self, kind: Callable[..., _Cursors], address: Address, *index: int) -> _Cursors:
        """Return those that were given."""
        del kind, address, index
        given: _Cursors = self._given
        return given

    def close(self) -> None:
        """Keep the window until all its processes may free it."""
        self._let_go()
        self._idle[self._key] = self._window
        self._release()


class RmaWriter(RingWriter):  # type: ignore[misc] # whichever was built
    """Writer of an MPI window; the arguments are those of `MpiWriter`."""

    def __init__(
        self, cursors: WriterCursors, _runs: tuple[int, int], link: Window, release: Callable[[], None]
    ) -> None:
        link.give(cursors, release)
        super().__init__(cursors.address, link)


class RmaReader(RingReader):  # type: ignore[misc]
    """Reader of an MPI window, whose views are the window's own memory; the arguments are those of `MpiReader`."""

    def __init__(
        self, cursors: ReaderCursors, _runs: tuple[int, int], link: Window, release: Callable[[], None], index: int
    ) -> None:
        link.give(cursors, release)
        super().__init__(cursors.address, link, index)
