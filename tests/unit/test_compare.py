"""Two runs differ only where it is sure; what cannot be compared says why; the gate claims nothing it cannot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench.analysis.compare.compare import Change, Comparison, compare_runs
from ipcbench.analysis.compare.render import as_json, as_markdown, as_text
from ipcbench.analysis.compare.rules import gate_result, holm, judge
from ipcbench.analysis.compare.run_cells import METRICS, ComparedMetric
from ipcbench.analysis.report.tables import tables
from ipcbench.errors import ConfigError
from ipcbench.machine.identity import machine_differences
from ipcbench.results.model import Integrity, TrialResult
from ipcbench.results.store import Run, load_run
from ipcbench.stats.decisions import p_value
from ipcbench.stats.estimates import Estimate, Interval, ratio
from ipcbench.stats.student import student_p_value
from tests.end_to_end.shell import ROOT
from tests.unit.builders import MACHINE, Cell, conditions, make_run, parts, quantiles

FIVE = (1.0, 1.01, 0.99, 1.005, 0.995)
CALM = Cell(factors=FIVE)
BROKEN = Cell(factors=(0.0, 0.0, 0.0))
SATURATE = ("saturate",)


def one_cell(path: Path, cell: Cell = CALM, **changes: Any) -> Run:
    return make_run(path, {("shm", 10): cell}, **{"rounds": 5, **changes})


def pair(tmp_path: Path, a: Cell = CALM, b: Cell = CALM, modes=("paced", "saturate"), **options: Any) -> Comparison:
    runs = (one_cell(tmp_path / name, cell, modes=modes) for name, cell in (("a", a), ("b", b)))
    return compare_runs(*runs, **options)


def change(comparison: Comparison, metric: ComparedMetric) -> Change:
    (entry,) = [change for change in comparison.changes if change.metric == metric]
    return entry


# Figures and verdicts


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {("shm", 10): CALM, ("zmq", 10): Cell(50_000.0, factors=FIVE)})
    comparison = compare_runs(run, run)
    assert comparison.count("no clear difference") == len(comparison.changes) == comparison.tests_count == 8
    assert {change.p_value for change in comparison.changes} == {1.0}
    assert {change.ratio.estimate for change in comparison.changes if change.ratio} == {1.0}
    assert comparison.outcome is None


def test_backends_that_took_turns_in_one_run_only_are_named(tmp_path: Path) -> None:
    """Whoever takes turns with a backend may change its figures."""
    cells = {("shm", 10): CALM, ("zmq", 10): CALM}
    both, one = make_run(tmp_path / "a", cells), make_run(tmp_path / "b", {("shm", 10): CALM})
    assert compare_runs(both, one).backend_differences == ("zmq only in A",)
    assert "not the same backends took turns: zmq only in B; that alone may" in " ".join(
        as_text(compare_runs(one, both)).split()
    )
    assert "took turns" not in as_text(compare_runs(one, one))


def test_twice_the_latency_and_half_the_throughput_are_slower(tmp_path: Path) -> None:
    comparison = pair(tmp_path, b=replace(CALM, latency_ns=20_000.0, rate_per_s=50_000.0))
    latency, throughput = change(comparison, "latency-p50"), change(comparison, "throughput")
    for slower, expected in ((latency, 2.0), (throughput, 0.5)):
        assert slower.verdict == "slower"
        assert slower.ratio.low < expected < slower.ratio.high
        assert slower.ratio.estimate == pytest.approx(expected, rel=0.02)
        assert slower.time_ratio.estimate == pytest.approx(2.0, rel=0.02)
        assert slower.p_value < 0.01
    assert change(comparison, "decode-p50").verdict == "no clear difference"


def test_the_other_way_round_everything_is_mirrored(tmp_path: Path) -> None:
    a = one_cell(tmp_path / "a")
    b = one_cell(tmp_path / "b", replace(CALM, latency_ns=13_000.0, rate_per_s=80_000.0, factors=(1.03, 0.97, 1.0)))
    there, back = compare_runs(a, b), compare_runs(b, a)
    mirrored = {"slower": "faster", "faster": "slower"}
    for forth, reverse in zip(there.changes, back.changes, strict=True):
        assert forth.ratio.low == pytest.approx(1.0 / reverse.ratio.high)
        assert forth.p_value == pytest.approx(reverse.p_value)
        assert reverse.verdict == mirrored.get(forth.verdict, forth.verdict)


def test_every_metric_of_every_mode(tmp_path: Path) -> None:
    comparison = pair(tmp_path, b=replace(CALM, round_trip_ns=60_000.0), modes=("paced", "pingpong", "saturate"))
    assert {change.metric for change in comparison.changes} == set(METRICS)
    assert change(comparison, "round-trip-p50").verdict == "slower"
    assert change(comparison, "latency-p50").verdict == "no clear difference"


def test_the_ends_of_a_p99_are_those_of_the_tables() -> None:
    run = load_run(ROOT / "results" / "reference")
    text = as_text(compare_runs(run, run, metrics=("latency-p99",)))
    pairs = re.findall(r"one-way p99 +(≥ \S+|\S+–\S+) µs +(≥ \S+|\S+–\S+) µs", text)
    found = [
        row[column]
        for table in tables(run).payload_tables
        for column, head in enumerate(table.columns)
        for row in table.rows
        if head.head == ("one-way", "p99 µs") and re.search("[≥–].*\\d", row[column])
    ]
    assert sorted(pairs) == sorted(zip(found, found, strict=True))


def test_a_p99_of_which_only_the_median_is_known_is_not_available(tmp_path: Path) -> None:
    found = pair(tmp_path, metrics=("latency-p99",))
    (entry,) = found.changes
    median_ns = entry.medians[0].estimate
    for low_ns, shown in ((299_300.0, "≥ 290 µs"), (median_ns, "n/a")):
        p99 = Interval(low_ns, low_ns, 100 * low_ns)
        text = as_text(replace(found, changes=(replace(entry, a=p99, b=p99),)))
        assert f"one-way p99  {shown}  {shown}  " in text
        assert (f"{shown}  {shown}  n/a" in text) is (shown == "n/a")  # no ratio of what is not known


def test_p99_needs_a_thousand_samples(tmp_path: Path) -> None:
    short = Cell(factors=FIVE[:2])
    assert "latency-p99" not in {change.metric for change in pair(tmp_path / "short", short, short).changes}
    entry = change(pair(tmp_path / "long", b=short), "latency-p99")
    assert (entry.verdict, entry.b) == ("not comparable", None)
    assert "no such figure in B" in entry.reason


def test_decoding_is_compared_by_its_rounds(tmp_path: Path) -> None:
    def slow(trial: TrialResult) -> TrialResult:
        decode = quantiles(300_000.0 + trial.trial_id)
        return replace(trial, endpoints=tuple(replace(p, decode=decode) if p.decode else p for p in trial.endpoints))

    entry = change(pair(tmp_path, b=replace(CALM, change=slow)), "decode-p50")
    assert entry.verdict == "slower"
    assert entry.ratio.estimate == pytest.approx(300 / 241, rel=0.01)


def test_what_is_within_a_percent_is_no_difference_however_sure(tmp_path: Path) -> None:
    still = Cell(factors=(1.0, 1.0001, 0.9999, 1.0001, 1.0), spread=1e-4)
    entry = change(pair(tmp_path, still, replace(still, rate_per_s=99_300.0)), "throughput")
    assert entry.ratio.high < 1.0
    assert (entry.verdict, entry.reason) == ("no clear difference", "may be within 1 %")


@pytest.mark.parametrize(
    ("times", "p_adjusted", "verdict", "reason"),
    [
        (Interval(1.2, 1.5, 1.9), 0.01, "slower", ""),
        (Interval(0.5, 0.6, 0.7), 0.01, "faster", ""),
        (Interval(0.9, 1.5, 1.9), 0.01, "no clear difference", ""),
        (Interval(1.006, 1.008, 1.009), 0.01, "no clear difference", "may be within 1 %"),
        (Interval(1.009, 1.2, 1.3), 0.01, "no clear difference", "may be within 1 %"),
        (Interval(1.2, 1.5, 1.9), 0.06, "no clear difference", "may be chance among 40 figures"),
        (Interval(1.2, 1.5, 1.9), None, "no clear difference", "fewer than 3 rounds"),
    ],
)
def test_a_difference_needs_interval_and_p_value(
    times: Interval, p_adjusted: float | None, verdict: str, reason: str
) -> None:
    entry = judge(times, None if p_adjusted is None else p_adjusted / 40, p_adjusted, 40)
    assert entry[0] == verdict
    assert entry[1].startswith(reason)
    assert bool(entry[1]) == bool(reason)


def test_both_runs_are_drawn_independently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    correlations = []

    def watch(numerator: Estimate, denominator: Estimate) -> Interval:
        correlations.append(float(np.corrcoef(numerator.deviations, denominator.deviations)[0, 1]))
        return ratio(numerator, denominator)

    monkeypatch.setattr("ipcbench.analysis.compare.compare.ratio", watch)
    pair(tmp_path, metrics=("latency-p50", "latency-p99", "throughput"))
    assert len(correlations) == 3
    assert max(map(abs, correlations)) < 0.2


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_or_two_rounds_claim_nothing(tmp_path: Path, rounds: int) -> None:
    once = replace(CALM, factors=(1.0,) * rounds)
    comparison = pair(tmp_path, once, replace(once, latency_ns=90_000.0), gate_ratio=0.05)
    entry = change(comparison, "latency-p50")
    assert (entry.verdict, entry.p_value, entry.gate) == ("no clear difference", None, "inconclusive")
    assert "fewer than 3 rounds" in entry.reason
    assert comparison.tests_count == 0


def test_the_same_runs_give_the_same_result(tmp_path: Path) -> None:
    a, b = one_cell(tmp_path / "a"), one_cell(tmp_path / "b", replace(CALM, latency_ns=11_000.0))
    assert compare_runs(a, b) == compare_runs(a, b)


def test_only_the_metrics_asked_for_are_tested(tmp_path: Path) -> None:
    comparison = pair(tmp_path, metrics=("throughput",))
    assert [change.metric for change in comparison.changes] == ["throughput"]
    with pytest.raises(ConfigError, match="metrics"):
        pair(tmp_path / "x", metrics=("speed",))


# Many tests at once


@pytest.mark.parametrize(
    ("t", "degrees", "expected"),
    [
        *((0.0, 3.0, 1.0), (12.7062, 1.0, 0.05), (-4.3027, 2.0, 0.05), (2.7764, 4.0, 0.05), (1.9842, 100.0, 0.05)),
        *((8.6103, 4.0, 0.001), (63.657, 1.0, 0.01), (1.959964, math.inf, 0.05), (3.2905, 1e9, 0.001)),
        (2.0, 9_999.0, 0.04553),
    ],
)
def test_p_values_are_those_of_the_tables(t: float, degrees: float, expected: float) -> None:
    assert student_p_value(t, degrees) == pytest.approx(expected, rel=2e-3)


def test_holm_is_the_text_books() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


def estimate(value: float, log_variance: float, rounds: int, degrees: float = 50.0) -> Estimate:
    return Estimate(value, np.array([-0.1, 0.0, 0.1]), log_variance, degrees, rounds)


def test_rounds_and_not_samples_decide_how_sure_a_test_is() -> None:
    values = [p_value(estimate(1.0, 0.01, n), estimate(1.5, 0.01, n)) for n in (1, 2, 3, 10)]
    assert values[:2] == [None, None]
    assert values[2:] == pytest.approx([student_p_value(math.log(1.5) / math.sqrt(0.02), d) for d in (4, 18)])


def test_figures_without_any_spread() -> None:
    assert p_value(estimate(1.0, 0.0, 3), estimate(1.0, 0.0, 3)) == 1.0
    assert p_value(estimate(1.0, 0.0, 3), estimate(2.0, 0.0, 3)) == 0.0


def test_of_many_equal_cells_none_is_called_different_though_some_look_so(tmp_path: Path) -> None:
    source = np.random.default_rng(5)

    def run_of_many(name: str) -> Run:
        cells = {(f"b{index}", 10): Cell(factors=np.exp(source.normal(0.0, 0.1, 3)).tolist()) for index in range(120)}
        return make_run(tmp_path / name, cells, modes=SATURATE)

    comparison = compare_runs(run_of_many("a"), run_of_many("b"))
    ratios = [(change, change.ratio) for change in comparison.changes if change.ratio]
    excluded = [change for change, ratio in ratios if not ratio.low <= 1.0 <= ratio.high]
    assert comparison.tests_count == 120
    assert excluded, "alone, a few of so many would be called different"
    assert all(change.verdict == "no clear difference" and change.reason for change in excluded)
    assert comparison.count("no clear difference") == 120


# What cannot be compared


@pytest.mark.parametrize(
    ("modes", "there", "words"),
    [
        (SATURATE, {"depth": 4}, "measured there with depth 4"),
        (SATURATE, {"wait": "spin", "pin": "0,1"}, "measured there with wait spin, pin 0,1"),
        (("paced",), {"rate_per_s": 50.0}, "measured there with rate_per_s 50.0"),
        (SATURATE, {"sizes": (100,)}, "not part of that run"),
    ],
)
def test_a_cell_that_is_missing_says_what_was_measured_instead(
    tmp_path: Path, modes: tuple[str, ...], there: dict[str, Any], words: str
) -> None:
    a = one_cell(tmp_path / "a", modes=modes)
    b = make_run(tmp_path / "b", {("shm", size): CALM for size in there.get("sizes", (10,))}, modes=modes, **there)
    missing = {change.reason.partition(":")[0]: change for change in compare_runs(a, b).changes}
    assert set(missing) == {"missing in A", "missing in B"}
    assert missing["missing in B"].reason == f"missing in B: {words}"
    assert missing["missing in B"].a is not None
    assert missing["missing in B"].b is None


def test_a_backend_that_b_left_out_says_why(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", {("shm", 10): CALM, ("mpi", 10): CALM}, modes=SATURATE)
    b = one_cell(tmp_path / "b", modes=SATURATE, skipped={"mpi": "no MPI; pip install x"})
    missing = next(change for change in compare_runs(a, b).changes if change.cell.backend == "mpi")
    assert missing.reason == "missing in B: no MPI; pip install x"


def larger(trial: TrialResult) -> TrialResult:
    return replace(trial, spec=replace(trial.spec, payload_bytes=600))


LOSSY = Cell(change=parts(integrity=Integrity(lost_count=1)))


@pytest.mark.parametrize(
    ("a", "b", "reason", "gate"),
    [
        (CALM, BROKEN, r"failed in B: reader-0 ended with exit code 1 \(3 trials\)$", "inconclusive"),
        (BROKEN, CALM, "failed in A", None),
        (CALM, LOSSY, "failed in B", "inconclusive"),
        (CALM, Cell(change=larger), "different payload bytes: 521 B / 600 B$", "inconclusive"),
        (
            CALM,
            Cell(change=parts(stamp_stride=17)),
            "the harness itself cost more in one: it timed one message in 1 / 17$",
            "inconclusive",
        ),
    ],
    ids=["failed in b", "failed in a", "lost messages though marked ok", "other payload bytes", "timed differently"],
)
def test_a_cell_that_cannot_be_compared_says_why(tmp_path: Path, a: Cell, b: Cell, reason: str, gate: Any) -> None:
    (entry,) = pair(tmp_path, a, b, SATURATE, gate_ratio=0.05).changes
    assert (entry.verdict, entry.ratio, entry.p_value, entry.gate) == ("not comparable", None, None, gate)
    assert re.match(reason, entry.reason)


def test_notes_of_both_runs_stand_beside_a_figure(tmp_path: Path) -> None:
    def far(trial: TrialResult) -> TrialResult:
        return replace(trial, conditions=conditions(300.0), spec=replace(trial.spec, window_s=9.0))

    a = replace(CALM, notes=("oversubscribed",))
    entry = change(pair(tmp_path, a, replace(a, notes=("oversubscribed", "closed loop"), change=far)), "throughput")
    assert entry.notes == (
        "oversubscribed",
        "B: closed loop",
        "windows or warm-ups of different lengths in A and B",
        "cores were nearer to each other in A than in B",
    )


# The gate


@pytest.mark.parametrize(
    ("times", "verdict", "believed", "expected"),
    [
        (Interval(1.10, 1.2, 1.3), "slower", True, "regressed"),
        (Interval(1.04, 1.2, 1.3), "slower", True, "inconclusive"),
        (Interval(1.02, 1.03, 1.04), "slower", True, "passed"),
        (Interval(0.96, 1.0, 1.04), "no clear difference", True, "passed"),
        (Interval(0.96, 1.0, 1.06), "no clear difference", True, "inconclusive"),
        (Interval(1.10, 1.2, 1.3), "no clear difference", True, "inconclusive"),
        (Interval(0.5, 0.6, 0.7), "faster", True, "passed"),
        (Interval(0.96, 1.0, 1.04), "no clear difference", False, "inconclusive"),
    ],
)
def test_the_gate_claims_only_what_the_whole_interval_says(
    times: Interval, verdict: Any, believed: bool, expected: str
) -> None:
    assert gate_result(times, verdict, 0.05, trusted=believed) == expected


@pytest.mark.parametrize(
    ("b", "gate", "outcome"),
    [
        (CALM, 0.10, "passed"),
        (CALM, 0.0001, "inconclusive"),
        (replace(CALM, rate_per_s=60_000.0), 0.10, "regressed"),
        (replace(CALM, rate_per_s=60_000.0), 1.0, "passed"),
        (replace(CALM, rate_per_s=150_000.0), 0.10, "passed"),
        (replace(CALM, factors=(*FIVE[:4], 0.0)), 0.10, "inconclusive"),
    ],
)
def test_the_gate_of_a_whole_run(tmp_path: Path, b: Cell, gate: float, outcome: str) -> None:
    assert pair(tmp_path, b=b, modes=SATURATE, gate_ratio=gate).outcome == outcome


def test_what_is_new_in_b_is_not_gated_and_what_is_gone_is(tmp_path: Path) -> None:
    cells = {name: {(backend, 10): CALM} for name, backend in (("a", "shm"), ("b", "zmq"))}
    cells["both"] = cells["a"] | cells["b"]
    a, b, both = (make_run(tmp_path / name, measured, modes=SATURATE) for name, measured in cells.items())
    assert compare_runs(a, both, gate_ratio=0.1).outcome == "passed"
    assert compare_runs(both, a, gate_ratio=0.1).outcome == "inconclusive"
    for nothing_compared in ({}, {"metrics": ("decode-p50",)}):
        assert compare_runs(a, b, gate_ratio=0.1, **nothing_compared).outcome == "inconclusive"


@pytest.mark.parametrize("gate", [0.0, -0.1, 11.0, math.nan])
def test_a_gate_that_makes_no_sense(tmp_path: Path, gate: float) -> None:
    with pytest.raises(ConfigError, match="gate"):
        pair(tmp_path, gate_ratio=gate)


# Machines


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"kernel": "Linux 6.1.99-other", "python": "CPython 3.11.2", "virtual": True}, []),
        ({"memory_bytes": int(16.5 * 2**30)}, []),
        *(({"memory_bytes": bytes_}, ["memory_bytes"]) for bytes_ in (17 * 2**30, None)),
        *(({"kernel": kernel}, ["kernel"]) for kernel in ("Linux 6.12.1", "Darwin 6.1.0", None)),
        *(({"python": python}, ["python"]) for python in ("CPython 3.12.7", "PyPy 3.11.7")),
        *(({name: value}, [name]) for name, value in (("usable_cores", 4.0), ("logical_cores", 16))),
        ({"cpu_model": "Other CPU", "python": "CPython 3.13.0"}, ["cpu_model", "python"]),
    ],
)
def test_what_makes_another_machine(changes: dict[str, Any], names: Sequence[str]) -> None:
    differences = machine_differences(MACHINE, {**MACHINE, **changes})
    assert [text.partition(":")[0] for text in differences] == list(names)


def test_runs_of_different_machines_are_refused_or_marked(tmp_path: Path) -> None:
    a = one_cell(tmp_path / "a")
    b = one_cell(tmp_path / "b", replace(CALM, rate_per_s=1e3), machine={**MACHINE, "cpu_model": "Other CPU"})
    difference = "cpu_model: Example CPU / Other CPU"
    with pytest.raises(ConfigError, match=difference):
        compare_runs(a, b)
    comparison = compare_runs(a, b, across_machines=True)
    assert comparison.machine_differences == (difference,)
    assert all(change.across_machines for change in comparison.changes)
    for text in (as_text(comparison), as_markdown(comparison)):
        for words in ("slower (other machine)", "No clear difference (other machine)", "different machines"):
            assert words in text
    same = compare_runs(a, a, across_machines=True)
    assert not any(change.across_machines for change in same.changes)
    assert "A and B are the same run" in as_text(same)


def test_what_has_too_few_rounds_is_not_tested_and_has_no_interval(tmp_path: Path) -> None:
    few = replace(CALM, factors=(1.0, 1.01))
    text = as_text(compare_runs(one_cell(tmp_path / "a", few), one_cell(tmp_path / "b", few)))
    assert "tested: 0 figures of 3; the others have fewer than three rounds" in text
    assert "1.00 [" not in text


# Text


def mixed(tmp_path: Path, name: str = "shm", **options: Any) -> Comparison:
    a = {(name, 10): CALM, ("zmq", 10): CALM, ("pipe", 10): CALM}
    b = {(name, 10): replace(CALM, latency_ns=25_000.0), ("zmq", 10): CALM, ("lmdb", 10): CALM}
    later = {"versions": {"ipcbench": "0.2.0", "python": "3.11.7"}, "run_id": "20270102T030405Z-0a1b2c"}
    return compare_runs(make_run(tmp_path / "a", a), make_run(tmp_path / "b", b, **later), **options)


def test_text_says_what_changed_first_and_how_it_was_decided(tmp_path: Path) -> None:
    text = as_text(mixed(tmp_path, gate_ratio=0.05))
    lines = text.splitlines()
    assert lines[0] == ("ipcbench: B against A: 1 slower, 0 faster, 3 no clear difference, 4 not comparable; gate 5 %:")
    assert lines[1].strip() == "regressed"
    assert text.index("Changed:") < text.index("No clear difference:") < text.index("Not comparable:")
    assert "versions that differ, A / B: ipcbench: 0.1.0 / 0.2.0" in text
    assert "all cells: every_message, dict, 10 entries, pickle, 1 reader, depth 64" in text
    assert "missing in A: not part of that run" in text
    assert "one-way p50  10.0 µs  25.0 µs  2.50 [" in text
    assert all(len(line) <= 110 for line in lines)
    assert "\x1b" not in text


def test_markdown_is_a_line_a_table_of_changes_and_folded_rest(tmp_path: Path) -> None:
    text = as_markdown(mixed(tmp_path))
    assert text.startswith(
        "**ipcbench: B against A: 2 slower, 0 faster, 6 no clear difference, 4 not comparable**\n\n|"
    )
    above, _, folded = text.partition("<details>")
    assert above.count("| slower |") == 2
    assert "`zmq`" not in above
    assert "`zmq`" in folded
    assert folded.count("</details>") == folded.count("<summary>") == 3
    widths = {line.replace("\\|", "").count("|") for line in above.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_name_cannot_break_out_of_its_cell(tmp_path: Path) -> None:
    text = as_markdown(mixed(tmp_path, "a`|<b>@me\n#1"))
    rows = [line for line in text.splitlines() if line.startswith("|") and "@me" in line]
    assert rows
    assert all(row.startswith("| ``a`\\|<b>@me #1`` | ") for row in rows)


def test_reasons_of_foreign_programs_are_escaped(tmp_path: Path) -> None:
    def fail(trial: TrialResult) -> TrialResult:
        return replace(trial, status="failed", reason="</details> | [x](y) *z*\n\x1b[31m")

    comparison = pair(tmp_path, b=replace(CALM, change=fail))
    text = as_markdown(comparison)
    assert "\\</details\\> \\| \\[x\\](y) \\*z\\*" in text
    assert "\x1b" not in text + as_text(comparison)


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, {(name, 10): CALM}) for name in ("x", "y"))
    assert "0 slower, 0 faster, 0 no clear difference, 4 not comparable" in as_text(compare_runs(a, b))


def test_json_holds_everything_in_plain_values(tmp_path: Path) -> None:
    comparison = mixed(tmp_path, gate_ratio=0.05)
    document = json.loads(as_json(comparison))
    assert (document["format"], document["version"], document["outcome"]) == ("ipcbench comparison", 1, "regressed")
    assert len(document["changes"]) == len(comparison.changes)
    slower = next(entry for entry in document["changes"] if entry["verdict"] == "slower")
    assert (slower["cell"]["backend"], slower["unit"], slower["gate"]) == ("shm", "ns", "regressed")
    assert slower["ratio"]["low"] < 2.5 < slower["ratio"]["high"]


def test_figures_that_neither_run_has_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, {("a", 10): Cell()}, modes=("paced",)) for name in ("a", "b")]
    found = compare_runs(*runs, metrics=("latency-p50", "throughput"))
    assert found.absent_metrics == ("throughput",)
    assert "measured in neither: throughput" in as_text(found)


def test_a_slower_figure_with_new_failures_passes_no_gate_and_names_none(tmp_path: Path) -> None:
    five = (1.0, 1.01, 0.99, 1.02, 0.98)
    a = make_run(tmp_path / "a", {("a", 10): Cell(factors=(*five, 1.0))}, modes=("saturate",))
    b = make_run(tmp_path / "b", {("a", 10): Cell(rate_per_s=50_000.0, factors=(*five, 0.0))}, modes=("saturate",))
    found = compare_runs(a, b, gate_ratio=9.0)
    assert (found.changes[0].verdict, found.outcome) == ("slower", "inconclusive")
    (row,) = re.findall(r"^a +throughput .* slower .*$", as_text(found, gates=True, width=1000), flags=re.MULTILINE)
    assert "≤ " in row
    assert "≥" not in row


def test_a_cell_that_lost_messages_in_b_passes_no_gate_whatever_failed_in_a(tmp_path: Path) -> None:
    lost = parts("saturate", "reader", integrity=Integrity(10, 9, 1))

    def last(change: Callable[[TrialResult], TrialResult]) -> Callable[[TrialResult], TrialResult]:
        return lambda trial: change(trial) if trial.spec.round_index == 3 else trial

    cells = [
        Cell(factors=(1.0, 1.01, 0.99, 1.0), change=last(lambda trial: replace(trial, status="failed", reason="boom"))),
        Cell(factors=(1.0, 1.01, 0.99, 1.0), change=last(lost)),
    ]
    runs = [make_run(tmp_path / str(n), {("a", 10): cell}, modes=("saturate",)) for n, cell in enumerate(cells)]
    assert compare_runs(*runs, gate_ratio=0.5).outcome == "inconclusive"
    assert compare_runs(runs[0], runs[0], gate_ratio=0.5).outcome == "passed"


def test_a_cell_that_b_lost_stands_by_a_figure_that_a_has(tmp_path: Path) -> None:
    """A has no latency, but decode times; all trials of B failed. Naming more figures must not pass the gate."""
    a = make_run(tmp_path / "a", {("a", 10): Cell(), ("b", 10): Cell()}, modes=("paced",))
    (gone,) = {trial.spec.backend for trial in a.trials} - {"a"}
    for trial in a.trials:
        if trial.spec.backend == gone:
            (a.path / "samples" / f"{trial.trial_id}.npz").unlink()
    b = make_run(tmp_path / "b", {("a", 10): Cell(), ("b", 10): Cell(factors=(0.0, 0.0, 0.0))}, modes=("paced",))
    for metrics in (("decode-p50",), ("latency-p50", "decode-p50")):
        found = compare_runs(load_run(a.path), b, gate_ratio=5.0, metrics=metrics)
        assert found.outcome == "inconclusive", metrics


def test_a_p99_that_is_raised_to_the_median_is_compared_as_it_is_shown(tmp_path: Path) -> None:
    """The windows for the tail are a hundred times as fast as the others, so that their p99 is below the median."""

    def every_other(trial: TrialResult) -> TrialResult:
        return replace(trial, spec=replace(trial.spec, tail=trial.spec.round_index % 2 == 1))

    factors = {"a": (1.0, 1.0, 1.01, 1.01, 0.99, 0.99), "b": (1.0, 0.01, 1.01, 0.0101, 0.99, 0.0099)}
    runs = [
        make_run(tmp_path / name, {("a", 10): Cell(factors=each, change=every_other)}, modes=("paced",))
        for name, each in factors.items()
    ]
    (change,) = [change for change in compare_runs(*runs).changes if change.metric == "latency-p99"]
    assert change.b.low == change.b.estimate == pytest.approx(10_000.0, rel=0.02)
    assert change.ratio.estimate == pytest.approx(change.b.estimate / change.a.estimate, rel=1e-6)
