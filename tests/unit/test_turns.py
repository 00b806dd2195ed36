"""Turns: how many a window has, when they begin, and how cells that took them are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.analysis.summary.curves import mixed
from ipcbench.analysis.summary.figures import cell_figures, counted_in_turns
from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.clocks import Clocks
from ipcbench.harness.digest import Digest, judge
from ipcbench.harness.plan import Plan
from ipcbench.harness.sweep import turns_for
from ipcbench.spec import SweepSpec
from ipcbench.stats.bootstrap import RoundSamples, quantile_estimates
from ipcbench.stats.decisions import compare, p_value, prior_of, rank_groups
from ipcbench.stats.estimates import Estimate, noise_ratio, ratio, round_differences, rounds_in_common
from tests.unit.builders import Cell, make_run

TURNS = 10
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def plan_of(size: int = 64, **changes: object) -> Plan:
    sweep = SweepSpec(payload="bytes", codec="raw", sizes=(size,), **changes)
    return Plan.make(sweep.trial("shm", size, size, "paced", 0), 1e5, 1.0)


@pytest.mark.parametrize(
    ("size", "changes", "turns", "messages"),
    [
        (64, {}, 6, 42),
        (2**22, {}, 10, 1),
        (64, {"window_s": 0.01}, 4, 38),
        (64, {"window_s": 0.4}, 10, 40),
        (64, {"rate_per_s": 1000.0}, 1, 250),
        (64, {"delivery": "latest_value", "modes": ("paced",)}, 1, 250),
    ],
)
def test_a_window_has_turns_of_about_forty_ms(size: int, changes: dict, turns: int, messages: int) -> None:
    plan = plan_of(size, **changes)
    assert (plan.trial.turns, plan.turn_count()) == (turns, messages)


def test_closed_loops_take_turns_of_their_windows() -> None:
    sweep = SweepSpec(sizes=(64,))
    turns = {mode: sweep.trial("shm", 64, 64, mode, 0).turns for mode in sweep.modes}
    assert turns == {"paced": 6, "pingpong": 4, "saturate": 6}


@pytest.mark.parametrize(("message_s", "turns"), [(0.0, 6), (1e-5, 6), (2e-4, 4), (1e-3, 1), (1.0, 1)])
def test_a_saturated_turn_is_long_against_filling_the_channel(message_s: float, turns: int) -> None:
    trial = SweepSpec(depth=64).trial("shm", 10, 521, "saturate", 0)
    assert turns_for(trial, message_s) == turns


def test_a_trial_for_the_tail_goes_with_a_paced_one_in_turns() -> None:
    """In each of the first three rounds after the first look, and then in every second one."""
    sweep = SweepSpec(payload="bytes", codec="raw", sizes=(64,))
    has_tails = [sweep.tail_trial(sweep.trial("shm", 64, 64, "paced", index)) is not None for index in range(8)]
    assert has_tails == [False, True, True, True, False, True, False, True]
    sweep = replace(sweep, look=False)
    tails = [sweep.tail_trial(sweep.trial("shm", 64, 64, "paced", index)) for index in range(8)]
    assert [tail is not None for tail in tails] == [True, True, True, False, True, False, True, False]
    assert (tails[0].turns, tails[0].window_s, tails[0].tail) == (1, 0.4, True)
    assert Plan.make(tails[0], 1e5, 1.0).decode_count == 0
    large = sweep.trial("shm", 577_129, 577_129, "paced", 0)
    assert sweep.tail_trial(large) is None, "69 messages say nothing of p99"
    assert replace(sweep, window_s=1.0).tail_trial(replace(large, window_s=1.0)).window_s == 1.0
    whole = replace(sweep, rate_per_s=500.0).trial("shm", 64, 64, "paced", 0)
    assert replace(sweep, tail=False).tail_trial(sweep.trial("shm", 64, 64, "paced", 0)) is None
    for other in (whole, sweep.trial("shm", 64, 64, "paced", 0, twin=True), sweep.trial("shm", 64, 64, "pingpong", 0)):
        assert sweep.tail_trial(other) is None


def digest_of(
    delays_ns: list[int], write_ns: int = 20_000, came_ns: list[int] | None = None, heard_ns: list[int] | None = None
) -> Digest:
    """Return that of a paced trial in turns; with `came_ns`, of a reader too; with `heard_ns`, of its replies."""
    trial = replace(plan_of().trial, turns=TURNS, window_s=0.15)
    due = np.array([turn * 10**8 + index * 10**6 for turn in range(TURNS) for index in range(15)])
    columns = [{"intended_ns": due, "sent_ns": due + np.array(delays_ns), "write_ns": np.full(len(due), write_ns)}]
    turns = [(1 + 15 * turn, 15) for turn in range(TURNS)]
    if heard_ns is not None:
        columns[0]["heard-0_ns"] = due + np.array(heard_ns)
    if came_ns is not None:
        columns.append({"sequence": 1 + np.arange(len(due)), "received_ns": due + np.array(came_ns)})
    answers = {
        index: {"facts": {"turns": turns}, "columns": {name: column.tobytes() for name, column in each.items()}}
        for index, each in enumerate(columns)
    }
    processes = {index: (index, None) for index in answers}
    return Digest(trial, answers, processes, plan_stride=1, clocks=Clocks())


def test_a_slow_turn_of_round_trips_keeps_its_samples_and_weighs_as_much_as_a_fast_one(tmp_path: Path) -> None:
    """Three of ten turns have three trips of 5 ms, when both processes share a core: if all turns were thinned as one,
    none of these would be left, and the median would be of the fast turns alone.
    """
    counts, times = [4000] * 7 + [3] * 3, [1_000] * 7 + [5_000_000] * 3
    trips = np.repeat(times, counts)
    firsts = 1 + np.cumsum([0, *counts[:-1]]) + 10 * np.arange(TURNS)  # some messages between turns are not kept
    sequence = np.concatenate([np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
    sent = np.cumsum(trips)
    trial = replace(plan_of().trial, mode="pingpong", rate_per_s=None)
    writer = {"sent_ns": sent, "round_trip_ns": trips, "heard-0_ns": sent + trips}
    reader = {"sequence": sequence, "received_ns": sent + trips // 2}
    answers = {
        index: {
            "facts": {"turns": [(int(first), count) for first, count in zip(firsts, counts, strict=True)]},
            "columns": {name: column.astype(np.int64).tobytes() for name, column in columns.items()},
        }
        for index, columns in enumerate((writer, reader))
    }
    digest = Digest(trial, answers, {0: (1, None), 1: (2, None)}, plan_stride=1, clocks=Clocks())
    kept, samples = digest.kept_counts(), digest.samples()
    assert kept[7:] == (3, 3, 3)
    assert min(kept[:7]) == max(kept[:7]) > 100
    assert {len(column) for column in samples.values()} == {sum(kept)}
    assert (samples["reader-0.latency_ns"] == samples["writer.round_trip_ns"] // 2).all()
    assert digest._round_trip(trips).mean_ns == pytest.approx(0.7 * 1_000 + 0.3 * 5_000_000)

    run = make_run(tmp_path / "run", {("shm", 16): Cell(factors=(1.0,))}, readers=1, modes=("pingpong",))
    (result,) = run.trials
    changes = {"turn_counts": tuple(counts), "kept_counts": kept}
    result = replace(result, spec=replace(result.spec, turns=TURNS), **changes)
    np.savez(run.path / "samples" / "0.npz", **samples)
    figures = cell_figures(run, [result])
    assert figures.unreadable_count == 0
    assert [round(math.exp(turn)) for turn in figures.round_trip_p50.rounds[f"{run.info.run_id} 0"]] == times
    assert cell_figures(run, [replace(result, kept_counts=(*kept[:-1], 4))]).unreadable_count == 1


def test_a_thinned_run_of_which_a_turn_has_no_sample_has_figures_all_the_same(tmp_path: Path) -> None:
    """As older runs are stored."""
    run = make_run(tmp_path / "run", {("shm", 16): Cell(factors=(1.0,))}, readers=1, modes=("pingpong",))
    (result,) = run.trials
    result = replace(result, spec=replace(result.spec, turns=3), turn_counts=(20_000, 2, 20_000))
    figure = cell_figures(run, [result]).round_trip_p50
    assert math.isfinite(figure.value)


def test_a_rate_that_is_not_held_shows_at_the_end_of_each_turn_and_a_stall_in_one_does_not() -> None:
    slow = digest_of([300_000 * index for _ in range(TURNS) for index in range(15)], 1_300_000)
    said = "the rate was not held: 769.2 of 1000 messages/s; the writer ended 3.60 ms behind its schedule"
    assert slow.missed_rate() == said
    assert judge(plan_of().trial, (), 0, said, "") == ("failed", said)
    delays = [0] * 150
    delays[40:45] = [20_000_000 - index * 1_000_000 for index in range(5)]
    stalled = digest_of(delays)
    assert (stalled.late_stall_ns(), stalled.missed_rate()) == (0.0, "")


def test_a_stall_before_each_turn_leaves_the_writer_behind_but_does_not_fail_the_trial() -> None:
    """Each turn begins 37 ms late; while behind, a message takes 20 µs."""
    digest = digest_of([37_000_000 - index * 980_000 for _ in range(TURNS) for index in range(15)])
    assert digest.late_stall_ns() == 37_000_000 - 14 * 980_000
    assert digest.missed_rate() == ""


GROWING = [9_000_000 + 300_000 * index for _ in range(TURNS) for index in range(15)]


def test_a_queue_that_grows_between_a_writer_on_time_and_its_reader_misses_the_rate() -> None:
    """Between hosts, or with a large depth, a writer of 1.3 times what arrives is late only when all is full."""
    said = "the rate was not held: 769.2 of 1000 messages/s; at the end messages came to reader-0 3.60 ms later than"
    assert digest_of([0] * 150, came_ns=GROWING).missed_rate().startswith(said)
    replies = digest_of([0] * 150, came_ns=[9_000_000] * 150, heard_ns=GROWING).missed_rate()
    assert "at the end replies of reader-0 came 3.60 ms later" in replies


def test_the_rate_that_is_said_is_that_of_who_was_furthest_behind() -> None:
    """The writer holds 909 of 1000, and what arrives is slower still."""
    delays = [100_000 * index for _ in range(TURNS) for index in range(15)]
    said = digest_of(delays, 1_100_000, came_ns=[2 * late for late in GROWING]).missed_rate()
    assert said.startswith("the rate was not held: 625 of 1000 messages/s; at the end messages came to reader-0")


@pytest.mark.parametrize("stall_ms", [3, 60])
@pytest.mark.parametrize("place", [0, 7, 80, 144, 149])
def test_messages_that_arrive_in_a_bunch_after_a_stall_miss_no_rate(place: int, stall_ms: int) -> None:
    came = np.full(150, 9_000_000)
    late = stall_ms * 1_000_000 - 1_000_000 * np.arange(150 - place)
    came[place:] += np.maximum(0, late)
    assert digest_of([0] * 150, came_ns=came.tolist()).missed_rate() == ""


def test_pauses_between_turns_are_in_neither_backlog_nor_rate() -> None:
    on_time = digest_of([0] * 150)
    assert (on_time.missed_rate(), on_time.achieved_rate_per_s()) == ("", pytest.approx(1000.0))


def estimate(logs: np.ndarray, run: str = "one") -> Estimate:
    """Return the estimate of a cell whose turns have these logarithms, shape (rounds, turns)."""
    value = float(np.exp(np.median(logs)))
    rounds = np.median(logs, axis=1)
    variance = float(np.var(rounds, ddof=1)) / len(rounds) * math.pi / 2
    deviations = np.random.default_rng(1).normal(0.0, math.sqrt(variance), 300)
    turns = {f"{run} {index}": row for index, row in enumerate(logs)}
    return Estimate(value, deviations, variance, len(rounds) - 1.0, len(rounds), turns)


def pair(
    seed: int, rounds: int, *, slower: float = 1.0, own: Draw | None = None, common: float = 0.2
) -> tuple[Estimate, Estimate]:
    """Return two cells, the second `slower`, on a machine whose speed changes by `common` with each turn and round."""
    source = np.random.default_rng(seed)
    shape = (rounds, TURNS)
    speed = source.normal(0.0, common, shape) + source.normal(0.0, common, (rounds, 1))
    draw = own or (lambda generator, size: generator.normal(0.0, 0.05, size))
    return estimate(speed + draw(source, shape)), estimate(speed + draw(source, shape) + math.log(slower))


def unpaired(cell: Estimate) -> Estimate:
    return replace(cell, rounds={})


def test_what_slows_both_cancels() -> None:
    a, b = pair(3, 12, slower=1.1)
    paired, apart = ratio(b, a), ratio(unpaired(b), unpaired(a))
    assert paired.low < 1.1 < paired.high
    assert paired.high / paired.low < apart.high / apart.low
    assert ratio(a, b).estimate == pytest.approx(1.0 / paired.estimate)


def test_a_known_slow_down_is_found_in_noise_that_hides_it_from_figures_by_themselves() -> None:
    pairs = [pair(seed, 12, slower=1.1) for seed in range(100)]
    together = [compare(ratio(b, a)) for a, b in pairs]
    apart = [compare(ratio(unpaired(b), unpaired(a))) for a, b in pairs]
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
    verdicts = [compare(ratio(*pair(seed, rounds, own=own))) for seed in range(400)]
    assert sum(verdict != "no clear difference" for verdict in verdicts) / 400 <= 0.07


def test_a_round_far_off_does_not_hide_a_difference() -> None:
    a, b = pair(5, 12, slower=1.1)
    spoilt = dict(b.rounds)
    spoilt["one 4"] = spoilt["one 4"] + 2.0
    assert ratio(replace(b, rounds=spoilt), a).estimate == pytest.approx(ratio(b, a).estimate, rel=0.01)
    assert compare(ratio(replace(b, rounds=spoilt), a)) == "slower"


def test_turns_of_other_runs_and_single_rounds_are_not_paired() -> None:
    a, b = pair(1, 5, slower=2.0)
    stranger = replace(b, rounds={f"other {name}": turns for name, turns in b.rounds.items()})
    assert round_differences(stranger, a).size == 0
    assert ratio(stranger, a).estimate == pytest.approx(b.value / a.value)
    once = replace(b, rounds={"one 0": b.rounds["one 0"]})
    assert ratio(once, a).estimate == pytest.approx(b.value / a.value)


def test_the_p_value_and_the_interval_agree() -> None:
    for seed in range(20):
        a, b = pair(seed, 8, slower=1.03)
        interval, p = ratio(b, a), p_value(b, a)
        assert p is not None
        assert (p < 0.05) == (not interval.low <= 1.0 <= interval.high)


def test_ranks_are_told_apart_turn_by_turn() -> None:
    a, b = pair(2, 12, slower=1.1)
    assert rank_groups([a, b]) == (1, 2)
    assert rank_groups([unpaired(a), unpaired(b)]) == (1, 1)


def test_the_noise_floor_is_of_what_turns_differ_by() -> None:
    settings = [pair(seed, 8, own=lambda source, size: source.normal(0.0, 0.05, (size[0], 1))) for seed in range(200)]
    assert noise_ratio(settings) == pytest.approx(math.expm1(0.05 * math.sqrt(2) / math.sqrt(8)), rel=0.1)
    assert noise_ratio([[unpaired(cell) for cell in cells] for cells in settings]) is None


def test_a_stored_run_is_compared_turn_by_turn(tmp_path: Path) -> None:
    wild = (1.0, 3.0, 0.4, 2.0, 0.7)
    cells = {("a", 100): Cell(10_000.0, factors=wild), ("b", 100): Cell(11_500.0, factors=wild)}
    run = make_run(tmp_path / "run", cells, readers=3, rounds=5, modes=("paced",))
    in_turns = [replace(trial, spec=replace(trial.spec, turns=10), turn_counts=(35,) * 10) for trial in run.trials]
    run = replace(run, trials=tuple(in_turns))
    (setting,) = summarise(run).settings
    assert [(cell.backend, cell.rank) for cell in setting.cells] == [("a", 1), ("b", 2)]
    assert setting.cells[1].ratio.low < 1.15 < setting.cells[1].ratio.high
    whole = [replace(trial, spec=replace(trial.spec, turns=1)) for trial in run.trials]
    for name in ("a", "b"):
        trials = [trial for trial in whole if trial.spec.backend == name]
        rounds = cell_figures(run, trials).latency_p50.rounds
        assert [len(logs) for logs in rounds.values()] == [1] * 5


def test_a_difference_between_two_sizes_is_no_surer_than_at_them() -> None:
    """Noise that all cells of a size share, turn by turn, hides no difference there; errors do not average out."""

    def shaken(cell: Estimate, seed: int) -> Estimate:
        source = np.random.default_rng(seed)
        noisy = {name: turns + source.normal(0.0, 0.5, turns.shape) for name, turns in cell.rounds.items()}
        return replace(cell, rounds=noisy)

    sizes = [tuple(shaken(cell, seed) for cell in pair(seed, 12, slower=1.1)) for seed in (1, 2)]
    fast, slow = (mixed(sizes[0][which], sizes[1][which], 0.5) for which in (0, 1))
    assert rounds_in_common(fast, slow) == 12
    assert ratio(slow, fast).estimate == pytest.approx(1.1, rel=0.03)
    assert compare(ratio(slow, fast)) == "slower"
    widths = [math.log(each.high / each.low) for each in (ratio(slow, fast), *(ratio(b, a) for a, b in sizes))]
    assert widths[0] >= min(widths[1:])
    assert ratio(slow, replace(fast, between=())).high > ratio(slow, fast).high


def test_sizes_whose_rounds_differ_alike_are_worth_one_of_them() -> None:
    """Processes are fresh in each round and serve all sizes: five copies of one comparison tell no more than one."""
    source = np.random.default_rng(4)
    processes = source.normal(0.0, 0.2, (2, 3, 1))
    alike = [[estimate(row + source.normal(0.0, 0.01, (3, 1))) for row in processes] for _ in range(5)]
    apart = [[estimate(source.normal(0.0, 0.2, (3, 1))) for _ in range(2)] for _ in range(5)]
    assert prior_of(alike).most_degrees == pytest.approx(2.0, rel=0.05)
    assert prior_of(apart).most_degrees > 4.0


@pytest.mark.parametrize("common_count", [0, 1, 2])
def test_cells_of_a_run_with_fewer_than_three_rounds_in_common_are_not_told_apart(common_count: int) -> None:
    source = np.random.default_rng(1)
    a, b = (estimate(source.normal(level, 0.01, (6, 1))) for level in (0.0, 1.0))
    b = replace(b, rounds={f"{int(name.split()[1]) + 6 - common_count}": row for name, row in b.rounds.items()})
    b = replace(b, rounds={f"one {name}": row for name, row in b.rounds.items()})
    assert rank_groups([a, b]) == (1, 1)
    assert rank_groups([a, estimate(source.normal(1.0, 0.01, (6, 1)))]) == (1, 2)


def test_the_first_messages_of_a_paced_turn_are_not_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("a", 10): Cell()}, modes=("paced",))
    trial = run.trials[0]
    turns = replace(trial, spec=replace(trial.spec, turns=3), turn_counts=(15, 15, 2))
    places = np.flatnonzero(~counted_in_turns(turns, 32))
    assert places.tolist() == [0, 1, 2, 15, 16, 17, 30]
    assert counted_in_turns(replace(turns, spec=replace(turns.spec, turns=1)), 32).all()
    assert counted_in_turns(replace(turns, spec=replace(turns.spec, mode="pingpong")), 32).all()


def two_kinds(far_count: int, rounds_count: int = 10) -> tuple[Estimate, Estimate]:
    """Return two cells; in some rounds the first is seven times as slow as in the others, about what the second is."""
    source = np.random.default_rng(1)
    far = np.where(np.arange(rounds_count) < far_count, 0.5, -0.5) * math.log(7.0)
    noise = source.normal(0.0, 0.05, (2, rounds_count, 1))
    return estimate(far[:, None] + noise[0]), estimate(noise[1])


@pytest.mark.parametrize(("far_count", "verdict"), [(8, "no clear difference"), (9, "slower"), (10, "slower")])
def test_rounds_of_another_kind_are_not_left_out_as_disturbed(far_count: int, verdict: str) -> None:
    assert compare(ratio(*two_kinds(far_count))) == verdict


def test_rounds_that_were_disturbed_are_left_out() -> None:
    a, b = pair(5, 12, slower=1.1)
    disturbed = {name: turns + (3.0 if name in list(b.rounds)[:2] else 0.0) for name, turns in b.rounds.items()}
    assert compare(ratio(replace(b, rounds=disturbed), a)) == "slower"


def test_every_turn_of_a_closed_loop_weighs_the_same() -> None:
    fast, slow = np.full(1000, 1.4), np.full(50, 22.0)
    values, blocks = np.concatenate([fast, slow, slow]), np.repeat([0, 1, 2], [1000, 50, 50])
    pooled, even = (RoundSamples(values, blocks, by_turns=by_turns) for by_turns in (False, True))
    assert (pooled.quantile(0.5), even.quantile(0.5)) == (1.4, 22.0)
    (estimate_,) = quantile_estimates([even], (0.5,), np.random.default_rng(1))
    assert estimate_ is not None
    assert estimate_.value == 22.0


def test_a_backend_whose_rounds_are_of_two_kinds_is_not_named_where_few_are_alike() -> None:
    """After three rounds, at one size all of a's rounds are far; the other sizes show that they need not be."""
    source = np.random.default_rng(3)

    def size(*kinds: float) -> list[Estimate]:
        logs = source.normal(0.0, 0.05, (3, 3, 1))
        logs[0] += math.log(7.0) * np.reshape(kinds, (3, 1))
        return [replace(estimate(row), of=name) for name, row in zip("abc", logs, strict=True)]

    alike = size(0.5, 0.5, 0.5)
    others = [size(0.5, -0.5, 0.5), size(-0.5, 0.5, -0.5), size(-0.5, -0.5, 0.5)]
    assert max(rank_groups(alike, prior_of([alike, *others]))) == 1
    assert max(rank_groups(alike, prior_of([size(0.5, 0.5, 0.5) for _ in range(4)]))) > 1
