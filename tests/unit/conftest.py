"""Unit tests start no process and make nothing on the host: cheaper to watch than what the other tests may leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test after which a child process or a thread is there that was not there before."""
    own = psutil.Process()
    children, threads = set(own.children()), set(threading.enumerate())
    yield
    assert set(own.children()) - children == set()
    assert set(threading.enumerate()) - threads == set()
