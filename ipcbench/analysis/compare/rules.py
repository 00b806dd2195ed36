"""What may be claimed of a figure in two runs: adjusted p-values, verdict, gate; and whether two machines are one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ipcbench.stats.decisions import LEAST_RATIO, compare
from ipcbench.stats.estimates import LEVEL, MIN_CLAIM_ROUNDS, Interval
from ipcbench.util.units import format_significant

Verdict = Literal["faster", "slower", "no clear difference", "not comparable"]
GateResult = Literal["passed", "regressed", "inconclusive"]

_MAX_MEMORY_RATIO = 1.05
"""Kernels reserve different amounts of the same memory."""


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's method, in the same order: below 5 % is significant for all together."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def judge(time_ratio: Interval, p_adjusted: float | None, tests_count: int) -> tuple[Verdict, str]:
    """Return the verdict on a ratio of times B / A, and why it is not a difference although its interval excludes 1.

    Args:
        time_ratio: how many times as slow B is, with its interval.
        p_adjusted: adjusted p-value; None if there are too few rounds to test.
        tests_count: how many figures are tested.
    """
    verdict: Verdict = compare(time_ratio)
    if verdict == "no clear difference":
        may_be_one = time_ratio.low <= 1.0 <= time_ratio.high
        return verdict, "" if may_be_one else f"may be within {format_significant(100 * LEAST_RATIO, 1)} %"
    if p_adjusted is None:
        return "no clear difference", f"fewer than {MIN_CLAIM_ROUNDS} rounds: how rounds differ is not known"
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


def machine_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how two described machines differ, each difference as `name: A / B`; empty if they are the same machine.

    They are the same if CPU model, usable and logical cores, kernel (system, major, minor) and Python (implementation,
    major, minor) are equal and memory is within 5 %. A value that only one of them has is a difference.
    """
    here, there = _identity(a), _identity(b)
    sizes = sorted(size for size in (here["memory_bytes"], there["memory_bytes"]) if isinstance(size, int))
    if len(sizes) == 2 and sizes[1] <= _MAX_MEMORY_RATIO * sizes[0]:
        there["memory_bytes"] = here["memory_bytes"]
    return differences(here, there)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which two mappings hold different values, each as `name: A / B`."""
    return tuple(
        f"{name}: {' / '.join('unknown' if side.get(name) is None else str(side[name]) for side in (a, b))}"
        for name in dict.fromkeys((*a, *b))
        if a.get(name) != b.get(name)
    )


def _identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: machine.get(name) for name in ("cpu_model", "usable_cores", "logical_cores", "memory_bytes")}
    for name in ("kernel", "python"):  # `Linux 6.1.0-18-amd64`, `CPython 3.11.7`: patch releases do not count
        match = re.match(r"\D*\d+\.\d+", str(machine.get(name) or ""))
        identity[name] = match[0] if match else machine.get(name)
    return identity
