"""The standard library's own transport: one Unix stream socket per reader, as used by `multiprocessing.Pipe`.

Each reader listens in the channel's directory as soon as it opens, and the writer connects to all before its first
message, so endpoints may open in any order and the kernel keeps what a reader has not asked for yet. A message is its
size in eight bytes, then its bytes; a size that no message has ends the stream.

Flow control is by credit: a reader sends a byte (a receipt) for each batch of messages that it has read, and the writer
stops when the slowest reader is `depth` behind, or a quarter more (a 64th if messages may be 64 KiB or larger), since
receipts arrive that late. A message is accepted for all readers or for none: if a reader takes nothing, the part that
the kernel does not accept is copied and a thread sends it later, so no time-out leaves half a message behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from typing import ClassVar

from ipcbench.backend import PLAIN_TYPES, Address, Backend, Capabilities, Endpoint, Message, Reader, Writer, bytes_of
from ipcbench.backends.pipe.connection import Connection, Pump
from ipcbench.errors import (
    EndOfStream,
    EndpointClosed,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
)
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.directory import (
    as_transport_errors,
    channel_directory,
    new_directory,
    remove_directory,
)
from ipcbench.sync.interrupts import in_background, is_of_handler, no_fork, uninterrupted, whole
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.liveness import CHECK_NS, Liveness
from ipcbench.sync.locks import reader_role, reader_roles
from ipcbench.sync.ownership import Owned
from ipcbench.sync.wait import Doorbell
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s
from ipcbench.util.files import advice_on

_SIZE = Struct("<Q")
"""The head of a message: its size."""
_END = 2**64 - 1
"""The size that ends a stream."""

_HEAD_BYTES = _SIZE.size
_PROMPT_BYTES = 2**16
"""From this size on, a receipt is cheap compared with a message."""
_MOST_RECEIPTS = 64
_CHUNK_BYTES = 2**16
"""How much a reader receives at once while messages are small."""
_TRY_S = 0.01
"""While messages are small, a read with this time-out or a longer one first waits so long inside the standard library's
receive, which costs less than waiting and receiving apart, and keeps its time-out whatever signals come. The parts of a
large message follow one another: to look first is cheaper."""
_JOIN_BYTES = 2**14
"""Up to this size, a message is joined to its head, which is cheaper than sending two pieces."""
_PATIENCE_NS = 100_000_000
"""How long a write waits for readers that take nothing before it copies the rest of its message for the thread."""
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long the thread of a closed writer continues to send to slow readers, and how long `close` waits for it."""
_RECEIPTS_BYTES = 2**16
_PATH_BYTES = 103
"""Longest socket path that every system allows."""


def _credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt.

    The kernel has room for all receipts that can be under way.
    """
    batch = max(1, channel.depth // (_MOST_RECEIPTS if channel.max_message_bytes >= _PROMPT_BYTES else 4))
    return channel.depth + batch - 1, batch


def _doorbell_path(directory: Path) -> Path:
    """Return the path of the doorbell on which the writer waits for its readers."""
    return directory / "writer.bell"


def _ring(directory: Path) -> None:
    doorbell = Doorbell(_doorbell_path(directory))
    doorbell.ring()
    doorbell.close()


def _way_of_waiting(channel: ChannelSpec) -> WaitStrategy:
    return "block" if channel.wait == "auto" else channel.wait


def _wait_ready(
    sockets: Iterable[socket.socket], event: int, deadline: int | None, strategy: WaitStrategy = "block"
) -> bool:
    """Wait until one of the sockets is ready for `event` or broken; return False if none is by `deadline` (ns)."""
    poller = select.poll()
    for waiting in sockets:
        poller.register(waiting, event)
    if strategy in {"auto", "block"}:
        left_s = remaining_s(deadline)
        return bool(poller.poll(None if left_s is None else left_s * 1e3))
    while not poller.poll(0):
        if deadline is not None and now_ns() >= deadline:
            return False
        if strategy == "yield":
            os.sched_yield()
    return True


class _PipeEndpoint(Owned, Endpoint):
    """What both endpoints have in common."""

    _channel: ChannelSpec
    _failure: TransportError | None = None

    @property
    def waits(self) -> WaitStrategy:
        return _way_of_waiting(self._channel)

    @property
    def closed(self) -> bool:
        return isinstance(self._failure, EndpointClosed)


class _PipeWriter(_PipeEndpoint, Writer):
    """Connects to every reader."""

    def __init__(self, address: Address) -> None:
        self._channel = address.channel
        self._liveness = Liveness(address, "writer")
        try:
            self._doorbell = Doorbell(_doorbell_path(self._liveness.directory))
        except TransportError:
            self._liveness.abandon()
            raise
        self._awaited = reader_roles(address.channel)
        self._sockets: list[socket.socket] = []
        self._connections: list[Connection] = []
        self._pump = Pump()
        self._limit_bytes = address.channel.max_message_bytes
        self._window, self._batch = _credit(address.channel)
        self._room = self._granted = 0
        self._receipts = bytearray(_RECEIPTS_BYTES)
        self._begun = self._is_broken = False
        self.opened()

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if not self._room:
            self._make_room(deadline_ns(timeout_s))
        try:
            self._room -= 1
            if size_bytes <= _JOIN_BYTES:
                self._send_small(_SIZE.pack(size_bytes) + message, timeout_s)
            else:
                pieces = memoryview(_SIZE.pack(size_bytes)), memoryview(message)
                self._send([(connection, [*pieces]) for connection in self._connections], deadline_ns(timeout_s))
        except BaseException as error:
            if not isinstance(error, TransportError) or is_of_handler(error):
                self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Write no more: after an exception of a signal handler, nobody knows what was sent, or who is connected."""
        self._room = 0
        self._failure = TransportError(
            f"a write to channel {self._channel.name!r} was interrupted by {type(error).__name__}, maybe in the middle "
            "of the message: close the writer, destroy the channel and make another"
        )
        self._is_broken = True

    def _send_small(self, frame: bytes, timeout_s: float | None) -> None:
        unsent, now = [], socket.MSG_DONTWAIT
        for connection in self._connections:
            try:
                sent = 0 if connection.held else connection.socket.send(frame, now)
            except OSError as error:  # full, or gone: `_send` finds out
                if is_of_handler(error):
                    raise
                sent = 0
            if sent != len(frame):
                unsent.append((connection, [memoryview(frame)[sent:]]))
        if unsent:
            self._send(unsent, deadline_ns(timeout_s))

    def _send(self, unsent: Sequence[tuple[Connection, list[memoryview]]], deadline: int | None) -> None:
        """Send the pieces as long as the readers take them, and hand the rest to the thread.

        Raises:
            PeerLost: a reader died; the others get the message.
        """
        rest = [(connection, left) for connection, left in unsent if not self._hold(connection, left)]
        dead: list[Connection] = []
        while rest:
            rest = [(connection, left) for connection, left in rest if not self._push(connection, left, dead)]
            patience = now_ns() + _PATIENCE_NS
            until = patience if deadline is None else min(patience, deadline)
            sockets = [connection.socket for connection, _ in rest]
            if rest and not _wait_ready(sockets, select.POLLOUT, until, self._channel.wait):
                break
        for connection, left in rest:
            self._hand_over(connection, left, start=True)
        for connection in dead:
            self._drop(connection)

    def _hold(self, connection: Connection, pieces: list[memoryview]) -> bool:
        """Hand the pieces to the thread if it still has something to send here; return whether it did."""
        return connection.held and self._hand_over(connection, pieces, start=False)

    def _hand_over(self, connection: Connection, pieces: list[memoryview], *, start: bool) -> bool:
        try:
            return uninterrupted(lambda: self._pump.add(connection, pieces, start=start))
        except RuntimeError as error:
            if is_of_handler(error):
                raise
            self._break(error)
            raise TransportError(f"{error}, to send the rest of a message; raise the limit of processes") from error

    @staticmethod
    def _push(connection: Connection, pieces: list[memoryview], dead: list[Connection]) -> bool:
        try:
            return connection.push(pieces)
        except OSError as error:
            if is_of_handler(error):
                raise
            dead.append(connection)
            return True

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are connected and none is too far behind; after a loss or `close`, raise its error."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        while self._awaited:
            self._connect_readers(deadline)
        self._begun = True
        while not self._count_room():
            sockets = [connection.socket for connection in self._connections]
            if not _wait_ready(sockets, select.POLLIN, deadline, self._channel.wait):
                raise TransportTimeout(f"no room in channel {self._channel.name!r}: a reader is too far behind")

    def _count_room(self) -> int:
        for connection in list(self._connections):
            got = 0
            try:
                for got in map(connection.socket.recv_into, (self._receipts,), (0,), (socket.MSG_DONTWAIT,)):
                    connection.read += got * self._batch  # counted whatever signals come, see `_PipeReader._fill`
            except OSError as error:
                if is_of_handler(error):
                    raise
                if isinstance(error, BlockingIOError):
                    continue
                got = 0
            if not got:
                self._drop(connection)
        granted = min((connection.read for connection in self._connections), default=self._granted) + self._window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _drop(self, connection: Connection) -> None:
        """Forget a reader that is gone.

        Raises:
            PeerLost: it did not close.
        """
        note = self._liveness.note_of(connection.role)
        if connection in self._connections:
            self._connections.remove(connection)
        if note is None:
            self._lose(connection.role)

    def _lose(self, role: str) -> None:
        self._room = 0
        self._failure = PeerLost(f"{role} of channel {self._channel.name!r} died without closing")
        raise self._failure

    def _connect_readers(self, deadline: int | None) -> None:
        """Connect to the readers that listen; if some do not yet, wait until one rings."""
        uninterrupted(self._connect_listening)
        if self._liveness.is_check_due():
            self._check_awaited()
        if self._awaited:
            left_ns = CHECK_NS if deadline is None else min(CHECK_NS, deadline - now_ns())
            if left_ns <= 0:
                raise TransportTimeout(f"channel {self._channel.name!r} has no {self._awaited[0]} yet")
            self._doorbell.sleep(left_ns)

    def _connect_listening(self) -> None:
        with no_fork():
            for role in list(self._awaited):
                if self._connect(role):
                    self._awaited.remove(role)

    def _connect(self, role: str) -> bool:
        with as_transport_errors(f"cannot connect to the {role} of channel {self._channel.name!r}"):
            endpoint = socket.socket(socket.AF_UNIX)
        try:
            endpoint.setblocking(False)  # where others have filled its queue of connections, connecting would wait
            endpoint.connect(str(self._liveness.directory / role))
            endpoint.setblocking(True)
        except OSError:  # it does not listen yet, or no longer, or cannot take more connections now
            endpoint.close()
            return False
        self._sockets.append(endpoint)
        self._connections.append(Connection(role, endpoint))
        return True

    def _check_awaited(self) -> None:
        self._awaited = [role for role in self._awaited if self._liveness.note_of(role) is None]
        for role in self._awaited:
            if self._liveness.is_gone(role):
                self._lose(role)

    def _refuse(self) -> None:
        self._room = 0
        self._failure = EndpointClosed(f"the writer of channel {self._channel.name!r} is closed")

    def let_go(self) -> None:
        self._is_released = True
        self._refuse()
        self._drop_all()

    def _close(self) -> None:
        self._refuse()
        try:
            if self._is_broken:  # the readers lose it
                self._pump.cut(self._connections)
            else:
                with contextlib.suppress(PeerLost):
                    self._send_small(_SIZE.pack(_END), 0.0)
                self._liveness.leave_note("ended" if self._begun else "unused")
        finally:
            self._flush()

    def _flush(self) -> None:
        if self._pump.join(0):
            self._release()
        else:
            in_background(self._release, f"{self._channel.name} flush", _CLOSE_S)

    def _release(self) -> None:
        self._pump.join(_LINGER_S)
        self._drop_all()

    def _drop_all(self) -> None:
        for endpoint in self._sockets:
            endpoint.close()
        self._doorbell.close()
        self._liveness.release()


class _PipeReader(_PipeEndpoint, Reader):
    """Listens, and receives into one buffer that it keeps."""

    def __init__(self, address: Address, index: int) -> None:
        role = reader_role(address.channel, index)
        self._channel = address.channel
        self._liveness = Liveness(address, role)
        path = self._liveness.directory / role
        with contextlib.ExitStack() as undo:
            undo.callback(self._liveness.abandon)
            try:
                doorbell = Doorbell(_doorbell_path(self._liveness.directory))
                undo.callback(doorbell.close)
                self._socket = undo.enter_context(socket.socket(socket.AF_UNIX))
                self._socket.bind(str(path))
                undo.callback(path.unlink, missing_ok=True)
                self._socket.listen(1)  # last of what may fail: from now on the writer may connect, and write
            except (OSError, TransportError) as error:
                raise TransportError(f"cannot listen at {path}: {error}") from error
            undo.pop_all()
        doorbell.ring()
        doorbell.close()
        self._listening, self._looking = True, self._socket
        self._buffer = bytearray(_CHUNK_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._ask_bytes = _CHUNK_BYTES
        self._until_receipt = self._batch = _credit(address.channel)[1]
        self._sleeps = _way_of_waiting(address.channel) == "block"
        self.opened()

    def read(self, timeout_s: float | None = None) -> memoryview:
        start = self._start + _HEAD_BYTES
        if start > self._end or (stop := start + _SIZE.unpack_from(self._buffer, self._start)[0]) > self._end:
            self._fill(timeout_s)
            start = self._start + _HEAD_BYTES
            stop = start + _SIZE.unpack_from(self._buffer, self._start)[0]
        if self._until_receipt <= 1:
            self._send_receipt()
        self._until_receipt -= 1
        self._start = stop  # last: whoever is interrupted before gets the message again
        return self._view[start:stop]

    def _send_receipt(self) -> None:
        try:
            for _ in map(self._socket.send, (b"\1",), (socket.MSG_DONTWAIT,)):  # counted once, see `_fill`
                self._until_receipt += self._batch
        except OSError as error:  # the writer may have closed
            if is_of_handler(error):
                raise
            self._until_receipt += self._batch

    def _fill(self, timeout_s: float | None) -> None:
        """Receive until a whole message is in the buffer."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        deadline = deadline_ns(timeout_s)
        if self._listening:
            self._accept(deadline)
        sleepy = self._sleeps and (timeout_s is None or timeout_s >= _TRY_S)
        need = self._needed()
        while self._end - self._start < need:
            self._make_space(need)
            stop = max(self._start + need, min(self._start + self._ask_bytes, len(self._buffer)))
            waits = sleepy and need == _HEAD_BYTES and self._ask_bytes == _CHUNK_BYTES
            room = self._view[self._end : stop]
            got = -1
            try:
                # A signal handler may raise an exception after any call, but not between the steps of a loop over an
                # iterator in C and the first call of its body: so what was received is always counted.
                for got in map((self._socket if waits else self._looking).recv_into, (room,)):
                    self._end += got
            except OSError as error:
                if is_of_handler(error):
                    raise
                got = -1 if isinstance(error, TimeoutError | BlockingIOError) else 0
            if got > 0:
                need = self._needed()
            elif got == 0:
                self._stop(PeerLost(f"the writer of channel {self._channel.name!r} died without closing"))
            elif not self._ready(deadline):
                raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s")
        self._ask_bytes = max(_CHUNK_BYTES, need)  # the next message is probably as large: receive it at once, no more

    def _ready(self, deadline: int | None) -> bool:
        """Wait until there is something to receive; return False if there is not by `deadline` (ns)."""
        if not self._sleeps:
            return _wait_ready([self._socket], select.POLLIN, deadline, self._channel.wait)
        if deadline is None:
            return bool(self._poll())
        left_ns = deadline - now_ns()
        return bool(self._poll(left_ns / 1e6 if left_ns > 0 else 0))

    def _needed(self) -> int:
        """Return the size of the next message with its head, or of the head if that is not complete yet."""
        if self._end - self._start < _HEAD_BYTES:
            return _HEAD_BYTES
        size_bytes: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        if size_bytes == _END:
            self._stop(EndOfStream(f"channel {self._channel.name!r} has ended"))
        if size_bytes > self._channel.max_message_bytes:
            self._stop(TransportError(f"another program writes to channel {self._channel.name!r}: this is no message"))
        return _HEAD_BYTES + size_bytes

    def _make_space(self, need: int) -> None:
        """Make sure that `need` bytes fit behind the start; views returned earlier become invalid."""
        have = self._end - self._start
        if self._start + need <= len(self._buffer) and have:
            return
        buffer, view = self._buffer, self._view
        if need > len(buffer):
            buffer = bytearray(max(need, 2 * len(buffer)))
            view = memoryview(buffer)
        view[:have] = self._view[self._start : self._end]
        self._buffer, self._view, self._start, self._end = buffer, view, 0, have  # at once, whatever signals come

    def _accept(self, deadline: int | None) -> None:
        """Wait for the writer's connection."""
        while True:
            slice_end = now_ns() + CHECK_NS
            if _wait_ready([self._socket], select.POLLIN, slice_end if deadline is None else min(slice_end, deadline)):
                break
            if self._liveness.is_check_due():
                self._check_writer()
            if deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"the writer of channel {self._channel.name!r} has not written yet")
        uninterrupted(self._take_connection)

    def _take_connection(self) -> None:
        with as_transport_errors(f"cannot connect to the writer of channel {self._channel.name!r}"), no_fork():
            if not self._listening:
                return
            listener = self._socket
            looking = listener.dup()  # before there is a connection, whose end would be a death to the writer
            try:
                connection, _ = listener.accept()
            except OSError:
                looking.close()
                raise
            os.dup2(connection.fileno(), looking.fileno(), inheritable=False)
            poller = select.poll()  # kept, since making one costs as much as the wait
            poller.register(connection, select.POLLIN)
            self._poll = poller.poll
            connection.settimeout(_TRY_S)
            looking.setblocking(False)
            self._socket, self._looking, self._listening = connection, looking, False
            listener.close()

    def _check_writer(self) -> None:
        if self._liveness.note_of("writer") == "unused":
            self._stop(EndOfStream(f"channel {self._channel.name!r} was closed without a message"))
        if self._liveness.is_gone("writer"):
            self._stop(PeerLost(f"the writer of channel {self._channel.name!r} died without closing"))

    def _stop(self, failure: TransportError) -> None:
        self._failure = failure
        self._start = self._end = 0
        raise failure

    def let_go(self) -> None:
        self._is_released = True
        self._failure = EndpointClosed(f"this reader of channel {self._channel.name!r} is closed")
        self._start = self._end = 0
        self._socket.close()
        self._looking.close()
        self._liveness.release()

    def _close(self) -> None:
        try:
            self._liveness.leave_note()
            with contextlib.suppress(TransportError):  # the channel was destroyed before
                _ring(self._liveness.directory)
        finally:
            self.let_go()


class Pipe(Backend):
    """Unix stream sockets, with the standard library only."""

    name: ClassVar[str] = "pipe"
    summary: ClassVar[str] = "one Unix stream socket per reader, standard library only (like multiprocessing.Pipe)"
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
        """Do nothing: every supported system has Unix sockets."""

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with new_directory(channel.name) as (directory, _):
            longest = str(directory / reader_roles(channel)[-1])
            if len(os.fsencode(longest)) > _PATH_BYTES:
                raise TransportError(f"{longest} is too long for a socket path; set TMPDIR to a shorter folder")
            try:
                Doorbell.make(_doorbell_path(directory))
            except OSError as error:
                raise TransportError(f"cannot make a doorbell in {directory}: {error}{advice_on(error)}") from error
        return Address(self.name, channel, str(directory))

    @whole
    def open_writer(self, address: Address) -> Writer:
        return _PipeWriter(address)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        reader = partial(_PipeReader, address, index)
        if address.channel.delivery == "every_message":
            return reader()
        return LatestValueReader(reader, f"{address.channel.name} reader-{index}", views_last=False)

    @whole
    def destroy(self, address: Address) -> None:
        remove_directory(channel_directory(address))
