"""A run in figures: per setting (payload, readers, delivery …) its cells, ranked where they can be told apart.

Cells are only ever compared inside one setting, and the delivery is part of it: what is lossless is never ranked
against what overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

from ipcbench.analysis.summary.cells import (
    CellStatus,
    CellSummary,
    Metric,
    Setting,
    SettingSummary,
    Summary,
    setting_of,
)
from ipcbench.analysis.summary.control import controls
from ipcbench.analysis.summary.figures import CellFigures, cell_figures
from ipcbench.analysis.summary.notes import cell_notes, failure_reason, is_sound, placement_ns
from ipcbench.errors import StoreError
from ipcbench.results.model import Floor, RunInfo, TrialResult
from ipcbench.results.store import Run
from ipcbench.stats.decisions import rank_groups
from ipcbench.stats.estimates import Estimate, Interval, noise_floor_ratio, paired_noise_floor_ratio, ratio


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
    noise = _noise([[cell.figures for cell in one] for one in cells.values()])
    probes = placement_ns(run.trials)
    return Summary(
        info=run.info,
        settings=tuple(_summarise_setting(run, setting, one, noise) for setting, one in cells.items()),
        noise_ratios=noise,
        controls=controls(run),
        placement_ns=(min(probes), max(probes)) if probes else None,
        problems=run.problems + _absent_sizes(run, list(cells)),
    )


def _noise(settings: Sequence[Sequence[CellFigures]]) -> dict[Metric, float]:
    figures = [one for setting in settings for one in setting]
    latencies = [[one.latency_p50 for one in setting if one.latency_p50 is not None] for setting in settings]
    paired = paired_noise_floor_ratio(latencies)
    found: dict[Metric, float | None] = {
        "latency": noise_floor_ratio([one.latency_rounds_ns for one in figures]) if paired is None else paired,
        "round trip": noise_floor_ratio([one.round_trip_rounds_ns for one in figures]),
        "throughput": noise_floor_ratio([one.throughput_rounds_per_s for one in figures]),
    }
    return {metric: ratio for metric, ratio in found.items() if ratio is not None}


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
    times = {metric: _times(cells, metric) for metric in get_args(Metric)}
    ranks = {metric: _ranks(found, noise.get(metric, 0.0)) for metric, found in times.items()}
    metric: Metric | None = next((one for one, found in times.items() if found), None)
    main = times[metric] if metric else {}
    ratios = _ratios_to_best(main)
    rows = [
        replace(
            _summarise_cell(run, setting, one),
            rank=ranks[metric].get(one.backend) if metric else None,
            ratio=ratios.get(one.backend),
            round_trip_rank=ranks["round trip"].get(one.backend),
            throughput_rank=ranks["throughput"].get(one.backend),
        )
        for one in cells
    ]
    rows += [_unmeasured(setting, name, reason) for name, reason in _left_out(run.info, cells).items()]
    rows.sort(key=lambda row: _order(row, main))
    return SettingSummary(setting, metric, _offered_rate(setting, cells), tuple(rows))


def _times(cells: Sequence[_Cell], metric: Metric) -> dict[str, Estimate]:
    """Return backend → time by this metric; of a throughput its inverse, the time per message."""
    found: dict[str, Estimate | None] = {}
    for one in cells:
        rate = one.figures.throughput
        found[one.backend] = {
            "latency": one.figures.latency_p50,
            "round trip": one.figures.round_trip_p50,
            "throughput": _per_message(rate) if rate is not None else None,
        }[metric]
    return {name: time for name, time in found.items() if time is not None}


def _ranks(times: Mapping[str, Estimate], noise_ratio: float) -> dict[str, int]:
    return dict(zip(times, rank_groups(list(times.values()), noise_ratio), strict=True))


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
        clean_count=sum(one.stamp == "clean" for one in cell.sound),
        failed_count=sum(one.status != "skipped" and not is_sound(one) for one in cell.trials),
        rounds_count=len({one.spec.round_index for one in cell.sound}),
        figures=cell.figures if cell.sound else None,
        trials=cell.sound,
    )
    if not cell.sound:
        status: CellStatus = "skipped" if all(one.status == "skipped" for one in cell.trials) else "failed"
        return replace(summary, status=status, reason=failure_reason(cell.trials))
    summary = replace(summary, notes=cell_notes(cell.trials, cell.figures.unreadable_count))
    return summary if run.info.floor is None else _with_floor(summary, run.info.floor)


def _with_floor(summary: CellSummary, floor: Floor) -> CellSummary:
    p50, rate = summary.latency_p50_ns, summary.throughput_bytes_per_s
    harness_ns = floor.writer_ns + floor.reader_ns
    size = str(summary.setting.payload_bytes)
    memory, cold = floor.memcpy_bytes_per_s.get(size), floor.memcpy_cold_bytes_per_s.get(size)
    return replace(
        summary,
        latency_floor_ratio=p50.estimate / harness_ns if p50 is not None and harness_ns > 0 else None,
        memory_bandwidth_ratio=rate / memory if rate is not None and memory else None,
        cold_memory_bandwidth_ratio=rate / cold if rate is not None and cold else None,
    )


def _summarise_figures(setting: Setting, backend: str, figures: CellFigures | None) -> CellSummary:
    p50 = figures.latency_p50 if figures else None
    p99 = figures.latency_p99 if figures else None
    trip_p50 = figures.round_trip_p50 if figures else None
    trip_p99 = figures.round_trip_p99 if figures else None
    throughput = figures.throughput if figures else None
    rates = figures.throughput_rounds_per_s if figures else ()
    rate = median(rates) if rates else None
    return CellSummary(
        setting=setting,
        backend=backend,
        status="ok",
        reason="",
        rank=None,
        ratio=None,
        latency_p50_ns=p50.interval() if p50 else None,
        latency_p99_ns=p99.interval() if p99 else None,
        round_trip_p50_ns=trip_p50.interval() if trip_p50 else None,
        round_trip_p99_ns=trip_p99.interval() if trip_p99 else None,
        throughput_per_s=rate,
        throughput_interval_per_s=throughput.interval() if throughput else None,
        throughput_bytes_per_s=rate * setting.payload_bytes if rate is not None else None,
        round_trip_rank=None,
        throughput_rank=None,
        read_p50_ns=figures.read_p50_ns if figures else None,
        write_p50_ns=figures.write_p50_ns if figures else None,
        decode_p50_ns=figures.decode_p50_ns if figures else None,
        writer_cpu_ns=figures.writer_cpu_ns if figures else None,
        reader_cpu_ns=figures.reader_cpu_ns if figures else None,
        latency_floor_ratio=None,
        memory_bandwidth_ratio=None,
        cold_memory_bandwidth_ratio=None,
        rounds_count=0,
        samples_count=figures.samples_count if figures else 0,
        trials_count=0,
        clean_count=0,
        failed_count=0,
        notes=(),
    )
