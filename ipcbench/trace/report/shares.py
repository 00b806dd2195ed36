"""Totals and their parts, as far as they are known where some calls were only counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ipcbench.render.table import NOT_MEASURED
from ipcbench.trace.report.sums import MOST_ERROR_RATIO, GroupSums, MethodSums
from ipcbench.util.units import format_ms, format_percent, format_significant

_LEAST_SHOWN_NS = 1000
"""What has a digit in ms with three decimals."""


def is_known(sums: MethodSums | GroupSums) -> bool:
    """Return whether all calls were timed, or their time is estimated well enough to be given."""
    return sums.timed_count > 0 and not sums.planned_count and sums.total_error_ratio <= MOST_ERROR_RATIO


def total_text(sums: MethodSums | GroupSums) -> str:
    """Return the total time in ms: an estimate, with how far it may be off, where some calls were only counted; what it
    is at least, where too few records stand for them.
    """
    error_ns = sums.total_error_ratio * sums.total_ns if is_known(sums) else math.inf
    return estimate_text(sums.total_ns, error_ns, sums.least_ns)


def estimate_text(ns: float, error_ns: float, least_ns: float) -> str:
    """Return a time in ms, with how far it may be off; what it is at least, if nobody knows."""
    if not error_ns:
        return format_ms(ns)
    if math.isinf(error_ns):
        return f"≥ {format_ms(least_ns)}"
    if error_ns < _LEAST_SHOWN_NS:
        return f"≈ {format_significant(ns / 1e6, 3)} ± {format_significant(error_ns / 1e6, 1)}"
    return f"≈ {format_ms(ns)} ± {format_ms(error_ns)}"


def mean_text(sums: MethodSums | GroupSums) -> str:
    """Return the mean time in ms, as `total_text` does; a dash if nobody knows."""
    if not is_known(sums):
        return NOT_MEASURED
    mean_ns = sums.total_ns / sums.calls_count
    return estimate_text(mean_ns, sums.total_error_ratio * mean_ns, 0.0)


@dataclass(frozen=True, slots=True)
class StageShare:
    """A stage's part of the time of calls.

    Attributes:
        name: of the stage.
        ns: their time in it; None if too little is known of those that were only counted.
        error_ns: how far it may be off (95 %): 0 if all calls were timed; None as `ns`.
        share: of their whole time; None as `ns`.
        text: the time in ms as the tables have it.
    """

    name: str
    ns: float | None
    error_ns: float | None
    share: float | None
    text: str

    @property
    def row(self) -> tuple[str, str]:
        """Return time and share for a table."""
        return self.text, share_text(self.share)


def share_text(share: float | None) -> str:
    """Return a share in percent; a dash for an unknown one."""
    return NOT_MEASURED if share is None else format_percent(share)


def stage_shares(sums: GroupSums | MethodSums) -> list[StageShare]:
    """Return the parts of each stage, and of the time that belongs to none."""
    total_ns, known = sums.total_ns or 1.0, is_known(sums)
    rest_ns = sums.total_ns - sum(sums.stage_ns)
    rest_ns = 0.0 if abs(rest_ns) < 1e-6 * total_ns else rest_ns  # an estimate may lack a rounding error
    rest_error_ns = sums.total_error_ratio * sums.total_ns if rest_ns or not known else 0.0
    columns = (
        (*sums.stages, "unaccounted"),
        (*sums.stage_ns, rest_ns),
        (*sums.stage_errors_ns, rest_error_ns),
        (*sums.staged_ns, max(0.0, sums.timed_ns - sum(sums.staged_ns))),
    )
    return [
        StageShare(name, ns, error_ns, ns / total_ns, estimate_text(ns, error_ns, least_ns))
        if known
        else StageShare(name, None, None, None, estimate_text(ns, math.inf, least_ns))
        for name, ns, error_ns, least_ns in zip(*columns, strict=True)
    ]


def stage_fields(sums: GroupSums | MethodSums) -> list[dict[str, Any]]:
    """Return the parts of each stage for JSON."""
    if not sums.timed_count:
        return []
    return [
        {"stage": part.name, "total_ns": part.ns, "total_error_ns": part.error_ns, "share_ratio": part.share}
        for part in stage_shares(sums)
    ]
