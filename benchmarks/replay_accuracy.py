"""How accurate are replays? Records the example over each transport, replays it over each, and runs it there for real.

    python benchmarks/replay_accuracy.py [--calls 300] [--clients 1] [--cycles 16] [--transports zmq,zmq-tcp,shm,pipe]

In each cycle, in shuffled order, every transport carries the traced example for real; right after that, the trace is
replayed once over all transports. Single cycles are not judged. The medians over all cycles are: predicted for each
pair of source and target, measured for each target.

The pairs of a transport with itself are shown but do not count: nobody needs them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np

from ipcbench.replay.clients import read_traffic
from ipcbench.replay.outcome import conclude
from ipcbench.replay.run import Request, replay
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.decisions import compare
from ipcbench.stats.estimates import ratio

SERVICE = Path(__file__).parents[1] / "examples" / "tensor_service" / "service.py"
WAYS = ("predicted", "recorded + difference of replays", "α + β·bytes table")
"""The prediction that counts: the replay; the prediction if the server's work is unknown; the table."""

MEDIAN_LIMIT, WORST_LIMIT = 0.05, 0.15
MEDIAN_LIMIT_SHARED = 0.1
"""With several clients, which wait for one another; the worst pair and the ranking are then only shown."""

Pairs = dict[tuple[str, str], list[float]]


def rewired_s(transport: str, calls: int, clients: int, folder: Path) -> float:
    """Run the example for real; return how long its calls took, in s."""
    command = [sys.executable, str(SERVICE), "--transport", transport, "--calls", str(calls)]
    command += ["--clients", str(clients), "--trace", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return float(json.loads(done.stdout)["seconds"])


def cycle(
    index: int,
    transports: tuple[str, ...],
    calls: int,
    clients: int,
    real: dict[str, list[float]],
    ways: dict[str, Pairs],
) -> None:
    order = list(transports)
    random.Random(index).shuffle(order)
    with tempfile.TemporaryDirectory() as root:
        for source in order:
            folder = Path(root) / source
            real[source].append(rewired_s(source, calls, clients, folder))
            request = Request(transports, rounds=1, calls_count=calls, source=source, seed=index)
            outcome = conclude(replay(read_traffic(folder), request))
            itself_ns = next(backend.replayed_ns for backend in outcome.backends if backend.name == source)
            for backend in outcome.backends:
                difference_ns = outcome.recorded_ns + backend.replayed_ns - itself_ns
                figures = (backend.predicted_ns.estimate, difference_ns, backend.table_ns)
                for way, figure_ns in zip(WAYS, figures, strict=True):
                    ways[way][source, backend.name].append(figure_ns / 1e9)
            print(f"cycle {index + 1}: {source} {real[source][-1]:.3f} s", file=sys.stderr)


def table_of_errors(transports: tuple[str, ...], real: dict[str, list[float]], pairs: Pairs, title: str) -> list[float]:
    print(f"\n{title}: predicted / measured − 1")
    print(f"  {'from':10s}" + "".join(f"{target:>10s}" for target in transports))
    errors = []
    for source in transports:
        cells = []
        for target in transports:
            error = median(pairs[source, target]) / median(real[target]) - 1
            cells.append(f"{error:+9.1%} ")
            if source != target:
                errors.append(abs(error))
        print(f"  {source:10s}" + "".join(cells))
    print(f"  {len(errors)} pairs: median {median(errors):.1%}, worst {max(errors):.1%}")
    return errors


def ranking_faults(transports: tuple[str, ...], real: dict[str, list[float]], pairs: Pairs) -> list[str]:
    """Return every pair of transports that a replay put in the wrong order instead of calling it a tie."""
    faults = []
    for source in transports:
        cells = {target: pairs[source, target] for target in transports}
        estimates = {target: median_estimate(cell, np.random.default_rng(1)) for target, cell in cells.items()}
        for name, other in combinations(transports, 2):
            first, second = estimates[name], estimates[other]
            assert first is not None and second is not None, "two cycles at least"  # noqa: PT018
            verdict = compare(ratio(first, second))
            really = median(real[name]) / median(real[other])
            if verdict != "no clear difference" and (verdict == "faster") != (really < 1):
                faults.append(f"{source}: {name} {verdict} than {other}, really {really:.3f} times as long")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--clients", type=int, default=1, help="that share the server")
    parser.add_argument("--cycles", type=int, default=16)
    parser.add_argument("--transports", default="zmq,zmq-tcp,shm,pipe")
    parser.add_argument("--json", default="", metavar="FILE", help="write the raw times to this file")
    options = parser.parse_args()
    transports = tuple(options.transports.split(","))
    real: dict[str, list[float]] = {name: [] for name in transports}
    ways: dict[str, Pairs] = {
        way: {(source, target): [] for source in transports for target in transports} for way in WAYS
    }
    begin = time.monotonic()
    for index in range(max(2, options.cycles)):
        cycle(index, transports, options.calls, options.clients, real, ways)
    size = f"{options.clients} × {options.calls} calls, {len(real[transports[0]])} cycles"
    print(f"{size}, {time.monotonic() - begin:.0f} s; measured, s:")
    for name, times in real.items():
        print(f"  {name:10s} median {median(times):.3f}  from {min(times):.3f} to {max(times):.3f}")
    errors, *_ = [table_of_errors(transports, real, pairs, way) for way, pairs in ways.items()]
    faults = ranking_faults(transports, real, ways[WAYS[0]])
    print("\nranking: " + ("right, ties aside" if not faults else "; ".join(faults)))
    if options.json:
        named = {way: {"→".join(pair): times for pair, times in pairs.items()} for way, pairs in ways.items()}
        raw = {"real": real, **named}
        Path(options.json).write_text(json.dumps(raw, indent=1), encoding="utf-8")
    if options.clients > 1:
        met = median(errors) <= MEDIAN_LIMIT_SHARED
        print(f"median ≤ {MEDIAN_LIMIT_SHARED:.0%}: {'met' if met else 'not met'}")
    else:
        met = median(errors) <= MEDIAN_LIMIT and max(errors) <= WORST_LIMIT and not faults
        print(f"median ≤ {MEDIAN_LIMIT:.0%}, worst ≤ {WORST_LIMIT:.0%}, ranking: {'met' if met else 'not met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
