"""What asyncio costs beside the blocking API, and how long channels keep an event loop from other work.

    python benchmarks/aio.py [--turns 15] [--channels 1,100,1000]

Cost: one client process calls an echo server over shm and sends on an echoed channel, once with the blocking API and
once with asyncio, in turns of about 50 ms in alternating order. The other side is blocking, and the same. The figure of
a turn is the median of its round trips; a ratio is the median over turns of `asyncio / blocking`, with the 95 %
interval of the signs.

Loop lag: a task asks to be woken every 5 ms and notes how much later it is, p50 and p99, while N channels are open in
the loop whose `recv` is awaited; with `idle`, nothing comes, and with `busy`, another process sends 1,000 objects of
64 B a second, spread over them. Beside it: the share of a core that this process takes. The ratio is to the p50 of a
loop without channels, in the same turn; with `busy`, to one that another process wakes as often, by a byte in a pipe:
whoever is woken in between, waits for whole milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from select import select
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import numpy as np

import ipcbench
from ipcbench import rpc
from ipcbench.channels import aio as channels
from ipcbench.errors import TransportError
from ipcbench.rpc import aio as calls
from ipcbench.util.units import format_duration_ns

sys.path.insert(0, str(Path(__file__).parent))
from ring import sign_interval

_TURN_NS, _WAKE_S, _LAG_S, _RATE_PER_S = 50_000_000, 0.005, 1.0, 1000
_SMALL = {"max_bytes": 4096, "depth": 4}


def serve_calls(name: str) -> None:
    server = rpc.Server("shm", name)
    server.method(lambda array: array, name="echo")
    server.serve()


def serve_echo(name: str) -> None:
    with ipcbench.connect(name) as channel:
        for obj in channel:
            channel.send(obj)


def send_to_all(name: str, count: int, begin: Any) -> None:
    """Send to `count` channels in turns, once `begin` is set, until the other side leaves; if not, hold them open."""
    with ExitStack() as stack, suppress(TransportError):
        ends = [stack.enter_context(ipcbench.connect(f"{name}-{number}", **_SMALL)) for number in range(count)]
        begin.wait()
        start_ns, number = perf_counter_ns(), 0
        while True:
            due_ns = start_ns + number * 1_000_000_000 // _RATE_PER_S
            if due_ns > perf_counter_ns():
                select((), (), (), max(0, due_ns - perf_counter_ns()) / 1e9)
            ends[number % count].send({"number": number, "bytes": bytes(40)}, 10)
            number += 1


def send_bytes(descriptor: Any) -> None:
    """Write a byte into a pipe as often as `send_to_all` sends, until nobody reads."""
    start_ns, number = perf_counter_ns(), 0
    with suppress(BrokenPipeError):
        while True:
            due_ns = start_ns + number * 1_000_000_000 // _RATE_PER_S
            select((), (), (), max(0, due_ns - perf_counter_ns()) / 1e9)
            os.write(descriptor.fileno(), b"x")
            number += 1


def blocking_ns(trip: Callable[[Any], Any], array: Any, count: int) -> float:
    times = []
    for _ in range(count):
        begin_ns = perf_counter_ns()
        assert len(trip(array)) == len(array)
        times.append(perf_counter_ns() - begin_ns)
    return median(times)


async def awaiting_ns(trip: Callable[[Any], Awaitable[Any]], array: Any, count: int) -> float:
    times = []
    for _ in range(count):
        begin_ns = perf_counter_ns()
        assert len(await trip(array)) == len(array)
        times.append(perf_counter_ns() - begin_ns)
    return median(times)


async def compare(what: str, size: int, turns: int, plain: Any, awaited: Any) -> None:
    """Print what `awaited` costs beside `plain`."""
    array, figures = np.zeros(size, np.uint8), ([], [])
    count = max(10, min(500, round(_TURN_NS / blocking_ns(plain, array, 20))))
    await awaiting_ns(awaited, array, 20)
    for turn in range(turns):
        for index in (0, 1) if turn % 2 else (1, 0):
            figures[index].append(
                await awaiting_ns(awaited, array, count) if index else blocking_ns(plain, array, count)
            )
    ratios = [own / base for base, own in zip(*figures, strict=True)]
    times = " | ".join(format_duration_ns(median(each)) for each in figures)
    low, high = sign_interval(ratios)
    print(f"| {what}, {size:,} B | {times} | {median(ratios):.2f} [{low:.2f}–{high:.2f}] |", flush=True)


async def cost(turns: int, name: str) -> None:
    context = multiprocessing.get_context("spawn")
    names = [f"{name}-plain", f"{name}-awaited"]
    works = [(serve_calls, name), *((serve_echo, each) for each in names)]
    processes = [context.Process(target=work, args=(each,), daemon=True) for work, each in works]
    for process in processes:
        process.start()
    print("| round trip | blocking p50 | asyncio p50 | asyncio / blocking |\n| :-- | --: | --: | --: |")
    with rpc.connect(name, 30) as client, ipcbench.connect(names[0]) as channel:
        async with calls.connect(name, 30) as aio_client, channels.connect(names[1]) as aio_channel:

            def trip(array: Any) -> Any:
                channel.send(array)
                return channel.recv()

            async def awaited_trip(array: Any) -> Any:
                await aio_channel.send(array)
                return await aio_channel.recv()

            for size in (1024, 2**20):
                await compare("call", size, turns, client.echo, aio_client.echo)
                await compare("channel, send and recv", size, turns, trip, awaited_trip)
    for process in processes:
        process.terminate()
        process.join()


async def lag_ns() -> tuple[float, float, float]:
    """Return how much later than asked the loop wakes a task, p50 and p99 in ns, and the share of a core it takes."""
    lags, begin_ns, begin_cpu = [], perf_counter_ns(), time.process_time_ns()
    while perf_counter_ns() < begin_ns + _LAG_S * 1e9:
        asked_ns = perf_counter_ns() + int(_WAKE_S * 1e9)
        await asyncio.sleep(_WAKE_S)
        lags.append(perf_counter_ns() - asked_ns)
    share = (time.process_time_ns() - begin_cpu) / (perf_counter_ns() - begin_ns)
    return median(lags), quantiles(lags, n=100)[98], share


async def lag_without_ns(is_busy: bool) -> tuple[float, float, float]:
    """Return the same of a loop without channels."""
    if not is_busy:
        return await lag_ns()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    other = context.Process(target=send_bytes, args=(theirs,), daemon=True)
    other.start()
    theirs.close()
    news, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(ours, lambda: (os.read(ours.fileno(), 4096), news.set()))
    await news.wait()
    lags = await lag_ns()
    loop.remove_reader(ours)
    ours.close()
    other.join()
    return lags


async def receive(channel: channels.Channel) -> None:
    with suppress(TransportError):
        while True:
            await channel.recv()


async def lag(turns: int, count: int, is_busy: bool, name: str) -> None:
    """Print how long `count` channels keep the loop from other work."""
    context = multiprocessing.get_context("spawn")
    without, withs = [], []
    for turn in range(turns):
        if turn % 2:
            without.append(await lag_without_ns(is_busy))
        own, begin = f"{name}-{turn}", context.Event()
        other = context.Process(target=send_to_all, args=(own, count, begin), daemon=True)
        async with AsyncExitStack() as stack:
            ends = [
                await stack.enter_async_context(channels.connect(f"{own}-{each}", **_SMALL)) for each in range(count)
            ]
            other.start()
            tasks = [asyncio.create_task(receive(end)) for end in ends]
            if is_busy:
                begin.set()
            await asyncio.sleep(2 + count / 200)  # for the other process to begin
            withs.append(await lag_ns())
            for task in tasks:
                task.cancel()
        other.terminate()
        other.join()
        if not turn % 2:
            without.append(await lag_without_ns(is_busy))
    ratios = [own[0] / base[0] for own, base in zip(withs, without, strict=True)]
    low, high = sign_interval(ratios)
    p50, p99, share = (median(values) for values in zip(*withs, strict=True))
    print(f"| {count:,} {'busy' if is_busy else 'idle'} | {format_duration_ns(p50)} | {format_duration_ns(p99)} "
          f"| {median(ratios):.2f} [{low:.2f}–{high:.2f}] | {100 * share:.0f} % |", flush=True)  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--channels", default="1,100,1000")
    arguments = parser.parse_args()
    await cost(arguments.turns, f"aio-{os.getpid()}")
    print("\n| channels | lag p50 | lag p99 | p50 / no channels | of a core |\n| :-- | --: | --: | --: | --: |")
    for count in map(int, arguments.channels.split(",")):
        for is_busy in (False, True):
            await lag(max(5, arguments.turns // 3), count, is_busy, f"lag-{os.getpid()}-{int(is_busy)}")


if __name__ == "__main__":
    asyncio.run(main())
