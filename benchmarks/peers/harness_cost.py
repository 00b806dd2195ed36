"""What measuring itself costs: the harness's loops over a transport that does nothing, per message and side.

The measurement is ipcbench/harness/floor.py; this script repeats it and prints the result.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict

import _common

from ipcbench.harness.floor import measure_floor
from ipcbench.results.model import Floor
from ipcbench.util.units import format_bytes, format_significant


def _line(what: str, unit: str, floors: list[Floor], pick: Callable[[Floor], float]) -> str:
    values = [pick(floor) for floor in floors]
    middle, low, high = (format_significant(value) for value in (statistics.median(values), min(values), max(values)))
    return f"| {what} | {middle} {unit} | {low}-{high} |"


def _copy_mb_per_s(size: str, floor: Floor) -> float:
    return floor.memcpy_bytes_per_s[size] / 1e6


def main() -> int:
    """Print the floor as a Markdown table: medians over the rounds."""
    parser = _common.make_parser(__doc__.splitlines()[0], "64,16KiB,256KiB,4MiB")
    options = parser.parse_args()
    floors = [measure_floor(options.sizes) for _ in range(options.rounds)]
    print("| what | median | min-max |\n|---|---:|---:|")
    print(_line("writer's loop, per message", "ns", floors, lambda floor: floor.writer_ns))
    print(_line("reader's loop, per message", "ns", floors, lambda floor: floor.reader_ns))
    print(_line("a clock reading", "ns", floors, lambda floor: floor.clock_ns))
    print(_line("the clock's step", "ns", floors, lambda floor: floor.clock_resolution_ns))
    for size in options.sizes:
        copies = functools.partial(_copy_mb_per_s, str(size))
        print(_line(f"memory copy of {format_bytes(size)}", "MB/s", floors, copies))
    _common.write_json(options.json, {"floor": [asdict(floor) for floor in floors]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
