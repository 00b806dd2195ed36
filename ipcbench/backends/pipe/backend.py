"""The standard library's own transport: a Unix stream socket for each reader, as under `multiprocessing.Pipe`.

Each reader listens in the channel's directory as soon as it opens, and the writer connects to all before its first
message, so the order of opening does not matter and the kernel keeps what a reader has not asked for yet. A message is
its size in eight bytes and then its bytes; the end of the stream is a size that no message has.

Flow control is by credit: a reader sends a byte for each batch of messages that it has read, and the writer stops when
the slowest is `depth` behind, or a quarter more (a 64th if messages may be 64 KiB), since receipts come that late. A
message is taken for all readers or for none: what the kernel does not take while a reader stands still is copied, and a
thread sends it later, so no time-out leaves half a message behind.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Sequence
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Message, Reader, Writer
from ipcbench.backends.pipe.connection import Lane, Pump
from ipcbench.backends.pipe.reader import END, SIZE, PipeReader, credit, doorbell_path, wait_ready
from ipcbench.errors import EndpointClosed, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.liveness import CHECK_NS, Liveness, reader_roles
from ipcbench.sync.locks import channel_directory, make_directory, remove_directory
from ipcbench.sync.wait import Doorbell
from ipcbench.util.clock import deadline_ns, now_ns

_JOIN_BYTES = 2**14
"""Up to this size, a message is joined to its size: cheaper than sending two pieces."""
_PATIENCE_NS = 100_000_000
"""How long a write waits for readers that take nothing, before the rest of its message is copied for the thread."""
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer's thread goes on sending to readers that stand still, and how long `close` waits for it."""
_RECEIPTS_BYTES = 2**16
_PATH_BYTES = 103
"""Longest path of a socket on every system."""


class _PipeWriter(Writer):
    """Connects to every reader."""

    def __init__(self, address: Address) -> None:
        self._channel = address.channel
        self._liveness = Liveness(address.channel, "writer")
        self._doorbell = Doorbell(doorbell_path(self._liveness.directory))
        self._awaited = reader_roles(address.channel)
        self._connections: list[socket.socket] = []
        self._lanes: list[Lane] = []
        self._pump = Pump(f"{address.channel.name} pump")
        self._limit_bytes = address.channel.max_message_bytes
        self._window, self._batch = credit(address.channel)
        self._room = self._granted = 0
        self._begun = False
        self._failure: TransportError | None = None

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) is not bytes:
            message = memoryview(message).cast("B")  # a message is its bytes, whatever its items are
        size_bytes = len(message)
        if size_bytes > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if not self._room:
            self._make_room(deadline_ns(timeout_s))
        self._room -= 1
        if size_bytes <= _JOIN_BYTES:
            self._send_small(SIZE.pack(size_bytes) + message, timeout_s)
        else:
            pieces = memoryview(SIZE.pack(size_bytes)), memoryview(message).cast("B")
            self._send([(lane, [*pieces]) for lane in self._lanes], deadline_ns(timeout_s))

    def _send_small(self, frame: bytes, timeout_s: float | None) -> None:
        unsent, now = [], socket.MSG_DONTWAIT
        for lane in self._lanes:
            try:
                sent = 0 if lane.held else lane.socket.send(frame, now)
            except OSError:  # full, or gone: `_send` finds out
                sent = 0
            if sent != len(frame):
                unsent.append((lane, [memoryview(frame)[sent:]]))
        if unsent:
            self._send(unsent, deadline_ns(timeout_s))

    def _send(self, unsent: Sequence[tuple[Lane, list[memoryview]]], deadline: int | None) -> None:
        """Send the pieces while the readers take them, and hand over the rest.

        Raises:
            PeerLost: a reader died; the others get the message.
        """
        pump = self._pump
        rest = [(lane, left) for lane, left in unsent if not (lane.held and pump.add(lane, left, start=False))]
        dead: list[Lane] = []
        try:
            while rest:
                rest = [(lane, left) for lane, left in rest if not self._push(lane, left, dead)]
                patience = now_ns() + _PATIENCE_NS
                until = patience if deadline is None else min(patience, deadline)
                sockets = [lane.socket for lane, _ in rest]
                if rest and not wait_ready(sockets, select.POLLOUT, until, self._channel.wait):
                    break
        finally:
            for lane, left in rest:
                pump.add(lane, left, start=True)
        for lane in dead:
            self._drop(lane)

    @staticmethod
    def _push(lane: Lane, pieces: list[memoryview], dead: list[Lane]) -> bool:
        try:
            return lane.push(pieces)
        except OSError:
            dead.append(lane)
            return True

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are there and none is too far behind. There is no room after a loss or after close."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        while self._awaited:
            self._meet(deadline)
        self._begun = True
        while not self._count_room():
            sockets = [lane.socket for lane in self._lanes]
            if not wait_ready(sockets, select.POLLIN, deadline, self._channel.wait):
                raise TransportTimeout(f"no room in channel {self._channel.name!r}: a reader is too far behind")

    def _count_room(self) -> int:
        for lane in list(self._lanes):
            try:
                receipts = lane.socket.recv(_RECEIPTS_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                receipts = b""
            lane.read += len(receipts) * self._batch
            if not receipts:
                self._drop(lane)
        granted = min((lane.read for lane in self._lanes), default=self._granted) + self._window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _drop(self, lane: Lane) -> None:
        """Forget a reader that is gone.

        Raises:
            PeerLost: it did not close.
        """
        if lane in self._lanes:
            self._lanes.remove(lane)
        if self._liveness.note_of(lane.role) is None:
            self._lose(lane.role)

    def _lose(self, role: str) -> None:
        self._room = 0
        self._failure = PeerLost(f"{role} of channel {self._channel.name!r} died without closing")
        raise self._failure

    def _meet(self, deadline: int | None) -> None:
        """Connect to those readers that listen; if some do not yet, wait until one rings."""
        self._awaited = [role for role in self._awaited if not self._connect(role)]
        if self._liveness.is_check_due():
            self._check_awaited()
        if self._awaited:
            left_ns = CHECK_NS if deadline is None else min(CHECK_NS, deadline - now_ns())
            if left_ns <= 0:
                raise TransportTimeout(f"channel {self._channel.name!r} has no {self._awaited[0]} yet")
            self._doorbell.sleep(left_ns)

    def _connect(self, role: str) -> bool:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._liveness.directory / role))
        except OSError:  # it does not listen yet, or no longer
            connection.close()
            return False
        self._connections.append(connection)
        self._lanes.append(Lane(role, connection))
        return True

    def _check_awaited(self) -> None:
        self._awaited = [role for role in self._awaited if self._liveness.note_of(role) is None]
        for role in self._awaited:
            if self._liveness.is_gone(role):
                self._lose(role)

    def close(self) -> None:
        if isinstance(self._failure, EndpointClosed):
            return
        self._room = 0
        self._failure = EndpointClosed(f"the writer of channel {self._channel.name!r} is closed")
        if self._begun:
            with contextlib.suppress(PeerLost):
                self._send_small(SIZE.pack(END), 0.0)
        self._liveness.leave_note("ended" if self._begun else "unused")
        if self._pump.join(0):
            self._release()
        else:
            flush = threading.Thread(target=self._release, name=f"{self._channel.name} flush")
            flush.start()
            flush.join(_CLOSE_S)

    def _release(self) -> None:
        self._pump.join(_LINGER_S)
        for connection in self._connections:
            connection.close()
        self._doorbell.close()
        self._liveness.release()


class Pipe(Backend):
    """Unix stream sockets, with nothing but the standard library."""

    name: ClassVar[str] = "pipe"
    summary: ClassVar[str] = "one Unix stream socket a reader, standard library only (as under multiprocessing.Pipe)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=256,
        zero_copy_read=False,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls) -> None:
        """Return: the package runs only on systems that have Unix sockets."""

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        longest = str(channel_directory(channel.name) / reader_roles(channel)[-1])
        if len(longest) > _PATH_BYTES:
            raise TransportError(f"{longest} is too long for a socket's path; set TMPDIR to a shorter folder")
        directory = make_directory(channel.name)
        try:
            Doorbell.make(doorbell_path(directory))
        except OSError as error:
            remove_directory(channel.name)
            raise TransportError(f"cannot make a doorbell in {directory}: {error}") from error
        return Address(self.name, channel, str(directory))

    def open_writer(self, address: Address) -> Writer:
        return _PipeWriter(address)

    def open_reader(self, address: Address, index: int) -> Reader:
        reader = PipeReader(address, index)
        if address.channel.delivery == "every_message":
            return reader
        return LatestValueReader(reader, f"{address.channel.name} reader-{index}", views_last=False)

    def destroy(self, address: Address) -> None:
        remove_directory(address.channel.name)
