"""How much less two equal backends differ in a round if they take turns than in windows in one piece; prints Markdown.

    python benchmarks/verdicts/turns.py [--backends shm,zmq] [--blocks 9]

Measures each backend twice under two names, for three rounds in turns and three in one piece, and so on. The figure is
the standard deviation of log(one / other) over all rounds and sizes.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from _options import at_least, carry_out
from recorded_rounds import log_times

from ipcbench.harness import sweep as sweep_module
from ipcbench.harness.sweep import run_sweep
from ipcbench.results.store import load_run
from ipcbench.selftest import sweep_for
from ipcbench.spec import SweepSpec

_SIZES_BYTES = (64, 1024, 16384)
_ROUNDS = 3
_WAYS = ("in one piece", "in turns")


def differences(sweep: SweepSpec) -> dict[str, list[float]]:
    """Measure; return for each metric the log ratio of the two backends in each round at each size."""
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as folder:
        logs = log_times(load_run(run_sweep(sweep, Path(folder))), sweep.rounds)
    return {
        metric: [
            median(one) - median(other)
            for cells in by_size.values()
            for one, other in zip(*cells.values(), strict=True)
            if one and other
        ]
        for metric, by_size in logs.items()
    }


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="shm,zmq")
    parser.add_argument(
        "--blocks", type=at_least(1), default=9, help="each of three rounds in turns and three in one piece"
    )
    options = parser.parse_args()
    as_planned = sweep_module.turns_for
    print(f"| backend | metric | {' | '.join(_WAYS)} | rounds × sizes |\n|---|---|---:|---:|---:|")
    for backend in options.backends.split(","):
        found: dict[str, dict[str, list[float]]] = {}
        for block in range(options.blocks):
            sweep = replace(
                sweep_for(backend, block + 1, _ROUNDS, ()), sizes=_SIZES_BYTES, modes=("pingpong", "saturate")
            )
            for way in _WAYS:
                sweep_module.turns_for = as_planned if way == "in turns" else lambda *_: 1
                for metric, logs in differences(sweep).items():
                    found.setdefault(metric, {}).setdefault(way, []).extend(logs)
        for metric, by_way in found.items():
            deviations = " | ".join(f"{np.std(by_way[way], ddof=1):.2f}" for way in _WAYS)
            print(f"| {backend} | {metric} | {deviations} | {min(map(len, by_way.values()))} |", flush=True)
    return 0


if __name__ == "__main__":
    carry_out(main)
