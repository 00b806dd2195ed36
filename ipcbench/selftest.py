"""How often verdicts on this machine are right: equal cells called different, known slow-downs called slower.

A run measures one backend under two names (A/A), and slowed by known shares, at several payload sizes and in all modes.
Each cell is judged against the first as `ipcbench analyze` would judge a run of these two alone, after the first
1, 2, 3, 5, 10 … rounds.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import get_args

from ipcbench.analysis.summary.cells import CellSummary, Metric
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.sweep import Progress, run_sweep
from ipcbench.registry import get_backend
from ipcbench.results.store import Run, load_run
from ipcbench.spec import NAME_PREFIX, SweepSpec
from ipcbench.stats.decisions import Verdict
from ipcbench.sync.locks import EndpointLock
from ipcbench.testing.faults.slowed import slowdown_percent, slowed_name
from ipcbench.util.files import temporary_folder

METRICS: tuple[Metric, ...] = get_args(Metric)
SLOWDOWNS_PERCENT = (5, 10, 20)
SIZES_BYTES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Payload sizes of one run; each gives a verdict."""
ROUNDS = 20
"""Rounds of a run by default."""
_ROUNDS_JUDGED = (1, 2, 3, 5, 10, 20)
ONE_SIDED_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """How many verdicts of each kind there were on one slow-down, by one metric, after so many rounds."""

    metric: Metric
    rounds_count: int
    percent: int
    verdicts_count: int
    slower_count: int
    faster_count: int

    @property
    def different_ratio(self) -> float:
        """Return the share that was called slower or faster; for A/A, the rate of false positives."""
        return (self.slower_count + self.faster_count) / self.verdicts_count if self.verdicts_count else math.nan

    @property
    def found_ratio(self) -> float:
        """Return the share that was called slower."""
        return self.slower_count / self.verdicts_count if self.verdicts_count else math.nan

    @property
    def upper_bound_ratio(self) -> float:
        """Return the exact 95 % upper bound of the rate that `different_ratio` estimates."""
        return upper_bound(self.slower_count + self.faster_count, self.verdicts_count)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The verdicts of the runs so far, counted."""

    backend: str
    rounds: int
    noise_ratio: float | None
    """By how much two equal cells differed in one-way latency: the median of the runs' noise; None if unknown."""
    counts: tuple[VerdictCounts, ...]
    """By metric, rounds and slow-down, A/A first."""


def upper_bound(hits: int, count: int) -> float:
    """Return the exact (Clopper-Pearson) one-sided 95 % upper bound of a rate that gave `hits` out of `count`."""
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0  # the middle is never 0 or 1
    while high - low > 1e-6:
        middle = (low + high) / 2
        at_most_hits = sum(math.exp(_log_binomial(k, count, middle)) for k in range(hits + 1))
        low, high = (middle, high) if at_most_hits > 1 - ONE_SIDED_LEVEL else (low, middle)
    return high


def _log_binomial(hits: int, count: int, rate: float) -> float:
    """Return the logarithm of the probability of so many hits."""
    log_ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return log_ways + hits * math.log(rate) + (count - hits) * math.log1p(-rate)


def sweep_for(backend: str, seed: int, rounds: int, slowdowns_percent: Sequence[int] = SLOWDOWNS_PERCENT) -> SweepSpec:
    """Return the sweep that gives one verdict for each size and slow-down, and for each size and A/A pair."""
    names = (slowed_name(backend, percent) for percent in (0, *slowdowns_percent))
    return SweepSpec(
        name="selftest",
        backends=(slowed_name(backend, 0, again=True), *names),
        readers=1,
        payload="bytes",
        codec="raw",
        sizes=SIZES_BYTES,
        rounds=rounds,
        control=False,
        tail=False,
        budget_s=3600.0,
        seed=seed,
    )


def self_test(
    backend: str = "shm",
    pairs: int = 20,
    rounds: int = ROUNDS,
    slowdowns_percent: Sequence[int] = SLOWDOWNS_PERCENT,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    keep: Path | None = None,
) -> Iterator[SelfTest]:
    """Measure until there are `pairs` verdicts on each slow-down by each metric; after each run, yield the counts.

    Args:
        backend: name of the backend to slow down; its endpoints must be processes (not `null`).
        pairs: verdicts wanted, rounded up to whole runs.
        rounds: rounds of each comparison; a small difference needs many.
        slowdowns_percent: above 0, each once; equal pairs (A/A) are always measured.
        on_progress: called after every trial.
        keep: folder in which to keep the runs; without it they are removed.

    Raises:
        UnknownBackend, BackendUnavailable: before anything is measured.
    """
    get_backend(backend).probe()
    counts: Counter[tuple[Metric, int, int, Verdict]] = Counter()
    noise: list[float] = []
    folder = tempfile.TemporaryDirectory(prefix=f"{NAME_PREFIX}selftest-{os.getpid()}-", dir=temporary_folder())
    with folder as scratch, ExitStack() as undo:
        undo.callback(EndpointLock(Path(scratch), "selftest").release)  # `ipcbench clean` keeps what is locked
        for number in range(-(-pairs // len(SIZES_BYTES))):
            sweep = sweep_for(backend, number + 1, rounds, slowdowns_percent)
            run = load_run(run_sweep(sweep, keep or Path(scratch), on_progress=on_progress))
            noise += [found] if (found := summarise(run).noise_ratios.get("latency")) is not None else []
            counts.update(verdicts(run))
            yield SelfTest(backend, rounds, median(noise) if noise else None, count_verdicts(counts))


def count_verdicts(verdicts: Counter[tuple[Metric, int, int, Verdict]]) -> tuple[VerdictCounts, ...]:
    """Return the counts of verdicts, given as (metric, rounds, slow-down in percent, verdict)."""
    places = sorted({each[:3] for each in verdicts}, key=lambda place: (METRICS.index(place[0]), *place[1:]))
    return tuple(
        VerdictCounts(
            metric,
            rounds,
            percent,
            sum(verdicts[metric, rounds, percent, word] for word in get_args(Verdict)),
            verdicts[metric, rounds, percent, "slower"],
            verdicts[metric, rounds, percent, "faster"],
        )
        for metric, rounds, percent in places
    )


def verdicts(run: Run) -> Iterator[tuple[Metric, int, int, Verdict]]:
    """Yield (metric, rounds, slow-down in percent, verdict on it) for every size of the run.

    Cells without figures are left out.
    """
    base, *others = run.info.sweep["backends"]
    rounds_done = max((trial.spec.round_index for trial in run.trials), default=-1) + 1
    for rounds in sorted({*_ROUNDS_JUDGED, rounds_done}):
        for other in others if rounds <= rounds_done else ():
            trials = tuple(
                trial for trial in run.trials if trial.spec.backend in (base, other) and trial.spec.round_index < rounds
            )
            for ranking in summarise(replace(run, trials=trials)).settings:
                cells = {cell.backend: cell for cell in ranking.cells}
                for metric in METRICS:
                    ranks = [_rank(cells.get(name), metric, ranking.ranked_by) for name in (other, base)]
                    if None not in ranks:
                        yield metric, rounds, slowdown_percent(other), _verdict(*ranks)


def _rank(cell: CellSummary | None, metric: Metric, ranked_by: Metric | None) -> int | None:
    if cell is None:
        return None
    if metric == ranked_by:
        return cell.rank
    return {"round trip": cell.round_trip_rank, "throughput": cell.throughput_rank}.get(metric)


def _verdict(rank: int | None, base_rank: int | None) -> Verdict:
    if rank == base_rank:
        return "no clear difference"
    return "slower" if base_rank == 1 else "faster"
