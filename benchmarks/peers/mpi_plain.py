"""The MPI backends against the plainest mpi4py loops that make the same calls; prints Markdown.

What does not live here: other transports, other MPI programs (imb.py), and anything that a user of ipcbench needs.

The plain loops know every size beforehand, have no flow control but MPI's own, no time-outs, no end of stream, and
give the reader one buffer for ever; readers count what they get. Ours is a channel as the library opens it. Both run
in the same processes, in alternating rounds whose order alternates too. A rate is n − 1 messages over the time from
the first reader's first receipt to the last reader's last one; the ratio is the median over the rounds' own ratios,
with the lowest and the highest. On Linux, a round in which other programs used more than a tenth of a core is
measured again, a few times at most.

    python benchmarks/peers/mpi_plain.py [--rounds 5] [--sizes 64,16KiB,4MiB] [--readers 1,3] [--seconds 0.2]
"""

from __future__ import annotations

import argparse
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
from ipcbench.clock import now_ns
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.units import format_bytes, format_significant, parse_bytes

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


def plain_case(mpi: Any, comm: Any, backend: str, size_bytes: int) -> Case:
    """Return the plain loop's body."""
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


def our_case(end: Writer | Reader, backend: str, size_bytes: int) -> Case:
    """Return the body of a loop over a channel."""
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
    """Be one process of the launch: measure all cases; process 0 prints the rows of the table."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    readers = comm.Get_size() - 1
    for backend in BACKENDS if arguments.backend == "all" else [arguments.backend]:
        address = Address(backend, channel(arguments.worker, backend, readers), "")
        rank = comm.Get_rank()
        end = get_backend(backend)().open_writer(address) if rank == 0 else None
        end = end or get_backend(backend)().open_reader(address, rank - 1)
        with end:
            for size_bytes in sizes_of(arguments):
                pair = our_case(end, backend, size_bytes), plain_case(MPI, comm, backend, size_bytes)
                _row(comm, pair, arguments)


def _row(comm: Any, pair: tuple[Case, Case], arguments: argparse.Namespace) -> None:
    slowest = min(run(comm, case, _SAMPLE_COUNT) for case in pair for _ in range(2))
    slowest = min(run(comm, case, max(_SAMPLE_COUNT, int(slowest * 0.02))) for case in pair)
    count = max(8, int(slowest * arguments.seconds))
    rates: list[list[float]] = [[], []]
    for number in range(arguments.rounds):
        for _ in range(_TRIES_PER_ROUND):
            before = busy_s(comm)
            found = {which: run(comm, pair[which], count) for which in ((0, 1) if number % 2 else (1, 0))}
            spent = [after - earlier for after, earlier in zip(busy_s(comm), before, strict=True)]
            if comm.bcast((spent[1] - spent[2]) / spent[0] < _FOREIGN_CORES, 0):
                break
        for which, rate in found.items():
            rates[which].append(rate)
    if comm.Get_rank():
        return
    ratios = [ours / plain for ours, plain in zip(*rates, strict=True)]
    shown = [format_significant(statistics.median(each)) for each in (*rates, ratios)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    name = f"| {pair[0].backend} | {comm.Get_size() - 1} | {format_bytes(pair[0].size_bytes)} "
    print(f"{name}| {shown[0]} | {shown[1]} | {shown[2]} | {spread} |", flush=True)


def busy_s(comm: Any) -> tuple[float, float, float]:
    """Return the time, the CPU time that all programs of this host have used, and that of this launch, in seconds."""
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


def sizes_of(arguments: argparse.Namespace) -> list[int]:
    """Return the sizes that were asked for."""
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
    """Parse, print the head of the table, launch once for each number of readers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements for each case")
    parser.add_argument("--sizes", default=SIZES, help=f"message sizes, with commas (default {SIZES})")
    parser.add_argument("--readers", default="1,3", help="numbers of readers, with commas (default 1,3)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of each measurement")
    parser.add_argument("--backend", default="all", choices=("all", *BACKENDS))
    parser.add_argument("--mpiexec-options", default="", help="further options for mpiexec")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return 0
    print("| backend | readers | size | ours msg/s | plain msg/s | ratio | lowest to highest |")
    print("|---|---|---|---|---|---|---|", flush=True)
    return max(launch(arguments, int(readers)) for readers in arguments.readers.split(","))


if __name__ == "__main__":
    sys.exit(main())
