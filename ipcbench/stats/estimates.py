"""Estimates: quantiles, intervals, ratios, and the noise floor of a run.

Errors of times and rates are ratios, so variances and deviations are those of logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from ipcbench.stats.prior import VariancePrior
from ipcbench.stats.student import LEVEL, range_critical, student_975

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MIN_TAIL_COUNT = 10
"""A quantile p of n samples is given only if n·(1 − p) is at least this."""
MIN_CLAIM_ROUNDS = 3
"""With fewer, nothing is claimed: of two rounds of two kinds, both agree by chance one time in eight."""

TRIMMED_RATIO = 0.2
"""Share of the rounds left out on either side when cells that took turns are compared."""
_MIN_ROUNDS_TO_TRIM = 8
"""With fewer rounds, trimming leaves too few to tell how they differ."""
_MIN_ROUNDS_WITHOUT_FLOOR = 8
"""With fewer rounds of two kinds, all may be of one kind by chance, and then seem not to differ at all."""


UNSURE_DIGITS = 2
"""Of a figure after too few rounds for an interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval; low ≤ estimate ≤ high, all in the unit of the estimate."""

    low: float
    estimate: float
    high: float

    @property
    def digits(self) -> int:
        """Return how many significant digits of it say something: 3, or 2 if its ends are more than a factor of two
        apart, or 1 if more than ten; but so many, up to 3, that the estimate does not become one of its ends.
        """
        least = 1 if self.high > 10 * self.low else 2 if self.high > 2 * self.low else 3
        for digits in range(least, 3):
            low, estimate, high = (f"{value:.{digits - 1}e}" for value in (self.low, self.estimate, self.high))
            if estimate not in {low, high}:
                return digits
        return 3


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A figure of one cell, with what it takes to give its interval or its ratio to another cell's figure."""

    value: float
    deviations: FloatArray
    """Shape (replicates,): log(replicate / value)."""
    log_variance: float
    """Of log(value), which falls with the number of rounds."""
    degrees: float
    """Degrees of freedom of `log_variance`."""
    rounds_count: int
    rounds: Mapping[str, FloatArray] = field(default_factory=dict)
    """Round → log of the figure in each of its turns, shape (turns,); of the whole round if there were no turns.
    Estimates with rounds in common are compared round by round."""
    of: str = ""
    """What it is a figure of: a backend. By it a run knows whose rounds are of several kinds."""
    least: float = 0.0
    """A bound of the figure that is known otherwise; its interval does not reach below."""
    between: tuple[tuple[float, Estimate], ...] = ()
    """For a figure that was not measured: those that were, with their weights."""

    def interval(self) -> Interval:
        """Return the 95 % interval."""
        interval = _interval(self.value, self.deviations, self.log_variance, self.degrees)
        low, estimate, high = (max(end, self.least) for end in (interval.low, interval.estimate, interval.high))
        return Interval(low, estimate, high)


def quantile(values: npt.ArrayLike, probability: float) -> float | None:
    """Return the quantile (linear between order statistics), or None if n·(1 − probability) < `MIN_TAIL_COUNT`."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.quantile(array, probability)) if has_quantile(array.size, probability) else None


def has_quantile(count: int, probability: float) -> bool:
    """Return whether so many samples are enough for a quantile: n·(1 − probability) ≥ `MIN_TAIL_COUNT`."""
    # 1 − 0.9 is slightly less than 0.1 in binary; 100 samples must still be enough for p90.
    return count * (1.0 - probability) >= MIN_TAIL_COUNT - 1e-6


def weighted_quantile(values: FloatArray, weights: FloatArray, probability: float) -> float:
    """Return the quantile of values of unequal weight, linear between the middles of their weights.

    Args:
        values: shape (n,), n ≥ 1.
        weights: shape (n,), positive.
        probability: 0 to 1.
    """
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    return float(np.interp(probability * cumulated[-1], cumulated - weights[order] / 2.0, values[order]))


def ratio(numerator: Estimate, denominator: Estimate, prior: VariancePrior | None = None, among: int = 2) -> Interval:
    """Return numerator / denominator with its interval.

    If they have rounds in common, it is the trimmed mean over these of their differences, on logarithms. Otherwise it
    is the quotient, and the two must come from independent draws.

    Args:
        numerator: a time.
        denominator: another, in the same unit.
        prior: what the other comparisons of the run tell about how much rounds differ.
        among: how many times the two were chosen from; the intervals of any two of them hold together.
    """
    paired = paired_difference(numerator, denominator)
    if paired is not None:
        half = range_critical(among, paired.moderated(prior).degrees) * paired.moderated(prior).error
        low, middle, high = (math.exp(paired.mean + sign * half) for sign in (-1.0, 0.0, 1.0))
        return Interval(low, middle, high)
    parts = ((numerator.log_variance, numerator.degrees), (denominator.log_variance, denominator.degrees))
    return _interval(
        numerator.value / denominator.value,
        numerator.deviations - denominator.deviations,
        numerator.log_variance + denominator.log_variance,
        satterthwaite(parts),
        among,
    )


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """log(a / b) of two figures that were measured in the same rounds."""

    mean: float
    round_variance: float
    """Of the difference in one round."""
    degrees: float
    """Of `round_variance`."""
    rounds_count: int
    """Rounds in common."""
    between: tuple[str, str] = ("", "")
    """What the two are figures of."""

    @property
    def error(self) -> float:
        """Return the standard error of `mean`."""
        return math.sqrt(self.round_variance / _kept_count(self.rounds_count))

    def moderated(self, prior: VariancePrior | None) -> PairedDifference:
        """Return it with its variance in the light of the other comparisons of the run."""
        if prior is None:
            return self
        floor = prior.floor_of(self.between) if self.rounds_count < _MIN_ROUNDS_WITHOUT_FLOOR else 0.0
        variance, degrees = prior.moderate(self.round_variance, self.degrees, floor)
        return replace(self, round_variance=variance, degrees=degrees)

    def after(self, rounds_count: int) -> PairedDifference:
        """Return what is expected of it after another number of rounds."""
        more = _kept_count(rounds_count) - _kept_count(self.rounds_count)
        return replace(self, rounds_count=rounds_count, degrees=max(1.0, self.degrees + more))


def paired_difference(a: Estimate, b: Estimate) -> PairedDifference | None:
    """Return log(a / b) from the rounds that both have; None if there are fewer than two.

    It is the mean without the lowest and highest fifth of the rounds, with the variance of the winsorized rounds (Tukey
    and McLaughlin 1963): on a shared machine, a few rounds differ several times as much as the rest. If more rounds
    contradict the rest than chance explains, none is left out: they are of another kind, and not disturbed.
    """
    if a.between and b.between:
        return _interpolated_difference(a, b)
    differences = sorted(differences_by_round(a, b).values())
    count = len(differences)
    if count < 2:
        return None
    kept = _kept_count(count)
    cut = (count - kept) // 2
    mean = fmean(differences[cut : count - cut])
    winsorized = [min(max(each, differences[cut]), differences[count - 1 - cut]) for each in differences]
    variance = (count - 1) * _variance(winsorized) / (kept - 1)
    if cut and sum(math.copysign(each, each * mean) < -abs(mean) / 2.0 for each in differences) > _most_contrary(count):
        mean, variance = fmean(differences), kept * _variance(differences) / count
    return PairedDifference(mean, variance, kept - 1.0, count, (a.of, b.of))


@cache
def _most_contrary(rounds_count: int) -> int:
    """Return how many rounds may have the other sign than the rest if these differ from 0: a sign test at 5 %."""
    tails = itertools.accumulate(2.0 * math.comb(rounds_count, few) / 2**rounds_count for few in range(rounds_count))
    return len([tail for tail in tails if tail <= 1.0 - LEVEL]) - 1


def _interpolated_difference(a: Estimate, b: Estimate) -> PairedDifference | None:
    """Return the weighted mean of the differences at the measured places, no surer than these: their errors add up."""
    parts = [
        (weight, pair)
        for (weight, first), (_, second) in zip(a.between, b.between, strict=True)
        if (pair := paired_difference(first, second)) is not None
    ]
    if len(parts) < len(a.between):
        return None
    rounds_count = min(pair.rounds_count for _, pair in parts)
    error = sum(weight * pair.error for weight, pair in parts)
    return PairedDifference(
        mean=sum(weight * pair.mean for weight, pair in parts),
        round_variance=error**2 * _kept_count(rounds_count),
        degrees=min(pair.degrees for _, pair in parts),
        rounds_count=rounds_count,
        between=(a.of, b.of),
    )


def _kept_count(rounds_count: int) -> int:
    """Return how many rounds enter a trimmed mean."""
    return rounds_count - 2 * int(TRIMMED_RATIO * rounds_count) if rounds_count >= _MIN_ROUNDS_TO_TRIM else rounds_count


def round_differences(a: Estimate, b: Estimate) -> FloatArray:
    """Return log(a / b) of each round that both have, shape (rounds,): the median over its turns."""
    return np.array(list(differences_by_round(a, b).values()))


def differences_by_round(a: Estimate, b: Estimate) -> dict[str, float]:
    """Return the name of each round that both have, and what `round_differences` has of it."""
    return {
        name: (
            _median(a.rounds[name] - b.rounds[name])
            if len(a.rounds[name]) == len(b.rounds[name])
            else _median(a.rounds[name]) - _median(b.rounds[name])
        )
        for name in a.rounds
        if name in b.rounds
    }


def _median(turns: FloatArray) -> float:
    """Return the median of a few values. It is asked for thousands of times, where NumPy's own is slow."""
    return float(median(turns.tolist()))


def _variance(values: Sequence[float]) -> float:
    """Return the variance of a few values, as above."""
    middle = fmean(values)
    return math.fsum((each - middle) ** 2 for each in values) / (len(values) - 1)


def rounds_in_common(a: Estimate, b: Estimate) -> int | None:
    """Return how many rounds both have; None if they are not figures of rounds."""
    if a.between and b.between:
        counts = [rounds_in_common(x, y) for (_, x), (_, y) in zip(a.between, b.between, strict=True)]
        return min((count for count in counts if count is not None), default=None)
    return len(a.rounds.keys() & b.rounds.keys()) if a.rounds and b.rounds else None


def noise_ratio(settings: Sequence[Sequence[Estimate]]) -> float | None:
    """Return how much two equal cells typically differ in a run, as a ratio − 1; None if no two have three rounds.

    It is one standard deviation: exp(m / 0.6745 / √(2R)) − 1, where m is the median, over all pairs of cells of a
    setting, of how much their difference changes from one round to another, and R the median number of rounds.

    Args:
        settings: per setting, the estimates of its cells.
    """
    pairs = [
        differences / math.sqrt(2.0)
        for cells in settings
        for index, a in enumerate(cells)
        for b in cells[:index]
        if len(differences := round_differences(a, b)) >= MIN_CLAIM_ROUNDS
    ]
    changes = [abs(a - b) for rounds in pairs for index, a in enumerate(rounds) for b in rounds[:index]]
    if not changes:
        return None
    rounds_count = float(np.median([len(rounds) for rounds in pairs]))
    return math.expm1(float(np.median(changes)) / 0.6745 / math.sqrt(rounds_count))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of independent variances, given as (variance, degrees of freedom)."""
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / max(degrees, 1.0) for variance, degrees in parts)
    return total**2 / spread if spread > 0 else math.inf


def _interval(value: float, deviations: FloatArray, log_variance: float, degrees: float, among: int = 2) -> Interval:
    """Return the percentile interval of the replicates, stretched to the width that its variance and `among` ask for.

    It is never narrower than the replicates: where rounds are of two kinds, they show more than the variance does.
    """
    half = range_critical(among, degrees) * math.sqrt(log_variance)
    spread = float(np.std(deviations, ddof=1))
    low, high = -half, half
    if spread > 0.0:
        scale = max(half / spread, range_critical(among, math.inf)) / student_975(math.inf)
        low, high = (scale * float(x) for x in np.quantile(deviations, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)))
    return Interval(value * math.exp(min(low, 0.0)), value, value * math.exp(max(high, 0.0)))
