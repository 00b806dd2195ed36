"""The control channel between coordinator and workers: authenticated, msgpack, every wait with a deadline.

The connection and its challenge-response authentication are the standard library's; only its `send_bytes` and
`recv_bytes` are used, so nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from typing import Any, Self

import msgpack

from ipcbench.errors import ConfigError, TrialError, WorkerTimeout
from ipcbench.sync.ownership import own

HOST_VARIABLE = "IPCBENCH_CONTROL_HOST"
"""Interface on which the coordinator listens for workers on other hosts; unset: a Unix socket."""

KEY_VARIABLE = "IPCBENCH_CONTROL_KEY"
"""Environment variable that passes the key to workers; a command line would show it to other users."""

EXIT = {"do": "exit"}
"""The request that ends a worker with all its clean-up; it is not answered."""

_HANDSHAKE_S = 20
"""How long a caller may take for each step of the handshake; a worker on a busy machine takes seconds."""
_TRY_AGAIN_S = 0.1
_PROMPT_S = 1.0
"""Where descriptors run out, a caller that takes longer than this is hung up on."""
_TIMEVAL = Struct("@ll")


class ControlConnection:
    """One end of a control connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        own(self)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message of plain values.

        Raises:
            TrialError: the other side is gone.
        """
        self.send_packed(msgpack.packb(message, use_bin_type=True))

    def send_packed(self, message: bytes) -> None:
        """Send a message that another connection's `receive_packed` returned; see `send`."""
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise TrialError(f"the control channel broke: {error}") from error

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """Return the next message.

        Raises:
            WorkerTimeout: none came in time.
            TrialError: the other side is gone, or sent something that is not msgpack.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise WorkerTimeout(f"no answer on the control channel within {timeout_s:.1f} s")
        except (EOFError, OSError) as error:
            raise TrialError("the other side of the control channel is gone") from error
        try:
            message: dict[str, Any] = msgpack.unpackb(self.receive_packed(), raw=False)
        except (msgpack.UnpackException, ValueError) as error:
            raise TrialError(f"the control channel carried something that is not a message: {error}") from error
        return message

    def receive_packed(self) -> bytes:
        """Wait for the next message and return it as it is.

        Raises:
            TrialError: the other side is gone.
        """
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise TrialError("the other side of the control channel is gone") from error

    def hang_up(self) -> None:
        """Let the other side, and whoever waits here in another thread, see the end."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as connected:
            connected.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the descriptor, for waiting on several channels at once."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection; twice is fine."""
        self._connection.close()

    let_go = close


def connected_pair() -> tuple[ControlConnection, ControlConnection]:
    """Return the two ends of a connection within this process."""
    ends = [ControlConnection(Connection(end.detach())) for end in socket.socketpair()]
    return ends[0], ends[1]


class Switchboard:
    """The coordinator's listening end; a context manager.

    A thread accepts callers, and one thread for each lets it in if it proves within `_HANDSHAKE_S` that it knows the
    key: strangers that are silent, slow or many hold up nobody else.

    Args:
        directory: where to create the Unix socket.
        host: listen on this interface by TCP instead, for workers on other hosts.
        key: which workers must know; by default, a new one.
    """

    def __init__(self, directory: Path, host: str | None = None, *, key: bytes | None = None) -> None:
        self._key = os.urandom(32) if key is None else key
        self._path = directory / "control"
        self._socket = socket.socket(socket.AF_UNIX if host is None else socket.AF_INET)
        try:
            self._socket.bind(str(self._path) if host is None else (host, 0))
            self._socket.listen(128)
        except (OSError, UnicodeError, TypeError) as error:  # TypeError: bytes that are no text
            self._socket.close()
            if host is None:
                if isinstance(error, OSError):
                    error.filename = str(self._path)  # which a socket's error does not name
                raise
            why = error.strerror if isinstance(error, OSError) else "no name of a host"
            allowed = f"the name or the IPv4 address of an interface of this host ({why})"
            raise ConfigError(HOST_VARIABLE, host, allowed) from error
        self._closing = threading.Event()
        self._early: dict[str, list[tuple[dict[str, Any], ControlConnection]]] = {}
        self._admitted: SimpleQueue[ControlConnection | OSError] = SimpleQueue()
        self._guard = threading.Lock()
        self._callers: dict[threading.Thread, tuple[socket.socket, float]] = {}
        """Who is being let in, and since when."""
        self._accepting = threading.Thread(target=self._accept_callers, name="control", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """Return what a worker passes to `connect`: a path, or host:port."""
        address = self._socket.getsockname()
        return address if isinstance(address, str) else f"{address[0]}:{address[1]}"

    def environment(self) -> dict[str, str]:
        """Return the variables that a worker's environment needs."""
        return {KEY_VARIABLE: self._key.hex()}

    def accept(self, timeout_s: float) -> ControlConnection | None:
        """Return the next worker's channel, or None if none comes in time; callers without the key are ignored.

        Raises:
            OSError: this process may open no more files, and no caller holds any who might be a stranger.
        """
        try:
            admitted = self._admitted.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(admitted, OSError):
            raise admitted
        return admitted

    def admit(self, connection: ControlConnection) -> None:
        """Let a worker in that someone else has checked: on its host."""
        self._admitted.put(connection)

    def expect(self, token: str) -> None:
        """Keep the workers of that launch, from now on, while others are waited for."""
        self._early[token] = []

    def keep(self, token: str | None, hello: dict[str, Any], channel: ControlConnection) -> bool:
        """Keep a worker that has said hello until its launch is waited for; return False if nobody expects it."""
        if token is None or token not in self._early:
            return False
        self._early[token].append((hello, channel))
        return True

    def kept(self, token: str) -> list[tuple[dict[str, Any], ControlConnection]]:
        """Return the workers of that launch that were kept, and expect no more."""
        return self._early.pop(token, [])

    def _accept_callers(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError as error:  # out of descriptors, or the caller has gone
                if error.errno in {errno.EMFILE, errno.ENFILE} and not self._hang_up_on_slow_callers():
                    self._admitted.put(error)
                if self._closing.wait(_TRY_AGAIN_S):
                    return
                continue
            try:
                thread = threading.Thread(target=self._admit, args=(caller,), name="handshake", daemon=True)
                with self._guard:
                    self._callers[thread] = caller, time.monotonic()
                thread.start()
            except RuntimeError:  # out of threads; this caller ends, the next one may have more luck
                with self._guard:
                    self._callers.pop(thread, None)
                caller.close()

    def _hang_up_on_slow_callers(self) -> bool:
        """End the handshakes that take long, so that strangers do not use up the descriptors; return whether there are
        any callers.
        """
        with self._guard:
            for caller, since_s in self._callers.values():
                if time.monotonic() - since_s > _PROMPT_S:
                    with suppress(OSError):
                        caller.shutdown(socket.SHUT_RDWR)
            return bool(self._callers)

    def _admit(self, caller: socket.socket) -> None:
        try:
            with suppress(AuthenticationError, EOFError, OSError), ExitStack() as undo:
                connection = Connection(caller.fileno())
                undo.callback(setattr, connection, "_handle", None)  # it is the caller's to close
                _limit_waits(caller, _HANDSHAKE_S)
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                _limit_waits(caller, 0)
                undo.pop_all()
                with self._guard:
                    caller.detach()
                self._admitted.put(ControlConnection(connection))
        finally:
            with self._guard:
                self._callers.pop(threading.current_thread(), None)
                caller.close()

    def close(self) -> None:
        """Stop listening and remove the socket; twice is fine."""
        self._closing.set()
        with suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._accepting.join()
        self._socket.close()
        for token in list(self._early):
            for _, channel in self.kept(token):
                channel.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _limit_waits(caller: socket.socket, seconds: int) -> None:
    """Let each send and receive take at most so long; 0 for ever."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        caller.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, 0))


def connect(address: str) -> ControlConnection:
    """Connect a worker to its coordinator, with the key from the environment.

    Raises:
        TrialError: no coordinator listens there, or the key is wrong.
    """
    key = bytes.fromhex(os.environ.get(KEY_VARIABLE, ""))
    target: str | tuple[str, int] = address
    family = "AF_UNIX"
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        target, family = (host, int(port)), "AF_INET"
    try:
        return ControlConnection(Client(target, family=family, authkey=key))
    except (OSError, EOFError, AuthenticationError) as error:
        raise TrialError(f"no coordinator at {address}: {str(error) or type(error).__name__}") from error
