"""What may be claimed of a figure in two runs: adjusted p-values, verdict, gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ipcbench.stats.decisions import LEAST_RATIO, compare
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.stats.student import LEVEL
from ipcbench.util.units import format_significant

Verdict = Literal["faster", "slower", "no clear difference", "not comparable"]
GateResult = Literal["passed", "regressed", "inconclusive"]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's method, in the same order: below 5 % is significant for all together."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def judge(
    time_ratio: Interval, p_value: float | None, p_adjusted: float | None, tests_count: int
) -> tuple[Verdict, str]:
    """Return the verdict on a ratio of times B / A, and why it is not a difference although its interval excludes 1.

    Args:
        time_ratio: how many times as slow B is, with its interval.
        p_value: its own; None if there are too few rounds to test.
        p_adjusted: the same, adjusted for all figures that are tested.
        tests_count: how many figures are tested.
    """
    verdict: Verdict = compare(time_ratio)
    if verdict == "no clear difference":
        may_be_one = time_ratio.low <= 1.0 <= time_ratio.high
        return verdict, "" if may_be_one else f"may be within {format_significant(100 * LEAST_RATIO, 1)} %"
    if p_value is None or p_adjusted is None:
        return "no clear difference", f"fewer than {MIN_CLAIM_ROUNDS} rounds: how rounds differ is not known"
    if p_value >= 1.0 - LEVEL:
        return "no clear difference", f"may be chance: p = {p_value:.2f}, since its rounds differ too much"
    if p_adjusted >= 1.0 - LEVEL:
        return "no clear difference", f"may be chance among {tests_count} figures: adjusted p = {p_adjusted:.2f}"
    return verdict, ""


def gate_result(time_ratio: Interval, verdict: Verdict, gate_ratio: float, *, trusted: bool) -> GateResult:
    """Return whether B is worse by more than the gate.

    `regressed`: slower by the verdict, and the whole interval lies beyond the gate. `passed`: the whole interval lies
    within it, and the figure is `trusted`: it has enough rounds, and no more trials failed than in A. Otherwise neither
    can be claimed.
    """
    limit = 1.0 + gate_ratio
    if verdict == "slower" and time_ratio.low > limit:
        return "regressed"
    return "passed" if trusted and time_ratio.high <= limit else "inconclusive"
