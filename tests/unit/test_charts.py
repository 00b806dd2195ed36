"""What the plots show: the figures of the tables, with units; gaps named; nothing that cannot be drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.charts.settings import distributions, pareto_front
from ipcbench.analysis.report.tables import tables
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.render.palette import series_style
from ipcbench.render.scales import AxisRange, round_ticks, spread_out, tick_text, x_range, y_range
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run, load_run
from ipcbench.spec import Mode
from tests.end_to_end.shell import ROOT
from tests.unit.builders import CELLS, Cell, make_run

BAD_CELLS = {
    **CELLS,
    ("shm", 1000): Cell(40_000.0, 90_000.0, notes=("noisy: 5% steal",)),
    ("zmq", 1000): Cell(90_000.0, 20_000.0, factors=(0, 0, 0)),
}


def groups_of(run: Run, others: list[Run] | None = None) -> dict[str, ChartGroup]:
    together = [(other, tables(other).summary) for other in others or []]
    return {group.key: group for group in chart_groups(run, tables(run).summary, together)}


def series_of(chart: Chart, name: str) -> Series:
    return next(line for line in chart.series if line.name == name)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", BAD_CELLS)


def test_every_question_has_its_charts(run: Run) -> None:
    groups = groups_of(run)
    assert list(groups) == ["latency", "throughput", "percentiles", "memory-share", "decode-share", "cpu", "stability"]
    for group in groups.values():
        for chart in group.charts:
            assert all((chart.series, chart.x.unit, chart.y.unit))
            assert chart.summary.startswith(chart.title)


def test_a_line_has_the_figures_of_the_tables_with_their_intervals(run: Run) -> None:
    (chart,) = groups_of(run)["latency"].charts
    settings = tables(run).summary.settings
    cells = {(cell.backend, cell.setting.size): cell for setting in settings for cell in setting.cells}
    for name, point in (("shm", series_of(chart, "shm").points[1]), ("zmq", series_of(chart, "zmq").points[0])):
        size = {521.0: 10, 55_039.0: 1000}[point.x]
        interval = cells[name, size].latency_p50_ns
        expected = (interval.low / 1e3, interval.estimate / 1e3, interval.high / 1e3)
        assert (point.low, point.y, point.high) == pytest.approx(expected)
        assert any("µs [" in line for line in point.lines)
    figures = {"throughput": 300.0, "memory-share": 100 * 300_000 * 521 / 5e9, "decode-share": 100 * 241 / 251}
    for key, expected in figures.items():
        (chart,) = groups_of(run)[key].charts
        assert series_of(chart, "shm").points[0].y == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("modes", [("paced", "saturate"), ("pingpong",)])
def test_one_round_draws_no_intervals(modes: tuple[Mode, ...], tmp_path: Path) -> None:
    once = {key: replace(cell, factors=(1.0,)) for key, cell in CELLS.items()}
    groups = groups_of(make_run(tmp_path / "run", once, rounds=1, modes=modes))
    charts = [chart for key, group in groups.items() if key != "percentiles" for chart in group.charts]
    points = [point for chart in charts for line in chart.series for point in line.points]
    assert points
    assert {point.low for point in points} | {point.high for point in points} <= {None, *(p.y for p in points)}
    assert all(point.x_low in {None, point.x} for point in points)
    assert not any("µs [" in line for point in points for line in point.lines)


def test_a_cell_that_failed_has_no_point_and_is_named_with_its_reason(run: Run) -> None:
    (chart,) = groups_of(run)["latency"].charts
    assert [point.x for point in series_of(chart, "zmq").points] == [521.0]
    assert any("zmq at 1,000 entries failed: reader-0 ended" in note for note in chart.notes)


def test_a_noisy_cell_is_hollow(run: Run) -> None:
    (chart,) = groups_of(run)["latency"].charts
    assert [point.noisy for point in series_of(chart, "shm").points] == [False, True]


def test_percentiles_are_those_of_the_samples_and_end_where_ten_are_left(run: Run) -> None:
    by_cell = {(setting.size, name): measured for (setting, name), measured in distributions(run).items()}
    measured = by_cell[10, "shm"]
    chosen = [trial for trial in run.trials if trial.spec.mode == "paced" and trial.spec.backend == "shm"]
    columns = [run.samples(trial.trial_id) for trial in chosen if trial.spec.size == 10]
    values = np.concatenate([each["reader-0.latency_ns"] for each in columns]) / 1e3
    assert measured.count == values.size
    assert measured.tail[0] == (1.0, values.min())
    assert measured.tail[-1][0] == pytest.approx(10 / values.size)
    for beyond, value in measured.tail:
        assert value == pytest.approx(np.quantile(values, 1 - beyond))
    assert [index for index, _ in measured.rounds] == [1, 2, 3]


def test_the_tail_has_a_mark_at_p99_and_words_that_tell_percentiles_apart(run: Run) -> None:
    chart = groups_of(run)["percentiles"].charts[0]
    assert chart.x.reverse
    assert [text for _, text in chart.x.ticks] == ["min", "50", "90", "99"][: len(chart.x.ticks)]
    words = [point.lines[0] for point in series_of(chart, "shm").points]
    assert len(set(words)) == len(words)


def test_p99_has_a_point_and_the_interval_of_the_tables_and_an_unknown_one_has_none() -> None:
    run = load_run(ROOT / "results" / "reference")
    summary = tables(run).summary
    (group,) = (group for group in chart_groups(run, summary) if group.key == "percentiles")
    drawn = 0
    for setting, chart in zip(summary.settings, group.charts, strict=True):
        reached = min(point.x for series in chart.series for point in series.points)
        assert ("99" in [text for _, text in chart.x.ticks]) == (reached <= 0.01)
        for cell in setting.cells:
            points = [point for point in series_of(chart, cell.backend).points if point.low is not None]
            places = [point.x for point in series_of(chart, cell.backend).points]
            assert places.count(0.01) == (min(places) <= 0.01), "a line that reaches p99 has a point there"
            p99 = cell.latency_p99_ns
            drawn += len(points)
            for point in points:
                assert p99 is not None, "nothing is drawn of what is unknown"
                assert (point.x, point.low, point.high) == pytest.approx((0.01, p99.low / 1e3, p99.high / 1e3))
    assert drawn > sum(len(setting.cells) for setting in summary.settings) / 2


def test_the_names_of_a_chart_stand_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    cells = {("slow", 10): Cell(90_000.0, 9_000.0), ("quick", 10): Cell(9_000.0, 900.0), ("fair", 10): Cell(30_000.0)}
    groups = groups_of(make_run(tmp_path / "run", cells))
    by_latency = ["quick", "fair", "slow"]
    for key in ("latency", "percentiles", "stability"):
        assert [series.name for series in groups[key].charts[0].series] == by_latency, key
    assert [text for _, text in groups["latency"].charts[0].x.ticks] == by_latency
    through = [series for series in groups["throughput"].charts[0].series if series.marks == "dots"]
    assert [series.name for series in through] == ["fair", "slow", "quick"]
    assert {series.name: series.color for series in through} == {
        series.name: series.color for series in groups["latency"].charts[0].series
    }


def test_samples_of_a_failed_trial_enter_no_chart(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(10_000.0, factors=(1.0, 0, 1.0))})
    chart = groups_of(run)["stability"].charts[0]
    assert [point.x for point in series_of(chart, "shm").points] == [1.0, 3.0]


def test_round_trips_have_charts_of_their_own(tmp_path: Path) -> None:
    groups = groups_of(make_run(tmp_path / "run", {("shm", 10): Cell()}, modes=("pingpong",)))
    assert set(groups) == {"round-trip", "percentiles", "stability"}
    assert groups["percentiles"].charts[0].y.label == "Round trip"


def slow_last_reader(trial: TrialResult) -> TrialResult:
    """Return the trial with a last reader of twice the latency."""
    *others, last = trial.endpoints
    if last.latency is None:
        return trial
    return replace(trial, endpoints=(*others, replace(last, latency=replace(last.latency, p50_ns=20_000.0))))


def fan_out_run(path: Path, readers: int) -> Run:
    return make_run(path, {("shm", 10): Cell(10_000.0, change=slow_last_reader)}, readers=readers)


def test_skew_is_the_slowest_readers_latency_over_the_fastests(tmp_path: Path) -> None:
    (chart,) = groups_of(fan_out_run(tmp_path / "run", 3))["reader-skew"].charts
    assert series_of(chart, "shm").points[0].y == pytest.approx(2.0)


def test_runs_of_several_reader_counts_have_fan_out(tmp_path: Path) -> None:
    single, three, seven = (fan_out_run(tmp_path / str(count), count) for count in (1, 3, 7))
    assert not [key for key in groups_of(three) if key.startswith("fan-out")]
    groups = groups_of(three, [single, seven])
    names = [key.removeprefix("fan-out-") for key in groups if key.startswith("fan-out")]
    assert names == ["latency", "skew", "throughput"]
    (chart,) = groups["fan-out-latency"].charts
    assert [(point.x, point.y) for point in series_of(chart, "shm").points] == [(1, 20.0), (3, 20.0), (7, 20.0)]
    (chart,) = groups["fan-out-skew"].charts
    assert [point.y for point in series_of(chart, "shm").points] == [1.0, 2.0, 2.0]
    assert any("different runs" in note for note in chart.notes)


def test_the_front_holds_whom_nobody_beats_in_both() -> None:
    assert pareto_front([(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (1.0, 10.0)]) == (0, 1, 3)
    assert pareto_front([]) == ()


def test_what_cannot_be_drawn_is_left_out() -> None:
    points = tuple(Point(x, y, ()) for x, y in ((1.0, 0.0), (0.0, 1.0), (math.inf, 1.0), (1.0, math.nan), (2.0, 3.0)))
    series = finite_series([Series("a", 0, "band", points), Series("b", 1, "band", points[:2])])
    assert [(line.name, len(line.points)) for line in series] == [("a", 1)]


def test_names_are_one_line_and_not_endless() -> None:
    assert shown_name("a\nb\x1b[0m") == "a b [0m"
    assert shown_name("x" * 100).startswith("…x")
    assert shown_name("\n") == "?"


def chart_of(*points: tuple[float, float], log: bool = True) -> Chart:
    series = Series("a", 0, "band", tuple(Point(x, y, (), y / 2, y * 1000) for x, y in points))
    return Chart("t", "s", "", Axis("x", "B", log=True), Axis("y", "µs", log=log), (series,))


def test_axes_hold_every_point_and_no_absurd_interval() -> None:
    chart = chart_of((10.0, 50.0), (1000.0, 400.0))
    for span, values in ((x_range(chart), (10.0, 1000.0)), (y_range(chart), (25.0, 50.0, 400.0))):
        assert all(0.0 < span.place(value) < 1.0 for value in values)
        assert span.value(span.place(values[0])) == pytest.approx(values[0])
    assert y_range(chart).high < 400.0 * 5
    alone = y_range(chart_of((10.0, 50.0), log=False))
    assert alone.low == 0.0


def test_ticks_are_round_and_few() -> None:
    assert round_ticks(AxisRange(40.0, 1700.0, log=True)) == [50.0, 100.0, 200.0, 500.0, 1000.0]
    assert round_ticks(AxisRange(0.5, 20_000.0, log=True)) == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
    assert [tick_text(value) for value in (0.05, 1.0, 1.5, 50.0, 10_000.0)] == ["0.05", "1", "1.5", "50", "10,000"]
    ticks = spread_ticks([(float(index), str(index)) for index in range(11)])
    assert (ticks[0][0], ticks[-1][0], len(ticks)) == (0.0, 10.0, 6)


def test_labels_move_apart_and_stay_in_order() -> None:
    moved = spread_out([0.5, 0.51, 0.1, 0.99, 1.0], 0.1)
    assert moved[2] == 0.1
    assert sorted(moved) == pytest.approx([0.1, 0.455, 0.555, 0.9, 1.0])


def test_marks_of_many_backends_are_all_different() -> None:
    marks = [series_style(number) for number in range(30)]
    assert len({(style.light, style.marker, style.dash) for style in marks}) == len(marks)


def test_one_size_has_a_column_for_each_backend(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(10_000.0), ("zmq", 10): Cell(30_000.0)})
    groups = groups_of(run)
    (chart,) = groups["latency"].charts
    columns = [(line.name, line.marks, line.points[0].x) for line in chart.series]
    assert columns == [("shm", "dots", 1.0), ("zmq", "dots", 2.0)]
    assert chart.x.ticks == ((1.0, "shm"), (2.0, "zmq"))
    (chart,) = groups["throughput"].charts
    ceiling = series_of(chart, "memory copy, one core")
    assert len({point.y for point in ceiling.points}) == 1
    span = x_range(chart)
    assert all(0.0 <= span.place(point.x) <= 1.0 for line in chart.series for point in line.points)


@pytest.mark.parametrize("rate_per_s", [1e-300, 1e300])
def test_absurd_figures_break_nothing(run: Run, rate_per_s: float) -> None:
    trials = (replace(trial, throughput_per_s=trial.throughput_per_s and rate_per_s) for trial in run.trials)
    for group in groups_of(replace(run, trials=tuple(trials))).values():
        for chart in group.charts:
            y_range(chart)
            x_range(chart)


def test_a_payload_of_a_billion_bytes_or_of_none_has_its_place(tmp_path: Path) -> None:
    cells = {("shm", size): Cell() for size in (0, 10**9)}
    (chart,) = groups_of(make_run(tmp_path / "run", cells, payload="bytes", codec="raw"))["latency"].charts
    assert [point.x for point in series_of(chart, "shm").points] == [1.0, 1e9]
    assert [text for _, text in chart.x.ticks] == ["0 B", "1,000,000,000 B"]
