"""The audit: whether a log is consistent. Its summary against its rows, impossible times, damaged lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipcbench.trace.readers.batch import LOSING, Claim, Notes
from ipcbench.trace.report.sums import GroupSums

_TOLERANCE = 0.01
_STEP_MS = 0.0011
"""Averages are printed to a microsecond."""

_AVERAGES = {
    "Average Serialize Time": "serialize", "Average Send Time": "send", "Average Receive Time": "wait",
    "Average Deserialize Time": "deserialize",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Objection:
    """An inconsistency.

    Attributes:
        kind: the key of its words.
        what: what it is about; empty for the whole log.
        said: the value in the log, or a count.
        found: the computed value; None if there is nothing to compare with.
        grave: whether the figures are doubtful rather than incomplete.
    """

    kind: str
    what: str
    said: float
    found: float | None = None
    grave: bool = True


def audit(groups: list[GroupSums], notes: Notes) -> list[Objection]:
    """Return all objections."""
    objections: list[Objection] = []
    for group in groups:
        name = group.segment.name
        if group.negative_count:
            objections.append(Objection("negative", f"{name}, {group.odd_example}", group.negative_count))
        if group.impossible_count:
            objections.append(Objection("impossible", f"{name}, {group.odd_example}", group.impossible_count))
        if group.segment.bytes_are_partial:
            objections.append(Objection("partial", name, (group.moved_bytes or 0.0) / 2**20, grave=False))
    for claim in notes.claims:
        objections += _claim(claim, groups)
    if notes.unseen:
        objections.append(
            Objection("unseen", notes.unseen_names, notes.unseen.total(), notes.processes_count, grave=False)
        )
    if notes.damaged_count:
        objections.append(Objection("damaged", "; ".join(notes.examples), notes.damaged_count))
    objections += [Objection("count", what, count, grave=what == LOSING) for what, count in sorted(notes.counts.items())
              if count and what not in {"rows with a printed throughput", "TQ lines"}]  # fmt: skip
    return objections


def _claim(claim: Claim, groups: list[GroupSums]) -> Iterator[Objection]:
    for what, value in claim.values.items():
        if value < 0:
            yield Objection("negative claim", what, value)
    group = next((group for group in groups if group.segment == claim.segment), None)
    if group is None or not group.timed_count:
        return
    calls = claim.values.get("Total RPC Calls")
    if calls is not None and calls != group.calls_count:
        yield Objection("claim", f"{group.segment.name}, Total RPC Calls", calls, group.calls_count)
    means = {label: group.stage(stage) / group.timed_count / 1e6 for label, stage in _AVERAGES.items()}
    means["Average Total Time"] = group.total_ns / group.timed_count / 1e6
    for label, computed in means.items():
        said = claim.values.get(label)
        if said is not None and abs(said - computed) > _STEP_MS + _TOLERANCE * computed:
            yield Objection("claim", f"{group.segment.name}, {label} (ms)", said, computed)
    said = claim.values.get("Average Throughput")
    speed = group.mib_per_s
    if said is not None and speed is not None and abs(said - speed) > 0.02 + _TOLERANCE * speed:
        yield Objection("claim", f"{group.segment.name}, Average Throughput (MiB/s)", said, speed)
