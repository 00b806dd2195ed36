"""A run in figures: the cells of each setting, ranked where they can be told apart, and the A/A control.

Cells are compared only within one setting. The delivery is part of the setting: a lossless backend is never ranked
against one that overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

from ipcbench.analysis.summary.cells import (
    METRIC_WORDS,
    CellStatus,
    CellSummary,
    Control,
    Metric,
    Setting,
    SettingSummary,
    Summary,
    preferred_metrics,
    time_of,
)
from ipcbench.analysis.summary.figures import CellFigures, cell_figures
from ipcbench.analysis.summary.notes import cell_notes, failure_reason, harness_ns, is_sound, is_wrong
from ipcbench.analysis.summary.waits import wait_shares
from ipcbench.analysis.summary.wording import plural
from ipcbench.errors import StoreError
from ipcbench.results.model import Floor, RunInfo, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Mode
from ipcbench.stats.decisions import judged, prior_of, rank_groups, rounds_to_decide, table_prior
from ipcbench.stats.estimates import (
    MIN_CLAIM_ROUNDS,
    Estimate,
    Interval,
    noise_ratio,
    paired_difference,
    ratio,
    rounds_in_common,
)
from ipcbench.stats.prior import VariancePrior

_METRICS: dict[Mode, Metric] = {"paced": "latency", "pingpong": "round trip", "saturate": "throughput"}


@dataclass(frozen=True, slots=True)
class _Cell:
    backend: str
    trials: tuple[TrialResult, ...]
    sound: tuple[TrialResult, ...]
    figures: CellFigures


def summarise(run: Run) -> Summary:
    """Return the figures of a run, from stored data alone; the same run always gives the same figures.

    Raises:
        StoreError: one setting has trials at different rates, which must not be joined.
    """
    groups: dict[Setting, dict[str, list[TrialResult]]] = {}
    for trial in run.trials:
        groups.setdefault(Setting.of(trial), {}).setdefault(trial.spec.backend, []).append(trial)
    cells = {
        setting: [_cell(run, name, trials) for name, trials in by_backend.items()]
        for setting, by_backend in sorted(groups.items())
    }
    names = list(dict.fromkeys(trial.spec.backend for trial in run.trials))
    times = {
        metric: [[found.get(name) for name in names] for group in cells.values() for found in [_times(group, metric)]]
        for metric in get_args(Metric)
    }
    noise = {metric: noise_ratio([list(filter(None, row)) for row in rows]) for metric, rows in times.items()}
    priors = {metric: prior for metric, by_setting in times.items() if (prior := prior_of(by_setting)) is not None}
    around = [trial.conditions for trial in run.trials if trial.conditions is not None]
    probes = [probe for each in around for probe in (each.probe_before_ns, each.probe_after_ns) if probe]
    return Summary(
        info=run.info,
        settings=tuple(_summarise_setting(run, setting, group, priors) for setting, group in cells.items()),
        noise_ratios={metric: share for metric, share in noise.items() if share is not None},
        priors=priors,
        controls=controls(run),
        placement_ns=(min(probes), max(probes)) if probes else None,
        problems=run.problems + _absent_sizes(run),
        pattern_trials=run.pattern_trials,
    )


def controls(run: Run) -> tuple[Control, ...]:
    """Return the A/A control of each metric, compared as two backends are; one with fewer than three rounds of two
    sound trials has none.
    """
    groups: dict[tuple[Setting, str], list[TrialResult]] = {}
    for trial in filter(is_sound, run.controls):
        groups.setdefault((Setting.of(trial), trial.spec.backend), []).append(trial)
    found = []
    for (setting, backend), twins in groups.items():
        singles = [
            trial
            for trial in run.trials
            if (Setting.of(trial), trial.spec.backend) == (setting, backend) and is_sound(trial)
        ]
        second, first = cell_figures(run, twins), cell_figures(run, singles)
        for metric in get_args(Metric):
            again, once = time_of(second, metric), time_of(first, metric)
            if again is None or once is None:
                continue
            paired = paired_difference(again, once)
            if paired is not None and paired.rounds_count >= MIN_CLAIM_ROUNDS:
                change = ratio(once, again) if metric == "throughput" else ratio(again, once)
                found.append(Control(metric, backend, setting.payload_bytes, change))
    return tuple(found)


def _cell(run: Run, backend: str, trials: Sequence[TrialResult]) -> _Cell:
    sound = tuple(trial for trial in trials if is_sound(trial))
    return _Cell(backend, tuple(trials), sound, cell_figures(run, sound))


def _absent_sizes(run: Run) -> tuple[str, ...]:
    seen = {trial.spec.size for trial in (*run.trials, *run.pattern_trials)}
    return tuple(
        f"size {payload['size']:,}: no trial was made; the run is {run.info.status}"
        for payload in run.info.payloads
        if isinstance(payload.get("size"), int) and payload["size"] not in seen
    )


def _summarise_setting(
    run: Run, setting: Setting, cells: Sequence[_Cell], priors: Mapping[Metric, VariancePrior]
) -> SettingSummary:
    times = {metric: _times(cells, metric) for metric in get_args(Metric)}
    ranked = {metric: judged(estimates) for metric, estimates in times.items()}
    ranks = {metric: _ranks(estimates, priors.get(metric)) for metric, estimates in ranked.items()}
    metric: Metric | None = next((name for name in preferred_metrics(run.info) if times[name]), None)
    main = ranked[metric] if metric else {}
    prior = table_prior(list(main.values()), priors.get(metric)) if metric else None
    ratios = _ratios_to_best(times[metric], main, prior) if metric else {}
    missing = {
        name: _missing_rounds(estimates, table_prior(list(estimates.values()), priors.get(name)))
        for name, estimates in ranked.items()
    }
    best = min(main.values(), key=lambda time: time.value, default=None)
    common = {name: rounds_in_common(time, best) for name, time in times[metric].items()} if metric and best else {}
    rows = [
        replace(
            _with_gaps(_summarise_cell(run, setting, cell), times, ranked),
            rank=ranks[metric].get(cell.backend) if metric else None,
            ratio=ratios.get(cell.backend),
            other_ratios=_other_ratios(cell.backend, {name: ranked[name] for name in ranked if name != metric}, priors),
            rounds_to_decide=missing[metric].get(cell.backend) if metric else None,
            other_rounds_to_decide={
                name: counts[cell.backend]
                for name, counts in missing.items()
                if cell.backend in counts and name != metric
            },
            compared_rounds_count=common.get(cell.backend),
            round_trip_rank=ranks["round trip"].get(cell.backend),
            throughput_rank=ranks["throughput"].get(cell.backend),
        )
        for cell in cells
    ]
    rows += [CellSummary(setting, name, "skipped", reason) for name, reason in _left_out(run.info, cells).items()]
    rows.sort(key=lambda row: _order(row, times[metric] if metric else {}))
    absent = {name: why for name, found in times.items() if not found and (why := _why_absent(cells, name))}
    paced, trips = (_offered_rate(setting, cells, mode) for mode in ("paced", "pingpong"))
    return SettingSummary(setting, metric, paced, tuple(rows), absent, trips)


def _with_gaps(
    cell: CellSummary,
    times: Mapping[Metric, Mapping[str, Estimate]],
    ranked: Mapping[Metric, Mapping[str, Estimate]],
) -> CellSummary:
    """Return the cell with a note for each metric that it was measured by, and that only others have a figure or a rank
    of.
    """
    tried = {_METRICS[trial.spec.mode] for trial in cell.trials}
    gaps = [metric for metric, found in times.items() if metric in tried and found and cell.backend not in found]
    if cell.throughput_per_s is not None and "throughput" in gaps:
        gaps.remove("throughput")  # it has the figure, of one round, but not what it takes to compare it
    notes = [f"no {METRIC_WORDS[metric]}: too few samples that count" for metric in gaps]
    for metric, found in times.items():
        if cell.backend in found and cell.backend not in ranked[metric]:
            rounds = plural(found[cell.backend].rounds_count, "round", "rounds")
            notes.append(f"not ranked by {METRIC_WORDS[metric]}: only {rounds} of it, and a rank takes three")
    return replace(cell, notes=(*cell.notes, *notes))


def _why_absent(cells: Sequence[_Cell], metric: Metric) -> str:
    """Return why no cell can be ranked by a metric; empty if it was not tried."""
    trials = [
        trial for cell in cells for trial in cell.trials if _METRICS[trial.spec.mode] == metric and not trial.spec.tail
    ]
    reasons = [failure_reason([trial]) for trial in trials if not is_sound(trial)]
    if reasons and len(reasons) == len(trials):
        return f"all {len(trials)} {trials[0].spec.mode} trials failed; the first: {reasons[0]}"
    absent = sum(cell.figures.unreadable_count for cell in cells)
    those = f" (those of {plural(absent, 'trial', 'trials')} are missing or unusable)" if absent else ""
    return f"too few samples{those}" if trials else ""


def _times(cells: Sequence[_Cell], metric: Metric) -> dict[str, Estimate]:
    """Return backend → time by this metric."""
    return {cell.backend: time for cell in cells if (time := time_of(cell.figures, metric)) is not None}


def _ranks(times: Mapping[str, Estimate], prior: VariancePrior | None) -> dict[str, int]:
    return dict(zip(times, rank_groups(list(times.values()), prior), strict=True))


def _ratios_to_best(
    times: Mapping[str, Estimate], ranked: Mapping[str, Estimate], prior: VariancePrior | None
) -> dict[str, Interval]:
    best = min(ranked, key=lambda name: ranked[name].value)
    return {
        name: Interval(1.0, 1.0, 1.0) if name == best else ratio(time, ranked[best], prior, len(ranked))
        for name, time in times.items()
    }


def _other_ratios(
    backend: str, ranked: Mapping[Metric, Mapping[str, Estimate]], priors: Mapping[Metric, VariancePrior]
) -> dict[Metric, Interval]:
    """Return metric → how many times as slow as the best, the intervals by which ranks are decided."""
    found: dict[Metric, Interval] = {}
    for metric, times in ranked.items():
        best = min(times.values(), key=lambda time: time.value, default=None)
        if best is None or backend not in times:
            continue
        if (rounds_in_common(times[backend], best) or 0) >= MIN_CLAIM_ROUNDS:
            prior = table_prior(list(times.values()), priors.get(metric))
            found[metric] = _ratios_to_best({backend: times[backend]}, times, prior)[backend]
    return found


def _missing_rounds(times: Mapping[str, Estimate], prior: VariancePrior | None) -> dict[str, int | None]:
    """Return backend → how many more rounds would tell it from the best; the best itself is left out."""
    best = min(times.values(), key=lambda time: time.value, default=None)
    return {
        name: rounds_to_decide(time, best, prior, len(times))
        for name, time in times.items()
        if best is not None and time is not best
    }


def _order(row: CellSummary, times: Mapping[str, Estimate]) -> tuple[float, float, str]:
    if row.backend in times:
        return 0.0, times[row.backend].value, row.backend
    return {"ok": 1.0, "failed": 2.0, "skipped": 3.0}[row.status], 0.0, row.backend


def _offered_rate(setting: Setting, cells: Sequence[_Cell], mode: Mode) -> float | None:
    rates = {trial.spec.rate_per_s for cell in cells for trial in cell.trials if trial.spec.mode == mode}
    if len(rates) > 1:
        raise StoreError(f"size {setting.size:,}: {mode} trials at different rates cannot be joined: {sorted(rates)}")
    return (rates.pop() or None) if rates else None


def _left_out(info: RunInfo, cells: Sequence[_Cell]) -> dict[str, str]:
    """Return the backends of the sweep without a trial at this setting, with the reason."""
    reasons = dict.fromkeys(info.planned_backends, f"not reached: the run is {info.status}") | dict(info.skipped)
    measured = {cell.backend for cell in cells}
    return {name: reason for name, reason in reasons.items() if name not in measured}


def _summarise_cell(run: Run, setting: Setting, cell: _Cell) -> CellSummary:
    """Return a cell by itself, not ranked yet."""
    status: CellStatus = "ok"
    if not cell.sound:
        status = "skipped" if all(trial.status == "skipped" for trial in cell.trials) else "failed"
    summary = CellSummary(
        setting,
        cell.backend,
        status,
        reason="" if cell.sound else failure_reason(cell.trials),
        trials_count=len(cell.trials),
        clean_count=sum(trial.stamp == "clean" for trial in cell.sound),
        failed_count=sum(trial.status != "skipped" and not is_sound(trial) for trial in cell.trials),
        wrong_count=sum(map(is_wrong, cell.trials)),
        rounds_count=len({trial.spec.round_index for trial in cell.sound}),
        trials=cell.sound,
    )
    if not cell.sound:
        return summary
    summary = replace(
        _with_figures(summary, cell.figures),
        notes=cell_notes(cell.trials, cell.figures.unreadable_count, run.info.floor),
    )
    return summary if run.info.floor is None else _with_floor(summary, run.info.floor)


def _with_figures(summary: CellSummary, figures: CellFigures) -> CellSummary:
    rates = figures.throughput_rounds_per_s
    rate = median(rates) if rates else None
    return replace(
        summary,
        figures=figures,
        latency_p50_ns=_interval(figures.latency_p50),
        latency_p99_ns=_interval(figures.latency_p99),
        round_trip_p50_ns=_interval(figures.round_trip_p50),
        round_trip_p99_ns=_interval(figures.round_trip_p99),
        throughput_per_s=rate,
        throughput_interval_per_s=_interval(figures.throughput) if len(rates) >= MIN_CLAIM_ROUNDS else None,
        throughput_bytes_per_s=rate * summary.setting.payload_bytes if rate is not None else None,
        read_p50_ns=figures.read_p50_ns,
        write_p50_ns=figures.write_p50_ns,
        decode_p50_ns=figures.decode_p50_ns,
        writer_cpu_ns=figures.writer_cpu_ns,
        reader_cpu_ns=figures.reader_cpu_ns,
        samples_count=figures.samples_count,
        latency_waits=wait_shares(summary.trials, "paced"),
        round_trip_waits=wait_shares(summary.trials, "pingpong"),
        throughput_waits=wait_shares(summary.trials, "saturate"),
    )


def _interval(estimate: Estimate | None) -> Interval | None:
    return None if estimate is None else estimate.interval()


def _with_floor(summary: CellSummary, floor: Floor) -> CellSummary:
    p50, rate = summary.latency_p50_ns, summary.throughput_bytes_per_s
    paced = [
        sum(loops)
        for trial in summary.trials
        if trial.spec.mode == "paced" and not trial.spec.tail and (loops := harness_ns(trial, floor))
    ]
    loops_ns = median(paced) if paced else 0.0
    size = str(summary.setting.payload_bytes)
    memory, cold = floor.memcpy_bytes_per_s.get(size), floor.memcpy_cold_bytes_per_s.get(size)
    return replace(
        summary,
        latency_floor_ratio=p50.estimate / loops_ns if p50 is not None and loops_ns > 0 else None,
        memory_bandwidth_ratio=rate / memory if rate is not None and memory else None,
        cold_memory_bandwidth_ratio=rate / cold if rate is not None and cold else None,
    )
