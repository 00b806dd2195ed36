"""Compare two runs, or the variants of one, cell by cell: the ratio B / A of each figure with its interval, the verdict
on it, and the gate.

Of many equal figures tested at once, some look different by chance. The p-values are therefore adjusted by Holm's
method over all tests, and a difference also needs an adjusted p-value below 5 %, besides what `stats.decisions.compare`
requires. docs/compare.md states the rule and how it was checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ipcbench.analysis.compare.rules import GateResult, Verdict, gate_result, holm, judge
from ipcbench.analysis.compare.run_cells import (
    MAIN_METRICS,
    METRICS,
    METRICS_OF,
    CellKey,
    ComparedMetric,
    RunCell,
    absence,
    run_cells,
)
from ipcbench.analysis.summary.figures import inverted
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import contrary_words, too_few_words
from ipcbench.errors import ConfigError
from ipcbench.machine.identity import differences, machine_differences
from ipcbench.results.model import placement_differs
from ipcbench.results.store import Run
from ipcbench.spec import VARIANT_MARK, recorded_names, require_choice, require_range
from ipcbench.stats.decisions import compare as verdict_of
from ipcbench.stats.decisions import p_value, prior_of_comparisons
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval, ratio, rounds_in_common
from ipcbench.stats.student import LEVEL

MAX_GATE_RATIO = 10.0
MIN_GATE_RATIO = 1e-4
_P50_BESIDE: Mapping[ComparedMetric, ComparedMetric] = {
    "latency-p99": "latency-p50",
    "round-trip-p99": "round-trip-p50",
}

_Relate = Callable[[ComparedMetric, RunCell, RunCell], tuple[Interval, float | None] | str]
"""Returns the ratio of the second to the first figure, and the p-value of "both are equal"."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell in both runs."""

    cell: CellKey
    metric: ComparedMetric
    """The main one if the cell cannot be compared at all."""
    a: Interval | None
    """In run A, in `unit`; None if not measured."""
    b: Interval | None
    ratio: Interval | None = None
    """B / A; None if not comparable."""
    p_value: float | None = None
    """Adjusted for all tests; None if not tested."""
    verdict: Verdict = "not comparable"
    reason: str = ""
    """Why it is not comparable, or why a ratio whose interval excludes 1 is not called a difference; else empty."""
    gate: GateResult | None = None
    """None without a gate, and for a figure that run A has not measured."""
    notes: tuple[str, ...] = ()
    new_failures_count: int = 0
    """How many more trials of the cell failed in B than in A; a gate is not passed with any."""
    across_machines: bool = False
    """The runs come from different machines: the verdict covers machine and change together."""
    medians: tuple[Interval | None, Interval | None] = (None, None)
    """Of a p99: the p50 beside it in A and in B, below which nothing of it is."""

    def at_gate(self, gate_ratio: float) -> GateResult | None:
        """Return the result of a gate; None for a figure that A has not measured."""
        times = self.time_ratio
        if times is None:
            return "inconclusive" if self.a is not None else None
        trusted = self.p_value is not None and self.new_failures_count <= 0
        return gate_result(times, self.verdict, gate_ratio, trusted=trusted)

    @property
    def smallest_gate_ratio(self) -> float | None:
        """Return the smallest gate that is decided, see `smallest_gate_ratio`."""
        return smallest_gate_ratio([self])

    @property
    def unit(self) -> str:
        """Return the unit of `a` and `b`."""
        return "per_s" if self.metric == "throughput" else "ns"

    @property
    def time_ratio(self) -> Interval | None:
        """Return how many times as slow B is: `ratio`, or its inverse for throughput."""
        if self.ratio is None or self.metric != "throughput":
            return self.ratio
        return inverted(self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Run B against run A, or variants of one run against the first of them."""

    run_a: str
    run_b: str
    by_rounds: bool
    """A and B took turns in one run, and are compared by the rounds that they have in common."""
    machine_differences: tuple[str, ...]
    """How the machines differ; empty if they are the same. Otherwise every change is marked `across_machines`."""
    version_differences: tuple[str, ...]
    backend_differences: tuple[str, ...]
    """Which backends took turns in one of two runs only, `zmq only in A`."""
    gate_ratio: float | None
    tests_count: int
    """How many figures were tested; the p-values are adjusted for this number."""
    changes: tuple[Change, ...]
    """By delivery, payload, size, backend and mode."""
    absent_metrics: tuple[ComparedMetric, ...]
    """Figures that were named, and of which neither side has any."""
    problems: tuple[str, ...]

    @property
    def outcome(self) -> GateResult | None:
        """Return the result of the gate over all figures; None without a gate.

        `regressed` if any figure is; else `inconclusive` if any is or nothing could be compared; else `passed`.
        """
        if self.gate_ratio is None:
            return None
        results = {change.gate for change in self.changes} - {None}
        if "regressed" in results:
            return "regressed"
        return "passed" if results == {"passed"} else "inconclusive"

    @property
    def smallest_gate_ratio(self) -> float | None:
        """Return the smallest gate that every figure decides, see `smallest_gate_ratio`."""
        return smallest_gate_ratio(self.changes)

    def count(self, verdict: Verdict) -> int:
        """Return how many figures have this verdict."""
        return sum(change.verdict == verdict for change in self.changes)

    def __repr__(self) -> str:
        """Return what differs in a line."""
        verdicts: tuple[Verdict, ...] = ("slower", "faster", "no clear difference")
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in verdicts)
        gate = f"; gate {self.outcome}" if self.outcome else ""
        return f"<Comparison of {self.run_b} with {self.run_a}: {counts}{gate}>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON: the fields, `outcome`, the unit of each change, and smallest gates."""
        changes = [
            {**asdict(change), "unit": change.unit, "smallest_gate_ratio": change.smallest_gate_ratio}
            for change in self.changes
        ]
        for change in changes:
            del change["medians"]  # their own changes have them
        gate = {"outcome": self.outcome, "smallest_gate_ratio": self.smallest_gate_ratio}
        return {**asdict(self), "changes": changes, **gate}


def smallest_gate_ratio(changes: Sequence[Change]) -> float | None:
    """Return the smallest gate, in steps of 0.01 %, that all figures pass or fail for certain; None if there is none.

    Figures that A has not measured do not count, as in a gate.
    """
    ends = [change.time_ratio.high - 1.0 for change in changes if change.time_ratio is not None]
    gates = {MIN_GATE_RATIO * max(1, math.floor(end / MIN_GATE_RATIO) + 1) for end in (0.0, *ends)}
    for gate_ratio in sorted(gates):
        results = {change.at_gate(gate_ratio) for change in changes} - {None}
        if gate_ratio <= MAX_GATE_RATIO and results and "inconclusive" not in results:
            return gate_ratio
    return None


def compare_runs(
    a: Run,
    b: Run,
    *,
    gate_ratio: float | None = None,
    across_machines: bool = False,
    metrics: Collection[ComparedMetric] | None = None,
) -> Comparison:
    """Compare run B with run A; the same runs give the same result.

    Args:
        a: the earlier run, the base.
        b: the later one.
        gate_ratio: by how much a figure may be worse: 0.05 allows times up to 1.05-fold, and throughput down to a
            1.05th.
        across_machines: compare runs even if their machines differ.
        metrics: which figures to compare; by default all, or with a gate the main one of each mode: the interval of a
            p99 is hardly ever narrower than a gate.

    Raises:
        ConfigError: the machines differ and `across_machines` is false, or the gate or a metric is not allowed.
    """
    chosen = _chosen(gate_ratio, metrics)
    between = tuple(map(one_line, machine_differences(a.info.machine, b.info.machine)))
    if between and not across_machines:
        allowed = f"a run on the machine of A, unless --across-machines is given; they differ in {'; '.join(between)}"
        raise ConfigError("B", b.info.run_id, allowed)
    cells_a, cells_b = run_cells(a), run_cells(b)
    changes = _judged(_changes((a, cells_a), (b, cells_b), chosen, _of_unrelated_runs), gate_ratio)
    return Comparison(
        run_a=one_line(a.info.run_id),
        run_b=one_line(b.info.run_id),
        by_rounds=False,
        machine_differences=between,
        version_differences=tuple(map(one_line, differences(a.info.versions, b.info.versions))),
        backend_differences=(*_only_in("A", cells_a, cells_b), *_only_in("B", cells_b, cells_a)),
        gate_ratio=gate_ratio,
        tests_count=sum(change.p_value is not None for change in changes),
        changes=tuple(replace(change, across_machines=bool(between)) for change in changes),
        absent_metrics=_absent(metrics or (), changes),
        problems=tuple(f"{name}: {problem}" for name, run in (("A", a), ("B", b)) for problem in run.problems),
    )


def compare_variants(
    run: Run, *, gate_ratio: float | None = None, metrics: Collection[ComparedMetric] | None = None
) -> Comparison:
    """Compare the variants of a run with the first of them, by the rounds that they have in common.

    Args:
        run: a run with variants.
        gate_ratio: as for `compare_runs`.
        metrics: as for `compare_runs`.

    Raises:
        ConfigError: the run has no variants, or the gate or a metric is not allowed.
    """
    chosen = _chosen(gate_ratio, metrics)
    names = tuple(map(one_line, run.info.variant_versions))
    if len(names) < 2:
        raise ConfigError("A", run.info.run_id, "a run with variants, unless there is a second run, B, to compare with")
    base, *others = run.info.variant_versions
    cells = run_cells(run)
    # by the names of the others, so that rows of several variants can be told apart
    pairs = [(_variant_cells(cells, base, other), _variant_cells(cells, other, other)) for other in others]
    relate = _by_rounds(pairs)
    changes = [change for a, b in pairs for change in _changes((run, a), (run, b), chosen, relate)]
    changes = _judged(changes, gate_ratio)
    versions = run.info.variant_versions
    return Comparison(
        run_a=f"{names[0]} of {one_line(run.info.run_id)}",
        run_b=", ".join(names[1:]),
        by_rounds=True,
        machine_differences=(),
        version_differences=tuple(
            one_line(text if len(others) == 1 else f"{other}: {text}")
            for other in others
            for text in differences(versions[base], versions[other])
        ),
        backend_differences=(),
        gate_ratio=gate_ratio,
        tests_count=sum(change.p_value is not None for change in changes),
        changes=tuple(changes),
        absent_metrics=_absent(metrics or (), changes),
        problems=run.problems,
    )


def _absent(metrics: Collection[ComparedMetric], changes: Sequence[Change]) -> tuple[ComparedMetric, ...]:
    measured = {change.metric for change in changes if change.a is not None or change.b is not None}
    return tuple(metric for metric in METRICS if metric in metrics and metric not in measured)


def _only_in(name: str, cells: Mapping[CellKey, RunCell], others: Mapping[CellKey, RunCell]) -> Iterator[str]:
    known = {key.backend for key in others}
    yield from (f"{backend} only in {name}" for backend in sorted({key.backend for key in cells} - known))


def _chosen(gate_ratio: float | None, metrics: Collection[ComparedMetric] | None) -> Collection[ComparedMetric]:
    if gate_ratio is not None:
        require_range("gate", gate_ratio, MIN_GATE_RATIO, MAX_GATE_RATIO)
    for metric in metrics or ():
        require_choice("metrics", metric, METRICS)
    return metrics or (METRICS if gate_ratio is None else MAIN_METRICS)


def _variant_cells(cells: Mapping[CellKey, RunCell], variant: str, shown_as: str) -> dict[CellKey, RunCell]:
    """Return the cells of one variant, under the names of another."""
    found = {}
    for key, cell in cells.items():
        name, _, own = key.backend.partition(VARIANT_MARK)
        if own == variant:
            found[replace(key, backend=recorded_names([name], [shown_as])[0])] = cell
    return found


def _changes(
    before: tuple[Run, Mapping[CellKey, RunCell]],
    after: tuple[Run, Mapping[CellKey, RunCell]],
    metrics: Collection[ComparedMetric],
    relate: _Relate,
) -> list[Change]:
    """Return every figure of every cell with its own p-value, not judged yet."""
    changes: list[Change] = []
    (a, cells_a), (b, cells_b) = before, after
    for key in sorted({*cells_a, *cells_b}):
        chosen = tuple(metric for metric in METRICS_OF[key.mode] if metric in metrics)
        in_a, in_b = cells_a.get(key), cells_b.get(key)
        if in_a is not None and in_b is not None:
            changes += _matched(key, chosen, in_a, in_b, relate)
        elif chosen and in_a is not None:
            reason = f"missing in B: {absence(key, cells_b, b.info)}"
            changes.append(_incomparable(key, _first_of(in_a, chosen), in_a, None, reason))
        elif chosen:
            changes.append(_incomparable(key, chosen[0], None, in_b, f"missing in A: {absence(key, cells_a, a.info)}"))
    return changes


def _judged(changes: Sequence[Change], gate_ratio: float | None) -> list[Change]:
    """Return the changes with verdicts, their p-values adjusted for each other, and with gate results."""
    p_values = [change.p_value for change in changes if change.p_value is not None]
    adjusted = iter(holm(p_values))
    judged = []
    for change in changes:
        times = change.time_ratio
        if times is None:
            judged.append(change)
            continue
        p_adjusted = None if change.p_value is None else next(adjusted)
        verdict, reason = judge(times, change.p_value, p_adjusted, len(p_values))
        judged.append(replace(change, p_value=p_adjusted, verdict=verdict, reason=reason))
    if gate_ratio is None:
        return judged
    return [replace(change, gate=change.at_gate(gate_ratio)) for change in judged]


def _matched(key: CellKey, metrics: Sequence[ComparedMetric], a: RunCell, b: RunCell, relate: _Relate) -> list[Change]:
    """Return a cell that both runs have: one change per metric, or a single one if nothing can be compared."""
    if not metrics:
        return []
    notes = _notes(a, b)
    if reason := _unlike(a, b):
        return [_incomparable(key, _first_of(a, metrics), a, b, reason, notes)]
    changes = []
    for metric in metrics:
        in_a, in_b = a.estimates.get(metric), b.estimates.get(metric)
        if in_a is not None and in_b is not None:
            related = relate(metric, a, b)
            if isinstance(related, str):
                changes.append(_incomparable(key, metric, a, b, related, notes))
                continue
            times, p = related
            more_failed = max(b.failed_count - a.failed_count, b.wrong_count - a.wrong_count)
            changes.append(
                replace(
                    _incomparable(key, metric, a, b, "", notes),
                    ratio=times,
                    p_value=p,
                    verdict="no clear difference",
                    new_failures_count=more_failed,
                )
            )
        elif in_a is not None or in_b is not None or metric == METRICS_OF[key.mode][0]:
            absent = " and ".join(name for name, estimate in (("A", in_a), ("B", in_b)) if estimate is None)
            reason = f"no such figure in {absent}: not measured, or too few samples or rounds"
            changes.append(_incomparable(key, metric, a, b, reason, notes))
    return changes


def _first_of(a: RunCell, metrics: Sequence[ComparedMetric]) -> ComparedMetric:
    """Return the figure that stands for a cell that cannot be compared: one that A has, if there is any, so that a gate
    is not passed without it.
    """
    return next((metric for metric in metrics if metric in a.estimates), metrics[0])


def _unlike(a: RunCell, b: RunCell) -> str:
    """Return why no figure of a cell can be compared with the other run's; empty if they can be."""
    failed = [f"{cell.status} in {name}: {cell.reason}" for name, cell in (("A", a), ("B", b)) if cell.status != "ok"]
    if failed:
        return "; ".join(failed)
    if a.payload_bytes != b.payload_bytes or len(a.payload_bytes) > 1:
        sizes = (", ".join(f"{count:,} B" for count in cell.payload_bytes) for cell in (a, b))
        return f"different payload bytes: {' / '.join(sizes)}"
    if not a.stamp_strides & b.stamp_strides:
        strides = (", ".join(map(str, sorted(cell.stamp_strides))) for cell in (a, b))
        return f"the harness itself cost more in one: it timed one message in {' / '.join(strides)}"
    return ""


def _incomparable(
    key: CellKey, metric: ComparedMetric, a: RunCell | None, b: RunCell | None, reason: str, notes: tuple[str, ...] = ()
) -> Change:
    in_a, in_b = (_interval(cell, metric) for cell in (a, b))
    beside = _P50_BESIDE.get(metric)
    medians = (_interval(a, beside), _interval(b, beside)) if beside else (None, None)
    return Change(key, metric, in_a, in_b, reason=reason, notes=notes, medians=medians)


def _interval(cell: RunCell | None, metric: ComparedMetric) -> Interval | None:
    estimate = cell.estimates.get(metric) if cell is not None else None
    return estimate.interval() if estimate is not None else None


def _of_unrelated_runs(metric: ComparedMetric, a: RunCell, b: RunCell) -> tuple[Interval, float | None]:
    # Both runs draw the same replicates of a cell; reversing one makes them independent. Rounds of different runs are
    # unrelated.
    in_a, in_b = a.estimates[metric], b.estimates[metric]
    independent = replace(in_b, deviations=in_b.deviations[::-1], rounds={})
    return ratio(independent, in_a), p_value(in_a, independent)


def _by_rounds(pairs: Sequence[tuple[Mapping[CellKey, RunCell], Mapping[CellKey, RunCell]]]) -> _Relate:
    """Return what relates figures of one run: by rounds, with the prior of all comparisons by the same metric."""
    families: dict[str, list[tuple[RunCell, RunCell]]] = {}
    for a, b in pairs:
        for key in a:
            if key in b:
                families.setdefault(key.backend, []).append((a[key], b[key]))
    priors = {
        metric: prior_of_comparisons(
            [
                [
                    (a.estimates[metric], b.estimates[metric])
                    for a, b in family
                    if metric in a.estimates and metric in b.estimates
                ]
                for family in families.values()
            ]
        )
        for metric in METRICS
    }

    def relate(metric: ComparedMetric, a: RunCell, b: RunCell) -> tuple[Interval, float | None] | str:
        in_a, in_b = a.estimates[metric], b.estimates[metric]
        common = rounds_in_common(in_a, in_b)
        if common is None:  # a p99, which is one figure of all rounds together
            common = len(a.rounds & b.rounds)
        if common < min(MIN_CLAIM_ROUNDS, in_a.rounds_count, in_b.rounds_count):
            return too_few_words(common, "A")
        times, p = ratio(in_b, in_a, priors[metric]), p_value(in_a, in_b, priors[metric])
        contrary = (times.estimate - 1.0) * (in_b.value - in_a.value) < 0.0
        if contrary and p is not None and p < 1.0 - LEVEL and verdict_of(times) != "no clear difference":
            more, less = ("B", "A") if times.estimate > 1.0 else ("A", "B")
            faster, other = (more, less) if metric == "throughput" else (less, more)
            return contrary_words([faster], other)
        return times, p

    return relate


def _notes(a: RunCell, b: RunCell) -> tuple[str, ...]:
    both = [note for note in a.notes if note in b.notes]
    notes = [*both, *(f"A: {note}" for note in a.notes if note not in both)]
    notes += [f"B: {note}" for note in b.notes if note not in both]
    if a.schedule_s != b.schedule_s:
        notes.append("windows or warm-ups of different lengths in A and B")
    near_a, near_b = a.placement_ns, b.placement_ns
    if near_a and near_b and placement_differs((near_a, near_b)):
        notes.append(f"cores were nearer to each other in {'A than in B' if near_a < near_b else 'B than in A'}")
    return tuple(notes)
