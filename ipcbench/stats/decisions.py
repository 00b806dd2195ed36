"""Decisions: whether a time is faster than another, slower, or neither, and the rank that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import correlation, fmean, median
from typing import Literal

from ipcbench.stats.estimates import (
    MIN_CLAIM_ROUNDS,
    Estimate,
    Interval,
    PairedDifference,
    differences_by_round,
    paired_difference,
    ratio,
    rounds_in_common,
    satterthwaite,
)
from ipcbench.stats.prior import VariancePrior, variance_prior
from ipcbench.stats.student import range_critical, student_p_value

Verdict = Literal["faster", "slower", "no clear difference"]

LEAST_RATIO = 0.01
"""No difference is claimed if it may be smaller than this: the placement of code and data in memory can cause as much
(Mytkowicz et al. 2009)."""
_MOST_ROUNDS = 100
"""No more further rounds than this are thought of."""
_POWER_80 = 0.84  # the 80 % point of a normal distribution


def compare(times: Interval) -> Verdict:
    """Return the verdict on a ratio of two times (this / other): a difference if all of its interval is beyond 1 %."""
    if times.low > 1.0 + LEAST_RATIO:
        return "slower"
    return "faster" if times.high < 1.0 / (1.0 + LEAST_RATIO) else "no clear difference"


def verdict(time: Estimate, other: Estimate, prior: VariancePrior | None = None, among: int = 2) -> Verdict:
    """Return the verdict on two times of one run: as `compare`, but none below `MIN_CLAIM_ROUNDS` rounds in common.

    Args:
        time: the one that it is about.
        other: the one that it is compared with.
        prior: what the other comparisons of the run tell about how much rounds differ.
        among: how many times the two were chosen from: all verdicts about them hold together at 95 %.
    """
    common = rounds_in_common(time, other)
    found = None if common is not None and common < MIN_CLAIM_ROUNDS else _statistic(time, other, prior)
    if found is None or (paired_difference(time, other) is None and abs(found[0]) <= range_critical(among, found[1])):
        return "no clear difference"
    return compare(ratio(time, other, prior, among))


def rounds_to_decide(time: Estimate, best: Estimate, prior: VariancePrior | None, among: int = 2) -> int | None:
    """Return how many more rounds would tell two times apart, four times of five, if they differ as it seems.

    Returns:
        0 if they are told apart already; None if they seem to differ by less than `LEAST_RATIO`, if it would take more
        than 100, or if they have fewer than two in common.
    """
    paired = paired_difference(time, best)
    if paired is None:
        return None
    if verdict(time, best, prior, among) != "no clear difference":
        return 0
    effect = abs(paired.mean) - math.log1p(LEAST_RATIO)
    for count in range(max(MIN_CLAIM_ROUNDS, paired.rounds_count + 1), paired.rounds_count + _MOST_ROUNDS + 1):
        later = paired.after(count).moderated(prior)
        if (range_critical(among, later.degrees) + _POWER_80) * later.error < effect:
            return count - paired.rounds_count
    return None


def prior_of(settings: Sequence[Sequence[Estimate | None]]) -> VariancePrior | None:
    """Return what the comparisons of a run tell about how much the difference of two times changes between rounds.

    Args:
        settings: per setting, the times of its cells by one metric, in the same order of backends everywhere; None for
            one that is missing. Each is compared with the shortest of its setting.
    """
    families: dict[int, list[tuple[Estimate, Estimate]]] = {}
    for times in settings:
        best = min((time for time in times if time is not None), key=lambda time: time.value, default=None)
        for place, time in enumerate(times):
            if time is not None and best is not None and time is not best:
                families.setdefault(place, []).append((time, best))
    prior = prior_of_comparisons(list(families.values()))
    return prior and replace(prior, floors=_floors(settings))


def _floors(settings: Sequence[Sequence[Estimate | None]]) -> dict[str, float]:
    """Return backend → the median variance of its comparisons with all others at all settings.

    Where the rounds of a backend are of two kinds, few of them may all be of one kind by chance at one setting, and
    then seem not to differ at all; at the others they show it.
    """
    found: dict[str, list[float]] = {}
    for times in settings:
        for a, b in combinations([time for time in times if time is not None], 2):
            pair = paired_difference(a, b)
            if pair is not None:
                for name in pair.between:
                    found.setdefault(name, []).append(pair.round_variance)
    return {name: median(variances) for name, variances in found.items()}


def prior_of_comparisons(families: Sequence[Sequence[tuple[Estimate, Estimate]]]) -> VariancePrior | None:
    """Return what comparisons tell about how much the difference of two times changes between rounds.

    Those of one backend at several settings come from the same processes of each round. Where such a round differs, it
    may differ at all settings alike; they then tell less than as many independent ones. By their correlation r, S of
    them are worth S / (1 + (S − 1) r²).

    Args:
        families: the comparisons of each backend.
    """
    variances, worth = [], 0.0
    shared_ratio = _correlation([[differences_by_round(*times) for times in family] for family in families])
    for family in families:
        pairs = [pair for times in family if (pair := paired_difference(*times)) is not None]
        variances += [(pair.round_variance, pair.degrees) for pair in pairs]
        worth += sum(pair.degrees for pair in pairs) / (1.0 + max(0, len(pairs) - 1) * shared_ratio**2)
    return variance_prior(variances, worth)


def _correlation(families: Sequence[Sequence[Mapping[str, float]]]) -> float:
    """Return the mean correlation of the rounds of two settings of one family, at least 0."""
    found = []
    for family in families:
        for index, first in enumerate(family):
            for second in family[:index]:
                both = [(first[name], second[name]) for name in first if name in second]
                if len(both) >= MIN_CLAIM_ROUNDS and all(len(set(column)) > 1 for column in zip(*both, strict=True)):
                    found.append(correlation(*zip(*both, strict=True)))
    return max(0.0, fmean(found)) if found else 0.0


def table_prior(times: Sequence[Estimate], prior: VariancePrior | None) -> VariancePrior | None:
    """Return the prior for the comparisons of one table, with the median of their variances as floor.

    Among several cells whose rounds are of two kinds, some two will show the same kinds by chance, and the best is
    chosen from them.
    """
    pairs = _with_best(times)
    if prior is None or len(pairs) < 2:
        return prior
    return replace(prior, floor=median(pair.round_variance for pair in pairs))


def _with_best(times: Sequence[Estimate]) -> list[PairedDifference]:
    best = min(times, key=lambda time: time.value, default=None)
    if best is None:
        return []
    pairs = (paired_difference(time, best) for time in times if time is not best)
    return [pair for pair in pairs if pair is not None]


def p_value(a: Estimate, b: Estimate, prior: VariancePrior | None = None) -> float | None:
    """Return the two-sided p-value of "both are equal"; None if there are too few rounds.

    Where they have rounds in common, it is Student's test of the paired differences; else Welch's test of the
    logarithms. In the latter, degrees of freedom are limited to those of the rounds: with more, equal figures would be
    called different far out in the tail, where many tests are decided (docs/compare.md).
    """
    found = _statistic(a, b, prior)
    return None if found is None else student_p_value(*found)


def _statistic(a: Estimate, b: Estimate, prior: VariancePrior | None) -> tuple[float, float] | None:
    """Return the difference of two times in standard errors, and the degrees of freedom of these."""
    paired = paired_difference(a, b)
    rounds = paired.rounds_count if paired is not None else min(a.rounds_count, b.rounds_count)
    if rounds < MIN_CLAIM_ROUNDS:
        return None
    if paired is not None:
        expected = paired.moderated(prior)
        difference, error, degrees = expected.mean, expected.error, expected.degrees
    else:
        difference, error = math.log(a.value / b.value), math.sqrt(a.log_variance + b.log_variance)
        degrees = satterthwaite([(time.log_variance, min(time.degrees, time.rounds_count - 1.0)) for time in (a, b)])
    if error == 0.0:
        return (math.copysign(math.inf, difference) if difference else 0.0), degrees
    return difference / error, degrees


def judged(times: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return the times that have rounds enough for a rank: a tie would claim of the others that they are as good.

    All of them if none has: then there is nothing that they could be said to be as good as.
    """
    enough = {name: time for name, time in times.items() if time.rounds_count >= MIN_CLAIM_ROUNDS}
    return enough or dict(times)


def rank_groups(
    times: Sequence[Estimate], prior: VariancePrior | None = None, table: Sequence[Estimate] = ()
) -> tuple[int, ...]:
    """Return the rank of each time, from 1 for the shortest; times that cannot be told apart share a rank (1, 1, 3).

    If they are only some of a table, `table` has all of it, and two of them are told apart only if they are there.

    In ascending order, a time has rank 1 if it is not clearly slower than the shortest, by `verdict` among all of them,
    even where one between them is; else it shares the latest rank if it is not clearly slower than the time that opened
    it; else it opens a new rank.
    """
    group_of = [0] * len(times)
    leaders: list[int] = []
    table = table or times
    prior = table_prior(table, prior)
    for index in sorted(range(len(times)), key=lambda i: times[i].value):
        nearest = dict.fromkeys((*leaders[:1], *leaders[-1:]))
        equal = (leader for leader in nearest if verdict(times[index], times[leader], prior, len(table)) != "slower")
        leader = next(equal, None)
        if leader is None:
            leaders.append(index)
        group_of[index] = len(leaders) - 1 if leader is None else group_of[leader]
    return tuple(1 + sum(other < group for other in group_of) for group in group_of)
