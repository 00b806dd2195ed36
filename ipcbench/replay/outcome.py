"""The results of a replay: predicted end-to-end times, gains, ranks, ties, and the times of each method.

A prediction is what the replay took, plus the recorded server's work if it was not replayed. If the transport of the
trace was replayed as well, gains are against that replay and not against the single recording, which may have been
disturbed. Only where the server's work is unknown, and therefore not replayed, is the prediction then the recorded time
plus the difference between the two replays: the unknown part is in the recording, not in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

import numpy as np

from ipcbench.replay.run import Measured, Replayed
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.decisions import Verdict, compare, rank_groups
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval, ratio
from ipcbench.trace.readers.batch import UNKNOWN

_DOUBTFUL_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class BackendOutcome:
    """The result of one backend. Times are in ns, from the first call's begin to the last one's end.

    Attributes:
        rounds_count: replays that ended.
        replayed_ns: the median of the rounds.
        table_ns: what the α + β·bytes table predicts.
        predicted_ns: with its 95 % interval; low and high are the estimate with a single round.
        at_most_ns: upper bound where the server's work is unknown; then `predicted_ns` is the lower one. None, too, for
            calls that nobody made: `predicted_ns` is then the lower bound, and there is no upper one.
        gain_ratio: 1 − predicted / base, with its 95 % interval; the base is the replay over the recorded transport, or
            the recorded time if there is none or the server's work is unknown. None for calls that nobody made.
        verdict: against the same base; None where only bounds are known or there is a single round.
        rank: 1 is the quickest; those that cannot be told apart share it.
        failure: why there are no more rounds.
    """

    name: str
    rounds_count: int
    replayed_ns: float
    table_ns: float
    predicted_ns: Interval
    at_most_ns: float | None
    gain_ratio: Interval | None
    verdict: Verdict | None
    rank: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class MethodOutcome:
    """One method. Means over its calls, in ns and bytes; replays: medians over the rounds, by backend. No call was made
    where there is no recorded time.
    """

    name: str
    calls_count: int
    sent_bytes: float
    recv_bytes: float
    recorded_ns: float | None
    server_ns: float | None
    """None if it is unknown, or only a part of it is known."""
    replayed_ns: dict[str, float]
    layout: str = ""
    """What its messages usually consist of; empty if the trace does not say."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The whole result.

    Attributes:
        recorded_ns: the same calls as they were recorded, the longest client's; None for calls that nobody made.
        remarks: what the reader must know, one sentence each.
        left_out: backends that cannot run here, with the reason.
        failed: backends without any result, with the reason.
    """

    traffic: Traffic
    source: str
    think: bool
    rounds_count: int
    recorded_ns: float | None
    backends: tuple[BackendOutcome, ...]
    methods: tuple[MethodOutcome, ...]
    remarks: tuple[str, ...]
    left_out: dict[str, str]
    failed: dict[str, str]


def conclude(replayed: Replayed, seed: int = 1) -> ReplayOutcome:
    """Return the results; `seed` is that of the bootstrap."""
    traffic, request = replayed.traffic, replayed.request
    done = {name: measured for name, measured in replayed.measured.items() if measured.threads_ns}
    failures = {name: measured.failure for name, measured in replayed.measured.items() if not measured.threads_ns}
    anchor = request.source if request.source in done else ""
    generator = np.random.default_rng(seed)
    differs = bool(anchor) and not traffic.server_known
    ends = {name: _ends(replayed, measured, done[anchor] if differs else None) for name, measured in done.items()}
    estimates = {name: median_estimate(values, generator) for name, values in ends.items()}
    ranks = _ranks(ends, estimates)
    bounded = not anchor and not traffic.server_known
    backends = tuple(
        _backend(replayed, name, ends, estimates, anchor, against="" if differs else anchor, rank=ranks[name])
        for name in done
    )
    return ReplayOutcome(
        traffic=traffic,
        source=anchor,
        think=request.think,
        rounds_count=max(len(measured.threads_ns) for measured in done.values()),
        recorded_ns=traffic.recorded_ns if traffic.is_timed else None,
        backends=tuple(sorted(backends, key=lambda backend: backend.predicted_ns.estimate)),
        methods=_methods(traffic, done),
        remarks=(*traffic.remarks, *_remarks(replayed, anchor, bounded), *_next_steps(replayed)),
        left_out=replayed.skipped,
        failed=failures,
    )


def _longest(measured: Measured) -> list[int]:
    return [max(threads) for threads in measured.threads_ns]


def _ends(replayed: Replayed, measured: Measured, anchor: Measured | None) -> list[float]:
    """Return the predicted end-to-end time of each round."""
    traffic = replayed.traffic
    if anchor is not None:
        base = _longest(anchor)
        usual = float(np.median(base))
        # A round in which only one of the two was replayed is compared with the median.
        return [
            max(traffic.recorded_ns + longest_ns - (base[index] if index < len(base) else usual), 1.0)
            for index, longest_ns in enumerate(_longest(measured))
        ]
    if replayed.request.think:
        return [float(longest_ns) for longest_ns in _longest(measured)]
    omitted = [_worked_ns(thread) for thread in traffic.threads]
    busiest_ns = _busiest_ns(traffic)
    return [float(max(*map(add, threads, omitted), busiest_ns)) for threads in measured.threads_ns]


def _worked_ns(thread: ThreadCalls) -> int:
    return int(np.maximum(thread.server_ns, 0).sum())


def _busiest_ns(traffic: Traffic) -> int:
    """Return how long the busiest server worked for all its clients together; no replay can be shorter."""
    return max(sum(_worked_ns(traffic.threads[number]) for number in numbers) for numbers in traffic.services)


def _ranks(ends: dict[str, list[float]], estimates: dict[str, Estimate | None]) -> dict[str, int]:
    """Return ranks; without intervals all backends share the first."""
    known = [estimate for estimate in estimates.values() if estimate is not None]
    if len(known) < len(estimates):
        return dict.fromkeys(ends, 1)
    return dict(zip(ends, rank_groups(known), strict=True))


def _backend(
    replayed: Replayed,
    name: str,
    ends: dict[str, list[float]],
    estimates: dict[str, Estimate | None],
    anchor: str,
    *,
    against: str,
    rank: int,
) -> BackendOutcome:
    """Return the result of a backend; its gain is `against` the replay of another, or the recording if empty."""
    traffic, measured = replayed.traffic, replayed.measured[name]
    middle, estimate = float(np.median(ends[name])), estimates[name]
    bounded = not anchor and not traffic.server_known
    is_least = not replayed.request.think and middle <= _busiest_ns(traffic)
    predicted = estimate.interval() if estimate else Interval(middle, middle, middle)
    base = estimates.get(against)
    times: Interval | None = None
    if name == against:
        times = Interval(1.0, 1.0, 1.0)
    elif estimate is not None and base is not None:
        times = ratio(estimate, base)
    elif traffic.is_timed:
        base_ns = float(np.median(ends[against])) if against else float(traffic.recorded_ns)
        times = Interval(predicted.low / base_ns, predicted.estimate / base_ns, predicted.high / base_ns)
    table = _table_ns(replayed, name)
    if anchor:
        table += float(traffic.recorded_ns) - _table_ns(replayed, anchor)
    is_open = times is None or bounded or is_least or len(ends[name]) < MIN_CLAIM_ROUNDS
    return BackendOutcome(
        name=name,
        rounds_count=len(measured.threads_ns),
        replayed_ns=float(np.median(_longest(measured))),
        table_ns=table,
        predicted_ns=predicted,
        at_most_ns=predicted.estimate + _waited_ns(traffic) if bounded and traffic.is_timed else None,
        gain_ratio=Interval(1 - times.high, 1 - times.estimate, 1 - times.low) if times else None,
        verdict=None if times is None or is_open else compare(times),
        rank=rank,
        failure=measured.failure,
    )


def _table_ns(replayed: Replayed, name: str) -> float:
    table = replayed.table(name)
    return max(_busiest_ns(replayed.traffic), *(table.thread_ns(thread) for thread in replayed.traffic.threads))


def _waited_ns(traffic: Traffic) -> int:
    """Return the longest that any server may have worked beyond what is known of it."""
    return max(int((thread.server_most_ns - np.maximum(thread.server_ns, 0)).sum()) for thread in traffic.threads)


def _remarks(replayed: Replayed, anchor: str, bounded: bool) -> list[str]:
    traffic, remarks = replayed.traffic, []
    if traffic.calls_count < traffic.recorded_calls_count:
        remarks.append(
            f"The first {traffic.calls_count:,} of {traffic.recorded_calls_count:,} calls are replayed, as the budget "
            "or --calls asks for."
        )
    remarks += _of_servers(traffic, bounded=bounded, think=replayed.request.think)
    if anchor and traffic.server_known and replayed.request.think:
        off = float(np.median(_longest(replayed.measured[anchor]))) / traffic.recorded_ns - 1
        if abs(off) > _DOUBTFUL_RATIO:
            remarks.append(
                f"Over {anchor} itself the replay took {abs(off):.0%} {'more' if off > 0 else 'less'} than recorded: "
                "the machine was busy then or is now, or the replay misses something; trust no prediction beyond that."
            )
    if replayed.request.source and not anchor:
        remarks.append(f"{replayed.request.source}, which the trace was recorded over, could not be replayed.")
    return remarks


def _of_servers(traffic: Traffic, *, bounded: bool, think: bool) -> list[str]:
    """Return what is unknown of the servers' work, and whether clients wait for one another."""
    remarks = []
    server, most = (
        np.concatenate([getattr(thread, name) for thread in traffic.threads])
        for name in ("server_ns", "server_most_ns")
    )
    none, part = np.count_nonzero(server == UNKNOWN), np.count_nonzero((server != UNKNOWN) & (server < most))
    bounds = ", and the end-to-end time is only known to lie between two bounds." if bounded else "."
    if none and traffic.is_timed:
        remarks.append(f"The server's share of {none:,} calls is unknown: it is replayed as none{bounds}")
    if part:
        remarks.append(
            f"Of the server's work in {part:,} calls only the part in the log's column is known: the rest is replayed "
            f"as none{bounds}"
        )
    shared = sum(len(numbers) for numbers in traffic.services if len(numbers) > 1)
    alone = sum(not thread.server for thread in traffic.threads)
    if shared:
        ending = (
            "."
            if think
            else (
                ", but without its work they hardly wait for one another: a time that is its work alone is the least."
            )
        )
        remarks.append(
            f"{shared} clients shared a server that handled one request at a time; so they do in the replay{ending}"
        )
    if alone and len(traffic.threads) > 1:
        remarks.append(
            f"{alone} of {len(traffic.threads)} clients have a server each in the replay, as it is not known that one "
            "thread served each of them, one call at a time: queueing is not replayed for them."
        )
    return remarks


def _next_steps(replayed: Replayed) -> list[str]:
    """Return what would make the replay surer; the most useful first, two at most."""
    traffic = replayed.traffic
    if not traffic.is_timed:
        return []
    steps = (
        (
            not traffic.server_known,
            "record the server too, joined by ids (trace.serve, or wrap with propagate): its work is then known.",
        ),
        (traffic.is_sampled, "record every call (sample=1, no budget): the time between calls is then known."),
        (not replayed.request.source, "name the transport of the recording (--recorded-over): it calibrates the work."),
    )
    return [f"To be surer, {step}" for needed, step in steps if needed][:2]


def _methods(traffic: Traffic, done: dict[str, Measured]) -> tuple[MethodOutcome, ...]:
    columns = ("method", "sent_bytes", "recv_bytes", "total_ns", "server_ns", "server_most_ns")
    method, sent, recv, total, server, most = (
        np.concatenate([getattr(thread, name) for thread in traffic.threads]) for name in columns
    )
    outcomes = []
    for index in np.unique(method).tolist():
        chosen = method == index
        count = int(np.count_nonzero(chosen))
        known = bool((server == most)[chosen].all())
        outcomes.append(
            MethodOutcome(
                name=traffic.methods[index],
                calls_count=count,
                sent_bytes=float(sent[chosen].mean()),
                recv_bytes=float(recv[chosen].mean()),
                recorded_ns=float(total[chosen].mean()) if traffic.is_timed else None,
                server_ns=float(server[chosen].mean()) if known else None,
                replayed_ns={
                    name: float(np.median([sums[index] for sums in measured.method_ns])) / count
                    for name, measured in done.items()
                },
                layout=traffic.layouts.get(traffic.methods[index], ""),
            )
        )
    return tuple(sorted(outcomes, key=lambda method: -(method.recorded_ns or 0.0) * method.calls_count))
