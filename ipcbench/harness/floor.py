"""The harness floor: what measuring costs by itself, over a transport that does nothing; and the speed of the clock, of
memory copies and of wake-ups.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median

from ipcbench.harness.loops import RUN, read_every, read_in_runs, set_phase, write_in_runs, write_paced
from ipcbench.results.model import Floor
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import SEQUENCE, TRAILER_BYTES, Outgoing, Phase, body_matches

_MESSAGES = 5_000
_FEW_MESSAGES = 50 * RUN
_REPEATS = 5
_CLOCK_READINGS = 20_000
_COPY_NS = 10_000_000
_COLD_POOL_BYTES = 2**26
"""More than the caches hold: after this much copying, a buffer is in none of them."""
_WAKEUPS = 300
_ECHO_S = 2.0
"""How long they may take; a process that is stopped would take for ever."""
_ECHO = "import os\nwhile byte := os.read(0, 1): os.write(1, byte)"
_FOREVER_NS = 2**62


class _NoTransport:
    """Both endpoints of no transport: `write` drops the message, `read` returns the same message with a new number."""

    def __init__(self) -> None:
        self._message = Outgoing(bytes(64))
        set_phase([self._message], Phase.MEASURE)
        self._view = memoryview(self._message.buffer)
        self._sequence = 0

    def write(self, message: bytearray, timeout_s: float) -> None:
        pass

    def read(self, timeout_s: float) -> memoryview:
        """Return the next message."""
        self._sequence += 1
        self._message.head[SEQUENCE] = self._message.tail[0] = self._sequence
        return self._view


def loop_ns(*, writes: bool, in_runs: bool, count: int = _MESSAGES) -> float:
    """Return what a loop of the harness costs per message, in ns, over a transport that does nothing; measured once.

    Args:
        writes: the writer's loop, or a reader's.
        in_runs: that of a saturated window of short messages, where one message in `RUN` is stamped; else of a window
            with a stamp on each message.
        count: messages; a multiple of `RUN` is used if `in_runs`.
    """
    messages, transport, runs = [Outgoing(bytes(64)), Outgoing(bytes(64))], _NoTransport(), count // RUN
    size = len(messages[0].buffer)
    first, second, third = (array("q", bytes(8 * count)) for _ in range(3))
    reading = transport.read, size, size - TRAILER_BYTES, 0, 1.0, body_matches, second, third, 0
    start = now_ns()
    if writes and in_runs:
        write_in_runs(transport.write, messages, 0, _FOREVER_NS, 1.0, second[:runs], third[:runs])
    elif writes:
        write_paced(transport.write, messages, 0, 0, 0.0, 0, count, 1.0, first, second, third)
    elif in_runs:
        read_in_runs(*reading, runs)
    else:
        read_every(*reading, count)
    return (now_ns() - start) / (RUN * runs if in_runs else count)


def own_loop_ns(*, writes: bool, in_runs: bool) -> float:
    """Return `loop_ns` here and now, measured in about 3 ms: the least of several, since others may be at work."""
    return min(loop_ns(writes=writes, in_runs=in_runs, count=_FEW_MESSAGES) for _ in range(_REPEATS))


def _clock_ns() -> tuple[float, float]:
    """Return the cost of one clock reading and the least step seen between two, in ns."""
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
    """Return the bandwidth of copying `size` bytes on one core, from and to memory that is in no cache."""
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
    """Return half the median round trip of a byte to a process that sleeps in a pipe's read; None if it fails."""
    command = [sys.executable, "-S", "-E", "-c", _ECHO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        late = threading.Timer(_ECHO_S, echo.kill)
        late.start()
        try:
            times = list(_echo_ns(echo))
        except OSError:  # it was killed
            return None
        finally:
            late.cancel()
            echo.kill()  # it may be stopped, and nobody else would end it
        return median(times[_WAKEUPS // 10 :]) / 2 if len(times) == _WAKEUPS else None


def _echo_ns(echo: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the time of each round trip, `_WAKEUPS` unless the process ends."""
    if echo.stdin is None or echo.stdout is None:
        return
    for _ in range(_WAKEUPS):
        start = now_ns()
        echo.stdin.write(b"x")
        if not echo.stdout.read(1):
            return
        yield now_ns() - start


def measure_floor(sizes: Iterable[int] = ()) -> Floor:
    """Measure the floor in about 0.2 s, in this process and one that echoes bytes.

    Args:
        sizes: payload sizes in bytes for which to measure the bandwidth of memory copies.
    """
    loops_ns = {
        (writes, in_runs): median(loop_ns(writes=writes, in_runs=in_runs) for _ in range(_REPEATS))
        for writes in (True, False)
        for in_runs in (True, False)
    }
    clock_ns, resolution_ns = _clock_ns()
    nonzero = sorted(set(sizes) - {0})
    pool = memoryview(bytearray(b"\1") * max(_COLD_POOL_BYTES, 2 * max(nonzero, default=0)))
    return Floor(
        writer_ns=loops_ns[True, False],
        reader_ns=loops_ns[False, False],
        clock_ns=clock_ns,
        clock_resolution_ns=resolution_ns,
        memcpy_bytes_per_s={str(size): _copy_bytes_per_s(size) for size in nonzero},
        memcpy_cold_bytes_per_s={str(size): _cold_copy_bytes_per_s(size, pool) for size in nonzero},
        wakeup_ns=_wakeup_ns(),
        saturated_writer_ns=loops_ns[True, True],
        saturated_reader_ns=loops_ns[False, True],
    )
