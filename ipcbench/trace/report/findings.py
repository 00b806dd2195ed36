"""Findings: rules, each with a condition and its threshold, the evidence, and a bound on what a change can save.

Rules about the server's side (R2, R3, R7, R14) take their shares from the joined calls, which are a fair sample of all;
what can be saved is scaled to all calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ipcbench.trace.readers.batch import Notes
from ipcbench.trace.report.sums import GroupSums, MethodSums
from ipcbench.trace.schema import CLIENT, PIPELINE

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
    by_group = _SEED_RULES if rules == "seed" else _RULES
    found = [finding for group in groups for rule in by_group for finding in rule(group)]
    if rules != "seed":
        found += _notes_rules(groups, notes)
    return sorted(found, key=lambda finding: -(finding.gain_ns or 0.0))


def _at_stake(group: GroupSums) -> bool:
    """Return whether there are enough timed calls for a finding."""
    return group.timed_count >= LEAST_CALLS and group.total_ns > 0


def _is_rpc(group: GroupSums) -> bool:
    """Return whether the group is the client's side of request–reply calls."""
    return group.segment.role == CLIENT and "wait" in group.stages


def _r1_serialize(group: GroupSums) -> Iterator[TraceFinding]:
    if not (_is_rpc(group) and _at_stake(group)):
        return
    spent = group.stage("serialize", "deserialize")
    share, moved = spent / group.total_ns, group.moved_bytes
    copy_ns = moved / MEMCPY_BYTES_PER_S * 1e9
    if share >= 0.30 and spent > 4 * copy_ns:
        yield TraceFinding(
            "R1", group.segment.name, {"share": share, "copy_ns": copy_ns, "threshold": 0.30}, spent - copy_ns
        )


def _r2_r3_wait(group: GroupSums) -> Iterator[TraceFinding]:
    """R2, R2b, R3: what the wait for the reply consists of."""
    if not (_is_rpc(group) and _at_stake(group)):
        return
    split = group.split
    if split.server_ns <= 0 or split.total_ns <= 0 or split.joined_count < min(LEAST_CALLS, group.timed_count):
        wait_share = group.stage("wait") / group.total_ns
        if wait_share >= 0.50:
            yield TraceFinding("R2b", group.segment.name, {"share": wait_share, "threshold": 0.50})
        return
    server_share = split.server_ns / split.total_ns
    gain_ns = max(0.0, split.transport_ratio * group.total_ns)
    if server_share >= 0.50:
        values = {"share": server_share, "transit_share": split.transport_ratio, "threshold": 0.50}
        yield TraceFinding("R2", group.segment.name, values, gain_ns)
    if split.transport_ratio >= 0.30:
        mean_bytes = group.moved_bytes / group.timed_count
        values = {"share": split.transport_ratio, "mean_bytes": mean_bytes, "threshold": 0.30}
        yield TraceFinding("R3", group.segment.name, values, gain_ns)


def _r4_loopback(group: GroupSums) -> Iterator[TraceFinding]:
    if group.segment.transport.upper().startswith("TCP") and _at_stake(group):
        share = group.stage("send", "wait") / group.total_ns
        if share >= LEAST_STAKE_RATIO:
            yield TraceFinding("R4", group.segment.name, {"transport": group.segment.transport, "share": share})


def _r5_chatty(group: GroupSums) -> Iterator[TraceFinding]:
    if not (_is_rpc(group) and _at_stake(group)) or group.segment.bytes_are_partial:
        return
    sizes = [size for sums in group.methods.values() for _, size in sums.pairs]
    median_bytes = float(np.median(sizes)) if sizes else 0.0
    floor_ns = group.timed_count * EMPTY_ROUND_TRIP_NS
    if floor_ns >= 0.20 * group.total_ns and median_bytes < 4096:
        values = {"calls": group.timed_count, "share": min(1.0, floor_ns / group.total_ns),
                  "median_bytes": median_bytes,
                  "round_trip_ns": EMPTY_ROUND_TRIP_NS, "threshold": 0.20}  # fmt: skip
        yield TraceFinding("R5", group.segment.name, values, min(group.total_ns, floor_ns) * 7 / 8)


def _r6_tail(group: GroupSums) -> Iterator[TraceFinding]:
    for name, sums in group.methods.items():
        if sums.timed_count < 100 or sums.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        median = max(1.0, sums.histogram.quantile(0.5))
        ratio = sums.histogram.quantile(0.99) / median
        if ratio < 10 and sums.variation_ratio < 1:
            continue
        values = {"ratio": ratio, "variation": sums.variation_ratio, "cause": _cause(sums, median)}
        gain = max(0.0, sums.total_ns - median * sums.timed_count)
        yield TraceFinding("R6", f"{group.segment.name}, {name}", values, gain)


def _cause(sums: MethodSums, median_ns: float) -> str:
    """Return what a long tail is related to: `size`, `warm-up` or `unknown`."""
    if len(sums.pairs) >= 20:
        times, sizes = np.array(sums.pairs, dtype=np.float64).T
        if sizes.min() < sizes.max() and times.min() < times.max():
            ranks = [np.argsort(np.argsort(column)) for column in (times, sizes)]
            if float(np.corrcoef(ranks[0], ranks[1])[0, 1]) >= 0.7:
                return "size"
    slow = [ns for ns in sums.first_ns if ns > 5 * median_ns]
    return "warm-up" if slow and sum(slow) > 0.5 * (sums.total_ns - median_ns * sums.timed_count) else "unknown"


def _r7_queueing(group: GroupSums) -> Iterator[TraceFinding]:
    """R7: requests queue at the server."""
    split = group.split
    if not _is_rpc(group) or split.answered_count < LEAST_CALLS or split.total_ns <= 0:
        return
    share = split.queue_ns / split.total_ns
    if share >= 0.10:
        scale = group.timed_count / split.joined_count
        busy = split.server_ns * scale / 1e9 / split.span_s if split.span_s > 0 else 0.0
        values = {"share": share, "queue_ns": split.queue_ns / split.joined_count, "growth": split.growth_ratio,
                  "busy": busy, "threshold": 0.10}  # fmt: skip
        yield TraceFinding("R7", group.segment.name, values, share * group.total_ns)


def _r8_bandwidth(group: GroupSums) -> Iterator[TraceFinding]:
    for name, sums in group.methods.items():
        moved = sums.sent_bytes + sums.recv_bytes
        timed = sums.timed_count
        if timed < LEAST_CALLS or moved < _MIB * timed or sums.total_ns < LEAST_STAKE_RATIO * group.total_ns:
            continue
        speed = moved / _MIB / (sums.total_ns / 1e9)
        if speed < 500:
            level = 100 if speed < 100 else 500
            yield TraceFinding("R8", f"{group.segment.name}, {name}", {"mib_per_s": speed, "threshold": level})


def _r9_pipeline(group: GroupSums) -> Iterator[TraceFinding]:
    if group.stages != PIPELINE.stages or not _at_stake(group):
        return
    moving = group.stage("get", "put") / group.total_ns
    compute = group.stage("compute") / group.total_ns
    if moving >= 0.20 and compute < 0.80:
        values = {"share": moving, "compute_share": compute, "threshold": 0.30 if moving >= 0.30 else 0.20}
        yield TraceFinding("R9", group.segment.name, values, min(group.stage("get"), group.stage("compute")))


def _r10_unaccounted(group: GroupSums) -> Iterator[TraceFinding]:
    if _at_stake(group) and len(group.stages) > 1:
        share = 1.0 - sum(group.stage_ns) / group.total_ns
        if share >= 0.10:
            yield TraceFinding("R10", group.segment.name, {"share": share, "threshold": 0.10})


def _r12_failed(group: GroupSums) -> Iterator[TraceFinding]:
    failed = sum(sums.failed_count for sums in group.methods.values())
    if group.timed_count >= LEAST_CALLS and failed >= 0.01 * group.timed_count:
        yield TraceFinding("R12", group.segment.name, {"count": failed, "calls": group.timed_count, "threshold": 0.01})


def _r13_straggler(group: GroupSums) -> Iterator[TraceFinding]:
    workers = {name: (count, ns / count) for name, (count, ns) in group.workers.items() if count >= LEAST_CALLS}
    if len(workers) < 3:
        return
    median = float(np.median([mean for _, mean in workers.values()]))
    name, (count, mean) = max(workers.items(), key=lambda item: item[1][1])
    if mean >= 1.5 * median > 0:
        values = {"worker": name, "ratio": mean / median, "workers": len(workers), "threshold": 1.5}
        yield TraceFinding("R13", group.segment.name, values, (mean - median) * count)


def _r14_wide_types(group: GroupSums) -> Iterator[TraceFinding]:
    """R14: large messages of numbers whose type could be half as wide."""
    for name, sums in group.methods.items():
        split = sums.split
        mean_bytes = (sums.sent_bytes + sums.recv_bytes) / max(1, sums.timed_count)
        if split.answered_count < LEAST_CALLS or mean_bytes < _MIB or not split.typed_bytes:
            continue
        wide_share = split.wide_bytes / split.typed_bytes
        if wide_share >= 0.50 and split.transport_ratio >= 0.30:
            values = {"wide_share": wide_share, "mean_bytes": mean_bytes, "share": split.transport_ratio,
                      "threshold": 0.30}  # fmt: skip
            gain_ns = split.transport_ratio * sums.total_ns * wide_share / 2
            yield TraceFinding("R14", f"{group.segment.name}, {name}", values, gain_ns)


_RULES: tuple[Callable[[GroupSums], Iterator[TraceFinding]], ...] = (
    _r1_serialize, _r2_r3_wait, _r4_loopback, _r5_chatty, _r6_tail, _r7_queueing,
    _r8_bandwidth, _r9_pipeline, _r10_unaccounted,
    _r12_failed, _r13_straggler, _r14_wide_types,
)  # fmt: skip


def _notes_rules(groups: list[GroupSums], notes: Notes) -> Iterator[TraceFinding]:
    yield from _r11_cost(groups, notes)
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
    costs = [facts["costs_ns"][0] for facts in notes.facts if _has_costs(facts)]
    for group in groups:
        if not _at_stake(group):
            continue
        each = float(np.median(costs)) if costs else 0.0
        if group.stages == PIPELINE.stages and notes.counts["TQ lines"]:
            each = _TQ_LINE_NS * _TQ_LINES_PER_CALL
        share = each * group.timed_count / group.total_ns
        if share >= 0.01:
            yield TraceFinding("R11", group.segment.name, {"share": share, "each_ns": each, "threshold": 0.01},
                          each * group.timed_count)  # fmt: skip


def _has_costs(facts: dict[str, Any]) -> bool:
    costs = facts.get("costs_ns")
    return (
        isinstance(costs, list) and bool(costs) and isinstance(costs[0], int | float) and 0 <= costs[0] < _MOST_COST_NS
    )


def _seed_rpc(group: GroupSums) -> Iterator[TraceFinding]:
    if not _is_rpc(group) or group.total_ns <= 0:
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
    if group.moved_bytes and group.total_ns > 0:
        speed = group.moved_bytes / _MIB / (group.total_ns / 1e9)
        level = "good" if speed > 500 else "fair" if speed >= 100 else "bad"
        yield TraceFinding("S5", group.segment.name, {"mib_per_s": speed, "level": level})


_SEED_RULES = (_seed_rpc, _seed_pipeline, _seed_throughput)
