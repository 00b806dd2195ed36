"""The ring of `shm` against the same in C (limits.c), between two processes, by turns.

    python benchmarks/peers/ring_vs_c.py [--turns 15] [--bytes 64] [--batch 256]

Half round trips while both sides poll (`wait="spin"` against spin) and while both sleep (`wait="block"` against a pair
of futexes), and messages a second of `write_many` and `read_many` against the C ring, both zero-copy. Round trips are
timed in blocks of 16, as in C; the figure of a turn is the median of its blocks. In each turn both sides run, in
alternating order. The ratio is the median over the turns of ours / C, with the 95 % interval of the signs; beside it,
the share of the processors' time that was stolen.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import _native
import psutil

from ipcbench.backend import Address
from ipcbench.backends.shm.backend import Shm
from ipcbench.spec import ChannelSpec, WaitStrategy

sys.path.append(str(Path(__file__).parents[1]))
from ring import sign_interval

_PER_BLOCK, _BLOCKS = 16, {"spin": 4_000, "block": 600}
_DEPTH = 1024


def _channel(size_bytes: int, wait: WaitStrategy, depth: int, label: str) -> Address:
    name = f"ipcb-c-{label}-{os.getpid()}"
    return Shm().create(ChannelSpec(name, max_message_bytes=size_bytes, wait=wait, depth=depth))


def answer(there: Address, back: Address, count: int) -> None:
    with Shm().open_reader(there, 0) as reader, Shm().open_writer(back) as writer:
        read, write = reader.read, writer.write
        for _ in range(count):
            write(read())


def half_round_trip_ns(size_bytes: int, wait: WaitStrategy) -> float:
    blocks, addresses = _BLOCKS[wait], [_channel(size_bytes, wait, 16, label) for label in ("there", "back")]
    other = multiprocessing.get_context("spawn").Process(target=answer, args=(*addresses, blocks * _PER_BLOCK))
    other.start()
    try:
        with Shm().open_writer(addresses[0]) as writer, Shm().open_reader(addresses[1], 0) as reader:
            read, write, message = reader.read, writer.write, bytes(size_bytes)
            took_ns = []
            for _ in range(blocks):
                begin = perf_counter_ns()
                for _ in range(_PER_BLOCK):
                    write(message)
                    read()
                took_ns.append(perf_counter_ns() - begin)
            other.join()
            return median(took_ns[blocks // 6 :]) / 2 / _PER_BLOCK
    finally:
        for address in addresses:
            Shm().destroy(address)


def take(address: Address, count: int, batch: int, ended: Connection) -> None:
    with Shm().open_reader(address, 0) as reader:
        read_many = reader.read_many
        while count:
            count -= len(read_many(batch))
        ended.send(perf_counter_ns())  # of one clock, CLOCK_MONOTONIC, in both processes


def many_per_s(size_bytes: int, batch: int) -> float:
    calls, address = 2_000_000 // batch, _channel(size_bytes, "yield", _DEPTH, "many")
    context = multiprocessing.get_context("spawn")
    end, far_end = context.Pipe(duplex=False)
    context.Process(target=take, args=(address, (calls + 1) * batch, batch, far_end)).start()
    try:
        with Shm().open_writer(address) as writer:
            write_many, messages = writer.write_many, [bytes(size_bytes)] * batch
            write_many(messages)
            begin_ns = perf_counter_ns()
            for _ in range(calls):
                write_many(messages)
            return calls * batch / (end.recv() - begin_ns) * 1e9
    finally:
        Shm().destroy(address)


def compare(label: str, unit: str, turns: int, ours: Callable[[], float], c: Callable[[], float]) -> None:
    pairs = []
    before = psutil.cpu_times()
    for turn in range(turns):
        figures = {side: side() for side in ((ours, c) if turn % 2 else (c, ours))}
        pairs.append((figures[ours], figures[c]))
    passed = [late - early for late, early in zip(psutil.cpu_times(), before, strict=True)]
    stolen = passed[before._fields.index("steal")] / sum(passed) if "steal" in before._fields else 0.0
    ratios = [mine / theirs for mine, theirs in pairs]
    low, high = sign_interval(ratios)
    print(f"{label:34}{median(pair[0] for pair in pairs):14,.0f}{median(pair[1] for pair in pairs):14,.0f} {unit:11}"
          f"{median(ratios):8.3f}   {low:.3f} to {high:.3f}   {stolen:6.1%}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    if _native.why_not():
        raise SystemExit(f"skipped: {_native.why_not()}")
    size, batch = options.bytes, options.batch
    print(f"{'':34}{'ours':>14}{'C':>14} {'':11}{'ratio':>8}   95 % interval   stolen")
    waits: tuple[tuple[WaitStrategy, str], ...] = (("spin", "spin"), ("block", "futex"))
    for wait, pair in waits:
        compare(
            f"half round trip, {wait}", "ns", options.turns,
            lambda: half_round_trip_ns(size, wait),  # noqa: B023 # called before the next one
            lambda: float(_native.call(pair, size, _BLOCKS[wait] * _PER_BLOCK, "-")["half_p50_ns"]),  # noqa: B023
        )  # fmt: skip
    compare(
        f"many of {batch}", "messages/s", options.turns,
        lambda: many_per_s(size, batch),
        lambda: float(_native.call("ring", 0, size, _DEPTH, 1, 0.5, "-")["messages_per_s"]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
