"""A program: kill a recording process many times, at random moments, and compare what it said with what is on disk.

Usage: killed.py FOLDER TIMES. The child tells after each call, in shared memory, that it is complete.
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
from tests.trace.reading import records


def record_for_ever(said: mmap.mmap) -> None:
    number = 0
    shown = memoryview(said).cast("q")  # one store; struct.pack_into would clear the number first
    while True:
        with trace.call(f"method {number % 7}" * (1 + number % 40)) as call:
            call.serialized(number)
            call.sent()
            call.received(number + 1)
        number += 1
        shown[0] = number


def kill_once(folder: Path, chosen: random.Random) -> int:
    said = mmap.mmap(-1, 4096)
    wanted = int(10 ** chosen.uniform(0, 4))
    pid = os.fork()
    if pid == 0:
        record_for_ever(said)
    while struct.unpack_from("@q", said)[0] < wanted:
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    complete = struct.unpack_from("@q", said)[0]
    found = sorted(one.sent_bytes for one in records(folder, Notes()))
    assert complete <= len(found) <= complete + 1, (complete, len(found))
    assert found == list(range(len(found)))
    for path in folder.iterdir():
        path.unlink()
    return complete


def main(folder: Path, times: int) -> None:
    chosen = random.Random(1)
    trace.start(folder)
    total = sum(kill_once(folder, chosen) for _ in range(times))
    trace.stop()
    print(f"{times} kills, {total} records, none lost, none invented")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
