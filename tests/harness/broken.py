"""Backends that break in one way each, in the middle of a trial: shared memory with something wrong on top.

Workers import them as `broken:Name`; the tests put this folder on `sys.path`, which workers inherit.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from ipcbench.backend import Address, Backend, Message, Reader, Writer
from ipcbench.backends.shm.backend import Shm
from ipcbench.harness import loops, pingpong, reading
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper, WriterWrapper
from ipcbench.workload.message import FLAGS, HEADER_BYTES, Phase, unpack_stamp, unpack_word

AT = 20
"""Number of the window's message that goes wrong."""


def _in_window(message: Message) -> bool:
    return unpack_word(message, 8 * FLAGS)[0] == Phase.MEASURE


class _Writer(WriterWrapper):
    """Passes everything on, but writes `trouble` of the window's message number `AT` in its place."""

    trouble: Callable[[Message], list[Message]]
    _seen = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._seen += _in_window(message)
        for part in self.trouble(message) if self._seen == AT and _in_window(message) else [message]:
            self.inner.write(part, timeout_s)


class _Reader(ReaderWrapper):
    """Passes everything on, but returns `trouble` of the window's message number `AT` in its place."""

    trouble: Callable[[memoryview], memoryview]
    _seen = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        self._seen += _in_window(view)
        return self.trouble(view) if self._seen == AT and _in_window(view) else view


class _BitFlippingReader(ReaderWrapper):
    """Flips a bit of every body: only hashing can see it."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        return _flipped(self.inner.read(timeout_s), HEADER_BYTES)


class _SwappingWriter(_Writer):
    """Sends message `AT` after the one behind it."""

    _held: Message = b""

    def trouble(self, message: Message) -> list[Message]:
        self._held = bytes(message)
        return []

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        super().write(message, timeout_s)
        if self._held and unpack_stamp(message)[0] > unpack_stamp(self._held)[0]:
            self.inner.write(self._held, timeout_s)
            self._held = b""


class _LateStallingWriter(WriterWrapper):
    """Stalls for longer than the rest of a window of 150 messages at 1,000/s takes, ten messages before its end."""

    _seen = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._seen += _in_window(message)
        if self._seen == 140 and _in_window(message):
            select.select([], [], [], 0.2)
        self.inner.write(message, timeout_s)


class _SlowWriter(WriterWrapper):
    """Takes 3 ms for each message."""

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        select.select([], [], [], 0.003)
        self.inner.write(message, timeout_s)


def _hang(view: memoryview) -> NoReturn:
    while True:
        select.select([], [], [], 3600)


def _raise(view: memoryview) -> NoReturn:
    raise ValueError("a bug in the backend")


def _die(message: Message) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_the_parent(message: Message) -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()


def _stall(view: memoryview) -> memoryview:
    select.select([], [], [], 0.2)
    return view


def _flipped(view: memoryview, place: int = -1) -> memoryview:
    changed = bytearray(view)
    changed[place] ^= 1
    return memoryview(changed)


def _broken(name: str, inner: type[Backend] = Shm, **endpoints: type) -> type[BackendWrapper]:
    facts = {"name": name, "summary": "broken", "inner": inner, "capabilities": inner.capabilities}
    return type(name, (BackendWrapper,), {**facts, **endpoints})


def reads(name: str, trouble: Callable[[memoryview], memoryview], inner: type[Backend] = Shm) -> type[BackendWrapper]:
    return _broken(name, inner, reader_class=type(name, (_Reader,), {"trouble": staticmethod(trouble)}))


def writes(name: str, trouble: Callable[[Message], list[Message]], inner: type[Backend] = Shm) -> type[BackendWrapper]:
    return _broken(name, inner, writer_class=type(name, (_Writer,), {"trouble": staticmethod(trouble)}))


HangingReader = reads("HangingReader", _hang)
RaisingReader = reads("RaisingReader", _raise)
KilledReader = reads("KilledReader", _die)
StallingReader = reads("StallingReader", _stall)
TearingReader = reads("TearingReader", _flipped)
BitFlippingReader = _broken("BitFlippingReader", reader_class=_BitFlippingReader)
KilledWriter = writes("KilledWriter", _die)
KilledParent = writes("KilledParent", _kill_the_parent)
LosingWriter = writes("LosingWriter", lambda message: [])
DuplicatingWriter = writes("DuplicatingWriter", lambda message: [message, message])
LateStallingWriter = _broken("LateStallingWriter", writer_class=_LateStallingWriter)
SlowWriter = _broken("SlowWriter", writer_class=_SlowWriter)
SwappingWriter = _broken("SwappingWriter", writer_class=_SwappingWriter)


def _clock_set_by(name: str, step_ns: int) -> type[BackendWrapper]:
    """Return a backend that sets the clock of the readers' processes by `step_ns` in the middle of the window."""
    steps: list[int] = []
    writing: list[Address] = []

    def set_clock(view: memoryview) -> memoryview:
        steps.append(step_ns)
        return view

    class Broken(reads(name, set_clock)):
        def open_writer(self, address: Address) -> Writer:
            writing.append(address)
            return super().open_writer(address)

        def open_reader(self, address: Address, index: int) -> Reader:
            if not writing:  # the writer's process reads too, replies
                for module in (loops, reading, pingpong):
                    module.now_ns = lambda: time.monotonic_ns() + sum(steps)
            return super().open_reader(address, index)

    return Broken


ClockSetBack = _clock_set_by("ClockSetBack", -500_000)
ClockSetAhead = _clock_set_by("ClockSetAhead", 500_000)


class HangsOnOpen(Shm):
    """Its reader never opens."""

    name = "HangsOnOpen"

    def open_reader(self, address: Address, index: int) -> Reader:
        _hang(memoryview(b""))


class DiesAtStart(Shm):
    """Ends the process that opens its writer."""

    name = "DiesAtStart"

    def open_writer(self, address: Address) -> NoReturn:
        raise SystemExit("no licence for this transport")
