"""The MPI calls that move the messages, one class each."""

from __future__ import annotations

import pickle
import zlib
from abc import abstractmethod
from typing import Any

from ipcbench.backend import Message
from ipcbench.backends.mpi.flow import Link
from ipcbench.spec import ChannelSpec

_SMALL = {"MPICH": (8000, 48), "Intel MPI": (2000, 48), "Open MPI": (128, 16)}
"""Vendor → size up to which, and number up to which, one process's messages are kept for others that do not call MPI.
Measured on one host: MPICH keeps 64 messages of 8 KiB less its header, Intel MPI over 200 of 2 KiB, Open MPI 4 KiB
in all. Messages of any other library are never sent before all readers have asked for them."""


class Call(Link):
    """What the four links have in common: a communicator of the channel's members."""

    relays = True
    makes_objects = False
    pickled_bytes = 0
    """Most that pickling adds to a message."""

    def __init__(self, mpi: Any, channel: ChannelSpec) -> None:
        self._mpi, self._channel = mpi, channel
        self._readers = channel.readers
        self.errors = mpi.Exception
        limit_bytes, count = _SMALL.get(mpi.get_vendor()[0], (0, 0))
        self.small_bytes = limit_bytes - self.pickled_bytes
        self.window = min(channel.depth, count // self.sends_per_message())
        self.comm = self._make(0)
        self.use(self.comm)

    def _make(self, absent: int) -> Any:
        writer, *readers = self._channel.process_numbers()
        members = [writer, *(rank for index, rank in enumerate(readers) if not absent >> index & 1)]
        world_group = self._mpi.COMM_WORLD.Get_group()
        group = world_group.Incl(members)
        comm = self._mpi.COMM_WORLD.Create_group(group, zlib.crc32(self._channel.name.encode()) & 0x7FFF)
        group.Free()
        world_group.Free()
        return comm

    @abstractmethod
    def sends_per_message(self) -> int:
        """Return the most messages that MPI sends from one process for one of ours."""

    @abstractmethod
    def use(self, comm: Any) -> None:
        """Make `send` and `receive` use that communicator."""

    def leave_out(self, absent: int) -> None:
        comm, self.comm = self.comm, self._make(absent)
        comm.Free()
        self.use(self.comm)

    def close(self, *, drained: bool) -> None:
        # The standard calls this collective; MPICH, Intel MPI and Open MPI do it without the others. What is unread
        # would meet the next communicator of the same number.
        if drained:
            self.comm.Free()


class Bcast(Call):
    """`Bcast` of a buffer."""

    def sends_per_message(self) -> int:
        return self._readers.bit_length()  # of a binomial tree's root

    def use(self, comm: Any) -> None:
        self.send = self.receive = comm.Bcast


class PickledBcast(Call):
    """`bcast` of the message as an object: a broadcast of its pickled length, then one of the pickle."""

    makes_objects = True
    pickled_bytes = 64

    def sends_per_message(self) -> int:
        return 2 * self._readers.bit_length()

    def use(self, comm: Any) -> None:
        bcast = comm.bcast

        def send(message: Message) -> None:
            bcast(bytes(message) if isinstance(message, memoryview) else message, 0)

        self.send, self.receive = send, bcast


class Pickle5Bcast(Call):
    """`bcast` of `mpi4py.util.pkl5`: the message is a PickleBuffer, so that a large one travels beside the pickle."""

    makes_objects = True
    pickled_bytes = 64

    def sends_per_message(self) -> int:
        return 3 * self._readers.bit_length()

    def use(self, comm: Any) -> None:
        from mpi4py.util import pkl5

        bcast = pkl5.Intracomm(comm).bcast
        buffer = pickle.PickleBuffer

        def send(message: Message) -> None:
            bcast(buffer(message), 0)

        self.send, self.receive = send, bcast


class PointToPoint(Call):
    """`Isend` to each reader."""

    relays = False

    def sends_per_message(self) -> int:
        return self._readers

    def use(self, comm: Any) -> None:
        isend, wait_all = comm.Isend, self._mpi.Request.Waitall
        ranks = range(1, comm.Get_size())

        def send(message: Message) -> None:
            wait_all([isend(message, rank) for rank in ranks])

        def send_to_one(message: Message) -> None:
            isend(message, 1).Wait()

        self.send, self.receive = (send_to_one if len(ranks) == 1 else send), comm.Recv
