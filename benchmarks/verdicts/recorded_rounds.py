"""How often verdicts are right on rounds that were really measured; prints Markdown.

    python benchmarks/verdicts/recorded_rounds.py record FILE [--backend shm] [--rounds 60]
    python benchmarks/verdicts/recorded_rounds.py judge FILE… [--draws 400]

`record` measures a backend twice under two names (A/A), and slowed by 10, 20 and 100 %, at five sizes, and keeps the
figures of every turn of every round, compressed. `judge` draws rounds from them, without putting any back, and judges
each draw as `ipcbench analyze` judges a run of two backends: the twin, or a slowed one, against the first.
`recorded_shm.json.gz` and `recorded_zmq.json.gz` are such recordings.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ipcbench.analysis.summary.cells import time_of
from ipcbench.analysis.summary.figures import cell_figures
from ipcbench.harness.sweep import run_sweep
from ipcbench.machine.describe import describe_machine
from ipcbench.results.store import load_run
from ipcbench.selftest import METRICS, sweep_for
from ipcbench.stats.decisions import prior_of, rank_groups
from ipcbench.stats.estimates import Estimate
from ipcbench.testing.faults.slowed import slowdown_percent

_SIZES_BYTES = (64, 512, 4096, 16384, 65536)
_SLOWDOWNS_PERCENT = (10, 20, 100)
_ROUNDS_JUDGED = (2, 3, 5, 10, 20)
_DIGITS = 4


def record(path: Path, backend: str, rounds: int) -> None:
    """Measure, and store the logarithms of the times of each turn: metric → size → backend → rounds."""
    sweep = replace(sweep_for(backend, 1, rounds, _SLOWDOWNS_PERCENT), sizes=_SIZES_BYTES, budget_s=24 * 3600.0)
    logs: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as folder:
        run = load_run(run_sweep(sweep, Path(folder)))
        for name in sweep.backends:
            for size in sweep.sizes:
                trials = [
                    each
                    for each in run.trials
                    if (each.spec.backend, each.spec.size, each.status) == (name, size, "ok")
                ]
                figures = cell_figures(run, trials)
                for metric in METRICS:
                    time = time_of(figures, metric)
                    if time is not None:
                        by_round = {int(key.rpartition(" ")[2]): turns for key, turns in time.rounds.items()}
                        turns = [
                            np.round(by_round.get(number, np.zeros(0)), _DIGITS).tolist() for number in range(rounds)
                        ]
                        logs.setdefault(metric, {}).setdefault(str(size), {})[name] = turns
    machine = {
        key: value for key, value in describe_machine().items() if key in {"cpu_model", "usable_cores", "kernel"}
    }
    document = {"backend": backend, "rounds": rounds, "machine": machine, "names": sweep.backends, "logs": logs}
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def estimate(rounds: list[list[float]], chosen: list[int]) -> Estimate:
    """Return a cell of the chosen rounds; those in which it has no figure are left out."""
    turns = {str(number): np.array(rounds[number]) for number in chosen if rounds[number]}
    value = float(np.exp(np.median([np.median(logs) for logs in turns.values()])))
    return Estimate(value, np.zeros(2), 0.0, max(1.0, len(turns) - 1.0), len(turns), turns)


def judge(document: dict[str, Any], draws: int) -> Counter[tuple[str, int, str, str]]:
    """Return how many verdicts there were, by metric, rounds, slow-down and verdict."""
    base, *others = document["names"]
    counts: Counter[tuple[str, int, str, str]] = Counter()
    for rounds_count in (count for count in _ROUNDS_JUDGED if count <= document["rounds"]):
        source = np.random.default_rng(rounds_count)
        for _ in range(draws):
            chosen = source.choice(document["rounds"], rounds_count, replace=False).tolist()
            for metric, by_size in document["logs"].items():
                for other in others:
                    sizes = [[estimate(cells[name], chosen) for name in (base, other)] for cells in by_size.values()]
                    prior = prior_of(sizes)
                    for times in sizes:
                        first, second = rank_groups(times, prior)
                        word = "same" if first == second else "slower" if first == 1 else "faster"
                        counts[metric, rounds_count, f"{slowdown_percent(other)} %", word] += 1
    return counts


def print_table(document: dict[str, Any], draws: int) -> None:
    """Print the shares of equal cells called different, and of slower ones found."""
    counts = judge(document, draws)
    machine = document["machine"]
    print(
        f"{document['backend']}, {document['rounds']} rounds recorded on {machine['cpu_model']}, {draws} draws each\n"
    )
    print("| metric | slow-down |", " | ".join(f"{count} rounds" for count in _ROUNDS_JUDGED), "|")
    print(f"|---|---|{'---:|' * len(_ROUNDS_JUDGED)}")
    for metric in METRICS:
        for percent in (0, *_SLOWDOWNS_PERCENT):
            row = []
            for rounds_count in _ROUNDS_JUDGED:
                found = {
                    word: counts[metric, rounds_count, f"{percent} %", word] for word in ("same", "slower", "faster")
                }
                total = sum(found.values())
                wrong = found["slower"] + found["faster"]
                if not total:
                    row.append("–")
                elif percent:
                    row.append(f"{100 * found['slower'] / total:.1f}")
                else:
                    row.append(f"{100 * wrong / total:.1f}")
            print(
                f"| {metric} | {f'{percent} %, found' if percent else 'none, called different'} | {' | '.join(row)} |"
            )


def main() -> int:
    """Record, or judge what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--backend", default="shm")
    recording.add_argument("--rounds", type=int, default=60)
    judging = commands.add_parser("judge")
    judging.add_argument("files", type=Path, nargs="+")
    judging.add_argument("--draws", type=int, default=400)
    options = parser.parse_args()
    if options.command == "record":
        record(options.file, options.backend, options.rounds)
    else:
        for path in options.files:
            print_table(json.loads(gzip.decompress(path.read_bytes())), options.draws)
    return 0


if __name__ == "__main__":
    sys.exit(main())
