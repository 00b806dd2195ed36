"""Backends that are another one, slower by a known share: `ipcbench.testing.faults.slowed:shm_10` takes 10 % longer.

A read of such a backend returns a message of the measured window when it is older than it was by half, and then by that
share: its one-way latency, counted from the intended send time that it carries, is multiplied, message by message, by
1.5 · (1 + share). `shm_0` and `shm_0_again` are both shm, in the same wrapper: what differs between them is noise.

The half is the same for all, because waiting is not free of effects: a core that is busy a few µs longer sleeps less
deeply, and the next message wakes it sooner. Without it, a slow-down of 5 % was found to slow nothing down.
"""

from __future__ import annotations

import re

from ipcbench.backend import Backend
from ipcbench.registry import get_backend
from ipcbench.testing.faults.wrapping import BackendAround, ReaderAround
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import Phase, unpack_stamp

_NAME = re.compile(r"(?P<backend>[a-z0-9_]+?)_(?P<percent>\d+)(?P<again>_again)?")

_BALLAST = 1.5
_MOST_NS = 200_000
"""No message is held back for longer: one that is late by ms would make the next one later still, without end."""


def slowed_name(backend: str, percent: int, *, again: bool = False) -> str:
    """Return the name by which a run finds that backend, or with `again` its other name."""
    return f"{__name__}:{backend.replace('-', '__')}_{percent}{'_again' if again else ''}"


def slowdown_percent(name: str) -> int:
    """Return by how much the backend of a name that `slowed_name` made is slower."""
    match = _NAME.fullmatch(name.rpartition(":")[2])
    if match is None:
        raise ValueError(f"{name!r} is not the name of a slowed backend")
    return int(match["percent"])


def slowed(backend: str, percent: int) -> type[Backend]:
    """Return the backend of that name, with a one-way latency that is higher by `percent`."""
    share = percent / 100

    class SlowedReader(ReaderAround):
        """Holds each message back for its share."""

        def read(self, timeout_s: float | None = None) -> memoryview:
            view = self.inner.read(timeout_s)
            now = now_ns()
            _, intended, _, flags = unpack_stamp(view)
            if flags == Phase.MEASURE:
                until = now + min(_MOST_NS, int((_BALLAST * (1.0 + share) - 1.0) * (now - intended)))
                while now_ns() < until:
                    continue
            return view

    inner_class = get_backend(backend)

    class Slowed(BackendAround):
        """Around the backend itself."""

        inner = inner_class
        reader_class = SlowedReader
        name = slowed_name(backend, percent)
        summary = f"{backend}, {percent} % slower"
        capabilities = inner_class.capabilities

    return Slowed


def __getattr__(name: str) -> type[Backend]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return slowed(match["backend"].replace("__", "-"), int(match["percent"]))
