"""A program: kill a recording process many times, at random moments, and compare what it said with what is on disk.

Usage: killed.py FOLDER TIMES. The child tells after each call, in shared memory, that it is complete. Every third child
records one call in eight, and counts the others; every tenth is killed while it begins.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
from pathlib import Path

from ipcbench import trace
from ipcbench.trace.readers.batch import Notes
from tests.trace.reading import calls_count, records


def method(number: int) -> str:
    return f"method {number % 7}" * (1 + number % 40)


def record_for_ever(said: mmap.mmap) -> None:
    number = 0
    shown = memoryview(said).cast("q")  # one store; struct.pack_into would clear the number first
    while True:
        with trace.call(method(number)) as call:
            call.serialized(number)
            call.sent()
            call.received(number + 1)
        number += 1
        shown[0] = number


def kill_once(folder: Path, wanted: int, sample: int) -> int:
    said = mmap.mmap(-1, 4096)
    pid = os.fork()
    if pid == 0:
        if sample > 1:
            trace.start(folder, sample=sample)
        record_for_ever(said)
    while struct.unpack_from("@q", said)[0] < wanted:
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    complete: int = struct.unpack_from("@q", said)[0]
    found = sorted(records(folder, Notes()), key=lambda one: one.sent_bytes)
    numbers = [one.sent_bytes for one in found]
    if sample == 1:
        assert complete <= len(found) <= complete + 1, (complete, len(found))
        assert numbers == list(range(len(found)))
    else:
        assert complete <= calls_count(folder) <= complete + 1, (complete, calls_count(folder))
        assert len(set(numbers)) == len(numbers)
        assert not numbers or numbers[-1] <= complete
    for one in found:
        assert (one.method, one.recv_bytes) == (method(one.sent_bytes), one.sent_bytes + 1)
        assert sum(one.stages.values()) == one.total_ns > 0
        assert not one.failed
    for path in folder.iterdir():
        path.unlink()
    return complete


def main(folder: Path, times: int) -> None:
    chosen = random.Random(1)
    trace.start(folder)
    total = 0
    for turn in range(times):
        wanted = 0 if turn % 10 == 9 else int(10 ** chosen.uniform(0, 4.3))
        total += kill_once(folder, wanted, 8 if turn % 3 == 2 else 1)
    trace.stop()
    print(f"{times} kills, {total} records, none lost, none invented")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
