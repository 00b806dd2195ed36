"""The A/A control: one cell measured twice, and what is concluded from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.summary.summary import controls, summarise
from ipcbench.analysis.summary.wording import header
from ipcbench.results.store import Run
from tests.unit.builders import Cell, make_run


def with_control(path: Path, factors: tuple[float, ...]) -> Run:
    """Return a run whose control is the first cell, times a factor a round."""
    cells = {("shm", 10): Cell(factors=(1.0,) * len(factors))}
    run = make_run(path, cells, modes=("saturate",), rounds=len(factors))
    twins = tuple(
        replace(trial, spec=replace(trial.spec, twin=True), throughput_per_s=trial.throughput_per_s * factor)
        for trial, factor in zip(run.trials, factors, strict=True)
    )
    return replace(run, controls=twins)


def test_a_control_that_agrees_is_said_to(tmp_path: Path) -> None:
    run = with_control(tmp_path / "run", (1.02, 0.97, 1.03, 0.99))
    (control,) = controls(run)
    assert (control.metric, control.backend, control.payload_bytes, control.agrees) == ("throughput", "shm", 521, True)
    assert control.ratio.estimate == pytest.approx(1.0, abs=0.01)
    (line,) = [line for line in header(summarise(run)) if line.startswith("control: ")]
    assert "shm at 521 B, twice a round" in line
    assert "doubt" not in line


def test_a_control_that_differs_from_itself_is_a_warning(tmp_path: Path) -> None:
    run = with_control(tmp_path / "run", (1.2, 1.21, 1.19, 1.2))
    assert not controls(run)[0].agrees
    assert any("doubt small differences in throughput" in line for line in header(summarise(run)))


def test_too_few_rounds_are_no_control(tmp_path: Path) -> None:
    assert controls(with_control(tmp_path / "run", (1.0, 1.2))) == ()


def test_a_control_is_in_no_table(tmp_path: Path) -> None:
    plain = with_control(tmp_path / "run", (1.0, 1.2, 1.1))
    assert summarise(plain).settings == summarise(replace(plain, controls=())).settings
