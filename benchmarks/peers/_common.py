"""What the side-by-side scripts share: options, process groups, the frame of the timed loops.

The alternating rounds and their table are in _rounds.py; their names are re-exported here.

A *role* is a generator function: it opens its endpoint, yields, works, yields its figures, and closes. A group opens
its roles one after another, starts them together, and lets them close when all have finished.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import _native
from _rounds import GroupFailed, Row, compare, print_rows

from ipcbench.errors import ConfigError
from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_bytes, parse_bytes

__all__ = [
    "BODY",
    "MARKER",
    "ROUND_TRIPS_PER_BLOCK",
    "GroupFailed",
    "Role",
    "Row",
    "batch_of",
    "compare",
    "half_round_trip_ns",
    "make_parser",
    "print_rows",
    "run_group",
    "send_for",
    "size_label",
    "throughput_per_s",
    "write_json",
]

BODY, MARKER = 0, 1
"""First byte of a message: an ordinary message, or the last of the warm-up or of the measurement."""

WARMUP_SHARE = 0.2
ROUND_TRIPS_PER_BLOCK = 16
"""Timed as a whole, as in limits.c: reading the clock takes as long as a fast round trip."""

_GRACE_S = 30.0

Role = Iterator[Any]
"""What calling a role returns."""


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


def batch_of(size_bytes: int) -> int:
    """Return how many messages a writer sends between two clock readings."""
    return max(1, 2**18 // (size_bytes + 1024))


def send_for(send: Callable[[bool], None], seconds: float, size_bytes: int) -> int:
    """Send for the time of the warm-up, then a marker, then for `seconds`, then a marker.

    `send(last)` sends one marker if `last`, else `batch_of(size_bytes)` ordinary messages. Returns the number of
    messages in the window, its marker included.
    """
    batch, count = batch_of(size_bytes), 0
    for span_s in (WARMUP_SHARE * seconds, seconds):
        stop, count = now_ns() + int(span_s * 1e9), 1
        while now_ns() < stop:
            send(False)
            count += batch
        send(True)
    return count


def throughput_per_s(sent_count: int, readers: Sequence[tuple[int, int, int]]) -> float:
    """Return messages per second that every reader got, from the first receipt to the slowest reader's last.

    `readers` has (count, first receipt ns, last receipt ns) for each reader. Raises GroupFailed if a count differs
    from `sent_count`.
    """
    if any(count != sent_count for count, _, _ in readers):
        raise GroupFailed(f"sent {sent_count}, received {[count for count, _, _ in readers]}")
    span_ns = max(last for _, _, last in readers) - min(first for _, first, _ in readers)
    return (sent_count - 1) / span_ns * 1e9


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
