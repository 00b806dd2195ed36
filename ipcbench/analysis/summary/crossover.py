"""Crossovers: the payload size at which one backend overtakes another, with its interval.

A crossover is claimed only where one backend is clearly ahead at a smaller size and the other clearly ahead at a larger
one. Between those two sizes the logarithm of the ratio of their times is interpolated over the logarithm of the size;
its zero is the estimate, and the zeros of the bootstrap's replicates give the interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, get_args

import numpy as np

from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary, Summary
from ipcbench.analysis.summary.curves import Axis, Curve, Point, curves, families, log_replicates, position
from ipcbench.analysis.summary.wording import family_words, joined
from ipcbench.stats.decisions import verdict
from ipcbench.stats.estimates import LEVEL, FloatArray, Interval
from ipcbench.util.units import format_significant

BETTER: Mapping[Axis, str] = {
    "latency": "the lower one-way latency",
    "round trip": "the shorter round trip",
    "throughput": "the higher throughput",
    "cpu": "the lower CPU time per message",
}
"""What who is ahead on an axis has."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """How two backends, or two groups that cannot be told apart, stand to each other over the measured sizes."""

    axis: Axis
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
    """Without a crossover: at how many of how many sizes the first is clearly ahead; the second is at none."""

    def sentence(self) -> str:
        """Return it in words, with figures and units."""
        low, high = (f"{size:,} B" for size in self.range_bytes)
        below, above = joined(self.below), joined(self.above)
        if self.payload_bytes is not None:
            where = self.payload_bytes
            return (
                f"Crossover at {format_significant(where.estimate)} B "
                f"[{format_significant(where.low)}–{format_significant(where.high)}], "
                f"between {low} and {high}: {below} has {BETTER[self.axis]} below, {above} above."
            )
        count, sizes = self.clear_of_sizes or (0, 0)
        span = f"No crossover in the measured range, {low} to {high}"
        if count == 0:
            return f"{span}: between {below} and {above} neither clearly has {BETTER[self.axis]} at any size."
        return f"{span}: {below} clearly has {BETTER[self.axis]} at {count} of {sizes} sizes, {above} at none."

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, the sentence among them."""
        return {**asdict(self), "sentence": self.sentence()}


def crossovers(summary: Summary) -> tuple[Crossover, ...]:
    """Return how every two backends stand to each other over the sizes of each family, by each metric measured.

    A pair that crosses several times has one entry each time; a pair that never does has one that says so. Pairs with
    fewer than two sizes in common have none.
    """
    return tuple(
        found
        for family in families(summary)
        for metric in get_args(Metric)
        for a, b in combinations(curves(family, metric).values(), 2)
        for found in pair_crossovers(a, b, metric, summary.noise_ratios.get(metric, 0.0), family_words_of(family))
    )


def lead_changes(family: Sequence[SettingSummary], metric: Metric, noise_ratio: float) -> tuple[Crossover, ...]:
    """Return each change of the lead that is clear: no backend holds first rank on both sides of it.

    A new leader without a figure at a smaller size, or an old one without a figure at the larger size, overtook nobody
    that was measured there: that change has no entry.

    Args:
        family: settings that differ in nothing but the size, by size.
        metric: what the lead is in.
        noise_ratio: the run's noise in that metric.
    """
    found: list[Crossover] = []
    by_name = curves(family, metric)
    held: frozenset[str] = frozenset()
    held_at = 0
    for one in family:
        first = leaders(one, metric)
        if not first:
            continue
        size = one.setting.payload_bytes
        if held and not held & first:
            pair = (_fastest(by_name, held, held_at), _fastest(by_name, first, size))
            crossing = _lead_crossing(pair, noise_ratio, (held_at, size))
            if crossing is not None:
                words = family_words_of(family)
                found.append(Crossover(metric, words, tuple(sorted(held)), tuple(sorted(first)), *crossing))
            held = first
        else:
            held = held & first or first
        held_at = size
    return tuple(found)


def pair_crossovers(a: Curve, b: Curve, axis: Axis, noise_ratio: float, family: str) -> tuple[Crossover, ...]:
    """Return where two curves cross, by size, or one entry that says that they do not; empty with fewer than two
    common sizes.
    """
    pairs = _common(a, b)
    if len(pairs) < 2:
        return ()
    clear = list(_clear(pairs, noise_ratio))
    found: list[Crossover] = []
    for (start, ahead), (end, then) in pairwise(clear):
        if ahead != then:
            below, above = (a, b) if ahead == "faster" else (b, a)
            part = pairs[start : end + 1]
            between = (part[0][0].payload_bytes, part[-1][0].payload_bytes)
            found.append(Crossover(axis, family, (below.backend,), (above.backend,), _where(part), between))
    if found:
        return tuple(found)
    whole = (pairs[0][0].payload_bytes, pairs[-1][0].payload_bytes)
    first, other = (a, b) if not clear or clear[0][1] == "faster" else (b, a)
    counts = (len(clear), len(pairs))
    return (Crossover(axis, family, (first.backend,), (other.backend,), None, whole, counts),)


def leaders(one: SettingSummary, metric: Metric) -> frozenset[str]:
    """Return the backends that hold or share the first rank by a metric; empty if it ranked nobody."""
    return frozenset(cell.backend for cell in one.cells if _rank(one, cell, metric) == 1)


def family_words_of(family: Sequence[SettingSummary]) -> str:
    """Return what the settings of a family have in common: `dict, pickle, 3 readers, every_message`."""
    setting = family[0].setting
    return f"{setting.payload}, {family_words(setting)}"


def _rank(one: SettingSummary, cell: CellSummary, metric: Metric) -> int | None:
    if one.ranked_by == metric:
        return cell.rank
    return {"round trip": cell.round_trip_rank, "throughput": cell.throughput_rank}.get(metric)


def _common(a: Curve, b: Curve) -> list[tuple[Point, Point]]:
    others = {one.payload_bytes: one for one in b.points}
    return [(one, others[one.payload_bytes]) for one in a.points if one.payload_bytes in others]


def _clear(pairs: Sequence[tuple[Point, Point]], noise_ratio: float) -> Iterator[tuple[int, str]]:
    """Yield the indices at which the first of the pair is clearly faster or slower."""
    for index, (one, other) in enumerate(pairs):
        found = verdict(one.time, other.time, noise_ratio)
        if found != "no clear difference":
            yield index, found


def _lead_crossing(
    pair: tuple[Curve, Curve], noise_ratio: float, between: tuple[int, int]
) -> tuple[Interval, tuple[int, int]] | None:
    """Return where the lead passes from one to the other, and the sizes at which each of the two is clearly ahead.

    None if the two do not both have figures at the sizes that this needs: a trial failed, or the run ended early.
    """
    pairs = [one for one in _common(*pair) if one[0].payload_bytes <= between[1]]
    sizes = [one.payload_bytes for one, _ in pairs]
    ahead = [index for index, found in _clear(pairs, noise_ratio) if found == "faster"]
    if between[1] not in sizes or not (ahead or between[0] in sizes):
        return None
    start = ahead[-1] if ahead else sizes.index(between[0])
    return _where(pairs[start:]), (pairs[start][0].payload_bytes, between[1])


def _fastest(by_name: Mapping[str, Curve], names: frozenset[str], payload_bytes: int) -> Curve:
    times = {
        name: one.time.value
        for name in sorted(names)
        for one in by_name[name].points
        if one.payload_bytes == payload_bytes
    }
    return by_name[min(times, key=lambda name: times[name])]


def _where(pairs: Sequence[tuple[Point, Point]]) -> Interval:
    """Return the size at which the two cross: the first is ahead at the first pair and behind at the last.

    Where noise makes a curve cross more than once, everything from the first to the last zero is uncertain: the
    interval reaches from the lower end of the first to the upper end of the last, the estimate is their middle.
    """
    places = np.array([position(one.payload_bytes) for one, _ in pairs])
    values = np.array([[np.log(one.time.value) - np.log(other.time.value) for one, other in pairs]])
    replicates = np.stack([log_replicates(one.time) - log_replicates(other.time) for one, other in pairs], axis=1)
    middle = float(np.mean(_zeros(places, values)))
    first, last = _zeros(places, replicates)
    low = min(middle, float(np.quantile(first, 0.5 - LEVEL / 2)))
    high = max(middle, float(np.quantile(last, 0.5 + LEVEL / 2)))
    return Interval(*(float(np.exp(one)) for one in (low, middle, high)))


def _zeros(places: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the first and the last zero of each row, shape (rows,), rising from below to above 0 between places.

    A row that is above 0 from the start crosses at the first place, one that is never above 0 at the last.
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
