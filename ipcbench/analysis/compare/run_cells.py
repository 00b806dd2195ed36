"""The cells of a run as they are matched with another run's: what each measures, and the figures that are compared."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Literal, Self, get_args

import numpy as np

from ipcbench.analysis.summary.cells import CellStatus
from ipcbench.analysis.summary.figures import SEED, cell_figures
from ipcbench.analysis.summary.notes import cell_notes, failure_reason, is_sound, one_line, placement_ns
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import CodecName, Delivery, Mode, PayloadKind, Touch, TrialSpec, WaitStrategy
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.decisions import Estimate, noise_floor_ratio

Metric = Literal["latency-p50", "latency-p99", "round-trip-p50", "round-trip-p99", "throughput", "decode-p50"]
METRICS: tuple[Metric, ...] = get_args(Metric)

METRICS_OF: Mapping[Mode, tuple[Metric, ...]] = {
    "paced": ("latency-p50", "latency-p99", "decode-p50"),
    "pingpong": ("round-trip-p50", "round-trip-p99"),
    "saturate": ("throughput",),
}
"""What each mode measures, its main metric first."""

_NOISE_OF: Mapping[Metric, Metric] = {"latency-p99": "latency-p50", "round-trip-p99": "round-trip-p50"}
"""A round seldom has samples enough for a p99 of its own: the noise of its p50 stands for it."""


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """What two cells must have in common to be one and the same in two runs."""

    delivery: Delivery
    payload: PayloadKind
    size: int
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    backend: str
    mode: Mode
    codec: CodecName
    readers: int
    rate_per_s: float
    """Offered rate, in mode paced."""
    depth: int
    wait: WaitStrategy
    pin: str
    touch: Touch

    @classmethod
    def of(cls, spec: TrialSpec) -> Self:
        """Return the cell that a trial belongs to."""
        return cls(**{one.name: getattr(spec, one.name) for one in fields(cls)})


@dataclass(frozen=True, slots=True, eq=False)
class RunCell:
    """One cell of one run; only what is sound enters its figures."""

    payload_bytes: tuple[int, ...]
    """Encoded size; several if the trials disagree, which makes the cell useless."""
    schedule_s: tuple[tuple[float, float], ...]
    """(window, warm-up) of its trials, each different pair once."""
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    estimates: Mapping[Metric, Estimate]
    """Times in ns, throughput in messages per second."""
    rounds: Mapping[Metric, tuple[float, ...]]
    """The figure of each round, for the noise of the run; of medians and throughput."""
    rounds_count: int
    """Rounds with a trial that is sound."""
    failed_count: int
    """Trials that were tried and enter no figure."""
    placement_ns: float | None
    """Median of the placement probes."""
    notes: tuple[str, ...]


def run_cells(run: Run) -> dict[CellKey, RunCell]:
    """Return the cells of a run, in order; the same run gives the same figures."""
    groups: dict[CellKey, list[TrialResult]] = {}
    for trial in run.trials:
        groups.setdefault(CellKey.of(trial.spec), []).append(trial)
    return {key: _cell(run, key, trials) for key, trials in sorted(groups.items())}


def noise_ratios(cells: Iterable[RunCell]) -> dict[Metric, float]:
    """Return by how much two measurements of one cell differ in a run, as a ratio − 1; see `noise_floor_ratio`."""
    found = list(cells)
    ratios: dict[Metric, float] = {}
    for metric in METRICS:
        own = _NOISE_OF.get(metric, metric)
        ratio = noise_floor_ratio([cell.rounds[own] for cell in found if own in cell.rounds])
        if ratio is not None:
            ratios[metric] = ratio
    return ratios


def absence(key: CellKey, others: Iterable[CellKey], info: RunInfo) -> str:
    """Return why a run may not have a cell: what it says of the backend, or what it measured instead."""
    reason = info.skipped.get(key.backend)
    if reason is not None:
        return one_line(reason)
    near = [one for one in others if _likeness(one) == _likeness(key)]
    if near:
        differences = min((_differences(one, key) for one in near), key=len)
        return f"measured there with {', '.join(differences)}"
    return "not measured there" if info.status == "complete" else f"not measured there; the run is {info.status}"


def _likeness(key: CellKey) -> tuple[object, ...]:
    return key.backend, key.payload, key.size, key.mode


def _differences(there: CellKey, here: CellKey) -> list[str]:
    return [
        f"{one.name} {getattr(there, one.name)}"
        for one in fields(CellKey)
        if getattr(there, one.name) != getattr(here, one.name)
    ]


def _cell(run: Run, key: CellKey, trials: Sequence[TrialResult]) -> RunCell:
    sound = [one for one in trials if is_sound(one)]
    estimates: dict[Metric, Estimate | None] = {}
    rounds: dict[Metric, tuple[float, ...]] = {}
    status: CellStatus = "ok"
    notes: tuple[str, ...] = ()
    if sound:
        figures = cell_figures(run, sound)
        decodes = _decode_rounds_ns(sound)
        estimates = {
            "latency-p50": figures.latency_p50,
            "latency-p99": figures.latency_p99,
            "round-trip-p50": figures.round_trip_p50,
            "round-trip-p99": figures.round_trip_p99,
            "throughput": figures.throughput,
            "decode-p50": _decode(key, decodes),
        }
        rounds = {
            "latency-p50": figures.latency_rounds_ns,
            "round-trip-p50": figures.round_trip_rounds_ns,
            "throughput": figures.throughput_rounds_per_s,
            "decode-p50": decodes,
        }
        notes = tuple(map(_without_counts, cell_notes(trials, figures.unreadable_count)))
    else:
        status = "skipped" if all(one.status == "skipped" for one in trials) else "failed"
    probes = placement_ns(sound)
    return RunCell(
        payload_bytes=tuple(sorted({one.spec.payload_bytes for one in trials})),
        schedule_s=tuple(sorted({(one.spec.window_s, one.spec.warmup_s) for one in trials})),
        status=status,
        reason="" if sound else failure_reason(trials),
        estimates={metric: one for metric, one in estimates.items() if one is not None and one.value > 0.0},
        rounds=rounds,
        rounds_count=len({one.spec.round_index for one in sound}),
        failed_count=sum(one.status != "skipped" and not is_sound(one) for one in trials),
        placement_ns=median(probes) if probes else None,
        notes=notes,
    )


def _without_counts(note: str) -> str:
    """Return a note without numbers that differ from cell to cell; the tables of each run have them."""
    return re.sub(r" in \d+ of \d+ trials(: .*)?$", " in some trials", note)


def _decode_rounds_ns(trials: Sequence[TrialResult]) -> tuple[float, ...]:
    """Return the time to decode one payload in each round: the median over its readers of their medians."""
    found = []
    for trial in trials:
        medians = [one.decode.p50_ns for one in trial.readers if one.decode is not None]
        if medians and median(medians) > 0.0:
            found.append(median(medians))
    return tuple(found)


def _decode(key: CellKey, rounds_ns: Sequence[float]) -> Estimate | None:
    if not rounds_ns:
        return None
    generator = np.random.default_rng([SEED, zlib.crc32(f"{key.backend} decode".encode()), key.size])
    return median_estimate(rounds_ns, generator)
