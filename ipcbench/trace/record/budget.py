"""How often to record so that tracing costs no more than a given share of a thread's time."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PERIOD = 1024

_START_PERIOD = 32
_RECORDED_IN_SITU, _TIMED_IN_SITU, _COUNTED_IN_SITU = 5.0, 2.2, 2.0
"""The cost of a call in an application, with cold caches and new pages, as a multiple of its cost in a loop."""

_AIM = 0.65
"""The share of the budget to aim at, because times vary."""

_MEMORY = 0.75
"""The weight of older observations in the average."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What one four-stage call costs the application, in a loop.

    Attributes:
        recorded_ns: with a record.
        timed_ns: timed and put into a histogram.
        counted_ns: counted only.
    """

    recorded_ns: float
    timed_ns: float
    counted_ns: float


class Governor:
    """Chooses the period of one thread from the time between its calls.

    Attributes:
        period: one in `period` calls is to be recorded, on average.
        planned_count: calls since the last decision; must be set before the next one.
    """

    __slots__ = ("_budget_ratio", "_calls_count", "_costs", "_elapsed_ns", "_last_ns", "period", "planned_count")

    def __init__(self, costs: Costs, budget_ratio: float) -> None:
        self._costs = costs
        self._budget_ratio = budget_ratio
        self._last_ns = 0
        self._elapsed_ns = self._calls_count = 0.0
        self.period = _START_PERIOD
        self.planned_count = 0

    def decide(self, now_ns: int) -> tuple[int, bool]:
        """Return the period from now on, and whether the calls between recorded ones are only counted."""
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns == 0 or not self.planned_count:
            return self.period, True
        self._elapsed_ns = self._elapsed_ns * _MEMORY + (now_ns - last_ns)
        self._calls_count = self._calls_count * _MEMORY + self.planned_count
        allowed_ns = self._budget_ratio * _AIM * self._elapsed_ns / self._calls_count
        recorded_ns = self._costs.recorded_ns * _RECORDED_IN_SITU
        timed_ns, counted_ns = self._costs.timed_ns * _TIMED_IN_SITU, self._costs.counted_ns * _COUNTED_IN_SITU
        for between_ns, untimed in ((timed_ns, False), (counted_ns, True)):
            room_ns = allowed_ns - between_ns
            if room_ns > recorded_ns / MAX_PERIOD or untimed:
                recorded_ns += timed_ns * untimed  # of the call before, see HotCallSite.begin
                self.period = min(MAX_PERIOD, max(1, int(recorded_ns / max(room_ns, 1e-3)) + 1))
                return self.period, untimed
        return self.period, True
