"""The A/A control of a run: one cell measured twice in every round, by other processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, stdev

from ipcbench.analysis.summary.cells import Control, Metric
from ipcbench.analysis.summary.notes import is_sound
from ipcbench.results.store import Run
from ipcbench.spec import Mode
from ipcbench.stats.estimates import MIN_ROUNDS, Interval
from ipcbench.stats.student import student_975

_METRICS: dict[Mode, Metric] = {"paced": "latency", "pingpong": "round trip", "saturate": "throughput"}


def controls(run: Run) -> tuple[Control, ...]:
    """Return the control of each mode; one with fewer than three rounds of two sound trials is left out."""
    return tuple(_controls(run))


def _controls(run: Run) -> Iterator[Control]:
    singles = {one.spec: one for one in run.trials if is_sound(one)}
    logs: dict[tuple[Metric, str, int], list[float]] = {}
    for twin in run.controls:
        single = singles.get(replace(twin.spec, twin=False))
        if single is None or not is_sound(twin):
            continue
        first, second = single.main_figure, twin.main_figure
        if first and second:
            key = _METRICS[twin.spec.mode], twin.spec.backend, twin.spec.payload_bytes
            logs.setdefault(key, []).append(math.log(second / first))
    for (metric, backend, size), found in logs.items():
        if len(found) >= MIN_ROUNDS:
            half = student_975(len(found) - 1) * stdev(found) / math.sqrt(len(found))
            low, middle, high = (math.exp(fmean(found) + shift) for shift in (-half, 0.0, half))
            yield Control(metric, backend, size, Interval(low, middle, high))
