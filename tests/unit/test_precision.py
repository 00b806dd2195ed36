"""When a run knows its medians well enough."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ipcbench.harness.sweep import widest_ratio
from tests.unit.builders import sweep_of, trial

SWEEP = sweep_of(backends=("shm",), sizes=(10,), readers=1)


def trials(*rates: float, backend: str = "shm"):
    return [
        replace(trial(SWEEP, backend, 10, "saturate", index, index), throughput_per_s=rate)
        for index, rate in enumerate(rates)
    ]


def test_a_single_round_has_no_precision_and_without_figures_more_rounds_do_not_help() -> None:
    assert math.isinf(widest_ratio(trials(1000.0)))
    assert widest_ratio([replace(result, status="failed") for result in trials(1000.0, 1000.0)]) == 0.0


def test_it_narrows_with_rounds_and_widens_with_their_spread() -> None:
    few, many = widest_ratio(trials(*[990.0, 1010.0] * 2)), widest_ratio(trials(*[990.0, 1010.0] * 8))
    wild = widest_ratio(trials(*[800.0, 1200.0] * 8))
    assert 0.0 < many < few < wild


def test_the_widest_cell_counts() -> None:
    wild = trials(*[500.0, 1500.0] * 3, backend="zmq")
    assert widest_ratio(trials(*[1000.0] * 6) + wild) == pytest.approx(widest_ratio(wild), rel=0.1)
