"""pyperf JSON 1.0: a benchmark per backend, payload, readers and metric; a run per round; seconds.

A pyperf run is a process, and each round starts fresh processes. Its single value is the figure of the round. More
values per run would be wrong: pyperf's test assumes that all values are independent, and those of one process are not.
pyperf also needs equally many values on both sides, so benchmarks with fewer rounds are noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ipcbench.analysis.exporters.common import Export, Selection, rate_of, select, series_name
from ipcbench.analysis.summary.cells import Setting
from ipcbench.analysis.summary.figures import round_p50_ns
from ipcbench.analysis.summary.notes import one_line
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Mode
from ipcbench.stats.estimates import quantile

FORMAT_VERSION = "1.0"

_MACHINE = {
    "cpu_model": "cpu_model_name",
    "logical_cores": "cpu_count",
    "architecture": "machine",
    "kernel": "platform",
    "os": "os",
    "governor": "cpu_governor",
    "usable_cores": "usable_cores",
    "memory_bytes": "memory_bytes",
}
"""Our name of each fact about the machine that is written → pyperf's name, if it has one."""

_VERSIONS = ("ipcbench", "numpy", "pyzmq", "libzmq", "lmdb", "msgpack", "mpi4py", "mpich", "openmpi", "impi-rt")
"""The versions that are written."""

_DESCRIPTIONS = {
    "one-way-p50": "receipt - intended send time, all readers, median",
    "one-way-p99": "receipt - intended send time, all readers, 99th percentile",
    "round-trip-p50": "from a send to the last reader's reply, median",
    "round-trip-p99": "from a send to the last reader's reply, 99th percentile",
    "message-time": "1 / throughput to every reader, saturated",
}

_COLUMNS: Mapping[Mode, tuple[str, str]] = {
    "paced": ("one-way", ".latency_ns"),
    "pingpong": ("round-trip", "writer.round_trip_ns"),
}
"""Mode → (name of its times, suffix of their columns)."""


def as_pyperf(run: Run) -> Export:
    """Return a run as pyperf JSON.

    Raises:
        StoreError: there is no trial, or no figure, to write.
    """
    selection = select(run, ("paced", "pingpong", "saturate"), "pyperf")
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for trial in selection.trials:
        for metric, seconds in _values(selection, trial).items():
            name = series_name(Setting.of(trial), trial.spec.backend, rate_of(trial), metric)
            runs.setdefault((name, metric), []).append({"metadata": _run_metadata(trial), "values": [seconds]})
    selection.require(runs, "figure for pyperf")
    document = {
        "version": FORMAT_VERSION,
        "metadata": _common_metadata(run.info),
        "benchmarks": [
            {"metadata": {"name": name, "description": _DESCRIPTIONS[metric]}, "runs": rounds}
            for (name, metric), rounds in sorted(runs.items())
        ],
    }
    export = selection.export(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return replace(export, fewer_rounds=tuple(_fewer_rounds(runs)))


def _values(selection: Selection, trial: TrialResult) -> dict[str, float]:
    """Return metric → seconds of one trial, without percentiles that have too few samples."""
    if trial.spec.mode == "saturate":
        if not trial.throughput_per_s:
            selection.leave_out(trial, "it has no throughput")
            return {}
        return {"message-time": 1.0 / trial.throughput_per_s}
    what, ending = _COLUMNS[trial.spec.mode]
    columns = selection.samples(trial)
    parts = [column for name, column in columns.items() if name.endswith(ending) and column.size]
    times = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if columns and (times.size == 0 or float(np.median(times)) <= 0.0):
        selection.leave_out(trial, f"it has no {what} times")
    figures = {"p50": round_p50_ns(selection.run, trial), "p99": quantile(times, 0.99)}
    if trial.spec.mode == "paced" and trial.spec.turns > 1:
        del figures["p99"]  # turns would cut stalls off
    elif trial.spec.tail:
        del figures["p50"]  # the cell's other trial has it
    return {f"{what}-{name}": value / 1e9 for name, value in figures.items() if value is not None and value > 0.0}


def _fewer_rounds(runs: Mapping[tuple[str, str], Sequence[object]]) -> Iterator[str]:
    most: dict[str, int] = {}
    for (_, metric), rounds in runs.items():
        most[metric] = max(most.get(metric, 0), len(rounds))
    for (name, metric), rounds in sorted(runs.items()):
        if missing := most[metric] - len(rounds):
            yield f"{name}: {missing} of {most[metric]} rounds are missing; pyperf only compares equal numbers"


def _common_metadata(info: RunInfo) -> dict[str, Any]:
    implementation, _, python = str(info.machine.get("python") or "").partition(" ")
    known = {
        **{theirs: info.machine.get(ours) for ours, theirs in _MACHINE.items()},
        "python_implementation": implementation.lower(),
        "python_version": python,
        **{f"{name}_version": info.versions.get(name) for name in _VERSIONS},
        "ipcbench_run": info.run_id,
    }
    return {"unit": "second", **_fit(known)}


def _run_metadata(trial: TrialResult) -> dict[str, Any]:
    conditions = trial.conditions
    known = {
        "date": f"{datetime.fromtimestamp(trial.started_unix_s, UTC):%Y-%m-%d %H:%M:%S.%f}",
        "duration": max(0.0, trial.duration_s),
        "load_avg_1min": max(0.0, conditions.load_1min) if conditions is not None else None,
        "mem_max_rss": max((endpoint.usage.max_rss_bytes for endpoint in trial.endpoints), default=0) or None,
        "round": trial.spec.round_index,
        "notes": "; ".join(trial.notes),
    }
    return _fit(known)


def _fit(values: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return what pyperf accepts: numbers, and texts of one line; unknown and empty values are left out."""
    texts = {name: one_line(value) if isinstance(value, str) else value for name, value in values.items()}
    return {
        name: value
        for name, value in texts.items()
        if value != "" and isinstance(value, str | int | float) and not isinstance(value, bool)
    }
