"""Settings that differ in their busy neighbours: never one table, and where they change the order of two backends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.compare.run_cells import run_cells
from ipcbench.analysis.findings import Finding, explain
from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.recommend.recommend import recommend
from ipcbench.analysis.report.page import headline_words
from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.curves import families
from ipcbench.analysis.summary.order import order_changes
from ipcbench.analysis.summary.summary import summarise
from ipcbench.errors import ConfigError
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import SweepSpec
from tests.unit.builders import Cell, make_run

FIVE = (1.0, 1.01, 0.99, 1.02, 0.98)


def beside(quiet_ns: float, busy_ns: float, factors: tuple[float, ...] = FIVE) -> Cell:
    return Cell(quiet_ns, factors=factors, beside={2: Cell(busy_ns, factors=factors)})


def beside_two(trial: TrialResult) -> TrialResult:
    return replace(trial, spec=replace(trial.spec, neighbours=2))


def run_of(path: Path, a: Cell, b: Cell, **changes: object) -> Run:
    cells = {("a", 10): a, ("b", 10): b, ("a", 1000): a, ("b", 1000): b}
    return make_run(path / "run", cells, modes=("paced",), neighbours=(0, 2), **changes)


def order_finding(run: Run) -> Finding | None:
    return next((found for found in explain(summarise(run)) if found.rule == "order beside neighbours"), None)


def test_neighbours_are_a_setting_with_its_own_tables_and_families(tmp_path: Path) -> None:
    summary = summarise(run_of(tmp_path, beside(10e3, 90e3), beside(20e3, 95e3)))
    assert [(result.setting.neighbours, result.setting.size) for result in summary.settings] == [
        (0, 10),
        (0, 1000),
        (2, 10),
        (2, 1000),
    ]
    assert [{result.setting.neighbours for result in family} for family in families(summary)] == [{0}, {2}]
    assert all(cell.rounds_count == 5 for result in summary.settings for cell in result.cells)


def test_titles_name_the_neighbours(tmp_path: Path) -> None:
    shown = tables(run_of(tmp_path, beside(10e3, 90e3), beside(20e3, 95e3)))
    titles = [table.title for table in (*shown.payload_tables, *shown.matrices)]
    assert sum("beside 2 busy neighbours" in title for title in titles) == len(titles) / 2


def test_compare_matches_cells_of_equal_neighbours_only(tmp_path: Path) -> None:
    cells = run_cells(run_of(tmp_path, beside(10e3, 90e3), beside(20e3, 95e3)))
    assert [key.neighbours for key in cells if key.backend == "a" and key.size == 10] == [0, 2]


def test_a_recommendation_rests_on_figures_without_neighbours(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", {("shm", 10): beside(10e3, 90e3), ("pipe", 10): beside(20e3, 50e3)}, neighbours=(0, 2)
    )
    answer = recommend(run, Question(521, 1))
    assert "shm, with one-way latency p50 10.0 µs" in answer.sentence()


def test_a_run_beside_neighbours_alone_recommends_nothing_and_says_why(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(10e3, factors=FIVE), ("pipe", 10): Cell(20e3, factors=FIVE)}
    run = make_run(tmp_path / "run", {key: replace(cell, change=beside_two) for key, cell in cells.items()})
    answer = recommend(run, Question(521, 1))
    assert "which has every_message to 1 reader beside 2 busy neighbours" in answer.sentence()


def test_a_change_of_the_order_is_a_finding_with_both_ratios(tmp_path: Path) -> None:
    run = run_of(tmp_path, beside(10e3, 90e3), beside(20e3, 60e3))
    changes = order_changes(summarise(run))
    assert [(change.ahead, change.neighbours, change.setting.size) for change in changes] == [
        (("a", "b"), (0, 2), 10),
        (("a", "b"), (0, 2), 1000),
    ]
    found = order_finding(run)
    assert found is not None
    assert found.sentence.startswith("Busy neighbours change the order: dict of 10")
    assert "without neighbours, a has the lower one-way latency (b 2" in found.sentence
    assert "beside 2 busy neighbours, b has (a 1.5" in found.sentence
    assert {proof.backend for proof in found.evidence} == {"b"}
    assert all(proof.value > found.threshold for proof in found.evidence)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(beside(10e3, 60e3), beside(20e3, 90e3), id="same order"),
        pytest.param(beside(10e3, 60e3), beside(20e3, 60e3), id="a tie beside neighbours"),
        pytest.param(beside(10e3, 90e3, FIVE[:2]), beside(20e3, 60e3, FIVE[:2]), id="two rounds"),
        pytest.param(Cell(10e3, factors=FIVE), Cell(20e3, factors=FIVE), id="never beside neighbours"),
    ],
)
def test_no_claim_without_a_clear_change(tmp_path: Path, a: Cell, b: Cell) -> None:
    assert order_finding(run_of(tmp_path, a, b)) is None


@pytest.mark.parametrize("neighbours", [(), (1, 1), (-1,), (2000,)])
def test_unusable_numbers_of_neighbours_are_refused(neighbours: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="neighbours"):
        SweepSpec(neighbours=neighbours)


def test_the_page_says_of_each_number_of_neighbours_what_was_measured_beside_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, beside(10_000.0, 90_000.0), beside(30_000.0, 40_000.0))
    verdicts = [line.sentence for line in headline_words(tables(run)).verdicts]
    assert ["b has the lowest one-way latency" in text for text in verdicts] == [False, False, True, True]
