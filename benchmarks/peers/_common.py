"""What the side-by-side scripts share: options, process groups, the frame of the timed loops.

The alternating rounds and their table are in _rounds.py; their names are re-exported here.

A *role* is a generator function: it opens its endpoint, yields, works, yields its figures, and closes. A group opens
its roles one after another, starts them together, and lets them close when all have finished.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import _native
from _rounds import GroupFailed, Row, compare, compare_all, fill, print_rows

from ipcbench.backend import Address
from ipcbench.errors import ConfigError
from ipcbench.registry import get_backend
from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_bytes, parse_bytes

__all__ = [
    "BODY",
    "MARKER",
    "ROUND_TRIPS_PER_BLOCK",
    "End",
    "GroupFailed",
    "Role",
    "Row",
    "Sent",
    "Taken",
    "batch_of",
    "compare",
    "compare_all",
    "cpu_ns",
    "fill",
    "half_round_trip_ns",
    "make_parser",
    "print_rows",
    "publish",
    "reading",
    "run_group",
    "send_for",
    "size_label",
    "subscribe",
    "take",
    "throughput_per_s",
    "write_json",
    "writing",
]

BODY, MARKER = 0, 1
"""First byte of a message: an ordinary message, or the last of the warm-up or of the measurement."""

WARMUP_SHARE = 0.2
ROUND_TRIPS_PER_BLOCK = 16
"""Timed as a whole, as in limits.c: reading the clock takes as long as a fast round trip."""

_GRACE_S = 30.0

Role = Iterator[Any]
"""What calling a role returns."""

End = tuple[Callable[..., AbstractContextManager[Callable[..., Any]]], tuple[Any, ...]]
"""What opens an endpoint, with its arguments; it gives what writes a message (its argument) or reads one."""


def _child(pipe: Connection, core: int | None, role: Callable[..., Role], arguments: tuple[Any, ...]) -> None:
    """Open, say so, wait for the start, work, answer, wait for the end, close."""
    try:
        pipe.recv()
        work = role(*arguments)
        next(work)
        if core is not None:  # only after opening: an endpoint checks there whether every process has a core
            os.sched_setaffinity(0, {core})
        gc.collect()
        gc.freeze()
        gc.disable()
        pipe.send(("opened", None))
        pipe.recv()
        pipe.send(("done", next(work)))
        pipe.recv()
        next(work, None)
    except Exception:  # whatever it is, the parent shows it and fails the group
        pipe.send(("failed", traceback.format_exc()))


def _tell(pipe: Connection, what: str, who: str) -> None:
    try:
        pipe.send(what)
    except ConnectionError as error:
        raise GroupFailed(f"{who} died") from error


def _answer(pipe: Connection, deadline_ns: int, who: str) -> Any:
    try:
        if not pipe.poll(max(0.0, (deadline_ns - now_ns()) / 1e9)):
            raise GroupFailed(f"{who} did not answer in time")
        kind, value = pipe.recv()
    except (EOFError, ConnectionError) as error:
        raise GroupFailed(f"{who} died") from error
    if kind == "failed":
        raise GroupFailed(f"{who}: {value}")
    return value


def run_group(roles: Sequence[tuple[Callable[..., Role], tuple[Any, ...]]], seconds: float) -> list[Any]:
    """Run each role in a fresh process, pinned to its own core if there are enough; return their figures.

    Raises:
        GroupFailed: a process failed; all processes have ended when this is raised.
    """
    context = multiprocessing.get_context("spawn")
    cores = _native.cores(len(roles)) or (None,) * len(roles)
    deadline = now_ns() + int((seconds * 10 + _GRACE_S) * 1e9)
    names = [f"{role.__name__} ({index})" for index, (role, _) in enumerate(roles)]
    pipes, processes = [], []
    try:
        for core, (role, arguments) in zip(cores, roles, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(theirs, core, role, arguments), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe, name in zip(pipes, names, strict=True):  # not every transport can be opened concurrently
            _tell(pipe, "open", name)
            _answer(pipe, deadline, name)
        for pipe, name in zip(pipes, names, strict=True):
            _tell(pipe, "go", name)
        figures = [_answer(pipe, deadline, name) for pipe, name in zip(pipes, names, strict=True)]
        for pipe, name in zip(pipes, names, strict=True):
            _tell(pipe, "leave", name)
        for process in processes:
            process.join(_GRACE_S)
        return figures
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


class Sent(NamedTuple):
    """What a writer returns."""

    count: int
    """Messages of the window, its marker included."""
    cpu_s: float
    """CPU time of the whole process in the window."""


class Taken(NamedTuple):
    """What a reader returns."""

    count: int
    first_ns: int
    last_ns: int
    cpu_s: float
    """CPU time of the whole process between the first receipt and the last."""


def batch_of(size_bytes: int) -> int:
    """Return how many messages a writer sends between two clock readings."""
    return max(1, 2**18 // (size_bytes + 1024))


def send_for(write: Callable[[bytes], object], size_bytes: int, seconds: float) -> Sent:
    """Send for the time of the warm-up, then a marker, then for `seconds`, then a marker."""
    body, marker = bytes([BODY]) * size_bytes, bytes([MARKER]) + bytes(size_bytes - 1)
    batch, count, cpu_s = batch_of(size_bytes), 0, 0.0
    for span_s in (WARMUP_SHARE * seconds, seconds):
        stop, count, cpu_s = now_ns() + int(span_s * 1e9), 1, time.process_time()
        while now_ns() < stop:
            for _ in range(batch):
                write(body)
            count += batch
        write(marker)
    return Sent(count, time.process_time() - cpu_s)


def take(read: Callable[[], Any]) -> Taken:
    """Read up to the next marker; `read` returns a message whose first item is its first byte."""
    message = read()
    first_ns, cpu_s, count = now_ns(), time.process_time(), 1
    while not message[0]:
        message = read()
        count += 1
    return Taken(count, first_ns, now_ns(), time.process_time() - cpu_s)


def publish(ends: Sequence[End], size_bytes: int, seconds: float, turns: int = 1) -> Role:
    """Role: the writer of one or several streams in turns; returns a list of what each turn sent, by stream."""
    with ExitStack() as opened:
        writes = [opened.enter_context(opening(*arguments)) for opening, arguments in ends]
        yield
        yield _in_turns([functools.partial(send_for, write, size_bytes, seconds) for write in writes], turns)


def subscribe(ends: Sequence[End], turns: int = 1) -> Role:
    """Role: a reader of one or several streams in turns; returns a list of what each turn took, by stream."""
    with ExitStack() as opened:
        reads = [opened.enter_context(opening(*arguments)) for opening, arguments in ends]
        yield
        yield _in_turns([functools.partial(_take_window, read) for read in reads], turns)


def _in_turns(streams: Sequence[Callable[[], Any]], turns: int) -> list[list[Any]]:
    """Run each stream once in each turn, in reverse in every second turn; return the results by turn and stream."""
    results = []
    for turn in range(turns):
        step = -1 if turn % 2 else 1
        results.append([stream() for stream in streams[::step]][::step])
    return results


def _take_window(read: Callable[[], Any]) -> Taken:
    take(read)
    return take(read)


@contextmanager
def writing(address: Address) -> Iterator[Callable[[bytes], None]]:
    """Open the writer of a channel."""
    with get_backend(address.backend)().open_writer(address) as writer:
        yield writer.write


@contextmanager
def reading(address: Address, index: int) -> Iterator[Callable[[], memoryview]]:
    """Open a reader of a channel."""
    with get_backend(address.backend)().open_reader(address, index) as reader:
        yield reader.read


def throughput_per_s(sent: Sent, readers: Sequence[Taken]) -> float:
    """Return messages per second that every reader got, from the first receipt to the slowest reader's last.

    Raises:
        GroupFailed: a reader did not get as many messages as were sent.
    """
    if any(reader.count != sent.count for reader in readers):
        raise GroupFailed(f"sent {sent.count}, received {[reader.count for reader in readers]}")
    span_ns = max(reader.last_ns for reader in readers) - min(reader.first_ns for reader in readers)
    return (sent.count - 1) / span_ns * 1e9


def cpu_ns(sent: Sent, readers: Sequence[Taken]) -> float:
    """Return the CPU time per message of all processes together."""
    return 1e9 * (sent.cpu_s + sum(reader.cpu_s for reader in readers)) / sent.count


def half_round_trip_ns(round_trips: Callable[[], None], seconds: float) -> float:
    """Return the median half round trip after a warm-up; `round_trips` makes `ROUND_TRIPS_PER_BLOCK` of them."""
    warm_until = now_ns() + int(WARMUP_SHARE * seconds * 1e9)
    while now_ns() < warm_until:
        round_trips()
    samples, start = [], now_ns()
    stop = start + int(seconds * 1e9)
    while start < stop:
        round_trips()
        end = now_ns()
        samples.append(end - start)
        start = end
    return statistics.median(samples) / ROUND_TRIPS_PER_BLOCK / 2


def list_of_sizes(text: str) -> tuple[int, ...]:
    """Return the bytes in `64,1KiB,4MiB`."""
    try:
        return tuple(parse_bytes(part) for part in text.split(","))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def make_parser(description: str, sizes: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that the scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of A B (default: %(default)s)")
    parser.add_argument("--sizes", type=list_of_sizes, default=sizes, help=f"default: {sizes or 'by section'}")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 3], help="default: 1 3")
    parser.add_argument("--seconds", type=float, default=0.3, help="measured time per side (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    return parser


def size_label(size_bytes: int, readers: int) -> str:
    """Return `16 KiB, 3 readers`."""
    return f"{format_bytes(size_bytes)}, {readers} reader{'s' if readers > 1 else ''}"


def write_json(path: Path | None, tables: Mapping[str, Any]) -> None:
    """Write the figures with Python version, platform and command line; None writes nothing."""
    if path is None:
        return
    about = {"python": platform.python_version(), "platform": platform.platform(), "cores_count": os.cpu_count()}
    path.write_text(json.dumps({"about": {**about, "command": sys.argv}, **tables}, indent=1, default=asdict) + "\n")
