"""What measuring costs by itself: the same loops over a transport that does nothing, the clock, and the memory's own
speed.

What does not live here: subtracting any of it from a result. A floor is shown beside the figures, never taken off them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from ipcbench.clock import now_ns
from ipcbench.harness.loops import read_every, set_phase, write_flat_out
from ipcbench.message import FLAGS, SEQUENCE, Outgoing, Phase, body_matches
from ipcbench.result import Floor

_MESSAGES = 20_000
_REPEATS = 5
_CLOCK_READINGS = 20_000
_COPY_NS = 10_000_000
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
    read_every(nowhere.read, len(messages[0].buffer), 0, 1.0, body_matches, first, second, 0)
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


def measure_floor(sizes: Iterable[int] = ()) -> Floor:
    """Measure the floor in this process, in about 0.1 s.

    Args:
        sizes: payload sizes in bytes for which to measure the memory's copying speed.
    """
    loops = [_loops_ns() for _ in range(_REPEATS)]
    clock_ns, resolution_ns = _clock_ns()
    return Floor(
        writer_ns=median(one[0] for one in loops),
        reader_ns=median(one[1] for one in loops),
        clock_ns=clock_ns,
        clock_resolution_ns=resolution_ns,
        memcpy_bytes_per_s={str(size): _copy_bytes_per_s(size) for size in sizes if size},
    )
