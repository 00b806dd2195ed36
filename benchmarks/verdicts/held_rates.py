"""How often paced trials fail beside busy neighbours, at a rate that a transport holds and at one that none can hold.

Beside each number of busy loops, each backend has paced trials at the default rate, which should not fail, and at twice
the throughput that it has without busy loops, which should all fail. Prints Markdown.

    python benchmarks/verdicts/held_rates.py [--backends shm,pipe,zmq,lmdb,mpi] [--trials 100] [--busy 0,2,4]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from _options import at_least, carry_out

from ipcbench.analysis.summary.notes import others_cpu_ratio, stamped_count
from ipcbench.harness.sweep import run_sweep
from ipcbench.processes.neighbours import busy_neighbours
from ipcbench.results.model import TrialResult
from ipcbench.results.store import load_run
from ipcbench.spec import SweepSpec

_MAX_RATE_PER_S = 1e6
_HEADS = (
    "busy loops",
    "rate",
    "backend",
    "trials",
    "failed",
    "rate not held",
    "behind after a stall",
    "noisy",
    "CPU of others",
)


def trials_of(sweep: SweepSpec) -> tuple[TrialResult, ...]:
    """Carry out a sweep and return its trials."""
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as folder:
        return load_run(run_sweep(sweep, Path(folder))).trials


def saturated_per_s(plain: SweepSpec, backend: str) -> float:
    """Return the saturated throughput of a backend, messages per second: median of three rounds."""
    trials = trials_of(replace(plain, backends=(backend,), modes=("saturate",), rounds=3))
    return median(trial.throughput_per_s for trial in trials if trial.throughput_per_s)


def row(busy: int, rate: str, backend: str, trials: Sequence[TrialResult]) -> str:
    """Return a line of the table."""
    failed = [trial for trial in trials if trial.status != "ok"]
    others = others_cpu_ratio(trials)
    cells = (
        busy,
        rate,
        backend,
        len(trials),
        len(failed),
        sum("the rate was not held" in trial.reason for trial in failed),
        stamped_count(trials, "ended behind"),
        stamped_count(trials, "noisy"),
        "unknown" if others is None else f"{others:.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="shm,pipe,zmq,lmdb,mpi")
    parser.add_argument(
        "--trials", type=at_least(1), default=100, help="of each backend, rate and number of busy loops"
    )
    parser.add_argument("--busy", default="0,2,4", help="numbers of busy loops")
    parser.add_argument("--readers", type=at_least(1), default=1)
    parser.add_argument(
        "--size",
        type=at_least(1),
        default=1000,
        help="entries of the dict; small ones pass too fast to ask for twice",
    )
    options = parser.parse_args()
    names = tuple(options.backends.split(","))
    plain = SweepSpec(
        backends=names,
        readers=options.readers,
        sizes=(options.size,),
        modes=("paced",),
        rounds=options.trials,
        budget_s=7 * 24 * 3600.0,
        control=False,
    )
    saturated = {name: saturated_per_s(plain, name) for name in names}
    print(f"| {' | '.join(_HEADS)} |\n|---:|---|---|{6 * '---:|'}")
    for busy in map(int, options.busy.split(",")):
        with busy_neighbours(busy):
            found = trials_of(plain)
            for name in names:
                mine = [trial for trial in found if trial.spec.backend == name]
                print(row(busy, f"{mine[0].spec.rate_per_s:,.0f}/s", name, mine), flush=True)
            for name, rate_per_s in saturated.items():
                twice = min(_MAX_RATE_PER_S, 2.0 * rate_per_s)
                mine = list(trials_of(replace(plain, backends=(name,), rate_per_s=twice)))
                print(row(busy, f"{twice:,.0f}/s", name, mine), flush=True)
    return 0


if __name__ == "__main__":
    carry_out(main)
