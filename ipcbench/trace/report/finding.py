"""One finding, and what rules ask before they look closer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ipcbench.trace.report.sums import GroupSums
from ipcbench.trace.schema import CLIENT

LEAST_CALLS: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        rule: its number, the key of its words.
        where: segment, and method if it is about one.
        values: what its words quote: shares as ratios, times in ns.
        gain_ns: the most that following it can save, of the traced time; None where no bound is known.
    """

    rule: str
    where: str
    values: dict[str, Any]
    gain_ns: float | None = None


def at_stake(group: GroupSums) -> bool:
    """Return whether there are enough calls to say anything of."""
    return group.timed_count >= LEAST_CALLS and group.total_ns > 0


def is_rpc(group: GroupSums) -> bool:
    """Return whether it is the client's side of calls that are answered."""
    return group.segment.role == CLIENT and "wait" in group.stages
