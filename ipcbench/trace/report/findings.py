"""Findings: rules, each with a condition and its threshold, the evidence, and a bound on what a change can save.

Rules about the server's side (R2, R3, R7, R14) take their shares from the joined calls, which are a fair sample of all;
what can be saved is scaled to all calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ipcbench.trace.readers.batch import Notes, Segment
from ipcbench.trace.report.sums import GroupSums, MethodSums
from ipcbench.trace.schema import CLIENT, PIPELINE, RECEIVER

LEAST_CALLS: Final = 20
LEAST_STAKE_RATIO: Final = 0.01

MEMCPY_BYTES_PER_S: Final = 5e9
"""Assumed; about what a core copies on most machines."""

EMPTY_ROUND_TRIP_NS: Final = 30_000.0
"""Assumed for an empty message and its reply between two processes on the same host."""

_MIB = 2**20
_MOST_COST_NS = 1e9
"""A header that claims a higher cost per call is not believed."""
_TQ_LINE_NS = 10_000.0
_TQ_LINES_PER_CALL = 8


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """A finding.

    Attributes:
        rule: its number, the key of its words.
        where: the segment, and the method if it is about a single method.
        values: what its words quote: shares as ratios, times in ns.
        gain_ns: the most traced time that following it can save; None if no bound is known.
    """

    rule: str
    where: str
    values: dict[str, Any]
    gain_ns: float | None = None


def findings(groups: list[GroupSums], notes: Notes, rules: str) -> list[TraceFinding]:
    """Return what the rules `default` or `seed` find, the largest gains first."""
    if rules == "seed":
        found = [finding for group in groups for rule in _SEED_RULES for finding in rule(group)]
    else:
        least_ns = LEAST_STAKE_RATIO * sum(group.total_ns for group in groups)
        large = [group for group in groups if group.total_ns >= least_ns and _at_stake(group)]
        found = [finding for group in large for rule in _RULES for finding in rule(group)]
        found += [finding for group in groups for finding in _r12_failed(group)]
        found += [*_r11_cost(large, notes), *_notes_rules(groups, notes)]
    return sorted(found, key=lambda finding: -(finding.gain_ns or 0.0))


_MOST_ERROR_RATIO = 0.1
"""Of an estimated total on which a finding may still be built."""

Sums: TypeAlias = GroupSums | MethodSums


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rule judges: the calls of a method, or those of a whole segment."""

    segment: Segment
    where: str
    sums: Sums


_Rule: TypeAlias = Callable[[_Part], Iterator[TraceFinding]]


def _at_stake(sums: Sums) -> bool:
    """Return whether there are enough timed calls for a finding, and their time in each stage is known well enough."""
    errors_ns = (*sums.stage_errors_ns, sums.total_error_ratio * sums.total_ns)
    is_timed = sums.timed_count >= LEAST_CALLS and sums.total_ns > 0 and not sums.planned_count
    return is_timed and max(errors_ns) <= _MOST_ERROR_RATIO * sums.total_ns


def _by_method(rule: _Rule) -> Callable[[GroupSums], Iterator[TraceFinding]]:
    """Return a rule that judges each method with at least 1 % of the time; what holds for all of them, and for the
    segment, is said once, and so is what holds for a segment of rare methods.
    """

    def judged(group: GroupSums) -> Iterator[TraceFinding]:
        if not _at_stake(group):
            return
        whole = list(rule(_Part(group.segment, group.segment.name, group)))
        parts = [
            _Part(group.segment, f"{group.segment.name}, {name}", sums)
            for name, sums in group.methods.items()
            if _at_stake(sums) and sums.total_ns >= LEAST_STAKE_RATIO * group.total_ns
        ]
        found = [list(rule(part)) for part in parts]
        shared = {finding.rule for finding in whole}
        for of_method in found:
            shared &= {finding.rule for finding in of_method}
        yield from (finding for finding in whole if finding.rule in shared)
        yield from (finding for of_method in found for finding in of_method if finding.rule not in shared)

    return judged


def _is_rpc(segment: Segment, sums: Sums) -> bool:
    """Return whether these are calls of request and reply at their client."""
    return segment.role == CLIENT and "wait" in sums.stages


def _r1_serialize(part: _Part) -> Iterator[TraceFinding]:
    sums = part.sums
    if not _is_rpc(part.segment, sums):
        return
    spent = sums.stage("serialize", "deserialize")
    share, moved = spent / sums.total_ns, sums.moved_bytes
    if moved is None:
        if share >= 0.30:
            yield TraceFinding("R1", part.where, {"share": share, "what": "unsized", "threshold": 0.30}, spent)
        return
    copy_ns = moved / MEMCPY_BYTES_PER_S * 1e9
    if share >= 0.30 and spent > 4 * copy_ns:
        values = {"share": share, "what": "sized", "copy_ns": copy_ns, "threshold": 0.30}
        yield TraceFinding("R1", part.where, values, spent - copy_ns)


def _r2_r3_wait(part: _Part) -> Iterator[TraceFinding]:
    """R2, R2b, R3: what the wait for the reply consists of."""
    sums = part.sums
    if not _is_rpc(part.segment, sums):
        return
    split = sums.split
    if split.server_ns <= 0 or split.total_ns <= 0 or split.joined_count < min(LEAST_CALLS, sums.timed_count):
        wait_share = sums.stage("wait") / sums.total_ns
        if wait_share >= 0.50:
            yield TraceFinding("R2b", part.where, {"share": wait_share, "what": "wait", "threshold": 0.50})
        return
    server_share = split.server_ns / split.total_ns
    if server_share >= 0.50:
        values = {"share": server_share, "transit_share": split.transport_ratio, "threshold": 0.50}
        yield TraceFinding(
            "R2", part.where, values, _gain_ns(sums, max(0.0, min(split.transport_ratio, split.usual_transport_ratio)))
        )
    if not split.is_whole:
        rest_share = (split.wait_ns - split.server_ns) / split.total_ns
        if rest_share >= 0.50:
            yield TraceFinding("R2b", part.where, {"share": rest_share, "what": "column", "threshold": 0.50})
        return
    usual = min(split.transport_ratio, split.usual_transport_ratio)
    if usual >= 0.30:
        evidence = {"share": usual, "mean_bytes": sums.mean_bytes, "threshold": 0.30}
        yield TraceFinding("R3", part.where, evidence, _gain_ns(sums, usual))


_LEAST_JOINED = 100
"""Fewer joined calls than this are no measure of the rest."""


def _gain_ns(sums: Sums, share: float) -> float | None:
    """Return that share of the time of all calls; None if too few of them are joined to tell."""
    return share * sums.total_ns if sums.split.joined_count >= min(_LEAST_JOINED, 0.9 * sums.calls_count) else None


def _r4_loopback(group: GroupSums) -> Iterator[TraceFinding]:
    if group.segment.transport.upper().startswith("TCP") and _at_stake(group):
        share = group.stage("send", "wait") / group.total_ns
        if share >= LEAST_STAKE_RATIO:
            yield TraceFinding("R4", group.segment.name, {"transport": group.segment.transport, "share": share})


def _r5_chatty(group: GroupSums) -> Iterator[TraceFinding]:
    if not (_is_rpc(group.segment, group) and _at_stake(group)) or group.segment.bytes_are_partial:
        return
    sizes = [size for sums in group.methods.values() for _, size in sums.pairs]
    if not sizes:
        return
    median_bytes = float(np.median(sizes))
    floor_ns = group.calls_count * EMPTY_ROUND_TRIP_NS
    if floor_ns >= 0.20 * group.total_ns and median_bytes < 4096:
        values = {"calls": group.calls_count, "share": min(1.0, floor_ns / group.total_ns),
                  "median_bytes": median_bytes,
                  "round_trip_ns": EMPTY_ROUND_TRIP_NS, "threshold": 0.20}  # fmt: skip
        yield TraceFinding("R5", group.segment.name, values, min(group.total_ns, floor_ns) * 7 / 8)


def _r6_tail(group: GroupSums) -> Iterator[TraceFinding]:
    for name, sums in group.methods.items():
        if sums.timed_count < 100 or not _at_stake(sums) or sums.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        median = max(1.0, sums.histogram.quantile(0.5))
        ratio = sums.histogram.quantile(0.99) / median
        if ratio < 10 and sums.variation_ratio < 1:
            continue
        values = {"ratio": ratio, "variation": sums.variation_ratio, "cause": _cause(sums, median)}
        gain = max(0.0, sums.total_ns - median * sums.calls_count)
        yield TraceFinding("R6", f"{group.segment.name}, {name}", values, gain)


def _r16_stages(group: GroupSums) -> Iterator[TraceFinding]:
    """R16: the time of a stage varies, and the size does not explain it."""
    for name, sums in group.methods.items():
        if not _at_stake(sums) or sums.total_ns < LEAST_STAKE_RATIO * group.total_ns or len(sums.stages) < 2:
            continue
        if not sums.has_all_records:
            continue  # nobody knows
        for index, stage in enumerate(sums.stages):
            whole, adjusted = sums.stage_variation(index)
            left = whole if adjusted is None else adjusted
            if left >= 1 and _cause(sums, max(1.0, sums.histogram.quantile(0.5))) == "warm-up":
                continue  # R6 says so
            if left >= 1 and sums.timed_count >= LEAST_CALLS and sums.stage(stage) >= 0.10 * sums.total_ns:
                values = {"stage": stage, "variation": whole, "adjusted": adjusted,
                          "what": "sized" if adjusted is not None else "unsized", "threshold": 1}  # fmt: skip
                yield TraceFinding("R16", f"{group.segment.name}, {name}", values)


def _cause(sums: MethodSums, median_ns: float) -> str:
    """Return what a long tail is related to: `size`, `warm-up` or `unknown`."""
    if not sums.has_all_records:
        return "unknown"
    if len(sums.pairs) >= 20:
        times, sizes = np.array(sums.pairs, dtype=np.float64).T
        if sizes.min() < sizes.max() and times.min() < times.max():
            ranks = [np.argsort(np.argsort(column)) for column in (times, sizes)]
            if float(np.corrcoef(ranks[0], ranks[1])[0, 1]) >= 0.7:
                return "size"
    slow = [ns for ns in sums.first_ns if ns > 5 * median_ns]
    return "warm-up" if slow and sum(slow) > 0.5 * (sums.timed_ns - median_ns * sums.timed_count) else "unknown"


def _r7_queueing(group: GroupSums) -> Iterator[TraceFinding]:
    """R7: requests queue at the server."""
    split = group.split
    if not _is_rpc(group.segment, group) or split.answered_count < LEAST_CALLS or split.total_ns <= 0:
        return
    share = min(split.queue_ns / split.total_ns, split.usual_queue_ratio)
    if share >= 0.10:
        scale = group.calls_count / split.joined_count
        busy = min(1.0, split.server_ns * scale / 1e9 / split.span_s) if split.span_s > 0 else 0.0
        values = {"share": share, "queue_ns": split.queue_ns / split.joined_count, "growth": split.growth_ratio,
                  "busy": busy, "threshold": 0.10}  # fmt: skip
        yield TraceFinding("R7", group.segment.name, values, _gain_ns(group, share))


def _r8_bandwidth(group: GroupSums) -> Iterator[TraceFinding]:
    for name, sums in group.methods.items():
        moved, speed = sums.sized_sent_bytes + sums.sized_recv_bytes, sums.mib_per_s
        if speed is None or sums.sized_count < LEAST_CALLS or moved < _MIB * sums.sized_count:
            continue
        if speed < 500 and sums.total_ns >= LEAST_STAKE_RATIO * group.total_ns:
            level = 100 if speed < 100 else 500
            yield TraceFinding("R8", f"{group.segment.name}, {name}", {"mib_per_s": speed, "threshold": level})


def _r9_pipeline(part: _Part) -> Iterator[TraceFinding]:
    sums = part.sums
    if sums.stages != PIPELINE.stages:
        return
    moving = sums.stage("get", "put") / sums.total_ns
    compute = sums.stage("compute") / sums.total_ns
    if moving >= 0.20 and compute < 0.80:
        values = {"share": moving, "compute_share": compute, "threshold": 0.30 if moving >= 0.30 else 0.20}
        yield TraceFinding("R9", part.where, values, min(sums.stage("get"), sums.stage("compute")))


def _r10_unaccounted(part: _Part) -> Iterator[TraceFinding]:
    if len(part.sums.stages) > 1:
        share = 1.0 - sum(part.sums.stage_ns) / part.sums.total_ns
        if share >= 0.10:
            yield TraceFinding("R10", part.where, {"share": share, "threshold": 0.10})


def _r12_failed(group: GroupSums) -> Iterator[TraceFinding]:
    failed = sum(sums.failed_count for sums in group.methods.values())
    if group.timed_count >= LEAST_CALLS and failed >= 0.01 * group.timed_count:
        yield TraceFinding("R12", group.segment.name, {"count": failed, "calls": group.timed_count, "threshold": 0.01})


def _r13_straggler(group: GroupSums) -> Iterator[TraceFinding]:
    """R13: a process takes longer than the others for the same method; a receiver mostly waits."""
    if group.segment.role == RECEIVER:
        return
    for method, sums in group.methods.items():
        means = {name: (count, ns / count) for name, (count, ns) in sums.workers.items() if count >= LEAST_CALLS}
        if len(means) < 3 or not _at_stake(sums) or sums.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        median = float(np.median([mean for _, mean in means.values()]))
        name, (count, mean) = max(means.items(), key=lambda item: item[1][1])
        if mean >= 1.5 * median > 0:
            values = {"worker": name, "ratio": mean / median, "workers": len(means), "threshold": 1.5}
            yield TraceFinding("R13", f"{group.segment.name}, {method}", values, (mean - median) * count)


def _r14_wide_types(group: GroupSums) -> Iterator[TraceFinding]:
    """R14: large messages of numbers whose type could be half as wide."""
    for name, sums in group.methods.items():
        split = sums.split
        mean_bytes = sums.mean_bytes or 0.0
        if split.answered_count < LEAST_CALLS or mean_bytes < _MIB or not split.typed_bytes:
            continue
        wide_share = split.wide_bytes / split.typed_bytes
        if wide_share >= 0.50 and split.transport_ratio >= 0.30:
            values = {"wide_share": wide_share, "mean_bytes": mean_bytes, "share": split.transport_ratio,
                      "threshold": 0.30}  # fmt: skip
            gain_ns = split.transport_ratio * sums.total_ns * wide_share / 2
            yield TraceFinding("R14", f"{group.segment.name}, {name}", values, gain_ns)


_RULES: tuple[Callable[[GroupSums], Iterator[TraceFinding]], ...] = (
    _by_method(_r1_serialize), _by_method(_r2_r3_wait), _r4_loopback, _r5_chatty, _r6_tail, _r7_queueing,
    _r8_bandwidth, _by_method(_r9_pipeline), _by_method(_r10_unaccounted),
    _r13_straggler, _r14_wide_types, _r16_stages,
)  # fmt: skip


def _notes_rules(groups: list[GroupSums], notes: Notes) -> Iterator[TraceFinding]:
    pipelines = sum(group.calls_count for group in groups if group.stages == PIPELINE.stages)
    open_count = notes.counts["functions without an end"]
    if open_count and open_count >= 0.01 * (pipelines + open_count):
        yield TraceFinding("R12", "", {"count": open_count, "calls": pipelines + open_count, "threshold": 0.01})
    repeated = notes.counts["repeated lines not in the log"]
    if repeated:
        yield TraceFinding("R15", "", {"what": "repeated", "count": repeated})
    wrong = notes.counts["throughputs that differ by more than 2 %"]
    if wrong:
        yield TraceFinding("R15", "", {"what": "throughput", "count": wrong})
    segments = Counter(group.segment.source for group in groups if group.segment.name.startswith("segment "))
    for source, count in segments.items():
        if count > 1:
            yield TraceFinding("R15", source, {"what": "restarted", "count": count})


def _r11_cost(groups: list[GroupSums], notes: Notes) -> Iterator[TraceFinding]:
    """R11: what tracing itself costs, from the costs in the headers or the number of logged lines."""
    costs = [facts["costs_ns"] for facts in notes.facts if _has_costs(facts)]
    of_record, of_timed, of_counted = np.median(costs, axis=0).tolist() if costs else (0.0, 0.0, 0.0)
    for group in groups:
        if not _at_stake(group):
            continue
        recorded_count = sum(sums.squared_count for sums in group.methods.values())
        cost_ns = (
            recorded_count * of_record
            + (group.timed_count - recorded_count) * of_timed
            + (group.calls_count - group.timed_count) * of_counted
        )
        if group.stages == PIPELINE.stages and notes.counts["TQ lines"]:
            cost_ns = _TQ_LINE_NS * _TQ_LINES_PER_CALL * group.calls_count
        share = min(1.0, cost_ns / group.total_ns)  # the cost was measured at another moment
        if share >= 0.01:
            values = {"share": share, "each_ns": cost_ns / group.calls_count, "threshold": 0.01}
            yield TraceFinding("R11", group.segment.name, values, share * group.total_ns)


def _has_costs(facts: dict[str, Any]) -> bool:
    costs = facts.get("costs_ns")
    return (
        isinstance(costs, list)
        and len(costs) == 3
        and all(isinstance(cost, int | float) and 0 <= cost < _MOST_COST_NS for cost in costs)
    )


def _seed_rpc(group: GroupSums) -> Iterator[TraceFinding]:
    if not _is_rpc(group.segment, group) or group.total_ns <= 0:
        return
    serialize, moving = group.stage("serialize") / group.total_ns, group.stage("send", "wait") / group.total_ns
    if serialize > 0.30:
        yield TraceFinding("S1", group.segment.name, {"share": serialize, "threshold": 0.30}, group.stage("serialize"))
    if moving > 0.30:
        yield TraceFinding("S2", group.segment.name, {"share": moving, "threshold": 0.30}, group.stage("send", "wait"))
    name, most = max(group.methods.items(), key=lambda item: item[1].calls_count)
    if most.calls_count > 10:
        yield TraceFinding("S3", f"{group.segment.name}, {name}", {"calls": most.calls_count, "threshold": 10})


def _seed_pipeline(group: GroupSums) -> Iterator[TraceFinding]:
    if group.stages != PIPELINE.stages or group.total_ns <= 0:
        return
    moving, compute = group.stage("get", "put") / group.total_ns, group.stage("compute") / group.total_ns
    level = "good" if moving < 0.20 else "bad" if moving > 0.30 else "fair"
    yield TraceFinding("S4", group.segment.name, {"share": moving, "compute_share": compute, "level": level})


def _seed_throughput(group: GroupSums) -> Iterator[TraceFinding]:
    if (speed := group.mib_per_s) is not None:
        level = "good" if speed > 500 else "fair" if speed >= 100 else "bad"
        yield TraceFinding("S5", group.segment.name, {"mib_per_s": speed, "level": level})


_SEED_RULES = (_seed_rpc, _seed_pipeline, _seed_throughput)
