"""A connection to the server, on which replies may be outstanding, and what both endpoints do with it.

redis-py connects: it knows addresses, passwords and TLS. Then its socket and hiredis' parser, which redis-py uses, too,
are used directly: a blocked command must be able to stay outstanding when a call times out, or is interrupted.

A signal handler may raise an exception after any call, but not between the step of an iterator in C and the first call
of a loop's body, nor between assignments: so what was sent, or received, is always counted. Commands count as sent as
soon as they are packed; if a call is interrupted while it sends them, the next one sends the rest.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

from ipcbench.backend import Address
from ipcbench.errors import PeerLost, TransportError
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_token
from ipcbench.sync.interrupts import is_of_handler, uninterrupted
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.sync.server import url_of
from ipcbench.util.clock import now_ns

try:
    import hiredis
    import redis
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why a library is not there; the backend's `probe` says how to install it."""

ANSWER_S = 10.0
"""How long an answer of a server that does not block may take."""
_PROMPT_NS = 100_000_000
"""How long it may take if the caller's time-out is shorter."""
_SLICE_NS = 100_000_000
"""Longest wait between two looks whether the peers live."""
_STUCK_S = 30.0
"""How long a server may take nothing of what is sent before the connection is given up."""
GONE = 10**15
"""Count of messages read of a reader that has closed, so that it never holds the writer back."""
_CHUNK_BYTES = 2**18
_DESCRIPTORS = 5
"""More than an endpoint opens."""
_NOTHING, _MORE = memoryview(b""), object()

Word = str | bytes | bytearray | memoryview


def keys_of(address: Address) -> tuple[str, str]:
    """Return the keys of a channel: of its messages, and of its readers' receipts."""
    prefix = f"{{{address.channel.name}-{channel_token(address)}}}"  # a cluster keeps what is in braces together
    return f"{prefix}:messages", f"{prefix}:receipts"


def _packed(commands: Sequence[Sequence[Word]]) -> bytes:
    """Return commands as they are sent; a message is copied once."""
    pieces: list[Word] = []
    for words in commands:
        pieces.append(b"*%d\r\n" % len(words))
        for word in words:
            part = word.encode() if isinstance(word, str) else word
            pieces += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(pieces)  # type: ignore[arg-type]


@contextmanager
def _connected(channel: str, url: str, role: str) -> Iterator[Any]:
    """Connect, and give redis-py's connection, which is closed at the end unless its socket was taken.

    Raises:
        OSError: there is no server; the password is wrong; there can be no more connections; it does not answer.
    """
    name = f"{channel}:{role}"
    connection: Any = redis.ConnectionPool.from_url(
        url, protocol=2, client_name=name, socket_timeout=ANSWER_S
    ).make_connection()
    connection.retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    try:
        connection.connect()
        yield connection
    except redis.RedisError as error:
        cause = error.__context__
        if isinstance(cause, OSError) and cause.errno:
            raise OSError(cause.errno, cause.strerror) from error
        raise (ConnectionError if isinstance(error, redis.ConnectionError) else OSError)(str(error)) from error
    finally:
        connection.disconnect()


def ask(channel: str, url: str, role: str, *words: str | bytes) -> Any:
    """Return the answer to a command that does not block, by a connection of its own.

    Raises:
        OSError: as `_connected`; or the server refuses the command.
    """
    with _connected(channel, url, role) as connection:
        connection.send_command(*words)
        return connection.read_response()


class RedisEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    _unsent, _owed, _number = _NOTHING, 0, 0
    """What is still to be sent; how many replies are outstanding; the number of the last message written, or read."""
    _got: Any = None
    """The last reply."""
    _peers: dict[str, int]
    """Role of a peer → how many messages it has read, if it is a reader."""

    def _open(self, undo: ExitStack) -> None:
        self._messages, self._receipts = keys_of(self._address)
        self._is_stream = self._channel.delivery == "every_message"
        with self._reaching_the_server() as url:
            require_descriptors(_DESCRIPTORS)
            with _connected(self._channel.name, url, self._liveness.role) as connection:
                self._socket, connection._sock = connection._sock, None
        undo.callback(self._drop)
        self._socket.settimeout(_STUCK_S)
        self._parser = hiredis.Reader(notEnoughData=_MORE)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        self._poll = poller.poll

    @contextmanager
    def _reaching_the_server(self) -> Iterator[str]:
        no_connection = f"no connection to the server of channel {self._channel.name!r}"
        with as_transport_errors(no_connection):
            try:
                yield url_of(self._liveness.directory)
            except ConnectionError as error:
                raise PeerLost(f"{no_connection}, which has died: {error}") from error

    def _ask_aside(self, *words: str | bytes) -> None:
        """Ask by another connection, since this one may be blocked."""
        with self._reaching_the_server() as url:
            ask(self._channel.name, url, f"{self._liveness.role}-aside", *words)

    def _send(self, *commands: Sequence[Word], number: int = 0) -> None:
        """Send commands; with the number of a message, if that is in them."""
        self._flush()
        packed = memoryview(_packed(commands))
        self._unsent, self._owed, self._number = packed, self._owed + len(commands), number or self._number
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                for sent_bytes in map(self._socket.send, (self._unsent,)):
                    self._unsent = self._unsent[sent_bytes:] or _NOTHING
        except OSError as error:
            self._lose(error)

    def _receive(self, until_ns: int | None) -> bool:
        """Wait for the next reply, and put it into `_got`; return whether there is one. Where nothing comes, this waits
        no longer than `_SLICE_NS`, so that the caller looks whether the peers live.

        Args:
            until_ns: on the clock; None for as long as something comes.

        Raises:
            PeerLost: the server has died.
            TransportError: the reply is an error.
        """
        self._flush()
        while True:
            for reply in map(self._parser.gets, (False,)):
                if reply is not _MORE:
                    self._got, self._owed = reply, self._owed - 1
            if isinstance(self._got, Exception):
                self._fail(TransportError(f"the server of channel {self._channel.name!r} refuses: {self._got}"))
            if reply is not _MORE:
                return True
            now = now_ns()
            last_ns = now + _SLICE_NS if until_ns is None else min(until_ns, now + _SLICE_NS)
            if self._poll(max(0.0, (last_ns - now) / 1e6)):
                self._take()
            elif now_ns() >= last_ns:
                return False

    def _await_reply(self, what: str, timeout_s: float | None, deadline: int | None) -> None:
        """Wait for the next reply. All but the last are of commands that do not block: they are awaited a little even
        if no time is left, as they say that the server has looked whether there is something for the last.

        Raises:
            TransportTimeout: none has come by `deadline`; the message begins with `what`, and says `timeout_s`.
            PeerLost: a peer has died, and the server has nothing of it any more, not even its end.
        """
        until = deadline if deadline is None or self._owed == 1 else max(deadline, now_ns() + _PROMPT_NS)
        while not self._receive(until):
            if dead := self._first_gone():
                uninterrupted(lambda: self._ask_aside("PING"))  # what the server got before has been answered, too
                if self._receive(None):
                    return
                self._fail(self._lost(dead))
            if until is not None and now_ns() >= until:
                raise self._timed_out(what, timeout_s)

    def _first_gone(self) -> str | None:
        if not self._liveness.is_check_due():
            return None
        gone = (role for role, count in self._peers.items() if count < GONE and self._liveness.is_gone(role))
        return next(gone, None)

    def _take(self) -> None:
        try:
            for data in map(self._socket.recv, (_CHUNK_BYTES,)):
                self._parser.feed(data)
        except OSError as error:
            self._lose(error)
        if not data:
            self._lose(ConnectionResetError("the server has closed the connection"))

    def _lose(self, error: OSError) -> NoReturn:
        """Fail for good, unless a signal handler has raised the error."""
        if is_of_handler(error):
            raise error
        server = f"the server of channel {self._channel.name!r}"
        is_stuck = isinstance(error, TimeoutError)
        failure = (
            TransportError(f"{server} takes nothing for {_STUCK_S} s") if is_stuck else PeerLost(f"{server} has died")
        )
        self._refuse(failure)
        raise failure from error

    def _drop(self) -> None:
        self._socket.close()

    def _close(self) -> None:
        with suppress(PeerLost):  # without the server, there is nobody to tell
            super()._close()
