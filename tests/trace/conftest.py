"""Fixtures for every test of the tracer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from ipcbench import trace


@pytest.fixture(autouse=True)
def no_recorder() -> Iterator[None]:
    """End what the test recorded."""
    yield
    trace.stop()


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ipcbench.trace.record.mapped.posix_fallocate", fail)
