"""Whether two runs in a row ever claim opposite orders: repeats a sweep and compares the claims; prints Markdown.

A rank claims that a cell is clearly slower than the best of each group before its own, and says nothing about the
others there (docs/method.md). A reversal is a pair of backends that two runs put in opposite orders. A pair that one
of the runs cannot tell apart is no reversal.

    python benchmarks/verdicts/rank_stability.py [--sweep default] [--runs 11] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

from _options import at_least, carry_out

from ipcbench.analysis.summary.cells import Setting, Summary
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.sweep import run_sweep
from ipcbench.results.store import load_run
from ipcbench.sweeps.load import load_sweep

Claims = dict[tuple[Setting, str], set[tuple[str, str]]]
"""By setting and metric: pairs whose first backend is claimed to be faster."""


def claims_of(summary: Summary) -> Claims:
    """Return what a run claims about each setting, by each of its metrics."""
    by_setting: Claims = {}
    for setting in summary.settings:
        if setting.ranked_by == "latency":
            by_setting[setting.setting, "latency"] = claims(
                [
                    (cell.rank, cell.latency_p50_ns.estimate, cell.backend)
                    for cell in setting.cells
                    if cell.rank and cell.latency_p50_ns
                ]
            )
        by_setting[setting.setting, "round trip"] = claims(
            [
                (cell.round_trip_rank, cell.round_trip_p50_ns.estimate, cell.backend)
                for cell in setting.cells
                if cell.round_trip_rank and cell.round_trip_p50_ns
            ]
        )
        by_setting[setting.setting, "throughput"] = claims(
            [
                (cell.throughput_rank, -cell.throughput_per_s, cell.backend)
                for cell in setting.cells
                if cell.throughput_rank and cell.throughput_per_s
            ]
        )
    return by_setting


def claims(cells: list[tuple[int, float, str]]) -> set[tuple[str, str]]:
    """Return what ranks claim: each group's best is faster than every cell of a later group."""
    best: dict[int, str] = {}
    for rank, _, name in sorted(cells):
        best.setdefault(rank, name)
    return {(leader, name) for group, leader in best.items() for rank, _, name in cells if rank > group}


def reversals(first: Claims, second: Claims) -> list[str]:
    """Return the pairs that the two runs put in opposite orders, in words."""
    return [
        f"{metric}, {setting.payload_bytes:,} B: {name} and {other}"
        for (setting, metric), pairs in first.items()
        for name, other in sorted(pairs)
        if (other, name) in second.get((setting, metric), set())
    ]


def main() -> int:
    """Run, compare neighbours, print; exit 1 if there was a reversal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweep", default="default")
    parser.add_argument("--runs", type=at_least(2), default=11, help="one more than the number of comparisons")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs; existing runs are read first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sweep = load_sweep(options.sweep)
        while len(list(folder.iterdir())) < options.runs:
            run_sweep(sweep, folder)
        by_run = [claims_of(summarise(load_run(path))) for path in sorted(folder.iterdir())[: options.runs]]
    print("| runs | orders claimed in both | reversals |\n|---|---:|---|")
    wrong = 0
    for number, (first, second) in enumerate(pairwise(by_run)):
        contradicted = reversals(first, second)
        wrong += bool(contradicted)
        print(f"| {number + 1}, {number + 2} | {claimed(first, second)} | {'; '.join(contradicted) or 'none'} |")
    print(f"\n{len(by_run) - 1 - wrong} of {len(by_run) - 1} pairs of runs without a reversal")
    return int(wrong > 0)


def claimed(first: Claims, second: Claims) -> int:
    """Return how many pairs of backends both runs put in an order."""
    return sum(
        len({frozenset(pair) for pair in pairs} & {frozenset(pair) for pair in second.get(key, set())})
        for key, pairs in first.items()
    )


if __name__ == "__main__":
    carry_out(main)
