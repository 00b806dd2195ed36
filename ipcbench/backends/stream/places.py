"""Where the readers of a channel listen, and how the writer finds them: Unix sockets, or TCP on the loopback interface.

A Unix socket lies in the channel's directory. With TCP, a reader binds a free port, which is its own from then on, and
writes it into that directory, with a secret. The writer sends the secret first, so a reader takes nobody else for the
writer, although every user of the host may connect.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import secrets
import select
import socket
import sys
import termios
from contextlib import ExitStack
from pathlib import Path
from struct import unpack
from typing import Protocol

from ipcbench.util.clock import deadline_ns, now_ns

_SECRET_BYTES = 16
_HELLO_S = 1.0
"""How long a reader waits for the secret of whoever connects, and the writer for a connection."""
_LOOK_MS = 5


class Places(Protocol):
    """The places of one kind of sockets; a place is a path in the channel's directory."""

    ends_at_once: bool
    """Whether the readers get everything that was sent, even if the writer's sockets are closed at once."""

    def listen(self, place: Path, undo: ExitStack) -> socket.socket:
        """Return a socket that listens at a place; `undo` closes and removes it. The last step makes it known.

        Raises:
            OSError: it cannot listen.
        """

    def connect(self, place: Path) -> socket.socket:
        """Return a socket that is connected to the reader at a place.

        Raises:
            OSError: it does not listen yet, or no longer, or cannot take more connections now.
        """

    def accept(self, listener: socket.socket, place: Path) -> socket.socket | None:
        """Return a connection to the writer; None if another program has connected.

        Raises:
            OSError: there is none.
        """

    def end(self, connection: socket.socket, timeout_s: float) -> None:
        """Wait until everything that was sent is on the other side, before the connection is closed."""


class UnixPlaces:
    """Unix sockets: only this user can connect, and the kernel keeps what was sent."""

    ends_at_once = True

    def listen(self, place: Path, undo: ExitStack) -> socket.socket:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(place))
        undo.callback(place.unlink, missing_ok=True)
        listener.listen(1)
        return listener

    def connect(self, place: Path) -> socket.socket:
        endpoint = socket.socket(socket.AF_UNIX)
        try:
            endpoint.setblocking(False)  # where others have filled its queue of connections, connecting would wait
            endpoint.connect(str(place))
            endpoint.setblocking(True)
        except OSError:
            endpoint.close()
            raise
        return endpoint

    def accept(self, listener: socket.socket, place: Path) -> socket.socket | None:
        return listener.accept()[0]

    def end(self, connection: socket.socket, timeout_s: float) -> None:
        """Do nothing."""


class TcpPlaces:
    """TCP over 127.0.0.1, or over ::1 where there is no IPv4. A place is a file with address, port and secret."""

    ends_at_once = False

    def listen(self, place: Path, undo: ExitStack) -> socket.socket:
        listener = undo.enter_context(_listening())
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # those who say nothing wait in the kernel
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        host, port = listener.getsockname()[:2]
        unfinished = place.with_suffix(".unfinished")
        undo.callback(unfinished.unlink, missing_ok=True)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{host} {port} {secrets.token_hex(_SECRET_BYTES)}")
        undo.callback(place.unlink, missing_ok=True)
        unfinished.rename(place)
        return listener

    def connect(self, place: Path) -> socket.socket:
        host, port, secret = _read(place)
        endpoint = socket.create_connection((host, port), _HELLO_S)
        try:
            _prepare(endpoint)
            endpoint.sendall(secret)
            endpoint.settimeout(None)
        except OSError:
            endpoint.close()
            raise
        return endpoint

    def accept(self, listener: socket.socket, place: Path) -> socket.socket | None:
        connection = listener.accept()[0]
        try:
            _prepare(connection)
            connection.settimeout(_HELLO_S)
            said = connection.recv(_SECRET_BYTES, socket.MSG_WAITALL)
            if hmac.compare_digest(said, _read(place)[2]):
                return connection
        except TimeoutError:
            pass
        except OSError:
            connection.close()
            raise
        connection.close()
        return None

    def end(self, connection: socket.socket, timeout_s: float) -> None:
        """To close a connection with receipts that were not read may discard what the reader's kernel does not have."""
        deadline = deadline_ns(timeout_s)
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        try:
            connection.shutdown(socket.SHUT_WR)
            while deadline is not None and now_ns() < deadline and _unsent_bytes(connection):
                if poller.poll(_LOOK_MS) and not connection.recv(4096, socket.MSG_DONTWAIT):
                    return  # the reader has closed
        except OSError:
            return  # it is gone


def _listening() -> socket.socket:
    """Return a socket that listens at a free port of the loopback interface.

    Raises:
        OSError: there is none, with neither IPv4 nor IPv6.
    """
    try:
        return socket.create_server(("127.0.0.1", 0))
    except OSError as error:
        if not socket.has_ipv6 or error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
            raise
        return socket.create_server(("::1", 0), family=socket.AF_INET6)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _read(place: Path) -> tuple[str, int, bytes]:
    """Return the address, the port and the secret of a reader.

    Raises:
        OSError: there is none.
    """
    try:
        host, port, secret = place.read_text(encoding="ascii").split()
        return host, int(port), bytes.fromhex(secret)
    except ValueError as error:
        raise OSError(f"{place} is damaged") from error


def _unsent_bytes(connection: socket.socket) -> int:
    """Return how many bytes the other side's kernel does not have; 1 where that cannot be found out."""
    if sys.platform != "linux":
        return 1
    return int(unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
