"""When a trial counts as disturbed by neighbours: thresholds, and what is unknown."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ipcbench.backend import Waits
from ipcbench.harness.trial import (
    MAX_WAIT_RATIO,
    MIN_OTHERS_CORES,
    gives_up_its_core,
    has_neighbours,
    waiting_ratio,
)
from ipcbench.spec import WaitStrategy
from tests.unit.builders import START_NS, endpoint, sweep_of, trial, usage

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(None, False), (0.0, False), (0.9 * MIN_OTHERS_CORES / CORES, False), (1.1 * MIN_OTHERS_CORES / CORES, True)],
)
def test_others_are_neighbours_from_a_fifth_of_a_core_on(ratio: float | None, expected: bool) -> None:
    assert has_neighbours(ratio) is expected


@pytest.mark.parametrize(("waited_s", "expected"), [(None, 0.0), (0.0, 0.0), (0.03, 0.03), (5.0, 1.0)])
def test_waiting_is_a_share_of_the_window(waited_s: float | None, expected: float) -> None:
    waiting = replace(usage(), run_queue_wait_s=waited_s)
    parts = (endpoint("writer", first_ns=START_NS, last_ns=START_NS + 10**9), endpoint("reader-0", usage=waiting))
    result = replace(trial(sweep_of(), "shm", 10, "saturate", 0, 0), endpoints=parts)
    assert waiting_ratio(result) == pytest.approx(expected)
    assert 0.0 < MAX_WAIT_RATIO < 0.03


@pytest.mark.parametrize(
    ("waits", "expected"),
    [(Waits(4, 7300, 0), True), (Waits(900, 30, 40), False), ("yield", True), ("block", False), (None, False)],
)
def test_the_waits_of_who_yields_are_not_its_neighbours_doing(
    waits: Waits | WaitStrategy | None, expected: bool
) -> None:
    """mpi-buffer at 1.25 times what a link carries was taken for held: its reader had yielded all the while."""
    assert gives_up_its_core(endpoint("reader-0", usage=replace(usage(), waits=waits))) is expected


def test_of_turns_only_the_turns_count() -> None:
    """The trial lasts a second, its window of 150 ms is in turns; between them an endpoint sleeps."""
    parts = (endpoint("writer", usage=replace(usage(), run_queue_wait_s=0.015)),)
    plain = trial(sweep_of(), "shm", 10, "paced", 0, 0)
    result = replace(plain, spec=replace(plain.spec, turns=10, window_s=0.15), endpoints=parts)
    assert waiting_ratio(result) == pytest.approx(0.1)
