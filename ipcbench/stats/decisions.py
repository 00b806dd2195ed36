"""Decisions: whether a time is faster than another, slower, or neither, and the rank that follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ipcbench.stats.estimates import (
    LEVEL,
    MIN_CLAIM_ROUNDS,
    Estimate,
    Interval,
    paired_difference,
    ratio,
    satterthwaite,
)
from ipcbench.stats.student import student_p_value

Verdict = Literal["faster", "slower", "no clear difference"]

MIN_DIFFERENCE_RATIO = 0.01
"""No smaller difference is ever claimed, however narrow its interval: the placement of code and data in memory can
cause as much (Mytkowicz et al. 2009)."""
LEAST_RATIO = 0.005
"""No difference is claimed if it may be smaller than this, which would be 0 % in whole percents."""


def compare(times: Interval, noise_floor_ratio: float) -> Verdict:
    """Return the verdict on a ratio of two times (this / other).

    It is `faster` or `slower` only if the difference, larger / smaller − 1, exceeds 1 % and the noise floor, and 0.5 %
    throughout the interval; else `no clear difference`.
    """
    if times.estimate <= 0.0 or may_be_equal(times):
        return "no clear difference"
    if max(times.estimate, 1.0 / times.estimate) - 1.0 <= max(MIN_DIFFERENCE_RATIO, noise_floor_ratio):
        return "no clear difference"
    return "faster" if times.estimate < 1.0 else "slower"


def verdict(time: Estimate, other: Estimate, noise_floor_ratio: float) -> Verdict:
    """Return the verdict on two times: as `compare`, but `no clear difference` if either has only one round."""
    if min(time.rounds_count, other.rounds_count) < MIN_CLAIM_ROUNDS:
        return "no clear difference"
    return compare(ratio(time, other), noise_floor_ratio)


def may_be_equal(times: Interval) -> bool:
    """Return whether the interval of a ratio reaches to within 0.5 % of 1."""
    least = 1.0 + LEAST_RATIO
    return times.low <= least and times.high >= 1.0 / least


def p_value(a: Estimate, b: Estimate) -> float | None:
    """Return the two-sided p-value of "both are equal"; None if there are too few rounds.

    Where cells took turns, it is Student's test of the paired differences; else Welch's test of the logarithms. In the
    latter, degrees of freedom are limited to those of the rounds: with more, equal figures would be called different
    far out in the tail, where many tests are decided (docs/compare.md).
    """
    if min(a.rounds_count, b.rounds_count) < MIN_CLAIM_ROUNDS:
        return None
    paired = paired_difference(a, b)
    if paired is not None:
        return _tail(paired.mean, paired.variance, paired.degrees)
    degrees = satterthwaite([(time.log_variance, min(time.degrees, time.rounds_count - 1.0)) for time in (a, b)])
    return _tail(math.log(b.value / a.value), a.log_variance + b.log_variance, degrees)


def _tail(difference: float, variance: float, degrees: float) -> float:
    if variance <= 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return student_p_value(difference / math.sqrt(variance), degrees)


def rank_groups(times: Sequence[Estimate], noise_floor_ratio: float) -> tuple[int, ...]:
    """Return the rank of each time, from 1 for the shortest; times that cannot be told apart share a rank (1, 1, 3).

    In ascending order, a time opens a new rank if it is slower than the first time of the current rank: by `verdict`,
    and at a level of 5 % divided by the number of comparisons (Bonferroni), so that all ranks hold together 95 times of
    100. Times of a single round all share a rank, since nothing is known of how rounds differ.
    """
    ranks = [0] * len(times)
    level = (1.0 - LEVEL) / max(1, len(times) - 1)
    best: Estimate | None = None
    for position, index in enumerate(sorted(range(len(times)), key=lambda i: times[i].value)):
        time = times[index]
        if best is None or _is_slower(time, best, noise_floor_ratio, level):
            best, rank = time, position + 1
        ranks[index] = rank
    return tuple(ranks)


def _is_slower(time: Estimate, best: Estimate, noise_floor_ratio: float, level: float) -> bool:
    if verdict(time, best, noise_floor_ratio) != "slower":
        return False
    chance = p_value(time, best)
    return chance is not None and chance < level
