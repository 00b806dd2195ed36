"""Two runs, cell by cell: the ratio B / A of each figure with its interval, and what may be said of it; the gate.

Many figures are tested at once, and of many equal ones some look different by chance: the p-values are therefore
adjusted by Holm's method over all that is tested, and a difference is called one only if its adjusted p-value is below
5 %, besides what `measure.stats.compare` asks for. docs/compare.md has the rule and what it was checked with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ipcbench.analysis.compare.rules import (
    GateResult,
    Verdict,
    differences,
    gate_result,
    holm,
    judge,
    machine_differences,
)
from ipcbench.analysis.compare.run_cells import (
    METRICS,
    METRICS_OF,
    CellKey,
    Metric,
    RunCell,
    absence,
    noise_ratios,
    run_cells,
)
from ipcbench.analysis.summary.notes import one_line
from ipcbench.errors import ConfigError
from ipcbench.results.store import Run
from ipcbench.spec import require_choice, require_range
from ipcbench.stats.decisions import Estimate, Interval, p_value, ratio

MAX_GATE_RATIO = 10.0
_MIN_GATE_RATIO = 1e-4
_MAX_PLACEMENT_RATIO = 1.6
"""Nearer cores and farther ones differ by more."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell in both runs."""

    cell: CellKey
    metric: Metric
    """Of a cell that cannot be compared at all: its main one."""
    a: Interval | None
    """In run A, in `unit`; None if not measured."""
    b: Interval | None
    ratio: Interval | None
    """B / A; None if not comparable."""
    p_value: float | None
    """Adjusted for all that is tested; None if not tested."""
    verdict: Verdict
    reason: str
    """Why not comparable, or why a ratio whose interval excludes 1 is not called a difference; else empty."""
    gate: GateResult | None = None
    """None without a gate, and for what run A has not measured."""
    notes: tuple[str, ...] = ()
    new_failures_count: int = 0
    """How many more trials of the cell failed in B than in A; they enter no figure, and no gate is passed with them."""
    across_machines: bool = False
    """The runs were made on different machines: the verdict is about both, machine and change."""

    @property
    def unit(self) -> str:
        """Return the unit of `a` and `b`."""
        return "per_s" if self.metric == "throughput" else "ns"

    @property
    def time_ratio(self) -> Interval | None:
        """Return how many times as slow B is: `ratio`, or its inverse for a throughput."""
        if self.ratio is None or self.metric != "throughput":
            return self.ratio
        return Interval(1.0 / self.ratio.high, 1.0 / self.ratio.estimate, 1.0 / self.ratio.low)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run B against run A."""

    run_a: str
    run_b: str
    machine_differences: tuple[str, ...]
    """What makes them two machines; empty if one. If not empty, every change is marked as one across machines."""
    version_differences: tuple[str, ...]
    noise_ratios: Mapping[Metric, float]
    """The larger of the two runs' noise; a metric is absent if neither run has two rounds of it."""
    gate_ratio: float | None
    tests_count: int
    """How many figures were tested, for which the p-values are adjusted."""
    changes: tuple[Change, ...]
    """By delivery, payload, size, backend and mode."""
    problems: tuple[str, ...]

    @property
    def outcome(self) -> GateResult | None:
        """Return what the gate says of all together; None without a gate.

        `regressed` if any figure is; else `inconclusive` if any is, or if nothing could be compared; else `passed`.
        """
        if self.gate_ratio is None:
            return None
        results = {one.gate for one in self.changes} - {None}
        if "regressed" in results:
            return "regressed"
        return "passed" if results == {"passed"} else "inconclusive"

    def count(self, verdict: Verdict) -> int:
        """Return how many figures have this verdict."""
        return sum(one.verdict == verdict for one in self.changes)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON: the fields, `outcome`, and the unit of each change."""
        changes = [{**asdict(one), "unit": one.unit} for one in self.changes]
        return {**asdict(self), "changes": changes, "outcome": self.outcome}


def compare_runs(
    a: Run,
    b: Run,
    *,
    gate_ratio: float | None = None,
    across_machines: bool = False,
    metrics: Collection[Metric] = METRICS,
) -> Comparison:
    """Compare run B with run A; the same runs give the same result.

    Args:
        a: the earlier run, the base.
        b: the later one.
        gate_ratio: by how much a figure may be worse: 0.05 allows times up to 1.05-fold, and throughput down to a
            1.05th.
        across_machines: compare runs of different machines too.
        metrics: which figures to compare.

    Raises:
        ConfigError: the machines differ and `across_machines` is false, or a gate or metric that is not allowed.
    """
    if gate_ratio is not None:
        require_range("gate", gate_ratio, _MIN_GATE_RATIO, MAX_GATE_RATIO)
    for one in metrics:
        require_choice("metrics", one, METRICS)
    between = tuple(map(one_line, machine_differences(a.info.machine, b.info.machine)))
    if between and not across_machines:
        allowed = f"a run on the machine of A, unless --across-machines is given; they differ in {'; '.join(between)}"
        raise ConfigError("B", b.info.run_id, allowed)
    cells_a, cells_b = run_cells(a), run_cells(b)
    noises = [noise_ratios(cells.values()) for cells in (cells_a, cells_b)]
    noise = {
        metric: max(one.get(metric, 0.0) for one in noises) for metric in METRICS if any(metric in n for n in noises)
    }
    changes = _judged(_changes(a, b, cells_a, cells_b, metrics), noise)
    changes = [replace(one, across_machines=bool(between)) for one in changes]
    return Comparison(
        run_a=one_line(a.info.run_id),
        run_b=one_line(b.info.run_id),
        machine_differences=between,
        version_differences=tuple(map(one_line, differences(a.info.versions, b.info.versions))),
        noise_ratios=noise,
        gate_ratio=gate_ratio,
        tests_count=sum(one.p_value is not None for one in changes),
        changes=tuple(changes if gate_ratio is None else (_gated(one, gate_ratio) for one in changes)),
        problems=tuple(f"{name}: {one}" for name, run in (("A", a), ("B", b)) for one in run.problems),
    )


def _changes(
    a: Run,
    b: Run,
    cells_a: Mapping[CellKey, RunCell],
    cells_b: Mapping[CellKey, RunCell],
    metrics: Collection[Metric],
) -> list[Change]:
    """Return every figure of every cell, with its own p-value, not judged yet."""
    changes: list[Change] = []
    for key in sorted({*cells_a, *cells_b}):
        chosen = tuple(one for one in METRICS_OF[key.mode] if one in metrics)
        one, other = cells_a.get(key), cells_b.get(key)
        if one is not None and other is not None:
            changes += _matched(key, chosen, one, other)
        elif chosen and one is not None:
            changes.append(_incomparable(key, chosen[0], one, None, f"missing in B: {absence(key, cells_b, b.info)}"))
        elif chosen and other is not None:
            changes.append(_incomparable(key, chosen[0], None, other, f"missing in A: {absence(key, cells_a, a.info)}"))
    return changes


def _judged(changes: Sequence[Change], noise: Mapping[Metric, float]) -> list[Change]:
    """Return the changes with verdicts, their p-values adjusted for each other."""
    own = [one.p_value for one in changes if one.p_value is not None]
    adjusted = iter(holm(own))
    found = []
    for one in changes:
        times = one.time_ratio
        if times is None:
            found.append(one)
            continue
        p_adjusted = None if one.p_value is None else next(adjusted)
        verdict, reason = judge(times, p_adjusted, noise.get(one.metric, 0.0), len(own))
        found.append(replace(one, p_value=p_adjusted, verdict=verdict, reason=reason))
    return found


def _gated(change: Change, gate_ratio: float) -> Change:
    """Return the change with what the gate says: nothing of what A has not measured."""
    times = change.time_ratio
    if times is not None:
        believed = change.p_value is not None and change.new_failures_count <= 0
        return replace(change, gate=gate_result(times, change.verdict, gate_ratio, believed=believed))
    return replace(change, gate="inconclusive" if change.a is not None else None)


def _matched(key: CellKey, metrics: Sequence[Metric], a: RunCell, b: RunCell) -> list[Change]:
    """Return a cell that both runs have: one change for each metric, or a single one if nothing can be compared."""
    if not metrics:
        return []
    reasons = [f"{one.status} in {name}: {one.reason}" for name, one in (("A", a), ("B", b)) if one.status != "ok"]
    if not reasons and (a.payload_bytes != b.payload_bytes or len(a.payload_bytes) > 1):
        sizes = (", ".join(f"{count:,} B" for count in one.payload_bytes) for one in (a, b))
        reasons = [f"other payload bytes: {' / '.join(sizes)}"]
    notes = _notes(a, b)
    if reasons:
        return [_incomparable(key, metrics[0], a, b, "; ".join(reasons), notes)]
    changes = []
    for metric in metrics:
        one, other = a.estimates.get(metric), b.estimates.get(metric)
        if one is not None and other is not None:
            change = _change(key, metric, one, other, notes)
            changes.append(replace(change, new_failures_count=b.failed_count - a.failed_count))
        elif one is not None or other is not None or metric == METRICS_OF[key.mode][0]:
            absent = " and ".join(name for name, found in (("A", one), ("B", other)) if found is None)
            reason = f"no such figure in {absent}: not measured, or too few samples or rounds"
            changes.append(_incomparable(key, metric, a, b, reason, notes))
    return changes


def _incomparable(
    key: CellKey, metric: Metric, a: RunCell | None, b: RunCell | None, reason: str, notes: tuple[str, ...] = ()
) -> Change:
    one, other = (cell.estimates.get(metric) if cell is not None else None for cell in (a, b))
    return Change(
        key,
        metric,
        one.interval() if one is not None else None,
        other.interval() if other is not None else None,
        ratio=None,
        p_value=None,
        verdict="not comparable",
        reason=reason,
        notes=notes,
    )


def _change(key: CellKey, metric: Metric, a: Estimate, b: Estimate, notes: tuple[str, ...]) -> Change:
    # Both runs draw the same replicates of a cell; in opposite orders they are independent of each other. And the turns
    # of two runs have nothing to do with one another.
    other = replace(b, deviations=b.deviations[::-1], turns={})
    return Change(
        key,
        metric,
        a.interval(),
        b.interval(),
        ratio=ratio(other, a),
        p_value=p_value(a, other),
        verdict="no clear difference",
        reason="",
        notes=notes,
    )


def _notes(a: RunCell, b: RunCell) -> tuple[str, ...]:
    both = [one for one in a.notes if one in b.notes]
    notes = [*both, *(f"A: {one}" for one in a.notes if one not in both)]
    notes += [f"B: {one}" for one in b.notes if one not in both]
    if a.schedule_s != b.schedule_s:
        notes.append("windows or warm-ups of different lengths in A and B")
    near_a, near_b = a.placement_ns, b.placement_ns
    if near_a and near_b and max(near_a, near_b) > _MAX_PLACEMENT_RATIO * min(near_a, near_b):
        notes.append(f"cores were nearer to each other in {'A than in B' if near_a < near_b else 'B than in A'}")
    return tuple(notes)
