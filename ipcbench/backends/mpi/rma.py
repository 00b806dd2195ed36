"""One-sided MPI on one host: a ring in a window of shared memory, which every rank loads from and stores to.

The window lies in the writer's memory (`Win.Allocate_shared`, `Shared_query`); all ranks lock it as long as it lives
(`Lock_all`), and `Win.Sync` keeps the order of loads and stores, as the standard's unified memory model demands: before
the writer stores the number of a message, after a reader has found it, and before a reader gives a message up. The ring
is that of `shm`, in Python. The readers' progress, places and sleep are the cursors' (ipcbench.sync.cursors).

To free a window is collective, and may wait for a process that is dead. So `close` frees none: the same processes free
it, when all have closed it, as they open their next channel, and MPI's end frees the rest.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from ipcbench.backend import PLAIN_TYPES, Address, Message, bytes_of
from ipcbench.backends.mpi.links import join
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import WRITER_SLEEPS, Cursors, ReaderCursors, WriterCursors
from ipcbench.sync.futex import address_of
from ipcbench.sync.ring import PureRingReader, PureRingWriter
from ipcbench.sync.ring_memory import LINE_BYTES, Layout, RingMemory

_Cursors = TypeVar("_Cursors", bound=Cursors)
_numbers = itertools.count()


class Window(RingMemory):
    """A channel's window in this process: where its ring lies.

    Attributes:
        sync: orders this process's loads and stores of the window.
    """

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
        self.sync = self._window.Sync
        memory, _ = self._window.Shared_query(0)
        self._lay_out(memoryview(memory))
        if is_writer:  # MPI promises no zeros; and no page is missing later
            ctypes.memset(address_of(self.words), 0, layout.total_bytes)
            self.sync()
        comm.Barrier()
        self.sync()
        comm.Free()

    def give(self, cursors: Cursors, release: Callable[[], None]) -> None:
        """Take the cursors of the endpoint, and what to do when it closes."""
        self._given, self._release = cursors, release
        cursors.fence, cursors.fenced = self.sync, True

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


class RmaWriter(PureRingWriter):
    """Writer of an MPI window; the arguments are those of `MpiWriter`."""

    def __init__(
        self, cursors: WriterCursors, _runs: tuple[int, int], link: Window, release: Callable[[], None]
    ) -> None:
        # Without membarrier the look for sleepers takes a fence, and elsewhere than on x86 the rest.
        is_quick, self._sync = not cursors.fenced, link.sync
        link.give(cursors, release)
        super().__init__(cursors.address, link)
        self._quick_bytes = self._inline_bytes if is_quick else -1

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes, sequence = len(message), self._sequence
        if size_bytes > self._quick_bytes or sequence >= self._room or self._reserved is not None:
            super().write(message, timeout_s)
            return
        payload, head = self._entries[sequence % self._count]
        heads = self._heads
        heads[head + 1] = size_bytes  # first: a reader that looks at this line has it by the time of the fence
        payload[:size_bytes] = message
        self._sync()
        self._sequence = heads[head] = sequence + 1
        if self._words[self._sleep_word] or self._more_sleep_words:
            self._cursors.ring_sleepers()


class RmaReader(PureRingReader):
    """Reader of an MPI window, whose views are the window's own memory; the arguments are those of `MpiReader`."""

    def __init__(
        self, cursors: ReaderCursors, _runs: tuple[int, int], link: Window, release: Callable[[], None], index: int
    ) -> None:
        self._is_quick, self._sync = not cursors.fenced, link.sync
        link.give(cursors, release)
        super().__init__(cursors.address, link, index)

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence, heads = self._sequence, self._heads
        payload, head = self._entries[sequence % self._count]
        wanted = sequence + 1
        if heads[head] != wanted or not self._is_quick:
            return super().read(timeout_s)
        self._sync()  # for both: what was loaded of the last message, and what will be of this one
        words = self._words
        words[self._consumed_word] = sequence
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        size_bytes = heads[head + 1]
        if size_bytes > self._inline_bytes:
            return super().read(timeout_s)
        self._sequence = wanted
        return payload[:size_bytes]
