"""From the trials of queues and fan-in to figures by backend, number of peers and batch, ranked by their rate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median
from typing import Any, Self

import numpy as np

from ipcbench.analysis.summary.cells import CellStatus
from ipcbench.analysis.summary.figures import generator_of, round_name, rounds_estimate
from ipcbench.analysis.summary.notes import cell_notes, failure_reason, is_sound
from ipcbench.results.model import PatternWindow, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import USUAL_P99_LIMIT_S, Touch, WaitStrategy, Work
from ipcbench.stats.decisions import judged, prior_of, rank_groups, table_prior
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval, has_quantile, ratio, rounds_in_common
from ipcbench.stats.fairness import jain_index, largest_share
from ipcbench.stats.prior import VariancePrior

NOT_REACHED = "not reached"
"""Begins the reason of a backend that can, but was not measured."""
_LEAST = 1e-3
"""Stands in for a time of 0, which has no logarithm."""


@dataclass(frozen=True, slots=True, order=True)
class PatternSetting:
    """What cells must have in common to be ranked against each other."""

    pattern: Work
    neighbours: int
    payload: str
    size: int
    payload_bytes: int
    """Encoded size."""
    codec: str
    depth: int
    wait: WaitStrategy
    pin: str
    touch: Touch
    peers: int
    """Workers of a queue, writers of a fan-in, clients of rpc."""
    batch: int
    """Messages that a writer hands over together."""
    in_flight: int
    """Of rpc: calls that each client has in flight."""
    reply_bytes: int
    """Of rpc: size of the array in a reply."""
    service_ns: int
    """Of rpc: for how long the method works."""

    @classmethod
    def of(cls, trial: TrialResult) -> Self:
        """Return the setting that a trial belongs to."""
        return cls(**{each.name: getattr(trial.spec, each.name) for each in fields(cls)})

    def family(self) -> Self:
        """Return what the settings of one table have in common."""
        return replace(self, peers=0, batch=0, in_flight=0)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Times from the intended send to the receipt, at a share of what the backend itself carries flat out."""

    load_ratio: float
    offered_per_s: float
    """By all writers together: median over the rounds."""
    held_count: int
    """Rounds in which the rate was held; the times are of these, and say nothing if they are not more than half."""
    rounds_count: int
    wait_p50_ns: Interval | None
    """Median over these rounds of their p50; None if there are none."""
    wait_p99_ns: Interval | None
    """The same of p99; None if one of them has too few messages."""
    slowest_p99_ns: Interval | None
    """Fan-in and rpc: the same of the p99 of the writer or client with the highest."""

    @property
    def is_held(self) -> bool:
        """Whether the rate was held in more than half of the rounds."""
        return 2 * self.held_count > self.rounds_count


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Of rpc: one call at a time beside a plain round trip, and what is carried with a given p99."""

    plain_p50_ns: Interval
    """Median over the rounds of the p50 of plain round trips."""
    call_p50_ns: Interval
    """The same of calls."""
    cost_ratio: Interval
    """The call over the plain round trip, by rounds."""
    p99_limit_ns: float
    within_limit_per_s: float | None
    """Calls per second: the largest load that was held with a p99 of at most `p99_limit_ns`; 0 if none was, and None if
    one that was held has too few calls for a p99, so that nobody knows."""


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """What became of messages after a worker of a queue was killed, over all rounds."""

    kills_count: int
    sent_count: int
    lost_count: int
    repeated_count: int
    """Messages that two workers began."""
    redelivered_count: int | None
    """Messages that were given to another worker, begun or not; None if unknown."""


@dataclass(frozen=True, slots=True)
class PatternCell:
    """One backend at one setting. Figures that were not measured are None; a cell that is not ok has none."""

    setting: PatternSetting
    backend: str
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    rank: int | None = None
    """By the rate; equal ranks have no clear difference. None with too few rounds."""
    ratio: Interval | None = None
    """How many times as slow as the best of the setting, flat out; 1 for the best itself."""
    compared_rounds_count: int | None = None
    """Rounds that it has in common with the best."""
    rate_per_s: Interval | None = None
    """Messages per second flat out, by all peers together; the median alone with fewer than three rounds."""
    largest_share_ratio: float | None = None
    """Queue: the share of the messages that the busiest worker got flat out, median over the rounds."""
    jain_ratio: float | None = None
    """Fan-in and rpc: Jain's index of the writers' or clients' rates flat out, median over the rounds."""
    loads: tuple[LoadFigures, ...] = ()
    calls: CallFigures | None = None
    """Of rpc."""
    recovery: RecoveryFigures | None = None
    """Queue: None where no worker was killed."""
    recovery_reason: str = ""
    """Why trials with a kill failed."""
    rounds_count: int = 0
    trials_count: int = 0
    failed_count: int = 0
    notes: tuple[str, ...] = ()
    time: Estimate | None = field(default=None, compare=False, repr=False)
    """Time per message flat out, s."""


def pattern_cells(run: Run, among: Collection[str] | None = None) -> tuple[PatternCell, ...]:
    """Return the cells of all queues, fan-in and rpc of a run, those of a setting together, the best first.

    Args:
        run: what was measured.
        among: the backends to rank; None for all. That they are fewer makes no difference surer.
    """
    groups: dict[PatternSetting, dict[str, list[TrialResult]]] = {}
    for trial in run.pattern_trials:
        groups.setdefault(PatternSetting.of(trial), {}).setdefault(trial.spec.backend, []).append(trial)
    cells = {
        setting: [_cell(run, setting, name, trials) for name, trials in by_backend.items()]
        for setting, by_backend in sorted(groups.items())
    }
    names = list(dict.fromkeys(trial.spec.backend for trial in run.pattern_trials))
    times = [[{cell.backend: cell.time for cell in group}.get(name) for name in names] for group in cells.values()]
    prior = prior_of(times)
    return tuple(cell for group in cells.values() for cell in _ranked(run, group, prior, among))


def _ranked(
    run: Run, group: Sequence[PatternCell], prior: VariancePrior | None, among: Collection[str] | None
) -> list[PatternCell]:
    """Return the cells of a setting with ranks, sorted, and then the backends that were not measured."""
    table = list(judged({cell.backend: cell.time for cell in group if cell.time is not None}).values())
    cells = [cell for cell in group if among is None or cell.backend in among]
    times = judged({cell.backend: cell.time for cell in cells if cell.time is not None})
    best = min(times.values(), key=lambda time: time.value, default=None)
    ranks = dict(zip(times, rank_groups(list(times.values()), prior, table), strict=True))
    own_prior = table_prior(table, prior)
    enough = best is not None and best.rounds_count >= MIN_CLAIM_ROUNDS
    done = []
    for cell in cells:
        if best is None or cell.time is None:
            done.append(cell)
            continue
        is_best = cell.time is best
        done.append(
            replace(
                cell,
                rank=ranks.get(cell.backend) if enough and len(times) > 1 else None,
                ratio=Interval(1.0, 1.0, 1.0) if is_best else ratio(cell.time, best, own_prior, len(table)),
                compared_rounds_count=rounds_in_common(cell.time, best),
            )
        )
    done.sort(key=lambda cell: (cell.rate_per_s is None, -cell.rate_per_s.estimate if cell.rate_per_s else 0.0))
    missing = dict.fromkeys(run.info.planned_backends, f"{NOT_REACHED}: the run is {run.info.status}") | dict(
        run.info.skipped
    )
    measured = {cell.backend for cell in group}
    return done + [
        PatternCell(group[0].setting, name, "skipped", reason)
        for name, reason in missing.items()
        if name not in measured and (among is None or name in among)
    ]


def _cell(run: Run, setting: PatternSetting, backend: str, trials: Sequence[TrialResult]) -> PatternCell:
    plain, kills = ([trial for trial in trials if trial.spec.kill == kill] for kill in (False, True))
    sound = {round_name(run.info.run_id, trial): trial for trial in plain if is_sound(trial) and trial.windows}
    cell = PatternCell(
        setting,
        backend,
        "ok" if sound else "failed",
        reason="" if sound else failure_reason(plain) or "no trial without a kill was made",
        recovery=_recovery(kills),
        recovery_reason=failure_reason(kills),
        rounds_count=len(sound),
        trials_count=len(plain),
        failed_count=len(plain) - len(sound),
    )
    if not sound:
        return cell
    firsts = {name: trial.windows[0] for name, trial in sound.items()}
    generator = _generator(setting, backend, setting.pattern)
    rates = {name: window.rate_per_s for name, window in firsts.items()}
    time = rounds_estimate({name: 1.0 / rate for name, rate in rates.items()}, generator)
    share, jain = ([each(window.peer_counts) for window in firsts.values()] for each in (largest_share, jain_index))
    is_queue = setting.pattern == "queue"
    ratios = sorted({window.load_ratio for trial in sound.values() for window in trial.windows if window.load_ratio})
    loads = tuple(_load(setting, backend, sound, load) for load in ratios)
    return replace(
        cell,
        rate_per_s=_interval(setting, backend, "rate", rates),
        largest_share_ratio=_median(share) if is_queue else None,
        jain_ratio=None if is_queue else _median(jain),
        loads=loads,
        calls=_calls(run, setting, backend, sound, loads),
        notes=cell_notes(plain, 0),
        time=None if time is None else replace(time, of=backend),
    )


def _generator(setting: PatternSetting, backend: str, purpose: str) -> np.random.Generator:
    parts = f"{purpose} {setting.peers} {setting.batch}" + f" {setting.in_flight}" * (setting.pattern == "rpc")
    return generator_of(backend, parts, setting.size)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _interval(setting: PatternSetting, backend: str, purpose: str, values: Mapping[str, float]) -> Interval | None:
    """Return the median over the rounds with its interval; alone if they are too few for one."""
    if not values:
        return None
    generator = _generator(setting, backend, purpose)
    estimate = None
    if len(values) >= MIN_CLAIM_ROUNDS:
        estimate = rounds_estimate({name: max(value, _LEAST) for name, value in values.items()}, generator)
    middle = median(values.values())
    return Interval(middle, middle, middle) if estimate is None else estimate.interval()


def _load(setting: PatternSetting, backend: str, sound: Mapping[str, TrialResult], load: float) -> LoadFigures:
    windows = {name: window for name, trial in sound.items() for window in trial.windows if window.load_ratio == load}
    held = {name: window for name, window in windows.items() if window.is_held}

    def over_rounds(purpose: str, figure: Callable[[PatternWindow], float | None]) -> Interval | None:
        """Return the median over the rounds in which the rate was held; None if one of them has no such figure."""
        known = {name: value for name, window in held.items() if (value := figure(window)) is not None}
        return _interval(setting, backend, f"{purpose} {load}", known) if len(known) == len(held) else None

    return LoadFigures(
        load_ratio=load,
        offered_per_s=median(window.offered_per_s or 0.0 for window in windows.values()),
        held_count=len(held),
        rounds_count=len(windows),
        wait_p50_ns=over_rounds("p50", lambda window: window.wait.p50_ns if window.wait else None),
        wait_p99_ns=over_rounds("p99", _p99_ns),
        slowest_p99_ns=over_rounds("slowest", lambda window: window.slowest_p99_ns),
    )


def _p99_ns(window: PatternWindow) -> float | None:
    wait = window.wait
    return wait.p99_ns if wait is not None and has_quantile(wait.count, 0.99) else None


def _calls(
    run: Run,
    setting: PatternSetting,
    backend: str,
    sound: Mapping[str, TrialResult],
    loads: Sequence[LoadFigures],
) -> CallFigures | None:
    costs = {name: trial.cost for name, trial in sound.items() if trial.cost is not None}
    plain = {name: cost.plain.p50_ns for name, cost in costs.items()}
    call = {name: cost.call.p50_ns for name, cost in costs.items()}
    intervals = (
        _interval(setting, backend, "plain", plain),
        _interval(setting, backend, "call", call),
        _interval(setting, backend, "cost", {name: call[name] / max(plain[name], _LEAST) for name in plain}),
    )
    if None in intervals:
        return None
    limit_ns = 1e9 * float(run.info.sweep.get("p99_limit_s", USUAL_P99_LIMIT_S))
    held = [load for load in loads if load.is_held]
    within = [load.offered_per_s for load in held
              if load.wait_p99_ns is not None and load.wait_p99_ns.estimate <= limit_ns]  # fmt: skip
    is_known = bool(within) or not any(load.wait_p99_ns is None for load in held)
    return CallFigures(*intervals, limit_ns, max(within, default=0.0) if is_known else None)  # type: ignore[arg-type] # none is None


def _recovery(kills: Sequence[TrialResult]) -> RecoveryFigures | None:
    found = [trial.recovery for trial in kills if trial.recovery is not None]
    if not found:
        return None
    redelivered = [each.redelivered_count for each in found if each.redelivered_count is not None]
    return RecoveryFigures(
        kills_count=len(found),
        sent_count=sum(each.sent_count for each in found),
        lost_count=sum(each.lost_count for each in found),
        repeated_count=sum(each.repeated_count for each in found),
        redelivered_count=sum(redelivered) if len(redelivered) == len(found) else None,
    )


def cell_fields(cell: PatternCell) -> dict[str, Any]:
    """Return a cell as plain values with units in their names, times in µs; None where not measured."""
    few = cell.rounds_count < MIN_CLAIM_ROUNDS
    return {
        **asdict(cell.setting),
        "backend": cell.backend,
        "status": cell.status,
        "reason": cell.reason,
        "rank": cell.rank,
        **_ends("ratio_to_best", "", cell.ratio, few=(cell.compared_rounds_count or 0) < MIN_CLAIM_ROUNDS),
        **_ends("messages", "_per_s", cell.rate_per_s, few=few),
        "largest_share_ratio": cell.largest_share_ratio,
        "jain_ratio": cell.jain_ratio,
        "loads": [_load_fields(load) for load in cell.loads],
        "calls": None if cell.calls is None else _call_fields(cell.calls, few=few),
        "recovery": None if cell.recovery is None else asdict(cell.recovery),
        "recovery_reason": cell.recovery_reason,
        "rounds_count": cell.rounds_count,
        "trials_count": cell.trials_count,
        "failed_count": cell.failed_count,
        "notes": list(cell.notes),
    }


def _load_fields(load: LoadFigures) -> dict[str, Any]:
    few = load.held_count < MIN_CLAIM_ROUNDS
    times = {"wait_p50": load.wait_p50_ns, "wait_p99": load.wait_p99_ns, "slowest_writer_p99": load.slowest_p99_ns}
    held = load.is_held
    values: dict[str, Any] = {name: getattr(load, name) for name in ("load_ratio", "offered_per_s", "held_count")}
    values["rounds_count"] = load.rounds_count
    for name, time in times.items():
        values |= _ends(name, "_us", time if held else None, 1e3, few=few)
    return values


def _call_fields(calls: CallFigures, *, few: bool) -> dict[str, Any]:
    return {
        **_ends("plain_p50", "_us", calls.plain_p50_ns, 1e3, few=few),
        **_ends("call_p50", "_us", calls.call_p50_ns, 1e3, few=few),
        **_ends("call_ratio", "", calls.cost_ratio, few=few),
        "p99_limit_us": calls.p99_limit_ns / 1e3,
        "within_limit_per_s": calls.within_limit_per_s,
    }


def _ends(
    name: str, unit: str, interval: Interval | None, divisor: float = 1.0, *, few: bool
) -> dict[str, float | None]:
    """Return estimate and ends of an interval; the ends are None after too few rounds."""
    ends = (None, None) if interval is None or few else (interval.low / divisor, interval.high / divisor)
    middle = None if interval is None else interval.estimate / divisor
    return {f"{name}{unit}": middle, f"{name}_low{unit}": ends[0], f"{name}_high{unit}": ends[1]}


def flat_fields(cell: PatternCell) -> dict[str, Any]:
    """Return `cell_fields` as one row: the loads' fields begin with `load_50_`, those of the recovery with
    `recovery_`.
    """
    values = cell_fields(cell)
    loads, recovery, calls = values.pop("loads"), values.pop("recovery"), values.pop("calls")
    notes = values.pop("notes")
    for load in loads:
        name = f"load_{100 * load['load_ratio']:g}"
        values |= {f"{name}_{key}": value for key, value in load.items() if key != "load_ratio"}
    values |= calls or {}
    names = [each.name for each in fields(RecoveryFigures)]
    values |= {f"recovery_{name}": recovery[name] if recovery else None for name in names}
    return {**values, "notes": "; ".join(notes)}
