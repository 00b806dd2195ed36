"""Charts against the number of readers, from several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.charts.settings import ReaderSpread
from ipcbench.analysis.charts.sizes import color_numbers, gaps, is_noisy
from ipcbench.analysis.summary.cells import CellSummary, Setting, Summary
from ipcbench.analysis.summary.wording import payload_line, plural
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.util.units import format_significant


@dataclass(frozen=True, slots=True)
class FanOutRun:
    """What the charts need from one run."""

    summary: Summary
    spreads: Mapping[tuple[Setting, str], ReaderSpread]


@dataclass(frozen=True, slots=True)
class _FanOutCell:
    cell: CellSummary
    spread: ReaderSpread | None
    run_id: str


@dataclass(frozen=True, slots=True)
class _FanOutQuantity:
    key: str
    title: str
    reading: str
    y: Axis
    value: Callable[[_FanOutCell], float | None]


_QUANTITIES = (
    _FanOutQuantity(
        "fan-out-latency",
        "Fan-out: latency of the slowest reader",
        "Latency p50 of each round's slowest reader, median over the rounds. Flat is free fan-out.",
        Axis("One-way latency p50, slowest reader", "µs", log=True),
        lambda fan_out: fan_out.spread.slowest_us if fan_out.spread is not None else None,
    ),
    _FanOutQuantity(
        "fan-out-skew",
        "Fan-out: slowest against fastest reader",
        "Latency p50 of each round's slowest reader over that of its fastest; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        lambda fan_out: fan_out.spread.skew_ratio if fan_out.spread is not None else None,
    ),
    _FanOutQuantity(
        "fan-out-throughput",
        "Fan-out: throughput to each reader",
        "Messages per second that every reader got, while the writer wrote as fast as it could.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        lambda fan_out: fan_out.cell.throughput_per_s / 1e3 if fan_out.cell.throughput_per_s else None,
    ),
)


def fan_out_groups(runs: Sequence[FanOutRun]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against the number of readers; none if every setting has a single number.

    Args:
        runs: the runs; the charts say so if their machines differ. If several have a cell, the last one counts.
    """
    settings: dict[Setting, dict[tuple[int, str], _FanOutCell]] = {}
    for run in runs:
        for cell in (cell for ranking in run.summary.settings for cell in ranking.cells):
            cells = settings.setdefault(replace(cell.setting, readers=0), {})
            spread = run.spreads.get((cell.setting, cell.backend))
            cells[cell.setting.readers, cell.backend] = _FanOutCell(cell, spread, run.summary.info.run_id)
    several = {setting: cells for setting, cells in settings.items() if len({readers for readers, _ in cells}) > 1}
    alike = len({setting.without_size() for setting in several}) == 1
    groups = []
    for quantity in _QUANTITIES:
        charts = [_chart(quantity, setting, cells, runs, alike=alike) for setting, cells in several.items()]
        drawn = tuple(chart for chart in charts if chart.series)
        if drawn:
            groups.append(ChartGroup(quantity.key, quantity.title, quantity.reading, drawn))
    return tuple(groups)


def _chart(
    quantity: _FanOutQuantity,
    setting: Setting,
    cells: Mapping[tuple[int, str], _FanOutCell],
    runs: Sequence[FanOutRun],
    *,
    alike: bool,
) -> Chart:
    colors: dict[str, int] = {}
    for run in runs:
        for name in color_numbers(run.summary):
            colors.setdefault(name, len(colors))
    words = f"{payload_line(setting)}, {setting.codec}, {setting.delivery}"
    readers = sorted({count for count, _ in cells})
    backends = sorted({name for _, name in cells}, key=lambda name: colors[name])
    return Chart(
        title=quantity.title,
        setting=words,
        choice=payload_line(setting) if alike else words,
        x=Axis("Readers", "number", log=True, ticks=spread_ticks([(float(count), str(count)) for count in readers])),
        y=quantity.y,
        series=finite_series([_series(quantity, cells, readers, name, colors[name]) for name in backends]),
        notes=tuple(_notes(cells, runs)),
    )


def _series(
    quantity: _FanOutQuantity,
    cells: Mapping[tuple[int, str], _FanOutCell],
    readers: Sequence[int],
    backend: str,
    color: int,
) -> Series:
    points = []
    for count in readers:
        cell = cells.get((count, backend))
        value = quantity.value(cell) if cell is not None else None
        if cell is not None and value is not None:
            text = f"{format_significant(value)} {quantity.y.unit}"
            lines = (plural(count, "reader", "readers"), text, f"run {cell.run_id}")
            points.append(Point(float(count), value, lines, noisy=is_noisy(cell.cell)))
    return Series(shown_name(backend), color, "band", tuple(points))


def _notes(cells: Mapping[tuple[int, str], _FanOutCell], runs: Sequence[FanOutRun]) -> Iterator[str]:
    machines = [run.summary.info.machine for run in runs]
    if len({(str(machine.get("cpu_model")), machine.get("usable_cores")) for machine in machines}) > 1:
        yield "The runs are from different machines: differences may be due to the machines."
    elif len(runs) > 1:
        yield "From different runs: drift of the machine between them is part of the differences."
    over = {
        readers
        for (readers, _), cell in cells.items()
        if any(note.startswith("oversubscribed") for note in cell.cell.notes)
    }
    if over:
        counts = ", ".join(plural(readers, "reader", "readers") for readers in sorted(over))
        yield f"Oversubscribed, with more processes than cores: {counts}."
    for (count, _), cell in cells.items():
        yield from gaps((cell.cell,), plural(count, "reader", "readers"))
