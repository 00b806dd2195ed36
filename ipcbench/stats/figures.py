"""A figure of a run that was taken once in each repetition: its median, with an interval if there are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.decisions import verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over repetitions, all in one unit."""

    value: float
    rounds: tuple[float, ...]
    """The median of each repetition, in their order."""
    interval: Interval | None
    """Of 95 %; None after too few repetitions."""

    @property
    def estimate(self) -> Estimate | None:
        """Return what it takes to compare it with another one of the run; None after too few repetitions."""
        found = median_estimate(self.rounds, np.random.default_rng(0)) if self.interval else None
        by_order = {str(number): np.log([max(each, 1e-3)]) for number, each in enumerate(self.rounds)}
        return found and replace(found, rounds=by_order)

    def is_slower(self, other: Figure, among: int) -> bool:
        """Return whether it is clearly slower than another figure of the run, of so many that both were chosen from."""
        a, b = self.estimate, other.estimate
        return a is not None and b is not None and verdict(a, b, among=among) == "slower"


def figure_of(rounds: Sequence[float]) -> Figure:
    """Return the median of rounds, with its interval if there are enough."""
    value = float(np.median(rounds))
    enough = value > 0 and len(rounds) >= MIN_CLAIM_ROUNDS
    found = median_estimate(rounds, np.random.default_rng(0)) if enough else None
    return Figure(value, tuple(rounds), found.interval() if found else None)
