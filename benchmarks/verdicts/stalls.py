"""Whether stalls of known length show in the tail of the default paced figures as theory says; prints Markdown.

A backend whose writer, or whose readers, stall for 50 ms at every 400th message is measured beside the same backend
without stalls, so that both take turns. The quantiles come from the windows in one piece, as p99 in the tables does.

    python benchmarks/verdicts/stalls.py [--backend shm] [--stall-ms 50] [--every 400] [--rounds 5]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _options import at_least, carry_out

from ipcbench.harness.sweep import run_sweep
from ipcbench.results.store import Run, load_run
from ipcbench.spec import SweepSpec
from ipcbench.testing.faults.stalled import stalled_name, tail_ns

_QUANTILES = (0.95, 0.99)


def quantiles_ns(run: Run, backend: str, *, tail: bool) -> list[float]:
    """Return the quantiles of a backend's one-way latencies, in windows of one piece or in turns."""
    trials = [trial for trial in run.trials if trial.spec.backend == backend and trial.spec.tail == tail]
    columns = [run.samples(trial.trial_id, (".latency_ns",)).values() for trial in trials if trial.status == "ok"]
    values = np.concatenate([column for parts in columns for column in parts])
    return [float(np.quantile(values, share)) for share in _QUANTILES]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backend", default="shm")
    parser.add_argument("--stall-ms", type=int, default=50)
    parser.add_argument("--every", type=at_least(1), default=400)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    options = parser.parse_args()
    print("| who stalls | quantile | theory, ms | in one piece, ms | ratio | in turns, ms |")
    print("|---|---|---:|---:|---:|---:|")
    for side in ("writer", "reader"):
        name = stalled_name(options.backend, side, options.stall_ms, options.every)
        sweep = SweepSpec(backends=(options.backend, name), sizes=(10,), modes=("paced",), rounds=options.rounds)
        with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as folder:
            run = load_run(run_sweep(sweep, Path(folder)))
            whole, in_turns = (quantiles_ns(run, name, tail=tail) for tail in (True, False))
        for share, found, cut in zip(_QUANTILES, whole, in_turns, strict=True):
            theory = tail_ns(share, options.stall_ms, options.every)
            row = (side, f"p{100 * share:.0f}", *(f"{ns / 1e6:.1f}" for ns in (theory, found)), f"{found / theory:.2f}")
            print(f"| {' | '.join((*row, f'{cut / 1e6:.1f}'))} |", flush=True)


if __name__ == "__main__":
    carry_out(main)
