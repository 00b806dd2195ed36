"""Unit tests start no process and make nothing on the host: cheaper to watch than what the other tests may leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Stand in for the watch that every other test has."""


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_of_a_module() -> Iterator[None]:
    """Fail a module after which a child process or a thread is there that was not there before."""
    own = psutil.Process()
    children, threads = set(own.children()), _threads()
    yield
    assert set(own.children()) - children == set()
    assert _threads() - threads == set()


def _threads() -> set[threading.Thread]:
    """Return the threads that are not the time limit of a test."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)}
