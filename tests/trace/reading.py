"""Whole traces in lists, and threads and programs that make them, for tests."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from ipcbench.trace.readers.batch import Batch, Bulk, Notes
from ipcbench.trace.readers.join import find_servers
from ipcbench.trace.readers.own import read_histograms, read_segment

ROOT = Path(__file__).parents[2]


class KeepingContext(zmq.Context[zmq.Socket[bytes]]):
    """A context whose sockets live until it is destroyed."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["kept"] = []

    def socket(self, *arguments: Any, **options: Any) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = super().socket(*arguments, **options)
        self.__dict__["kept"].append(made)
        return made


@dataclass(frozen=True, slots=True)
class Record:
    method: str
    stages: dict[str, int]
    total_ns: int
    sent_bytes: int
    recv_bytes: int
    failed: bool


def records(folder: Path) -> list[Record]:
    every = []
    for path in sorted(folder.glob("*.ipct")):
        for batch in read_segment(path, Notes()):
            rows: Any = zip(
                batch.method.tolist(), batch.stage_ns.tolist(), batch.total_ns.tolist(), batch.sent_bytes.tolist(),
                batch.recv_bytes.tolist(), batch.failed.tolist(), strict=True,
            )  # fmt: skip
            every += [
                Record(batch.methods[method], dict(zip(batch.stages, stages, strict=True)), *rest)
                for method, stages, *rest in rows
            ]
    return every


def histograms(folder: Path) -> list[Bulk]:
    return [bulk for path in sorted(folder.glob("*.ipch")) for bulk in read_histograms(path, Notes())]


def calls_count(folder: Path) -> int:
    """Return how many calls the files of a folder hold, with and without records."""
    return len(records(folder)) + sum(int(bulk.counts.sum()) + bulk.untimed_count for bulk in histograms(folder))


def batches(*folders: Path) -> list[Batch]:
    """Return the records of folders as batches, each call joined to its server's record."""
    paths = [path for folder in folders for path in sorted(folder.glob("*.ipct"))]
    servers = find_servers(paths, Notes())
    return [servers.join(batch) for path in paths for batch in read_segment(path, Notes())]


def check_whole(calls: Iterable[Record]) -> None:
    for call in calls:
        assert sum(call.stages.values()) == call.total_ns > 0, call


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Do the work in threads at once, each with its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_program(code: str, *arguments: object, under: Iterable[str] = (), succeeds: bool = True) -> str:
    """Run code in a process of its own, below another program if one is given; return what it prints."""
    command = [*under, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == succeeds, done.stderr
    return done.stdout
