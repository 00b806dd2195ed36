"""Links that carry tensors between a client and a server, one class for each way in which they become messages.

Every message carries its number, its call and its tensors' sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt

from ipcbench.backend import Address, Endpoint, joined
from ipcbench.diagnose.ladder.stages import LinkKind
from ipcbench.errors import IntegrityError, TransportError, TransportTimeout
from ipcbench.registry import get_backend

if TYPE_CHECKING:
    from zmq import Socket

Array: TypeAlias = npt.NDArray[np.uint8]

END: Final = -1
"""In place of a call: the client has no more."""

_WORD = Struct("=q")
WORD_BYTES: Final = _WORD.size
_HEAD_WORDS: Final = 3


class Received(NamedTuple):
    """A message as it came."""

    number: int
    """Of the message, from 0."""
    call: int
    """Place of the call in the list of calls, or `END`."""
    tensors: list[Array]
    """Valid until `release`."""


def framed_bytes(sizes: Sequence[int]) -> int:
    """Return the size of a message in shared memory: a head, and each tensor at a whole word."""
    return WORD_BYTES * (_HEAD_WORDS + len(sizes)) + sum(size + -size % WORD_BYTES for size in sizes)


def _head(number: int, call: int, tensors: Sequence[Array]) -> bytes:
    words = (number, call, len(tensors), *(tensor.nbytes for tensor in tensors))
    return Struct(f"={len(words)}q").pack(*words)


def _parts(number: int, call: int, tensors: Sequence[Array]) -> list[Any]:
    """Return the parts of a message in shared memory."""
    parts: list[Any] = [_head(number, call, tensors)]
    for tensor in tensors:
        parts.append(tensor)
        if gap := -tensor.nbytes % WORD_BYTES:
            parts.append(bytes(gap))
    return parts


def _from_view(view: memoryview) -> Received:
    """Return what a message in shared memory holds; its tensors are views of it."""
    number, call, count = (_WORD.unpack_from(view, WORD_BYTES * place)[0] for place in range(_HEAD_WORDS))
    sizes = Struct(f"={count}q").unpack_from(view, WORD_BYTES * _HEAD_WORDS)
    if len(view) != framed_bytes(sizes):
        raise IntegrityError(f"message {number} has {len(view):,} bytes in place of {framed_bytes(sizes):,}")
    return Received(number, call, _views(view, sizes))


def _views(room: memoryview, sizes: Sequence[int]) -> list[Array]:
    """Return the places of the tensors in a message in shared memory."""
    tensors, begin = [], WORD_BYTES * (_HEAD_WORDS + len(sizes))
    for size in sizes:
        tensors.append(np.frombuffer(room, np.uint8, size, begin))
        begin += size + -size % WORD_BYTES
    return tensors


class Link(Endpoint, ABC):
    """One end of a connection that carries tensors there and back."""

    place: str | None = None
    """Of a server's socket: where clients find it."""
    _own: Sequence[list[Array]] = ()

    def prepare(self, sizes: Sequence[Sequence[int]]) -> None:
        """Make memory for the tensors of every call; the sizes are those of each call's."""
        self._own = [[np.ones(size, np.uint8) for size in of_call] for of_call in sizes]

    def tensors(self, call: int) -> list[Array]:
        """Return the tensors of a call, to be filled and then sent, all of them, by the next `send`."""
        return [] if call == END else self._own[call]

    @abstractmethod
    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        """Send a message; the tensors may change only when the other side has answered."""

    @abstractmethod
    def receive(self) -> Received:
        """Wait for the next message.

        Raises:
            TransportTimeout: none came in time.
        """

    def release(self) -> None:
        """Give up the memory of the last message, if the transport wants it back."""


class _ZmqLink(Link):
    """A REQ or a REP socket.

    Args:
        place: its address, of a server with tcp as it is to be bound.
        serves: whether it binds.
        stall_s: longest wait for a message.
    """

    def __init__(self, place: str, stall_s: float, *, serves: bool) -> None:
        import zmq

        self._again = zmq.Again
        self._stall_s = stall_s
        self._context = zmq.Context()
        self._socket: Socket[bytes] = self._context.socket(zmq.REP if serves else zmq.REQ)
        self._socket.linger = 0
        self._socket.rcvtimeo = self._socket.sndtimeo = round(1000 * stall_s)
        try:
            (self._socket.bind if serves else self._socket.connect)(place)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"{place}: {error}") from error
        self.place = self._socket.get_string(zmq.LAST_ENDPOINT)

    def _late(self) -> TransportTimeout:
        return TransportTimeout(f"no message within {self._stall_s:g} s")

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class MsgpackLink(_ZmqLink):
    """Arrays become bytes, and these a map of msgpack; whoever receives them unpacks it and copies them."""

    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        data = [tensor.tobytes() for tensor in tensors]
        try:
            self._socket.send(msgpack.packb({"number": number, "call": call, "tensors": data}))
        except self._again as error:
            raise self._late() from error

    def receive(self) -> Received:
        try:
            values = msgpack.unpackb(self._socket.recv())
        except self._again as error:
            raise self._late() from error
        tensors = [np.frombuffer(data, np.uint8).copy() for data in values["tensors"]]
        return Received(values["number"], values["call"], tensors)


class MultipartLink(_ZmqLink):
    """A small head, and each array as a part of its own, of which Python makes no copy."""

    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        try:
            self._socket.send_multipart(
                [msgpack.packb([number, call]), *(tensor.data for tensor in tensors)], copy=False
            )
        except self._again as error:
            raise self._late() from error

    def receive(self) -> Received:
        try:
            head, *parts = self._socket.recv_multipart(copy=False)
        except self._again as error:
            raise self._late() from error
        number, call = msgpack.unpackb(head.buffer)
        return Received(number, call, [np.frombuffer(part.buffer, np.uint8) for part in parts])


class WriteLink(Link):
    """Arrays are joined to one message, which is written to shared memory, and read where it is."""

    def __init__(self, there: Address, back: Address, stall_s: float, *, serves: bool) -> None:
        backend = get_backend(there.backend)()
        reads, writes = (there, back) if serves else (back, there)
        self._reader = backend.open_reader(reads, 0)
        self._writer = backend.open_writer(writes)
        self._stall_s = stall_s

    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        self._writer.write(joined(_parts(number, call, tensors)), self._stall_s)

    def receive(self) -> Received:
        return _from_view(self._reader.read(self._stall_s))

    def release(self) -> None:
        self._reader.release()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class GatherLink(WriteLink):
    """Each array is copied once, to its place in shared memory."""

    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        self._writer.write_parts(_parts(number, call, tensors), self._stall_s)


class InPlaceLink(WriteLink):
    """Arrays are filled where they are sent from."""

    _sizes: Sequence[Sequence[int]] = ()
    _room = memoryview(b"")

    def prepare(self, sizes: Sequence[Sequence[int]]) -> None:
        self._sizes = sizes

    def tensors(self, call: int) -> list[Array]:
        sizes = [] if call == END else self._sizes[call]
        self._room = self._writer.reserve(framed_bytes(sizes), self._stall_s)
        return _views(self._room, sizes)

    def send(self, number: int, call: int, tensors: Sequence[Array]) -> None:
        head = _head(number, call, tensors)
        self._room[: len(head)] = head
        self._writer.commit()


_ZMQ_LINKS: Final = {"msgpack": MsgpackLink, "multipart": MultipartLink}
_SHM_LINKS: Final = {"write": WriteLink, "gather": GatherLink, "in place": InPlaceLink}


def open_link(kind: LinkKind, place: Any, stall_s: float, *, serves: bool) -> Link:
    """Open one end of a link.

    Args:
        kind: of the link.
        place: as `socket_place` returned it, or the `place` of the server's end; of shared memory, the addresses of the
            channels there and back, as `Address.as_dict` returned them.
        stall_s: longest wait for a message.
        serves: whether it is the server's end, which is opened first.

    Raises:
        TransportError: it cannot be opened.
    """
    if kind in _ZMQ_LINKS:
        return _ZMQ_LINKS[kind](place, stall_s, serves=serves)
    there, back = map(Address.from_dict, place)
    return _SHM_LINKS[kind](there, back, stall_s, serves=serves)


def socket_place(scheme: str, folder: Path, name: str) -> str:
    """Return where a server binds a socket: any port of the loopback interface, or a file in the folder."""
    return "tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{folder / name}"
