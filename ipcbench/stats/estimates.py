"""Estimates: quantiles, intervals, ratios, and the noise floor of a run.

Errors of times and rates are ratios, so variances and deviations are those of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.stats.student import NORMAL_975, student_975

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEVEL = 0.95
"""Confidence level of every interval."""
MIN_TAIL_COUNT = 10
"""A quantile p of n samples is given only if n·(1 − p) is at least this."""
MIN_ROUNDS = 3
"""With fewer rounds an interval says little about how rounds differ."""
MIN_CLAIM_ROUNDS = 2
"""With one round nothing is known of how rounds differ."""

TRIMMED_RATIO = 0.2
"""Share of the rounds left out on either side when cells that took turns are compared."""
_MIN_ROUNDS_TO_TRIM = 8
"""With fewer rounds, trimming leaves too few to tell how they differ."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval; low ≤ estimate ≤ high, all in the unit of the estimate."""

    low: float
    estimate: float
    high: float
    level: float = LEVEL


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
    turns: Mapping[str, FloatArray] = field(default_factory=dict)
    """Where cells took turns: round → log of the median of each turn, shape (turns,). Estimates with rounds in common
    are compared turn by turn."""

    def interval(self) -> Interval:
        """Return the 95 % interval."""
        return _interval(self.value, self.deviations, self.log_variance, self.degrees)


def quantile(values: npt.ArrayLike, probability: float) -> float | None:
    """Return the quantile (linear between order statistics), or None if n·(1 − probability) < `MIN_TAIL_COUNT`."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.quantile(array, probability)) if has_quantile(array.size, probability) else None


def has_quantile(count: int, probability: float) -> bool:
    """Return whether so many samples are enough for a quantile: n·(1 − probability) ≥ `MIN_TAIL_COUNT`."""
    # 1 − 0.9 is slightly less than 0.1 in binary; 100 samples must still be enough for p90.
    return count * (1.0 - probability) >= MIN_TAIL_COUNT - 1e-6


def ratio(numerator: Estimate, denominator: Estimate) -> Interval:
    """Return numerator / denominator with its 95 % interval.

    If both took turns, it is the trimmed mean over rounds of the difference of their turns, on logarithms. Otherwise it
    is the quotient, and the two must come from independent draws.
    """
    paired = paired_difference(numerator, denominator)
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
class PairedDifference:
    """log(a / b) of two times that took turns, with its variance and degrees of freedom."""

    mean: float
    variance: float
    degrees: float


def paired_difference(a: Estimate, b: Estimate) -> PairedDifference | None:
    """Return log(a / b) from the rounds in which both took turns; None if there are too few.

    It is the mean without the lowest and highest fifth of the rounds, with the variance of the winsorized rounds (Tukey
    and McLaughlin 1963): on a shared machine, a few rounds differ several times as much as the rest.
    """
    differences = np.sort(round_differences(a, b))
    count = len(differences)
    if count < MIN_CLAIM_ROUNDS:
        return None
    cut = int(TRIMMED_RATIO * count) if count >= _MIN_ROUNDS_TO_TRIM else 0
    kept = count - 2 * cut
    winsorized = np.clip(differences, differences[cut], differences[count - 1 - cut])
    variance = (count - 1) * float(np.var(winsorized, ddof=1)) / (kept * (kept - 1))
    return PairedDifference(float(np.mean(differences[cut : count - cut])), variance, kept - 1.0)


def round_differences(a: Estimate, b: Estimate) -> FloatArray:
    """Return log(a / b) of each round in which both took turns, shape (rounds,): the median over its turns."""
    common = [name for name in a.turns if name in b.turns and len(a.turns[name]) == len(b.turns[name])]
    return np.array([np.median(a.turns[name] - b.turns[name]) for name in common])


def noise_floor_ratio(cells: Sequence[Sequence[float]]) -> float | None:
    """Return how much two measurements of the same cell typically differ in this run, as a ratio − 1.

    Args:
        cells: per cell, its figure in each round.

    Returns:
        exp(m / 0.6745 / √R) − 1, where m is the median of |log(a/b)| over all pairs of rounds of a cell and R the
        median number of rounds: one standard deviation of the difference of two such cells. None if no cell has two
        rounds.
    """
    return _noise([np.log([value for value in rounds if value > 0]) for rounds in cells])


def paired_noise_floor_ratio(settings: Sequence[Sequence[Estimate]]) -> float | None:
    """Return the same as `noise_floor_ratio` for cells that took turns.

    Args:
        settings: per setting, the estimates of its cells.
    """
    # The differences of two cells by round already have the standard deviation of a difference: hence √2.
    return _noise(
        [round_differences(a, b) / math.sqrt(2.0) for cells in settings for i, a in enumerate(cells) for b in cells[:i]]
    )


def _noise(cells: Sequence[FloatArray]) -> float | None:
    pairs = [abs(a - b) for rounds in cells for i, a in enumerate(rounds) for b in rounds[:i]]
    if not pairs:
        return None
    rounds_count = float(np.median([len(rounds) for rounds in cells if len(rounds) > 1]))
    return math.expm1(float(np.median(pairs)) / 0.6745 / math.sqrt(rounds_count))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of independent variances, given as (variance, degrees of freedom)."""
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / max(degrees, 1.0) for variance, degrees in parts)
    return total**2 / spread if spread > 0 else math.inf


def _interval(value: float, deviations: FloatArray, log_variance: float, degrees: float) -> Interval:
    """Return the percentile interval of the replicates, scaled to the width that Student's t gives the variance."""
    half = student_975(degrees) * math.sqrt(log_variance)
    spread = float(np.std(deviations, ddof=1))
    low, high = -half, half
    if spread > 0.0:
        scale = half / (NORMAL_975 * spread)
        low, high = (scale * float(x) for x in np.quantile(deviations, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)))
    return Interval(value * math.exp(min(low, 0.0)), value, value * math.exp(max(high, 0.0)))
