"""Backends that break in the middle of a replay: shared memory with something wrong on top.

Workers load them as `broken_replay:Name`; the tests put this folder on PYTHONPATH.
"""

from __future__ import annotations

import os
import select
import signal

from ipcbench.backend import Address, Reader
from ipcbench.backends.shm.backend import Shm

AT = 15
"""Which read brings the trouble."""


class _Reader(Reader):
    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self._count = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self._inner.read(timeout_s)
        self._count += 1
        return self.trouble(view) if self._count == AT else view

    def trouble(self, view: memoryview) -> memoryview:
        return view

    def close(self) -> None:
        self._inner.close()


class _Killed(_Reader):
    def trouble(self, view: memoryview) -> memoryview:
        os.kill(os.getpid(), signal.SIGKILL)
        return view


class _Silent(_Reader):
    def trouble(self, view: memoryview) -> memoryview:
        while True:
            select.select([], [], [], 3600)


class _Mixing(_Reader):
    def trouble(self, view: memoryview) -> memoryview:
        return memoryview(bytes(len(view) + 1))


class Killed(Shm):
    """Every reader kills its process."""

    reader: type[_Reader] = _Killed

    def open_reader(self, address: Address, index: int) -> Reader:
        return self.reader(super().open_reader(address, index))


class Silent(Killed):
    """Every reader hangs."""

    reader = _Silent


class Mixing(Killed):
    """Every reader returns another message."""

    reader = _Mixing
