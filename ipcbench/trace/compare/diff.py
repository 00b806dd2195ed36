"""What changed between two traces, by method: mean, p50 and p99 as ratios with intervals, and verdicts.

Calls close in time are correlated, so the bootstrap draws whole blocks of time. The intervals cover only the variation
within these two traces, not how one run of an application differs from the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from ipcbench.stats.bootstrap import REPLICATES, RoundSamples, quantile_estimates, time_blocks
from ipcbench.stats.decisions import compare
from ipcbench.stats.estimates import Estimate, FloatArray, Interval, ratio
from ipcbench.trace.compare.methods import Method, Methods
from ipcbench.util.units import format_bytes

Verdict = Literal["faster", "slower", "no clear difference", "not comparable"]

LEAST_CALLS: Final = 20
_BLOCK_CALLS = 10
_FEWEST_BLOCKS, _MOST_BLOCKS = 5, 30
_QUANTILES = {"p50": 0.5, "p99": 0.99}
_SEED = 1
_LARGEST_SIZE_RATIO, _LEAST_BYTES = 1.25, 256
"""Calls that differ more in bytes do other work; below so few bytes, they take no time worth the name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a method in both traces.

    Attributes:
        figure: `mean`, `p50` or `p99`.
        a_ns, b_ns: None where there are too few calls.
        times: B / A with its interval; None if not comparable.
        why: why it is not comparable; else empty.
    """

    figure: str
    a_ns: float | None
    b_ns: float | None
    times: Interval | None
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class MethodDiff:
    """A method in both traces."""

    method: str
    a_count: int
    b_count: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """Trace B against trace A."""

    a: Methods
    b: Methods
    methods: tuple[MethodDiff, ...]

    def count(self, verdict: Verdict) -> int:
        """Return how many figures have that verdict."""
        return sum(change.verdict == verdict for method in self.methods for change in method.changes)


def diff(a: Methods, b: Methods) -> Diff:
    """Compare trace B with the earlier trace A, method by method; both must be read with `keep_times`."""
    names = dict.fromkeys([*a.methods, *b.methods])
    return Diff(a, b, tuple(_method_diff(name, a.methods.get(name), b.methods.get(name)) for name in names))


def _method_diff(name: str, a: Method | None, b: Method | None) -> MethodDiff:
    counts = [0 if method is None else method.sums.calls_count for method in (a, b)]
    figures = ("mean", *_QUANTILES)
    if a is None or b is None:
        why = f"only in {'B' if a is None else 'A'}"
        changes = [Change(figure, _shown(a, figure), _shown(b, figure), None, "not comparable", why)
                   for figure in figures]  # fmt: skip
    elif why := _unlike(a, b):
        changes = [Change(figure, _shown(a, figure), _shown(b, figure), None, "not comparable", why)
                   for figure in figures]  # fmt: skip
    else:
        of_a, of_b = (_estimates(method, np.random.default_rng(_SEED + number)) for number, method in enumerate((a, b)))
        changes = [_change(figure, (a, b), of_a.get(figure), of_b.get(figure)) for figure in figures]
    return MethodDiff(name, counts[0], counts[1], tuple(changes))


def _unlike(a: Method, b: Method) -> str:
    """Return how the calls of a method differ in what they move; empty if that is much the same, or unknown."""
    of_a, of_b = a.sums.mean_bytes, b.sums.mean_bytes
    if of_a is None or of_b is None or max(of_a, of_b) <= max(_LEAST_BYTES, _LARGEST_SIZE_RATIO * min(of_a, of_b)):
        return ""
    return f"other work: {format_bytes(round(of_a))} a call in A, {format_bytes(round(of_b))} in B"


def _shown(method: Method | None, figure: str) -> float | None:
    if method is None or not method.sums.timed_count:
        return None
    if figure == "mean":
        return method.sums.total_ns / method.sums.timed_count
    if figure == "p99" and method.sums.timed_count * 0.01 < _BLOCK_CALLS:
        return None
    return method.sums.quantile_ns(_QUANTILES[figure])


def _change(figure: str, methods: tuple[Method, Method], a: Estimate | None, b: Estimate | None) -> Change:
    shown = [
        _shown(method, figure) if estimate is None else estimate.value
        for method, estimate in zip(methods, (a, b), strict=True)
    ]
    if a is None or b is None:
        least = 1000 if figure == "p99" else LEAST_CALLS
        why = f"too few calls: {figure} takes {least:,} recorded in each"
        return Change(figure, shown[0], shown[1], None, "not comparable", why)
    times = ratio(b, a)
    return Change(figure, shown[0], shown[1], times, compare(times))


def _estimates(method: Method, generator: np.random.Generator) -> dict[str, Estimate]:
    """Return the figures for which there are enough recorded calls."""
    values: FloatArray = np.maximum(method.times_ns(), 1).astype(np.float64)
    if len(values) < LEAST_CALLS:
        return {}
    count = min(_MOST_BLOCKS, max(_FEWEST_BLOCKS, len(values) // _BLOCK_CALLS))
    samples = RoundSamples(values, time_blocks(np.arange(len(values)), count))
    quantiles = dict(zip(_QUANTILES, quantile_estimates([samples], list(_QUANTILES.values()), generator), strict=True))
    estimates = {"mean": _mean_estimate(samples, generator)}
    estimates |= {name: estimate for name, estimate in quantiles.items() if estimate is not None}
    if not method.has_histogram:
        return estimates
    exact = {name: _shown(method, name) for name in estimates}
    return {name: replace(estimate, value=exact[name] or estimate.value) for name, estimate in estimates.items()}


def _mean_estimate(samples: RoundSamples, generator: np.random.Generator) -> Estimate:
    """Return the mean; each replicate draws as many blocks as there are."""
    sizes = np.bincount(samples.blocks)
    sums = np.bincount(samples.blocks, samples.values)
    count = len(sizes)
    weights = generator.multinomial(count, np.full(count, 1.0 / count), size=REPLICATES)
    value = float(sums.sum() / sizes.sum())
    deviations: FloatArray = np.log((weights @ sums) / (weights @ sizes) / value)
    variance = float(np.var(deviations, ddof=1)) * count / (count - 1)  # K blocks show (K − 1)/K of it
    return Estimate(value, deviations, variance, float(count - 1), 1)


def worst_first(methods: Sequence[MethodDiff]) -> list[MethodDiff]:
    """Return the methods, those with something slower first, then those with something faster."""
    order = {"slower": 0, "faster": 1, "no clear difference": 2, "not comparable": 3}
    return sorted(methods, key=lambda method: min(order[change.verdict] for change in method.changes))
