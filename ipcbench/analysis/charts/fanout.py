"""Charts against the number of readers, from several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.charts.sizes import color_numbers, gaps, is_noisy
from ipcbench.analysis.summary.cells import CellSummary, Setting, Summary, cells_of
from ipcbench.analysis.summary.figures import reader_skew, slowest_reader_ns
from ipcbench.analysis.summary.wording import payload_line, plural
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.util.units import format_significant

_Cells = Mapping[tuple[int, str], tuple[CellSummary, str]]
"""(readers, backend) → cell and the id of its run."""


@dataclass(frozen=True, slots=True)
class _FanOutQuantity:
    key: str
    title: str
    reading: str
    y: Axis
    value: Callable[[CellSummary], float | None]


def _slowest_us(cell: CellSummary) -> float | None:
    slowest_ns = slowest_reader_ns(cell.trials)
    return None if slowest_ns is None else slowest_ns / 1e3


def _skew(cell: CellSummary) -> float | None:
    skew = reader_skew(cell.trials)
    return None if skew is None else skew.median


_QUANTITIES = (
    _FanOutQuantity(
        "fan-out-latency",
        "Fan-out: latency of the slowest reader",
        "Latency p50 of each round's slowest reader, median over the rounds. Flat is free fan-out.",
        Axis("One-way latency p50, slowest reader", "µs", log=True),
        _slowest_us,
    ),
    _FanOutQuantity(
        "fan-out-skew",
        "Fan-out: slowest against fastest reader",
        "Latency p50 of each round's slowest reader over that of its fastest; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        _skew,
    ),
    _FanOutQuantity(
        "fan-out-throughput",
        "Fan-out: throughput to each reader",
        "Messages per second that every reader got, while the writer wrote as fast as it could.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        lambda cell: cell.throughput_per_s / 1e3 if cell.throughput_per_s else None,
    ),
)


def fan_out_groups(summaries: Sequence[Summary]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against the number of readers; none if every setting has a single number.

    Args:
        summaries: of the runs; the charts say so if their machines differ. If several have a cell, the last one counts.
    """
    settings: dict[Setting, dict[tuple[int, str], tuple[CellSummary, str]]] = {}
    for summary in summaries:
        for cell in cells_of(summary.settings):
            cells = settings.setdefault(replace(cell.setting, readers=0), {})
            cells[cell.setting.readers, cell.backend] = cell, summary.info.run_id
    several = {setting: cells for setting, cells in settings.items() if len({readers for readers, _ in cells}) > 1}
    alike = len({setting.without_size() for setting in several}) == 1
    groups = []
    for quantity in _QUANTITIES:
        charts = [_chart(quantity, setting, cells, summaries, alike=alike) for setting, cells in several.items()]
        drawn = tuple(chart for chart in charts if chart.series)
        if drawn:
            groups.append(ChartGroup(quantity.key, quantity.title, quantity.reading, drawn))
    return tuple(groups)


def _chart(
    quantity: _FanOutQuantity, setting: Setting, cells: _Cells, summaries: Sequence[Summary], *, alike: bool
) -> Chart:
    names = dict.fromkeys(name for summary in summaries for name in color_numbers(summary))
    colors = {name: number for number, name in enumerate(names)}
    words = f"{payload_line(setting)}, {setting.codec}, {setting.delivery}"
    readers = sorted({count for count, _ in cells})
    backends = dict.fromkeys(name for most in reversed(readers) for count, name in cells if count == most)  # best first
    return Chart(
        title=quantity.title,
        setting=words,
        choice=payload_line(setting) if alike else words,
        x=Axis("Readers", "number", log=True, ticks=spread_ticks([(float(count), str(count)) for count in readers])),
        y=quantity.y,
        series=finite_series([_series(quantity, cells, name, colors[name]) for name in backends]),
        notes=tuple(_notes(cells, summaries)),
    )


def _series(quantity: _FanOutQuantity, cells: _Cells, backend: str, color: int) -> Series:
    points = []
    for (count, name), (cell, run_id) in sorted(cells.items(), key=lambda item: item[0]):
        value = quantity.value(cell) if name == backend else None
        if value is not None:
            text = f"{format_significant(value)} {quantity.y.unit}"
            lines = (plural(count, "reader", "readers"), text, f"run {run_id}")
            points.append(Point(float(count), value, lines, noisy=is_noisy(cell)))
    return Series(shown_name(backend), color, "band", tuple(points))


def _notes(cells: _Cells, summaries: Sequence[Summary]) -> Iterator[str]:
    machines = [summary.info.machine for summary in summaries]
    if len({(str(machine.get("cpu_model")), machine.get("usable_cores")) for machine in machines}) > 1:
        yield "The runs are from different machines: differences may be due to the machines."
    elif len(summaries) > 1:
        yield "From different runs: drift of the machine between them is part of the differences."
    over = {
        readers
        for (readers, _), (cell, _) in cells.items()
        if any(note.startswith("oversubscribed") for note in cell.notes)
    }
    if over:
        counts = ", ".join(plural(readers, "reader", "readers") for readers in sorted(over))
        yield f"Oversubscribed, with more processes than cores: {counts}."
    for (count, _), (cell, _) in cells.items():
        yield from gaps((cell,), plural(count, "reader", "readers"))
