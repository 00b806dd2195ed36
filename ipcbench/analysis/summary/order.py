"""Where busy neighbours change the order of two backends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import get_args

from ipcbench.analysis.summary.cells import Metric, Setting, SettingSummary, Summary, time_of
from ipcbench.analysis.summary.crossover import BETTER
from ipcbench.analysis.summary.wording import neighbours_words, payload_line, ratio_words
from ipcbench.stats.decisions import table_prior, verdict
from ipcbench.stats.estimates import Estimate, Interval, ratio
from ipcbench.stats.prior import VariancePrior


@dataclass(frozen=True, slots=True)
class OrderChange:
    """Two backends of which one is clearly ahead beside some number of neighbours, and the other beside more."""

    metric: Metric
    setting: Setting
    """With the larger number of neighbours."""
    neighbours: tuple[int, int]
    """The smaller number and the larger one."""
    ahead: tuple[str, str]
    """The backend that is ahead in each of the two settings."""
    ratios: tuple[Interval, Interval]
    """In each setting, how many times as slow the other is; both intervals are above 1."""

    @property
    def least_ratio(self) -> float:
        """Return the least factor by which the order is clear in both settings."""
        return min(times.low for times in self.ratios)

    def sentence(self) -> str:
        """Return it in words, with figures."""
        few, many = map(neighbours_words, self.neighbours)
        (first, second), (before, after) = self.ahead, map(ratio_words, self.ratios)
        return (
            f"Busy neighbours change the order: {payload_line(self.setting)}: {few}, {first} has "
            f"{BETTER[self.metric]} ({second} {before} times as slow); {many}, {second} has ({first} {after} times)."
        )


def order_changes(summary: Summary) -> tuple[OrderChange, ...]:
    """Return every pair of backends whose order clearly differs in two settings that differ only in their neighbours.

    Both must be clear by the rule that decides ranks, at a level at which all pairs of a setting hold together at 95 %.
    """
    alike: dict[Setting, list[SettingSummary]] = {}
    for result in summary.settings:
        alike.setdefault(replace(result.setting, neighbours=0), []).append(result)
    return tuple(
        change
        for results in alike.values()
        for few, many in combinations(sorted(results, key=lambda result: result.setting.neighbours), 2)
        for metric in get_args(Metric)
        for change in _changes(few, many, metric, summary.priors.get(metric))
    )


def _changes(
    few: SettingSummary, many: SettingSummary, metric: Metric, prior: VariancePrior | None
) -> Iterator[OrderChange]:
    before, after = _clear(few, metric, prior), _clear(many, metric, prior)
    for (first, second), times in before.items():
        if (second, first) in after:
            yield OrderChange(
                metric=metric,
                setting=many.setting,
                neighbours=(few.setting.neighbours, many.setting.neighbours),
                ahead=(first, second),
                ratios=(times, after[second, first]),
            )


def _clear(result: SettingSummary, metric: Metric, prior: VariancePrior | None) -> dict[tuple[str, str], Interval]:
    """Return (the backend that is clearly ahead, the other) → how many times as slow the other is."""
    times: dict[str, Estimate] = {}
    for cell in result.cells:
        time = None if cell.figures is None else time_of(cell.figures, metric)
        if time is not None:
            times[cell.backend] = time
    prior = table_prior(list(times.values()), prior)
    return {
        (first, second): ratio(times[second], times[first], prior, len(times))
        for first in times
        for second in times
        if first != second and verdict(times[second], times[first], prior, len(times)) == "slower"
    }
