"""How well the medians of a run are known so far: what `--precision` waits for."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ipcbench.results.model import TrialResult
from ipcbench.stats.bootstrap import median_estimate

_SEED = 7


def widest_ratio(trials: Iterable[TrialResult]) -> float:
    """Return the largest distance of an interval's end from its median, as a share of it, over all cells.

    Infinite while a cell has figures of a single round; 0 if no cell has any, since more rounds will not help.
    """
    cells: dict[object, list[float]] = {}
    for trial in trials:
        figure = trial.main_figure if trial.status == "ok" else None
        if figure:
            cells.setdefault(trial.spec.cell, []).append(figure)
    generator = np.random.default_rng(_SEED)
    widest = 0.0
    for rounds in cells.values():
        estimate = median_estimate(rounds, generator)
        if estimate is None:
            return math.inf
        interval = estimate.interval()
        widest = max(widest, interval.high / interval.estimate - 1.0, 1.0 - interval.low / interval.estimate)
    return widest
