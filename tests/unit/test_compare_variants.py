"""Variants of one run are compared by the rounds that they share; a gate is decided from the smallest one on."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench.analysis.compare.compare import (
    MIN_GATE_RATIO,
    Comparison,
    compare_runs,
    compare_variants,
)
from ipcbench.analysis.compare.render import as_json, as_markdown, as_text
from ipcbench.analysis.compare.run_cells import MAIN_METRICS
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import header
from ipcbench.errors import ConfigError
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Variant
from tests.unit.builders import CONTRARY, Cell, make_run, parts, quantiles

ROUNDS = 12
DRIFT = np.exp(np.random.default_rng(1).normal(0.0, 0.4, ROUNDS))
"""How the machine's speed changes from round to round, for all cells alike."""


def cell(seed: int, slower: float = 1.0, rounds: int = ROUNDS) -> Cell:
    """Return a cell whose rounds differ by the drift and by 1 % of its own; `slower` by every metric."""
    own = np.exp(np.random.default_rng(seed).normal(0.0, 0.01, ROUNDS))
    return Cell(10_000.0 * slower, 100_000.0 / slower, 30_000.0 * slower, factors=tuple(DRIFT * own)[:rounds])


def run_of(
    path: Path, *slower: float, rounds: int = ROUNDS, cells: dict[tuple[str, int], Cell] | None = None, **changes: Any
) -> Run:
    """Return a run of as many variants of shm: base, head, next; each is slower by its factor, or shows its cell."""
    names = ("base", "head", "next")[: len(slower)]
    cells = cells or {
        (f"shm@{name}", 10): cell(seed, factor, rounds)
        for seed, (name, factor) in enumerate(zip(names, slower, strict=True))
    }
    plain = {
        "backends": ("shm",),
        "variants": tuple(Variant(name, "/bin/python") for name in names),
        "variant_versions": {name: {"python": "3.11", "pyzmq": f"{20 + n}"} for n, name in enumerate(names)},
        "modes": ("paced", "pingpong", "saturate"),
    }
    return make_run(path, cells, **{**plain, **changes})


def ratios(comparison: Comparison) -> dict[str, float]:
    return {change.metric: change.time_ratio.estimate for change in comparison.changes if change.time_ratio}


def test_what_all_rounds_share_does_not_hide_a_difference(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1.0, 1.1)
    comparison = compare_variants(run, gate_ratio=0.05)
    assert comparison.outcome == "regressed"
    assert [change.verdict for change in comparison.changes] == ["slower"] * 3
    assert ratios(comparison) == pytest.approx(dict.fromkeys(MAIN_METRICS, 1.1), rel=0.02)
    assert all(change.time_ratio.low > 1.05 for change in comparison.changes)
    as_two_runs = (run_of(tmp_path / name, 1.0, factor) for name, factor in (("a", 1.0), ("b", 1.1)))
    assert compare_runs(*as_two_runs, gate_ratio=0.05).outcome == "inconclusive", "the drift is wider than that"


def test_equal_variants_pass_a_gate_narrower_than_the_drift(tmp_path: Path) -> None:
    comparison = compare_variants(run_of(tmp_path / "run", 1.0, 1.0), gate_ratio=0.05)
    assert comparison.outcome == "passed"
    assert comparison.by_rounds


def test_every_variant_is_compared_with_the_first(tmp_path: Path) -> None:
    comparison = compare_variants(run_of(tmp_path / "run", 1.0, 0.8, 1.25), metrics=("throughput",))
    by_name = {change.cell.backend: change for change in comparison.changes}
    assert [by_name[name].verdict for name in ("shm@head", "shm@next")] == ["faster", "slower"]
    assert by_name["shm@next"].ratio.estimate == pytest.approx(0.8, rel=0.02)
    assert comparison.version_differences == ("head: pyzmq: 20 / 21", "next: pyzmq: 20 / 22")
    assert (comparison.run_a, comparison.run_b) == ("base of 20260102T030405Z-0a1b2c", "head, next")


def test_a_run_without_variants_needs_a_second_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell()})
    with pytest.raises(ConfigError, match="a run with variants, unless there is a second run"):
        compare_variants(run)


def test_a_variant_that_failed_is_not_passed(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1.0, 1.0)
    kept = tuple(trial for trial in run.trials if trial.spec.backend != "shm@head")
    comparison = compare_variants(replace(run, trials=kept), gate_ratio=0.05)
    assert comparison.outcome == "inconclusive"
    assert comparison.smallest_gate_ratio is None
    assert {change.reason for change in comparison.changes} == {"missing in B: not measured there"}


def test_two_rounds_in_common_claim_nothing(tmp_path: Path) -> None:
    comparison = compare_variants(run_of(tmp_path / "run", 1.0, 3.0, rounds=2), gate_ratio=0.05)
    assert comparison.outcome == "inconclusive"
    assert comparison.tests_count == 0


def test_decoding_is_compared_by_rounds_too(tmp_path: Path) -> None:
    def decoding(trial: TrialResult) -> TrialResult:
        slow = DRIFT[trial.spec.round_index] * (1.2 if trial.spec.backend == "shm@head" else 1.0)
        return parts("paced", "reader", decode=quantiles(1e5 * slow))(trial)

    cells = {(f"shm@{name}", 10): replace(cell(seed), change=decoding) for seed, name in enumerate(("base", "head"))}
    run = make_run(tmp_path / "run", cells, variant_versions={"base": {}, "head": {}})
    (change,) = compare_variants(run, metrics=("decode-p50",)).changes
    assert change.verdict == "slower"
    assert change.ratio.low == pytest.approx(1.2)


# The smallest gate


@pytest.mark.parametrize("slower", [1.0, 1.01, 1.1, 0.9])
def test_a_gate_is_decided_exactly_from_the_smallest_one_on(tmp_path: Path, slower: float) -> None:
    run = run_of(tmp_path / "run", 1.0, slower)
    comparison = compare_variants(run, gate_ratio=0.05)
    smallest = comparison.smallest_gate_ratio
    assert smallest is not None
    assert compare_variants(run, gate_ratio=smallest).outcome in {"passed", "regressed"}
    below = smallest - MIN_GATE_RATIO
    assert below < MIN_GATE_RATIO or compare_variants(run, gate_ratio=below).outcome == "inconclusive"
    assert smallest >= max(change.smallest_gate_ratio for change in comparison.changes)


def test_a_slower_figure_names_the_gates_that_it_fails_and_those_that_it_passes(tmp_path: Path) -> None:
    comparison = compare_variants(run_of(tmp_path / "run", 1.0, 1.3), metrics=("latency-p50",))
    (found,) = comparison.changes
    assert found.verdict == "slower"
    low = math.floor(1e4 * (found.time_ratio.low - 1.0)) / 100.0
    high = math.ceil(1e4 * (found.time_ratio.high - 1.0)) / 100.0
    assert f"≤ {low:.2f} %, ≥ {high:.2f} %" in as_text(comparison, gates=True, width=1000)


def test_the_smallest_gate_of_two_runs(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, {("shm", 10): cell(0)}) for name in "ab")
    comparison = compare_runs(a, b, metrics=("throughput",))
    smallest = comparison.smallest_gate_ratio
    assert smallest > 0.05
    assert compare_runs(a, b, metrics=("throughput",), gate_ratio=smallest).outcome == "passed"


def test_a_wide_interval_decides_no_gate(tmp_path: Path) -> None:
    shaky = Cell(factors=(1.0, 100.0, 0.01))
    cells = {("shm@base", 10): shaky, ("shm@head", 10): replace(shaky, factors=(0.01, 1.0, 100.0))}
    run = make_run(tmp_path / "run", cells, variant_versions={"base": {}, "head": {}}, modes=("saturate",))
    comparison = compare_variants(run)
    assert comparison.smallest_gate_ratio is None
    assert "no gate is decided by all figures" in " ".join(as_text(comparison, gates=True).split())


# Output


def test_every_form_says_how_it_was_compared_and_which_gate_is_decided(tmp_path: Path) -> None:
    comparison = compare_variants(run_of(tmp_path / "run", 1.0, 1.0), gate_ratio=0.05)
    document = json.loads(as_json(comparison))
    assert document["by_rounds"] is True
    assert document["smallest_gate_ratio"] == comparison.smallest_gate_ratio
    gates = [entry["smallest_gate_ratio"] for entry in document["changes"]]
    assert max(gates) == comparison.smallest_gate_ratio
    for text in (as_text(comparison, gates=True), as_markdown(comparison, gates=True)):
        words = " ".join(text.split())
        assert f"the smallest gate that all figures decide: {100 * max(gates):.2f} %" in words
        assert words.count("≥ ") == 3
        assert "A and B are compared round by round of one run" in words
        assert "versions that differ, A / B: pyzmq: 20 / 21" in words
    assert "decide:" not in as_text(comparison)


def test_the_head_of_the_tables_names_the_variants(tmp_path: Path) -> None:
    lines = header(summarise(run_of(tmp_path / "run", 1.0, 1.0)))
    assert "variants: base and head, in turns, which differ in pyzmq 20 / 21" in lines
    equal = {"base": {"python": "3.11"}, "head": {"python": "3.11"}}
    lines = header(summarise(run_of(tmp_path / "equal", 1.0, 1.0, variant_versions=equal)))
    assert "variants: base and head, in turns, all with python 3.11" in lines


def test_a_backend_that_was_left_out_is_named_with_its_variant(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1.0, 1.0, backends=("shm", "zmq"), skipped={"zmq@base": "none", "zmq@head": "none"})
    absent = {cell.backend: cell.reason for result in summarise(run).settings for cell in result.cells if cell.reason}
    assert absent == {"zmq@base": "none", "zmq@head": "none"}


@pytest.mark.parametrize("common", [0, 1, 2])
def test_variants_with_few_rounds_in_common_are_not_compared(tmp_path: Path, common: int) -> None:
    """The machine is twice as slow from the fifth round on, when the other variant is sound."""
    speed = (1.0, 1.01, 0.99, 1.0, 2.0, 2.01, 1.99, 2.0)
    base = Cell(factors=tuple(factor if at < 4 + common else 0.0 for at, factor in enumerate(speed)))
    head = Cell(factors=tuple(factor if at >= 4 else 0.0 for at, factor in enumerate(speed)))
    run = run_of(tmp_path / "run", 1.0, 1.0, cells={("shm@base", 10): base, ("shm@head", 10): head}, rounds=8)
    found = compare_variants(run, gate_ratio=0.05)
    assert found.outcome == "inconclusive"
    assert {change.verdict for change in found.changes} == {"not comparable"}
    words = f"{common} round{'s' * (common != 1)} in common with A {'is' if common == 1 else 'are'} too few to tell"
    assert all(change.reason.startswith(words) for change in found.changes)


@pytest.mark.parametrize("slower", [1.1, 3.0])
def test_every_end_that_is_printed_is_decided_by_that_gate(tmp_path: Path, slower: float) -> None:
    run = run_of(tmp_path / "run", 1.0, slower)
    comparison = compare_variants(run, metrics=MAIN_METRICS)
    ends = re.findall(r"([≤≥]) ([0-9.]+) %", as_text(comparison, gates=True))
    assert {sign for sign, _ in ends} == {"≤", "≥"}
    for sign, percent in ends:
        results = {change.at_gate(float(percent) / 100.0) for change in comparison.changes}
        assert ("regressed" if sign == "≤" else "passed") in results


@pytest.mark.parametrize("mode", ["paced", "pingpong"])
def test_variants_whose_rounds_contradict_their_figures_are_not_compared(tmp_path: Path, mode: str) -> None:
    cells = {("shm@base", 10): CONTRARY["a"], ("shm@head", 10): CONTRARY["b"]}
    found = compare_variants(run_of(tmp_path / "run", 1.0, 1.0, cells=cells, modes=(mode,)), gate_ratio=0.05)
    (change,) = found.changes
    assert (change.verdict, found.outcome) == ("not comparable", "inconclusive")
    assert change.reason.startswith("by the rounds B would be faster than A; messages are of several kinds")


def test_a_p99_of_variants_without_rounds_in_common_is_not_compared(tmp_path: Path) -> None:
    cells = {
        ("shm@base", 10): Cell(factors=(1.0, 1.01, 0.99, 1.0, 0.0, 0.0, 0.0, 0.0)),
        ("shm@head", 10): Cell(factors=(0.0, 0.0, 0.0, 0.0, 2.0, 2.01, 1.99, 2.0)),
    }
    run = run_of(tmp_path / "run", 1.0, 1.0, cells=cells)
    found = compare_variants(run, metrics=("latency-p99",), gate_ratio=0.05)
    (change,) = found.changes
    assert (change.verdict, found.outcome) == ("not comparable", "inconclusive")
    assert change.reason.startswith("0 rounds in common with A are too few to tell")
