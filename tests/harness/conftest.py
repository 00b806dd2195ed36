"""What the harness tests share: the floor, measured once; the broken backends, which workers can import."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from ipcbench.harness.floor import measure_floor

_floor_of = functools.cache(measure_floor)


@pytest.fixture(autouse=True)
def one_floor(monkeypatch):
    """The floor of this machine is measured once for all runs; measuring it takes half a second."""
    monkeypatch.setattr("ipcbench.harness.sweep.measure_floor", lambda sizes: _floor_of(tuple(sorted(set(sizes)))))


@pytest.fixture
def broken_on_path(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
