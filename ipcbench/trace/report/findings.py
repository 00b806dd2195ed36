"""Findings: rules with a condition, its evidence, an upper bound of what a change can gain, and the threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from ipcbench.trace.readers.batch import Notes
from ipcbench.trace.report import two_sides
from ipcbench.trace.report.finding import LEAST_CALLS, Finding, at_stake, is_rpc
from ipcbench.trace.report.sums import GroupSums, MethodSums
from ipcbench.trace.schema import PIPELINE

LEAST_STAKE_RATIO: Final = 0.01

MEMCPY_BYTES_PER_S: Final = 5e9
"""Assumed; one core copies about this much on most machines."""

EMPTY_ROUND_TRIP_NS: Final = 30_000.0
"""Assumed for an empty message and its answer between two processes of one host."""

_MIB = 2**20
_MOST_COST_NS = 1e9
"""What a header says beyond this is no cost of a call."""
_TQ_LINE_NS = 10_000.0
_TQ_LINES_PER_CALL = 8


def findings(groups: list[GroupSums], notes: Notes, rules: str) -> list[Finding]:
    """Return what the rules `default` or `seed` find, the largest gains first."""
    by_group = _SEED_RULES if rules == "seed" else _RULES
    found = [one for group in groups for rule in by_group for one in rule(group)]
    if rules != "seed":
        found += _notes_rules(groups, notes)
    return sorted(found, key=lambda one: -(one.gain_ns or 0.0))


def _r1_serialize(group: GroupSums) -> Iterator[Finding]:
    if not (is_rpc(group) and at_stake(group)):
        return
    spent = group.stage("serialize", "deserialize")
    share, moved = spent / group.total_ns, group.moved_bytes
    copy_ns = moved / MEMCPY_BYTES_PER_S * 1e9
    if share >= 0.30 and spent > 4 * copy_ns:
        yield Finding(
            "R1", group.segment.name, {"share": share, "copy_ns": copy_ns, "threshold": 0.30}, spent - copy_ns
        )


def _r4_loopback(group: GroupSums) -> Iterator[Finding]:
    if group.segment.transport.upper().startswith("TCP") and at_stake(group):
        share = group.stage("send", "wait") / group.total_ns
        if share >= LEAST_STAKE_RATIO:
            yield Finding("R4", group.segment.name, {"transport": group.segment.transport, "share": share})


def _r5_chatty(group: GroupSums) -> Iterator[Finding]:
    if not (is_rpc(group) and at_stake(group)) or group.segment.bytes_are_partial:
        return
    sizes = [size for one in group.methods.values() for _, size in one.pairs]
    median_bytes = float(np.median(sizes)) if sizes else 0.0
    floor_ns = group.timed_count * EMPTY_ROUND_TRIP_NS
    if floor_ns >= 0.20 * group.total_ns and median_bytes < 4096:
        values = {"calls": group.timed_count, "share": min(1.0, floor_ns / group.total_ns),
                  "median_bytes": median_bytes,
                  "round_trip_ns": EMPTY_ROUND_TRIP_NS, "threshold": 0.20}  # fmt: skip
        yield Finding("R5", group.segment.name, values, min(group.total_ns, floor_ns) * 7 / 8)


def _r6_tail(group: GroupSums) -> Iterator[Finding]:
    for name, one in group.methods.items():
        if one.timed_count < 100 or one.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        median = max(1.0, one.histogram.quantile(0.5))
        ratio = one.histogram.quantile(0.99) / median
        if ratio < 10 and one.variation_ratio < 1:
            continue
        values = {"ratio": ratio, "variation": one.variation_ratio, "cause": _cause(one, median)}
        gain = max(0.0, one.total_ns - median * one.timed_count)
        yield Finding("R6", f"{group.segment.name}, {name}", values, gain)


def _cause(one: MethodSums, median_ns: float) -> str:
    """Return what a long tail goes with: `size`, `warm-up` or `unknown`."""
    if len(one.pairs) >= 20:
        times, sizes = np.array(one.pairs, dtype=np.float64).T
        if sizes.min() < sizes.max() and times.min() < times.max():
            ranks = [np.argsort(np.argsort(column)) for column in (times, sizes)]
            if float(np.corrcoef(ranks[0], ranks[1])[0, 1]) >= 0.7:
                return "size"
    slow = [ns for ns in one.first_ns if ns > 5 * median_ns]
    return "warm-up" if slow and sum(slow) > 0.5 * (one.total_ns - median_ns * one.timed_count) else "unknown"


def _r8_bandwidth(group: GroupSums) -> Iterator[Finding]:
    for name, one in group.methods.items():
        moved = one.sent_bytes + one.recv_bytes
        timed = one.timed_count
        if timed < LEAST_CALLS or moved < _MIB * timed or one.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        speed = moved / _MIB / (one.total_ns / 1e9)
        if speed < 500:
            level = 100 if speed < 100 else 500
            yield Finding("R8", f"{group.segment.name}, {name}", {"mib_per_s": speed, "threshold": level})


def _r9_pipeline(group: GroupSums) -> Iterator[Finding]:
    if group.stages != PIPELINE.stages or not at_stake(group):
        return
    moving = group.stage("get", "put") / group.total_ns
    compute = group.stage("compute") / group.total_ns
    if moving >= 0.20 and compute < 0.80:
        values = {"share": moving, "compute_share": compute, "threshold": 0.30 if moving >= 0.30 else 0.20}
        yield Finding("R9", group.segment.name, values, min(group.stage("get"), group.stage("compute")))


def _r10_unaccounted(group: GroupSums) -> Iterator[Finding]:
    if at_stake(group) and len(group.stages) > 1:
        share = 1.0 - sum(group.stage_ns) / group.total_ns
        if share >= 0.10:
            yield Finding("R10", group.segment.name, {"share": share, "threshold": 0.10})


def _r12_failed(group: GroupSums) -> Iterator[Finding]:
    failed = sum(one.failed_count for one in group.methods.values())
    if group.timed_count >= LEAST_CALLS and failed >= 0.01 * group.timed_count:
        yield Finding("R12", group.segment.name, {"count": failed, "calls": group.timed_count, "threshold": 0.01})


def _r13_straggler(group: GroupSums) -> Iterator[Finding]:
    workers = {name: (count, ns / count) for name, (count, ns) in group.workers.items() if count >= LEAST_CALLS}
    if len(workers) < 3:
        return
    median = float(np.median([mean for _, mean in workers.values()]))
    name, (count, mean) = max(workers.items(), key=lambda one: one[1][1])
    if mean >= 1.5 * median > 0:
        values = {"worker": name, "ratio": mean / median, "workers": len(workers), "threshold": 1.5}
        yield Finding("R13", group.segment.name, values, (mean - median) * count)


_RULES: tuple[Callable[[GroupSums], Iterator[Finding]], ...] = (
    _r1_serialize, two_sides.wait, _r4_loopback, _r5_chatty, _r6_tail, two_sides.queueing,
    _r8_bandwidth, _r9_pipeline, _r10_unaccounted,
    _r12_failed, _r13_straggler, two_sides.wide_types,
)  # fmt: skip


def _notes_rules(groups: list[GroupSums], notes: Notes) -> Iterator[Finding]:
    yield from _r11_cost(groups, notes)
    pipelines = sum(group.calls_count for group in groups if group.stages == PIPELINE.stages)
    open_count = notes.counts["functions without an end"]
    if open_count and open_count >= 0.01 * (pipelines + open_count):
        yield Finding("R12", "", {"count": open_count, "calls": pipelines + open_count, "threshold": 0.01})
    repeated = notes.counts["repeated lines not in the log"]
    if repeated:
        yield Finding("R15", "", {"what": "repeated", "count": repeated})
    wrong = notes.counts["throughputs that differ by more than 2 %"]
    if wrong:
        yield Finding("R15", "", {"what": "throughput", "count": wrong})
    segments = Counter(group.segment.source for group in groups if group.segment.name.startswith("segment "))
    for source, count in segments.items():
        if count > 1:
            yield Finding("R15", source, {"what": "restarted", "count": count})


def _r11_cost(groups: list[GroupSums], notes: Notes) -> Iterator[Finding]:
    """Say what tracing itself costs, from the costs in the headers, or from the lines that were logged."""
    costs = [facts["costs_ns"][0] for facts in notes.facts if _has_costs(facts)]
    for group in groups:
        if not at_stake(group):
            continue
        each = float(np.median(costs)) if costs else 0.0
        if group.stages == PIPELINE.stages and notes.counts["TQ lines"]:
            each = _TQ_LINE_NS * _TQ_LINES_PER_CALL
        share = each * group.timed_count / group.total_ns
        if share >= 0.01:
            yield Finding("R11", group.segment.name, {"share": share, "each_ns": each, "threshold": 0.01},
                          each * group.timed_count)  # fmt: skip


def _has_costs(facts: dict[str, Any]) -> bool:
    costs = facts.get("costs_ns")
    return (
        isinstance(costs, list) and bool(costs) and isinstance(costs[0], int | float) and 0 <= costs[0] < _MOST_COST_NS
    )


def _seed_rpc(group: GroupSums) -> Iterator[Finding]:
    if not is_rpc(group) or group.total_ns <= 0:
        return
    serialize, moving = group.stage("serialize") / group.total_ns, group.stage("send", "wait") / group.total_ns
    if serialize > 0.30:
        yield Finding("S1", group.segment.name, {"share": serialize, "threshold": 0.30}, group.stage("serialize"))
    if moving > 0.30:
        yield Finding("S2", group.segment.name, {"share": moving, "threshold": 0.30}, group.stage("send", "wait"))
    name, most = max(group.methods.items(), key=lambda one: one[1].calls_count)
    if most.calls_count > 10:
        yield Finding("S3", f"{group.segment.name}, {name}", {"calls": most.calls_count, "threshold": 10})


def _seed_pipeline(group: GroupSums) -> Iterator[Finding]:
    if group.stages != PIPELINE.stages or group.total_ns <= 0:
        return
    moving, compute = group.stage("get", "put") / group.total_ns, group.stage("compute") / group.total_ns
    level = "good" if moving < 0.20 else "bad" if moving > 0.30 else "fair"
    yield Finding("S4", group.segment.name, {"share": moving, "compute_share": compute, "level": level})


def _seed_throughput(group: GroupSums) -> Iterator[Finding]:
    if group.moved_bytes and group.total_ns > 0:
        speed = group.moved_bytes / _MIB / (group.total_ns / 1e9)
        level = "good" if speed > 500 else "fair" if speed >= 100 else "bad"
        yield Finding("S5", group.segment.name, {"mib_per_s": speed, "level": level})


_SEED_RULES = (_seed_rpc, _seed_pipeline, _seed_throughput)
