"""A connection to the server, on which replies may be outstanding.

redis-py connects: it knows addresses, passwords and TLS. Then its socket and hiredis' parser, which redis-py uses, too,
are used directly: a blocked command must be able to stay outstanding when a call times out, or is interrupted.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, NoReturn

from ipcbench.errors import PeerLost, TransportError, TransportTimeout
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.util.clock import now_ns

try:
    import hiredis
    import redis
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why a library is not there; the backend's `probe` says how to install it."""

_CHUNK_BYTES = 2**18
_STUCK_S = 30.0
"""How long a server may take nothing of what is sent before the connection is given up."""
ANSWER_NS = 10_000_000_000
"""How long an answer of a server that does not block may take."""
SLICE_NS = 100_000_000
"""Longest wait between two looks whether the peers live."""


def command(*words: str | bytes) -> bytes:
    """Return a command as it is sent."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Wire:
    """A connection.

    Attributes:
        socket: the connected socket.
        owed: how many replies are outstanding.
        got: the last reply; None once it was taken.
        is_cut: whether a `send` was interrupted.
    """

    __slots__ = ("_channel", "_gets", "_parser", "_poll", "got", "is_cut", "owed", "socket")

    def __init__(self, channel: str, url: str, role: str) -> None:
        """Connect.

        Raises:
            OSError: there is no server; the password is wrong; there can be no more connections.
        """
        pool = redis.ConnectionPool.from_url(url, protocol=2, client_name=f"{channel}:{role}")
        connection: Any = pool.make_connection()
        connection.retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        try:
            connection.connect()
        except redis.RedisError as error:
            cause = error.__context__
            if isinstance(cause, OSError) and cause.errno:
                raise OSError(cause.errno, cause.strerror) from error
            raise ConnectionError(str(error)) from error
        self.socket: Any = connection._sock
        connection._sock = None  # which it would shut down as garbage
        self.socket.settimeout(_STUCK_S)
        self._channel = channel
        self._parser = hiredis.Reader(notEnoughData=self)
        self._gets = self._parser.gets
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        self._poll = poller.poll
        self.owed, self.is_cut = 0, False
        self.got: Any = None

    def request(self, commands: bytes, replies: int) -> None:
        """Send short commands, which will have so many replies. If this is interrupted, nothing is sent."""
        self._require_whole()
        try:
            # A signal handler may raise an exception after any call, but not between the step of an iterator in C and
            # the first call of a loop's body: so what was sent, or received, is always counted.
            for sent_bytes in map(self.socket.send, (commands,)):
                self.owed += replies
                self.is_cut = sent_bytes < len(commands)
        except OSError as error:
            self._lost(error)

    def send(self, pieces: tuple[Any, ...], replies: int) -> None:
        """Send the pieces of commands. If this is interrupted, the connection is of no use any more."""
        self._require_whole()
        self.is_cut = True
        try:
            for piece in pieces:
                self.socket.sendall(piece)
        except OSError as error:
            self._lost(error)
        self.owed += replies
        self.is_cut = False

    def _require_whole(self) -> None:
        if self.is_cut:
            raise TransportError(
                f"a call of channel {self._channel!r} has not come to its end, maybe in the middle of a message: close "
                "the endpoint, destroy the channel and make another"
            )

    def receive(self, until_ns: int | None) -> bool:
        """Wait for the next reply, for no longer than `SLICE_NS`, and put it into `got`; return whether there is one.

        Args:
            until_ns: on the clock; None for as long as that.

        Raises:
            PeerLost: the server has died.
            TransportError: the reply is an error.
        """
        last_ns = now_ns() + SLICE_NS
        if until_ns is not None and until_ns < last_ns:
            last_ns = until_ns
        while True:
            for reply in map(self._gets, (False,)):
                if reply is not self:
                    self.got = reply
                    self.owed -= 1
            if reply is not self:
                if isinstance(reply, Exception):
                    self.got = None
                    raise TransportError(f"the server of channel {self._channel!r} refuses: {reply}")
                return True
            if self._poll(max(0.0, (last_ns - now_ns()) / 1e6)):
                self._take()
            elif now_ns() >= last_ns:
                return False

    def _take(self) -> None:
        try:
            for data in map(self.socket.recv, (_CHUNK_BYTES,)):
                self._parser.feed(data)
        except OSError as error:
            self._lost(error)
        if not data:
            self._lost(ConnectionResetError("the server has closed the connection"))

    def _lost(self, error: OSError) -> NoReturn:
        if is_of_handler(error):
            raise error
        if isinstance(error, TimeoutError):
            raise TransportError(f"the server of channel {self._channel!r} takes nothing for {_STUCK_S} s") from error
        self.is_cut = False  # which matters to nobody any more: every later call finds the same
        raise PeerLost(f"the server of channel {self._channel!r} has died") from error

    def settle(self, until_ns: int | None, take: Callable[[Any], object]) -> None:
        """Receive all replies that are outstanding, of a server that does not block.

        Raises:
            TransportTimeout: they have not all come by then.
        """
        while self.owed:
            if self.receive(until_ns):
                take(self.got)
            elif until_ns is not None and now_ns() >= until_ns:
                raise TransportTimeout(f"the server of channel {self._channel!r} does not answer")

    def ask(self, commands: bytes, replies: int = 1) -> Any:
        """Send commands to a server that does not block, and return its last reply."""
        self.request(commands, replies)
        self.settle(now_ns() + ANSWER_NS, bool)
        return self.got

    def close(self) -> None:
        """Close this process's socket; twice is fine."""
        self.socket.close()
