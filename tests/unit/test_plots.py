"""Plots as files: real PNG and SVG, the same bytes each time, whatever a backend is called."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path

import pytest

from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.report.tables import tables
from ipcbench.render.plots import plot_files
from ipcbench.results.store import Run
from tests.unit.builders import Cell, make_run

imread = pytest.importorskip("matplotlib.image").imread

HOSTILE = "<script>alert(1)</script> $\\frac{1}{0}$ & 日本 {x}"


def files_of(run: Run) -> dict[str, bytes]:
    groups = chart_groups(run, tables(run).summary)
    return {file.name: file.data for file in plot_files(groups, "source $x_1$ <b>")}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", {(name, 10): Cell() for name in ("shm", HOSTILE)})


def test_each_group_is_a_png_and_an_svg(run: Run) -> None:
    found = files_of(run)
    groups = chart_groups(run, tables(run).summary)
    assert set(found) == {f"{group.key}.{form}" for group in groups for form in ("png", "svg")}
    for name, data in found.items():
        if name.endswith("png"):
            assert data.startswith(b"\x89PNG\r\n")
        else:
            texts = "".join(ET.fromstring(data).itertext())
            assert "shm" in texts
            assert "…" in texts or "alert(1)" in texts
            assert "µs" in texts or "%" in texts or "messages/s" in texts


def test_the_same_run_gives_the_same_bytes(run: Run) -> None:
    assert files_of(run) == files_of(run)


def test_many_settings_are_several_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", size): Cell() for size in (1, 10, 100, 1000, 10_000)})
    assert {"stability-1.png", "stability-2.png", "latency.png"} <= set(files_of(run))


def test_the_title_of_an_axis_of_long_numbers_is_whole(tmp_path: Path) -> None:
    slow = make_run(tmp_path / "run", {("shm", size): Cell(2e8) for size in (10, 100)})
    image = imread(BytesIO(files_of(slow)["percentiles.png"]))
    assert (image[:, 0] == 1.0).all(), "nothing is drawn at the left edge"
