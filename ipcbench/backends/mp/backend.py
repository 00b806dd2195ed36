"""What users of the standard library's `multiprocessing` have: Queue, Queue of a Manager, Pipe; one for each reader.

None of them can be opened by address in a process that is there already: a process inherits them. So the parent of the
workers makes them and hands them to its children (the launcher `fork`, ipcbench/sync/parent.py). The files of a channel
keep the places and say who has closed.
"""

from __future__ import annotations

import contextlib
import sys
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from multiprocessing.managers import dispatch  # type: ignore[attr-defined]
from pathlib import Path
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
from ipcbench.backends.mp import kept
from ipcbench.backends.mp.endpoint import MpReader, MpWriter
from ipcbench.backends.mp.manager import ManagerReader, ManagerWriter
from ipcbench.backends.mp.pipe import PipeReader, PipeWriter
from ipcbench.backends.mp.queue import QueueReader, QueueWriter
from ipcbench.errors import BackendUnavailable, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_file, new_directory, remove_directory, require_socket_path
from ipcbench.sync.interrupts import whole
from ipcbench.sync.locks import reader_role
from ipcbench.sync.parent import has_parent, in_parent

_SEMAPHORES = Path("/dev/shm")  # noqa: S108 - where Linux has them


class MpQueue(Backend):
    """A Queue for each reader."""

    name: ClassVar[str] = "mp-queue"
    summary: ClassVar[str] = "multiprocessing.Queue, one for each reader: a pipe, a semaphore, a thread that pickles"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=64,
        zero_copy_read=False,
        waits=frozenset({"block"}),
        launcher="fork",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
        holds_one_of_max=True,
    )
    _make: ClassVar[str] = "make_queues"
    _writer: ClassVar[type[MpWriter]] = QueueWriter
    _reader: ClassVar[type[MpReader]] = QueueReader

    @classmethod
    def probe(cls) -> None:
        if sys.platform != "linux":
            raise BackendUnavailable(
                cls.name, "its parent process hands over channels on Linux only", "run it on Linux"
            )

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.probe()
        self.require(channel)
        with new_directory(channel.name) as (_, location, undo):
            address = Address(self.name, channel, location)
            self._require_short(address)
            undo.callback(self._clean, address)
            in_parent(getattr(kept, self._make), address)
        return address

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        return self._writer(address)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        return self._reader(address, reader_role(address.channel, index))

    @whole
    def destroy(self, address: Address) -> None:
        self._clean(address)
        remove_directory(address)
        if has_parent():
            with contextlib.suppress(TransportError):  # it has ended, and has nothing any more
                in_parent(kept.drop_destroyed)

    def _require_short(self, address: Address) -> None:
        """Raise TransportError if a path of the channel is too long."""

    def _clean(self, address: Address) -> None:
        """Remove what a parent that was killed has left outside the channel's folder."""
        for path in _SEMAPHORES.glob(f"sem.{kept.semaphore_prefix(address)}*"):
            path.unlink(missing_ok=True)


class MpPipe(MpQueue):
    """A Pipe for each reader."""

    name: ClassVar[str] = "mp-pipe"
    summary: ClassVar[str] = "multiprocessing.Pipe, one for each reader: send_bytes and recv_bytes, with receipts"
    _make: ClassVar[str] = "make_pipes"
    _writer: ClassVar[type[MpWriter]] = PipeWriter
    _reader: ClassVar[type[MpReader]] = PipeReader

    def _clean(self, address: Address) -> None:
        """Do nothing: a pipe has no name."""


class MpManager(MpQueue):
    """A Queue for each reader in a manager's process."""

    name: ClassVar[str] = "mp-manager"
    summary: ClassVar[str] = "Queue of a multiprocessing.Manager, one for each reader: each call asks a server process"
    _make: ClassVar[str] = "make_manager"
    _writer: ClassVar[type[MpWriter]] = ManagerWriter
    _reader: ClassVar[type[MpReader]] = ManagerReader

    def _require_short(self, address: Address) -> None:
        require_socket_path(channel_file(address, kept.SOCKET))

    def _clean(self, address: Address) -> None:
        """End the manager, from whatever process."""
        place = channel_file(address, kept.SOCKET)
        with (
            contextlib.suppress(OSError, EOFError, AuthenticationError),
            Client(str(place), authkey=channel_file(address, kept.KEY).read_bytes()) as client,
        ):
            dispatch(client, None, "shutdown")
