"""Synthetic runs with known figures, stored as the harness stores them; no process is started."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ipcbench.results.model import (
    SCHEMA_VERSION,
    Conditions,
    EndpointResult,
    Floor,
    Integrity,
    Quantiles,
    RunInfo,
    TrialResult,
    Usage,
)
from ipcbench.results.store import Run, RunWriter, load_run
from ipcbench.spec import Mode, SweepSpec

MACHINE = {
    "cpu_model": "Example CPU",
    "virtual": False,
    "usable_cores": 8.0,
    "memory_bytes": 16 * 2**30,
    "kernel": "Linux 6.1",
    "python": "CPython 3.11.7",
}
BYTES_OF = {1: 88, 10: 521, 100: 5_105, 1000: 55_039, 10_000: 577_129}
START_NS = 1_000_000_000_000


def quantiles(p50_ns: float, count: int = 1000) -> Quantiles:
    return Quantiles(count, p50_ns, 2 * p50_ns, 4 * p50_ns, 9 * p50_ns, 1.2 * p50_ns)


def usage(cpu_s: float = 0.1) -> Usage:
    return Usage(cpu_s / 2, cpu_s / 2, 10, 2, 0, 0, 30 * 2**20)


def endpoint(role: str, **changes: Any) -> EndpointResult:
    plain = EndpointResult(
        role=role,
        process_id=1000,
        messages_count=1000,
        first_ns=START_NS,
        last_ns=START_NS + 10**9,
        call=quantiles(4_000.0),
        latency=None,
        decode=quantiles(241_000.0) if role != "writer" else None,
        usage=usage(),
        integrity=Integrity(expected_count=1000, received_count=1000, hashed_count=15),
    )
    return replace(plain, **changes)


def conditions(probe_ns: float | None = 100.0) -> Conditions:
    return Conditions(0.5, 0.0, 0.0, probe_ns, probe_ns, 50.0, 900.0, clocks_agree=True)


@dataclass
class Cell:
    """What one backend shows, per round; a factor of 0 makes a trial of that round fail."""

    latency_ns: float = 10_000.0
    rate_per_s: float = 100_000.0
    round_trip_ns: float = 30_000.0
    spread: float = 0.2
    factors: Sequence[float] = (1.0, 1.01, 0.99)
    notes: tuple[str, ...] = ()
    change: Callable[[TrialResult], TrialResult] = field(default=lambda trial: trial)
    beside: Mapping[int, Cell] = field(default_factory=dict)
    """What it shows beside so many busy neighbours, besides none."""


KINDS = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
CONTRARY = {"a": Cell(10_000.0, spread=0.01, factors=KINDS), "b": Cell(9_000.0, 90_000.0, 27_000.0, 1.0, KINDS)}
"""b takes 0.9 times as long as a in each of the rounds, which are of two kinds; but its messages differ so much that
the median of all of them is higher."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def parts(mode: str = "", role: str = "", **changes: Any) -> Callable[[TrialResult], TrialResult]:
    """Return what changes these fields of the endpoints of a role, in the trials of a mode; without names, of all."""

    def change(trial: TrialResult) -> TrialResult:
        if mode not in {"", trial.spec.mode}:
            return trial
        changed = (replace(part, **changes) if part.role.startswith(role) else part for part in trial.endpoints)
        return replace(trial, endpoints=tuple(changed))

    return change


CELLS = {
    ("shm", 10): Cell(10_000.0, 300_000.0),
    ("zmq", 10): Cell(30_000.0, 100_000.0),
    ("shm", 1000): Cell(40_000.0, 90_000.0),
    ("zmq", 1000): Cell(90_000.0, 20_000.0),
}


def sweep_of(**changes: Any) -> SweepSpec:
    """Return a sweep of one-way trials without a control."""
    return SweepSpec(**{"modes": ("paced", "saturate"), "control": False, **changes})


def trial(sweep: SweepSpec, backend: str, size: int, mode: Mode, round_index: int, trial_id: int) -> TrialResult:
    """Return a bare trial that is ok, in one piece."""
    spec = replace(sweep.trial(backend, size, BYTES_OF.get(size, size), mode, round_index), turns=1)
    return TrialResult(trial_id, spec, "ok", "", 1.7e9 + trial_id, 0.5, conditions=conditions())


def times(generator: np.random.Generator, median_ns: float, spread: float, count: int) -> np.ndarray:
    """Return log-normal times of that exact median."""
    logs = generator.standard_normal(count) * spread
    return (median_ns * np.exp(logs - np.median(logs))).astype(np.int64)


def paced(plain: TrialResult, latency_ns: float, spread: float, count: int = 350) -> tuple[TrialResult, dict[str, Any]]:
    """Return the trial with log-normal latencies of that exact median at every reader, and its columns."""
    generator = np.random.default_rng(plain.trial_id)
    sent = START_NS + np.arange(count) * 1_000_000
    columns = {"writer.intended_ns": sent, "writer.sent_ns": sent + 60, "writer.write_ns": np.full(count, 900)}
    for index in range(plain.spec.readers):
        latencies = times(generator, latency_ns, spread, count)
        columns[f"reader-{index}.sequence"] = np.arange(count) + 10
        columns[f"reader-{index}.received_ns"] = sent + latencies
        columns[f"reader-{index}.latency_ns"] = latencies
        columns[f"reader-{index}.read_ns"] = np.full(count, 990_000)
    readers = tuple(
        endpoint(f"reader-{index}", messages_count=count, latency=quantiles(latency_ns, count))
        for index in range(plain.spec.readers)
    )
    endpoints = (endpoint("writer", messages_count=count), *readers)
    return replace(plain, endpoints=endpoints, achieved_rate_per_s=plain.spec.rate_per_s), columns


def pingpong(plain: TrialResult, trip_ns: float, spread: float, count: int = 350) -> tuple[TrialResult, dict[str, Any]]:
    trips = times(np.random.default_rng(plain.trial_id), trip_ns, spread, count)
    columns = {"writer.sent_ns": START_NS + np.cumsum(trips), "writer.round_trip_ns": trips}
    writer = endpoint("writer", call=None, round_trip=quantiles(trip_ns, count))
    readers = tuple(endpoint(f"reader-{index}", call=None) for index in range(plain.spec.readers))
    return replace(plain, endpoints=(writer, *readers)), columns


def saturate(plain: TrialResult, rate_per_s: float, count: int = 500) -> tuple[TrialResult, dict[str, Any]]:
    """Return the trial at that rate, and its columns."""
    received = START_NS + (np.arange(count) * 1e9 / rate_per_s).astype(np.int64)
    columns = {f"reader-{index}.received_ns": received for index in range(plain.spec.readers)}
    readers = tuple(
        endpoint(f"reader-{index}", call=quantiles(7_000.0), usage=usage(0.002 * (index + 1)))
        for index in range(plain.spec.readers)
    )
    writer = endpoint("writer", call=quantiles(3_000.0), usage=usage(0.0051))
    return replace(plain, endpoints=(writer, *readers), throughput_per_s=rate_per_s), columns


def failed(plain: TrialResult) -> TrialResult:
    """Return the trial as a failed one that nonetheless carries tempting figures."""
    tempting, _ = saturate(plain, 1e9) if plain.spec.mode == "saturate" else paced(plain, 1.0, 0.0)
    return replace(tempting, status="failed", reason="reader-0 ended with exit code 1")


def run_info(sweep: SweepSpec, **changes: Any) -> RunInfo:
    info = RunInfo(
        run_id="20260102T030405Z-0a1b2c",
        schema_version=SCHEMA_VERSION,
        started_unix_s=1.7e9,
        command=("ipcbench", "run"),
        sweep=sweep.as_dict(),
        payloads=tuple(
            {"size": size, "payload_bytes": BYTES_OF.get(size, size), "encode_ns": 1e5} for size in sweep.sizes
        ),
        machine=MACHINE,
        versions={"ipcbench": "0.1.0", "python": "3.11.7"},
        skipped={},
        floor=Floor(400.0, 600.0, 45.0, 1.0, {"521": 5e9, "55039": 10e9}),
        status="complete",
        rounds_done=sweep.rounds,
    )
    return replace(info, **changes)


def make_run(path: Path, cells: dict[tuple[str, int], Cell], sweep: SweepSpec | None = None, **changes: Any) -> Run:
    """Store a run of those cells, (backend, size) → Cell, and return it as read back; the changes are fields of its
    sweep, by default of one reader, and of its `RunInfo`.
    """
    wanted = {each.name: changes.pop(each.name) for each in fields(SweepSpec) if each.name in changes}
    names, sizes = (tuple(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    usual = {"backends": names, "sizes": sizes, "readers": 1}
    sweep = replace(sweep, **wanted) if sweep else sweep_of(**{**usual, **wanted})
    with RunWriter.create(path, run_info(sweep, **changes)) as writer:
        for round_index in range(max(len(cell.factors) for cell in cells.values())):
            for (backend, size), cell in cells.items():
                for mode, neighbours in product(sweep.modes, (0, *cell.beside)):
                    shown = cell.beside.get(neighbours, cell)
                    if round_index < len(shown.factors):
                        plain = trial(sweep, backend, size, mode, round_index, writer.next_trial_id)
                        spec = replace(plain.spec, neighbours=neighbours)
                        plain = replace(plain, spec=spec, notes=shown.notes)
                        writer.append(*_measured(plain, shown, shown.factors[round_index]))
    return load_run(path)


def _measured(plain: TrialResult, cell: Cell, factor: float) -> tuple[TrialResult, dict[str, Any]]:
    if factor == 0:
        return failed(plain), {}
    if plain.spec.mode == "paced":
        result, columns = paced(plain, cell.latency_ns * factor, cell.spread)
    elif plain.spec.mode == "pingpong":
        result, columns = pingpong(plain, cell.round_trip_ns * factor, cell.spread)
    else:
        result, columns = saturate(plain, cell.rate_per_s * factor)
    return cell.change(result), columns
