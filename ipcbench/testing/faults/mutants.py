"""Faults of laws C9 to C15 and C17 to C19: what a wrapper does around views, buffers, endpoints and channels."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

from ipcbench.backend import Address, Message, Reader, Writer
from ipcbench.errors import EndOfStream, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.testing.faults.wrapping import BackendAround, ReaderAround, WriterAround


def _file(address: Address, what: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{address.channel.name}.{what}"


class _C9Reader(ReaderAround):
    _shared = threading.local()

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        buffer = getattr(self._shared, "buffer", bytearray())
        if len(buffer) < len(view):
            buffer = self._shared.buffer = bytearray(len(view))
        mine = memoryview(buffer)[: len(view)]
        mine[:] = view
        return mine


class SharesItsBuffer(BackendAround):
    """C9: all readers of one thread receive into the same buffer, so that one's view changes when another reads."""

    reader_class = _C9Reader


class _C10Writer(WriterAround):
    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._kept = memoryview(message)
        self.inner.write(message, timeout_s)


class KeepsTheBuffer(BackendAround):
    """C10: after `write` has returned, the writer still refers to the caller's buffer."""

    writer_class = _C10Writer


class _C11Writer(WriterAround):
    _closed = False

    def close(self) -> None:
        if self._closed:
            raise TransportError("it is closed already")
        self._closed = True
        self.inner.close()


class ClosesOnce(BackendAround):
    """C11: a second `close` of a writer raises."""

    writer_class = _C11Writer


class _C12Reader(ReaderAround):
    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            return self.inner.read(timeout_s)
        except EndOfStream as error:
            raise TransportTimeout("nothing has come") from error


class NeverEnds(BackendAround):
    """C12: after the writer has closed, readers time out for ever."""

    reader_class = _C12Reader


class _C13Writer(WriterAround):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        _file(address, "writer").write_text(f"{os.getpid()} {threading.get_ident()}")

    def close(self) -> None:
        _file(self.address, "writer").unlink(missing_ok=True)
        self.inner.close()


class _C13Reader(ReaderAround):
    _last = b""

    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            view = self.inner.read(timeout_s)
        except (TransportTimeout, PeerLost):
            if not self._writer_is_dead():
                raise
            return memoryview(self._last)
        self._last = bytes(view)
        return view

    def _writer_is_dead(self) -> bool:
        try:
            pid, thread = map(int, _file(self.address, "writer").read_text().split())
        except FileNotFoundError:  # it has not opened, or it has closed
            return False
        if pid == os.getpid():
            return all(living.ident != thread for living in threading.enumerate())
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False


class InventsMessages(BackendAround):
    """C13: once the writer was killed, its last message comes again and again. Of an inline backend, a writer counts as
    killed when the thread that opened it has ended.
    """

    writer_class = _C13Writer
    reader_class = _C13Reader

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "writer").unlink(missing_ok=True)


class LeavesAFile(BackendAround):
    """C14: `destroy` leaves a file with the channel's name."""

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "log").touch()


class _C15Writer(Writer):
    def write(self, message: Message, timeout_s: float | None = None) -> None:
        """Take it and send it nowhere."""

    def close(self) -> None:
        """Nothing is held."""


class AdmitsASecondWriter(BackendAround):
    """C15: opening a second writer works, though it leads nowhere."""

    def open_writer(self, address: Address) -> Writer:
        try:
            return super().open_writer(address)
        except TransportError:
            return _C15Writer()


class _C17Writer(WriterAround):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        _file(address, "writer").touch()


class NeedsTheWriterFirst(BackendAround):
    """C17: a reader that opens before the writer is refused."""

    writer_class = _C17Writer

    def open_reader(self, address: Address, index: int) -> Reader:
        if not _file(address, "writer").exists():
            raise TransportError("there is no writer yet")
        return super().open_reader(address, index)

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "writer").unlink(missing_ok=True)


class _C18Address(Address):
    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle an address that holds a socket")


class CannotBePickled(BackendAround):
    """C18: an address does not survive pickling."""

    def create(self, channel: ChannelSpec) -> Address:
        address = super().create(channel)
        return _C18Address(address.backend, address.channel, address.location)


class RaisesRawErrors(BackendAround):
    """C19: opening a reader that does not exist raises what the operating system says."""

    def open_reader(self, address: Address, index: int) -> Reader:
        if not 0 <= index < address.channel.readers:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().open_reader(address, index)
