"""The control channel between coordinator and workers: authenticated, msgpack, every wait with a deadline.

The connection and its challenge-response authentication are the standard library's; only its `send_bytes` and
`recv_bytes` are used, so nothing is ever unpickled.
"""

from __future__ import annotations

import os
import socket
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Self

import msgpack

from ipcbench.errors import TrialError, WorkerTimeout
from ipcbench.util.clock import deadline_ns, remaining_s

KEY_VARIABLE = "IPCBENCH_CONTROL_KEY"
"""Environment variable that passes the key to workers; a command line would show it to other users."""

EXIT = {"do": "exit"}
"""The request that ends a worker with all its clean-up; it is not answered."""


class ControlConnection:
    """One end of a control connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: dict[str, Any]) -> None:
        """Send a message of plain values.

        Raises:
            TrialError: the other side is gone.
        """
        try:
            self._connection.send_bytes(msgpack.packb(message, use_bin_type=True))
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
            message: dict[str, Any] = msgpack.unpackb(self._connection.recv_bytes(), raw=False)
        except (EOFError, OSError) as error:
            raise TrialError("the other side of the control channel is gone") from error
        except (msgpack.UnpackException, ValueError) as error:
            raise TrialError(f"the control channel carried something that is not a message: {error}") from error
        return message

    def fileno(self) -> int:
        """Return the descriptor, for waiting on several channels at once."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection; twice is fine."""
        self._connection.close()


class Switchboard:
    """The coordinator's listening end; a context manager.

    Args:
        directory: where to create the Unix socket.
        host: listen on this interface by TCP instead, for workers on other hosts.
    """

    def __init__(self, directory: Path, host: str | None = None) -> None:
        self._key = os.urandom(32)
        if host is None:
            self._listener = Listener(str(directory / "control"), family="AF_UNIX", backlog=128, authkey=self._key)
        else:
            self._listener = Listener((host, 0), family="AF_INET", backlog=128, authkey=self._key)
        # The standard library offers no accept with a deadline; the listening socket does.
        self._socket: socket.socket = self._listener._listener._socket  # type: ignore[attr-defined]

    @property
    def address(self) -> str:
        """Return what a worker passes to `connect`: a path, or host:port."""
        address = self._listener.address
        return address if isinstance(address, str) else f"{address[0]}:{address[1]}"

    def environment(self) -> dict[str, str]:
        """Return the variables that a worker's environment needs."""
        return {KEY_VARIABLE: self._key.hex()}

    def accept(self, timeout_s: float) -> ControlConnection | None:
        """Return the next worker's channel, or None if none comes in time; callers without the key are ignored."""
        deadline = deadline_ns(timeout_s)
        while (left_s := remaining_s(deadline)) and left_s > 0:
            self._socket.settimeout(left_s)
            try:
                return ControlConnection(self._listener.accept())
            except TimeoutError:
                return None
            except (AuthenticationError, EOFError, ConnectionError):
                continue
        return None

    def close(self) -> None:
        """Stop listening and remove the socket; twice is fine."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        raise TrialError(f"no coordinator at {address}: {error}") from error
