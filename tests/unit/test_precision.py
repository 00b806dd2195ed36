"""When a run knows its medians well enough."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ipcbench.harness.precision import widest_ratio
from tests.unit.builders import sweep_of, trial

SWEEP = sweep_of(backends=("shm",), sizes=(10,), readers=1)


def trials(*rates: float):
    return [
        replace(trial(SWEEP, "shm", 10, "saturate", index, index), throughput_per_s=rate)
        for index, rate in enumerate(rates)
    ]


def test_a_single_round_says_nothing() -> None:
    assert math.isinf(widest_ratio(trials(1000.0)))


def test_nothing_measured_will_not_get_better() -> None:
    assert widest_ratio([replace(one, status="failed") for one in trials(1000.0, 1000.0)]) == 0.0


def test_it_narrows_with_rounds_and_widens_with_their_spread() -> None:
    few, many = widest_ratio(trials(*[990.0, 1010.0] * 2)), widest_ratio(trials(*[990.0, 1010.0] * 8))
    wild = widest_ratio(trials(*[800.0, 1200.0] * 8))
    assert 0.0 < many < few < wild


def test_the_widest_cell_counts() -> None:
    other = sweep_of(backends=("zmq",), sizes=(10,), readers=1)
    wild = [
        replace(trial(other, "zmq", 10, "saturate", index, index), throughput_per_s=rate)
        for index, rate in enumerate([500.0, 1500.0] * 3)
    ]
    assert widest_ratio(trials(*[1000.0] * 6) + wild) == pytest.approx(widest_ratio(wild), rel=0.1)
