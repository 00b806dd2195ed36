"""Builds limits.c and runs it: what this machine allows between processes, in C. Alone, it prints those figures.

What does not live here: the measuring itself (limits.c), and the comparison with the backends (shm_vs_peers.py).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from ipcbench.backends.shm.backend import Layout
from ipcbench.spec import ChannelSpec
from ipcbench.util.units import format_bytes

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE / "limits.c"
_PROGRAM = _HERE / "build" / "limits"
_TIMEOUT_S = 60.0
_PROBE_ROUND_TRIPS = 100_000


class LimitsUnavailable(Exception):
    """The C program cannot be had here; the text says why."""


@functools.cache
def build() -> Path:
    """Return the program, compiled anew if its source is newer.

    Raises:
        LimitsUnavailable: no compiler, or it refuses.
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
    """Return why the C figures cannot be had here; empty if they can."""
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
    """Return one core for each process, None where there are not enough or they cannot be chosen."""
    if not sys.platform.startswith("linux"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return tuple(usable[:processes]) if len(usable) >= processes else None


def core_list(processes: int) -> str:
    """Return what the program expects as CORES."""
    return ",".join(map(str, cores(processes) or ())) or "-"


def probe_ns() -> float | None:
    """Return the half round trip of one word between the two cores in use; None without a compiler or a second core.

    It tells where a hypervisor has put the cores: near ones take tens of nanoseconds, far ones hundreds.
    """
    if why_not() or core_list(2) == "-":
        return None
    return float(call("probe", _PROBE_ROUND_TRIPS, core_list(2))["half_p50_ns"])


def ring_per_s(size_bytes: int, slots: int, readers: int, seconds: float, *, copy: bool) -> float:
    """Return messages per second through the C ring."""
    arguments = (int(copy), size_bytes, slots, readers, seconds, core_list(readers + 1))
    return float(call("ring", *arguments)["messages_per_s"])


def half_round_trip_ns(how: str, size_bytes: int, count: int) -> float:
    """Return the median half round trip, `how` being `spin` or `eventfd`."""
    return float(call(how, size_bytes, count, core_list(2))["half_p50_ns"])


def ring_slots(size_bytes: int, depth: int) -> int:
    """Return how many slots a `shm` channel of that depth has for messages of that size."""
    return Layout(ChannelSpec("ipcb-peers", max_message_bytes=size_bytes, depth=depth)).slots


def main() -> int:
    """Print the machine's figures as a Markdown table."""
    import _common  # here, since it imports this module

    options = _common.make_parser(__doc__.splitlines()[0], "64,1KiB,16KiB,256KiB,1MiB,4MiB").parse_args()
    if why_not():
        print(f"skipped: {why_not()}")
        return 0
    figures: list[dict[str, Any]] = []

    def show(what: str, unit: str, *arguments: object, key: str) -> None:
        values = [call(*arguments)[key] for _ in range(options.rounds)]
        figures.append({"what": what, "unit": unit, "figures": values})
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"| {what} | {middle:,.4g} {unit} | {low:,.4g}-{high:,.4g} |", flush=True)

    print("| what | median | min-max |\n|---|---:|---:|")
    pair = core_list(2)
    show("placement probe", "ns", "probe", _PROBE_ROUND_TRIPS, pair, key="half_p50_ns")
    show("spin, 64 B, half round trip", "ns", "spin", 64, 100_000, pair, key="half_p50_ns")
    show("eventfd, 64 B, half round trip", "ns", "eventfd", 64, 10_000, pair, key="half_p50_ns")
    for size in options.sizes:
        label = format_bytes(size)
        show(f"memcpy, {label}", "bytes/s", "memcpy", size, options.seconds, core_list(1), key="bytes_per_s")
        for readers in options.readers:
            for copy in (0, 1):
                how = "copied out" if copy else "zero-copy"
                slots, cores = ring_slots(size, 64), core_list(readers + 1)
                arguments = ("ring", copy, size, slots, readers, options.seconds, cores)
                show(
                    f"ring, {how}, {_common.size_label(size, readers)}", "messages/s", *arguments, key="messages_per_s"
                )
    _common.write_json(options.json, {"limits": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
