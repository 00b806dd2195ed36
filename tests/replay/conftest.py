"""What the tests of the replay share: the broken backends, where workers can find them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def broken_on_path(monkeypatch):
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
