"""Charts against the number of readers, from the runs that were named together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from ipcbench.analysis.charts.settings import ReaderSpread
from ipcbench.analysis.charts.sizes import color_numbers, family_of, gaps, is_noisy, payload_line
from ipcbench.analysis.summary.cells import CellSummary, Setting, Summary
from ipcbench.analysis.summary.wording import plural, size_words
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.util.units import format_significant


@dataclass(frozen=True, slots=True)
class FanOutRun:
    """What the charts need of one run."""

    summary: Summary
    spreads: Mapping[tuple[Setting, str], ReaderSpread]


@dataclass(frozen=True, slots=True)
class _Place:
    cell: CellSummary
    spread: ReaderSpread | None
    run_id: str


@dataclass(frozen=True, slots=True)
class _Quantity:
    key: str
    title: str
    reading: str
    y: Axis
    value: Callable[[_Place], float | None]


_QUANTITIES = (
    _Quantity(
        "fan-out-latency",
        "Fan-out: latency of the slowest reader",
        "Latency p50 of each round's slowest reader, median over the rounds. Flat is free fan-out.",
        Axis("One-way latency p50, slowest reader", "µs", log=True),
        lambda place: place.spread.slowest_us if place.spread is not None else None,
    ),
    _Quantity(
        "fan-out-skew",
        "Fan-out: slowest against fastest reader",
        "Latency p50 of each round's slowest reader over that of its fastest; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        lambda place: place.spread.skew_ratio if place.spread is not None else None,
    ),
    _Quantity(
        "fan-out-throughput",
        "Fan-out: throughput to each reader",
        "Messages per second that every reader got, while the writer wrote as fast as it could.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        lambda place: place.cell.throughput_per_s / 1e3 if place.cell.throughput_per_s else None,
    ),
)


def fan_out_groups(runs: Sequence[FanOutRun]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against the number of readers; none if no setting was measured with two numbers.

    Args:
        runs: of one machine, or the charts say that they are not; of a cell that several of them have, the last counts.
    """
    settings: dict[tuple[object, ...], dict[tuple[int, str], _Place]] = {}
    for run in runs:
        for one in run.summary.settings:
            places = settings.setdefault(astuple(replace(one.setting, readers=0)), {})
            for cell in one.cells:
                spread = run.spreads.get((one.setting, cell.backend))
                places[one.setting.readers, cell.backend] = _Place(cell, spread, run.summary.info.run_id)
    several = [places for places in settings.values() if len({readers for readers, _ in places}) > 1]
    families = {family_of(replace(next(iter(one.values())).cell.setting, readers=0)) for one in several}
    groups = []
    for quantity in _QUANTITIES:
        charts = [_chart(quantity, places, runs, alike=len(families) == 1) for places in several]
        drawn = tuple(one for one in charts if one.series)
        if drawn:
            groups.append(ChartGroup(quantity.key, quantity.title, quantity.reading, drawn))
    return tuple(groups)


def _chart(
    quantity: _Quantity, places: Mapping[tuple[int, str], _Place], runs: Sequence[FanOutRun], *, alike: bool
) -> Chart:
    colors: dict[str, int] = {}
    for run in runs:
        for name in color_numbers(run.summary):
            colors.setdefault(name, len(colors))
    setting = next(iter(places.values())).cell.setting
    words = (
        f"{setting.payload} of {size_words(setting)} = {setting.payload_bytes:,} B, {setting.codec}, {setting.delivery}"
    )
    readers = sorted({count for count, _ in places})
    backends = sorted({name for _, name in places}, key=lambda name: colors[name])
    return Chart(
        title=quantity.title,
        setting=words,
        choice=payload_line(setting) if alike else words,
        x=Axis("Readers", "number", log=True, ticks=spread_ticks([(float(one), str(one)) for one in readers])),
        y=quantity.y,
        series=finite_series([_series(quantity, places, readers, name, colors[name]) for name in backends]),
        notes=tuple(_notes(places, runs)),
    )


def _series(
    quantity: _Quantity, places: Mapping[tuple[int, str], _Place], readers: Sequence[int], backend: str, color: int
) -> Series:
    points = []
    for count in readers:
        place = places.get((count, backend))
        value = quantity.value(place) if place is not None else None
        if place is not None and value is not None:
            said = f"{format_significant(value)} {quantity.y.unit}"
            lines = (plural(count, "reader", "readers"), said, f"run {place.run_id}")
            points.append(Point(float(count), value, lines, noisy=is_noisy(place.cell)))
    return Series(shown_name(backend), color, "band", tuple(points))


def _notes(places: Mapping[tuple[int, str], _Place], runs: Sequence[FanOutRun]) -> Iterator[str]:
    machines = {
        (str(one.summary.info.machine.get("cpu_model")), one.summary.info.machine.get("usable_cores")) for one in runs
    }
    if len(machines) > 1:
        yield "These runs are of different machines: a difference may be theirs."
    elif len(runs) > 1:
        yield "Of different runs: a drift of the machine between them is in the differences."
    over: dict[int, list[str]] = {}
    for (count, backend), place in places.items():
        if any(note.startswith("oversubscribed") for note in place.cell.notes):
            over.setdefault(count, []).append(backend)
    if over:
        yield f"Oversubscribed, with more processes than cores: {', '.join(f'{one} readers' for one in sorted(over))}."
    for (count, _), place in places.items():
        yield from gaps((place.cell,), plural(count, "reader", "readers"))
