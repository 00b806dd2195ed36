"""What measuring costs by itself: the same loops over a transport that does nothing, the clock, and the memory's own
speed.
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from ipcbench.harness.loops import read_every, set_phase, write_flat_out
from ipcbench.results.model import Floor
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import FLAGS, SEQUENCE, TRAILER_BYTES, Outgoing, Phase, body_matches

_MESSAGES = 20_000
_REPEATS = 5
_CLOCK_READINGS = 20_000
_COPY_NS = 10_000_000
_COLD_POOL_BYTES = 2**26
"""More than the caches hold: a buffer that comes round again after so much copying has left them."""
_WAKEUPS = 300
_ECHO = "import os\nwhile byte := os.read(0, 1): os.write(1, byte)"
_FOREVER_NS = 2**62


class _Nowhere:
    """The endpoints of a transport that does nothing: `write` drops, `read` returns the same message, renumbered."""

    def __init__(self) -> None:
        self._message = Outgoing(bytes(64))
        set_phase([self._message], Phase.MEASURE)
        self._view = memoryview(self._message.buffer)
        self._sequence = 0

    def write(self, message: bytearray, timeout_s: float) -> None:
        pass

    def read(self, timeout_s: float) -> memoryview:
        """Return the next message; after `_MESSAGES` of them, the end mark."""
        self._sequence += 1
        self._message.head[SEQUENCE] = self._message.tail[0] = self._sequence
        if self._sequence > _MESSAGES:
            self._message.head[FLAGS] = Phase.END
        return self._view


def _loops_ns() -> tuple[float, float]:
    """Return the cost per message of the writer's and of the reader's loop, ns, once."""
    nowhere, messages = _Nowhere(), [Outgoing(bytes(64)), Outgoing(bytes(64))]
    first, second = array("q", bytes(8 * _MESSAGES)), array("q", bytes(8 * _MESSAGES))
    start = now_ns()
    write_flat_out(nowhere.write, messages, 0, _FOREVER_NS, 1.0, first, second)
    middle = now_ns()
    size = len(messages[0].buffer)
    read_every(nowhere.read, size, size - TRAILER_BYTES, 0, 1.0, body_matches, first, second, 0, len(first))
    return (middle - start) / _MESSAGES, (now_ns() - middle) / _MESSAGES


def _clock_ns() -> tuple[float, float]:
    """Return what one reading of the clock costs and the least step it was seen to make, ns."""
    readings = [now_ns() for _ in range(_CLOCK_READINGS)]
    steps = [after - before for before, after in pairwise(readings) if after > before]
    return (readings[-1] - readings[0]) / (len(readings) - 1), float(min(steps))


def _copy_bytes_per_s(size: int) -> float:
    """Return the bandwidth of copying `size` bytes between two buffers on one core, caches warm."""
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))
    target[:] = source
    times: list[int] = []
    end = now_ns() + _COPY_NS
    while not times or now_ns() < end:
        start = now_ns()
        target[:] = source
        times.append(now_ns() - start)
    return size / (median(times) / 1e9)


def _cold_copy_bytes_per_s(size: int, pool: memoryview) -> float:
    """Return the bandwidth of copying `size` bytes to and from memory that no cache holds any more."""
    count = max(1, len(pool) // (2 * size))
    half = len(pool) // 2
    times: list[int] = []
    end = now_ns() + _COPY_NS
    index = 0
    while not times or now_ns() < end:
        at = index % count * size
        index += 1
        start = now_ns()
        pool[half + at : half + at + size] = pool[at : at + size]
        times.append(now_ns() - start)
    return size / (median(times) / 1e9)


def _wakeup_ns() -> float | None:
    """Return half the median round trip of a byte to a process that sleeps on a pipe, and back; None if it fails."""
    command = [sys.executable, "-S", "-E", "-c", _ECHO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        if echo.stdin is None or echo.stdout is None:
            return None
        times: list[int] = []
        for _ in range(_WAKEUPS):
            start = now_ns()
            echo.stdin.write(b"x")
            if not echo.stdout.read(1):
                return None
            times.append(now_ns() - start)
        echo.stdin.close()
        return median(times[_WAKEUPS // 10 :]) / 2


def measure_floor(sizes: Iterable[int] = ()) -> Floor:
    """Measure the floor in this process and one that echoes bytes, in about 0.3 s.

    Args:
        sizes: payload sizes in bytes for which to measure the memory's copying speed.
    """
    loops = [_loops_ns() for _ in range(_REPEATS)]
    clock_ns, resolution_ns = _clock_ns()
    known = sorted(size for size in set(sizes) if size)
    pool = memoryview(bytearray(b"\1") * max(_COLD_POOL_BYTES, 2 * max(known, default=0)))
    return Floor(
        writer_ns=median(one[0] for one in loops),
        reader_ns=median(one[1] for one in loops),
        clock_ns=clock_ns,
        clock_resolution_ns=resolution_ns,
        memcpy_bytes_per_s={str(size): _copy_bytes_per_s(size) for size in known},
        memcpy_cold_bytes_per_s={str(size): _cold_copy_bytes_per_s(size, pool) for size in known},
        wakeup_ns=_wakeup_ns(),
    )
