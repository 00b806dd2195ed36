"""Crossovers: the payload size at which one backend overtakes another, with its interval.

A crossover is claimed only where one backend is clearly ahead at a smaller size and the other at a larger one. Between
those sizes the logarithm of the ratio of their times is interpolated over the logarithm of the size. Its zero is the
estimate; the zeros of the bootstrap replicates give the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, get_args

import numpy as np

from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary, Summary
from ipcbench.analysis.summary.curves import (
    Curve,
    CurvePoint,
    Measure,
    curves,
    estimate_of,
    families,
    log_replicates,
    position,
)
from ipcbench.analysis.summary.wording import family_words, interval_words, joined
from ipcbench.stats.decisions import table_prior, verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, FloatArray, Interval
from ipcbench.stats.prior import VariancePrior
from ipcbench.stats.student import LEVEL

BETTER: Mapping[Measure, str] = {
    "latency": "the lower one-way latency",
    "round trip": "the shorter round trip",
    "throughput": "the higher throughput",
    "cpu": "the lower CPU time per message",
}
"""What the backend that is ahead by a measure has."""


Rules = Mapping[int, tuple[VariancePrior | None, int]]
"""Size → by what the table of that size judges: the prior, and among how many times."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """How two backends, or two groups of equal ones, compare over the measured sizes."""

    axis: Measure
    family: str
    """What all sizes have in common, in words."""
    below: tuple[str, ...]
    """Ahead at smaller sizes; without a crossover, ahead at all of them."""
    above: tuple[str, ...]
    """Ahead at larger sizes; without a crossover, never ahead."""
    payload_bytes: Interval | None
    """Where they cross; None if they do not, or nowhere clearly."""
    range_bytes: tuple[int, int]
    """The sizes between which they cross; without a crossover, the measured range."""
    clear_of_sizes: tuple[int, int] | None = None
    """Without a crossover: (number of sizes at which the first is clearly ahead, number of sizes)."""

    def sentence(self) -> str:
        """Return it in words, with figures and units."""
        low, high = (f"{size:,} B" for size in self.range_bytes)
        below, above, better = joined(self.below), joined(self.above), BETTER[self.axis]
        if self.payload_bytes is not None:
            where = interval_words(self.payload_bytes, " B")
            return f"Crossover at {where}, between {low} and {high}: {below} has {better} below, {above} above."
        count, sizes = self.clear_of_sizes or (0, 0)
        span = f"No crossover in the measured range, {low} to {high}"
        if count == 0:
            return f"{span}: between {below} and {above} neither clearly has {better} at any size."
        return f"{span}: {below} clearly has {better} at {count} of {sizes} sizes, {above} at none."

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, including the sentence."""
        return {**asdict(self), "sentence": self.sentence()}


def crossovers(summary: Summary) -> tuple[Crossover, ...]:
    """Return how every two backends compare over the sizes of each family, by each metric measured.

    A pair has one entry per crossing, or one that says that it never crosses. Pairs with fewer than two sizes in common
    have none.
    """
    return tuple(
        crossover
        for family in families(summary)
        for metric in get_args(Metric)
        for found in (curves(family, metric).values(),)
        for a, b in combinations(found, 2)
        for crossover in pair_crossovers(
            a, b, metric, rules_by_size(found, summary.priors.get(metric)), family_words_of(family)
        )
    )


def rules_by_size(found: Iterable[Curve], prior: VariancePrior | None) -> Rules:
    """Return the rules of the tables that curves come from, so that pairs of them are judged alike."""
    times: dict[int, list[Estimate]] = {}
    for curve in found:
        for point in curve.points:
            times.setdefault(point.payload_bytes, []).append(point.time)
    return {size: (table_prior(those, prior), len(those)) for size, those in times.items()}


def lead_changes(
    family: Sequence[SettingSummary], metric: Metric, prior: VariancePrior | None
) -> tuple[Crossover, ...]:
    """Return each clear change of the lead: no backend holds first rank on both sides of it.

    There is no entry if the new leader has no figure at a smaller size, or the old one none at the larger size: then
    nobody who was measured there was overtaken.

    Args:
        family: settings that differ only in size, by size.
        metric: the metric of the ranks.
        prior: what the comparisons of the run by that metric tell about how much rounds differ.
    """
    changes: list[Crossover] = []
    by_name = curves(family, metric)
    rules = rules_by_size(by_name.values(), prior)
    held: frozenset[str] = frozenset()
    held_at, unknown = 0, set[str]()
    for ranking in family:
        first = leaders(ranking, metric)
        short = {cell.backend for cell in unranked(ranking, metric)}
        if not first or held & short or is_lead_unsure(ranking, metric):  # nobody knows who leads here
            continue
        size = ranking.setting.payload_bytes
        if held and not held & first and not first & unknown:
            pair = (_fastest(by_name, held, held_at), _fastest(by_name, first, size))
            crossing = _lead_crossing(pair, rules, (held_at, size))
            if crossing is not None:
                words = family_words_of(family)
                changes.append(Crossover(metric, words, tuple(sorted(held)), tuple(sorted(first)), *crossing))
        held = held & first or first
        held_at, unknown = size, short
    return tuple(changes)


def pair_crossovers(a: Curve, b: Curve, measure: Measure, rules: Rules, family: str) -> tuple[Crossover, ...]:
    """Return where two curves cross, by size, or one entry that says that they do not; empty with fewer than two
    common sizes.
    """
    pairs = _common(a, b)
    if len(pairs) < 2:
        return ()
    clear = list(_clear(pairs, rules))
    crossings: list[Crossover] = []
    for (start, ahead), (end, then) in pairwise(clear):
        if ahead != then:
            below, above = (a, b) if ahead == "faster" else (b, a)
            part = pairs[start : end + 1]
            between = (part[0][0].payload_bytes, part[-1][0].payload_bytes)
            crossings.append(Crossover(measure, family, (below.backend,), (above.backend,), _where(part), between))
    if crossings:
        return tuple(crossings)
    whole = (pairs[0][0].payload_bytes, pairs[-1][0].payload_bytes)
    first, other = (a, b) if not clear or clear[0][1] == "faster" else (b, a)
    counts = (len(clear), len(pairs))
    return (Crossover(measure, family, (first.backend,), (other.backend,), None, whole, counts),)


def leaders(ranking: SettingSummary, metric: Metric) -> frozenset[str]:
    """Return the backends that hold or share the first rank by a metric; empty if nothing was ranked by it."""
    return frozenset(cell.backend for cell in ranking.cells if rank_of(ranking, cell, metric) == 1)


def is_comparison(ranking: SettingSummary, metric: Metric) -> bool:
    """Return whether two backends have a figure by a metric."""
    return sum(_rounds_count(cell, metric) > 0 for cell in ranking.cells) > 1


def claimed_leaders(ranking: SettingSummary, metric: Metric) -> frozenset[str]:
    """Return `leaders`; none after too few rounds to claim it, or of a single backend, which leads nobody."""
    enough = any(_rounds_count(cell, metric) >= MIN_CLAIM_ROUNDS for cell in ranking.cells)
    return leaders(ranking, metric) if enough and is_comparison(ranking, metric) else frozenset()


def unranked(ranking: SettingSummary, metric: Metric, family: Sequence[SettingSummary] = ()) -> list[CellSummary]:
    """Return the cells that have a figure and, for want of rounds, no rank, although others have one, there or in
    another setting of the family.
    """
    is_ranked = any(claimed_leaders(each, metric) for each in (ranking, *family))
    if not is_ranked or not is_comparison(ranking, metric):
        return []
    return [cell for cell in ranking.cells if _rounds_count(cell, metric) and told_rank(ranking, cell, metric) is None]


def is_lead_unsure(ranking: SettingSummary, metric: Metric) -> bool:
    """Return whether a cell without a rank has a figure about as good as that of a leader may be: one or two rounds may
    well be off by a factor of two.
    """
    first = leaders(ranking, metric)
    lows = [_time(cell, metric) for cell in unranked(ranking, metric)]
    return any(
        own.estimate <= 2 * best.high
        for own in lows
        for best in (_time(cell, metric) for cell in ranking.cells if cell.backend in first)
    )


def _time(cell: CellSummary, metric: Metric) -> Interval:
    estimate = estimate_of(cell, metric)
    if estimate is not None:
        return estimate.interval()
    alone = 1.0 / cell.throughput_per_s if metric == "throughput" and cell.throughput_per_s else math.inf
    return Interval(alone, alone, alone)


def _rounds_count(cell: CellSummary, metric: Metric) -> int:
    """Return how many rounds of a metric a cell has."""
    estimate = estimate_of(cell, metric)
    if estimate is not None:
        return estimate.rounds_count
    return int(metric == "throughput" and cell.throughput_per_s is not None)  # one round without samples


def ranked_count(ranking: SettingSummary, metric: Metric) -> int:
    """Return how many backends have a rank by a metric."""
    return sum(rank_of(ranking, cell, metric) is not None for cell in ranking.cells)


def family_words_of(family: Sequence[SettingSummary]) -> str:
    """Return what the settings of a family have in common: `dict, pickle, 3 readers, every_message`."""
    setting = family[0].setting
    return f"{setting.payload}, {family_words(setting)}"


def rank_of(ranking: SettingSummary, cell: CellSummary, metric: Metric) -> int | None:
    """Return the rank of a cell by a metric; None if it has none."""
    if ranking.ranked_by == metric:
        return cell.rank
    return {"round trip": cell.round_trip_rank, "throughput": cell.throughput_rank}.get(metric)


def told_rank(ranking: SettingSummary, cell: CellSummary, metric: Metric | None) -> int | None:
    """Return the rank of a cell by a metric as it may be told, see `claimed_leaders`."""
    return rank_of(ranking, cell, metric) if metric is not None and claimed_leaders(ranking, metric) else None


def _common(a: Curve, b: Curve) -> list[tuple[CurvePoint, CurvePoint]]:
    others = {point.payload_bytes: point for point in b.points}
    return [(point, others[point.payload_bytes]) for point in a.points if point.payload_bytes in others]


def _clear(pairs: Sequence[tuple[CurvePoint, CurvePoint]], rules: Rules) -> Iterator[tuple[int, str]]:
    """Yield the indices at which the first of the pair is clearly faster or slower, with that verdict."""
    for index, (point, other) in enumerate(pairs):
        decided = verdict(point.time, other.time, *rules[point.payload_bytes])
        if decided != "no clear difference":
            yield index, decided


def _lead_crossing(
    pair: tuple[Curve, Curve], rules: Rules, between: tuple[int, int]
) -> tuple[Interval, tuple[int, int]] | None:
    """Return where the lead passes from the first to the second, and the sizes at which each is clearly ahead.

    None if a figure that this needs is missing: a trial failed, or the run ended early.
    """
    pairs = [points for points in _common(*pair) if points[0].payload_bytes <= between[1]]
    sizes = [point.payload_bytes for point, _ in pairs]
    ahead = [index for index, decided in _clear(pairs, rules) if decided == "faster"]
    if between[1] not in sizes or not (ahead or between[0] in sizes):
        return None
    start = ahead[-1] if ahead else sizes.index(between[0])
    return _where(pairs[start:]), (pairs[start][0].payload_bytes, between[1])


def _fastest(by_name: Mapping[str, Curve], names: frozenset[str], payload_bytes: int) -> Curve:
    times = {
        name: point.time.value
        for name in sorted(names)
        for point in by_name[name].points
        if point.payload_bytes == payload_bytes
    }
    return by_name[min(times, key=lambda name: times[name])]


def _where(pairs: Sequence[tuple[CurvePoint, CurvePoint]]) -> Interval:
    """Return the size at which two curves cross; the first is ahead at the first pair and behind at the last.

    Where noise makes a curve cross more than once, everything from the first to the last zero is uncertain: the
    interval reaches from the lower end of the first to the upper end of the last; the estimate is their middle.
    """
    places = np.array([position(point.payload_bytes) for point, _ in pairs])
    values = np.array([[np.log(point.time.value) - np.log(other.time.value) for point, other in pairs]])
    replicates = np.stack([log_replicates(point.time) - log_replicates(other.time) for point, other in pairs], axis=1)
    middle = float(np.mean(_zeros(places, values)))
    first, last = _zeros(places, replicates)
    low = min(middle, float(np.quantile(first, 0.5 - LEVEL / 2)))
    high = max(middle, float(np.quantile(last, 0.5 + LEVEL / 2)))
    return Interval(*(float(np.exp(place)) for place in (low, middle, high)))


def _zeros(places: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the first and the last zero of each row, shape (rows,), where it rises from below to above 0.

    A row that is above 0 from the start crosses at the first place, a row that is never above 0 at the last.
    """
    first = np.full(rows.shape[0], places[-1])
    last = np.full(rows.shape[0], places[0])
    seen = rows[:, 0] > 0.0
    first[seen] = places[0]
    for index in range(places.size - 1):
        here, then = rows[:, index], rows[:, index + 1]
        crosses = (here <= 0.0) != (then <= 0.0)
        steps = np.where(crosses, then - here, 1.0)
        zero = places[index] - np.where(crosses, here, 0.0) / steps * (places[index + 1] - places[index])
        first = np.where(crosses & ~seen, zero, first)
        last = np.where(crosses, zero, last)
        seen |= crosses
    last[rows[:, -1] <= 0.0] = places[-1]
    return first, np.maximum(first, last)
