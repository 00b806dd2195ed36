"""How often verdicts on this machine are right: equal cells called different, known slow-downs called slower.

A run measures one backend under two names (A/A), and slowed by 5, 10 and 20 %, at several payload sizes. At each size,
every other cell is compared with the first. All cells of one size take turns.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ipcbench.analysis.summary.figures import cell_figures
from ipcbench.analysis.summary.notes import is_sound
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.sweep import Progress, run_sweep
from ipcbench.registry import get_backend
from ipcbench.results.store import Run, load_run
from ipcbench.spec import NAME_PREFIX, SweepSpec
from ipcbench.stats.decisions import verdict
from ipcbench.stats.estimates import Estimate
from ipcbench.testing.faults.slowed import slowdown_percent, slowed_name

SLOWDOWNS_PERCENT = (5, 10, 20)
SIZES_BYTES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Payload sizes of one run; each gives a verdict."""
ROUNDS = 20
"""Rounds of a run by default: two cells of one size then take 10 s, of the 105 s that a run has by default."""
ONE_SIDED_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """How many verdicts on one slow-down there were of each kind."""

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
    """The verdicts of all runs, counted."""

    backend: str
    rounds: int
    noise_ratio: float
    """By how much a cell measured twice differed: the median of the runs' noise floors."""
    counts: tuple[VerdictCounts, ...]
    """Counts of each slow-down, A/A first."""


def upper_bound(hits: int, count: int) -> float:
    """Return the exact (Clopper-Pearson) one-sided 95 % upper bound of a rate that gave `hits` out of `count`."""
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        at_most_hits = sum(math.comb(count, k) * middle**k * (1 - middle) ** (count - k) for k in range(hits + 1))
        low, high = (middle, high) if at_most_hits > 1 - ONE_SIDED_LEVEL else (low, middle)
    return high


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
        modes=("paced",),
        rounds=rounds,
        control=False,
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
) -> SelfTest:
    """Measure until there are `pairs` verdicts on each slow-down; ten of each take about four minutes.

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
    counts = {percent: [0, 0, 0] for percent in (0, *slowdowns_percent)}
    noise: list[float] = []
    with tempfile.TemporaryDirectory(prefix=f"{NAME_PREFIX}selftest-{os.getpid()}-") as scratch:
        for number in range(-(-pairs // len(SIZES_BYTES))):
            sweep = sweep_for(backend, number + 1, rounds, slowdowns_percent)
            run = load_run(run_sweep(sweep, keep or Path(scratch), on_progress=on_progress))
            noise.append(noise_of(run))
            for percent, word in verdicts(run, noise[-1]):
                counts[percent][("no clear difference", "slower", "faster").index(word)] += 1
    by_slowdown = (VerdictCounts(percent, sum(kinds), kinds[1], kinds[2]) for percent, kinds in counts.items())
    return SelfTest(backend, rounds, median(noise), tuple(by_slowdown))


def noise_of(run: Run) -> float:
    """Return the noise floor of a run's latencies."""
    return summarise(run).noise_ratios.get("latency", 0.0)


def verdicts(run: Run, noise_ratio: float) -> Iterator[tuple[int, str]]:
    """Yield (slow-down in percent, verdict on it) for every size of the run; sizes without figures are left out."""
    base, *others = run.info.sweep["backends"]
    for size in run.info.sweep["sizes"]:
        first = _latency(run, base, size)
        for other in others:
            second = _latency(run, other, size)
            if first is not None and second is not None:
                yield slowdown_percent(other), verdict(second, first, noise_ratio)


def _latency(run: Run, backend: str, size: int) -> Estimate | None:
    trials = [
        trial for trial in run.trials if trial.spec.backend == backend and trial.spec.size == size and is_sound(trial)
    ]
    return cell_figures(run, trials).latency_p50 if trials else None
