"""A mesh: one channel for each ordered pair of ranks, over any backend between processes. Messages of any size travel
in pieces, so that two ranks copy at the same time and what one has just written is still in a cache.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeAlias

from ipcbench.backend import Address, Endpoint, Reader, Writer
from ipcbench.errors import ConfigError, EndOfStream, IntegrityError, PeerLost, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.util.clock import deadline_ns, remaining_s

PIECE_BYTES: Final = 2**18
"""Of a message's pieces, except the last."""
STALL_S: Final = 1800.0
"""Longest wait for a piece, during which a peer may compute. The death of a peer is noticed at once."""

Take: TypeAlias = Callable[[int, memoryview], None]
"""What is called with each piece of a message that comes in: where it begins, and the piece, valid during the call."""

_DEPTH = 4
_TAKEN_BYTES = 2**14
"""Largest piece that a buffered channel certainly takes at once. Of a larger one, a stream without a time-out takes a
part, and starts a thread for a copy of the rest: three times slower than a writer that waits for the reader."""
_LOOK_S = 0.001
"""How long a rank with messages still to send looks for one that comes in before it tries to send again."""


def _own_name() -> str:
    return f"{NAME_PREFIX}{secrets.token_hex(8)}"


def create_mesh(
    backend: str, world: int, largest_bytes: int = PIECE_BYTES, name: Callable[[], str] = _own_name
) -> list[dict[str, Any]]:
    """Make the channels of a mesh, and return their addresses as `Address.as_dict` does, in the order of the pairs.

    Args:
        backend: a registered backend between processes.
        world: ranks.
        largest_bytes: of a message; if smaller than a piece, the channels need less memory.
        name: returns a new channel's name: `RunDir.channel_name`.

    Raises:
        ConfigError: the backend's endpoints all live in one process.
        Unsupported, TransportError: it cannot make such channels.
    """
    made = get_backend(backend)()
    if made.capabilities.launcher in {"inline", "fork"}:
        raise ConfigError("transport", backend, "a transport between processes that open it by address")
    addresses: list[dict[str, Any]] = []
    with ExitStack() as undo:
        for pair in [(source, to) for source in range(world) for to in range(world) if source != to]:
            size_bytes = max(min(largest_bytes, PIECE_BYTES), 64)
            channel = ChannelSpec(name(), max_message_bytes=size_bytes, depth=_DEPTH, processes=pair)
            address = made.create(channel)
            undo.callback(made.destroy, address)
            addresses.append(address.as_dict())
        undo.pop_all()
    return addresses


def destroy_mesh(addresses: Sequence[Mapping[str, Any]]) -> None:
    """Remove the channels of a mesh, whatever has become of its ranks; a second call does nothing."""
    with ExitStack() as every:
        for address in map(Address.from_dict, addresses):
            every.callback(get_backend(address.backend)().destroy, address)


class Mesh(Endpoint):
    """One rank's ends of all its channels. Opening never waits, except under mpiexec, where all ranks open together.

    Args:
        addresses: as `create_mesh` returned them; none with one rank.
        rank: of this process.
        stall_s: longest wait for a piece.

    Raises:
        TransportError: a channel is gone, or open already.

    Attributes:
        world: how many ranks there are.
        piece_bytes: size of a message's pieces.
        is_buffered: whether a channel takes a piece before anybody reads.
    """

    def __init__(self, addresses: Sequence[Mapping[str, Any]], rank: int, stall_s: float = STALL_S) -> None:
        self.rank, self._stall_s = rank, stall_s
        self.world, self.piece_bytes, self.is_buffered = 1, PIECE_BYTES, True
        self._taken_bytes = 0
        self._writers: dict[int, Writer] = {}
        self._readers: dict[int, Reader] = {}
        self._unsent: dict[int, deque[tuple[memoryview, int]]] = {}
        self._ahead: dict[int, deque[memoryview]] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            for address in map(Address.from_dict, addresses):  # in the same order at each rank, as mpiexec demands
                source, to = address.channel.processes
                self.world = max(self.world, source + 1, to + 1)
                backend, self.piece_bytes = get_backend(address.backend)(), address.channel.max_message_bytes
                can = backend.capabilities
                self.is_buffered = can.holds_one_of_max
                self._taken_bytes = self.piece_bytes if can.writes_in_place else _TAKEN_BYTES * can.holds_one_of_max
                if rank == source:
                    self._writers[to] = backend.open_writer(address)
                elif rank == to:
                    self._readers[source] = backend.open_reader(address, 0)
            undo.pop_all()

    def send(self, peer: int, buffer: Any) -> None:
        """Send a message: all bytes of the buffer, which may change when the call returns.

        Raises:
            PeerLost: the peer's process has ended.
            TransportTimeout: it took nothing within `stall_s`.
        """
        self.start_send(peer, buffer)
        self.flush(peer)

    def start_send(self, peer: int, buffer: Any) -> None:
        """Send what the channel takes at once of a message; `flush`, or waiting for another, sends the rest. The buffer
        must not change before `flush` has returned.
        """
        view = _bytes(buffer)
        self._unsent.setdefault(peer, deque()).append((view, 0))
        if min(len(view), self.piece_bytes) <= self._taken_bytes:
            self._send_some(peer, 0)

    def is_sending(self, peer: int) -> bool:
        """Return whether something to the peer has been started and not been handed over."""
        return peer in self._unsent

    def flush(self, peer: int) -> None:
        """Wait until every message to the peer that was started has been handed over. Meanwhile, what comes in is kept:
        two ranks may send to each other before they receive.
        """
        deadline = deadline_ns(self._stall_s)
        while peer in self._unsent:
            if self._send_some(peer, _LOOK_S):
                deadline = deadline_ns(self._stall_s)
            elif not remaining_s(deadline):
                raise TransportTimeout(f"rank {peer} took nothing within {self._stall_s:g} s")
            for source in self._readers if peer in self._unsent else ():
                self._read_ahead(source)

    def receive(self, peer: int, size_bytes: int, take: Take) -> None:
        """Wait for a message of this size, and have its pieces taken one by one.

        Raises:
            IntegrityError: a message of another size came.
            PeerLost, TransportTimeout: as of `send`.
        """
        for begin in self._begins(size_bytes):
            self._read(peer, begin, size_bytes, take)

    def receive_into(self, peer: int, buffer: Any) -> None:
        """Wait for a message as large as the buffer, and copy it there; see `receive`."""
        view = _bytes(buffer)
        self.receive(peer, len(view), _copy(view))

    def exchange(self, peer: int, out: Any, into: Any) -> None:
        """Send a message and receive one of the same or another size, at the same time at both ranks."""
        view = _bytes(into)
        self.shift(peer, out, peer, len(view), _copy(view))

    def shift(
        self, to: int, out: Any, source: int, size_bytes: int, take: Take, *, sends_first: bool | None = None
    ) -> None:
        """Send a message to one rank while receiving one from another, piece by piece. A piece is sent as it was before
        the one at the same place was taken, so that `take` may write there.

        Every rank takes part in the same permutation. Pieces that a channel does not take at once are sent first by
        some ranks and received first by others, so that no cycle of ranks waits for itself.

        Args:
            sends_first: whether this rank is of the former; by default those are that send upwards.
        """
        view = _bytes(out)
        self.flush(to)
        piece_bytes = min(max(len(view), size_bytes), self.piece_bytes)
        sends_first = piece_bytes <= self._taken_bytes or (self.rank < to if sends_first is None else sends_first)
        sends, receives = self._begins(len(view)), self._begins(size_bytes)
        for place in range(max(len(sends), len(receives))):
            piece: Any = view[sends[place] : sends[place] + self.piece_bytes] if place < len(sends) else None
            if piece is not None and sends_first:
                self._write(to, piece, self._stall_s)
            elif piece is not None:
                piece = bytes(piece)
            if place < len(receives):
                self._read(source, receives[place], size_bytes, take)
            if piece is not None and not sends_first:
                self._write(to, piece, self._stall_s)

    def _begins(self, size_bytes: int) -> range:
        """Return where the pieces of a message begin; an empty message has one."""
        return range(0, max(size_bytes, 1), self.piece_bytes)

    def _write(self, peer: int, piece: Any, timeout_s: float) -> None:
        try:
            self._writers[peer].write(piece, timeout_s)
        except (PeerLost, EndOfStream) as error:
            raise _lost(peer, error) from error
        except TransportTimeout as error:
            raise TransportTimeout(f"rank {peer} took nothing within {timeout_s:g} s") from error

    def _send_some(self, peer: int, timeout_s: float) -> bool:
        """Hand over what there is room for; return whether there was for a piece."""
        unsent, has_sent = self._unsent[peer], False
        try:
            while unsent:
                view, begin = unsent[0]
                self._write(peer, view[begin : begin + self.piece_bytes], timeout_s)
                unsent[0], has_sent = (view, begin + self.piece_bytes), True
                if begin + self.piece_bytes >= len(view):
                    unsent.popleft()
        except TransportTimeout:
            return has_sent
        del self._unsent[peer]
        return True

    def _read(self, peer: int, begin: int, size_bytes: int, take: Take) -> None:
        """Wait for the piece that begins there, and have it taken."""
        is_ahead = bool(self._ahead.get(peer))
        piece = self._ahead[peer].popleft() if is_ahead else self._next(peer)
        if len(piece) != min(self.piece_bytes, size_bytes - begin):
            raise IntegrityError(
                f"rank {peer} sent {len(piece):,} bytes at {begin:,} of a message of {size_bytes:,}: the ranks do not "
                "call the same operations in the same order"
            )
        take(begin, piece)
        if not is_ahead:
            self._readers[peer].release()

    def _next(self, peer: int) -> memoryview:
        deadline = deadline_ns(self._stall_s)
        while True:
            for other in tuple(self._unsent):
                self._send_some(other, 0)
            try:
                return self._readers[peer].read(_LOOK_S if self._unsent else self._stall_s)
            except TransportTimeout as error:
                if not remaining_s(deadline):
                    raise TransportTimeout(f"rank {peer} sent nothing within {self._stall_s:g} s") from error
            except (PeerLost, EndOfStream) as error:
                raise _lost(peer, error) from error

    def _read_ahead(self, peer: int) -> None:
        """Keep a piece that has come in, if there is one; who waits for it finds out if the peer has ended."""
        with suppress(TransportTimeout, PeerLost, EndOfStream):
            piece = memoryview(bytes(self._readers[peer].read(0)))
            self._readers[peer].release()
            self._ahead.setdefault(peer, deque()).append(piece)

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()
        while self._readers:
            self._readers.popitem()[1].close()


def _bytes(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _copy(view: memoryview) -> Take:
    def take(begin: int, piece: memoryview) -> None:
        view[begin : begin + len(piece)] = piece

    return take


def _lost(peer: int, error: Exception) -> PeerLost:
    why = "ended its part" if isinstance(error, EndOfStream) else "is gone"
    return PeerLost(f"rank {peer} {why}")
