"""A run in figures: per setting (payload, readers, delivery …) its cells, ranked where they can be told apart.

What does not live here: how a cell's own figures come about (figures.py), and how any of it looks (tables.py).

Cells are only ever compared inside one setting, and the delivery is part of it: what is lossless is never ranked
against what overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ipcbench.analysis.figures import CellFigures, cell_figures
from ipcbench.analysis.notes import cell_notes, failure_reason, is_sound
from ipcbench.errors import StoreError
from ipcbench.measure.stats import Estimate, Interval, noise_floor_ratio, rank_groups, ratio
from ipcbench.result import Floor, RunInfo, TrialResult
from ipcbench.spec import CodecName, Delivery, PayloadKind, WaitStrategy
from ipcbench.store import Run

CellStatus = Literal["ok", "failed", "skipped"]
Metric = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What cells must have in common to be compared."""

    delivery: Delivery
    payload: PayloadKind
    size: int
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    payload_bytes: int
    """Encoded size."""
    codec: CodecName
    readers: int
    depth: int
    wait: WaitStrategy


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One backend at one setting. Figures are None where they were not measured; a cell that is not ok has none."""

    setting: Setting
    backend: str
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    rank: int | None
    """By latency p50, or by throughput if there were no paced trials; equal where there is no clear difference."""
    ratio: Interval | None
    """How many times as slow as the best of the setting, by the same metric; 1 for the best itself."""
    latency_p50_ns: Interval | None
    latency_p99_ns: Interval | None
    """None also if there are too few samples for it."""
    throughput_per_s: float | None
    """Messages per second to every reader."""
    throughput_interval_per_s: Interval | None
    throughput_bytes_per_s: float | None
    """Payload bytes per second to every reader."""
    throughput_rank: int | None
    read_p50_ns: float | None
    write_p50_ns: float | None
    decode_p50_ns: float | None
    writer_cpu_ns: float | None
    """Per message."""
    reader_cpu_ns: float | None
    latency_floor_ratio: float | None
    """Latency p50 as a multiple of what the harness itself costs (writer's and reader's loop)."""
    memory_bandwidth_ratio: float | None
    """Payload bytes per second to one reader as a share of one core's memory copy of that size."""
    rounds_count: int
    """Rounds with a trial that is ok."""
    samples_count: int
    """Latencies over all readers and rounds."""
    trials_count: int
    failed_count: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """The cells of one setting."""

    setting: Setting
    ranked_by: Metric | None
    """None if no cell has figures."""
    rate_per_s: float | None
    """Offered rate of the paced trials."""
    cells: tuple[CellSummary, ...]
    """Best first; those without figures last, with their reason."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures."""

    info: RunInfo
    settings: tuple[SettingSummary, ...]
    """By delivery, payload and size."""
    latency_noise_ratio: float | None
    """By how much two measurements of one and the same cell differ in this run (A/A); None if there was one round."""
    throughput_noise_ratio: float | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    backend: str
    trials: tuple[TrialResult, ...]
    sound: tuple[TrialResult, ...]
    figures: CellFigures


def summarise(run: Run) -> Summary:
    """Return the figures of a run, from what is stored alone; the same run gives the same figures.

    Raises:
        StoreError: trials of different rates under one setting, which must not be joined.
    """
    groups: dict[Setting, dict[str, list[TrialResult]]] = {}
    for trial in run.trials:
        groups.setdefault(setting_of(trial), {}).setdefault(trial.spec.backend, []).append(trial)
    cells = {
        setting: [_cell(run, name, trials) for name, trials in by_backend.items()]
        for setting, by_backend in sorted(groups.items())
    }
    flat = [cell.figures for one in cells.values() for cell in one]
    latency_noise = noise_floor_ratio([one.latency_rounds_ns for one in flat])
    throughput_noise = noise_floor_ratio([one.throughput_rounds_per_s for one in flat])
    noise: Mapping[Metric, float] = {"latency": latency_noise or 0.0, "throughput": throughput_noise or 0.0}
    return Summary(
        info=run.info,
        settings=tuple(_summarise_setting(run, setting, one, noise) for setting, one in cells.items()),
        latency_noise_ratio=latency_noise,
        throughput_noise_ratio=throughput_noise,
        problems=run.problems + _absent_sizes(run, list(cells)),
    )


def setting_of(trial: TrialResult) -> Setting:
    """Return the setting that a trial belongs to."""
    spec = trial.spec
    return Setting(
        delivery=spec.delivery,
        payload=spec.payload,
        size=spec.size,
        payload_bytes=spec.payload_bytes,
        codec=spec.codec,
        readers=spec.readers,
        depth=spec.depth,
        wait=spec.wait,
    )


def _cell(run: Run, backend: str, trials: Sequence[TrialResult]) -> _Cell:
    sound = tuple(one for one in trials if is_sound(one))
    return _Cell(backend, tuple(trials), sound, cell_figures(run, sound))


def _absent_sizes(run: Run, settings: Sequence[Setting]) -> tuple[str, ...]:
    seen = {one.size for one in settings}
    return tuple(
        f"size {one['size']:,}: no trial was made; the run is {run.info.status}"
        for one in run.info.payloads
        if isinstance(one.get("size"), int) and one["size"] not in seen
    )


def _summarise_setting(
    run: Run, setting: Setting, cells: Sequence[_Cell], noise: Mapping[Metric, float]
) -> SettingSummary:
    latency = {one.backend: one.figures.latency_p50 for one in cells if one.figures.latency_p50 is not None}
    # Throughput is a rate: its inverse, time per message, is ranked like a latency.
    rates = {one.backend: _per_message(one.figures.throughput) for one in cells if one.figures.throughput is not None}
    throughput_ranks = dict(zip(rates, rank_groups(list(rates.values()), noise["throughput"]), strict=True))
    metric: Metric | None = "latency" if latency else "throughput" if rates else None
    times = latency or rates
    ranks = dict(zip(times, rank_groups(list(times.values()), noise[metric or "latency"]), strict=True))
    ratios = _ratios_to_best(times)
    rows = [
        replace(
            _summarise_cell(run, setting, one),
            rank=ranks.get(one.backend),
            ratio=ratios.get(one.backend),
            throughput_rank=throughput_ranks.get(one.backend),
        )
        for one in cells
    ]
    rows += [_unmeasured(setting, name, reason) for name, reason in _left_out(run.info, cells).items()]
    rows.sort(key=lambda row: _order(row, times))
    return SettingSummary(setting, metric, _offered_rate(setting, cells), tuple(rows))


def _per_message(rate: Estimate) -> Estimate:
    return replace(rate, value=1.0 / rate.value, deviations=-rate.deviations)


def _ratios_to_best(times: Mapping[str, Estimate]) -> dict[str, Interval]:
    if not times:
        return {}
    best = min(times, key=lambda name: times[name].value)
    return {name: Interval(1.0, 1.0, 1.0) if name == best else ratio(one, times[best]) for name, one in times.items()}


def _order(row: CellSummary, times: Mapping[str, Estimate]) -> tuple[float, float, str]:
    if row.backend in times:
        return 0.0, times[row.backend].value, row.backend
    return {"ok": 1.0, "failed": 2.0, "skipped": 3.0}[row.status], 0.0, row.backend


def _offered_rate(setting: Setting, cells: Sequence[_Cell]) -> float | None:
    rates = {trial.spec.rate_per_s for one in cells for trial in one.trials if trial.spec.mode == "paced"}
    if len(rates) > 1:
        raise StoreError(f"size {setting.size:,}: paced trials at different rates cannot be joined: {sorted(rates)}")
    return rates.pop() if rates else None


def _left_out(info: RunInfo, cells: Sequence[_Cell]) -> dict[str, str]:
    """Return the backends of the sweep that have no trial at this setting, and why."""
    planned = info.sweep.get("backends", ())
    reasons = dict.fromkeys(map(str, planned), f"not reached: the run is {info.status}") | dict(info.skipped)
    measured = {one.backend for one in cells}
    return {name: reason for name, reason in reasons.items() if name not in measured}


def _unmeasured(setting: Setting, backend: str, reason: str) -> CellSummary:
    return replace(_summarise_figures(setting, backend, None), status="skipped", reason=reason)


def _summarise_cell(run: Run, setting: Setting, cell: _Cell) -> CellSummary:
    """Return a cell by itself: neither ranked nor compared yet."""
    summary = replace(
        _summarise_figures(setting, cell.backend, cell.figures if cell.sound else None),
        trials_count=len(cell.trials),
        failed_count=sum(one.status != "skipped" and not is_sound(one) for one in cell.trials),
        rounds_count=len({one.spec.round_index for one in cell.sound}),
    )
    if not cell.sound:
        status: CellStatus = "skipped" if all(one.status == "skipped" for one in cell.trials) else "failed"
        return replace(summary, status=status, reason=failure_reason(cell.trials))
    summary = replace(summary, notes=cell_notes(cell.trials, cell.figures.unreadable_count))
    return summary if run.info.floor is None else _with_floor(summary, run.info.floor)


def _with_floor(summary: CellSummary, floor: Floor) -> CellSummary:
    p50, rate = summary.latency_p50_ns, summary.throughput_bytes_per_s
    harness_ns = floor.writer_ns + floor.reader_ns
    memory = floor.memcpy_bytes_per_s.get(str(summary.setting.payload_bytes))
    return replace(
        summary,
        latency_floor_ratio=p50.estimate / harness_ns if p50 is not None and harness_ns > 0 else None,
        memory_bandwidth_ratio=rate / memory if rate is not None and memory else None,
    )


def _summarise_figures(setting: Setting, backend: str, figures: CellFigures | None) -> CellSummary:
    p50 = figures.latency_p50 if figures else None
    p99 = figures.latency_p99 if figures else None
    throughput = figures.throughput if figures else None
    rates = figures.throughput_rounds_per_s if figures else ()
    rate = sum(rates) / len(rates) if rates else None
    return CellSummary(
        setting=setting,
        backend=backend,
        status="ok",
        reason="",
        rank=None,
        ratio=None,
        latency_p50_ns=p50.interval() if p50 else None,
        latency_p99_ns=p99.interval() if p99 else None,
        throughput_per_s=rate,
        throughput_interval_per_s=throughput.interval() if throughput else None,
        throughput_bytes_per_s=rate * setting.payload_bytes if rate is not None else None,
        throughput_rank=None,
        read_p50_ns=figures.read_p50_ns if figures else None,
        write_p50_ns=figures.write_p50_ns if figures else None,
        decode_p50_ns=figures.decode_p50_ns if figures else None,
        writer_cpu_ns=figures.writer_cpu_ns if figures else None,
        reader_cpu_ns=figures.reader_cpu_ns if figures else None,
        latency_floor_ratio=None,
        memory_bandwidth_ratio=None,
        rounds_count=0,
        samples_count=figures.samples_count if figures else 0,
        trials_count=0,
        failed_count=0,
        notes=(),
    )
