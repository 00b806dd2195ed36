"""Backends that stall: `ipcbench.testing.faults.stalled:shm_writer_50_400` is shm, whose writer sleeps for 50 ms before
every 400th message; with `reader`, each reader does so after it.

An open loop at one message per ms sees each stall of S ms in S messages, late by S ms down to 0; `tail_ns` is what
follows for its quantiles.
"""

from __future__ import annotations

import re
from select import select

from ipcbench.backend import Backend, Message
from ipcbench.registry import get_backend
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper, WriterWrapper

_NAME = re.compile(r"(?P<backend>[a-z0-9_]+?)_(?P<side>writer|reader)_(?P<stall_ms>\d+)_(?P<every>\d+)")


def stalled_name(backend: str, side: str, stall_ms: int, every: int) -> str:
    """Return the name under which a run finds that backend; `side` is `writer` or `reader`."""
    return f"{__name__}:{backend.replace('-', '__')}_{side}_{stall_ms}_{every}"


def tail_ns(probability: float, stall_ms: int, every: int, interval_ms: float = 1.0) -> float:
    """Return the quantile of the latencies that the stalls cause, if nothing else takes time."""
    share = stall_ms / (every * interval_ms)
    return max(0.0, 1e6 * stall_ms * (1.0 - (1.0 - probability) / share))


def stalled(backend: str, side: str, stall_ms: int, every: int) -> type[Backend]:
    """Return that backend with stalls."""

    class StalledWriter(WriterWrapper):
        """Sleeps before every so-many-th message."""

        _count = 0

        def write(self, message: Message, timeout_s: float | None = None) -> None:
            self._count += 1
            if not self._count % every:
                select((), (), (), stall_ms / 1e3)
            self.inner.write(message, timeout_s)

    class StalledReader(ReaderWrapper):
        """Sleeps after every so-many-th message."""

        _count = 0

        def read(self, timeout_s: float | None = None) -> memoryview:
            view = self.inner.read(timeout_s)
            self._count += 1
            if not self._count % every:
                select((), (), (), stall_ms / 1e3)
            return view

    inner_class = get_backend(backend)

    class Stalled(BackendWrapper):
        """Opens one side that stalls."""

        inner = inner_class
        name = stalled_name(backend, side, stall_ms, every)
        summary = f"{backend}, whose {side} stalls for {stall_ms} ms at every {every}th message"
        capabilities = inner_class.capabilities

    if side == "writer":
        Stalled.writer_class = StalledWriter
    else:
        Stalled.reader_class = StalledReader
    return Stalled


def __getattr__(name: str) -> type[Backend]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return stalled(match["backend"].replace("__", "-"), match["side"], int(match["stall_ms"]), int(match["every"]))
