"""What the sweeps share: a budget, which cases fit it, and figures with intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ipcbench.errors import IpcbenchError
from ipcbench.profile.comm.replay import claimed
from ipcbench.profile.records import SweepPoint
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_duration_ns

_SPENT = "the budget was spent; --full measures it"
_TOO_LONG = "it would exceed the budget; --full measures it"
Done: TypeAlias = Callable[[Sequence[SweepPoint]], None]
"""Called with all cases so far after each one, so that what was measured is on the disk."""


def figure(values: Sequence[float]) -> Interval:
    """Return the median of a figure over rounds with its interval; all three equal after too few rounds."""
    median = float(np.median(values))
    return claimed(values) or Interval(median, median, median)


@dataclass(slots=True)
class Budget:
    """How much time there is for the cases of a sweep. A case's time is predicted from that of a like one before it;
    the first of each kind gets an equal part of what is left.

    Attributes:
        limit_s: of all cases; None for no limit.
    """

    limit_s: float | None
    _began_s: float = field(default_factory=time.monotonic)
    kinds_count: int = 1
    """Of cases that are to have one at least."""
    _known_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def lack(self, kind: str, work: float) -> str:
        """Return why a case does not fit; empty if it does.

        Args:
            kind: of cases whose time is alike.
            work: in any unit, of this case; a case with more takes longer in proportion.
        """
        if self.limit_s is None:
            return ""
        left_s, known = self.left_s, self._known_s.get(kind)
        if left_s <= 0:
            return f"not estimated: {_SPENT}"
        if known is None or (needed_s := known[0] * max(1.0, work / known[1])) <= left_s:
            return ""
        return f"{_TOO_LONG} (about {format_duration_ns(1e9 * needed_s, 2)} more)"

    @property
    def left_s(self) -> float:
        """Return how much is left; below 0 if it was exceeded."""
        return math.inf if self.limit_s is None else self.limit_s - (time.monotonic() - self._began_s)

    def share_s(self, kind: str) -> float:
        """Return how long a case may take: all that is left; the first of its kind, an equal part of it."""
        unknown = self.kinds_count - len(self._known_s)
        return self.left_s if kind in self._known_s else self.left_s / max(1, unknown)

    def spent(self, kind: str, work: float, took_s: float) -> None:
        """Remember what a case took."""
        self._known_s[kind] = (took_s, work)


def measure(
    point: SweepPoint, kind: str, work: float, budget: Budget, carry_out: Callable[[], Mapping[str, Sequence[float]]]
) -> SweepPoint:
    """Return a case with its figures; or with the reason why it has none, if it does not fit the budget or fails.

    Args:
        carry_out: returns each figure in each round.
    """
    if reason := budget.lack(kind, work):
        return replace(point, status="not measured", reason=reason)
    began_s = time.monotonic()
    try:
        rounds = carry_out()
    except IpcbenchError as error:
        return replace(point, status="failed", reason=str(error))
    budget.spent(kind, work, time.monotonic() - began_s)
    figures = {name: figure(values) for name, values in rounds.items() if len(values)}
    return replace(point, figures=figures, rounds_count=max(map(len, rounds.values())))
