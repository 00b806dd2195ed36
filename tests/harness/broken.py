"""Backends that break in one way each, in the middle of a trial: shared memory with something wrong on top.

Workers import them as `broken:Name`; the tests put this folder on `sys.path`, which workers inherit.
"""

from __future__ import annotations

import os
import select
import signal
from typing import ClassVar

from ipcbench.backend import Address, Message, Reader, Writer
from ipcbench.backends.shm.backend import Shm
from ipcbench.workload.message import FLAGS, HEADER_BYTES, Phase, unpack_stamp, unpack_word

AT = 20
"""Number of the window's message that goes wrong."""


def _in_window(message: Message) -> bool:
    return unpack_word(message, 8 * FLAGS)[0] == Phase.MEASURE


class PassingWriter(Writer):
    """Passes everything on, and calls `trouble` with the window's message number `AT`."""

    def __init__(self, inner: Writer) -> None:
        self._inner = inner
        self._seen = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._seen += _in_window(message)
        if self._seen == AT and _in_window(message):
            self.trouble(message, timeout_s)
        else:
            self._inner.write(message, timeout_s)

    def trouble(self, message: Message, timeout_s: float | None) -> None:
        self._inner.write(message, timeout_s)

    def close(self) -> None:
        self._inner.close()


class _Reader(Reader):
    """Passes everything on, and calls `trouble` instead of the read of the window's message number `AT`."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self._seen = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self._inner.read(timeout_s)
        self._seen += _in_window(view)
        return self.trouble(view, timeout_s) if self._seen == AT and _in_window(view) else view

    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        return view

    def close(self) -> None:
        self._inner.close()


class _Broken(Shm):
    """Shared memory whose endpoints are wrapped."""

    writer: ClassVar[type[PassingWriter]] = PassingWriter
    reader: ClassVar[type[_Reader]] = _Reader

    def open_writer(self, address: Address) -> Writer:
        return self.writer(super().open_writer(address))

    def open_reader(self, address: Address, index: int) -> Reader:
        return self.reader(super().open_reader(address, index))


def _hang() -> None:
    while True:
        select.select([], [], [], 3600)


class _HangingReader(_Reader):
    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        _hang()
        return view


class _RaisingReader(_Reader):
    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        raise ValueError("a bug in the backend")


class _KilledReader(_Reader):
    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        os.kill(os.getpid(), signal.SIGKILL)
        return view


class _StallingReader(_Reader):
    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        select.select([], [], [], 0.2)
        return view


class _TearingReader(_Reader):
    def trouble(self, view: memoryview, timeout_s: float | None) -> memoryview:
        torn = bytearray(view)
        torn[-1] ^= 1
        return memoryview(torn)


class _BitFlippingReader(_Reader):
    """Flips a bit of every body: only hashing can see it."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        changed = bytearray(self._inner.read(timeout_s))
        changed[HEADER_BYTES] ^= 1
        return memoryview(changed)


class _KilledWriter(PassingWriter):
    def trouble(self, message: Message, timeout_s: float | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _LosingWriter(PassingWriter):
    def trouble(self, message: Message, timeout_s: float | None) -> None:
        pass


class _DuplicatingWriter(PassingWriter):
    def trouble(self, message: Message, timeout_s: float | None) -> None:
        self._inner.write(message, timeout_s)
        self._inner.write(message, timeout_s)


class _SwappingWriter(PassingWriter):
    """Sends message `AT` after the one behind it."""

    held: bytes | None = None

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        super().write(message, timeout_s)
        if self.held is not None and unpack_stamp(message)[0] > unpack_stamp(self.held)[0]:
            self._inner.write(self.held, timeout_s)
            self.held = None

    def trouble(self, message: Message, timeout_s: float | None) -> None:
        self.held = bytes(message)


def _broken(wrapper: type[PassingWriter] | type[_Reader]) -> type[_Broken]:
    side = "writer" if issubclass(wrapper, Writer) else "reader"
    return type(wrapper.__name__.strip("_"), (_Broken,), {side: wrapper, "name": wrapper.__name__.strip("_")})


HangingReader = _broken(_HangingReader)
RaisingReader = _broken(_RaisingReader)
KilledReader = _broken(_KilledReader)
StallingReader = _broken(_StallingReader)
TearingReader = _broken(_TearingReader)
BitFlippingReader = _broken(_BitFlippingReader)
KilledWriter = _broken(_KilledWriter)
LosingWriter = _broken(_LosingWriter)
DuplicatingWriter = _broken(_DuplicatingWriter)
SwappingWriter = _broken(_SwappingWriter)


class HangsOnOpen(Shm):
    """Its reader never opens."""

    name = "HangsOnOpen"

    def open_reader(self, address: Address, index: int) -> Reader:
        _hang()
        return super().open_reader(address, index)


class DiesAtStart(Shm):
    """Kills the process that opens its writer."""

    name = "DiesAtStart"

    def open_writer(self, address: Address) -> Writer:
        raise SystemExit("no licence for this transport")
