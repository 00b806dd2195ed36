"""The control of a run: one cell measured twice in every round (A/A), and the noise floor that follows.

What does not live here: measuring it (ipcbench/harness/sweep.py), and the rule that uses it
(ipcbench/measure/stats.py).
"""

from __future__ import annotations

from dataclasses import replace

from ipcbench.analysis.cells import Metric
from ipcbench.analysis.notes import is_sound
from ipcbench.measure.stats import control_noise_ratio
from ipcbench.spec import Mode
from ipcbench.store import Run

_METRICS: dict[Mode, Metric] = {"paced": "latency", "pingpong": "round trip", "saturate": "throughput"}


def control_noise(run: Run) -> dict[Metric, float]:
    """Return the noise floor by metric, as a ratio − 1; a metric without enough pairs of sound trials is absent."""
    singles = {one.spec: one for one in run.trials if is_sound(one)}
    pairs: dict[Metric, list[tuple[float, float]]] = {}
    for twin in run.controls:
        single = singles.get(replace(twin.spec, twin=False))
        if single is None or not is_sound(twin):
            continue
        first, second = single.main_figure, twin.main_figure
        if first and second:
            pairs.setdefault(_METRICS[twin.spec.mode], []).append((first, second))
    found = {metric: control_noise_ratio(some) for metric, some in pairs.items()}
    return {metric: ratio for metric, ratio in found.items() if ratio is not None}
