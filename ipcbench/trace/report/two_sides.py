"""The rules that need the server's side of the calls: R2, R3, R7, R14.

Their shares are of the joined calls alone, which are a fair sample; what can be gained is scaled to all.
"""

from __future__ import annotations

from collections.abc import Iterator

from ipcbench.trace.report.finding import LEAST_CALLS, Finding, at_stake, is_rpc
from ipcbench.trace.report.sums import GroupSums

_MIB = 2**20


def wait(group: GroupSums) -> Iterator[Finding]:
    """R2, R2b, R3: what waiting for the reply is made of."""
    if not (is_rpc(group) and at_stake(group)):
        return
    split = group.split
    if split.server_ns <= 0 or split.total_ns <= 0 or split.joined_count < min(LEAST_CALLS, group.timed_count):
        wait_share = group.stage("wait") / group.total_ns
        if wait_share >= 0.50:
            yield Finding("R2b", group.segment.name, {"share": wait_share, "threshold": 0.50})
        return
    server_share = split.server_ns / split.total_ns
    gain_ns = max(0.0, split.transport_ratio * group.total_ns)
    if server_share >= 0.50:
        values = {"share": server_share, "transit_share": split.transport_ratio, "threshold": 0.50}
        yield Finding("R2", group.segment.name, values, gain_ns)
    if split.transport_ratio >= 0.30:
        mean_bytes = group.moved_bytes / group.timed_count
        values = {"share": split.transport_ratio, "mean_bytes": mean_bytes, "threshold": 0.30}
        yield Finding("R3", group.segment.name, values, gain_ns)


def queueing(group: GroupSums) -> Iterator[Finding]:
    """R7: requests wait for the server."""
    split = group.split
    if not is_rpc(group) or split.answered_count < LEAST_CALLS or split.total_ns <= 0:
        return
    share = split.queue_ns / split.total_ns
    if share >= 0.10:
        scale = group.timed_count / split.joined_count
        busy = split.server_ns * scale / 1e9 / split.span_s if split.span_s > 0 else 0.0
        values = {"share": share, "queue_ns": split.queue_ns / split.joined_count, "growth": split.growth_ratio,
                  "busy": busy, "threshold": 0.10}  # fmt: skip
        yield Finding("R7", group.segment.name, values, share * group.total_ns)


def wide_types(group: GroupSums) -> Iterator[Finding]:
    """R14: large messages of numbers that could be half as wide."""
    for name, one in group.methods.items():
        split = one.split
        mean_bytes = (one.sent_bytes + one.recv_bytes) / max(1, one.timed_count)
        if split.answered_count < LEAST_CALLS or mean_bytes < _MIB or not split.typed_bytes:
            continue
        wide_share = split.wide_bytes / split.typed_bytes
        if wide_share >= 0.50 and split.transport_ratio >= 0.30:
            values = {"wide_share": wide_share, "mean_bytes": mean_bytes, "share": split.transport_ratio,
                      "threshold": 0.30}  # fmt: skip
            gain_ns = split.transport_ratio * one.total_ns * wide_share / 2
            yield Finding("R14", f"{group.segment.name}, {name}", values, gain_ns)
