"""The ends of `mp-manager`: for each reader a Queue in a manager's process, used by its proxy, a round trip a call."""

from __future__ import annotations

from functools import partial
from multiprocessing.managers import BaseProxy
from queue import Empty
from typing import Any

from ipcbench.backend import Address
from ipcbench.backends.mp.endpoint import MpReader, MpWriter
from ipcbench.backends.mp.kept import LOCK, SOCKET
from ipcbench.errors import PeerLost, TransportError
from ipcbench.sync.carried import CarriedEndpoint
from ipcbench.sync.directory import channel_directory, channel_file
from ipcbench.sync.locks import is_locked


def _lost(address: Address) -> PeerLost:
    return PeerLost(f"the manager of channel {address.channel.name!r} has died")


def _require_manager(address: Address) -> None:
    if not is_locked(channel_directory(address) / LOCK):
        raise _lost(address)


class _ManagerEnd(CarriedEndpoint):
    """What has proxies of a manager's queues."""

    library_folder = "<string>"
    """Where multiprocessing makes the methods of a proxy."""

    def use(self, queues: list[Any]) -> list[Any]:
        """Return the queues, and look from now on whether their manager lives."""
        self._cursors.check_carrier = partial(_require_manager, self.address)
        return queues

    def lost(self, error: BaseException) -> TransportError:
        return _lost(self.address)

    def disconnect(self) -> None:
        """Drop the proxies, and with them what other threads have left open; a proxy closes that of its own thread."""
        self.library.clear()
        kept = BaseProxy._address_to_local
        _, used = kept.get(str(channel_file(self.address, SOCKET)), (None, True))
        if not used:
            kept.pop(str(channel_file(self.address, SOCKET)), None)


class ManagerWriter(_ManagerEnd, MpWriter):
    """Puts each message into every queue."""

    def connect(self) -> list[Any]:
        return self.use(super().connect())


class ManagerReader(_ManagerEnd, MpReader):
    """Gets messages from its queue. Only the manager knows whether there is one, and to ask it costs as much as to get
    it.
    """

    def connect(self) -> list[Any]:
        return self.use([super().connect()])

    def receive(self, timeout_s: float) -> bytes | None:
        try:
            message: bytes = self.library[0].get(True, timeout_s)
        except Empty:
            return None
        return message
