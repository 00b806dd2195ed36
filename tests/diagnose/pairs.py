"""Pairs of real processes for the tests: each says `ready`, then waits on its standard input."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT = "\nprint('ready', flush=True)\nsys.stdin.readline()\n"


@contextmanager
def program(*command: str, pass_fds: tuple[int, ...] = (), env: dict[str, str] | None = None) -> Iterator[int]:
    """Start a program, wait until it is ready, and end it afterwards."""
    with started(*command, pass_fds=pass_fds, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), line
        yield int(line.split()[1]) if len(line.split()) > 1 else process.pid


@contextmanager
def started(
    *command: str, pass_fds: tuple[int, ...] = (), env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a program; end it afterwards."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds, cwd=ROOT, env=env
    )
    try:
        yield process
    finally:
        try:
            process.communicate("\n\n", timeout=30)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            process.kill()
            process.wait()


def python(code: str) -> tuple[str, ...]:
    """Return the command of a process that runs the code, says `ready` and waits."""
    return (sys.executable, "-c", f"import os, sys, socket, mmap\n{code}{WAIT}")


@contextmanager
def both(first: str, second: str, pass_fds: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
    """Start two processes at once, as each may wait for the other; yield their numbers when both are ready."""
    with started(*python(first), pass_fds=pass_fds) as one, started(*python(second), pass_fds=pass_fds) as two:
        for process in (one, two):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield one.pid, two.pid


@contextmanager
def forked(code: str) -> Iterator[tuple[int, int]]:
    """Start a process that makes another in `code`, as the variable `child`; yield the numbers of both."""
    command = (sys.executable, "-c", f"import os, sys, socket, mmap\n{code}\nprint('ready', child, flush=True)\n"
               "sys.stdin.readline()\nos.kill(child, 9)\n")  # fmt: skip
    with started(*command) as parent:
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline().split()[1])
