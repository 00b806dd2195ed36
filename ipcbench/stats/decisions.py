"""Quantiles, intervals, and what may be said of a ratio: faster, slower, or no clear difference.

All of it works on logarithms, since times and rates are positive and their errors are ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ipcbench.stats.student import NORMAL_975, student_975, student_p_value

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Verdict = Literal["faster", "slower", "no clear difference"]

LEVEL = 0.95
"""Of every interval."""
MIN_TAIL_COUNT = 10
"""A percentile p of n samples is given only if n·(1 − p) is at least this."""
MIN_DIFFERENCE_RATIO = 0.01
"""No smaller difference is ever called one, however narrow its interval: where code and data happen to lie in memory
can make as much (Mytkowicz et al. 2009)."""
LEAST_RATIO = 0.005
"""What may be smaller than this, and would be 0 % in whole percents, is not called a difference either."""
MIN_ROUNDS = 3
"""With fewer rounds an interval says little about how rounds differ."""
MIN_CLAIM_ROUNDS = 2
"""With one round nothing is known of how rounds differ."""

TRIMMED_RATIO = 0.2
"""Of the rounds of a comparison turn by turn, so many are left out on either side."""
_MIN_ROUNDS_TO_TRIM = 8
"""Of fewer, too few would be left to tell how they differ."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval; low ≤ estimate ≤ high, all in the unit of the estimate."""

    low: float
    estimate: float
    high: float
    level: float = LEVEL


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A figure of one cell and all that is needed to give its interval or to divide it by another cell's."""

    value: float
    deviations: FloatArray
    """Shape (replicates,): log(replicate / value)."""
    log_variance: float
    """Of log(value), the number of rounds allowed for."""
    degrees: float
    """Degrees of freedom of `log_variance`."""
    rounds_count: int
    turns: Mapping[str, FloatArray] = field(default_factory=dict)
    """By round, the logarithms of the medians of its turns, where cells took turns: shape (turns,). Estimates that have
    rounds in common are compared turn by turn."""

    def interval(self) -> Interval:
        """Return the 95 % interval."""
        return _interval(self.value, self.deviations, self.log_variance, self.degrees)


def quantile(values: npt.ArrayLike, probability: float) -> float | None:
    """Return the quantile (linear between order statistics), or None if n·(1 − probability) < `MIN_TAIL_COUNT`."""
    array = np.asarray(values, dtype=np.float64)
    # 1 − 0.9 is a little less than 0.1 in binary: 100 samples are enough for p90 all the same.
    if array.size * (1.0 - probability) < MIN_TAIL_COUNT - 1e-6:
        return None
    return float(np.quantile(array, probability))


def ratio(numerator: Estimate, denominator: Estimate) -> Interval:
    """Return numerator / denominator with its 95 % interval.

    Of two that took turns it is the trimmed mean over rounds, on logarithms, of what their turns differ by, and its
    interval; of others the quotient, and they must come from independent draws.
    """
    paired = _paired(numerator, denominator)
    if paired is not None:
        half = student_975(paired.degrees) * math.sqrt(paired.variance)
        low, middle, high = (math.exp(paired.mean + sign * half) for sign in (-1.0, 0.0, 1.0))
        return Interval(low, middle, high)
    variance = numerator.log_variance + denominator.log_variance
    parts = ((numerator.log_variance, numerator.degrees), (denominator.log_variance, denominator.degrees))
    return _interval(
        numerator.value / denominator.value,
        numerator.deviations - denominator.deviations,
        variance,
        satterthwaite(parts),
    )


@dataclass(frozen=True, slots=True)
class _Paired:
    """How much longer one time is than another, as a logarithm, and how well that is known."""

    mean: float
    variance: float
    degrees: float


def _paired(a: Estimate, b: Estimate) -> _Paired | None:
    """Return log(a / b) from the rounds in which both took turns; None if those are too few.

    It is the mean without the lowest and highest fifth of the rounds, its variance from the winsorized ones (Tukey and
    McLaughlin 1963): a neighbour on a shared machine makes a few rounds differ by several times as much as the rest.
    """
    found = np.sort(round_differences(a, b))
    count = len(found)
    if count < MIN_CLAIM_ROUNDS:
        return None
    cut = int(TRIMMED_RATIO * count) if count >= _MIN_ROUNDS_TO_TRIM else 0
    kept = count - 2 * cut
    spread = float(np.var(np.clip(found, found[cut], found[count - 1 - cut]), ddof=1))
    variance = (count - 1) * spread / (kept * (kept - 1))
    return _Paired(float(np.mean(found[cut : count - cut])), variance, kept - 1.0)


def round_differences(a: Estimate, b: Estimate) -> FloatArray:
    """Return log(a / b) of each round in which both took turns, shape (rounds,): the median over its turns."""
    common = [one for one in a.turns if one in b.turns and len(a.turns[one]) == len(b.turns[one])]
    return np.array([np.median(a.turns[one] - b.turns[one]) for one in common])


def compare(times: Interval, noise_floor_ratio: float) -> Verdict:
    """Return what may be said of a ratio of two times (this / other).

    `faster` or `slower` only if the difference, larger / smaller − 1, is more than 1 % and more than the noise floor,
    and more than 0.5 % wherever in the interval the truth may be; else `no clear difference`.
    """
    if times.estimate <= 0.0 or may_be_equal(times):
        return "no clear difference"
    if max(times.estimate, 1.0 / times.estimate) - 1.0 <= max(MIN_DIFFERENCE_RATIO, noise_floor_ratio):
        return "no clear difference"
    return "faster" if times.estimate < 1.0 else "slower"


def verdict(time: Estimate, other: Estimate, noise_floor_ratio: float) -> Verdict:
    """Return what may be said of a time beside another one: `compare`, and nothing where either has one round only."""
    if min(time.rounds_count, other.rounds_count) < MIN_CLAIM_ROUNDS:
        return "no clear difference"
    return compare(ratio(time, other), noise_floor_ratio)


def may_be_equal(times: Interval) -> bool:
    """Return whether the interval of a ratio comes to within 0.5 % of 1."""
    least = 1.0 + LEAST_RATIO
    return times.low <= least and times.high >= 1.0 / least


def p_value(a: Estimate, b: Estimate) -> float | None:
    """Return the two-sided p-value of "both are equal"; None if there are too few rounds to say.

    Student's test of what the turns differ by, where turns were taken; else Welch's test of the logarithms. There no
    variance counts for more degrees of freedom than its rounds give: far out in the tail, where many tests are decided,
    anything more calls equal figures different (docs/compare.md).
    """
    if min(a.rounds_count, b.rounds_count) < MIN_CLAIM_ROUNDS:
        return None
    paired = _paired(a, b)
    if paired is not None:
        return _tail(paired.mean, paired.variance, paired.degrees)
    degrees = satterthwaite([(one.log_variance, min(one.degrees, one.rounds_count - 1.0)) for one in (a, b)])
    return _tail(math.log(b.value / a.value), a.log_variance + b.log_variance, degrees)


def _tail(difference: float, variance: float, degrees: float) -> float:
    if variance <= 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return student_p_value(difference / math.sqrt(variance), degrees)


def rank_groups(times: Sequence[Estimate], noise_floor_ratio: float) -> tuple[int, ...]:
    """Return the rank of each time, from 1 for the least; whoever cannot be told from a group's best shares its rank.

    The next rank counts everyone before it: 1, 1, 3. A group's best is the first, in order, that is slower than the
    best of the group before: by `compare`, and at 5 % shared out among all comparisons (Bonferroni), so that the ranks
    hold together. Times of one round all share a rank: nothing is known of how rounds differ.
    """
    ranks = [0] * len(times)
    share = (1.0 - LEVEL) / max(1, len(times) - 1)
    best: Estimate | None = None
    for position, index in enumerate(sorted(range(len(times)), key=lambda i: times[i].value)):
        one = times[index]
        if best is None or _is_slower(one, best, noise_floor_ratio, share):
            best, rank = one, position + 1
        ranks[index] = rank
    return tuple(ranks)


def _is_slower(one: Estimate, best: Estimate, noise_floor_ratio: float, share: float) -> bool:
    if verdict(one, best, noise_floor_ratio) != "slower":
        return False
    chance = p_value(one, best)
    return chance is not None and chance < share


def noise_floor_ratio(cells: Sequence[Sequence[float]]) -> float | None:
    """Return by how much two measurements of one and the same cell typically differ in this run, as a ratio − 1.

    Args:
        cells: per cell, its figure in each round.

    Returns:
        exp(m / 0.6745 / √R) − 1, where m is the median of |log(a/b)| over all pairs of rounds of a cell and R the usual
        number of rounds: one standard deviation of the difference of two such cells. None if no cell has two rounds.
    """
    return _noise([np.log([value for value in rounds if value > 0]) for rounds in cells])


def paired_noise_floor_ratio(settings: Sequence[Sequence[Estimate]]) -> float | None:
    """As `noise_floor_ratio`, of cells that took turns.

    Args:
        settings: per setting, the estimates of its cells. What two of them differ by in each round has a standard
            deviation that is already that of a difference.
    """
    found = [round_differences(a, b) / math.sqrt(2.0) for one in settings for i, a in enumerate(one) for b in one[:i]]
    return _noise(found)


def _noise(cells: Sequence[FloatArray]) -> float | None:
    pairs = [abs(a - b) for rounds in cells for i, a in enumerate(rounds) for b in rounds[:i]]
    if not pairs:
        return None
    usual = float(np.median([len(rounds) for rounds in cells if len(rounds) > 1]))
    return math.expm1(float(np.median(pairs)) / 0.6745 / math.sqrt(usual))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of independent variances, given each with its own."""
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / max(degrees, 1.0) for variance, degrees in parts)
    return total**2 / spread if spread > 0 else math.inf


def _interval(value: float, deviations: FloatArray, log_variance: float, degrees: float) -> Interval:
    """Return the replicates' percentile interval, scaled to the width that variance and degrees of freedom ask for."""
    half = student_975(degrees) * math.sqrt(log_variance)
    spread = float(np.std(deviations, ddof=1))
    low, high = -half, half
    if spread > 0.0:
        scale = half / (NORMAL_975 * spread)
        low, high = (scale * float(x) for x in np.quantile(deviations, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)))
    return Interval(value * math.exp(min(low, 0.0)), value, value * math.exp(max(high, 0.0)))
