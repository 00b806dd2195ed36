"""What an endpoint consumes while it is timed: CPU time, waits for a core, switches, page faults, collections; and a
process's memory.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ipcbench.backend import Endpoint, Waits
from ipcbench.results.model import Usage
from ipcbench.spec import WaitStrategy
from ipcbench.util.clock import run_queue_wait_ns

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
_Waits = Waits | WaitStrategy | None
_COUNTERS = ("ru_utime", "ru_stime", "ru_nvcsw", "ru_nivcsw", "ru_minflt", "ru_majflt")


class UsageMeter:
    """Reads the counters of the process, or of the calling thread if several endpoints share the process.

    A process with a single endpoint is counted as a whole, including a transport's own threads; waiting for a core is
    always that of the calling thread, whose loop is timed.

    Args:
        endpoints: those whose waits are counted.
    """

    __slots__ = ("_before", "_counts", "_endpoints", "_running", "_waited_s", "_waits", "_who")

    def __init__(self, endpoints: Sequence[Endpoint] = ()) -> None:
        self._endpoints = endpoints
        shared = threading.current_thread() is not threading.main_thread()
        self._who = resource.RUSAGE_THREAD if shared and sys.platform.startswith("linux") else resource.RUSAGE_SELF
        self._counts = [0.0] * (len(_COUNTERS) + 1)
        self._waited_s: float | None = 0.0
        self._before: list[_Waits] = []
        self._waits: list[_Waits] = []
        self._running = False

    def start(self) -> None:
        """Begin to count; nothing happens if it counts already."""
        if not self._running:
            self._running = True
            self._before = [endpoint.waits for endpoint in self._endpoints]
            self._add(-1)

    def stop(self) -> None:
        """Count no more until the next `start`; nothing happens if it does not count."""
        if self._running:
            self._add(1)
            self._waits += map(_since, self._before, [endpoint.waits for endpoint in self._endpoints])
            self._running = False

    def _add(self, sign: int) -> None:
        """Add the counters, or take them off; the CPU time is read next to what is timed."""
        used = resource.getrusage(self._who) if sign > 0 else None
        waited_ns, collections = run_queue_wait_ns(), _collections_count()
        used = used or resource.getrusage(self._who)
        for place, count in enumerate((*(getattr(used, name) for name in _COUNTERS), collections)):
            self._counts[place] += sign * count
        if waited_ns is None or self._waited_s is None:
            self._waited_s = None
        else:
            self._waited_s += sign * waited_ns / 1e9

    def total(self) -> tuple[Usage, int]:
        """Return what was used between all pairs of `start` and `stop`, and the number of garbage collections."""
        user_s, system_s, *counts, collections = self._counts
        voluntary, involuntary, minor, major = map(round, counts)
        usage = Usage(
            user_cpu_s=user_s,
            system_cpu_s=system_s,
            voluntary_switches_count=voluntary,
            involuntary_switches_count=involuntary,
            minor_faults_count=minor,
            major_faults_count=major,
            max_rss_bytes=resource.getrusage(self._who).ru_maxrss * _RSS_UNIT_BYTES,
            run_queue_wait_s=self._waited_s,
            waits=_together(self._waits),
        )
        return usage, round(collections)


def peak_rss_bytes() -> int:
    """Return the most that was resident of this process since it started its program."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # That of a parent, where it was larger.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES


def _since(before: _Waits, now: _Waits) -> _Waits:
    return now - before if isinstance(now, Waits) and isinstance(before, Waits) else now


def _together(parts: Sequence[_Waits]) -> _Waits:
    """Return the waits of several endpoints or spans of time; the way if all have the same; None if one is unknown."""
    counts = [part for part in parts if isinstance(part, Waits)]
    if counts:
        return sum(counts[1:], counts[0]) if len(counts) == len(parts) else None
    ways = set(parts)
    return ways.pop() if len(ways) == 1 else None


def _collections_count() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
