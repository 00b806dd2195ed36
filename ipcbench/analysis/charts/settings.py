"""Charts of single settings: latencies by percentile, CPU time against latency, medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from ipcbench.analysis.charts.sizes import (
    color_numbers,
    common_notes,
    family_of,
    gaps,
    is_noisy,
    payload_line,
    setting_line,
)
from ipcbench.analysis.summary.cells import CellSummary, Setting, SettingSummary, Summary, setting_of
from ipcbench.analysis.summary.notes import is_sound
from ipcbench.analysis.summary.wording import setting_title
from ipcbench.errors import StoreError
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.results.store import Run
from ipcbench.stats.decisions import MIN_TAIL_COUNT
from ipcbench.util.units import format_significant

_Kind = Literal["latency", "round trip"]

_TAIL_TICKS = (
    (1.0, "min"),
    (0.5, "50"),
    (0.1, "90"),
    (0.01, "99"),
    (0.001, "99.9"),
    (0.0001, "99.99"),
    (1e-5, "99.999"),
)
_POINTS_PER_DECADE = 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """The latencies of one backend at one setting, from all readers and rounds."""

    kind: _Kind
    count: int
    tail: tuple[tuple[float, float], ...]
    """(1 − p, p-quantile in µs), from the least latency on, as far as ten samples lie beyond."""
    rounds: tuple[tuple[int, float], ...]
    """(round from 1, median in µs)."""


def distributions(run: Run) -> dict[tuple[Setting, str], Distribution]:
    """Return the distribution of each cell that has samples; of one-way latencies, else of round trips.

    Samples of trials that failed are left out, and so are samples that cannot be read: the tables say how many.
    """
    cells: dict[tuple[Setting, str], dict[int, list[np.ndarray]]] = {}
    kinds: dict[tuple[Setting, str], _Kind] = {}
    modes: Mapping[str, _Kind] = {"paced": "latency", "pingpong": "round trip"}
    for mode, kind in modes.items():
        for trial in run.trials:
            key = (setting_of(trial), trial.spec.backend)
            if trial.spec.mode != mode or not is_sound(trial) or kinds.setdefault(key, kind) != kind:
                continue
            try:
                columns = run.samples(trial.trial_id, (".latency_ns" if kind == "latency" else ".round_trip_ns",))
            except StoreError:
                continue
            found = [values for values in columns.values() if values.size]
            if found:
                cells.setdefault(key, {}).setdefault(trial.spec.round_index, []).extend(found)
    return {key: _distribution(kinds[key], rounds) for key, rounds in cells.items()}


def _distribution(kind: _Kind, rounds: Mapping[int, Sequence[np.ndarray]]) -> Distribution:
    joined = {index: np.concatenate(parts).astype(np.float64) / 1e3 for index, parts in sorted(rounds.items())}
    values = np.concatenate(list(joined.values()))
    least = max(MIN_TAIL_COUNT / values.size, 1e-7)
    decades = max(0.0, -np.log10(least))
    tail = np.geomspace(1.0, min(1.0, least), 2 + int(decades * _POINTS_PER_DECADE))
    beyond = np.unique(np.concatenate([tail, np.linspace(1.0, 0.5, 11)]))[::-1]
    quantiles = np.quantile(values, 1.0 - beyond)
    return Distribution(
        kind,
        int(values.size),
        tuple((float(one), float(value)) for one, value in zip(beyond, quantiles, strict=True)),
        tuple((index + 1, float(np.median(one))) for index, one in joined.items()),
    )


@dataclass(frozen=True, slots=True)
class ReaderSpread:
    """How the readers of one cell differ, medians over its rounds."""

    slowest_us: float
    """Latency p50 of the slowest reader."""
    skew_ratio: float
    """That over the latency p50 of the fastest; 1 with one reader."""


def reader_spreads(run: Run) -> dict[tuple[Setting, str], ReaderSpread]:
    """Return (setting, backend) → how its readers differ, of the cells with one-way latencies."""
    found: dict[tuple[Setting, str], list[tuple[float, float]]] = {}
    for trial in run.trials:
        medians = [one.latency.p50_ns for one in trial.readers if one.latency is not None]
        if trial.spec.mode == "paced" and is_sound(trial) and medians and min(medians) > 0:
            found.setdefault((setting_of(trial), trial.spec.backend), []).append((max(medians), min(medians)))
    return {
        key: ReaderSpread(median(slow / 1e3 for slow, _ in pairs), median(slow / fast for slow, fast in pairs))
        for key, pairs in found.items()
    }


def cell_groups(summary: Summary, spread: Mapping[tuple[Setting, str], Distribution]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts of single settings, each with one chart per setting that was measured."""
    colors = color_numbers(summary)
    builders: tuple[tuple[str, str, str, Callable[[SettingSummary], Chart | None]], ...] = (
        (
            "percentiles",
            "Latency percentiles",
            "To the right is the tail: how late the slowest tenth, hundredth, thousandth of all messages are. A line "
            "ends where fewer than ten samples lie beyond it.",
            lambda one: _percentiles(one, spread, colors),
        ),
        (
            "cpu",
            "CPU time against latency",
            "CPU time of the writer and all readers per message, while saturated, against latency at a low rate. Lower "
            "left is better; ringed and on the dashed front: nobody beats it in both (by point estimates).",
            lambda one: _cpu(one, colors),
        ),
        (
            "stability",
            "Stability over the rounds",
            "The median of each round, in fresh processes. Flat is repeatable; what moves together is the machine.",
            lambda one: _stability(one, spread, colors),
        ),
    )
    groups = []
    alike = len({family_of(one.setting) for one in summary.settings}) == 1
    for key, title, reading, build in builders:
        built = [(one.setting, chart) for one in summary.settings if (chart := build(one)) is not None]
        charts = tuple(replace(chart, choice=payload_line(setting)) if alike else chart for setting, chart in built)
        if charts:
            groups.append(ChartGroup(key, title, reading, charts))
    return tuple(groups)


def _assemble(one: SettingSummary, title: str, x: Axis, y: Axis, series: Sequence[Series]) -> Chart | None:
    drawn = finite_series(series)
    if not drawn:
        return None
    notes = (*dict.fromkeys(common_notes(one.cells)), *gaps(one.cells))
    words = setting_title(one.setting)
    return Chart(title, words, words, x, y, drawn, notes)


def _kind_words(found: Sequence[Distribution]) -> str:
    return "One-way latency" if all(one.kind == "latency" for one in found) else "Round trip"


def _ordered(one: SettingSummary, colors: Mapping[str, int]) -> list[CellSummary]:
    return sorted((cell for cell in one.cells if cell.status == "ok"), key=lambda cell: colors[cell.backend])


def _percentiles(
    one: SettingSummary, spread: Mapping[tuple[Setting, str], Distribution], colors: Mapping[str, int]
) -> Chart | None:
    series, used = [], []
    for cell in _ordered(one, colors):
        found = spread.get((one.setting, cell.backend))
        if found is None:
            continue
        used.append(found)
        points = tuple(
            Point(x, y, (_percentile_words(x), f"{format_significant(y)} µs", f"{found.count:,} samples"))
            for x, y in found.tail
        )
        series.append(Series(shown_name(cell.backend), colors[cell.backend], "line", points))
    least = min((found.tail[-1][0] for found in used), default=1.0)
    ticks = tuple(tick for tick in _TAIL_TICKS if tick[0] >= least * 0.999)
    x = Axis("Percentile p on an axis of 1 − p", "%", log=True, ticks=ticks, reverse=True)
    return _assemble(one, "Latency percentiles", x, Axis(_kind_words(used), "µs", log=True), series)


def _percentile_words(beyond: float) -> str:
    return "minimum" if beyond >= 1.0 else f"p{format_significant(100 * (1 - beyond), _digits(beyond))}"


def _digits(beyond: float) -> int:
    """Return how many digits of a percentile tell it from its neighbours: 99.94 needs more than 50."""
    return 3 + max(0, int(-np.log10(beyond)))


def _stability(
    one: SettingSummary, spread: Mapping[tuple[Setting, str], Distribution], colors: Mapping[str, int]
) -> Chart | None:
    series, used = [], []
    for cell in _ordered(one, colors):
        found = spread.get((one.setting, cell.backend))
        if found is None:
            continue
        used.append(found)
        points = tuple(
            Point(float(index), value, (f"round {index}", f"p50 {format_significant(value)} µs"))
            for index, value in found.rounds
        )
        series.append(Series(shown_name(cell.backend), colors[cell.backend], "band", points))
    last = max((index for found in used for index, _ in found.rounds), default=1)
    ticks = spread_ticks([(float(index), str(index)) for index in range(1, last + 1)])
    x = Axis("Round", "number", log=False, ticks=ticks)
    return _assemble(one, "Stability over the rounds", x, Axis(f"{_kind_words(used)}, p50", "µs", log=True), series)


@dataclass(frozen=True, slots=True)
class _Cost:
    """A backend's place in the plane of latency and CPU time."""

    cell: CellSummary
    latency_us: float
    cpu_us: float


def _cpu(one: SettingSummary, colors: Mapping[str, int]) -> Chart | None:
    costs = list(_costs(one, colors))
    front = pareto_front([(cost.latency_us, cost.cpu_us) for cost in costs])
    series = []
    for index, cost in enumerate(costs):
        p50 = cost.cell.latency_p50_ns or cost.cell.round_trip_p50_ns
        if p50 is None:
            continue
        lines = (
            setting_line(one.setting),
            f"p50 {format_significant(cost.latency_us)} µs [{format_significant(p50.low / 1e3)}–"
            f"{format_significant(p50.high / 1e3)}]",
            f"CPU {format_significant(cost.cpu_us)} µs per message, all processes",
            *(("on the Pareto front",) if index in front else ()),
        )
        point = Point(
            cost.latency_us,
            cost.cpu_us,
            lines,
            x_low=p50.low / 1e3,
            x_high=p50.high / 1e3,
            noisy=is_noisy(cost.cell),
            ring=index in front,
        )
        series.append(Series(shown_name(cost.cell.backend), colors[cost.cell.backend], "points", (point,)))
    edge = tuple(Point(cost.latency_us, cost.cpu_us, _edge_words(cost)) for cost in (costs[index] for index in front))
    metric = "Round trip, p50" if one.ranked_by == "round trip" else "One-way latency, p50"
    return _assemble(
        one,
        "CPU time against latency",
        Axis(metric, "µs", log=True),
        Axis("CPU time per message, all processes", "µs", log=True),
        [*series, Series("Pareto front", -1, "reference", edge)],
    )


def _edge_words(cost: _Cost) -> tuple[str, ...]:
    latency, cpu = format_significant(cost.latency_us), format_significant(cost.cpu_us)
    return shown_name(cost.cell.backend), f"p50 {latency} µs", f"CPU {cpu} µs per message"


def _costs(one: SettingSummary, colors: Mapping[str, int]) -> Iterator[_Cost]:
    for cell in _ordered(one, colors):
        p50 = cell.latency_p50_ns or cell.round_trip_p50_ns
        if p50 is not None and cell.writer_cpu_ns and cell.reader_cpu_ns:
            cpu_ns = cell.writer_cpu_ns + one.setting.readers * cell.reader_cpu_ns
            yield _Cost(cell, p50.estimate / 1e3, cpu_ns / 1e3)


def pareto_front(costs: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Return the numbers of those that nobody beats in one cost without losing in the other, by the first cost."""
    front: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: costs[index]):
        if not front or costs[index][1] < costs[front[-1]][1]:
            front.append(index)
    return tuple(front)
