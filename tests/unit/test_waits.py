"""The column that says how endpoints waited, and what an endpoint's record says of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipcbench.analysis.findings import explain
from ipcbench.analysis.report.render import as_csv
from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.waits import WaitShares, wait_shares
from ipcbench.backend import Endpoint, Waits
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from tests.unit.builders import Cell, make_run, parts, usage

FIVE = (1.0, 1.01, 0.99, 1.02, 0.98)


def waiting(waits: Any, role: str = "") -> Callable[[TrialResult], TrialResult]:
    return parts("", role, usage=replace(usage(), waits=waits))


def run_of(path: Path, *changes: Callable[[TrialResult], TrialResult], trips: tuple[float, ...] = (3e3, 3e4)) -> Run:
    cells = {
        (name, 10): Cell(round_trip_ns=trip, factors=FIVE, change=change)
        for name, trip, change in zip("ab", trips, changes, strict=False)
    }
    return make_run(path / "run", cells, modes=("paced", "pingpong"))


@pytest.mark.parametrize(
    ("waits", "word"),
    [
        (Waits(95, 3, 2), "spin"),
        (Waits(3, 95, 2), "yield"),
        (Waits(0, 0, 7), "block"),
        (Waits(50, 0, 50), "mixed"),
        ("block", "block"),
        ("spin", "spin"),
        (Waits(0, 0, 0), None),
        (None, None),
    ],
)
def test_a_word_for_nine_in_ten_waits(tmp_path: Path, waits: Any, word: str | None) -> None:
    cell = summarise(run_of(tmp_path, waiting(waits))).settings[0].cells[0]
    assert [shares and shares.word for shares in (cell.latency_waits, cell.round_trip_waits)] == [word, word]


def test_shares_add_up_over_endpoints_and_rounds(tmp_path: Path) -> None:
    def change(trial: TrialResult) -> TrialResult:
        return waiting(Waits(10, 0, 0), "reader")(waiting(Waits(0, 0, 30), "writer")(trial))

    cell = summarise(run_of(tmp_path, change)).settings[0].cells[0]
    assert cell.latency_waits == WaitShares(1.0, 0.0, 0.0)  # of the readers alone
    assert cell.round_trip_waits == WaitShares(0.25, 0.0, 0.75)


def test_one_unknown_endpoint_makes_the_shares_unknown(tmp_path: Path) -> None:
    run = run_of(tmp_path, waiting(Waits(10, 0, 0), "reader"))
    assert wait_shares(run.trials, "pingpong") is None
    assert wait_shares(run.trials, "paced") == WaitShares(1.0, 0.0, 0.0)


def test_the_column_is_there_only_if_something_is_known(tmp_path: Path) -> None:
    known = tables(run_of(tmp_path / "known", waiting(Waits(1, 0, 0)), waiting(None)))
    heads = [" ".join(column.head).strip() for column in known.payload_tables[0].columns]
    assert heads.count("one-way waits") == heads.count("trip waits") == 1
    rows = {row[1]: row[heads.index("trip waits")] for row in known.payload_tables[0].rows}
    assert rows == {"a": "spin", "b": "–"}
    assert any(line.startswith("waits: ") for line in known.legend)
    unknown = tables(run_of(tmp_path / "unknown", waiting(None)))
    assert not any("waits" in column.head for column in unknown.payload_tables[0].columns)


def test_the_csv_has_the_shares_and_leaves_unknown_ones_empty(tmp_path: Path) -> None:
    text = as_csv(tables(run_of(tmp_path, waiting(Waits(1, 0, 3)), waiting(None))))
    rows = {row["backend"]: row for row in csv.DictReader(io.StringIO(text))}
    first, second = rows["a"], rows["b"]
    assert (first["round_trip_waits"], first["round_trip_waits_slept_ratio"]) == ("mixed", "0.75")
    assert (second["round_trip_waits"], second["round_trip_waits_slept_ratio"]) == ("", "")
    assert first["throughput_waits"] == ""


def test_a_lead_of_one_that_polls_over_one_that_sleeps_stands_out(tmp_path: Path) -> None:
    found = [
        f
        for f in explain(summarise(run_of(tmp_path, waiting(Waits(99, 0, 1)), waiting("block"))))
        if f.rule == "unlike waits"
    ]
    assert [proof.backend for proof in found[0].evidence] == ["a"]
    assert "1.00 % of the waits ended after the endpoint had slept, over b 100 %" in found[0].sentence


@pytest.mark.parametrize(
    ("first", "second"), [("block", "block"), ("spin", "spin"), ("block", "spin"), (None, "block")]
)
def test_like_waits_do_not_stand_out(tmp_path: Path, first: Any, second: Any) -> None:
    run = run_of(tmp_path, waiting(first), waiting(second))
    assert not [found for found in explain(summarise(run)) if found.rule == "unlike waits"]


def metered(endpoints: list[_Waiting], spans: int = 1) -> Any:
    meter = UsageMeter(endpoints)
    for _ in range(spans):
        meter.start()
        meter.stop()
    return meter.total()[0].waits


class _Waiting(Endpoint):
    """An endpoint that says what it is told to say about its waits."""

    def __init__(self, *waits: Any) -> None:
        self._waits = list(waits)

    @property
    def waits(self) -> Any:
        return self._waits.pop(0)

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ([], None),
        ([_Waiting(Waits(1, 1, 1), Waits(4, 3, 2))], Waits(3, 2, 1)),
        ([_Waiting(Waits(0, 0, 0), Waits(4, 3, 2)), _Waiting(Waits(0, 0, 0), Waits(1, 1, 1))], Waits(5, 4, 3)),
        ([_Waiting("block", "block"), _Waiting("block", "block")], "block"),
        ([_Waiting("block", "block"), _Waiting("spin", "spin")], None),
        ([_Waiting(Waits(0, 0, 0), Waits(4, 3, 2)), _Waiting("block", "block")], None),
        ([_Waiting(Waits(0, 0, 0), Waits(4, 3, 2)), _Waiting(None, None)], None),
        ([_Waiting(None, None)], None),
    ],
)
def test_the_meter_counts_the_waits_of_the_window(endpoints: list[_Waiting], expected: Any) -> None:
    assert metered(endpoints) == expected


def test_the_meter_adds_up_the_turns_of_a_window() -> None:
    waiting = _Waiting(Waits(0, 0, 0), Waits(4, 3, 2), Waits(9, 9, 9), Waits(10, 9, 9))
    assert metered([waiting], spans=2) == Waits(5, 3, 2)


def test_a_round_of_many_waits_counts_no_more_than_the_others(tmp_path: Path) -> None:
    """Endpoints that poll are woken more often: one such round of three says nothing of the other two."""

    def change(trial: TrialResult) -> TrialResult:
        return waiting(Waits(25_000, 0, 0) if trial.spec.round_index == 0 else Waits(0, 0, 1_000))(trial)

    shares = summarise(run_of(tmp_path, change)).settings[0].cells[0].round_trip_waits
    assert shares is not None
    assert (shares.word, shares.spun_ratio) == ("mixed", pytest.approx(1 / 5))
