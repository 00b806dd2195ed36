"""The writer: it connects to every reader, and a thread of its own sends what they do not take at once."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections.abc import Sequence

from ipcbench.backend import PLAIN_TYPES, Message, bytes_of
from ipcbench.backends.stream.connection import Connection, Pump
from ipcbench.backends.stream.endpoint import (
    END,
    SIZE,
    StreamEndpoint,
    credit,
    doorbell_path,
    wait_ready,
)
from ipcbench.errors import MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.directory import channel_file
from ipcbench.sync.interrupts import is_of_handler, no_fork, uninterrupted
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import is_held, reader_roles
from ipcbench.sync.peers import PeerWriter
from ipcbench.sync.wait import Doorbell
from ipcbench.util.clock import deadline_ns, now_ns
from ipcbench.util.files import advice_on

_JOIN_BYTES = 2**14
"""Up to this size, a message is joined to its head, which is cheaper than sending two pieces."""
_PATIENCE_NS = 100_000_000
"""How long a write waits for readers that take nothing before it copies the rest of its message for the thread."""
_RECEIPTS_BYTES = 2**16


class StreamWriter(StreamEndpoint, PeerWriter):
    """Connects to every reader."""

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._doorbell = Doorbell(doorbell_path(self._liveness.directory))
        self._awaited = reader_roles(self._channel)
        self._sockets: list[socket.socket] = []
        self._connections: list[Connection] = []
        self._pump = Pump()
        self._limit_bytes = self._channel.max_message_bytes
        self._window, self._batch = credit(self._channel)
        self._receipts = bytearray(_RECEIPTS_BYTES)
        self._is_broken = False

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
                self._send_small(SIZE.pack(size_bytes) + message, timeout_s)
            else:
                pieces = memoryview(SIZE.pack(size_bytes)), memoryview(message)
                self._send([(connection, [*pieces]) for connection in self._connections], deadline_ns(timeout_s))
        except BaseException as error:
            if not isinstance(error, TransportError) or is_of_handler(error):
                self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Write no more: after an exception of a signal handler, nobody knows what was sent, or who is connected."""
        self._refuse(
            TransportError(
                f"a write to channel {self._channel.name!r} was interrupted by {type(error).__name__}, maybe in the "
                "middle of the message: close the writer, destroy the channel and make another"
            )
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
            if rest and not wait_ready(sockets, select.POLLOUT, until, self._channel.wait):
                break
        for connection, left in rest:
            self._hand_over(connection, left, start=True)
        for connection in dead:
            self._forget(connection.role)

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
        self._require_usable()
        while self._awaited:
            self._connect_readers(deadline)
        self._begun = True
        while not self._count_room(self._read_counts()):
            sockets = [connection.socket for connection in self._connections]
            if not wait_ready(sockets, select.POLLIN, deadline, self._channel.wait):
                raise TransportTimeout(f"no room in channel {self._channel.name!r}: a reader is too far behind")

    def _read_counts(self) -> list[int]:
        """Return how many messages the readers have read, as their receipts say."""
        for connection in list(self._connections):
            got = 0
            try:
                for got in map(connection.socket.recv_into, (self._receipts,), (0,), (socket.MSG_DONTWAIT,)):
                    connection.read += got * self._batch  # counted whatever signals come, see `StreamReader._fill`
            except OSError as error:
                if is_of_handler(error):
                    raise
                if isinstance(error, BlockingIOError):
                    continue
                got = 0
            if not got:
                self._forget(connection.role)
        return [connection.read for connection in self._connections]

    def _leave_out(self, role: str) -> None:
        self._connections = [connection for connection in self._connections if connection.role != role]

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
        if not self._liveness.is_current():  # who listens there is a reader of a later channel
            return False
        try:
            endpoint = self._places.connect(channel_file(self._address, role), lambda: self._is_alive(role))
        except OSError as error:  # it does not listen yet, or no longer, or cannot take more connections now
            if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                return False
            what = f"cannot connect to the {role} of channel {self._channel.name!r}"
            raise TransportError(f"{what}: {error.strerror}{advice_on(error)}") from error
        self._sockets.append(endpoint)
        self._connections.append(Connection(role, endpoint))
        return True

    def _is_alive(self, role: str) -> bool:
        return is_held(self._liveness.directory, role) and self._liveness.note_of(role) is None

    def _check_awaited(self) -> None:
        self._awaited = [role for role in self._awaited if self._liveness.note_of(role) is None]
        for role in self._awaited:
            if self._liveness.is_gone(role):
                self._fail(self._lost(role))

    def _say_goodbye(self) -> None:
        """Tell the readers that the stream ends, those too that have never been written to: they may wait on their
        descriptors. The note comes first, for readers that begin to listen only after the connecting.
        """
        if self._is_broken:  # the readers lose it
            self._pump.cut(self._connections)
            return
        try:
            super()._say_goodbye()
        finally:
            with contextlib.suppress(TransportError):
                uninterrupted(self._connect_listening)
            with contextlib.suppress(PeerLost):
                self._send_small(SIZE.pack(END), 0.0)

    def _linger(self) -> None:
        if self._places.ends_at_once and self._pump.join(0):
            self._end()
        else:
            super()._linger()

    def _flush(self, timeout_s: float) -> None:
        self._pump.join(timeout_s)
        for connection in self._connections:
            self._places.end(connection.socket, timeout_s)

    def _drop(self) -> None:
        for endpoint in self._sockets:
            endpoint.close()
        self._doorbell.close()
