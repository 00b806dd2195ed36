"""What users of the standard library's `multiprocessing` have: Queue, Queue of a Manager, Pipe; one for each reader.

None of them can be opened by address in a process that is there already: a process inherits them. So the parent of the
workers makes them and hands them to its children (the launcher `fork`, ipcbench/sync/parent.py). They carry bytes; the
cursors of the channel do the rest (ipcbench/sync/carried.py).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ipcbench.backend import Address, Capabilities
from ipcbench.backends.mp import kept
from ipcbench.backends.mp.manager import ManagerReader, ManagerWriter
from ipcbench.backends.mp.pipe import PipeReader, PipeWriter
from ipcbench.backends.mp.queue import QueueReader, QueueWriter
from ipcbench.errors import BackendUnavailable, TransportError
from ipcbench.sync.carried import CarriedBackend, CarriedReader, CarriedWriter
from ipcbench.sync.interrupts import whole
from ipcbench.sync.parent import has_parent, in_parent
from ipcbench.sync.service import end_services

_SEMAPHORES = Path("/dev/shm")  # noqa: S108 - where Linux has them


class MpQueue(CarriedBackend):
    """A Queue for each reader."""

    name: ClassVar[str] = "mp-queue"
    summary: ClassVar[str] = "multiprocessing.Queue, one for each reader: a pipe, a semaphore, a thread that pickles"
    capabilities: ClassVar[Capabilities] = replace(CarriedBackend.capabilities, launcher="fork", holds_one_of_max=True)
    writer: ClassVar[type[CarriedWriter]] = QueueWriter
    reader: ClassVar[type[CarriedReader]] = QueueReader
    _make: ClassVar[str] = "make_queues"

    @classmethod
    def probe(cls) -> None:
        if sys.platform != "linux":
            raise BackendUnavailable(cls.name, "its parent hands over channels on Linux only", "run it on Linux")

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        undo.callback(self._clean, address)
        in_parent(getattr(kept, self._make), address)

    @whole
    def destroy(self, address: Address) -> None:
        super().destroy(address)
        if has_parent():
            with suppress(TransportError):  # it has ended, and has nothing any more
                in_parent(kept.drop_destroyed)
        self._clean(address)

    def _clean(self, address: Address) -> None:
        """Remove what a parent that was killed has left outside the channel's folder."""
        for path in _SEMAPHORES.glob(f"sem.{kept.semaphore_prefix(address)}*"):
            path.unlink(missing_ok=True)


class MpPipe(MpQueue):
    """A Pipe for each reader."""

    name: ClassVar[str] = "mp-pipe"
    summary: ClassVar[str] = "multiprocessing.Pipe, one for each reader: send_bytes and recv_bytes, with receipts"
    _make: ClassVar[str] = "make_pipes"
    writer, reader = PipeWriter, PipeReader

    def _clean(self, address: Address) -> None:
        """Do nothing: a pipe has no name."""


class MpManager(MpQueue):
    """A Queue for each reader in a manager's process."""

    name: ClassVar[str] = "mp-manager"
    summary: ClassVar[str] = "Queue of a multiprocessing.Manager, one for each reader: each call asks a server process"
    _make: ClassVar[str] = "make_manager"
    writer, reader = ManagerWriter, ManagerReader

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        undo.callback(end_services, folder)
        super().prepare(folder, address, undo)

    def _clean(self, address: Address) -> None:
        """Do nothing: `end` ends the manager, if the folder is still this channel's."""
