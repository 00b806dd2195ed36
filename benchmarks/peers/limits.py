"""Prints what C achieves between processes on this machine (limits.c): the limit for every backend."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import _common
import _native

from ipcbench.util.units import format_bytes


def main() -> int:
    """Print the figures as a Markdown table."""
    options = _common.make_parser(__doc__.splitlines()[0], "64,1KiB,16KiB,256KiB,1MiB,4MiB").parse_args()
    if _native.why_not():
        print(f"skipped: {_native.why_not()}")
        return 0
    figures: list[dict[str, Any]] = []

    def show(label: str, unit: str, *arguments: object, key: str) -> None:
        values = [_native.call(*arguments)[key] for _ in range(options.rounds)]
        figures.append({"what": label, "unit": unit, "figures": values})
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"| {label} | {middle:,.4g} {unit} | {low:,.4g}-{high:,.4g} |", flush=True)

    print("| what | median | min-max |\n|---|---:|---:|")
    pair = _native.core_list(2)
    show("placement probe", "ns", "probe", _native.PROBE_ROUND_TRIPS, pair, key="half_p50_ns")
    show("spin, 64 B, half round trip", "ns", "spin", 64, 100_000, pair, key="half_p50_ns")
    show("eventfd, 64 B, half round trip", "ns", "eventfd", 64, 10_000, pair, key="half_p50_ns")
    show("futex, 64 B, half round trip", "ns", "futex", 64, 10_000, pair, key="half_p50_ns")
    for size in options.sizes:
        copying = ("memcpy", size, options.seconds, _native.core_list(1))
        show(f"memcpy, {format_bytes(size)}", "bytes/s", *copying, key="bytes_per_s")
        for readers in options.readers:
            for copy in (0, 1):
                how = "copied out" if copy else "zero-copy"
                slots, cores = _native.ring_slots(size, 64), _native.core_list(readers + 1)
                arguments = ("ring", copy, size, slots, readers, options.seconds, cores)
                show(
                    f"ring, {how}, {_common.size_label(size, readers)}", "messages/s", *arguments, key="messages_per_s"
                )
    _common.write_json(options.json, {"limits": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
