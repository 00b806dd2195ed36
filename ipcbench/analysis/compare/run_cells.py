"""The cells of a run, to be matched with those of another run: their keys, and the figures that are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Literal, Self, get_args

from ipcbench.analysis.summary.cells import CellStatus
from ipcbench.analysis.summary.figures import cell_figures, generator_of, round_name, rounds_estimate
from ipcbench.analysis.summary.notes import cell_notes, failure_reason, is_sound, is_wrong, one_line, placement_ns
from ipcbench.errors import ConfigError
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Delivery, Mode, Touch, TrialSpec, WaitStrategy
from ipcbench.stats.estimates import Estimate

ComparedMetric = Literal["latency-p50", "latency-p99", "round-trip-p50", "round-trip-p99", "throughput", "decode-p50"]
METRICS: tuple[ComparedMetric, ...] = get_args(ComparedMetric)

METRICS_OF: Mapping[Mode, tuple[ComparedMetric, ...]] = {
    "paced": ("latency-p50", "latency-p99", "decode-p50"),
    "pingpong": ("round-trip-p50", "round-trip-p99"),
    "saturate": ("throughput",),
}
"""What each mode measures, its main metric first."""
MAIN_METRICS: tuple[ComparedMetric, ...] = tuple(metrics[0] for metrics in METRICS_OF.values())


def parse_metrics(names: Iterable[str], field: str = "metrics") -> tuple[ComparedMetric, ...]:
    """Return the figures of these names, in the order of `METRICS`.

    Raises:
        ConfigError: there is no such figure.
    """
    given = list(names)
    for name in given:
        if name not in METRICS:
            raise ConfigError(field, name, METRICS)
    return tuple(metric for metric in METRICS if metric in given)


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """What identifies a cell in both runs."""

    delivery: Delivery
    payload: str
    size: int
    """See `TrialSpec.size`."""
    backend: str
    mode: Mode
    codec: str
    readers: int
    rate_per_s: float
    """Offered rate in paced mode."""
    depth: int
    wait: WaitStrategy
    pin: str
    touch: Touch
    neighbours: int

    @classmethod
    def of(cls, spec: TrialSpec) -> Self:
        """Return the cell that a trial belongs to."""
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, eq=False)
class RunCell:
    """One cell of one run; only sound trials enter its figures."""

    payload_bytes: tuple[int, ...]
    """Encoded size; several if the trials disagree, which makes the cell unusable."""
    schedule_s: tuple[tuple[float, float], ...]
    """Each distinct (window, warm-up) of its trials."""
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    estimates: Mapping[ComparedMetric, Estimate]
    """Times in ns, throughput in messages per second."""
    stamp_strides: frozenset[int]
    """One message in how many was timed."""
    rounds: frozenset[int]
    """In which its sound trials were made."""
    failed_count: int
    """Trials that ran and enter no figure."""
    wrong_count: int
    """Those of them in which messages were lost, repeated, reordered or torn."""
    placement_ns: float | None
    """Median of the placement probes."""
    notes: tuple[str, ...]


def run_cells(run: Run) -> dict[CellKey, RunCell]:
    """Return the cells of a run, in order; the same run gives the same figures.

    Raises:
        ConfigError: it is of a queue or fan-in; no change would be found in it, whatever changed.
    """
    if run.pattern_trials:
        allowed = "a run of broadcasts: those of queues, fan-in and rpc cannot be compared"
        raise ConfigError("RUN", run.info.run_id, allowed)
    groups: dict[CellKey, list[TrialResult]] = {}
    for trial in run.trials:
        groups.setdefault(CellKey.of(trial.spec), []).append(trial)
    return {key: _cell(run, key, trials) for key, trials in sorted(groups.items())}


def absence(key: CellKey, others: Iterable[CellKey], info: RunInfo) -> str:
    """Return why a run does not have a cell: why it skipped the backend, or what it measured instead."""
    reason = info.skipped.get(key.backend)
    if reason is not None:
        return one_line(reason)
    near = [other for other in others if _likeness(other) == _likeness(key)]
    if near:
        differences = min((_differences(other, key) for other in near), key=len)
        return f"measured there with {', '.join(differences)}"
    was_planned = key.backend in info.planned_backends and key.size in info.sweep.get("sizes", ())
    if not was_planned:
        return "not part of that run"
    return "not measured there" if info.status == "complete" else f"not measured there; the run is {info.status}"


def _likeness(key: CellKey) -> tuple[object, ...]:
    return key.backend, key.payload, key.size, key.mode


def _differences(there: CellKey, here: CellKey) -> list[str]:
    return [
        f"{field.name} {getattr(there, field.name)}"
        for field in fields(CellKey)
        if getattr(there, field.name) != getattr(here, field.name)
    ]


def _cell(run: Run, key: CellKey, trials: Sequence[TrialResult]) -> RunCell:
    sound = [trial for trial in trials if is_sound(trial)]
    estimates: dict[ComparedMetric, Estimate | None] = {}
    status: CellStatus = "ok"
    notes: tuple[str, ...] = ()
    if sound:
        figures = cell_figures(run, sound)
        decodes = _decode_rounds_ns(run, sound)
        estimates = {
            "latency-p50": figures.latency_p50,
            "latency-p99": figures.latency_p99,
            "round-trip-p50": figures.round_trip_p50,
            "round-trip-p99": figures.round_trip_p99,
            "throughput": figures.throughput,
            "decode-p50": rounds_estimate(decodes, generator_of(key.backend, "decode", key.size)),
        }
        notes = tuple(map(_without_counts, cell_notes(trials, figures.unreadable_count)))
    else:
        status = "skipped" if all(trial.status == "skipped" for trial in trials) else "failed"
    probes = placement_ns(sound)
    return RunCell(
        payload_bytes=tuple(sorted({trial.spec.payload_bytes for trial in trials})),
        schedule_s=tuple(sorted({(trial.spec.window_s, trial.spec.warmup_s) for trial in trials})),
        status=status,
        reason="" if sound else failure_reason(trials),
        estimates={
            name: estimate for name, estimate in estimates.items() if estimate is not None and estimate.value > 0
        },
        stamp_strides=frozenset(part.stamp_stride for trial in sound for part in trial.endpoints),
        rounds=frozenset(trial.spec.round_index for trial in sound),
        wrong_count=sum(map(is_wrong, trials)),
        failed_count=sum(trial.status != "skipped" and not is_sound(trial) for trial in trials),
        placement_ns=median(probes) if probes else None,
        notes=notes,
    )


def _without_counts(note: str) -> str:
    """Return a note without the numbers that differ from cell to cell; the tables of each run have them."""
    note = re.sub(r" in \d+ of \d+ trials(: .*)?$", " in some trials", note)
    note = re.sub(r"^(page faults per message): .*$", r"\1", note)
    return re.sub(r" is [\d.e+-]+ % of ", " is a good part of ", note)


def _decode_rounds_ns(run: Run, trials: Sequence[TrialResult]) -> dict[str, float]:
    """Return the time to decode one payload in each round: the median over its readers of their medians."""
    rounds = {}
    for trial in (trial for trial in trials if not trial.spec.tail):
        medians = [reader.decode.p50_ns for reader in trial.readers if reader.decode is not None]
        if medians and median(medians) > 0.0:
            rounds[round_name(run.info.run_id, trial)] = median(medians)
    return rounds
