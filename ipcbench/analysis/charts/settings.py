"""Charts of single settings: latencies by percentile, CPU time against latency, medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ipcbench.analysis.charts.sizes import color_numbers, common_notes, gaps, is_noisy, setting_line, value_words
from ipcbench.analysis.summary.cells import CellSummary, Setting, SettingSummary, Summary
from ipcbench.analysis.summary.figures import counted_in_turns, scaled
from ipcbench.analysis.summary.notes import is_sound
from ipcbench.analysis.summary.wording import payload_line, setting_title
from ipcbench.errors import StoreError
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.results.store import Run
from ipcbench.stats.estimates import MIN_TAIL_COUNT, Interval
from ipcbench.util.units import format_significant

_Kind = Literal["latency", "round trip"]

_P99 = 0.01
_TAIL_TICKS = ((1.0, "min"), (0.5, "50"), (0.1, "90"), (_P99, "99"), (1e-3, "99.9"), (1e-4, "99.99"), (1e-5, "99.999"))
_POINTS_PER_DECADE = 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """The latencies of one backend at one setting, over all readers and rounds."""

    kind: _Kind
    count: int
    tail: tuple[tuple[float, float], ...]
    """(1 − p, p-quantile in µs), from the smallest latency up to where ten samples lie beyond; of the windows in one
    piece, if there are any."""
    rounds: tuple[tuple[int, float], ...]
    """(round from 1, median in µs)."""


def distributions(run: Run) -> dict[tuple[Setting, str], Distribution]:
    """Return the distribution of each cell that has samples: of one-way latencies, else of round trips.

    Samples of failed trials and unreadable samples are left out; the tables count them.
    """
    cells: dict[tuple[Setting, str], dict[int, list[np.ndarray]]] = {}
    tails: dict[tuple[Setting, str], list[np.ndarray]] = {}
    kinds: dict[tuple[Setting, str], _Kind] = {}
    modes: Mapping[str, _Kind] = {"paced": "latency", "pingpong": "round trip"}
    for mode, kind in modes.items():
        for trial in run.trials:
            key = (Setting.of(trial), trial.spec.backend)
            if trial.spec.mode != mode or not is_sound(trial) or kinds.setdefault(key, kind) != kind:
                continue
            try:
                columns = run.samples(trial.trial_id, (".latency_ns" if kind == "latency" else ".round_trip_ns",))
            except StoreError:
                continue
            parts = [values[counted_in_turns(trial, values.size)] for values in columns.values() if values.size]
            if parts and trial.spec.tail:
                tails.setdefault(key, []).extend(parts)
            elif parts:
                cells.setdefault(key, {}).setdefault(trial.spec.round_index, []).extend(parts)
    return {key: _distribution(kinds[key], rounds, tails.get(key, ())) for key, rounds in cells.items()}


def _distribution(kind: _Kind, rounds: Mapping[int, Sequence[np.ndarray]], tails: Sequence[np.ndarray]) -> Distribution:
    joined = {index: np.concatenate(parts).astype(np.float64) / 1e3 for index, parts in sorted(rounds.items())}
    values = np.concatenate(tails).astype(np.float64) / 1e3 if tails else np.concatenate(list(joined.values()))
    smallest = max(MIN_TAIL_COUNT / values.size, 1e-7)
    decades = max(0.0, -np.log10(smallest))
    tail = np.geomspace(1.0, min(1.0, smallest), 2 + int(decades * _POINTS_PER_DECADE))
    if smallest < _P99:
        tail = np.append(tail[~np.isclose(tail, _P99)], _P99)
    beyond = np.unique(np.concatenate([tail, np.linspace(1.0, 0.5, 11)]))[::-1]
    quantiles = np.quantile(values, 1.0 - beyond)
    return Distribution(
        kind,
        int(values.size),
        tuple((float(share), float(value)) for share, value in zip(beyond, quantiles, strict=True)),
        tuple((index + 1, float(np.median(latencies))) for index, latencies in joined.items()),
    )


_Distributions = Mapping[tuple[Setting, str], Distribution]


def setting_groups(summary: Summary, measured: _Distributions) -> tuple[ChartGroup, ...]:
    """Return the groups of charts of single settings, each with one chart per measured setting."""
    colors = color_numbers(summary)
    builders: tuple[tuple[str, str, str, Callable[[SettingSummary], Chart | None]], ...] = (
        (
            "percentiles",
            "Latency percentiles",
            "To the right is the tail: how late the slowest tenth, hundredth, thousandth of all messages are. A line "
            "ends where fewer than ten samples lie beyond it. The bar at p99 is its 95 % interval.",
            lambda ranking: _percentiles(ranking, measured, colors),
        ),
        (
            "cpu",
            "CPU time against latency",
            "CPU time of the writer and all readers per message, while saturated, against latency at a low rate. Lower "
            "left is better. Ringed points form the dashed front: no backend beats them in both (by point estimates).",
            lambda ranking: _cpu(ranking, colors),
        ),
        (
            "stability",
            "Stability over the rounds",
            "The median of each round, in fresh processes. Flat is repeatable; lines that move together show the "
            "machine.",
            lambda ranking: _stability(ranking, measured, colors),
        ),
    )
    groups = []
    alike = len({ranking.setting.without_size() for ranking in summary.settings}) == 1
    for key, title, reading, build in builders:
        built = [(ranking.setting, chart) for ranking in summary.settings if (chart := build(ranking)) is not None]
        charts = tuple(replace(chart, choice=payload_line(setting)) if alike else chart for setting, chart in built)
        if charts:
            groups.append(ChartGroup(key, title, reading, charts))
    return tuple(groups)


def _assemble(ranking: SettingSummary, title: str, x: Axis, y: Axis, series: Sequence[Series]) -> Chart | None:
    drawn = finite_series(series)
    if not drawn:
        return None
    notes = (*dict.fromkeys(common_notes(ranking.cells)), *gaps(ranking.cells))
    words = setting_title(ranking.setting)
    return Chart(title, words, words, x, y, drawn, notes)


def _kind_words(drawn: Iterable[Distribution]) -> str:
    return "One-way latency" if all(distribution.kind == "latency" for distribution in drawn) else "Round trip"


def _measured(ranking: SettingSummary) -> list[CellSummary]:
    """Return the cells with figures, the best first."""
    return [cell for cell in ranking.cells if cell.status == "ok"]


def _distributions_of(ranking: SettingSummary, measured: _Distributions) -> dict[str, Distribution]:
    """Return backend → distribution of the cells that have one, the best first."""
    cells = [(cell.backend, measured.get((ranking.setting, cell.backend))) for cell in _measured(ranking)]
    return {backend: distribution for backend, distribution in cells if distribution is not None}


def _percentiles(ranking: SettingSummary, measured: _Distributions, colors: Mapping[str, int]) -> Chart | None:
    drawn = _distributions_of(ranking, measured)
    cells = {cell.backend: cell for cell in ranking.cells}
    series = []
    for backend, distribution in drawn.items():
        samples = f"{distribution.count:,} samples"
        points = tuple(
            _tail_point(x, y, samples, _p99(cells[backend], distribution.kind)) for x, y in distribution.tail
        )
        series.append(Series(shown_name(backend), colors[backend], "line", points))
    smallest = min((distribution.tail[-1][0] for distribution in drawn.values()), default=1.0)
    ticks = tuple(tick for tick in _TAIL_TICKS if tick[0] >= smallest * 0.999)
    x = Axis("Percentile p on an axis of 1 − p", "%", log=True, ticks=ticks, reverse=True)
    y = Axis(_kind_words(drawn.values()), "µs", log=True)
    return _assemble(ranking, "Latency percentiles", x, y, series)


def _p99(cell: CellSummary, kind: _Kind) -> Interval | None:
    """Return the p99 of a cell, µs; None if that is unknown."""
    p99 = cell.latency_p99_ns if kind == "latency" else cell.round_trip_p99_ns
    return None if p99 is None else scaled(p99, 1e-3)


def _tail_point(beyond: float, value: float, samples: str, p99: Interval | None) -> Point:
    """Return a point of the curve, the one at p99 with its interval."""
    lines = (_percentile_words(beyond), f"{format_significant(value)} µs", samples)
    if beyond != _P99 or p99 is None or p99.low == p99.high:
        return Point(beyond, value, lines)
    ends = f"95 % interval: {format_significant(p99.low)} to {format_significant(p99.high)} µs"
    inside = p99.low <= value <= p99.high  # the interval is of the rounds' p99, the curve of all samples together
    return Point(beyond, value, (*lines, ends), *((p99.low, p99.high) if inside else ()))


def _percentile_words(beyond: float) -> str:
    if beyond >= 1.0:
        return "minimum"
    digits = 3 + max(0, int(-np.log10(beyond)))  # 99.94 needs more digits than 50 to be told from its neighbours
    return f"p{format_significant(100 * (1 - beyond), digits)}"


def _stability(ranking: SettingSummary, measured: _Distributions, colors: Mapping[str, int]) -> Chart | None:
    drawn = _distributions_of(ranking, measured)
    series = []
    for backend, distribution in drawn.items():
        points = tuple(
            Point(float(index), value, (f"round {index}", f"p50 {format_significant(value)} µs"))
            for index, value in distribution.rounds
        )
        series.append(Series(shown_name(backend), colors[backend], "band", points))
    last = max((index for distribution in drawn.values() for index, _ in distribution.rounds), default=1)
    ticks = spread_ticks([(float(index), str(index)) for index in range(1, last + 1)])
    y = Axis(f"{_kind_words(drawn.values())}, p50", "µs", log=True)
    return _assemble(ranking, "Stability over the rounds", Axis("Round", "number", log=False, ticks=ticks), y, series)


@dataclass(frozen=True, slots=True)
class _Cost:
    """A backend's latency and CPU time."""

    cell: CellSummary
    latency_us: Interval
    cpu_us: float


def _cpu(ranking: SettingSummary, colors: Mapping[str, int]) -> Chart | None:
    costs = list(_costs(ranking))
    front = pareto_front([(cost.latency_us.estimate, cost.cpu_us) for cost in costs])
    series = []
    for index, cost in enumerate(costs):
        p50 = cost.cell.drawn(cost.latency_us)
        lines = (
            setting_line(ranking.setting),
            f"p50 {value_words(p50, 'µs')}",
            f"CPU {format_significant(cost.cpu_us)} µs per message, all processes",
            *(("on the Pareto front",) if index in front else ()),
        )
        point = Point(
            p50.estimate,
            cost.cpu_us,
            lines,
            x_low=p50.low,
            x_high=p50.high,
            noisy=is_noisy(cost.cell),
            ring=index in front,
        )
        series.append(Series(shown_name(cost.cell.backend), colors[cost.cell.backend], "points", (point,)))
    edge = tuple(
        Point(cost.latency_us.estimate, cost.cpu_us, _edge_words(cost)) for cost in (costs[index] for index in front)
    )
    metric = "Round trip, p50" if ranking.ranked_by == "round trip" else "One-way latency, p50"
    return _assemble(
        ranking,
        "CPU time against latency",
        Axis(metric, "µs", log=True),
        Axis("CPU time per message, all processes", "µs", log=True),
        [*series, Series("Pareto front", -1, "reference", edge)],
    )


def _edge_words(cost: _Cost) -> tuple[str, ...]:
    latency, cpu = format_significant(cost.latency_us.estimate), format_significant(cost.cpu_us)
    return shown_name(cost.cell.backend), f"p50 {latency} µs", f"CPU {cpu} µs per message"


def _costs(ranking: SettingSummary) -> Iterator[_Cost]:
    for cell in _measured(ranking):
        p50 = cell.latency_p50_ns or cell.round_trip_p50_ns
        if p50 is not None and cell.writer_cpu_ns and cell.reader_cpu_ns:
            cpu_ns = cell.writer_cpu_ns + ranking.setting.readers * cell.reader_cpu_ns
            yield _Cost(cell, scaled(p50, 1e-3), cpu_ns / 1e3)


def pareto_front(costs: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Return the indices of the costs that no other beats in both, by the first cost."""
    front: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: costs[index]):
        if not front or costs[index][1] < costs[front[-1]][1]:
            front.append(index)
    return tuple(front)
