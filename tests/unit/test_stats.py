"""Closed forms, properties, and coverage on synthetic data of known truth."""

from __future__ import annotations

import math
import runpy
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipcbench.stats.bootstrap import RoundSamples, median_estimate, quantile_estimates, time_blocks
from ipcbench.stats.decisions import compare, rank_groups, rounds_to_decide, verdict
from ipcbench.stats.estimates import Estimate, Interval, quantile, ratio, satterthwaite, weighted_quantile
from ipcbench.stats.prior import variance_prior
from ipcbench.stats.student import range_critical, student_975, student_p_value

MEDIAN_NS = 10_000.0
VERDICTS = Path(__file__).parents[2] / "benchmarks" / "verdicts"


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def cell(
    source: np.random.Generator, rounds: int = 3, count: int = 350, between: float = 0.0, correlation: float = 0.0
) -> list[RoundSamples]:
    """Return log-normal samples of median `MEDIAN_NS`; rounds differ by `between`, neighbours correlate."""
    samples = []
    for _ in range(rounds):
        memory = correlation ** np.arange(60)
        logs = np.convolve(source.standard_normal(count + 59), memory / np.sqrt((memory**2).sum()), "valid")
        shift = between * source.standard_normal()
        samples.append(RoundSamples(MEDIAN_NS * np.exp(shift + 0.3 * logs), time_blocks(np.arange(count), 10)))
    return samples


def scaled(rounds: list[RoundSamples], factors: tuple[float, ...]) -> list[RoundSamples]:
    return [RoundSamples(r.values * factor, r.blocks) for r, factor in zip(rounds, factors, strict=True)]


def median_of(rounds: list[RoundSamples], source: np.random.Generator) -> Estimate:
    (estimate,) = quantile_estimates(rounds, (0.5,), source, replicates=300)
    return estimate


def fixed(value: float, half_log: float) -> Estimate:
    """Return an estimate of known spread."""
    deviations = generator().standard_normal(2000) * half_log / 1.96
    return Estimate(value, deviations - deviations.mean(), (half_log / 1.96) ** 2, math.inf, 3)


@pytest.mark.parametrize(
    ("count", "probability", "given_"),
    [(19, 0.5, False), (20, 0.5, True), (99, 0.9, False), (100, 0.9, True), (999, 0.99, False), (1000, 0.99, True)],
)
def test_a_percentile_needs_ten_samples_beyond_it(count: int, probability: float, given_: bool) -> None:
    assert (quantile(np.arange(count), probability) is not None) is given_


def test_a_quantile_is_linear_between_order_statistics_or_the_middles_of_weights() -> None:
    assert quantile(np.arange(1, 101), 0.5) == 50.5
    assert quantile([], 0.5) is None
    assert weighted_quantile(np.arange(1.0, 101.0), np.ones(100), 0.5) == 50.5
    assert weighted_quantile(np.array([3.0, 1.0]), np.array([1.0, 3.0]), 0.5) == 1.5


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        *((1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (6, 2.4469), (7, 2.3646), (8, 2.3060)),
        *((10, 2.2281), (12, 2.1788), (20, 2.0860), (40, 2.0211), (120, 1.9799), (9999, 1.9602), (1e9, 1.959964)),
    ],
)
def test_student_agrees_with_the_published_table(degrees: float, expected: float) -> None:
    assert student_975(degrees) == pytest.approx(expected, abs=6e-5)


@given(st.floats(1, 1e5))
def test_student_has_the_p_value_that_it_bounds_at_fractions_too(degrees: float) -> None:
    assert student_p_value(student_975(degrees), degrees) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(
    ("among", "degrees", "expected"),
    [
        *((3, 1, 26.976), (3, 10, 3.877), (6, 2, 11.734), (6, 5, 6.033), (6, 20, 4.445), (6, math.inf, 4.030)),
        *((10, 3, 9.462), (10, 120, 4.560), (20, 10, 6.467), (20, math.inf, 5.012)),
    ],
)
def test_the_studentized_range_agrees_with_the_published_table(among: int, degrees: float, expected: float) -> None:
    assert math.sqrt(2.0) * range_critical(among, degrees) == pytest.approx(expected, rel=2e-4)


@given(st.floats(1, 1e6), st.integers(2, 12))
def test_more_times_to_choose_from_need_a_larger_difference(degrees: float, among: int) -> None:
    assert range_critical(2, degrees) == student_975(degrees)
    assert range_critical(among + 1, degrees) > range_critical(among, degrees)


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_student_falls_with_the_degrees_of_freedom(degrees: float, other: float) -> None:
    low, high = sorted((degrees, other))
    assert student_975(low) >= student_975(high) >= 1.9599


def test_satterthwaite_of_equal_variances_adds_the_degrees() -> None:
    assert satterthwaite([(1.0, 2.0), (1.0, 2.0)]) == pytest.approx(4.0)
    assert satterthwaite([(1.0, 2.0), (0.0, 2.0)]) == pytest.approx(2.0)
    assert satterthwaite([(0.0, 2.0)]) == math.inf


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=200), st.integers(1, 20))
def test_blocks_are_consecutive_parts_of_time(positions: list[int], count: int) -> None:
    blocks = time_blocks(positions, count)
    order = np.argsort(positions, kind="stable")
    assert blocks.min() >= 0
    assert blocks.max() < count
    assert (np.diff(blocks[order]) >= 0).all()
    assert time_blocks([], 10).shape == (0,)


def test_the_same_seed_gives_the_same_interval_and_no_global_state_is_used() -> None:
    rounds = cell(generator(), between=0.1)
    np.random.seed(0)
    first = median_of(rounds, generator(7)).interval()
    np.random.seed(1)
    assert median_of(rounds, generator(7)).interval() == first
    assert median_of(rounds, generator(8)).interval() != first


def test_the_estimate_is_the_quantile_of_all_samples() -> None:
    rounds = cell(generator(), count=600)
    p50, p99, p999 = quantile_estimates(rounds, (0.5, 0.99, 0.999), generator())
    pooled = np.concatenate([samples.values for samples in rounds])
    assert (p50.value, p99.value) == pytest.approx(np.quantile(pooled, (0.5, 0.99), method="hazen"))
    assert p999 is None


def test_each_round_weighs_the_same_however_many_samples_it_has() -> None:
    """A closed loop yields seven times as many samples in a round that is seven times as fast."""
    slow = [RoundSamples(np.linspace(100.0, 120.0, 200), time_blocks(np.arange(200), 10)) for _ in range(4)]
    fast = RoundSamples(np.linspace(15.0, 17.0, 1400), time_blocks(np.arange(1400), 10))
    (estimate,) = quantile_estimates([*slow, fast], (0.5,), generator())
    assert estimate.value == pytest.approx(100.0 + 20.0 * 0.3 / 0.8, rel=0.01)
    pooled = np.median(np.concatenate([samples.values for samples in (*slow, fast)]))
    assert pooled < 17.0


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(20, 3000))
def test_an_interval_holds_its_estimate(seed: int, rounds: int, count: int) -> None:
    source = generator(seed)
    blocks = time_blocks(np.arange(count), 8)
    samples = [RoundSamples(source.pareto(1.5, count) * 1e4 + 100, blocks) for _ in range(rounds)]
    for estimate in quantile_estimates(samples, (0.5, 0.9, 0.99), source, replicates=100):
        if estimate is not None:
            interval = estimate.interval()
            assert 0 < interval.low <= interval.estimate <= interval.high


def test_constant_samples_have_no_width() -> None:
    rounds = [RoundSamples(np.full(100, 5.0), time_blocks(np.arange(100), 10)) for _ in range(3)]
    interval = median_of(rounds, generator()).interval()
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((5.0, 5.0, 5.0))


def test_a_single_block_does_not_pretend_to_know_its_error() -> None:
    rounds = [RoundSamples(cell(generator(), rounds=1)[0].values, np.zeros(350, dtype=np.int64))]
    interval = median_of(rounds, generator()).interval()
    assert interval.low <= interval.estimate <= interval.high


def share_that_holds(truth: float, estimates: Iterable[Estimate]) -> float:
    intervals = [estimate.interval() for estimate in estimates]
    return sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)


@pytest.mark.parametrize(
    ("rounds", "between", "correlation"),
    [(3, 0.0, 0.0), (3, 0.0, 0.8), (3, 0.2, 0.0), (3, 0.05, 0.8), (2, 0.0, 0.8), (6, 0.2, 0.8)],
)
def test_intervals_cover_the_truth(rounds: int, between: float, correlation: float) -> None:
    """95 % are asked for; 80 repeats of a true 93 % show fewer than 84 % once in two thousand times."""
    sources = map(generator, range(80))
    estimates = (median_of(cell(source, rounds, 200, between, correlation), source) for source in sources)
    assert share_that_holds(MEDIAN_NS, estimates) >= 0.84


def test_independent_sampling_would_be_too_sure() -> None:
    """Why blocks: with each sample a block of its own, correlated samples are taken for more than they are."""
    source = generator()
    (correlated,) = cell(source, rounds=1, count=1000, correlation=0.9)
    alone = RoundSamples(correlated.values, np.arange(1000))
    blocked = median_of([correlated], generator()).interval()
    independent = median_of([alone], generator()).interval()
    assert math.log(blocked.high / blocked.low) > 1.5 * math.log(independent.high / independent.low)


def median_interval(levels: Sequence[float]) -> Interval:
    source, blocks = generator(), time_blocks(np.arange(200), 10)
    rounds = [RoundSamples(level * np.exp(0.1 * source.standard_normal(200)), blocks) for level in levels]
    (estimate,) = quantile_estimates(rounds, (0.5,), generator())
    return estimate.interval()


def test_one_round_far_off_hardly_widens_a_median() -> None:
    """The variance of the rounds would: it would make of ±2 % an interval of ±14 %."""
    calm = [math.exp(0.03 * x) for x in np.linspace(-1.5, 1.5, 12)]
    usual, disturbed = median_interval(calm), median_interval([*calm[:-1], 2.0])
    assert math.log(disturbed.high / disturbed.low) < 2.0 * math.log(usual.high / usual.low) < 0.1
    assert disturbed.estimate == pytest.approx(usual.estimate, rel=0.01)


def test_rounds_that_differ_widen_the_interval() -> None:
    of_two_kinds = median_interval([1.0] * 5 + [4.0] * 5)
    assert of_two_kinds.high / of_two_kinds.low > 2.0
    alike = median_of(cell(generator()), generator()).interval()
    unlike = median_of(scaled(cell(generator()), (0.8, 1.0, 1.25)), generator()).interval()
    assert math.log(unlike.high / unlike.low) > 5 * math.log(alike.high / alike.low)


def test_equal_cells_are_rarely_called_different() -> None:
    called = 0
    for seed in range(60):
        source = generator(seed)
        first, second = (median_of(cell(source, 3, 200, between=0.1), source) for _ in range(2))
        called += compare(ratio(first, second)) != "no clear difference"
    assert called <= 9


def test_a_clear_difference_is_seen() -> None:
    source = generator()
    slow, fast = scaled(cell(source), (2.9, 3.2, 3.0)), scaled(cell(source), (1.0, 0.95, 1.05))
    interval = ratio(median_of(slow, source), median_of(fast, source))
    assert interval.low < 3 < interval.high
    assert compare(interval) == "slower"


def test_a_ratio_and_its_inverse_agree() -> None:
    first, second = fixed(10.0, 0.2), fixed(20.0, 0.1)
    there, back = ratio(first, second), ratio(second, first)
    assert there.estimate == pytest.approx(1 / back.estimate)
    assert there.low == pytest.approx(1 / back.high, rel=0.02)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(0.5, 0.6, 0.7), "faster"),
        (Interval(1.2, 1.5, 1.9), "slower"),
        (Interval(1.011, 1.012, 1.013), "slower"),
        (Interval(0.93, 0.96, 0.99), "faster"),
        *((Interval(*unclear), "no clear difference") for unclear in (
            *((0.9, 1.5, 1.9), (1.0, 1.5, 1.9), (1.001, 1.005, 1.009), (0.991, 0.995, 0.999), (1.01, 1.04, 1.06)),
            *((0.95, 0.97, 0.996), (1.0, 1.0, 1.0)),
        )),
    ],
)  # fmt: skip
def test_a_difference_must_be_more_than_a_percent_throughout(interval: Interval, verdict: str) -> None:
    assert compare(interval) == verdict


def test_whoever_cannot_be_told_from_the_best_of_a_group_shares_its_rank() -> None:
    times = [fixed(30.0, 0.1), fixed(10.0, 0.1), fixed(10.5, 0.1), fixed(31.0, 0.1), fixed(90.0, 0.1)]
    assert rank_groups(times) == (3, 1, 1, 3, 5)
    assert rank_groups([]) == ()


def test_ranks_do_not_chain() -> None:
    """a ≈ b and b ≈ c do not make a ≈ c: the third is compared with the group's best, not with its neighbour."""
    times = [fixed(10.0, 0.1), fixed(11.2, 0.1), fixed(13.5, 0.1)]
    assert rank_groups(times) == (1, 1, 3)


def test_later_ranks_do_not_chain_either() -> None:
    """Each of these is not told apart from the one before, and the last is clearly slower than the first of them."""
    best, *later = fixed(10.0, 0.02), fixed(38.0, 0.1), fixed(43.0, 0.1), fixed(51.0, 0.1)
    assert [rank_groups(pair) for pair in (later[:2], later[1:])] == [(1, 1), (1, 1)]
    assert rank_groups([best, *later]) == (1, 2, 2, 4)


def test_a_wide_interval_shares_the_latest_rank_and_does_not_go_back() -> None:
    def ranks(half_log: float) -> tuple[int, ...]:
        spreads = ((10.0, 0.02), (13.0, 0.02), (16.0, 0.02), (17.0, half_log))
        return rank_groups([replace(fixed(*spread), rounds_count=10) for spread in spreads])

    assert ranks(0.2) == (1, 2, 3, 3), "it cannot be told from the second either"
    assert ranks(0.9) == (1, 3, 4, 1), "a rank counts all cells of the ranks before it"


def test_ranks_of_many_hold_together() -> None:
    """What tells two cells apart is not enough where it is one of many comparisons."""
    two = [fixed(10.0, 0.1), fixed(13.0, 0.1)]
    assert rank_groups(two) == (1, 2)
    assert rank_groups([*two, *(fixed(10.0, 0.1) for _ in range(20))]) == (1,) * 22


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_or_two_rounds_claim_nothing(rounds: int) -> None:
    """Within one round a far placement looks like a slow backend: identical ones were ranked in every second run."""
    first, second, third = (replace(fixed(value, 0.01), rounds_count=rounds) for value in (10.0, 540.0, 11.0))
    assert rank_groups([first, second, third]) == (1, 1, 1)
    assert verdict(second, first) == "no clear difference"
    assert verdict(fixed(540.0, 0.01), fixed(10.0, 0.01)) == "slower"


@pytest.mark.parametrize("rounds", [20, 60])
def test_a_long_run_is_told_how_many_more_rounds_would_decide(rounds: int) -> None:
    """Rounds differ by 10 %, and the mean by so little that it takes about twice as many rounds to be sure."""
    level = np.tile([-0.1, 0.1], rounds // 2) + 0.01 + 2.6 * 0.1 / math.sqrt(2.0 * rounds)
    zeros = {str(index): np.zeros(1) for index in range(rounds)}
    best = replace(fixed(1.0, 0.1), rounds=zeros, rounds_count=rounds)
    slower = replace(fixed(1.1, 0.1), rounds={str(index): level[index : index + 1] for index in range(rounds)})
    more = rounds_to_decide(replace(slower, rounds_count=rounds), best, None)
    assert more is not None
    assert 0 < more <= 100


def test_the_prior_is_that_of_the_variances() -> None:
    """Variances drawn from a known scaled inverse chi-squared distribution give its parameters back."""
    source = generator()
    true = 0.04 * 8.0 / source.chisquare(8.0, 4000)
    prior = variance_prior([(each * source.chisquare(2.0) / 2.0, 2.0) for each in true])
    assert (prior.variance, prior.degrees) == pytest.approx((0.04, 8.0), rel=0.2)


def test_equal_variances_are_pooled_and_unlike_ones_are_not() -> None:
    source = generator()
    alike = variance_prior([(0.04 * source.chisquare(2.0) / 2.0, 2.0) for _ in range(500)])
    assert alike.degrees > 100.0
    assert alike.moderate(0.0001, 2.0)[0] == pytest.approx(0.04, rel=0.15)
    unlike = variance_prior([(10.0 ** source.uniform(-8, 2), 4.0) for _ in range(500)])
    assert unlike.degrees < 1.0


def test_a_moderated_variance_is_never_less_than_its_own_nor_surer_than_all_together() -> None:
    prior = variance_prior([(0.04, 2.0), (0.041, 2.0), (0.039, 2.0)])
    assert prior.moderate(1.0, 2.0)[0] == 1.0
    assert prior.moderate(0.0, 2.0)[1] <= 6.0
    assert variance_prior([(0.04, 2.0)]) is None
    assert variance_prior([(0.0, 2.0), (0.04, 2.0)]) is None


@pytest.mark.parametrize(
    ("backends", "regime"), [(2, "50 % far"), (6, "50 % far"), (6, "heavy tails"), (6, "one regime")]
)
def test_equal_cells_are_rarely_told_apart_after_three_rounds(
    backends: int, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six cells without the floor of their table: 17 % of tables where rounds are of two kinds, instead of 3 to 5 %."""
    monkeypatch.syspath_prepend(VERDICTS)
    module = runpy.run_path(str(VERDICTS / "false_claims.py"))
    found = list(module["claims"](40, (module["REGIMES"][regime],) * 5, 5, (backends, 3), 1.0, 0.0))
    assert sum(found) / len(found) <= 0.1


def test_throughput_is_the_median_of_the_rounds() -> None:
    estimate = median_estimate([100.0, 110.0, 400.0], generator())
    assert estimate.value == 110.0
    assert estimate.interval().low < 110.0 < estimate.interval().high


def test_throughput_intervals_cover_the_truth() -> None:
    """Three rounds that differ by 10 %: the plain percentiles of their replicates cover 74 %."""
    sources = map(generator, range(200))
    levels = ((source, (1e5 * np.exp(0.1 * source.standard_normal(3))).tolist()) for source in sources)
    estimates = (median_estimate(rates, source, replicates=200) for source, rates in levels)
    assert share_that_holds(1e5, estimates) >= 0.84


def test_one_round_has_an_interval_from_its_blocks_or_none() -> None:
    assert median_estimate([100.0], generator()) is None
    assert median_estimate([100.0], generator(), [50.0]) is None
    estimate = median_estimate([100.0], generator(), [50.0, 55.0, 45.0, 52.0])
    assert (estimate.value, estimate.rounds_count) == (100.0, 1)
    assert estimate.interval().low < 100.0 < estimate.interval().high


def test_a_whole_run_takes_no_time() -> None:
    """20 cells of 3 rounds, with ranks. CPU time, since other processes share the machine; about 0.4 s."""
    source = generator()
    cells = [cell(source, 3, 1000) for _ in range(20)]
    start = time.process_time()
    estimates = [quantile_estimates(cell, (0.5, 0.99), source) for cell in cells]
    rank_groups([p50 for p50, _ in estimates if p50 is not None])
    assert time.process_time() - start < 5.0


def test_intervals_cover_the_truth_of_samples_that_are_not_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment of benchmarks/verdicts/coverage.py, short: 50 of a true 95 % show fewer than 84 % once in 600."""
    monkeypatch.syspath_prepend(VERDICTS)
    module = runpy.run_path(str(VERDICTS / "coverage.py"))
    shares = {shape.__name__: module["share_covered"](shape, 50, 5, 200) for shape in module["SHAPES"]}
    kinds = {"three_tenths_far", "share_far_uniform", "one_in_five", "half_far"}  # of rounds: docs/method.md
    assert len(shares) == 9
    assert {name: share for name, share in shares.items() if share < (0.68 if name in kinds else 0.84)} == {}
