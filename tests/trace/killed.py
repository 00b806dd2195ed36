"""A program: kill a recording process many times, at random moments, and compare what it reported with what is on disk.

Usage: killed.py FOLDER TIMES. After each call, the child reports in shared memory that the call is complete. Every
third child records one call in eight and counts the others; every tenth is killed while it begins.
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
from tests.trace.reading import calls_count, check_whole, records


def method(number: int) -> str:
    return f"method {number % 7}" * (1 + number % 40)


def record_for_ever(reported: mmap.mmap) -> None:
    number = 0
    shown = memoryview(reported).cast("q")  # one store; struct.pack_into would clear the number first
    while True:
        with trace.call(method(number)) as call:
            call.serialized(number)
            call.sent()
            call.received(number + 1)
        number += 1
        shown[0] = number


def kill_once(folder: Path, wanted: int, sample: int) -> int:
    reported = mmap.mmap(-1, 4096)
    pid = os.fork()
    if pid == 0:
        if sample > 1:
            trace.start(folder, sample=sample)
        record_for_ever(reported)
    while struct.unpack_from("@q", reported)[0] < wanted:
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    complete: int = struct.unpack_from("@q", reported)[0]
    calls = sorted(records(folder), key=lambda call: call.sent_bytes)
    numbers = [call.sent_bytes for call in calls]
    if sample == 1:
        assert complete <= len(calls) <= complete + 1, (complete, len(calls))
        assert numbers == list(range(len(calls)))
    else:
        assert complete <= calls_count(folder) <= complete + 1, (complete, calls_count(folder))
        assert len(set(numbers)) == len(numbers)
        assert not numbers or numbers[-1] <= complete
    check_whole(calls)
    for call in calls:
        assert (call.method, call.recv_bytes, call.failed) == (method(call.sent_bytes), call.sent_bytes + 1, False)
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
