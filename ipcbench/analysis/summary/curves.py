"""A figure of one backend over payload sizes, and its value between two of them.

Every measure is a time, so that lower is better: throughput is taken as the time per message. Between two sizes, time
and size are interpolated on logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from ipcbench.analysis.summary.cells import CellSummary, SettingSummary, Summary, cells_of, time_of
from ipcbench.analysis.summary.figures import cpu_estimate
from ipcbench.stats.decisions import prior_of
from ipcbench.stats.estimates import Estimate, FloatArray
from ipcbench.stats.prior import VariancePrior
from ipcbench.stats.student import student_975

Measure = Literal["latency", "round trip", "throughput", "cpu"]
"""What a curve shows: one-way latency p50, round trip p50 (ns), time per message (s), CPU time per message (ns)."""

EDGE_RATIO = 1.1
"""A size at most this many times as large or small as a measured one counts as that one."""


@dataclass(frozen=True, slots=True, eq=False)
class CurvePoint:
    """One measured size of a curve."""

    payload_bytes: int
    time: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One backend's times over payload sizes."""

    backend: str
    points: tuple[CurvePoint, ...]
    """By size; only sizes with figures."""


def families(summary: Summary) -> tuple[tuple[SettingSummary, ...], ...]:
    """Return the settings in groups that differ only in size, each group by size."""
    groups = groupby(summary.settings, key=lambda ranking: ranking.setting.without_size())
    return tuple(tuple(sorted(group, key=lambda ranking: ranking.setting.payload_bytes)) for _, group in groups)


def middle_of(family: Sequence[SettingSummary]) -> SettingSummary:
    """Return the setting that stands for a family where there is room for one."""
    return family[len(family) // 2]


def estimate_of(cell: CellSummary, measure: Measure) -> Estimate | None:
    """Return a cell's time by a measure; None if it was not measured or has too few samples."""
    if cell.figures is None:
        return None
    if measure == "cpu":
        return cpu_estimate(cell.trials)
    return time_of(cell.figures, measure)


def curves(family: Sequence[SettingSummary], measure: Measure) -> dict[str, Curve]:
    """Return backend → its curve over the sizes of a family, in order of appearance."""
    points: dict[str, list[CurvePoint]] = {}
    for cell in cells_of(family):
        time = estimate_of(cell, measure)
        if time is not None:
            points.setdefault(cell.backend, []).append(CurvePoint(cell.setting.payload_bytes, time))
    return {name: Curve(name, tuple(measured)) for name, measured in points.items()}


def prior_by(summary: Summary, measure: Measure) -> VariancePrior | None:
    """Return what the comparisons of a run by a measure tell about how much rounds differ."""
    if measure != "cpu":
        return summary.priors.get(measure)
    found = [
        {cell.backend: cpu_estimate(cell.trials) for cell in ranking.cells if cell.trials}
        for ranking in summary.settings
    ]
    names = list(dict.fromkeys(name for times in found for name in times))
    return prior_of([[times.get(name) for name in names] for times in found])


def neighbours(sizes: Sequence[int], payload_bytes: int) -> tuple[int, int] | None:
    """Return the measured sizes on both sides, twice the same size if one is within `EDGE_RATIO`; None outside."""
    for size in sorted(sizes, key=lambda size: abs(position(size) - position(payload_bytes))):
        if size <= EDGE_RATIO * payload_bytes and payload_bytes <= EDGE_RATIO * size:
            return size, size
    smaller = [size for size in sizes if size < payload_bytes]
    larger = [size for size in sizes if size > payload_bytes]
    return (max(smaller), min(larger)) if smaller and larger else None


def position(payload_bytes: float) -> float:
    """Return the place of a size on the axis: its logarithm; an empty payload stands at one byte."""
    return math.log(max(1.0, payload_bytes))


def share_of(payload_bytes: int, between: tuple[int, int]) -> float:
    """Return how far a size is from the first to the second of its neighbours, 0 to 1."""
    low, high = map(position, between)
    return min(1.0, max(0.0, (position(payload_bytes) - low) / (high - low))) if high > low else 0.0


def mixed(low: Estimate, high: Estimate, share: float) -> Estimate:
    """Return the geometric mean of estimates at two sizes with weights 1 − share and share.

    It is no surer than these: their errors add up as if they were one. Both come from the same processes, and the shape
    of the curve between them is not known.
    """
    weights = (1.0 - share, share)
    spread = sum(w * math.sqrt(part.log_variance) for w, part in zip(weights, (low, high), strict=True))
    return Estimate(
        value=math.exp(weights[0] * math.log(low.value) + weights[1] * math.log(high.value)),
        deviations=weights[0] * low.deviations + weights[1] * high.deviations,
        log_variance=spread**2,
        degrees=min(low.degrees, high.degrees),
        rounds_count=min(low.rounds_count, high.rounds_count),
        least=low.least ** weights[0] * high.least ** weights[1],
        between=((weights[0], low), (weights[1], high)),
        of=low.of,
    )


def log_replicates(estimate: Estimate) -> FloatArray:
    """Return log(replicate), shape (replicates,), spread as widely as the interval of the estimate."""
    spread = float(estimate.deviations.std(ddof=1))
    half = student_975(estimate.degrees) * math.sqrt(estimate.log_variance)
    scale = half / (student_975(math.inf) * spread) if spread > 0.0 else 0.0
    return math.log(estimate.value) + scale * estimate.deviations
