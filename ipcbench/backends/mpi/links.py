"""The MPI calls that move messages, one class for each kind of call."""

from __future__ import annotations

import pickle
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import Any, ClassVar

from ipcbench.backend import Message
from ipcbench.spec import ChannelSpec

_SMALL = {"MPICH": (8000, 48), "Intel MPI": (2000, 48), "Open MPI": (128, 16)}
"""Vendor → (largest size, number) of messages from one process that MPI buffers for receivers that have not called yet.
Measured on one host: MPICH keeps 64 messages of 8 KiB less its header, Intel MPI over 200 of 2 KiB, Open MPI 4 KiB in
all. With any other library, a message is never sent before all readers have asked for it."""


def small_messages(mpi: Any) -> tuple[int, int]:
    """Return the largest size and the number of messages that MPI keeps for a receiver that has not called yet."""
    return _SMALL.get(mpi.get_vendor()[0], (0, 0))


def join(mpi: Any, channel: ChannelSpec, absent: int = 0) -> Any:
    """Return a communicator of the channel's processes, without the readers whose bits are set in `absent`; the writer
    is its rank 0. All of them must make this call.
    """
    writer, *readers = channel.process_numbers()
    members = [writer, *(rank for index, rank in enumerate(readers) if not absent >> index & 1)]
    world_group = mpi.COMM_WORLD.Get_group()
    group = world_group.Incl(members)
    comm = mpi.COMM_WORLD.Create_group(group, zlib.crc32(channel.name.encode()) & 0x7FFF)
    group.Free()
    world_group.Free()
    return comm


class MpiLink(ABC):
    """The MPI side of an endpoint: one kind of call on the channel's own communicator, where the writer is rank 0."""

    window: int
    """Number of small messages that MPI keeps for a reader that has not called; at most `MOST_AHEAD`."""
    small_bytes: int
    """Largest size of a small message."""
    relays: ClassVar[bool] = True
    """True if a message may reach a reader through other readers."""
    makes_objects: ClassVar[bool] = False
    """True if `receive` returns the message; False if it fills the buffer that it is given."""
    pickled_bytes: ClassVar[int] = 0
    """Most that pickling adds to a message."""
    errors: type[Exception]
    """Base class of what the calls raise."""
    send: Callable[[Message], Any]
    """Send a message."""
    receive: Callable[..., Any]
    """Receive into a buffer, or an object if the first argument is None; the second argument is 0."""
    prepare: Callable[[Message], Any] | None = None
    """What to do with a message that is not small before the endpoints agree on it; `sender` then takes the result."""

    def __init__(self, mpi: Any, channel: ChannelSpec) -> None:
        self._mpi, self._channel = mpi, channel
        self._readers = channel.readers
        self.errors = mpi.Exception
        limit_bytes, count = small_messages(mpi)
        self.small_bytes = limit_bytes - self.pickled_bytes
        self.window = min(channel.depth, count // self.sends_per_message())
        self._comm = join(mpi, channel)
        self._use(self._comm)

    @abstractmethod
    def sends_per_message(self) -> int:
        """Return the most messages that MPI sends from one process for one message of the channel."""

    @abstractmethod
    def _use(self, comm: Any) -> None:
        """Make `send` and `receive` use that communicator."""

    def sender(self, length_bytes: int) -> Callable[[Any], Any]:
        """Return what sends messages of that length."""
        del length_bytes
        return self.send

    def receiver(self, length_bytes: int) -> Callable[..., Any]:
        """Return what receives messages of that length."""
        del length_bytes
        return self.receive

    def leave_out(self, absent: int) -> None:
        """Continue without the readers whose bits are set in `absent`; all other endpoints must do so now."""
        comm, self._comm = self._comm, join(self._mpi, self._channel, absent)
        comm.Free()
        self._use(self._comm)

    def close(self, *, drained: bool) -> None:
        """Free the communicator if everything sent over it has been received here (`drained`)."""
        # The standard calls this collective; MPICH, Intel MPI and Open MPI do it without the others. Unread messages
        # would be received on the next communicator of the same number.
        if drained:
            self._comm.Free()


class Bcast(MpiLink):
    """`Bcast` of a buffer."""

    def sends_per_message(self) -> int:
        return self._readers.bit_length()  # of a binomial tree's root

    def _use(self, comm: Any) -> None:
        self.send = self.receive = comm.Bcast


class PickledBcast(MpiLink):
    """`bcast` of the message as an object: one broadcast of its pickled length, one of the pickle.

    A message that is not small is pickled before the endpoints agree on it. Within `bcast`, the writer would pickle it
    only after every reader has asked for it, and so has unpickled the one before; in a plain loop the two overlap.
    """

    makes_objects = True
    pickled_bytes = 64

    def sends_per_message(self) -> int:
        return 2 * self._readers.bit_length()

    def _use(self, comm: Any) -> None:
        bcast, buffer_bcast, pickling, allocate = comm.bcast, comm.Bcast, self._mpi.pickle, self._mpi.buffer.allocate
        count = array("q", [0])

        def send(message: Message) -> None:
            bcast(bytes(message) if isinstance(message, memoryview) else message, 0)

        def prepare(message: Message) -> Any:
            return pickling.dumps(bytes(message) if isinstance(message, memoryview) else message)

        def send_pickled(data: bytes) -> None:
            count[0] = len(data)
            buffer_bcast(count, 0)
            buffer_bcast(data, 0)

        def receive_pickled(_: None, root: int) -> Any:
            buffer_bcast(count, root)
            data = allocate(count[0])
            buffer_bcast(data, root)
            return pickling.loads(data)

        self.send, self.receive, self.prepare = send, bcast, prepare
        self._send_pickled, self._receive_pickled = send_pickled, receive_pickled

    def sender(self, length_bytes: int) -> Callable[[Any], Any]:
        return self.send if length_bytes <= self.small_bytes else self._send_pickled

    def receiver(self, length_bytes: int) -> Callable[..., Any]:
        return self.receive if length_bytes <= self.small_bytes else self._receive_pickled


class Pickle5Bcast(MpiLink):
    """`bcast` of `mpi4py.util.pkl5`: the message is a PickleBuffer, so that a large one is sent out of band."""

    makes_objects = True
    pickled_bytes = 64

    def sends_per_message(self) -> int:
        return 3 * self._readers.bit_length()

    def _use(self, comm: Any) -> None:
        from mpi4py.util import pkl5

        bcast = pkl5.Intracomm(comm).bcast
        buffer = pickle.PickleBuffer

        def send(message: Message) -> None:
            bcast(buffer(message), 0)

        self.send, self.receive = send, bcast


class PointToPoint(MpiLink):
    """`Isend` to each reader."""

    relays = False

    def sends_per_message(self) -> int:
        return self._readers

    def _use(self, comm: Any) -> None:
        isend, wait_all = comm.Isend, self._mpi.Request.Waitall
        ranks = range(1, comm.Get_size())

        def send(message: Message) -> None:
            wait_all([isend(message, rank) for rank in ranks])

        def send_to_one(message: Message) -> None:
            isend(message, 1).Wait()

        self.send, self.receive = (send_to_one if len(ranks) == 1 else send), comm.Recv
