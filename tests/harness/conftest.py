"""What the harness tests share: a floor measured once, and broken backends that workers can import."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from ipcbench.harness.floor import measure_floor

_floor_of = functools.cache(measure_floor)


@pytest.fixture(autouse=True)
def one_floor(monkeypatch):
    """Measure the floor of this machine once for all runs; it takes half a second."""
    monkeypatch.setattr("ipcbench.harness.sweep.measure_floor", lambda sizes: _floor_of(tuple(sorted(set(sizes)))))


@pytest.fixture
def broken_on_path(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
