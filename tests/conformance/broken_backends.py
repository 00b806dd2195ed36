"""Backends that break the suite's own machinery if it is not careful: for tests of the suite."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from ipcbench.backend import Address, Reader
from ipcbench.backends.null import Null
from ipcbench.backends.shm.backend import Shm
from ipcbench.backends.stream.backend import Pipe
from ipcbench.errors import BackendUnavailable
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper


class StuckReader(ReaderWrapper):
    def read(self, timeout_s: float | None = None) -> memoryview:
        self.hang_here()
        return self.inner.read(timeout_s)

    def hang_here(self) -> None:
        threading.Event().wait()


class Around(BackendWrapper):
    inner = Shm
    name = "broken"
    summary = "a broken backend"
    capabilities = Shm.capabilities


class Hangs(Around):
    """Reading never returns, whatever its time-out; endpoints are processes."""

    reader_class = StuckReader


class HangsInline(Hangs):
    """As Hangs, but endpoints are threads."""

    inner = Null
    capabilities = Null.capabilities


class Crashes(Around):
    """The process of reader 0 ends when it opens."""

    def open_reader(self, address: Address, index: int) -> Reader:
        os.write(2, b"about to crash\n")
        os._exit(7)


class Absent(Around):
    """Cannot run here."""

    @classmethod
    def probe(cls) -> None:
        raise BackendUnavailable("broken", "its library is missing", "pip install library")


class StreamsOnly(Around):
    """Offers one delivery."""

    inner = Null
    capabilities = replace(Null.capabilities, deliveries=frozenset({"every_message"}))


class OpensAtImport(Around):
    """Cannot be found by its name, since it is taken away below."""


Unfindable = OpensAtImport
del OpensAtImport


class Queueing(Pipe):
    """Says that it offers latest_value, and queues."""

    name = "queueing"

    def create(self, spec):
        return super().create(replace(spec, delivery="every_message", depth=65_536))
