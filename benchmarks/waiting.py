"""What `auto` costs beside busy neighbours: an echo with each way of waiting, in turns, beside busy processes.

    python benchmarks/waiting.py [--backends shm] [--neighbours 0 1 2] [--rounds 9] [--seconds 0.5] [--bytes 1024]

Each round opens a fresh pair of processes per way of waiting, since processes differ, and measures each pair once while
the others sleep, in an order that changes. A ratio is the geometric mean over the rounds, with its 95 % interval by
Student's t.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import random
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import get_args

from ipcbench.backend import Address, Waits
from ipcbench.processes.neighbours import busy_neighbours
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.stats.student import student_975
from ipcbench.util.clock import now_ns

_MORE, _LAST = b"\0", b"\1"
_STALL_S = 30.0
_WARMUP_SHARE = 0.2
FIGURES = ("p50", "mean", "p99", "CPU")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one turn of a pair gave."""

    figures_us: dict[str, float]
    """By name, µs per round trip."""
    waits: Waits
    """Of the process that sends first."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def echo(there: Address, back: Address, control: Connection) -> None:
    """Send every message back, turn by turn; answer each turn with the CPU time that its window took."""
    backend = get_backend(there.backend)()
    with backend.open_reader(there, 0) as reader, backend.open_writer(back) as writer:
        control.send(None)
        while control.recv():
            for _ in range(2):  # warm-up, window
                cpu_s = _cpu_s()
                while True:
                    view = reader.read(_STALL_S)
                    last = view[:1] == _LAST
                    writer.write(view, _STALL_S)
                    if last:
                        break
            control.send(_cpu_s() - cpu_s)


def ping(there: Address, back: Address, size: int, control: Connection) -> None:
    """Make round trips, turn by turn, for as long as is asked; answer with their times, the CPU time and the waits."""
    backend = get_backend(there.backend)()
    more, last = _MORE * size, _LAST * size
    with backend.open_writer(there) as writer, backend.open_reader(back, 0) as reader:
        control.send(None)
        gc.disable()
        while seconds := control.recv():
            for span_s in (_WARMUP_SHARE * seconds, seconds):
                times, cpu_s, before = [], _cpu_s(), _counted(reader.waits)
                start = now_ns()
                stop = start + int(span_s * 1e9)
                while start < stop:
                    writer.write(more, _STALL_S)
                    reader.read(_STALL_S)
                    end = now_ns()
                    times.append(end - start)
                    start = end
                writer.write(last, _STALL_S)
                reader.read(_STALL_S)
            control.send((times, _cpu_s() - cpu_s, _counted(reader.waits) - before))


def _counted(waits: Waits | WaitStrategy | None) -> Waits:
    return waits if isinstance(waits, Waits) else Waits(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two processes of one way of waiting."""

    ping: Connection
    echo: Connection

    def measure(self, seconds: float) -> Measured:
        """Have a turn; raises EOFError if a process died."""
        self.echo.send(1)
        self.ping.send(seconds)
        times, ping_s, waits = self.ping.recv()
        cpu_s = ping_s + self.echo.recv()
        times.sort()
        figures_ns = (times[len(times) // 2], statistics.fmean(times), times[len(times) * 99 // 100])
        return Measured(
            dict(zip(FIGURES, (*(ns / 1e3 for ns in figures_ns), 1e6 * cpu_s / len(times)), strict=True)), waits
        )


@contextmanager
def pair(backend_name: str, wait: WaitStrategy, size: int) -> Iterator[Pair]:
    """Open two channels, and a process at each end of both, for the length of a `with` block."""
    backend, context = get_backend(backend_name)(), multiprocessing.get_context("spawn")
    names = [f"ipcb-waiting-{os.getpid()}-{backend_name}-{wait}-{way}" for way in ("there", "back")]
    with ExitStack() as stack:
        addresses = []
        for name in names:
            addresses.append(backend.create(ChannelSpec(name, max_message_bytes=size, depth=16, wait=wait)))
            stack.callback(backend.destroy, addresses[-1])
        controls = []
        for role, more in ((ping, (size,)), (echo, ())):
            ours, theirs = context.Pipe()
            process = context.Process(target=role, args=(*addresses, *more, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            controls.append(ours)
        for control in controls:
            control.recv()
        yield Pair(*controls)


def ratio_words(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return `1.02 [0.97–1.08]`."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    half = student_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(statistics.fmean(logs) + shift) for shift in (-half, 0.0, half))
    return f"{middle:.2f} [{low:.2f}–{high:.2f}]"


def compare(backend: str, ways: Sequence[WaitStrategy], neighbours: int, options: argparse.Namespace) -> None:
    """Measure all ways of waiting beside so many neighbours and print the figures and the ratios."""
    measured: dict[WaitStrategy, list[Measured]] = {way: [] for way in ways}
    order = random.Random(neighbours)
    for _ in range(options.rounds):
        with ExitStack() as stack:
            mixed = order.sample(ways, len(ways))
            pairs = {way: stack.enter_context(pair(backend, way, options.bytes)) for way in mixed}
            stack.enter_context(busy_neighbours(neighbours))
            for way in order.sample(ways, len(ways)):
                measured[way].append(pairs[way].measure(options.seconds))
    print(f"\n### {backend}, {options.bytes} B, {neighbours} busy neighbours, {options.rounds} rounds, ", end="")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| median of the rounds, µs |", *(f" {name} |" for name in FIGURES), " spun, yielded, slept |", sep="")
    print("|---|", "---:|" * len(FIGURES), "---|", sep="")
    series = {
        way: {name: [one.figures_us[name] for one in turns] for name in FIGURES} for way, turns in measured.items()
    }
    for way, turns in measured.items():
        total = sum((one.waits for one in turns), Waits(0, 0, 0))
        counts = (total.spun_count, total.yielded_count, total.slept_count)
        shares = ", ".join(f"{count / sum(counts):.1%}" for count in counts) if sum(counts) else "not counted"
        print(
            f"| {way} |",
            *(f" {statistics.median(series[way][name]):.1f} |" for name in FIGURES),
            f" {shares} |",
            sep="",
        )
    for other in [way for way in ways if way != "auto"] if "auto" in ways else ():
        words = (f" {ratio_words(series['auto'][name], series[other][name])} |" for name in FIGURES)
        print(f"| auto / {other} |", *words, " |", sep="")


def main() -> int:
    """Run the requested comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["shm"], help="default: %(default)s")
    parser.add_argument("--waits", nargs="+", choices=get_args(WaitStrategy), default=["auto", "block", "spin"])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="measured time per turn (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=1024, help="size of a message (default: %(default)s)")
    options = parser.parse_args()
    for backend in options.backends:
        for neighbours in options.neighbours:
            compare(backend, options.waits, neighbours, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
