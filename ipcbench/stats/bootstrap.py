"""Estimates by hierarchical bootstrap: each replicate draws rounds, and within each drawn round whole time blocks.

Samples within a round are correlated, so it draws blocks, not samples; rounds differ more than their samples show, so
it draws rounds too. The replicates of a few rounds spread too little, so each estimate carries a variance and its
degrees of freedom, to which its interval is scaled (formulas in docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipcbench.stats.estimates import Estimate, FloatArray, IntArray, has_quantile, weighted_quantile
from ipcbench.stats.student import student_975

REPLICATES = 1000
_MAX_BINS = 1024
_MIN_ROUNDS_OF_SHARES = 8
"""With fewer rounds, their medians do not reach the ends of a 95 % interval."""
_MEDIAN_OF_MANY = math.pi / 2
"""Variance of a median relative to that of a mean; slightly less for a few values."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundSamples:
    """The samples of one cell in one round."""

    values: FloatArray
    """Shape (n,), positive; of all readers."""
    blocks: IntArray
    """Shape (n,): the time block of each sample, from 0; a replicate takes or leaves a block as a whole."""
    by_turns: bool = False
    """Whether the blocks are turns, which weigh the same: a closed loop yields more samples in a fast turn."""

    def weights(self) -> FloatArray:
        """Return the weight of each sample, shape (n,); their sum is 1."""
        if not self.by_turns:
            return np.full(self.values.size, 1.0 / self.values.size)
        counts = np.bincount(self.blocks)
        weights: FloatArray = 1.0 / (np.count_nonzero(counts) * counts[self.blocks])
        return weights

    def quantile(self, probability: float) -> float:
        """Return a quantile of the round."""
        if not self.by_turns:
            return float(np.quantile(self.values, probability))
        return weighted_quantile(self.values, self.weights(), probability)


def time_blocks(positions: npt.ArrayLike, count: int) -> IntArray:
    """Return the block number of each sample; `count` blocks divide the range of `positions` (times or sequences)."""
    array = np.asarray(positions, dtype=np.float64)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    low, high = float(array.min()), float(array.max())
    if high == low:
        return np.zeros(array.size, dtype=np.int64)
    return np.minimum((array - low) / (high - low) * count, count - 1).astype(np.int64)


def pooled_quantile(rounds: Sequence[RoundSamples], probability: float) -> float | None:
    """Return a quantile over rounds of equal weight; None where there are too few samples for it."""
    values = np.concatenate([samples.values for samples in rounds])
    if not has_quantile(values.size, probability):
        return None
    return weighted_quantile(values, np.concatenate([samples.weights() for samples in rounds]), probability)


def quantile_estimates(
    rounds: Sequence[RoundSamples],
    probabilities: Sequence[float],
    generator: np.random.Generator,
    replicates: int = REPLICATES,
) -> tuple[Estimate | None, ...]:
    """Return quantiles over rounds of equal weight, by hierarchical bootstrap.

    A closed loop yields more samples in a fast round or turn; each counts once, however many samples it has.

    Args:
        rounds: at least one, none of them empty.
        probabilities: which quantiles.
        generator: seeded by the caller.
        replicates: how many.

    Returns:
        One estimate per probability; None where there are too few samples for it (see `has_quantile`). With one round
        the interval comes from its blocks alone; with fewer than `MIN_CLAIM_ROUNDS` it is a guess, and callers must say
        so.
    """
    values = np.concatenate([samples.values for samples in rounds])
    weights = np.concatenate([samples.weights() for samples in rounds])
    counts_per_round = [int(samples.blocks.max()) + 1 for samples in rounds]
    starts = np.cumsum([0, *counts_per_round[:-1]])
    blocks = np.concatenate([samples.blocks + start for samples, start in zip(rounds, starts, strict=True)])
    bins, table = _binned(values, weights, blocks, sum(counts_per_round))
    drawn = _block_weights(counts_per_round, generator, replicates, draw_rounds=True)
    fixed = _block_weights(counts_per_round, generator, replicates, draw_rounds=False)
    estimates: list[Estimate | None] = []
    for probability in probabilities:
        if not has_quantile(values.size, probability):
            estimates.append(None)
            continue
        value = weighted_quantile(values, weights, probability)
        within = float(np.var(_log(_replicate_quantiles(fixed, table, bins, probability)), ddof=1))
        # Drawing K blocks with replacement shows (K − 1)/K of the variance.
        within *= float(np.mean([k / (k - 1) if k > 1 else 2.0 for k in counts_per_round]))
        between = _between(rounds, values, weights, probability)
        variance, degrees = _combine(between, len(rounds), within, sum(counts_per_round) - len(rounds))
        deviations = _log(_replicate_quantiles(drawn, table, bins, probability)) - _log(value)
        estimates.append(Estimate(value, deviations, variance, degrees, len(rounds)))
    return tuple(estimates)


def median_estimate(
    rounds: Sequence[float],
    generator: np.random.Generator,
    blocks: Sequence[float] = (),
    replicates: int = REPLICATES,
) -> Estimate | None:
    """Return the median of a figure that each round has once (a throughput), by a bootstrap over the rounds.

    Args:
        rounds: the figure of each round, positive.
        generator: seeded by the caller.
        blocks: the figure of each time block; used only if there is a single round.
        replicates: how many.

    Returns:
        The estimate; None for a single round of fewer than two blocks, since nothing is known of its error.
    """
    units = np.asarray(rounds if len(rounds) > 1 else blocks, dtype=np.float64)
    if units.size < 2:
        return None
    picks = generator.integers(units.size, size=(replicates, units.size))
    deviations = _log(np.median(units[picks], axis=1)) - _log(np.median(units))
    efficiency = _MEDIAN_OF_MANY if units.size > 2 else 1.0
    variance = efficiency * float(np.var(_log(units), ddof=1)) / units.size
    return Estimate(float(np.median(rounds)), deviations, variance, float(units.size - 1), len(rounds))


def _log(values: npt.ArrayLike) -> FloatArray:
    """Return logarithms; values are at least 1e-3, since a coarse clock can give a 0."""
    result: FloatArray = np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-3))
    return result


def _between(rounds: Sequence[RoundSamples], values: FloatArray, weights: FloatArray, probability: float) -> float:
    """Return the variance of log(value) between rounds; nan for a single round.

    For a median of enough rounds it is Woodruff's, with rounds as clusters. The shares of each round's samples that lie
    below the median average one half, with a standard error of s/√R; the quantiles at one half ± t·s/√R, within the
    range of the rounds' own medians, bound the interval. A single outlying round counts no more than any other, and
    rounds of two kinds make the interval as wide as the kinds are apart. Otherwise it is the variance of the mean of
    the rounds' own quantiles.
    """
    if len(rounds) < 2:
        return math.nan
    own = _log([samples.quantile(probability) for samples in rounds])
    if probability != 0.5 or len(rounds) < _MIN_ROUNDS_OF_SHARES:  # near an end there is no room on one side
        return float(np.var(own, ddof=1)) / len(rounds)
    t = student_975(len(rounds) - 1)
    value = weighted_quantile(values, weights, probability)
    shares = [float(samples.weights() @ (samples.values <= value)) for samples in rounds]
    reach = min(0.5, t * float(np.std(shares, ddof=1)) / math.sqrt(len(rounds)))
    ends = _log([weighted_quantile(values, weights, 0.5 + sign * reach) for sign in (-1.0, 1.0)])
    low, high = np.clip(ends, own.min(), own.max())
    return float((high - low) / (2.0 * t)) ** 2


def _combine(between: float, rounds_count: int, within: float, within_degrees: float) -> tuple[float, float]:
    """Return variance and degrees of freedom of a figure, from its variance within rounds and between them."""
    if rounds_count < 2:
        return within, max(1.0, within_degrees)
    # Where rounds differ about as much as their blocks predict, Satterthwaite's degrees of freedom would trust the few
    # rounds too much. In simulations this mixture covers 94 to 98 % throughout.
    share = min(1.0, between / (2.0 * within)) if within > 0.0 else 1.0
    degrees = 1.0 / (share / (rounds_count - 1.0) + (1.0 - share) / max(1.0, within_degrees))
    return max(between, within), degrees


def _binned(
    values: FloatArray, weights: FloatArray, blocks: IntArray, block_count: int
) -> tuple[FloatArray, FloatArray]:
    """Return the values of at most `_MAX_BINS` bins of equal count, ascending, and each block's cumulated weights.

    The weights have shape (bins, blocks). With at most `_MAX_BINS` samples, each is its own bin and the quantiles of
    replicates are exact.
    """
    order = np.argsort(values, kind="stable")
    size = values.size
    bin_count = min(size, _MAX_BINS)
    bin_of_rank = np.arange(size) * bin_count // size
    middles = ((np.arange(bin_count) + 0.5) * size / bin_count).astype(np.int64)
    cells = bin_of_rank * block_count + blocks[order]
    table = np.bincount(cells, weights[order], minlength=bin_count * block_count).reshape(bin_count, block_count)
    return values[order][middles], np.cumsum(table, axis=0)


def _block_weights(
    counts_per_round: Sequence[int], generator: np.random.Generator, replicates: int, *, draw_rounds: bool
) -> FloatArray:
    """Return how many times each block occurs in each replicate, shape (replicates, blocks of all rounds)."""
    rounds = len(counts_per_round)
    times = np.ones((replicates, rounds), dtype=np.int64)
    if draw_rounds:
        times = generator.multinomial(rounds, np.full(rounds, 1.0 / rounds), size=replicates)
    columns = [
        generator.multinomial(times[:, index] * count, np.full(count, 1.0 / count))
        for index, count in enumerate(counts_per_round)
    ]
    return np.concatenate(columns, axis=1).astype(np.float64)


def _replicate_quantiles(times: FloatArray, table: FloatArray, bins: FloatArray, probability: float) -> FloatArray:
    """Return each replicate's quantile, shape (replicates,): the first bin whose share reaches `probability`.

    It is looked for by halving: of the product of `times` (replicates, blocks) and `table` (bins, blocks), that takes
    one number in a hundred.
    """
    target = times @ table[-1] * probability - 1e-9
    low, high = np.zeros(len(times), dtype=np.int64), np.full(len(times), bins.size - 1)
    while (low < high).any():
        middle = (low + high) // 2
        reached = np.einsum("rb,rb->r", times, table[middle]) >= target
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    result: FloatArray = bins[low]
    return result
