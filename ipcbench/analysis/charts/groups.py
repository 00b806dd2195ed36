"""All charts of a run, in reading order."""

from __future__ import annotations

from collections.abc import Sequence

from ipcbench.analysis.charts.fanout import fan_out_groups
from ipcbench.analysis.charts.settings import distributions, setting_groups
from ipcbench.analysis.charts.sizes import size_groups
from ipcbench.analysis.summary.cells import Summary
from ipcbench.render.charts import ChartGroup
from ipcbench.results.store import Run

_ORDER = ("latency", "round-trip", "throughput", "percentiles", "memory-share", "decode-share", "cpu", "reader-skew")


def chart_groups(run: Run, summary: Summary, others: Sequence[tuple[Run, Summary]] = ()) -> tuple[ChartGroup, ...]:
    """Return the groups of charts of a run.

    Args:
        run: the run that holds the samples.
        summary: of that run.
        others: the other runs named together with it; they enter only the fan-out charts.
    """
    groups = [*size_groups(summary), *setting_groups(summary, distributions(run))]
    groups.sort(key=lambda group: _ORDER.index(group.key) if group.key in _ORDER else len(_ORDER))
    return (*groups, *fan_out_groups([*(other for _, other in others), summary]))
