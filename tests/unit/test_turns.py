"""Turns: how many a window has and when they are, and what may be said of cells that took them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.analysis.summary.curves import mixed
from ipcbench.analysis.summary.figures import cell_figures
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.digest import Digest
from ipcbench.harness.plan import GUARD_NS, Plan
from ipcbench.spec import SweepSpec
from ipcbench.stats.decisions import compare, p_value, rank_groups
from ipcbench.stats.estimates import Estimate, paired_noise_floor_ratio, ratio, round_differences
from tests.unit.builders import Cell, make_run, sweep_of

TURNS = 10
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def plan_of(size: int = 64, **changes: object) -> Plan:
    sweep = SweepSpec(payload="bytes", codec="raw", sizes=(size,), **changes)
    return Plan.make(sweep.trial("shm", size, size, "paced", 0), 1e5, 1.0)


@pytest.mark.parametrize(
    ("size", "changes", "turns", "messages"),
    [
        (64, {}, 10, 15),
        (2**22, {}, 10, 1),
        (64, {"window_s": 0.01}, 10, 15),
        (64, {"window_s": 0.4}, 27, 15),
        (64, {"rate_per_s": 1000.0}, 1, 150),
        (64, {"delivery": "latest_value", "modes": ("paced",)}, 1, 150),
    ],
)
def test_a_window_has_turns_of_about_fifteen_ms(size: int, changes: dict, turns: int, messages: int) -> None:
    plan = plan_of(size, **changes)
    assert (plan.trial.turns, plan.turn_count()) == (turns, messages)


def test_the_turns_hold_all_messages_and_a_period_fits_between_them() -> None:
    plan = plan_of()
    assert plan.turn_ns() == 15_000_000 + GUARD_NS
    starts = plan.turn_starts_ns(1_000, 50_000_000)
    assert starts == [1_000 + turn * 50_000_000 for turn in range(10)]
    assert len(starts) * plan.turn_count() >= plan.column_count > (len(starts) - 1) * plan.turn_count()


def digest_of(delays_ns: list[int]) -> Digest:
    trial = plan_of().trial
    due = np.array([turn * 10**8 + one * 10**6 for turn in range(TURNS) for one in range(15)])
    columns = {"intended_ns": due, "sent_ns": due + np.array(delays_ns)}
    answer = {"facts": {"warmup_count": 0}, "columns": {name: one.tobytes() for name, one in columns.items()}}
    return Digest(trial, {0: answer}, {0: (1, None)}, plan_stride=1, with_latency=True)


def test_a_rate_that_is_not_held_shows_at_the_end_of_each_turn() -> None:
    assert digest_of([300_000 * one for _ in range(TURNS) for one in range(15)]).backlog_ns() == 12 * 300_000
    assert digest_of([0] * 150).backlog_ns() == 0.0


def test_a_stall_in_one_turn_is_no_backlog() -> None:
    delays = [0] * 150
    delays[40:45] = [20_000_000 - index * 1_000_000 for index in range(5)]
    assert digest_of(delays).backlog_ns() == 0.0


def test_the_rate_of_a_window_in_turns_leaves_the_pauses_out() -> None:
    assert digest_of([0] * 150).achieved_rate_per_s() == pytest.approx(1000.0)


def estimate(logs: np.ndarray, run: str = "one") -> Estimate:
    """Return the estimate of a cell whose turns have these logarithms, shape (rounds, turns)."""
    value = float(np.exp(np.median(logs)))
    own = np.median(logs, axis=1)
    variance = float(np.var(own, ddof=1)) / len(own) * math.pi / 2
    deviations = np.random.default_rng(1).normal(0.0, math.sqrt(variance), 300)
    turns = {f"{run} {index}": one for index, one in enumerate(logs)}
    return Estimate(value, deviations, variance, len(own) - 1.0, len(own), turns)


def pair(
    seed: int, rounds: int, *, slower: float = 1.0, own: Draw | None = None, common: float = 0.2
) -> tuple[Estimate, Estimate]:
    """Return two cells, the second `slower`, on a machine whose speed changes by `common` with each turn and round."""
    source = np.random.default_rng(seed)
    shape = (rounds, TURNS)
    speed = source.normal(0.0, common, shape) + source.normal(0.0, common, (rounds, 1))
    draw = own or (lambda generator, size: generator.normal(0.0, 0.05, size))
    return estimate(speed + draw(source, shape)), estimate(speed + draw(source, shape) + math.log(slower))


def unpaired(one: Estimate) -> Estimate:
    return replace(one, turns={})


def test_what_slows_both_cancels() -> None:
    a, b = pair(3, 12, slower=1.1)
    found, apart = ratio(b, a), ratio(unpaired(b), unpaired(a))
    assert found.low < 1.1 < found.high
    assert found.high / found.low < apart.high / apart.low
    assert ratio(a, b).estimate == pytest.approx(1.0 / found.estimate)


def test_a_known_slow_down_is_found_in_noise_that_hides_it_from_figures_by_themselves() -> None:
    pairs = [pair(seed, 12, slower=1.1) for seed in range(100)]
    together = [compare(ratio(b, a), 0.0) for a, b in pairs]
    apart = [compare(ratio(unpaired(b), unpaired(a)), 0.0) for a, b in pairs]
    assert together.count("slower") == 100
    assert apart.count("slower") < 50


@pytest.mark.parametrize("rounds", [3, 5, 8, 16])
@pytest.mark.parametrize(
    "own",
    [
        lambda source, size: source.normal(0.0, 0.1, size),
        lambda source, size: 0.05 * source.standard_t(2, size),
        lambda source, size: source.normal(0.0, 0.1, (size[0], 1)) + source.normal(0.0, 0.05, size),
        lambda source, size: (
            np.where(source.random((size[0], 1)) < 0.2, source.normal(0.0, 0.4, (size[0], 1)), 0.0)
            + source.normal(0.0, 0.05, size)
        ),
    ],
    ids=["normal", "heavy tails", "rounds differ", "a few rounds far off"],
)
def test_equal_cells_are_rarely_called_different(rounds: int, own: Draw) -> None:
    found = [compare(ratio(*pair(seed, rounds, own=own)), 0.0) for seed in range(400)]
    assert sum(one != "no clear difference" for one in found) / 400 <= 0.08


def test_a_round_far_off_does_not_hide_a_difference() -> None:
    a, b = pair(5, 12, slower=1.1)
    spoilt = dict(b.turns)
    spoilt["one 4"] = spoilt["one 4"] + 2.0
    assert ratio(replace(b, turns=spoilt), a).estimate == pytest.approx(ratio(b, a).estimate, rel=0.01)
    assert compare(ratio(replace(b, turns=spoilt), a), 0.0) == "slower"


def test_turns_of_other_runs_and_single_rounds_are_not_paired() -> None:
    a, b = pair(1, 5, slower=2.0)
    stranger = replace(b, turns={f"other {name}": one for name, one in b.turns.items()})
    assert round_differences(stranger, a).size == 0
    assert ratio(stranger, a).estimate == pytest.approx(b.value / a.value)
    once = replace(b, turns={"one 0": b.turns["one 0"]})
    assert ratio(once, a).estimate == pytest.approx(b.value / a.value)


def test_the_p_value_and_the_interval_agree() -> None:
    for seed in range(20):
        a, b = pair(seed, 8, slower=1.03)
        found, chance = ratio(b, a), p_value(b, a)
        assert chance is not None
        assert (chance < 0.05) == (not found.low <= 1.0 <= found.high)


def test_ranks_are_told_apart_turn_by_turn() -> None:
    a, b = pair(2, 12, slower=1.1)
    assert rank_groups([a, b], 0.0) == (1, 2)
    assert rank_groups([unpaired(a), unpaired(b)], 0.0) == (1, 1)


def test_the_noise_floor_is_of_what_turns_differ_by() -> None:
    settings = [pair(seed, 8, own=lambda source, size: source.normal(0.0, 0.05, (size[0], 1))) for seed in range(200)]
    assert paired_noise_floor_ratio(settings) == pytest.approx(math.expm1(0.05 * math.sqrt(2) / math.sqrt(8)), rel=0.1)
    assert paired_noise_floor_ratio([[unpaired(one) for one in both] for both in settings]) is None


def test_a_stored_run_is_compared_turn_by_turn(tmp_path: Path) -> None:
    wild = (1.0, 3.0, 0.4, 2.0, 0.7)
    cells = {("a", 100): Cell(10_000.0, factors=wild), ("b", 100): Cell(11_500.0, factors=wild)}
    sweep = sweep_of(backends=("a", "b"), sizes=(100,), rounds=5, modes=("paced",))
    run = make_run(tmp_path / "run", cells, sweep)
    (setting,) = summarise(run).settings
    assert [(cell.backend, cell.rank) for cell in setting.cells] == [("a", 1), ("b", 2)]
    assert setting.cells[1].ratio is not None
    assert setting.cells[1].ratio.low < 1.15 < setting.cells[1].ratio.high
    whole = [replace(one, spec=replace(one.spec, turns=1)) for one in run.trials]
    for name in ("a", "b"):
        own = [one for one in whole if one.spec.backend == name]
        assert cell_figures(run, own).latency_p50.turns == {}


def test_between_two_sizes_turns_are_interpolated_alike() -> None:
    """What hits the turns of all cells of a size alike does not hide a difference between its neighbours either."""

    def shaken(one: Estimate, seed: int) -> Estimate:
        source = np.random.default_rng(seed)
        return replace(
            one, turns={name: turns + source.normal(0.0, 0.5, turns.shape) for name, turns in one.turns.items()}
        )

    sizes = [tuple(shaken(one, seed) for one in pair(seed, 12, slower=1.1)) for seed in (1, 2)]
    fast, slow = (mixed(sizes[0][which], sizes[1][which], 0.5) for which in (0, 1))
    assert len(fast.turns) == 12
    assert ratio(slow, fast).estimate == pytest.approx(1.1, rel=0.03)
    assert compare(ratio(slow, fast), 0.0) == "slower"
    assert compare(ratio(replace(slow, turns={}), replace(fast, turns={})), 0.0) == "no clear difference"


def test_of_unlike_numbers_of_turns_the_common_ones_are_interpolated() -> None:
    a, b = pair(1, 5), pair(2, 4)
    short = replace(b[0], turns={name: turns[:7] for name, turns in b[0].turns.items()})
    found = mixed(a[0], short, 0.25).turns
    assert {name: len(turns) for name, turns in found.items()} == dict.fromkeys(short.turns, 7)
    for name, turns in found.items():
        assert turns == pytest.approx(0.75 * a[0].turns[name][:7] + 0.25 * short.turns[name])
