"""Where the readers of a channel listen, and how the writer finds them: Unix sockets, or TCP.

A Unix socket lies in the channel's directory. With TCP, a reader binds a free port, which is its own from then on, and
writes it into that directory, with a secret. The writer sends the secret first, so a reader takes nobody else for the
writer, although every user of the host may connect.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import select
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import unpack
from typing import Protocol

from ipcbench.sync.directory import require_socket_path
from ipcbench.sync.place import damaged, find, publish
from ipcbench.util.clock import deadline_ns, now_ns

_SECRET_BYTES = 16
_HELLO_NS, _MOST_KNOCKING = 5_000_000_000, 128
"""How long a reader waits for the secret of whoever connects, and of how many at once: later ones take the place of the
first."""
_LOOPBACK = ("127.0.0.1", "::1")
_CONNECT_S, _FAR_CONNECT_S = 0.05, 3.0
"""How long a connection may take, which the kernel makes at once unless its queue for the reader is full; and one to
another host.
"""
_LOOK_MS = 5


class Knocking:
    """A connection to a reader whose other side has not yet proved to be the writer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.said = b""
        self._last_ns = now_ns() + _HELLO_NS

    def listen(self) -> bool:
        """Take what it says; return whether that is all: a whole secret, the end, or nothing for too long."""
        try:
            more = self.connection.recv(_SECRET_BYTES - len(self.said))
        except BlockingIOError:
            return now_ns() > self._last_ns
        except OSError:
            return True
        self.said += more
        return not more or len(self.said) == _SECRET_BYTES


class Places(Protocol):
    """The places of one kind of sockets; a place is a path in the channel's directory."""

    ends_at_once: bool
    """Whether the readers get everything that was sent, even if the writer's sockets are closed at once."""

    def require(self, path: Path) -> None:
        """Raise TransportError if a path in a channel's directory cannot be a place."""

    def listen(self, place: Path, host: str, undo: ExitStack) -> socket.socket:
        """Return a socket that listens at a place; `undo` closes and removes it. The last step makes it known.

        Args:
            place: where.
            host: where other hosts reach this one; empty for a channel of one host.
            undo: closes and removes it.

        Raises:
            OSError: it cannot listen.
        """

    def connect(self, place: Path, is_alive: Callable[[], bool]) -> socket.socket:
        """Return a socket that is connected to the reader at a place, if that is still alive then.

        Raises:
            OSError: it does not listen yet, or no longer, or cannot take more connections now.
        """

    def accept(self, listener: socket.socket, place: Path, knocking: list[Knocking]) -> socket.socket | None:
        """Return a connection to the writer, without waiting for one; None if there is none.

        Args:
            listener: what `listen` has returned.
            place: its place.
            knocking: who has connected and not yet said who it is; it is changed.

        Raises:
            OSError: no connection can be taken.
        """

    def end(self, connection: socket.socket, timeout_s: float) -> None:
        """Wait until everything that was sent is on the other side, before the connection is closed."""


class UnixPlaces:
    """Unix sockets: only this user can connect, and the kernel keeps what was sent."""

    ends_at_once = True
    require = staticmethod(require_socket_path)

    def listen(self, place: Path, host: str, undo: ExitStack) -> socket.socket:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(place))
        undo.callback(place.unlink, missing_ok=True)
        listener.listen(1)
        return listener

    def connect(self, place: Path, is_alive: Callable[[], bool]) -> socket.socket:
        endpoint = socket.socket(socket.AF_UNIX)
        try:
            endpoint.setblocking(False)  # where others have filled its queue of connections, connecting would wait
            endpoint.connect(str(place))
            endpoint.setblocking(True)
        except OSError:
            endpoint.close()
            raise
        return endpoint

    def accept(self, listener: socket.socket, place: Path, knocking: list[Knocking]) -> socket.socket | None:
        return listener.accept()[0]

    def end(self, connection: socket.socket, timeout_s: float) -> None:
        """Do nothing."""


class TcpPlaces:
    """TCP over 127.0.0.1, or over ::1 where there is no IPv4; between hosts, over the interface that has the host's
    address. A place is a file with address, port and secret.
    """

    ends_at_once = False

    @staticmethod
    def require(path: Path) -> None:
        """Do nothing: the name of a file may be longer."""

    def listen(self, place: Path, host: str, undo: ExitStack) -> socket.socket:
        listener = undo.enter_context(_listening(host))
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # those who say nothing wait in the kernel
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        host, port = listener.getsockname()[:2]
        undo.callback(place.unlink, missing_ok=True)
        publish(place, f"{host} {port}")
        return listener

    def connect(self, place: Path, is_alive: Callable[[], bool]) -> socket.socket:
        host, port, secret = _read(place)
        endpoint = socket.create_connection((host, port), _CONNECT_S if host in _LOOPBACK else _FAR_CONNECT_S)
        try:
            if not is_alive():  # then the port may have been another program's; else it was the reader's all the time
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            _prepare(endpoint)
            endpoint.sendall(secret)
            endpoint.settimeout(None)
        except OSError:
            endpoint.close()
            raise
        return endpoint

    def accept(self, listener: socket.socket, place: Path, knocking: list[Knocking]) -> socket.socket | None:
        listener.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(_MOST_KNOCKING):
                knocking.append(Knocking(listener.accept()[0]))  # noqa: PERF401 # until there is none
        secret = _read(place)[2]
        for each in list(knocking):
            if each.listen():
                knocking.remove(each)
                if hmac.compare_digest(each.said, secret):
                    _prepare(each.connection)
                    each.connection.setblocking(True)
                    return each.connection
                each.connection.close()
        while len(knocking) > _MOST_KNOCKING:
            knocking.pop(0).connection.close()
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


def _listening(host: str) -> socket.socket:
    """Return a socket that listens at a free port of the interface with that address, by default of loopback.

    Raises:
        OSError: there is none, with neither IPv4 nor IPv6.
    """
    if host:
        family, *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, 0), family=family)
    try:
        return socket.create_server((_LOOPBACK[0], 0))
    except OSError as error:
        if not socket.has_ipv6 or error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
            raise
        return socket.create_server((_LOOPBACK[1], 0), family=socket.AF_INET6)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _read(path: Path) -> tuple[str, int, bytes]:
    """Return the address, the port and the secret of a reader.

    Raises:
        OSError: there is none.
    """
    place = find(path)
    try:
        host, port = place.target.split()
        return host, int(port), bytes.fromhex(place.secret)
    except ValueError as error:
        raise damaged(path) from error


def _unsent_bytes(connection: socket.socket) -> int:
    """Return how many bytes the other side's kernel does not have; 1 where that cannot be found out."""
    if sys.platform != "linux":
        return 1
    return int(unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
