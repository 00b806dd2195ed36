"""The whole diagnosis of recorded calls: floors measured here, where the time went, and what would help.

Remedies that change messages or the transport are replayed beside the recorded calls, in turns. Others follow from the
recording alone: what the server worked, what a first call took beyond the others, how long threads waited for a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ipcbench.diagnose.attribution import Attribution, attribute, floors_ns
from ipcbench.diagnose.costs import Costs, measure_costs
from ipcbench.diagnose.prediction import (
    Recorded,
    least_ns,
    of_planned_ns,
    over_another_transport_ns,
    with_known_work_ns,
    with_unknown_work_ns,
)
from ipcbench.diagnose.what_if import FEWER_CALLS, SERVER, WhatIf, changed, late_ns, usual_first_call, what_ifs
from ipcbench.errors import ConfigError
from ipcbench.replay.latency_table import LatencyTable, ladder, make_table
from ipcbench.replay.run import Contender, Measured, Replays, Request, Say, require_some, select, share_ns
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.trace.readers.batch import Ints
from ipcbench.util.units import format_duration_ns

SOURCES: Mapping[str, str] = {"IPC": "zmq", "TCP": "zmq-tcp-insecure", "UNIX": "pipe", "PIPE": "pipe", "SHM": "shm"}
"""What a trace or log calls its transport → the backend that is most like it here."""
CANDIDATES = ("zmq", "pipe", "shm")
"""Transports of one host that are tried in place of the recorded one."""
USUAL_SOURCE = "zmq"
"""Carries what-ifs where the recorded transport is not known."""

BASE = "as recorded"
TRANSPORT = "transport "
FIRST_CALL, NEIGHBOURS = "first call", "neighbours"
OUT_OF_BAND = "out of band"
RPC, RPC_BACKEND = "rpc", "shm"
"""Calls over shared memory whose arrays are not serialized: both changes at once."""
_MOST_SIZES = 4
_LEAST_GAIN = 0.01
"""Of the recorded time: less is no help."""
_LEAST_WAIT = 0.05
_LARGEST_TRIP_BYTES = 2**25
"""Of the floors: beyond it, times grow as bytes do."""
LEAST_REPLAYED_CALLS = 6
"""Of a client, for a claim: of fewer, not even the quickest and the slowest hold the usual one with 95 % confidence
(1 − 2 · 0.5⁵ is 94 %), and what follows for all calls may be an accident of one.
"""
_LEAST_CALLS, _MOST_BYTES = 8, 2**28
"""Of each client, in a replay: at least so many calls, and beyond them no more bytes."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a change would bring.

    Attributes:
        key: `transport NAME`, or the name of a change (words.py).
        backend: that carried the changed calls; empty if it follows from the recording alone.
        rounds_count: replays; 0 if it follows from the recording.
        predicted_ns: the whole recorded time after it, with its 95 % interval; the estimate thrice without one.
        gain_ratio: 1 − predicted / recorded, with its interval.
        note: what was assumed; empty for nothing.
        condition: what nobody can tell from sizes alone, and must hold; empty for nothing.
        has_few_calls: whether too few calls were replayed to tell; then there are no intervals.
    """

    key: str
    backend: str
    rounds_count: int
    predicted_ns: Interval
    gain_ratio: Interval
    note: str = ""
    condition: str = ""
    has_few_calls: bool = False

    @property
    def helps(self) -> bool:
        """Whether all of its interval is a gain worth having; never with too little to know, or on a condition."""
        return (
            self.is_sure and not self.condition and self.gain_ratio.low > 0 and self.gain_ratio.estimate >= _LEAST_GAIN
        )

    @property
    def bound(self) -> Literal["", "at most", "at least"]:
        """Whether it is only known that no more than this is saved, or no less: fewer calls keep all work, of which
        some may be done for each call and not for each item.
        """
        return "at most" if self.key == NEIGHBOURS else "at least" if self.key == FEWER_CALLS else ""

    @property
    def is_sure(self) -> bool:
        """Whether it has rounds and calls enough for an interval, or needs none."""
        return not self.backend or (self.rounds_count >= MIN_CLAIM_ROUNDS and not self.has_few_calls)


@dataclass(frozen=True, slots=True)
class Floor:
    """What the messages take on an idle channel here.

    Attributes:
        backend: over which.
        table: one-way times by size; of all rounds.
        all_calls_ns: of all recorded calls' messages together, with its interval.
    """

    backend: str
    table: LatencyTable
    all_calls_ns: Interval


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result.

    Attributes:
        traffic: all that was recorded.
        source: the backend that stands for the recorded transport; empty if it is not known.
        recorded_ns: the longest client's time.
        replayed_count: calls of each client that were replayed, at most.
        floors: by backend.
        attributions: of all calls, then of each method; empty if no times are known.
        remedies: those that help, the largest gain first.
        others: those that do not help, or of which that is not sure, in the order of their gain.
        costs: of work on messages.
        remarks: what the reader must know, one sentence each.
        failures: what could not be measured, with the reason.
    """

    traffic: Traffic
    source: str
    recorded_ns: float
    replayed_count: int
    floors: tuple[Floor, ...]
    attributions: tuple[Attribution, ...]
    remedies: tuple[Remedy, ...]
    others: tuple[Remedy, ...]
    costs: Costs
    remarks: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


def source_of(traffic: Traffic) -> str:
    """Return the backend that stands for the transport of the recording; empty if it says none that is known."""
    for name in traffic.transports:
        word = name.upper().partition("+")[0]
        if word in SOURCES or name in SOURCES.values():
            return SOURCES.get(word, name)
    return ""


def diagnose(traffic: Traffic, request: Request, sample: Path | None = None, say: Say = lambda _: None) -> Diagnosis:
    """Measure floors and changes, and judge them.

    Args:
        traffic: what was recorded.
        request: `backends` are the transports to try, `source` the recorded one.
        sample: a file with bytes as they travel, for compression.
        say: called with a line after every replay.

    Raises:
        UnknownBackend, ConfigError, BackendUnavailable: before anything is started.
        TrialError: every replay failed.
        StoreError: the sample cannot be read.
    """
    if traffic.is_timed and not traffic.recorded_ns:
        raise ConfigError("TRACE", traffic.source, "calls that took time; all of these took none")
    source = request.source or USUAL_SOURCE
    request = replace(request, source=source)
    backends, skipped = select(request, traffic.largest_bytes)
    costs = measure_costs(_sizes(traffic), sample)
    changes = list(what_ifs(traffic, costs)) if traffic.is_timed and not traffic.takes_turns else []
    count = len(backends) + len(changes)
    part = _part(changed(traffic, usual_first_call), share_ns(request, count))
    contenders = _contenders(part, source, list(backends), changes)
    measured = {name: Measured() for name in contenders}
    sizes = ladder(min(traffic.largest_bytes, _LARGEST_TRIP_BYTES))
    Replays(contenders, measured, request, sizes, say).carry_out()
    require_some(measured)
    tables = {
        contender.backend: [make_table(sizes, [trips]) for trips in measured[name].trips_ns]
        for name, contender in contenders.items()
        if measured[name].trips_ns and (name == BASE or name.startswith(TRANSPORT))
    }
    floors = tuple(_floor(traffic, backend, found) for backend, found in tables.items())
    known = next((floor.table for floor in floors if floor.backend == request.source), None)
    recorded = Recorded(traffic, part, known, _waited_for_core_ns(traffic))
    judged = [*_replayed(recorded, contenders, measured, changes), *_from_recording(traffic)]
    judged.sort(key=lambda remedy: -remedy.gain_ratio.estimate)
    return Diagnosis(
        traffic=traffic,
        source=source,
        recorded_ns=float(traffic.recorded_ns),
        replayed_count=max(len(thread.method) for thread in part.threads),
        floors=floors,
        attributions=attribute(traffic, known) if traffic.is_timed else (),
        remedies=tuple(remedy for remedy in judged if remedy.helps),
        others=tuple(remedy for remedy in judged if not remedy.helps),
        costs=costs,
        remarks=(*traffic.remarks, *_of_waits(recorded)),
        failures={**skipped, **{name: each.failure for name, each in measured.items() if each.failure}},
    )


def _part(traffic: Traffic, longest_ns: float) -> Traffic:
    """Return the beginning of every thread: as much as may take so long, and moves no more than the replays have room
    for; a few calls at least.
    """
    part = traffic.limited(longest_ns) if traffic.is_timed else traffic
    counts = [
        max(_LEAST_CALLS, int(np.searchsorted(np.cumsum(thread.sent_bytes + thread.recv_bytes), _MOST_BYTES)))
        for thread in part.threads
    ]
    chosen = replace(part, threads=tuple(map(ThreadCalls.first, part.threads, counts)))
    return chosen if chosen.recorded_ns or not traffic.is_timed else traffic


def _sizes(traffic: Traffic) -> list[int]:
    """Return a few sizes that stand for all messages, the largest among them."""
    sizes = np.concatenate([np.concatenate((each.sent_bytes, each.recv_bytes)) for each in traffic.threads])
    chosen = np.quantile(sizes, np.linspace(0, 1, _MOST_SIZES), method="nearest")
    return sorted({int(size) for size in chosen})


def _contenders(part: Traffic, source: str, backends: Sequence[str], changes: Sequence[WhatIf]) -> dict[str, Contender]:
    """Return all that takes turns, by name: the calls as recorded first."""
    found = {BASE: Contender(source, part)}
    found |= {f"{TRANSPORT}{name}": Contender(name, part, importance=1) for name in backends if name != source}
    for change in changes:
        after, importance = change.changed(part), 0 if change.condition else 3 if change.key == SERVER else 1
        found[change.key] = Contender(source, after, is_calibrated=False, importance=importance)
        if change.key == OUT_OF_BAND and RPC_BACKEND in backends:
            found[RPC] = Contender(RPC_BACKEND, after, is_calibrated=False, importance=1)
    return found


def _floor(traffic: Traffic, backend: str, tables: Sequence[LatencyTable]) -> Floor:
    sizes = tables[0].sizes_bytes
    middle = tuple(float(np.median([table.one_way_ns[place] for table in tables])) for place in range(len(sizes)))
    return Floor(backend, LatencyTable(sizes, middle), _interval(floors_ns(traffic, tables)))


def _interval(values: Sequence[float], least: float = 0.0, most: float = math.inf) -> Interval:
    """Return the median with its interval, all within bounds that are known; alone if there are too few values for an
    interval.
    """
    values = [min(max(value, least), most) for value in values]
    middle = float(np.median(values))
    estimate = None
    if len(values) >= MIN_CLAIM_ROUNDS and min(values) > 0:
        estimate = median_estimate(values, np.random.default_rng(1))
    if estimate is None:
        return Interval(middle, middle, middle)
    found = estimate.interval()
    return Interval(max(found.low, least), middle, min(found.high, most))


def _replayed(
    recorded: Recorded,
    contenders: Mapping[str, Contender],
    measured: Mapping[str, Measured],
    changes: Sequence[WhatIf],
) -> Iterator[Remedy]:
    """Yield what each replayed change would bring to all traffic, of which a part was replayed."""
    known = {change.key: change for change in changes}
    known |= {RPC: known[OUT_OF_BAND]} if OUT_OF_BAND in known else {}
    base, is_timed = measured[BASE].threads_ns, recorded.whole.is_timed
    if not base or recorded.whole.takes_turns:
        return
    before_ns = (
        float(recorded.whole.recorded_ns)
        if is_timed
        else float(np.median([of_planned_ns(recorded, threads) for threads in base]))
    )
    for name, contender in contenders.items():
        times, change = measured[name].threads_ns, known.get(name)
        if name == BASE or not times:
            continue
        after, part = recorded.warm if change is None else change.changed(recorded.warm), contender.traffic
        pairs = zip(times, base, strict=False)  # of the rounds that both have
        if not is_timed:
            ends = [of_planned_ns(recorded, threads) for threads in times]
        elif not recorded.is_known:
            ends = [with_unknown_work_ns(recorded, *pair) for pair in pairs]
        elif name.startswith(TRANSPORT) or name == RPC:
            ends = [over_another_transport_ns(recorded, after, part, *pair) for pair in pairs]
        else:
            ends = [with_known_work_ns(recorded, after, part, *pair) for pair in pairs]
        least = float(least_ns(recorded, after)) if is_timed else 0.0
        most = before_ns if name == SERVER else math.inf  # no work cannot cost more than some
        is_few = _are_few(recorded.warm, recorded.part) or _are_few(after, part, fewest=0)
        remedy = _remedy(name, contender.backend, ends, before_ns, (least, most), has_few_calls=is_few)
        if remedy.backend != contenders[BASE].backend:
            remedy = _widened(remedy, recorded, least)
        yield remedy if change is None else replace(remedy, note=change.note, condition=change.condition)


def _are_few(whole: Traffic, part: Traffic, fewest: int = LEAST_REPLAYED_CALLS) -> bool:
    """Return whether any client has too few calls in a part to speak for all of them, or the slowest less than `fewest`
    at all.
    """
    slowest = max(whole.threads, key=lambda each: each.recorded_ns)
    return len(slowest.method) < fewest or any(
        len(some.method) < min(len(every.method), LEAST_REPLAYED_CALLS)
        for every, some in zip(whole.threads, part.threads, strict=True)
    )


def _remedy(
    key: str,
    backend: str,
    ends_ns: Sequence[float],
    recorded_ns: float,
    bounds_ns: tuple[float, float] = (0.0, math.inf),
    *,
    has_few_calls: bool = False,
) -> Remedy:
    predicted = _interval(ends_ns, *bounds_ns)
    if has_few_calls:
        predicted = Interval(*[predicted.estimate] * 3)
    gain = Interval(*(1 - end / recorded_ns for end in (predicted.high, predicted.estimate, predicted.low)))
    rounds_count = len(ends_ns) if backend else 0
    return Remedy(key, backend, rounds_count, predicted, gain, has_few_calls=has_few_calls)


def _widened(remedy: Remedy, recorded: Recorded, least_ns: float) -> Remedy:
    """Return the remedy with an interval that holds whatever becomes of the recorded wait for a core: over another
    transport other threads wake up, and may wait not at all, or once again as long.
    """
    predicted = remedy.predicted_ns
    if not (recorded.lost_ns and remedy.is_sure):
        return remedy
    low, high = max(least_ns, predicted.low - recorded.lost_ns), predicted.high + recorded.lost_ns
    gain = (1 - end / recorded.whole.recorded_ns for end in (high, predicted.estimate, low))
    return replace(remedy, predicted_ns=Interval(low, predicted.estimate, high), gain_ratio=Interval(*gain))


def _of_waits(recorded: Recorded) -> Iterator[str]:
    """Yield how long the recorded calls waited for a core, if that is much."""
    if recorded.lost_ns >= _LEAST_WAIT * recorded.whole.recorded_ns:
        yield (
            f"The recorded calls waited up to {format_duration_ns(recorded.lost_ns)} for a core; over another "
            "transport that may go or double, and its interval holds both: a quieter machine gives narrower ones."
        )


def _from_recording(traffic: Traffic) -> Iterator[Remedy]:
    """Yield what follows from the recording alone."""
    if not traffic.is_timed:
        return
    recorded_ns = float(traffic.recorded_ns)
    if any(late_ns(each) > _LEAST_GAIN * recorded_ns for each in traffic.threads):
        yield _remedy(FIRST_CALL, "", [changed(traffic, usual_first_call).recorded_ns], recorded_ns)
    if lost_ns := _lost_ns(traffic):
        condition = "the clients do not wait for one another as well" if len(traffic.threads) > 1 else ""
        yield replace(_remedy(NEIGHBOURS, "", [recorded_ns - lost_ns], recorded_ns), condition=condition)


def _undisturbed_ns(thread: ThreadCalls, times: Ints) -> float:
    """Return how long all calls would have taken if the time of each were that of one in ten of its method."""
    groups = (times[thread.method == method] for method in np.unique(thread.method))
    return float(sum(len(group) * np.quantile(group, 0.1) for group in groups))


def _lost_ns(traffic: Traffic) -> float:
    """Return what waiting for a core can have cost; 0 if that is little, or the calls are few."""
    lost_ns, slowest = _waited_for_core_ns(traffic), max(traffic.threads, key=lambda each: each.recorded_ns)
    is_enough = len(slowest.method) >= LEAST_REPLAYED_CALLS and lost_ns >= _LEAST_WAIT * slowest.recorded_ns
    return lost_ns if is_enough else 0.0


def _waited_for_core_ns(traffic: Traffic) -> float:
    """Return for how long the slowest client and its server were ready to run and had no core; 0 if unknown. They may
    have been so at the same time, so it is the most that this can have cost.

    It is at most what the calls took beyond undisturbed ones, and beyond undisturbed work of the server for all its
    clients, without a late first call and without each wait for an absent server that is longer than all waits for a
    core: a server that starts may wait for a core while its client waits for it, and that delays no call that it has.
    """
    slowest = max(traffic.threads, key=lambda each: each.recorded_ns)
    waited_ns = sum(traffic.waited_ns.get(name, 0) for name in {slowest.name, slowest.server})
    thread = usual_first_call(slowest)
    absent = thread.stuck_ns[thread.stuck_ns > waited_ns]
    undisturbed_ns = _undisturbed_ns(thread, thread.gap_ns + thread.total_ns)
    works_ns = [int(_undisturbed_ns(each, np.maximum(each.server_ns, 0))) for each in traffic.threads]
    least_ns = max(undisturbed_ns, *traffic.in_turn_ns(works_ns))
    return max(0.0, min(float(waited_ns), thread.recorded_ns - float(absent.sum()) - least_ns))
