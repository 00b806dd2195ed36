"""A run's figures are those of its stored trials; what failed enters none; what is not comparable is never compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench.analysis.summary.cells import CellSummary, SettingSummary
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import verdict_words
from ipcbench.errors import StoreError
from ipcbench.results.model import Floor, Integrity, TrialResult
from ipcbench.results.store import Run, RunWriter, load_run
from ipcbench.spec import Mode
from tests.unit.builders import Cell, conditions, make_run, parts, pingpong, run_info, sweep_of, trial

STEADY = (1.0, 1.01, 0.99)


def only(run: Run) -> SettingSummary:
    (setting,) = summarise(run).settings
    return setting


def cell_of(run: Run) -> CellSummary:
    """Return what is said of shm."""
    (cell,) = [cell for ranking in summarise(run).settings for cell in ranking.cells if cell.backend == "shm"]
    return cell


def shm(path: Path, cell: Cell, size: int = 10, **changes: Any) -> CellSummary:
    """Return what a run of that cell says of it."""
    return cell_of(make_run(path / "run", {("shm", size): cell}, **changes))


def test_latency_is_over_all_readers_and_rounds(tmp_path: Path) -> None:
    cell = shm(tmp_path, Cell(latency_ns=20_000.0), readers=3)
    assert cell.latency_p50_ns.estimate == pytest.approx(20_000, rel=0.02)
    assert cell.latency_p50_ns.low < 20_000 < cell.latency_p50_ns.high
    assert cell.latency_p99_ns.estimate > 1.4 * cell.latency_p50_ns.estimate
    assert cell.samples_count == 3 * 3 * 350
    assert cell.rounds_count == 3


def test_p99_needs_a_thousand_samples(tmp_path: Path) -> None:
    cell = shm(tmp_path, Cell(factors=(1.0, 1.0)))
    assert cell.samples_count == 700
    assert cell.latency_p50_ns is not None
    assert cell.latency_p99_ns is None


def test_the_figures_of_saturated_trials(tmp_path: Path) -> None:
    cell = shm(tmp_path, Cell(rate_per_s=20_000.0), size=1000, readers=2)
    assert cell.throughput_per_s == pytest.approx(20_000, rel=0.02)
    assert cell.throughput_bytes_per_s == pytest.approx(20_000 * 55_039, rel=0.02)
    assert cell.throughput_interval_per_s.low < 20_000 < cell.throughput_interval_per_s.high
    assert (cell.read_p50_ns, cell.write_p50_ns, cell.decode_p50_ns) == (7_000.0, 3_000.0, 241_000.0)
    assert (cell.writer_cpu_ns, cell.reader_cpu_ns) == pytest.approx((0.0051 * 1e9 / 1000, 0.003 * 1e9 / 1000))
    assert cell.memory_bandwidth_ratio == pytest.approx(20_000 * 55_039 / 10e9, rel=0.02)
    assert cell.latency_floor_ratio == pytest.approx(10.0, rel=0.02)


def test_cells_are_ranked_best_first_with_their_ratio(tmp_path: Path) -> None:
    cells = {("zmq", 10): Cell(60_000.0), ("shm", 10): Cell(10_000.0), ("lmdb", 10): Cell(20_000.0)}
    setting = only(make_run(tmp_path / "run", cells))
    assert [(cell.backend, cell.rank) for cell in setting.cells] == [("shm", 1), ("lmdb", 2), ("zmq", 3)]
    assert (setting.ranked_by, setting.rate_per_s) == ("latency", 1000.0)
    best, _, last = setting.cells
    assert (best.ratio.low, best.ratio.estimate, best.ratio.high) == (1.0, 1.0, 1.0)
    assert last.ratio.estimate == pytest.approx(6.0, rel=0.03)
    assert last.ratio.low < last.ratio.estimate < last.ratio.high
    cells = {("a", 10): Cell(), ("b", 10): Cell(), ("c", 10): Cell(50_000.0)}
    assert [cell.rank for cell in only(make_run(tmp_path / "equal", cells)).cells] == [1, 1, 3]


def test_a_rank_never_contradicts_the_interval_beside_it(tmp_path: Path) -> None:
    """The interval is the one that decided: beyond 1 % from 1 exactly where the first rank is not shared."""
    for seed in range(10):
        source = np.random.default_rng(seed)
        cells = {
            (name, 10): Cell(10_000.0 * (1.0 + 0.04 * index), factors=tuple(np.exp(source.normal(0.0, 0.05, 4))))
            for index, name in enumerate("abcde")
        }
        setting = only(make_run(tmp_path / str(seed), cells, rounds=4))
        for cell in setting.cells[1:]:
            assert (cell.rank == 1) == (cell.ratio.low <= 1.01), (seed, cell.rank, cell.ratio)
            assert cell.rounds_to_decide is None or (cell.rounds_to_decide == 0) == (cell.rank > 1)


def test_the_rounds_that_would_decide_do_not_keep_the_floor_of_few_rounds(tmp_path: Path) -> None:
    """A cell of the run that varies much raises the floor of those with few rounds; more rounds need it no longer."""
    rng = np.random.default_rng(3)
    steady = {(name, 10): Cell(10_000.0 * slow, factors=tuple(np.exp(rng.normal(0.0, 0.002, 3))))
              for name, slow in (("a", 1.0), ("b", 1.04))}  # fmt: skip
    wild = {(name, 10): Cell(30_000.0, factors=tuple(np.exp(rng.normal(0.0, 0.3, 3)))) for name in ("c", "d")}
    settings = only(make_run(tmp_path / "run", steady | wild))
    (b,) = (cell for cell in settings.cells if cell.backend == "b")
    assert b.rounds_to_decide is not None
    assert 0 < b.rounds_to_decide <= 10


def test_a_turn_cut_short_by_a_stall_weighs_no_more_in_the_tail_of_round_trips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three trips in 1,000 take 50 ms: their 99th percentile is a usual one, however few their turns have."""
    counts = (37,) * 9 + (5,)

    def stalled(plain: TrialResult, trip_ns: float, spread: float) -> tuple[TrialResult, dict[str, Any]]:
        result, columns = pingpong(plain, trip_ns, spread, count=sum(counts))
        columns["writer.round_trip_ns"][-1] = 50_000_000
        return replace(result, spec=replace(result.spec, turns=10), turn_counts=counts), columns

    monkeypatch.setattr("tests.unit.builders.pingpong", stalled)
    cell = shm(tmp_path, Cell(round_trip_ns=30_000.0, factors=(1.0,) * 5), readers=1, modes=("pingpong",))
    assert cell.round_trip_p99_ns is not None
    assert cell.round_trip_p99_ns.estimate < 100_000


def test_the_median_comes_from_turns_and_the_tail_from_windows_in_one_piece(tmp_path: Path) -> None:
    """In a run whose even trials are in turns and whose odd ones are for the tail, three times as slow."""

    def roles(trial: TrialResult) -> TrialResult:
        tail = trial.spec.round_index % 2 == 1
        return replace(trial, spec=replace(trial.spec, turns=1 if tail else 10, tail=tail), turn_counts=(35,) * 10)

    factors = (1.0, 3.0) * 3
    run = make_run(
        tmp_path / "run", {("shm", 10): Cell(10_000.0, factors=factors, change=roles)}, readers=1, modes=("paced",)
    )
    (cell,) = only(run).cells
    assert cell.latency_p50_ns.estimate == pytest.approx(10_000, rel=0.02)
    whole = np.concatenate([run.samples(index)["reader-0.latency_ns"] for index in (1, 3, 5)])
    assert cell.latency_p99_ns.estimate == pytest.approx(np.quantile(whole, 0.99), rel=0.02)
    in_turns = replace(run, trials=run.trials[::2])
    assert only(in_turns).cells[0].latency_p99_ns is None, "turns would cut a stall off"


def test_throughputs_are_compared_turn_by_turn(tmp_path: Path) -> None:
    """Both slow down and speed up alike from turn to turn and from round to round, by far more than they differ."""

    def in_turns(trial: TrialResult) -> TrialResult:
        source = np.random.default_rng(trial.spec.round_index)
        rates = trial.throughput_per_s * np.exp(source.normal(0.0, 0.5, 10) + source.normal(0.0, 0.5))
        own = np.exp(np.random.default_rng(trial.trial_id).normal(0.0, 0.02, 10))
        rates *= own
        return replace(trial, turn_rates_per_s=tuple(rates), throughput_per_s=float(np.mean(rates)))

    cells = {
        (name, 10): Cell(rate_per_s=rate, factors=(1.0,) * 5, change=in_turns)
        for name, rate in (("fast", 1.2e5), ("slow", 1e5))
    }
    setting = only(make_run(tmp_path / "run", cells, modes=("saturate",)))
    assert [(cell.backend, cell.rank) for cell in setting.cells] == [("fast", 1), ("slow", 2)]
    assert setting.cells[1].ratio.low < 1.2 < setting.cells[1].ratio.high


def test_without_paced_trials_throughput_ranks(tmp_path: Path) -> None:
    cells = {("zmq", 10): Cell(rate_per_s=1e4), ("shm", 10): Cell(rate_per_s=4e4)}
    setting = only(make_run(tmp_path / "run", cells, modes=("saturate",)))
    assert (setting.ranked_by, setting.rate_per_s) == ("throughput", None)
    assert [(cell.backend, cell.rank, cell.throughput_rank) for cell in setting.cells] == [("shm", 1, 1), ("zmq", 2, 2)]
    assert setting.cells[1].ratio.estimate == pytest.approx(4.0, rel=0.02)
    assert setting.cells[0].latency_p50_ns is None


def test_round_trips_are_their_own_figure(tmp_path: Path) -> None:
    cells = {("zmq", 10): Cell(round_trip_ns=90_000.0), ("shm", 10): Cell(round_trip_ns=30_000.0)}
    setting = only(make_run(tmp_path / "run", cells, readers=2, modes=("pingpong",)))
    assert setting.ranked_by == "round trip"
    assert [cell.backend for cell in setting.cells] == ["shm", "zmq"]
    assert setting.cells[0].round_trip_p50_ns.estimate == pytest.approx(30_000, rel=0.02)
    assert setting.cells[0].latency_p50_ns is None


def test_round_trips_never_enter_one_way_latency(tmp_path: Path) -> None:
    cell = shm(tmp_path, Cell(10_000.0, round_trip_ns=1e6), modes=("paced", "pingpong", "saturate"))
    assert cell.latency_p50_ns.estimate == pytest.approx(10_000, rel=0.02)
    assert cell.samples_count == 3 * 350


def test_each_metric_has_its_own_ranks(tmp_path: Path) -> None:
    cells = {("pipe", 10): Cell(33_000.0, 1e5, 49_000.0), ("shm", 10): Cell(40_000.0, 2e5, 8_500.0)}
    setting = only(make_run(tmp_path / "run", cells, modes=("paced", "pingpong", "saturate")))
    ranks = {cell.backend: (cell.rank, cell.round_trip_rank, cell.throughput_rank) for cell in setting.cells}
    assert ranks == {"pipe": (1, 2, 2), "shm": (2, 1, 1)}
    assert verdict_words(setting).endswith(" Shortest round trip: shm. Highest throughput: shm.")


def test_what_speaks_against_the_first_is_said_once_for_all_alike(tmp_path: Path) -> None:
    noisy = ("noisy: 5% steal",)
    cells = {(name, 10): Cell(notes=notes) for name, notes in (("shm", noisy), ("lmdb", noisy), ("zmq", ()))}
    words = verdict_words(only(make_run(tmp_path / "run", cells)))
    assert words.endswith(" Beware: noisy: 6 of 6 trials each of shm and lmdb.")
    cells = {key: replace(cell, factors=(1.0, 1.0, 1.0, 1.0)) for key, cell in cells.items()}
    cells["shm", 10] = replace(cells["shm", 10], factors=(1.0, 1.0, 1.0, 0.0))
    words = verdict_words(only(make_run(tmp_path / "other", cells, rounds=4)))
    assert words.endswith(" Beware: failed: 2 of 8 trials of shm; noisy: 8 of 8 trials of lmdb, 6 of 6 of shm.")


def test_a_cell_with_two_rounds_shares_no_rank_with_others_that_have_three(tmp_path: Path) -> None:
    cells = {("few", 10): Cell(5_000.0, 9e5, factors=(1.0, 1.0, 0.0)), ("a", 10): Cell(), ("b", 10): Cell(60_000.0)}
    setting = only(make_run(tmp_path / "run", cells))
    few, a, b = (next(cell for cell in setting.cells if cell.backend == name) for name in ("few", "a", "b"))
    assert (few.rank, few.throughput_rank, a.rank, b.rank) == (None, None, 1, 2)
    assert few.latency_p50_ns.estimate == pytest.approx(5_000.0, rel=0.02), "its figures are shown"
    assert "not ranked by one-way latency: only 2 rounds of it, and a rank takes three" in few.notes
    words = verdict_words(setting)
    assert words.startswith("a has the lowest one-way latency")
    assert "not ranked, for want of rounds: few" in words
    only_one = only(make_run(tmp_path / "other", {key: cells[key] for key in (("few", 10), ("a", 10))}))
    assert verdict_words(only_one).startswith("No verdict: only a has at least 3 rounds of one-way latency")


def test_failed_trials_never_enter_a_figure(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(10_000.0, 1e5, factors=(1.0, 0.0, 1.01)), ("zmq", 10): Cell(40_000.0)}
    cell = cell_of(make_run(tmp_path / "run", cells))
    assert cell.latency_p50_ns.estimate == pytest.approx(10_000, rel=0.02)
    assert cell.throughput_per_s == pytest.approx(1e5, rel=0.02)
    assert (cell.rounds_count, cell.trials_count, cell.failed_count, cell.clean_count) == (2, 6, 2, 4)
    assert "2 of 6 trials failed and are left out: reader-0 ended with exit code 1 (2 trials)" in cell.notes


def test_a_cell_that_always_failed_is_shown_and_not_ranked(tmp_path: Path) -> None:
    setting = only(make_run(tmp_path / "run", {("bad", 10): Cell(factors=(0.0, 0.0, 0.0)), ("shm", 10): Cell()}))
    best, bad = setting.cells
    assert (best.backend, best.rank) == ("shm", 1)
    assert (bad.backend, bad.rank, bad.status) == ("bad", None, "failed")
    assert bad.reason == "reader-0 ended with exit code 1 (6 trials)"
    assert {bad.ratio, bad.latency_p50_ns, bad.throughput_per_s, bad.throughput_rank} == {None}


@pytest.mark.parametrize("name", ["lost_count", "duplicated_count", "reordered_count", "torn_count"])
def test_a_trial_with_broken_delivery_is_not_believed_even_if_marked_ok(tmp_path: Path, name: str) -> None:
    cell = shm(tmp_path, Cell(change=parts(role="reader", integrity=Integrity(**{name: 3}))))
    assert (cell.status, cell.rank) == ("failed", None)
    assert "3 messages were not delivered as promised" in cell.reason


def test_what_was_left_out_is_shown_with_its_reason(tmp_path: Path) -> None:
    changes = {"backends": ("shm", "mpi", "zmq"), "skipped": {"mpi": "no MPI; pip install x"}, "status": "interrupted"}
    best, *others = only(make_run(tmp_path / "run", {("shm", 10): Cell()}, **changes)).cells
    assert best.backend == "shm"
    assert {cell.backend: (cell.status, cell.reason) for cell in others} == {
        "mpi": ("skipped", "no MPI; pip install x"),
        "zmq": ("skipped", "not reached: the run is interrupted"),
    }


def test_a_size_that_was_not_reached_is_a_problem(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell()}, sizes=(10, 1000), status="out of budget")
    assert summarise(run).problems == ("size 1,000: no trial was made; the run is out of budget",)


def mixed_run(path: Path, mode: Mode, change: dict) -> Run:
    """Return a run of a trial, and of one with a change."""
    sweep = sweep_of(backends=("shm",), sizes=(10,), readers=1, modes=(mode,))
    with RunWriter.create(path, run_info(sweep)) as writer:
        for index, other in enumerate((sweep, replace(sweep, **change))):
            writer.append(replace(trial(other, "shm", 10, mode, 0, index), throughput_per_s=1e5))
    return load_run(path)


OTHER = {"delivery": "latest_value", "readers": 2, "codec": "msgpack", "depth": 4, "wait": "spin", "touch": "all"}


@pytest.mark.parametrize("change", [{key: value} for key, value in (OTHER | {"pin": "auto"}).items()], ids=str)
def test_other_settings_are_never_in_one_table(tmp_path: Path, change: dict) -> None:
    run = mixed_run(tmp_path / "run", "saturate", change)
    assert [len(ranking.cells) for ranking in summarise(run).settings] == [1, 1]


def test_trials_of_different_rates_are_refused(tmp_path: Path) -> None:
    run = mixed_run(tmp_path / "run", "paced", {"rate_per_s": 5.0})
    with pytest.raises(StoreError, match="different rates"):
        summarise(run)


def test_sizes_are_in_order_and_rounds_of_one_are_not_of_another(tmp_path: Path) -> None:
    cells = {("shm", size): Cell(1_000.0 * size) for size in (1000, 10, 100)}
    summary = summarise(make_run(tmp_path / "run", cells))
    assert [ranking.setting.size for ranking in summary.settings] == [10, 100, 1000]
    medians = [ranking.cells[0].latency_p50_ns for ranking in summary.settings]
    assert [p50.estimate for p50 in medians if p50] == pytest.approx([1e4, 1e5, 1e6], rel=0.02)


UNSTEADY = Cell(change=parts("paced", steady=False))
SPARSE = Cell(change=parts(integrity=Integrity(received_count=250, skipped_count=750)))


def far_and_near(trial: TrialResult) -> TrialResult:
    return replace(trial, conditions=conditions(80.0 if trial.spec.round_index else 240.0))


def waiting(trial: TrialResult) -> TrialResult:
    return replace(trial, notes=(f"noisy: {trial.trial_id} % of the time waiting for a core",))


def stamped(trial: TrialResult) -> TrialResult:
    stamps = (f"0.{trial.trial_id} page faults per message", "noisy: steal")
    return replace(trial, notes=stamps if trial.trial_id else ())


@pytest.mark.parametrize(
    ("cell", "changes", "notes"),
    [
        (Cell(notes=("oversubscribed", "noisy: 5% steal")), {}, ("noisy: 5% steal", "oversubscribed")),
        (UNSTEADY, {}, ("unsteady in 3 of 6 trials",)),
        (Cell(change=stamped), {},
         ("noisy in 5 of 6 trials: steal", "page faults per message in 5 of 6 trials: 0.1, 0.2, 0.3, …")),
        (Cell(change=waiting), {}, ("noisy: 0, 1, 2 % of the time waiting for a core, …",)),
        (SPARSE, {"delivery": "latest_value"}, ("readers saw 25.0 % of the values; the others were overwritten",)),
    ],
    ids=["all", "some", "of one kind", "alike", "overwritten"],
)  # fmt: skip
def test_stamps_stand_beside_the_figures(tmp_path: Path, cell: Cell, changes: dict, notes: tuple[str, ...]) -> None:
    assert shm(tmp_path, cell, **changes).notes == notes


@pytest.mark.parametrize(
    ("rate_per_s", "stamp_stride", "known", "percent"),
    [(400_000.0, 17, True, "10.0"), (190_000.0, 17, True, None), (100_000.0, 1, True, "6.00"), (4e5, 17, False, None)],
)
def test_a_large_share_of_the_harness_in_the_time_per_message_is_noted(
    tmp_path: Path, rate_per_s: float, stamp_stride: int, known: bool, percent: str | None
) -> None:
    saturated = {"saturated_writer_ns": 150.0, "saturated_reader_ns": 250.0} if known else {}
    cell = Cell(rate_per_s=rate_per_s, change=parts("saturate", stamp_stride=stamp_stride))
    notes = shm(tmp_path, cell, floor=Floor(400.0, 600.0, 45.0, 1.0, **saturated)).notes
    wanted = f"saturated: the harness itself is {percent} % of the time per message"
    assert notes == ((wanted,) if percent else ())


def test_what_the_loops_cost_in_their_own_processes_counts(tmp_path: Path) -> None:
    """And not what they cost at the beginning of the run: 1 µs, and 400 ns while saturated."""

    def own(trial: TrialResult) -> TrialResult:
        costs = {"writer": 300.0, "reader-0": 200.0, "reader-1": 500.0}
        return replace(trial, endpoints=tuple(replace(part, floor_ns=costs[part.role]) for part in trial.endpoints))

    cell = shm(tmp_path, Cell(10_000.0, 200_000.0, change=own), readers=2)
    assert cell.latency_floor_ratio == pytest.approx(10_000 / 800, rel=0.02)
    assert cell.notes == ("saturated: the harness itself is 10.0 % of the time per message",)


@pytest.mark.parametrize(("rounds", "words"), [(1, "only 1 round:"), (2, "only 2 rounds:")])
def test_few_rounds_tell_nothing_of_tails_and_noise(tmp_path: Path, rounds: int, words: str) -> None:
    cells = {("shm", 10): Cell(factors=STEADY[:rounds]), ("zmq", 10): Cell(50_000.0, factors=STEADY[:rounds])}
    run = make_run(tmp_path / "run", cells)
    cell = cell_of(run)
    assert cell.latency_p50_ns.low < cell.latency_p50_ns.high
    assert (cell.throughput_interval_per_s, cell.latency_p99_ns, cell.round_trip_p99_ns) == (None, None, None)
    assert any(note.startswith(words) for note in cell.notes)
    assert not summarise(run).noise_ratios


def test_a_figure_that_only_others_have_is_missing_for_a_reason(tmp_path: Path) -> None:
    few = {("shm", 10): Cell(), ("zmq", 10): Cell(change=parts(latency=None))}
    (setting,) = summarise(make_run(tmp_path / "run", few)).settings
    shm, zmq = sorted(setting.cells, key=lambda cell: cell.backend)
    assert "no one-way latency: too few samples that count" in zmq.notes
    assert not any(note.startswith("no ") for note in shm.notes)


def test_cores_that_moved_are_noted_and_the_range_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(change=far_and_near)})
    assert any("cores far apart" in note for note in cell_of(run).notes)
    assert summarise(run).placement_ns == (80.0, 240.0)


def test_clocks_that_disagree_leave_no_latency_and_no_rank_by_it(tmp_path: Path) -> None:
    setting = only(make_run(tmp_path / "run", {("shm", 10): Cell(change=parts(latency=None))}))
    assert setting.cells[0].latency_p50_ns is None
    assert setting.ranked_by == "throughput"


def test_samples_that_are_gone_are_noted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell()})
    (tmp_path / "run" / "samples" / "0.npz").unlink()
    (tmp_path / "run" / "samples" / "2.npz").write_bytes(b"damaged")
    cell = cell_of(run)
    assert cell.samples_count == 350
    assert "the samples of 2 trials are missing or unusable" in cell.notes


def test_latencies_that_cannot_be_are_not_used(tmp_path: Path) -> None:
    cell = shm(tmp_path, Cell(latency_ns=-5_000.0))
    assert cell.latency_p50_ns is None
    assert "the samples of 3 trials are missing or unusable" in cell.notes


def test_the_same_run_gives_the_same_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell(20_000.0)})
    assert summarise(run) == summarise(load_run(tmp_path / "run"))


def test_a_cell_more_changes_no_other_cells_interval(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(), ("zmq", 10): Cell(rate_per_s=5e4)}
    alone = shm(tmp_path, Cell(), modes=("saturate",))
    beside = cell_of(make_run(tmp_path / "two", cells, modes=("saturate",)))
    assert alone.throughput_interval_per_s == beside.throughput_interval_per_s


def test_a_run_without_trials_or_floor(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", run_info(sweep_of(), floor=None)).close()
    summary = summarise(load_run(tmp_path / "run"))
    assert summary.settings == ()
    assert len(summary.problems) == 4


def test_a_sweep_that_somebody_edited_does_no_harm(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {("shm", 10): Cell()})
    path = tmp_path / "run" / "run.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "sweep": {"backends": [1, None]}, "payloads": [{}, {"size": "x"}]}))
    assert only(load_run(tmp_path / "run")).cells[0].backend == "shm"


def test_foreign_text_is_fit_for_a_terminal() -> None:
    assert one_line("a\n\tb\x1b[31mc\x00") == "a b [31mc"
    assert len(one_line("x" * 10_000)) == 300


def test_few_rounds_in_common_are_said_of_every_metric(tmp_path: Path) -> None:
    cells = {
        ("a", 10): Cell(10_000.0, 300_000.0, factors=(1.0, 1.01, 0.99, 1.0, 0.0, 0.0)),
        ("b", 10): Cell(20_000.0, 15_000.0, factors=(0.0, 0.0, 1.0, 1.01, 0.99, 1.0)),
    }
    modes = ("paced", "saturate")
    words = verdict_words(only(make_run(tmp_path / "two", cells, modes=modes)))
    assert "No verdict on throughput; of b, too few rounds in common with a to tell." in words
    once = {key: replace(cell, factors=(1.0,)) for key, cell in cells.items()}
    assert "Throughput: too few rounds to tell." in verdict_words(only(make_run(tmp_path / "once", once, modes=modes)))
    cells["c", 10] = Cell(90_000.0, 2_000.0, factors=(1.0, 1.01, 0.99, 1.0, 1.0, 1.0))
    words = verdict_words(only(make_run(tmp_path / "three", cells, modes=modes)))
    assert "Highest throughput: a; of b, too few rounds in common with a to tell." in words
