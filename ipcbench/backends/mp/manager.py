"""The ends of `mp-manager`: for each reader a Queue in a manager's process, used by its proxy, a round trip a call."""

from __future__ import annotations

import threading
from functools import partial
from multiprocessing.managers import BaseProxy
from queue import Empty, Full
from typing import Any

from ipcbench.backend import Address
from ipcbench.backends.mp.endpoint import MpReader, MpWriter, slice_s
from ipcbench.backends.mp.kept import SOCKET
from ipcbench.sync.directory import channel_file
from ipcbench.sync.interrupts import in_background, start_thread
from ipcbench.sync.locks import reader_roles
from ipcbench.util.clock import deadline_ns, remaining_s

_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer waits for room for the end of the stream, and how long `close` waits for that."""


def _disconnect(address: Address) -> None:
    """Close what threads of this process have left open to the manager; proxies close that of their own thread."""
    kept = BaseProxy._address_to_local
    _, used = kept.get(str(channel_file(address, SOCKET)), (None, True))
    if not used:
        kept.pop(str(channel_file(address, SOCKET)), None)


class ManagerWriter(MpWriter):
    """Puts each message into every queue."""

    _carrier, _made = "manager", "<string>"

    def _hold(self, end: list[Any]) -> None:
        self._queues = dict(zip(reader_roles(self._channel), end, strict=True))
        self._settled = threading.Event()
        self._settled.set()

    def _send(self, message: bytes | None, timeout_s: float | None) -> None:
        deadline = deadline_ns(timeout_s)
        if not self._settled.is_set() and not self._settled.wait(remaining_s(deadline)):
            self._full("one of them")
        is_begun = False
        for role, queue in list(self._queues.items()):
            if not self._put(role, queue, message, deadline, is_begun=is_begun):
                self._settled.clear()  # others have got it: this reader gets it when it has room
                start_thread(partial(self._settle, role, queue, message))
            is_begun = True

    def _put(self, role: str, queue: Any, message: bytes | None, deadline: int | None, *, is_begun: bool) -> bool:
        """Put a message; return False if there was no room by `deadline`, and others have got it.

        Raises:
            TransportTimeout: there was none, and none has got it.
        """
        while True:
            try:
                queue.put(message, True, slice_s(deadline))
            except Full as full:
                if self._has_closed(role):
                    del self._queues[role]
                elif remaining_s(deadline) == 0.0:
                    if not is_begun:
                        self._full(role, full)
                    return False
                else:
                    continue
            return True

    def _settle(self, role: str, queue: Any, message: bytes | None) -> None:
        try:
            self._put(role, queue, message, None, is_begun=True)
        finally:
            self._settled.set()

    def _finish(self, *, is_whole: bool) -> None:
        in_background(partial(super()._finish, is_whole=is_whole), f"{self._channel.name} flush", _CLOSE_S)

    def _flush(self) -> None:
        self._send(None, _LINGER_S)

    def _drop(self) -> None:
        self._queues.clear()
        _disconnect(self._address)


class ManagerReader(MpReader):
    """Gets messages from its queue."""

    _carrier, _made = "manager", "<string>"

    def _hold(self, end: Any) -> None:
        self._queue = end

    def _await(self, timeout_s: float | None) -> None:
        """Only the manager knows whether there is a message, and to ask it costs as much as to take the message."""

    def _receive(self, timeout_s: float | None) -> bytes | None:
        deadline = deadline_ns(timeout_s)
        while True:
            try:
                message: bytes | None = self._queue.get(True, slice_s(deadline))
            except Empty as empty:
                self._has_closed("writer")
                if remaining_s(deadline) == 0.0:
                    self._late(timeout_s, empty)
            else:
                return message

    def _drop(self) -> None:
        self._queue = None
        _disconnect(self._address)
