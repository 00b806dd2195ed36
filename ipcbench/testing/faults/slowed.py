"""Backends slower than another one by a known share: `ipcbench.testing.faults.slowed:shm_10` is shm, 10 % slower.

Each message of the measured window is held back until the time that it took, counted from its intended send time or,
if that is later, from the end of the hold before, has been multiplied by 1.5 · (1 + share). While saturated, the writer
holds back, too, since the slower side sets the pace. A round trip is held back where it ends, and not half-way: the
second hold would multiply the first. One-way latencies, round trips and the time per saturated message grow by that
share. A round trip far slower than the fastest is held back as one of 1.5 times the fastest: the peer polls in vain
during the hold, and one longer than a peer polls would put it to sleep, which makes the next trip slower, and its hold
longer, for good. `shm_0` and `shm_0_again` are both shm in the same wrapper: whatever differs between them is noise.

The factor of 1.5 is common to all, because waiting has effects of its own: a core that stays busy for a few µs longer
sleeps less deeply, so the next message wakes it sooner. Without it, a slow-down of 5 % slowed nothing down.
"""

from __future__ import annotations

import re
import sys
from typing import ClassVar

from ipcbench.backend import Backend, Message
from ipcbench.registry import get_backend
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper, WriterWrapper
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import STAMP_EVERY, Phase, unpack_stamp, unpack_word

_NAME = re.compile(r"(?P<backend>[a-z0-9_]+?)_(?P<percent>\d+)(?P<again>_again)?")

_BALLAST = 1.5
_MOST_NS = 500_000
"""Longest hold: a message that is late by ms would make the next one later still, without end."""
_MOST_TRIPS = 1.5
"""Longest round trip that is held back by its whole share, in times of the fastest one."""


def slowed_name(backend: str, percent: int, *, again: bool = False) -> str:
    """Return the name under which a run finds that slowed backend, or with `again` its second name."""
    return f"{__name__}:{backend.replace('-', '__')}_{percent}{'_again' if again else ''}"


def slowdown_percent(name: str) -> int:
    """Return the slow-down in percent that a name made by `slowed_name` stands for."""
    match = _NAME.fullmatch(name.rpartition(":")[2])
    if match is None:
        raise ValueError(f"{name!r} is not a name that slowed_name made")
    return int(match["percent"])


class _Slowed:
    """What slowed endpoints have in common."""

    factor: ClassVar[float] = 1.0
    """How many times as long a message should take."""
    _until_ns: ClassVar[int] = 0
    """When the last hold ended, of all these endpoints in the process: one that sends to several waits for them in
    turn."""

    def _hold(self, took_ns: int) -> None:
        """Wait until what has taken so long has taken `factor` times as long."""
        until_ns = now_ns() + min(_MOST_NS, int((self.factor - 1.0) * took_ns))
        type(self)._until_ns = until_ns
        while now_ns() < until_ns:
            continue


class _SlowedReader(_Slowed, ReaderWrapper):
    """Holds each message of the window back."""

    _least_trip_ns = sys.maxsize

    def read(self, timeout_s: float | None = None) -> memoryview:
        view = self.inner.read(timeout_s)
        now = now_ns()
        _, intended, sent, flags = unpack_stamp(view)
        saturated = unpack_word(view, 8 * STAMP_EVERY)[0]
        half_way = intended == sent and not saturated and not self._is_of_replies
        if flags == Phase.MEASURE and not half_way:
            took_ns = now - max(intended, self._until_ns)
            if self._is_of_replies:
                self._least_trip_ns = min(took_ns, self._least_trip_ns)
                took_ns = min(took_ns, int(_MOST_TRIPS * self._least_trip_ns))
            self._hold(took_ns)
        return view

    @property
    def _is_of_replies(self) -> bool:
        return self.address.channel.processes[1:] == (0,)  # the process that sent the message reads them


class _SlowedWriter(_Slowed, WriterWrapper):
    """Holds back after each message of a saturated window."""

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        start = now_ns()
        self.inner.write(message, timeout_s)
        if unpack_word(message, 8 * STAMP_EVERY)[0] and unpack_stamp(message)[3] == Phase.MEASURE:
            begun = self._until_ns if start - self._until_ns < _MOST_NS else start
            self._hold(now_ns() - begun)


def slowed(backend: str, percent: int) -> type[Backend]:
    """Return that backend, slower by `percent`."""
    inner_class = get_backend(backend)
    slower = {"factor": _BALLAST * (1.0 + percent / 100)}

    class Slowed(BackendWrapper):
        """Opens slowed endpoints."""

        inner = inner_class
        reader_class = type("SlowedReader", (_SlowedReader,), slower)
        writer_class = type("SlowedWriter", (_SlowedWriter,), slower)
        name = slowed_name(backend, percent)
        summary = f"{backend}, {percent} % slower"
        capabilities = inner_class.capabilities

    return Slowed


def __getattr__(name: str) -> type[Backend]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return slowed(match["backend"].replace("__", "-"), int(match["percent"]))
