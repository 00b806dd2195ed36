"""pyperf JSON 1.0: a benchmark per backend, payload, readers and metric; a run per round; seconds.

What does not live here: pyperf, which is not needed to write it.

A pyperf run is a process, and so is a round here: each round started fresh ones. Its one value is the round's own figure.
More values per run would be easy to give and wrong to use: pyperf's t-test takes all values for independent, and those
of one process are not. The test also needs equal numbers of values in both files, so compare runs of equally many rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ipcbench.analysis.cells import setting_of
from ipcbench.analysis.exporters.common import Export, Selection, rate_of, select, series_name
from ipcbench.analysis.notes import one_line
from ipcbench.measure.stats import IntArray, quantile
from ipcbench.result import RunInfo, TrialResult

VERSION = "1.0"

_MACHINE = {
    "cpu_model": "cpu_model_name",
    "logical_cores": "cpu_count",
    "architecture": "machine",
    "kernel": "platform",
    "os": "os",
    "governor": "cpu_governor",
    "virtual": "virtual",
    "usable_cores": "usable_cores",
    "memory_bytes": "memory_bytes",
}
"""What of the machine is written, and how pyperf calls it where it has a name for it; nothing else is."""

_DESCRIPTIONS = {
    "one-way-p50": "median of receipt − intended send time, all readers",
    "one-way-p99": "99th percentile of receipt − intended send time, all readers",
    "round-trip-p50": "median from a send to the last reader's reply",
    "round-trip-p99": "99th percentile from a send to the last reader's reply",
    "message-time": "1 / throughput to every reader, saturated",
}


def as_pyperf(run: Any) -> Export:
    """Return a run as pyperf JSON.

    Raises:
        StoreError: no trial is ok.
    """
    selection = select(run, ("paced", "pingpong", "saturate"), "pyperf")
    found: dict[str, list[tuple[TrialResult, float]]] = {}
    metrics: dict[str, str] = {}
    for trial in selection.trials:
        for metric, seconds in _values(selection, trial).items():
            name = series_name(setting_of(trial), trial.spec.backend, rate_of(trial), metric)
            metrics[name] = metric
            found.setdefault(name, []).append((trial, seconds))
    selection.require(found, "figure that pyperf could show")
    _note_unequal(selection, found)
    document = {
        "version": VERSION,
        "metadata": _common_metadata(run.info),
        "benchmarks": [_benchmark(name, metrics[name], runs) for name, runs in sorted(found.items())],
    }
    return selection.export(json.dumps(document, indent=1, allow_nan=False) + "\n")
