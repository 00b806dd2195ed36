"""The MPI backends against the simplest mpi4py loops that make the same calls; prints Markdown.

The plain loops have no flow control except MPI's own and no time-outs, and the reader keeps a single buffer. `Bcast`
has two: *fixed* knows every size and the number of messages beforehand, which is the floor but not a stream;
*stream* takes messages of any size until the end, so it broadcasts each length first (0 ends it). The other calls carry
length and end themselves, so one loop serves as both. Our side is a channel as the library opens it. All loops run in
the same processes, in alternating rounds whose order alternates too. A rate is n - 1 messages over the time from the
first reader's first receipt to the last reader's last one; the ratio is the median of the rounds' ratios, with the
lowest and the highest. On Linux, a round in which other programs used more than a tenth of a core is repeated, a few
times at most.

    python benchmarks/peers/mpi_plain.py [--rounds 5] [--sizes 64,16KiB,4MiB] [--readers 1,3] [--seconds 0.2]
"""

from __future__ import annotations

import argparse
import array
import gc
import os
import pickle
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipcbench.backend import Address, Reader, Writer
from ipcbench.backends.mpi.backend import start_mpi
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_bytes, format_significant, parse_bytes

BACKENDS = ("mpi", "mpi-pkl5", "mpi-buffer", "mpi-p2p")
SIZES = "64,1KiB,16KiB,256KiB,4MiB"
_TIMEOUT_S = 30.0
_SAMPLE_COUNT = 40
_FOREIGN_CORES = 0.1
_TRIES_PER_ROUND = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One backend at one size: how to send a message, and how to receive one."""

    backend: str
    size_bytes: int
    send: Callable[[], Any]
    receive: Callable[[], Any]


def fixed_case(mpi: Any, comm: Any, backend: str, size_bytes: int) -> Case:
    """Return the calls of the plain loop that knows all sizes."""
    message, others = bytearray(size_bytes), range(1, comm.Get_size())
    if backend == "mpi":
        return Case(backend, size_bytes, lambda: comm.bcast(message, 0), lambda: comm.bcast(None, 0))
    if backend == "mpi-pkl5":
        from mpi4py.util import pkl5

        bcast = pkl5.Intracomm(comm).bcast
        return Case(backend, size_bytes, lambda: bcast(pickle.PickleBuffer(message), 0), lambda: bcast(None, 0))
    if backend == "mpi-buffer":
        return Case(backend, size_bytes, lambda: comm.Bcast(message, 0), lambda: comm.Bcast(message, 0))

    def send() -> None:
        mpi.Request.Waitall([comm.Isend(message, other) for other in others])

    return Case(backend, size_bytes, send, lambda: comm.Recv(message, 0))


def stream_case(comm: Any, backend: str, size_bytes: int) -> Case | None:
    """Return the calls of the plain loop that takes any size; None if the fixed loop is that loop."""
    if backend != "mpi-buffer":
        return None
    message, length = memoryview(bytearray(size_bytes)), array.array("q", [size_bytes])

    def send() -> None:
        length[0] = len(message)
        comm.Bcast(length, 0)
        comm.Bcast(message, 0)

    def receive() -> None:
        comm.Bcast(length, 0)
        comm.Bcast(message[: length[0]], 0)

    return Case(backend, size_bytes, send, receive)


def our_case(end: Writer | Reader, backend: str, size_bytes: int) -> Case:
    """Return the calls of a loop over a channel."""
    message = bytearray(size_bytes)
    if isinstance(end, Writer):
        write = end.write
        return Case(backend, size_bytes, lambda: write(message, _TIMEOUT_S), lambda: None)
    read = end.read
    return Case(backend, size_bytes, lambda: None, lambda: read(_TIMEOUT_S))


def run(comm: Any, case: Case, count: int) -> float:
    """Send `count` messages; return messages per second, the same in all processes."""
    writes = comm.Get_rank() == 0
    call = case.send if writes else case.receive
    comm.Barrier()
    gc.disable()
    call()
    first_ns = now_ns()
    received = 1
    while received < count:
        call()
        received += 1
    last_ns = now_ns()
    gc.enable()
    stamps = [stamp for rank, stamp in enumerate(comm.allgather((first_ns, last_ns))) if rank]
    elapsed_s = (max(last for _, last in stamps) - min(first for first, _ in stamps)) / 1e9
    return float((count - 1) / elapsed_s)


def work(arguments: argparse.Namespace) -> None:
    """Run as one process of the launch and measure all cases; process 0 prints the rows of the table."""
    mpi = start_mpi("mpi")
    comm = mpi.COMM_WORLD.Dup()
    readers = comm.Get_size() - 1
    for backend in BACKENDS if arguments.backend == "all" else [arguments.backend]:
        there, rank = address(arguments.worker, backend, readers), comm.Get_rank()
        make = get_backend(backend)()
        with make.open_reader(there, rank - 1) if rank else make.open_writer(there) as end:
            for size_bytes in sizes_of(arguments):
                cases = [
                    our_case(end, backend, size_bytes),
                    fixed_case(mpi, comm, backend, size_bytes),
                    stream_case(comm, backend, size_bytes),
                ]
                _row(comm, [case for case in cases if case], arguments)


def _row(comm: Any, cases: list[Case], arguments: argparse.Namespace) -> None:
    slowest = min(run(comm, case, _SAMPLE_COUNT) for case in cases for _ in range(2))
    slowest = min(run(comm, case, max(_SAMPLE_COUNT, int(slowest * 0.02))) for case in cases)
    count = max(8, int(slowest * arguments.seconds))
    rates: list[list[float]] = [[] for _ in cases]
    for number in range(arguments.rounds):
        for _ in range(_TRIES_PER_ROUND):
            before = busy_s(comm)
            order = range(len(cases)) if number % 2 else reversed(range(len(cases)))
            found = {which: run(comm, cases[which], count) for which in order}
            spent = [after - earlier for after, earlier in zip(busy_s(comm), before, strict=True)]
            if comm.bcast((spent[1] - spent[2]) / spent[0] < _FOREIGN_CORES, 0):
                break
        for which, rate in found.items():
            rates[which].append(rate)
    if comm.Get_rank():
        return
    name = f"| {cases[0].backend} | {comm.Get_size() - 1} | {format_bytes(cases[0].size_bytes)} "
    ratios = [
        [ours / plain for ours, plain in zip(rates[0], rates[which], strict=True)]
        for which in (1, len(cases) - 1)  # for a pickled object, the stream is the fixed loop
    ]
    shown = [format_significant(statistics.median(each)) for each in (rates[0], rates[1], rates[-1])]
    spreads = [f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})" for each in ratios]
    print(name + "| " + " | ".join([*shown, *spreads]) + " |", flush=True)


def busy_s(comm: Any) -> tuple[float, float, float]:
    """Return the time, and the CPU time used by all programs of this host and by this launch, in seconds."""
    time_s, ours = now_ns() / 1e9, sum(comm.allgather(time.process_time()))
    try:
        words = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return time_s, ours, ours
    user, nice, system, _, _, interrupts, soft, stolen = map(int, words[1:9])
    ticks = user + nice + system + interrupts + soft + stolen
    return time_s, ticks / os.sysconf("SC_CLK_TCK"), ours


def channel(token: str, backend: str, readers: int) -> ChannelSpec:
    """Return the channel of one backend in one launch."""
    return ChannelSpec(name=f"{NAME_PREFIX}{token}-{backend}-{readers}", readers=readers, max_message_bytes=2**26)


def address(token: str, backend: str, readers: int) -> Address:
    """Return where that channel is."""
    return Address(backend, channel(token, backend, readers), "")


def sizes_of(arguments: argparse.Namespace) -> list[int]:
    """Return the requested sizes."""
    return [parse_bytes(text, "--sizes") for text in arguments.sizes.split(",")]


def launch(arguments: argparse.Namespace, readers: int) -> int:
    """Make the channels, run one launch, remove the channels; return its exit code."""
    beside = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if mpiexec is None:
        print(f"skipped: there is no mpiexec beside {sys.executable} or in PATH")
        return 0
    token = secrets.token_hex(3)
    backends = [get_backend(name)() for name in BACKENDS if arguments.backend in {"all", name}]
    addresses = [backend.create(channel(token, backend.name, readers)) for backend in backends]
    options = [f"--{name}={getattr(arguments, name)}" for name in ("rounds", "sizes", "seconds", "backend")]
    command = [mpiexec, *arguments.mpiexec_options.split(), "-n", str(readers + 1), sys.executable, __file__]
    try:
        return subprocess.run([*command, f"--worker={token}", *options], check=False).returncode
    finally:
        for backend, address in zip(backends, addresses, strict=True):
            backend.destroy(address)


def main() -> int:
    """Parse, print the table head, launch once for each number of readers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements for each case")
    parser.add_argument("--sizes", default=SIZES, help=f"message sizes, with commas (default {SIZES})")
    parser.add_argument("--readers", default="1,3", help="numbers of readers, with commas (default 1,3)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of each measurement")
    parser.add_argument("--backend", default="all", choices=("all", *BACKENDS))
    parser.add_argument("--mpiexec-options", default="", help="more options for mpiexec")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return 0
    print("| backend | readers | size | ours msg/s | fixed msg/s | stream msg/s | ours / fixed | ours / stream |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    return max(launch(arguments, int(readers)) for readers in arguments.readers.split(","))


if __name__ == "__main__":
    sys.exit(main())
