"""Backend × payload size: how latency and throughput go with the size, who leads where, and where that changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary, Summary
from ipcbench.analysis.summary.crossover import lead_changes, leaders
from ipcbench.analysis.summary.curves import families
from ipcbench.analysis.summary.wording import family_words, joined, size_words
from ipcbench.render.table import NOT_MEASURED, Column, Table, number

BEST_MARK = "*"
SHARED_MARK = "="
_WHAT: Mapping[Metric, str] = {
    "latency": "One-way latency p50, µs",
    "round trip": "Round trip p50, µs",
    "throughput": "Throughput, k messages/s to each reader",
}
_MAX_SIZES = 6
"""Of one matrix: more do not fit beside the names in 100 columns."""


def matrices(summary: Summary) -> tuple[Table, ...]:
    """Return a matrix of latencies and one of throughputs for each kind of payload measured at several sizes."""
    return tuple(_all(summary))


def _all(summary: Summary) -> Iterator[Table]:
    for settings in families(summary):
        if len(settings) < 2:
            continue
        for metric in _WHAT:
            noise = summary.noise_ratios.get(metric, 0.0)
            if any(leaders(one, metric) for one in settings):
                for start in range(0, len(settings), _MAX_SIZES):
                    yield _matrix(settings, settings[start : start + _MAX_SIZES], metric, noise)


def _matrix(
    family: Sequence[SettingSummary], settings: Sequence[SettingSummary], metric: Metric, noise_ratio: float
) -> Table:
    backends = list(dict.fromkeys(cell.backend for one in family for cell in one.cells))
    first = settings[0].setting
    changes = tuple(one.sentence() for one in lead_changes(family, metric, noise_ratio))
    remarks = changes or (_no_crossover(family, metric),)
    marks = f"{BEST_MARK} best; {SHARED_MARK} shares the first rank: no clear difference from the best"
    return Table(
        title=f"{_WHAT[metric]}: {first.payload}, {family_words(first)}",
        remarks=(*remarks, marks),
        columns=(
            Column(("", "backend"), "left"),
            *(Column((size_words(one.setting), f"{one.setting.payload_bytes:,} B")) for one in settings),
        ),
        rows=tuple((name, *(_entry(one, name, metric) for one in settings)) for name in backends),
        best_rows=frozenset(),
        footnotes=(),
    )


def _no_crossover(family: Sequence[SettingSummary], metric: Metric) -> str:
    always = frozenset.intersection(*(first for one in family if (first := leaders(one, metric))))
    if always:
        verb = "has" if len(always) == 1 else "have"
        return f"No crossover: {joined(sorted(always))} {verb} the first rank at every size, alone or shared."
    return "No clear crossover: ranks overlap from each size to the next."


def _entry(one: SettingSummary, backend: str, metric: Metric) -> str:
    cell = next((cell for cell in one.cells if cell.backend == backend), None)
    if cell is None:
        return f"{NOT_MEASURED}  "
    if cell.status != "ok":
        return f"{cell.status}  "
    text = _figure(cell, metric)
    first = leaders(one, metric)
    mark = "" if backend not in first else BEST_MARK if len(first) == 1 else SHARED_MARK
    return f"{text} {mark or ' '}"


def _figure(cell: CellSummary, metric: Metric) -> str:
    if metric == "throughput":
        return number(cell.throughput_per_s, 1e3)
    p50 = cell.latency_p50_ns if metric == "latency" else cell.round_trip_p50_ns
    return number(p50.estimate if p50 is not None else None, 1e3)
