"""A figure is the same number wherever it stands: every cell and quantity of the reference run, in every output."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ipcbench
from ipcbench.analysis.compare.compare import compare_runs
from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.recommend.recommend import recommend
from ipcbench.analysis.report.render import as_csv, as_json
from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.cells import Summary
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from tests.end_to_end import outputs
from tests.end_to_end.outputs import Figures
from tests.end_to_end.shell import ROOT, Shell

pytest.importorskip("jinja2")

REFERENCE = ROOT / "results" / "reference"
SHOWN = 0.00501
DERIVED = {"throughput_mb_per_s": "throughput_messages_per_s"}
"""Quantity → that whose interval decides about its digits."""
"""Three digits are printed."""
PAGE = 1e-5
"""Six digits are in the page's charts."""
EXACT = 1e-12


@dataclass(frozen=True)
class Outputs:
    """What is printed and written of one run."""

    folder: Path
    run: Run
    summary: Summary
    text: str
    said: dict[str, str]

    def file(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    @property
    def sizes(self) -> dict[int, int]:
        return {one.setting.size: one.setting.payload_bytes for one in self.summary.settings}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    pytest.importorskip("matplotlib")
    shell = Shell(tmp_path_factory.mktemp("figures"))
    folder = shell.folder / "reference"
    shutil.copytree(REFERENCE, folder)
    done = shell("analyze", "reference")
    assert done.returncode == 0, done.stderr
    run = ipcbench.load(folder)
    found = tables(run)
    return Outputs(folder, run, found.summary, done.stdout, {"csv": as_csv(found), "json": as_json(found)})


def check(found: Figures, truth: Figures, quantities: set[str], precision: float) -> None:
    """Every quantity of every cell that was measured is there, and is that number."""
    for key, cell in truth.items():
        for name in quantities & set(cell):
            assert name in found.get(key, {}), f"{key} {name} is not there"
            allowed = precision if precision == EXACT else max(precision, shown_precision(cell, name))
            assert math.isclose(found[key][name], cell[name], rel_tol=allowed), f"{key} {name}"
    unknown = {(key, name) for key, cell in found.items() for name in cell if name not in truth.get(key, {})}
    assert unknown == set(), "a figure that was not measured"


def shown_precision(cell: Mapping[str, float], name: str) -> float:
    """Return how far off a figure may be that is shown with as many digits as its interval allows."""
    stem = next((one for one in (*outputs.INTERVALS, *DERIVED) if name in with_bounds(one)), name)
    stem = DERIVED.get(stem, stem)
    low, high = (cell.get(outputs.bound(stem, which)) for which in outputs.BOUNDS)
    if low is None or high is None:
        return 0.05 if stem in outputs.INTERVALS else SHOWN
    return (SHOWN, 0.05, 0.5)[(high > 2 * low) + (high > 10 * low)]


def with_bounds(*names: str) -> set[str]:
    return {*names, *(outputs.bound(name, one) for name in names for one in outputs.BOUNDS)}


EVERYTHING = with_bounds(*outputs.INTERVALS) | set(outputs.VALUES)
LATENCIES = outputs.TIMES[:4]
TAILS = {"latency_p99_us", "round_trip_p99_us"}


def test_the_walk_covers_cells_and_quantities(made: Outputs) -> None:
    truth = outputs.of_library(made.summary)
    assert len(truth) == 24
    assert set().union(*truth.values()) == EVERYTHING
    assert all(len(cell) > 0.7 * len(EVERYTHING) for cell in truth.values()), "of large messages, no p99"


def counted(trial: TrialResult, readers: list[np.ndarray]) -> list[np.ndarray]:
    """Return the latencies of each turn, without its first three or without half of a short one; or all as one turn."""
    if trial.spec.turns == 1:
        return [np.concatenate(readers)]
    turns = zip(*(np.split(latencies, np.cumsum(trial.turn_counts)[:-1]) for latencies in readers), strict=True)
    return [np.concatenate([own[min(3, len(own) // 2) :] for own in turn]) for turn in turns]


def test_the_librarys_figures_are_those_of_the_stored_trials(made: Outputs) -> None:
    """Latencies from the samples, rates from the trials, by nothing but NumPy."""
    truth = outputs.of_library(made.summary)
    assert made.run.trials
    for (size, backend), cell in truth.items():
        own = [one for one in made.run.trials if (one.spec.payload_bytes, one.spec.backend) == (size, backend)]
        for name, probability, tail in (("latency_p50_us", 0.5, False), ("latency_p99_us", 0.99, True)):
            paced = [one for one in own if one.spec.mode == "paced" and one.spec.tail == tail]
            columns = [made.run.samples(one.trial_id) for one in paced]
            rounds = [
                counted(trial, [one[f"reader-{index}.latency_ns"] for index in range(3)])
                for trial, one in zip(paced, columns, strict=True)
            ]
            if tail and sum(len(turn) for turns in rounds for turn in turns) < 1000:
                assert (name in cell, size > 500_000) == (False, True)
                continue
            weights = [(turn, 1 / len(turn) / len(turns) / len(rounds)) for turns in rounds for turn in turns]
            latencies = np.concatenate([turn for turn, _ in weights])
            shares = np.concatenate([np.full(len(turn), weight) for turn, weight in weights])
            order = np.argsort(latencies, kind="stable")
            reached = np.cumsum(shares[order]) - shares[order] / 2
            quantile_ns = np.interp(probability, reached, latencies[order])
            assert cell[name] == pytest.approx(quantile_ns / 1e3, rel=1e-9)
        rates = [one.throughput_per_s for one in own if one.spec.mode == "saturate"]
        assert cell["throughput_messages_per_s"] == pytest.approx(np.median(rates), rel=1e-9)
        assert cell["throughput_mb_per_s"] == pytest.approx(np.median(rates) * size / 1e6, rel=1e-9)


def test_csv_and_json_hold_the_librarys_numbers(made: Outputs) -> None:
    tables_as_data = (
        outputs.of_csv(made.said["csv"]),
        outputs.of_csv(made.file("summary.csv")),
        outputs.of_json(made.said["json"]),
    )
    for figures in tables_as_data:
        check(figures, outputs.of_library(made.summary), EVERYTHING, EXACT)


def test_text_and_markdown_show_the_librarys_numbers(made: Outputs) -> None:
    truth = outputs.of_library(made.summary)
    shown = {name for name, _ in outputs.COLUMNS.values()}
    for figures in (outputs.of_text(made.text), outputs.of_markdown(made.file("tables.md"))):
        check(figures, truth, shown - TAILS, SHOWN)
        for key, cell in truth.items():
            for name in TAILS & set(cell):  # where its interval is wide, that stands in its place, cut to two digits
                names = {name} if name in figures[key] else with_bounds(name) & set(figures[key])
                known = cell[outputs.bound(name, "low")] > cell[name.replace("p99", "p50")]
                assert bool(names) >= known, (key, name)
                precision = SHOWN if name in names else 0.1
                assert all(math.isclose(figures[key][one], cell[one], rel_tol=precision) for one in names), (key, names)
        assert any(outputs.bound("ratio_to_best", "low") in cell for cell in figures.values())
    matrices = outputs.of_matrices(made.text)
    in_all = set.intersection(*(set(cell) for cell in matrices.values()))
    assert in_all >= {"latency_p50_us", "throughput_messages_per_s"}
    check(matrices, truth, in_all, SHOWN)


def cpu_of_all_us(cell: dict[str, float]) -> float:
    """Return what a message costs a writer and three readers."""
    return cell["writer_cpu_us_per_message"] + 3 * cell["reader_cpu_us_per_message"]


def test_the_report_draws_the_librarys_numbers(made: Outputs) -> None:
    truth = outputs.of_library(made.summary)
    page = made.file("report.html")
    drawn = with_bounds("latency_p50_us", "round_trip_p50_us", "throughput_messages_per_s")
    check(outputs.of_page(page), truth, drawn | {"throughput_of_memory_copy_ratio"}, PAGE)
    costs = outputs.of_page_cost(page)
    assert len(costs) == len(made.sizes)
    for (size, backend), cell in truth.items():
        (cost,) = (backends for choice, backends in costs.items() if f"{size:,} B" in choice)
        assert cost[backend] == pytest.approx(cpu_of_all_us(cell), rel=PAGE)


def test_recommend_expects_the_librarys_numbers(made: Outputs) -> None:
    truth = outputs.of_library(made.summary)
    found: Figures = {}
    for size in made.sizes.values():
        answer = json.loads(json.dumps(recommend(made.run, Question(size, 3), summary=made.summary).as_dict()))
        found |= outputs.of_recommendation(answer)
        for candidate in answer["candidates"]:
            expected = pytest.approx(cpu_of_all_us(truth[size, candidate["backend"]]), rel=EXACT)
            assert candidate["expected"]["cpu_ns"]["estimate"] / 1e3 == expected
    names = with_bounds(*LATENCIES[:3], "throughput_messages_per_s")
    check(found, truth, names | {"throughput_mb_per_s"}, EXACT)


def test_compare_compares_the_librarys_numbers(made: Outputs) -> None:
    plain = json.loads(json.dumps(compare_runs(made.run, made.run).as_dict()))
    found = outputs.of_comparison(plain, made.sizes)
    check(found, outputs.of_library(made.summary), with_bounds(*LATENCIES, "throughput_messages_per_s"), EXACT)


def test_exports_hold_the_librarys_numbers(made: Outputs) -> None:
    truth = outputs.of_library(made.summary)
    text = {name: EXPORTERS[name](made.run).text for name in ("github-latency", "github-throughput", "osu", "pyperf")}
    latencies = outputs.of_github(text["github-latency"])
    check(latencies, truth, set(LATENCIES) - TAILS, EXACT)
    wide = [
        key for key, cell in truth.items() if 2 * cell.get("latency_p99_low_us", 1) < cell.get("latency_p99_high_us", 1)
    ]
    assert wide
    assert not any("latency_p99_us" in latencies[key] for key in wide), "a p99 that the tables do not resolve"
    check(outputs.of_github(text["github-throughput"]), truth, {"throughput_messages_per_s"}, EXACT)
    check(outputs.of_osu(text["osu"]), truth, {"latency_p50_us", "round_trip_p50_us", "throughput_mb_per_s"}, 1e-3)
    times: Figures = {}
    for one in json.loads(text["pyperf"])["benchmarks"]:
        backend, payload, _, metric = one["metadata"]["name"].split("/")
        if metric == "message-time":
            values = [value for run in one["runs"] for value in run["values"]]
            size = int(payload.rpartition("-")[2].removesuffix("B"))
            times[size, backend] = {"throughput_messages_per_s": float(np.median(1.0 / np.array(values)))}
    check(times, truth, {"throughput_messages_per_s"}, EXACT)
