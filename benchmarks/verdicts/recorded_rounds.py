"""How often verdicts are right on rounds that were really measured; prints Markdown.

    python benchmarks/verdicts/recorded_rounds.py record FILE [--backend shm] [--rounds 60] [--sizes 64 4096 65536]
    python benchmarks/verdicts/recorded_rounds.py judge FILE… [--draws 400]

`record` measures a backend twice under two names (A/A), and slowed by 10, 20 and 100 %, at several sizes, and keeps the
figures of every turn of every round, compressed. `judge` takes rounds from them and judges these as `ipcbench analyze`
judges a run of two backends: the twin, or a slowed one, against the first. It takes consecutive rounds, each once, as
runs one after the other; and it draws rounds, without putting any back, for finer rates.
`recorded_shm.json.gz` is such a recording, of a quiet machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _options import at_least, carry_out

from ipcbench.analysis.summary.cells import time_of
from ipcbench.analysis.summary.figures import cell_figures
from ipcbench.harness.sweep import run_sweep
from ipcbench.machine.describe import describe_machine
from ipcbench.results.store import Run, load_run
from ipcbench.selftest import METRICS, sweep_for
from ipcbench.stats.decisions import prior_of, rank_groups
from ipcbench.stats.estimates import Estimate
from ipcbench.testing.faults.slowed import slowdown_percent

_SIZES_BYTES = [64, 512, 4096, 16384, 65536]
_SLOWDOWNS_PERCENT = (10, 20, 100)
_ROUNDS_JUDGED = (2, 3, 5, 10, 20)
_DIGITS = 4


def record(path: Path, backend: str, rounds: int, sizes: Sequence[int]) -> None:
    """Measure, and store `log_times`."""
    sweep = replace(sweep_for(backend, 1, rounds, _SLOWDOWNS_PERCENT), sizes=tuple(sizes), budget_s=24 * 3600.0)
    with tempfile.TemporaryDirectory(prefix="ipcb-verdicts-") as folder:
        logs = log_times(load_run(run_sweep(sweep, Path(folder))), rounds)
    machine = {
        key: value for key, value in describe_machine().items() if key in {"cpu_model", "usable_cores", "kernel"}
    }
    document = {"backend": backend, "rounds": rounds, "machine": machine, "names": sweep.backends, "logs": logs}
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def log_times(run: Run, rounds: int) -> dict[str, dict[str, dict[str, list[list[float]]]]]:
    """Return the logarithms of the times of each turn: metric → size → backend → rounds."""
    logs: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
    for name in run.info.sweep["backends"]:
        for size in run.info.sweep["sizes"]:
            trials = [
                each for each in run.trials if (each.spec.backend, each.spec.size, each.status) == (name, size, "ok")
            ]
            figures = cell_figures(run, trials)
            for metric in METRICS:
                time = time_of(figures, metric)
                if time is not None:
                    by_round = {int(key.rpartition(" ")[2]): turns for key, turns in time.rounds.items()}
                    turns = [np.round(by_round.get(number, np.zeros(0)), _DIGITS).tolist() for number in range(rounds)]
                    logs.setdefault(metric, {}).setdefault(str(size), {})[name] = turns
    return logs


def estimate(name: str, rounds: list[list[float]], chosen: list[int]) -> Estimate:
    """Return the cell of a backend of the chosen rounds; those in which it has no figure are left out."""
    turns = {str(number): np.array(rounds[number]) for number in chosen if rounds[number]}
    value = float(np.exp(np.median([np.median(logs) for logs in turns.values()])))
    return Estimate(value, np.zeros(2), 0.0, max(1.0, len(turns) - 1.0), len(turns), turns, of=name)


def choices(recorded: int, count: int, draws: int) -> Iterator[list[int]]:
    """Yield `draws` choices of so many rounds of those recorded; without draws, consecutive ones, each once."""
    if draws:
        source = np.random.default_rng(count)
        yield from (source.choice(recorded, count, replace=False).tolist() for _ in range(draws))
    else:
        yield from (list(range(first, first + count)) for first in range(0, recorded - count + 1, count))


def judge(document: dict[str, Any], draws: int) -> Counter[tuple[str, int, str, str]]:
    """Return how many verdicts there were, by metric, rounds, slow-down and verdict; for `draws` see `choices`."""
    base, *others = document["names"]
    counts: Counter[tuple[str, int, str, str]] = Counter()
    for rounds_count in (count for count in _ROUNDS_JUDGED if count <= document["rounds"]):
        for chosen in choices(document["rounds"], rounds_count, draws):
            for metric, by_size in document["logs"].items():
                for other in others:
                    sizes = [
                        [estimate(name, cells[name], chosen) for name in (base, other)] for cells in by_size.values()
                    ]
                    prior = prior_of(sizes)
                    for times in sizes:
                        first, second = rank_groups(times, prior)
                        word = "same" if first == second else "slower" if first == 1 else "faster"
                        counts[metric, rounds_count, f"{slowdown_percent(other)} %", word] += 1
    return counts


def print_table(document: dict[str, Any], draws: int) -> None:
    """Print how often equal cells were called different, and slower ones found."""
    counts, machine = judge(document, draws), document["machine"]
    how = f"{draws} draws each" if draws else "in runs of consecutive rounds"
    print(f"\n{document['backend']}, {document['rounds']} rounds recorded on {machine['cpu_model']}, {how}\n")
    print("| metric | slow-down |", " | ".join(f"{count} rounds" for count in _ROUNDS_JUDGED), "|")
    print(f"|---|---|{'---:|' * len(_ROUNDS_JUDGED)}")
    for metric in METRICS:
        for percent in (0, *_SLOWDOWNS_PERCENT):
            row = []
            for rounds_count in _ROUNDS_JUDGED:
                found = {
                    word: counts[metric, rounds_count, f"{percent} %", word] for word in ("same", "slower", "faster")
                }
                hits = found["slower"] + (0 if percent else found["faster"])
                total = sum(found.values())
                row.append(f"{100 * hits / total:.1f} %" if draws and total else f"{hits} of {total}")
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
    recording.add_argument("--rounds", type=at_least(1), default=60)
    recording.add_argument("--sizes", type=at_least(1), nargs="+", default=_SIZES_BYTES, help="payload sizes in bytes")
    judging = commands.add_parser("judge")
    judging.add_argument("files", type=Path, nargs="+")
    judging.add_argument("--draws", type=int, default=400)
    options = parser.parse_args()
    if options.command == "record":
        record(options.file, options.backend, options.rounds, options.sizes)
    else:
        for path in options.files:
            document = json.loads(gzip.decompress(path.read_bytes()))
            print_table(document, 0)
            print_table(document, options.draws)
    return 0


if __name__ == "__main__":
    carry_out(main)
