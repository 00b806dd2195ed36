"""How often a 95 % interval contains the truth: synthetic runs with a known median; prints Markdown.

Each synthetic run has rounds that differ, and samples of a given shape within them. The truth is the median of the
whole population, rounds included, estimated from a far larger draw of the same kind. The last row is the ratio of two
cells that took turns, one of them slower by a tenth. With `half_far` the median itself lies in the gap between both
kinds of rounds.

    python benchmarks/verdicts/coverage.py [--runs 1000] [--rounds 5] [--samples 450]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from _options import at_least, carry_out

from ipcbench.stats.bootstrap import RoundSamples, quantile_estimates, time_blocks
from ipcbench.stats.estimates import Estimate, ratio

Samples = npt.NDArray[np.float64]
_BETWEEN = 0.05
"""Standard deviation of the logarithm of a round's own level."""
_BLOCKS = 10
_COMMON = 0.3
"""Standard deviation of the logarithm of the disturbance that both cells share in a turn."""
_SLOWER = 1.1


def heavy_tails(source: np.random.Generator, count: int) -> Samples:
    """Return samples with a Pareto tail of exponent 1.5: infinite variance."""
    return 1.0 + source.pareto(1.5, count)


def drift(source: np.random.Generator, count: int) -> Samples:
    """Return a window in which the level rises by a fifth."""
    return source.lognormal(0.0, 0.2, count) * np.linspace(0.9, 1.1, count)


def autocorrelated(source: np.random.Generator, count: int) -> Samples:
    """Return samples whose neighbours are correlated by 0.8."""
    noise = source.normal(0.0, 1.0, count)
    for index in range(1, count):
        noise[index] = 0.8 * noise[index - 1] + 0.6 * noise[index]
    return np.exp(0.2 * noise)


def bimodal(source: np.random.Generator, count: int) -> Samples:
    """Return samples of near and far cores: about 70 % are fast, a different share in each round."""
    fast = source.random(count) < np.clip(source.normal(0.7, 0.05), 0.0, 1.0)
    return np.where(fast, 1.0, 2.2) * source.lognormal(0.0, 0.1, count)


def one_slow_reader(source: np.random.Generator, count: int) -> Samples:
    """Return samples of three readers, one of which takes half as long again."""
    slow = np.arange(count) % 3 == 2
    return np.where(slow, 1.5, 1.0) * source.lognormal(0.0, 0.3, count)


def half_far(source: np.random.Generator, count: int) -> Samples:
    """Return a round that is slow as a whole, seven-fold, half of the time."""
    return (7.0 if source.random() < 0.5 else 1.0) * source.lognormal(0.0, 0.1, count)


def three_tenths_far(source: np.random.Generator, count: int) -> Samples:
    """Return a round that is slow as a whole, seven-fold, three times of ten."""
    return (7.0 if source.random() < 0.3 else 1.0) * source.lognormal(0.0, 0.1, count)


def share_far_uniform(source: np.random.Generator, count: int) -> Samples:
    """Return a round in which any share of the samples is slow."""
    return np.where(source.random(count) < source.random(), 7.0, 1.0) * source.lognormal(0.0, 0.1, count)


def one_in_five(source: np.random.Generator, count: int) -> Samples:
    """Return a round that takes three times as long, one time of five."""
    return (3.0 if source.random() < 0.2 else 1.0) * source.lognormal(0.0, 0.1, count)


SHAPES: tuple[Callable[[np.random.Generator, int], Samples], ...] = (
    heavy_tails,
    drift,
    autocorrelated,
    bimodal,
    one_slow_reader,
    three_tenths_far,
    share_far_uniform,
    one_in_five,
    half_far,
)


def one_run(
    shape: Callable[[np.random.Generator, int], Samples], source: np.random.Generator, rounds: int, count: int
) -> list[Samples]:
    """Return the samples of each round."""
    return [shape(source, count) * np.exp(source.normal(0.0, _BETWEEN)) for _ in range(rounds)]


def share_covered(shape: Callable[[np.random.Generator, int], Samples], runs: int, rounds: int, count: int) -> float:
    """Return the share of runs whose interval contains the true median."""
    truth = float(np.median(np.concatenate(one_run(shape, np.random.default_rng(99), 4000, count))))
    covered = 0
    for seed in range(runs):
        source = np.random.default_rng(seed)
        blocks = time_blocks(np.arange(count), _BLOCKS)
        samples = [RoundSamples(values, blocks) for values in one_run(shape, source, rounds, count)]
        (estimate,) = quantile_estimates(samples, (0.5,), source)
        assert estimate is not None
        interval = estimate.interval()
        covered += interval.low <= truth <= interval.high
    return covered / runs


def share_of_ratios_covered(runs: int, rounds: int) -> float:
    """Return the share of runs in which the interval of a ratio, computed turn by turn, contains the true ratio.

    The rounds of each cell differ, and its turns have heavy tails (Student's t with 3 degrees of freedom), in addition
    to the disturbance that both cells share.
    """
    covered = 0
    for seed in range(runs):
        source = np.random.default_rng(seed)
        common = source.normal(0.0, _COMMON, (rounds, _BLOCKS))
        cells = []
        for level in (0.0, np.log(_SLOWER)):
            own = source.normal(level, _BETWEEN, (rounds, 1)) + _BETWEEN * source.standard_t(3, (rounds, _BLOCKS))
            turns = {str(index): values for index, values in enumerate(common + own)}
            cells.append(Estimate(1.0, np.zeros(2), 1.0, rounds - 1.0, rounds, turns))
        interval = ratio(cells[1], cells[0])
        covered += interval.low <= _SLOWER <= interval.high
    return covered / runs


def main() -> int:
    """Print a row for each shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=at_least(1), default=1000)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--samples", type=at_least(1), default=450, help="samples per round")
    options = parser.parse_args()
    print("| shape | intervals that contain the truth | wanted |\n|---|---:|---|")
    for shape in SHAPES:
        _show(shape.__name__, share_covered(shape, options.runs, options.rounds, options.samples))
    _show("ratio of two that took turns", share_of_ratios_covered(options.runs, options.rounds))
    return 0


def _show(name: str, share: float) -> None:
    verdict = "yes" if 0.93 <= share <= 0.97 else "no"
    print(f"| {name.replace('_', ' ')} | {share:.1%} | 93–97 %: {verdict} |")


if __name__ == "__main__":
    carry_out(main)
