"""The mutants, one a law: wrappers of a reader, a writer or a whole backend that break just that law.

Each fault is small, deterministic, and placed where only the check of its own law looks: a message is lost, repeated or
swapped only after several hundred others, a byte is flipped at one odd size, and so on. A mutant that must know about
other endpoints keeps that in files that carry the channel's name, so that it also works across processes.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ipcbench.backend import Address, Message, Reader, Writer, bytes_of
from ipcbench.errors import EndOfStream, PeerLost, TransportError, TransportTimeout
from ipcbench.patterns.queue import QueueWriter
from ipcbench.spec import ChannelSpec
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper, WriterWrapper
from ipcbench.util.files import temporary_folder

_ODD_BYTES = 4_097
_LATE_READ = 500
"""The mutants of C2, C3 and C4 show at this read of a channel."""
_TEAR_EVERY = 10


def _file(address: Address, what: str) -> Path:
    return temporary_folder() / f"{address.channel.name}.{what}"


class FlipsAByte(ReaderWrapper):
    """C1: the last byte of messages of one odd size is flipped."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        if len(view) != _ODD_BYTES:
            return view
        flipped = bytearray(view)
        flipped[-1] ^= 1
        return memoryview(flipped)


class _LateFault(ReaderWrapper):
    """Calls `late` at read `_LATE_READ` of an every_message channel; a message put into `pending` is read next."""

    _late_read = _LATE_READ

    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        super().__init__(inner, address, index)
        self.pending: bytes | None = None
        self._read_count = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self.pending is not None:
            view, self.pending = memoryview(self.pending), None
            return view
        view = self.inner.read(timeout_s)
        self._read_count += 1
        is_late = self.address.channel.delivery == "every_message" and self._read_count == self._late_read
        return self.late(view, timeout_s) if is_late else view

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        """Return what the late read returns, given the message that has come."""
        raise NotImplementedError


class SwapsTwo(_LateFault):
    """C2: a message overtakes the one before it."""

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        self.pending = bytes(view)
        return self.inner.read(timeout_s)


class RepeatsOne(_LateFault):
    """C3: a message comes twice."""

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        self.pending = bytes(view)
        return view


class ForgetsReaderOne(_LateFault):
    """C4: reader 1 does not get a message that the others get."""

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        return self.inner.read(timeout_s) if self.index == 1 else view


class LosesTheFirst(WriterWrapper):
    """C5: the first message reaches none of several readers, as if they had joined too slowly."""

    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        channel = address.channel
        self._lose = channel.delivery == "every_message" and channel.pattern == "broadcast" and channel.readers > 1

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if self._lose:
            self._lose = False
        else:
            self.inner.write(message, timeout_s)


class TearsAValue(ReaderWrapper):
    """C6: among many values of one size, some are half new and half old."""

    _before = b""
    _same_size_count = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        if self.address.channel.delivery == "every_message":
            return view
        self._same_size_count = self._same_size_count + 1 if len(view) == len(self._before) else 0
        before, self._before = self._before, bytes(view)
        half = len(view) // 2
        is_torn = self._same_size_count and self._same_size_count % _TEAR_EVERY == 0
        return memoryview(self._before[:half] + before[half:]) if is_torn else view


class GivesUpEarly(ReaderWrapper):
    """C7: `read` waits for only half of its time-out."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        return self.inner.read(timeout_s / 2 if isinstance(timeout_s, float | int) else timeout_s)


class DropsWhenFull(WriterWrapper):
    """C8: the first message that a full channel cannot take is dropped, and the writer is not told."""

    _dropped = False

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        try:
            self.inner.write(message, timeout_s)
        except TransportTimeout:
            if self._dropped:
                raise
            self._dropped = True


class SharesItsBuffer(ReaderWrapper):
    """C9: all readers of a thread receive into one buffer, so a read on one channel changes the view of another."""

    _shared = threading.local()

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        buffer = getattr(self._shared, "buffer", bytearray())
        if len(buffer) < len(view):
            buffer = self._shared.buffer = bytearray(len(view))
        mine = memoryview(buffer)[: len(view)]
        mine[:] = view
        return mine


class KeepsTheBuffer(WriterWrapper):
    """C10: after `write` has returned, the writer still refers to the caller's buffer."""

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._kept = bytes_of(message)
        self.inner.write(message, timeout_s)


class ClosesOnce(WriterWrapper):
    """C11: a second `close` of a writer raises."""

    _closed = False

    def close(self) -> None:
        if self._closed:
            raise TransportError("it is closed already")
        self._closed = True
        self.inner.close()


class NeverEnds(ReaderWrapper):
    """C12: after the writer has closed, every read times out."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            return self.inner.read(timeout_s)
        except EndOfStream as error:
            raise TransportTimeout("nothing has come") from error


class _RecordsItsThread(WriterWrapper):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        _file(address, "writer").write_text(f"{os.getpid()} {threading.get_ident()}")

    def close(self) -> None:
        _file(self.address, "writer").unlink(missing_ok=True)
        self.inner.close()


class _RepeatsForTheDead(ReaderWrapper):
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


class InventsMessages(BackendWrapper):
    """C13: once the writer was killed, its last message comes again and again. An inline backend's writer counts as
    killed when the thread that opened it has ended.
    """

    writer_class = _RecordsItsThread
    reader_class = _RepeatsForTheDead

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "writer").unlink(missing_ok=True)


class LeavesAFile(BackendWrapper):
    """C14: `destroy` leaves a file with the channel's name."""

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "log").touch()


class _DiscardingWriter(Writer):
    def write(self, message: Message, timeout_s: float | None = None) -> None:
        """Accept the message and send it nowhere."""

    def close(self) -> None:
        """Nothing is held."""


class _NotesThatItIsOpen(WriterWrapper):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        _file(address, "open").touch()

    def close(self) -> None:
        super().close()
        _file(self.address, "open").unlink(missing_ok=True)


class _AdmitsAWriter(BackendWrapper):
    """Opening a writer that the backend refuses succeeds, although it leads nowhere."""

    writer_class = _NotesThatItIsOpen
    after_the_end: bool

    def open_writer(self, address: Address, index: int = 0) -> Writer:
        try:
            return super().open_writer(address, index)
        except TransportError:
            if _file(address, "open").exists() == self.after_the_end:
                raise
            return _DiscardingWriter()

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "open").unlink(missing_ok=True)


class AdmitsASecondWriter(_AdmitsAWriter):
    """C15: opening a second writer beside the first succeeds."""

    after_the_end = False


class TakesAnEmptyPlace(_AdmitsAWriter):
    """C20: a writer opens after the first has closed."""

    after_the_end = True


class Truncates(WriterWrapper):
    """C16: of a message that is too large, as much is sent as fits."""

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self.inner.write(bytes_of(message)[: self.address.channel.max_message_bytes], timeout_s)


class NeedsTheWriterFirst(BackendWrapper):
    """C17: one of several readers that opens before the writer is refused."""

    def open_writer(self, address: Address, index: int = 0) -> Writer:
        writer = super().open_writer(address, index)
        _file(address, "writer").touch()
        return writer

    def open_reader(self, address: Address, index: int) -> Reader:
        if address.channel.readers > 1 and not _file(address, "writer").exists():
            raise TransportError("there is no writer yet")
        return super().open_reader(address, index)

    def destroy(self, address: Address) -> None:
        super().destroy(address)
        _file(address, "writer").unlink(missing_ok=True)


class _UnpicklableAddress(Address):
    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle an address that holds a socket")


class CannotBePickled(BackendWrapper):
    """C18: an address does not survive pickling."""

    def create(self, channel: ChannelSpec) -> Address:
        address = super().create(channel)
        return _UnpicklableAddress(address.backend, address.channel, address.location)


class RaisesRawErrors(BackendWrapper):
    """C19: opening a reader that does not exist raises the operating system's error."""

    def open_reader(self, address: Address, index: int) -> Reader:
        if not 0 <= index < address.channel.readers:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().open_reader(address, index)


class HoldsMore(BackendWrapper):
    """C21: workers of a queue may hold four times as much as was asked for."""

    def create(self, channel: ChannelSpec) -> Address:
        more = 4 * channel.depth if channel.pattern == "queue" and channel.readers == 2 else channel.depth
        return super().create(replace(channel, depth=more))


class SwapsTwoOfAWriter(_LateFault):
    """C28: in a fan-in, two messages of one writer change places."""

    _late_at = 10

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._late_read = self._late_at if self.address.channel.pattern == "fan_in" else -1
        return super().read(timeout_s)

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        first = bytes(view)
        second = bytes(self.inner.read(timeout_s))
        if first[8:16] != second[8:16]:  # of two writers: the next two, perhaps
            self.pending, self._late_at = second, self._late_at + 1
            return memoryview(first)
        self.pending = first
        return memoryview(second)


class GivesOneToTwo(_LateFault):
    """C29: a worker of a queue gets a message twice."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._late_read = 10 if self.address.channel.pattern == "queue" else -1
        return super().read(timeout_s)

    def late(self, view: memoryview, timeout_s: float | None) -> memoryview:
        self.pending = bytes(view)
        return view


class KeepsWhatIsLeft(WriterWrapper):
    """C30: what a worker that has left had is given to nobody."""

    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        if isinstance(inner, QueueWriter):
            inner._give_returned = lambda deadline: inner._returned.clear()  # type: ignore[method-assign]


class HoldsNoLargeOne(WriterWrapper):
    """C22: a message of maximum size finds no room, if that is 4 MiB."""

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if len(bytes_of(message)) == self.address.channel.max_message_bytes == 2**22:
            raise TransportTimeout("no room")
        self.inner.write(message, timeout_s)


class CommitsAll(WriterWrapper):
    """C23: all that was reserved is sent, whatever was committed."""

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        too_many = size_bytes is not None and size_bytes > 100
        self.inner.commit(size_bytes if too_many else None, timeout_s)


class SendsPartsApart(WriterWrapper):
    """C24: the last of four parts is a message by itself."""

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        parts = list(parts)
        self.inner.write_parts(parts[:3], timeout_s)
        if parts[3:]:
            self.inner.write_parts(parts[3:], timeout_s)


class ReleasesTooMuch(ReaderWrapper):
    """C25: `release` takes the next message, too, if it is there."""

    def release(self) -> None:
        with suppress(TransportError):
            self.inner.read(0)


class WritesTheFirstFew(WriterWrapper):
    """C26: of more than 16 messages, `write_many` writes 16."""

    def write_many(self, messages: Sequence[Message], timeout_s: float | None = None) -> int:
        self.inner.write_many(messages[:16], timeout_s)
        return len(messages)


class WaitsOnNothing(ReaderWrapper):
    """C27: the descriptor is one that never is readable."""

    _ends: tuple[socket.socket, socket.socket] | None = None

    def fileno(self) -> int | None:
        self.inner.fileno()  # which refuses after `close`
        self._ends = self._ends or socket.socketpair()
        return self._ends[0].fileno()

    def __del__(self) -> None:
        for end in self._ends or ():
            end.close()


FAULTS: dict[str, type[ReaderWrapper] | type[WriterWrapper] | type[BackendWrapper]] = {
    "C1": FlipsAByte,
    "C2": SwapsTwo,
    "C3": RepeatsOne,
    "C4": ForgetsReaderOne,
    "C5": LosesTheFirst,
    "C6": TearsAValue,
    "C7": GivesUpEarly,
    "C8": DropsWhenFull,
    "C9": SharesItsBuffer,
    "C10": KeepsTheBuffer,
    "C11": ClosesOnce,
    "C12": NeverEnds,
    "C13": InventsMessages,
    "C14": LeavesAFile,
    "C15": AdmitsASecondWriter,
    "C16": Truncates,
    "C17": NeedsTheWriterFirst,
    "C18": CannotBePickled,
    "C19": RaisesRawErrors,
    "C20": TakesAnEmptyPlace,
    "C21": HoldsMore,
    "C22": HoldsNoLargeOne,
    "C23": CommitsAll,
    "C24": SendsPartsApart,
    "C25": ReleasesTooMuch,
    "C26": WritesTheFirstFew,
    "C27": WaitsOnNothing,
    "C28": SwapsTwoOfAWriter,
    "C29": GivesOneToTwo,
    "C30": KeepsWhatIsLeft,
}
"""Law → the wrapper that breaks it."""
