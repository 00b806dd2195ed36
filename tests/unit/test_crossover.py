"""Crossovers whose place is known: found there, with intervals that hold it, and claimed only where both sides are
clear.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.crossover import Crossover, crossovers, lead_changes, pair_crossovers, rules_by_size
from ipcbench.analysis.summary.curves import Curve, CurvePoint, curves, families, mixed, neighbours, share_of
from ipcbench.analysis.summary.summary import summarise
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.stats.estimates import Estimate
from tests.unit.builders import Cell, make_run

SIZES = (1024, 4096, 65_536, 262_144)
FAILED = Cell(10.0, factors=(0.0, 0.0, 0.0))


def plain_run(path: Path, cells: dict[tuple[str, int], Cell], modes=("paced",)) -> Run:
    return make_run(path, cells, payload="bytes", codec="raw", modes=modes)


def run_of(path: Path, laws: dict[str, tuple[float, float]], sizes=SIZES, modes=("paced",)) -> Run:
    """Store a run whose latencies are `base · (size / 1024)^exponent`: straight lines on logarithmic axes."""
    cells = {
        (name, size): Cell(base * (size / 1024) ** power, 1e9 / (base * (size / 1024) ** power))
        for size in sizes
        for name, (base, power) in laws.items()
    }
    return plain_run(path / "run", cells, modes=modes)


def of(run: Run, axis: str = "latency") -> list[Crossover]:
    return [crossover for crossover in crossovers(summarise(run)) if crossover.axis == axis]


def test_the_place_is_found_and_the_interval_holds_it(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": (5_000.0, 0.5), "b": (20_000.0, 0.0)}, modes=("paced", "saturate"))
    for axis, better in (("latency", "the lower one-way latency"), ("throughput", "the higher throughput")):
        (found,) = of(run, axis)
        assert (found.below, found.above) == (("a",), ("b",))
        assert found.payload_bytes.estimate == pytest.approx(16_384, rel=0.05)
        assert found.payload_bytes.low < 16_384 < found.payload_bytes.high
        assert found.range_bytes == (4096, 65_536)
        assert found.sentence().startswith("Crossover at 16,")
        assert found.sentence().endswith(f"between 4,096 B and 65,536 B: a has {better} below, b above.")


def test_it_stands_in_the_matrix_and_in_the_json_as_the_same_sentence(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": (5_000.0, 0.5), "b": (20_000.0, 0.0)})
    (found,) = of(run)
    (matrix,) = tables(run).matrices
    assert matrix.remarks[0] == found.sentence()
    assert json.loads(json.dumps(found.as_dict()))["sentence"] == found.sentence()


def test_one_that_is_never_overtaken(tmp_path: Path) -> None:
    (found,) = of(run_of(tmp_path, {"a": (30_000.0, 0.2), "b": (10_000.0, 0.2)}))
    assert (found.below, found.above, found.payload_bytes) == (("b",), ("a",), None)
    assert found.sentence() == (
        "No crossover in the measured range, 1,024 B to 262,144 B: b clearly has the lower one-way latency "
        "at 4 of 4 sizes, a at none."
    )


def test_two_that_are_alike(tmp_path: Path) -> None:
    (found,) = of(run_of(tmp_path, {"a": (10_000.0, 0.2), "b": (10_020.0, 0.2)}))
    assert found.payload_bytes is None
    assert found.sentence().endswith("between a and b neither clearly has the lower one-way latency at any size.")


def test_an_overtaking_that_is_clear_on_one_side_only_is_not_claimed(tmp_path: Path) -> None:
    cells = {("a", 1024): Cell(10_000.0), ("b", 1024): Cell(40_000.0)}
    cells |= {
        ("a", 8192): Cell(40_500.0, factors=(1.0, 1.3, 0.8)),
        ("b", 8192): Cell(40_000.0, factors=(1.3, 0.8, 1.0)),
    }
    (found,) = of(plain_run(tmp_path / "run", cells))
    assert (found.payload_bytes, found.clear_of_sizes) == (None, (1, 2))


def test_one_size_has_no_range(tmp_path: Path) -> None:
    assert of(run_of(tmp_path, {"a": (10_000.0, 0.0), "b": (30_000.0, 0.0)}, sizes=(1024,))) == []


def test_a_failed_cell_takes_part_in_no_crossover(tmp_path: Path) -> None:
    cells = {(name, size): Cell(p50) for size in SIZES for name, p50 in (("a", 10_000.0), ("b", 30_000.0))}
    cells["b", SIZES[3]] = FAILED
    (found,) = of(plain_run(tmp_path / "run", cells))
    assert (found.payload_bytes, found.range_bytes) == (None, (1024, 65_536))


def estimate(value: float, spread: float, generator: np.random.Generator) -> Estimate:
    """Return an estimate that is off by its own spread, as a measured one is."""
    seen = value * math.exp(generator.normal(0.0, spread))
    return Estimate(seen, generator.normal(0.0, spread, 400), spread**2, 1e6, 3)


def curve(name: str, values: dict[int, float], spread: float, generator: np.random.Generator) -> Curve:
    return Curve(name, tuple(CurvePoint(size, estimate(value, spread, generator)) for size, value in values.items()))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = claimed = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        sizes = (1000, 10_000, 100_000, 1_000_000)
        a = curve("a", {size: 1000.0 * size**0.5 for size in sizes}, 0.1, generator)
        b = curve("b", dict.fromkeys(sizes, 1000.0 * 30000**0.5), 0.1, generator)
        (found,) = pair_crossovers(a, b, "latency", rules_by_size((a, b), None), "")
        if found.payload_bytes is not None:
            claimed += 1
            held += found.payload_bytes.low <= 30_000 <= found.payload_bytes.high
    assert claimed == 400
    assert 0.92 <= held / claimed <= 0.98


def test_curves_that_cross_twice_have_two_crossovers() -> None:
    generator = np.random.default_rng(1)
    a = curve("a", {100: 1.0, 1000: 9.0, 10_000: 1.0}, 0.01, generator)
    b = curve("b", {100: 3.0, 1000: 3.0, 10_000: 3.0}, 0.01, generator)
    found = pair_crossovers(a, b, "latency", rules_by_size((a, b), None), "")
    assert [(crossover.below, crossover.above) for crossover in found] == [(("a",), ("b",)), (("b",), ("a",))]
    places = [crossover.payload_bytes.estimate for crossover in found if crossover.payload_bytes]
    assert places == pytest.approx([316, 3162], rel=0.05)


def test_where_noise_crosses_often_the_interval_reaches_over_all_of_it() -> None:
    generator = np.random.default_rng(1)
    a = curve("a", {100: 1.0, 1000: 3.02, 10_000: 2.98, 100_000: 9.0}, 0.02, generator)
    b = curve("b", {100: 3.0, 1000: 3.0, 10_000: 3.0, 100_000: 3.0}, 0.02, generator)
    (found,) = pair_crossovers(a, b, "latency", rules_by_size((a, b), None), "")
    assert found.payload_bytes.low < 1100
    assert found.payload_bytes.high > 9000


def test_estimates_without_spread_cross_at_a_point() -> None:
    def exact(name: str, values: dict[int, float]) -> Curve:
        points = (CurvePoint(size, Estimate(value, np.zeros(100), 0.0, 1.0, 3)) for size, value in values.items())
        return Curve(name, tuple(points))

    a, b = exact("a", {0: 1.0, 100: 4.0}), exact("b", {0: 2.0, 100: 2.0})
    (found,) = pair_crossovers(a, b, "cpu", rules_by_size((a, b), None), "")
    assert (found.payload_bytes.low, found.payload_bytes.high) == pytest.approx((10.0, 10.0))


def test_lead_changes_name_all_that_share_the_lead(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": (5_000.0, 0.5), "b": (20_000.0, 0.0), "c": (20_010.0, 0.0)})
    summary = summarise(run)
    (family,) = families(summary)
    (found,) = lead_changes(family, "latency", summary.priors.get("latency"))
    assert (found.below, found.above) == (("a",), ("b", "c"))
    assert found.payload_bytes.estimate == pytest.approx(16_384, rel=0.05)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(100, (100, 100)), (91, (100, 100)), (90, None), (300, (100, 1000)), (1099, (1000, 1000)), (1101, None)],
)
def test_neighbours(size: int, expected: tuple[int, int] | None) -> None:
    assert neighbours([100, 1000], size) == expected
    assert neighbours([], size) is None


def test_interpolation_on_logarithmic_axes(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": (10_000.0, 0.5)}, sizes=(1024, 16_384))
    (family,) = families(summarise(run))
    low, high = curves(family, "latency")["a"].points
    middle = mixed(low.time, high.time, share_of(4096, (low.payload_bytes, high.payload_bytes)))
    assert middle.value == pytest.approx(20_000, rel=0.02)
    assert middle.interval().low < 20_000 < middle.interval().high


def test_between_two_sizes_nothing_is_surer_than_at_them() -> None:
    generator = np.random.default_rng(2)
    first, second = estimate(10.0, 0.1, generator), estimate(10.0, 0.1, generator)
    assert mixed(first, second, 0.5).log_variance == pytest.approx(0.01)
    assert mixed(first, second, 0.0).value == pytest.approx(first.value)


def test_a_leader_without_a_figure_at_the_size_before_makes_no_crossover(tmp_path: Path) -> None:
    """b takes the lead at the third size and failed at the two before; a failed where b leads."""
    for number, gone in enumerate((("b", SIZES[1]), ("a", SIZES[2]))):
        cells = {("a", size): Cell(5_000.0) for size in SIZES[:2]} | {("a", size): Cell(90_000.0) for size in SIZES[2:]}
        cells |= {("b", size): Cell(20_000.0) for size in SIZES}
        cells |= {("b", SIZES[0]): FAILED, gone: FAILED}
        summary = summarise(plain_run(tmp_path / str(number), cells))
        (family,) = families(summary)
        assert lead_changes(family, "latency", summary.priors.get("latency")) == ()


def test_a_leader_that_has_too_few_rounds_at_a_size_is_not_overtaken_there(tmp_path: Path) -> None:
    """One failed trial of the fastest: that another then has the first rank says nothing about the two."""
    cells = {
        ("a", 1024): Cell(10_000.0),
        ("b", 1024): Cell(30_000.0),
        ("a", 65_536): Cell(40_000.0, factors=(1.0, 1.01, 0.0)),
        ("b", 65_536): Cell(200_000.0),
    }
    run = plain_run(tmp_path / "run", cells)
    summary = summarise(run)
    (family,) = families(summary)
    assert lead_changes(family, "latency", None) == ()
    (matrix,) = [table for table in tables(run).matrices if "latency" in table.title]
    assert "Crossover at" not in " ".join(matrix.remarks)
    assert matrix.rows[0][0] == "a"
    assert matrix.rows[0][2].endswith("?")


def test_rounds_of_other_modes_claim_no_rank(tmp_path: Path) -> None:
    """Latency was measured in two rounds, throughput in three."""

    def without_last(trial: TrialResult) -> TrialResult:
        is_last = (trial.spec.mode, trial.spec.round_index) == ("paced", 2)
        return replace(trial, status="failed", reason="it was killed") if is_last else trial

    cells = {(name, size): Cell(1e4, change=without_last) for name in "ab" for size in (1024, 65_536)}
    run = plain_run(tmp_path / "run", cells, modes=("paced", "saturate"))
    latency, throughput = (table for table in tables(run).matrices)
    assert latency.remarks[0].startswith("Fewer than 3 rounds")
    assert not any(text.endswith(("=", "*")) for row in latency.rows for text in row)
    assert all(text.endswith("=") for row in throughput.rows for text in row[1:])


def test_interrupted_runs_can_be_analyzed(tmp_path: Path) -> None:
    """A prefix of a run's trials is what Ctrl-C could have left; the lead changes with the size."""
    run = run_of(tmp_path, {"a": (5_000.0, 0.5), "b": (20_000.0, 0.0), "c": (90_000.0, -0.5)})
    for count in range(0, len(run.trials) + 1, 5):
        for trials in (run.trials[:count], run.trials[count:]):
            measured = len({trial.spec.size for trial in trials})
            assert len(tables(replace(run, trials=trials)).matrices) == (measured > 1)


@pytest.mark.parametrize(("sizes", "others"), [((100,), ""), ((100, 1000), "; elsewhere, from each size to the next")])
def test_a_size_of_too_few_rounds_is_named_where_no_crossover_is_clear(tmp_path: Path, sizes, others: str) -> None:
    cells = {(name, size): Cell(factors=(1.0, 1.01, 0.99)) for name in "ab" for size in sizes}
    cells |= {(name, 10): Cell(factors=(1.0, 1.01)) for name in "ab"}
    (latency, _) = tables(make_run(tmp_path / "run", cells)).matrices
    begin = "No clear crossover: fewer than 3 rounds at 10 entries, too few to tell which is ahead there"
    assert latency.remarks[0].startswith(f"{begin}{others}")
