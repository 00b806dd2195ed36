"""Busy neighbours: processes that do nothing but use a core, beside a trial that asked for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ipcbench.errors import TrialError

_PROGRAM = """
import os, sys
parent, loops = int(sys.argv[1]), range(500_000)
os.write(1, b"!")
while os.getppid() == parent:  # about every 10 ms: it ends with its parent, however that went
    for _ in loops:
        pass
"""


@contextmanager
def busy_neighbours(count: int) -> Iterator[tuple[int, ...]]:
    """Run `count` processes that each keep a core busy, for the length of a `with` block; yield their process IDs.

    The block begins when all of them are busy.

    Raises:
        TrialError: one of them did not start.
    """
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(_start(command))  # noqa: PERF401 - those before a failure must be ended
        for process in started:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            if not process.stdout.read(1):
                raise TrialError("a busy neighbour did not start")
        yield tuple(process.pid for process in started)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise TrialError(f"a busy neighbour did not start: {error.strerror}") from error
