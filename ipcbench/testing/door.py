"""The socket at which new agents report, and the agents that it lets in."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgpack

from ipcbench.errors import TransportError
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.clock import deadline_ns, now_ns

ARRIVAL_S = 60.0
"""How long new agents may take to report. An MPI launch on a busy machine takes seconds."""

_LOOK_S = 0.2

Arrival: TypeAlias = "tuple[int, Connection[Any, Any]]"


class Door:
    """A Unix socket in a folder of its own, both gone on leaving the block; only who has the key gets in."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{NAME_PREFIX}door-{os.getpid()}-"))
        self.path = self._folder / "door"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        self._socket.settimeout(_LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        shutil.rmtree(self._folder)

    def admit(self, count: int, check: Callable[[], None]) -> Mapping[int, Arrival]:
        """Wait for that many agents; return number → (process, connection).

        Args:
            count: how many agents were started.
            check: called a few times a second; raises if one of them has ended already.

        Raises:
            TransportError: they have not all reported in time.
        """
        arrived: dict[int, Arrival] = {}
        deadline = deadline_ns(ARRIVAL_S) or 0
        while len(arrived) < count:
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError as error:
                check()
                if now_ns() > deadline:
                    raise TransportError(f"{count - len(arrived)} of {count} agents did not report") from error
                continue
            accepted.setblocking(True)
            connection = Connection(accepted.detach())
            try:
                deliver_challenge(connection, self.key)
                answer_challenge(connection, self.key)
                number, pid = msgpack.unpackb(connection.recv_bytes())
            except (AuthenticationError, EOFError, OSError):  # not one of ours, or it has died: `check` will tell
                connection.close()
                continue
            arrived[number] = (pid, connection)
        return arrived
