"""The control of a run: one cell measured twice in every round (A/A), and the noise floor that follows.

What does not live here: measuring it (ipcbench/harness/sweep.py), and the rule that uses it
(ipcbench/measure/stats.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipcbench.analysis.cells import Metric
from ipcbench.analysis.notes import is_sound
from ipcbench.measure.stats import control_noise_ratio
from ipcbench.result import TrialResult
from ipcbench.spec import Mode, TrialSpec

_METRICS: dict[Mode, Metric] = {"paced": "latency", "pingpong": "round trip", "saturate": "throughput"}


def control_noise(trials: Sequence[TrialResult]) -> dict[Metric, float]:
    """Return the noise floor by metric, as a ratio − 1; a metric without enough pairs of sound trials is absent."""
    singles = {one.spec: one for one in trials if not one.spec.twin and is_sound(one)}
    pairs: dict[Metric, list[tuple[float, float]]] = {}
    for twin in trials:
        if twin.spec.twin and is_sound(twin) and (single := singles.get(_without_twin(twin.spec))):
            figures = single.main_figure, twin.main_figure
            if figures[0] and figures[1]:
                pairs.setdefault(_METRICS[twin.spec.mode], []).append((figures[0], figures[1]))
    found = {metric: control_noise_ratio(some) for metric, some in pairs.items()}
    return {metric: ratio for metric, ratio in found.items() if ratio is not None}


def _without_twin(spec: TrialSpec) -> TrialSpec:
    return replace(spec, twin=False)
