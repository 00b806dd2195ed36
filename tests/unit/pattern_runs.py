"""Synthetic runs of queues, fan-in and rpc with known figures, stored as the harness stores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipcbench.harness.digest import failed_trial
from ipcbench.results.model import CallCost, PatternWindow, Quantiles, Recovery, TrialResult
from ipcbench.results.store import Run, RunWriter, load_run
from ipcbench.spec import SweepSpec, TrialSpec
from tests.unit.builders import conditions, endpoint, run_info


def pattern_sweep(**changes: Any) -> SweepSpec:
    """Return a sweep of a queue with two workers, at one load."""
    plain = {"name": "queue", "pattern": "queue", "backends": ("shm", "zmq"), "payload": "bytes", "codec": "raw"}
    return SweepSpec(**{**plain, "sizes": (1024,), "peers": (2,), "loads": (0.5,), "rounds": 3, **changes})


def window(spec: TrialSpec, rate_per_s: float, load: float | None = None, count: int = 2000) -> PatternWindow:
    """Return a window whose first peer got half of the messages; its times are 1e9 / rate ns and ten times that."""
    rest = spec.peers - 1
    counts = (500 if rest else 1000, *(500 // rest for _ in range(rest)))
    if load is None:
        return PatternWindow(None, None, rate_per_s, is_held=True, peer_counts=counts)
    time_ns = 1e9 / rate_per_s
    wait = Quantiles(count, time_ns, 5 * time_ns, 10 * time_ns, 20 * time_ns, 2 * time_ns)
    slowest = 12 * time_ns if spec.pattern == "fan_in" and count >= 1000 else None
    return PatternWindow(load, load * rate_per_s, load * rate_per_s, True, counts, wait, slowest)


def call_cost(rate_per_s: float) -> CallCost:
    """Return what a call costs: twice a plain round trip, which takes 1e9 / rate ns."""
    time_ns = 1e9 / rate_per_s
    return CallCost(
        *(Quantiles(100, n * time_ns, 2 * n * time_ns, 3 * n * time_ns, 4 * n * time_ns, time_ns) for n in (1, 2))
    )


def pattern_trial(spec: TrialSpec, trial_id: int, rate_per_s: float, **changes: Any) -> TrialResult:
    """Return a sound trial, or a failed one if the rate is 0."""
    if not rate_per_s:
        return replace(failed_trial(spec, trial_id, "worker-0 was killed by signal 9", 1.7e9), conditions=conditions())
    windows = () if spec.kill else tuple(window(spec, rate_per_s, load) for load in (None, *spec.loads))
    recovery = Recovery(1000, 0, 1, 7) if spec.kill else None
    plain = TrialResult(
        trial_id,
        spec,
        "ok",
        "",
        1.7e9 + trial_id,
        0.5,
        endpoints=(endpoint("writer"), endpoint("worker-0")),
        conditions=conditions(),
        throughput_per_s=rate_per_s,
        windows=windows,
        recovery=recovery,
        cost=call_cost(rate_per_s) if spec.pattern == "rpc" else None,
    )
    return replace(plain, **changes)


def make_pattern_run(
    path: Path,
    rates: Mapping[str, Sequence[float]],
    sweep: SweepSpec | None = None,
    change: Callable[[TrialResult], TrialResult] = lambda trial: trial,
    **info: Any,
) -> Run:
    """Store a run, backend → rate flat out in each round (0: the trials fail), and return it as read back."""
    sweep = replace(sweep or pattern_sweep(), backends=tuple(rates))
    with RunWriter.create(path, run_info(sweep, **info)) as writer:
        for round_index in range(max(map(len, rates.values()))):
            for name, of_rounds in rates.items():
                for spec in sweep.pattern_trials(name, sweep.sizes[0], sweep.sizes[0], round_index):
                    if round_index < len(of_rounds):
                        trial = pattern_trial(spec, writer.next_trial_id, of_rounds[round_index])
                        writer.append(change(trial))
    return load_run(path)


def short(trial: TrialResult) -> TrialResult:
    """Return the trial with too few messages for a p99 in one round."""
    if trial.spec.round_index or trial.spec.kill:
        return trial
    first, *others = trial.windows
    return replace(
        trial,
        windows=(first, *(replace(each, wait=replace(each.wait, count=999), slowest_p99_ns=None) for each in others)),
    )
