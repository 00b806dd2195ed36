"""Faults of laws C1 to C8 and C16: what a wrapper does to the messages that go through it."""

from __future__ import annotations

from ipcbench.backend import Address, Message, Reader, Writer
from ipcbench.errors import TransportTimeout
from ipcbench.testing.faults.wrapping import BackendAround, ReaderAround, WriterAround

ODD_BYTES = 4_097
"""The size at which C1's fault flips a byte."""

LATE_READ = 500
"""How many messages of a channel are read before the faults of C2, C3 and C4 show."""

_TEAR_EVERY = 10


class _CountingReader(ReaderAround):
    """Counts what it has read."""

    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        super().__init__(inner, address, index)
        self.read_count = 0
        self.is_stream = address.channel.delivery == "every_message"

    def is_due(self) -> bool:
        """Count one more message; return whether the fault is due at it."""
        self.read_count += 1
        return self.is_stream and self.read_count == LATE_READ


class _C1Reader(ReaderAround):
    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        if len(view) != ODD_BYTES:
            return view
        flipped = bytearray(view)
        flipped[-1] ^= 1
        return memoryview(flipped)


class FlipsAByte(BackendAround):
    """C1: the last byte of a message of one certain size is not what was written."""

    reader_class = _C1Reader


class _C2Reader(_CountingReader):
    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        super().__init__(inner, address, index)
        self._held_back: bytes | None = None

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._held_back is not None:
            view, self._held_back = memoryview(self._held_back), None
            return view
        view = self.inner.read(timeout_s)
        if self.is_due():
            self._held_back = bytes(view)
            view = self.inner.read(timeout_s)
        return view


class SwapsTwo(BackendAround):
    """C2: a message overtakes the one before it."""

    reader_class = _C2Reader


class _C3Reader(_CountingReader):
    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        super().__init__(inner, address, index)
        self._again: bytes | None = None

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._again is not None:
            view, self._again = memoryview(self._again), None
            return view
        view = self.inner.read(timeout_s)
        if self.is_due():
            self._again = bytes(view)
        return view


class RepeatsOne(BackendAround):
    """C3: a message comes twice."""

    reader_class = _C3Reader


class _C4Reader(_CountingReader):
    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        return self.inner.read(timeout_s) if self.is_due() and self.index == 1 else view


class ForgetsReaderOne(BackendAround):
    """C4: reader 1 does not get a message that the others get."""

    reader_class = _C4Reader


class _C5Writer(WriterAround):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        self._lose = address.channel.delivery == "every_message"

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if self._lose:
            self._lose = False
        else:
            self.inner.write(message, timeout_s)


class LosesTheFirst(BackendAround):
    """C5: what is written first reaches nobody, as if the readers had joined too slowly."""

    writer_class = _C5Writer


class _C6Reader(_CountingReader):
    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        super().__init__(inner, address, index)
        self._before = b""

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        if self.is_stream:
            return view
        self.read_count = self.read_count + 1 if len(view) == len(self._before) else 0
        before, self._before = self._before, bytes(view)
        half = len(view) // 2
        is_torn = self.read_count and self.read_count % _TEAR_EVERY == 0
        return memoryview(self._before[:half] + before[half:]) if is_torn else view


class TearsAValue(BackendAround):
    """C6: among many values of one size, some are half the new one and half the one before."""

    reader_class = _C6Reader


class _C7Reader(ReaderAround):
    def read(self, timeout_s: float | None = None) -> memoryview:
        return self.inner.read(None if timeout_s is None else timeout_s / 2)


class GivesUpEarly(BackendAround):
    """C7: `read` waits for half its time-out only."""

    reader_class = _C7Reader


class _C8Writer(WriterAround):
    def __init__(self, inner: Writer, address: Address) -> None:
        super().__init__(inner, address)
        self._dropped = False

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        try:
            self.inner.write(message, timeout_s)
        except TransportTimeout:
            if self._dropped:
                raise
            self._dropped = True


class DropsWhenFull(BackendAround):
    """C8: the first message that a full channel cannot take is dropped, and the writer is not told."""

    writer_class = _C8Writer


class _C16Writer(WriterAround):
    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self.inner.write(memoryview(message)[: self.address.channel.max_message_bytes], timeout_s)


class Truncates(BackendAround):
    """C16: of too large a message, as much is sent as fits."""

    writer_class = _C16Writer
