"""What the ring of shared memory gains by C: messages a second in plain loops, in C and in Python, by turns.

    python benchmarks/ring.py [--turns 15] [--sizes 64,1024,65536,4194304] [--readers 1,3]

In each turn, for each size and number of readers, one writer sends to readers in processes of their own, once with the
ring in C and once in Python (`IPCBENCH_PURE=1`), in alternating order. Timed is from the writer's second message to the
last one at the slowest reader: starting and ending processes is not part of it. The figure is the median over the turns
of the ratio C / Python, with the 95 % interval of the signs; beside it, the share of the processors' time that was
stolen.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter_ns

import psutil

from ipcbench import ChannelSpec, get_backend
from ipcbench.backend import Address

_LEAST_BYTES, _MOST_MESSAGES = 2**28, 1_000_000


def receive(address: Address, index: int, count: int, ended: Connection) -> None:
    with get_backend("shm")().open_reader(address, index) as reader:
        read = reader.read
        for _ in range(count):
            read()
        ended.send(perf_counter_ns())  # of one clock, CLOCK_MONOTONIC, in all processes


def messages_per_s(size_bytes: int, readers: int) -> float:
    """Send messages to readers, and return how many arrived a second."""
    count = min(_MOST_MESSAGES, max(200, _LEAST_BYTES // max(size_bytes, 1)))
    backend, context = get_backend("shm")(), multiprocessing.get_context("spawn")
    address = backend.create(ChannelSpec(f"ipcb-ring-{os.getpid()}", readers, max_message_bytes=size_bytes, depth=64))
    try:
        with backend.open_writer(address) as writer:
            ends, far_ends = zip(*(context.Pipe(duplex=False) for _ in range(readers)), strict=True)
            for index, end in enumerate(far_ends):
                context.Process(target=receive, args=(address, index, count, end)).start()
            message, write = bytes(size_bytes), writer.write
            write(message)  # once all readers are there
            begin_ns = perf_counter_ns()
            for _ in range(count - 1):
                write(message)
            return (count - 1) / (max(end.recv() for end in ends) - begin_ns) * 1e9
    finally:
        backend.destroy(address)


def measured(size_bytes: int, readers: int, *, is_pure: bool) -> float:
    command = [sys.executable, __file__, "--one", str(size_bytes), str(readers)]
    environment = {**os.environ, "IPCBENCH_PURE": "1" if is_pure else ""}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def sign_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a median, from the signs alone."""
    ordered, count = sorted(values), len(values)
    below = 0
    while 2 * sum(math.comb(count, each) for each in range(below + 1)) / 2**count <= 0.05:
        below += 1
    return ordered[max(0, below - 1)], ordered[min(count - 1, count - below)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--sizes", default="64,1024,65536,4194304")
    parser.add_argument("--readers", default="1,3")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(messages_per_s(*arguments.one))
        return
    print(f"{'bytes':>9}{'readers':>9}{'Python k/s':>12}{'C k/s':>10}{'ratio':>8}   95 % interval   stolen")
    psutil.cpu_times_percent()
    for size_bytes in map(int, arguments.sizes.split(",")):
        for readers in map(int, arguments.readers.split(",")):
            pairs = []
            for turn in range(arguments.turns):
                order = (False, True) if turn % 2 else (True, False)
                figures = {is_pure: measured(size_bytes, readers, is_pure=is_pure) for is_pure in order}
                pairs.append((figures[True], figures[False]))
            ratios = [native / pure for pure, native in pairs]
            low, high = sign_interval(ratios)
            stolen = f"{psutil.cpu_times_percent().steal:.1f} %"
            print(f"{size_bytes:9}{readers:9}{median(pure for pure, _ in pairs) / 1e3:12.1f}"
                  f"{median(native for _, native in pairs) / 1e3:10.1f}{median(ratios):8.2f}   {low:.2f} to {high:.2f}"
                  f"   {stolen}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
