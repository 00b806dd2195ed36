"""Whether two runs in a row ever claim opposite orders: runs a sweep again and again and compares the ranks; prints
Markdown.

What does not live here: false positives and missed slow-downs of single verdicts (`ipcbench selftest`).

A reversal is a pair of backends of one setting of which each run calls another one faster. A pair that one run
cannot tell apart reverses nothing.

    python benchmarks/verdicts/rank_stability.py [--sweep default] [--runs 11] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import combinations, pairwise
from pathlib import Path

from ipcbench.analysis.cells import Setting, Summary
from ipcbench.analysis.summary import summarise
from ipcbench.harness.sweep import run_sweep
from ipcbench.store import load_run
from ipcbench.sweepfile import load_sweep

Ranks = dict[tuple[Setting, str], dict[str, int]]


def ranks_of(summary: Summary) -> Ranks:
    """Return, for each setting and each of its orders, backend → rank."""
    found: Ranks = {}
    for one in summary.settings:
        found[one.setting, str(one.ranked_by)] = {cell.backend: cell.rank for cell in one.cells if cell.rank}
        found[one.setting, "round trip"] = {
            cell.backend: cell.round_trip_rank for cell in one.cells if cell.round_trip_rank
        }
        found[one.setting, "throughput"] = {
            cell.backend: cell.throughput_rank for cell in one.cells if cell.throughput_rank
        }
    return found


def reversals(first: Ranks, second: Ranks) -> list[str]:
    """Return the pairs whose claimed orders contradict each other, in words."""
    found = []
    for (setting, metric), ranks in first.items():
        others = second.get((setting, metric), {})
        for one, other in combinations(sorted(set(ranks) & set(others)), 2):
            if (ranks[one] - ranks[other]) * (others[one] - others[other]) < 0:
                found.append(f"{metric}, {setting.payload_bytes:,} B: {one} and {other}")
    return found


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
        found = [ranks_of(summarise(load_run(path))) for path in sorted(folder.iterdir())[: options.runs]]
    print("| runs | orders claimed in both | reversals |\n|---|---:|---|")
    wrong = 0
    for number, (first, second) in enumerate(pairwise(found)):
        contradicted = reversals(first, second)
        wrong += bool(contradicted)
        print(f"| {number + 1}, {number + 2} | {claimed(first, second)} | {'; '.join(contradicted) or 'none'} |")
    print(f"\n{len(found) - 1 - wrong} of {len(found) - 1} pairs of runs without a reversal")
    return int(wrong > 0)


def claimed(first: Ranks, second: Ranks) -> int:
    """Return how many pairs of backends both runs put in an order."""
    count = 0
    for key, ranks in first.items():
        others = second.get(key, {})
        both = combinations(sorted(set(ranks) & set(others)), 2)
        count += sum(ranks[one] != ranks[other] and others[one] != others[other] for one, other in both)
    return count


if __name__ == "__main__":
    sys.exit(main())
