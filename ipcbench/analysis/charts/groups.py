"""All charts of a run, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Sequence

from ipcbench.analysis.charts.fanout import FanOutRun, fan_out_groups
from ipcbench.analysis.charts.settings import cell_groups, distributions, reader_spreads
from ipcbench.analysis.charts.sizes import size_groups
from ipcbench.analysis.summary.cells import Summary
from ipcbench.render.charts import ChartGroup
from ipcbench.results.store import Run

_ORDER = ("latency", "round-trip", "throughput", "percentiles", "memory-share", "decode-share", "cpu", "reader-skew")


def chart_groups(run: Run, summary: Summary, others: Sequence[tuple[Run, Summary]] = ()) -> tuple[ChartGroup, ...]:
    """Return the groups of charts of a run.

    Args:
        run: its samples are read.
        summary: of that run.
        others: runs named together with it, itself left out; they enter the charts of fan-out alone.
    """
    spreads = reader_spreads(run)
    skews = {key: one.skew_ratio for key, one in spreads.items() if key[0].readers > 1}
    together = [FanOutRun(one, reader_spreads(other)) for other, one in others] + [FanOutRun(summary, spreads)]
    found = [*size_groups(summary, skews), *cell_groups(summary, distributions(run))]
    found.sort(key=lambda one: _ORDER.index(one.key) if one.key in _ORDER else len(_ORDER))
    return (*found, *fan_out_groups(together))
