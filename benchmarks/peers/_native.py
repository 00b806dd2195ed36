"""Builds limits.c and runs it: what C achieves between processes, the placement probe, and the cores to pin to."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ipcbench.spec import ChannelSpec
from ipcbench.sync.ring_memory import Layout

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE / "limits.c"
_PROGRAM = _HERE / "build" / "limits"
_TIMEOUT_S = 60.0
PROBE_ROUND_TRIPS = 100_000


class LimitsUnavailable(Exception):
    """The C program is not available here; the text says why."""


@functools.cache
def build() -> Path:
    """Return the program; compile it if its source is newer.

    Raises:
        LimitsUnavailable: there is no compiler, or compiling failed.
    """
    if _PROGRAM.exists() and _PROGRAM.stat().st_mtime > _SOURCE.stat().st_mtime:
        return _PROGRAM
    compiler = shutil.which("cc")
    if compiler is None:
        raise LimitsUnavailable("there is no C compiler (`cc`) on this machine")
    _PROGRAM.parent.mkdir(exist_ok=True)
    fresh = _PROGRAM.with_name(f"limits-{os.getpid()}")
    command = [compiler, "-O2", "-std=c11", "-pthread", "-o", str(fresh), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LimitsUnavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    fresh.replace(_PROGRAM)
    return _PROGRAM


def why_not() -> str:
    """Return why the C figures are not available here; empty if they are."""
    try:
        build()
    except LimitsUnavailable as error:
        return str(error)
    return ""


def call(*arguments: object) -> dict[str, Any]:
    """Run the program and return its line of figures.

    Raises:
        LimitsUnavailable: not built, failed, or not done within a minute.
    """
    command = [str(build()), *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise LimitsUnavailable(f"`{' '.join(command)}` took more than {_TIMEOUT_S:g} s") from error
    if process.returncode:
        raise LimitsUnavailable(f"`{' '.join(command)}` failed: {err.strip()}")
    return dict(json.loads(out))


def cores(processes: int) -> tuple[int, ...] | None:
    """Return one core for each process; None if there are too few or they cannot be chosen."""
    if not sys.platform.startswith("linux"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return tuple(usable[:processes]) if len(usable) >= processes else None


def core_list(processes: int) -> str:
    """Return the CORES argument of the program."""
    return ",".join(map(str, cores(processes) or ())) or "-"


def probe_ns() -> float | None:
    """Return the half round trip of one word between the two cores in use; None without a compiler or a second core.

    It shows where a hypervisor has put the cores: near cores take tens of nanoseconds, far cores hundreds.
    """
    if why_not() or core_list(2) == "-":
        return None
    return float(call("probe", PROBE_ROUND_TRIPS, core_list(2))["half_p50_ns"])


def ring_per_s(size_bytes: int, slots: int, readers: int, seconds: float, *, copy: bool) -> float:
    """Return messages per second through the C ring."""
    arguments = (int(copy), size_bytes, slots, readers, seconds, core_list(readers + 1))
    return float(call("ring", *arguments)["messages_per_s"])


def half_round_trip_ns(how: str, size_bytes: int, count: int) -> float:
    """Return the median half round trip; `how` is `spin` or `eventfd`."""
    return float(call(how, size_bytes, count, core_list(2))["half_p50_ns"])


def ring_slots(size_bytes: int, depth: int) -> int:
    """Return how many slots a `shm` channel of this depth has for messages of this size."""
    return Layout(ChannelSpec("ipcb-peers", max_message_bytes=size_bytes, depth=depth)).slots
