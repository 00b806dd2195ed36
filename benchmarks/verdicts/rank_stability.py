"""Check that consecutive runs never claim opposite orders: run a sweep repeatedly and compare; prints Markdown.

A rank claims that a cell is clearly slower than the best of each group before its own, and nothing about the others
(docs/method.md). A reversal is a pair of backends for which two runs claim opposite orders. A pair that one of the runs
cannot tell apart is not a reversal.

    python benchmarks/verdicts/rank_stability.py [--sweep default] [--runs 11] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from ipcbench.analysis.summary.cells import Setting, Summary
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.sweep import run_sweep
from ipcbench.results.store import load_run
from ipcbench.sweeps.load import load_sweep

Claims = dict[tuple[Setting, str], set[tuple[str, str]]]
"""By setting and metric: pairs of which the first is said to be faster."""


def claims_of(summary: Summary) -> Claims:
    """Return what a run says of each setting, by each of its metrics."""
    found: Claims = {}
    for one in summary.settings:
        if one.ranked_by == "latency":
            found[one.setting, "latency"] = claims(
                [
                    (cell.rank, cell.latency_p50_ns.estimate, cell.backend)
                    for cell in one.cells
                    if cell.rank and cell.latency_p50_ns
                ]
            )
        found[one.setting, "round trip"] = claims(
            [
                (cell.round_trip_rank, cell.round_trip_p50_ns.estimate, cell.backend)
                for cell in one.cells
                if cell.round_trip_rank and cell.round_trip_p50_ns
            ]
        )
        found[one.setting, "throughput"] = claims(
            [
                (cell.throughput_rank, -cell.throughput_per_s, cell.backend)
                for cell in one.cells
                if cell.throughput_rank and cell.throughput_per_s
            ]
        )
    return found


def claims(cells: list[tuple[int, float, str]]) -> set[tuple[str, str]]:
    """Return what ranks claim: each group's best is faster than whoever is in a later group."""
    best: dict[int, str] = {}
    for rank, _, name in sorted(cells):
        best.setdefault(rank, name)
    return {(leader, name) for group, leader in best.items() for rank, _, name in cells if rank > group}


def reversals(first: Claims, second: Claims) -> list[str]:
    """Return the pairs of which the two runs claim opposite orders, in words."""
    return [
        f"{metric}, {setting.payload_bytes:,} B: {one} and {other}"
        for (setting, metric), pairs in first.items()
        for one, other in sorted(pairs)
        if (other, one) in second.get((setting, metric), set())
    ]


def main() -> int:
    """Run, compare neighbours, print; exit 1 if there was a reversal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweep", default="default")
    parser.add_argument("--runs", type=int, default=11, help="one more than there are comparisons")
    parser.add_argument("--keep", type=Path, help="folder in which the runs stay, and from which such are read first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sweep = load_sweep(options.sweep)
        while len(list(folder.iterdir())) < options.runs:
            run_sweep(sweep, folder)
        found = [claims_of(summarise(load_run(path))) for path in sorted(folder.iterdir())[: options.runs]]
    print("| runs | orders claimed in both | reversals |\n|---|---:|---|")
    wrong = 0
    for number, (first, second) in enumerate(pairwise(found)):
        contradicted = reversals(first, second)
        wrong += bool(contradicted)
        print(f"| {number + 1}, {number + 2} | {claimed(first, second)} | {'; '.join(contradicted) or 'none'} |")
    print(f"\n{len(found) - 1 - wrong} of {len(found) - 1} pairs of runs without a reversal")
    return int(wrong > 0)


def claimed(first: Claims, second: Claims) -> int:
    """Return how many pairs of backends both runs put in an order."""
    return sum(
        len({frozenset(one) for one in pairs} & {frozenset(one) for one in second.get(key, set())})
        for key, pairs in first.items()
    )


if __name__ == "__main__":
    sys.exit(main())
