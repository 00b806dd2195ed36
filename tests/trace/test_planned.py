"""Traces of calls that nobody made: bytes and order are there, and no reader takes what is missing for 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipcbench.errors import StoreError
from ipcbench.trace.readers.batch import UNKNOWN, Notes
from ipcbench.trace.readers.everything import find
from ipcbench.trace.readers.own import read_segment
from ipcbench.trace.record.planned import write_planned
from ipcbench.trace.report.gather import gather
from ipcbench.trace.schema import PLANNED, Schema
from tests.trace.made import Made

WAIT = Schema("other", ("wait",), PLANNED.role)


def test_a_planned_call_is_read_as_it_was_written(tmp_path: Path) -> None:
    name = "Ü" * 200
    calls = [(name, 3, 5), ("Matmul", 0, 0), (name, 2**40, 7)]
    (batch,) = read_segment(write_planned(tmp_path, "model", calls), notes := Notes())
    methods = [batch.methods[number] for number in batch.method]
    assert [*zip(methods, batch.sent_bytes, batch.recv_bytes, strict=True)] == calls
    assert not batch.is_timed
    assert (notes.damaged_count, notes.counts.total()) == (0, 0)


def test_stamps_of_a_planned_call_mean_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path, "model")
    made.call("Matmul", [5, 1_000_000], PLANNED, sent=10, recv=20)
    made.segment.close()
    for batch in (next(read_segment(made.segment.path, Notes())), next(find([tmp_path]).calls()).batch):
        assert not batch.is_timed
        assert (batch.begin_ns[0], batch.total_ns[0], batch.stage_ns.sum()) == (UNKNOWN, 0, 0)
    (group,) = gather([tmp_path]).sums.groups
    assert (group.calls_count, group.timed_count, group.total_ns, group.moved_bytes) == (1, 0, 0, 30)


def test_times_of_calls_in_one_group_with_planned_ones_are_not_those_of_all(tmp_path: Path) -> None:
    """A mean or a rate over calls of which some took no time."""
    made = Made(tmp_path, "model")
    for number in range(30):
        made.call("Matmul", [number * 1000, number * 1000 + 500], WAIT, sent=1, recv=1)
        made.call("Matmul", [0, 0], PLANNED, sent=10, recv=20)
    made.segment.close()
    (group,) = gather([tmp_path]).sums.groups
    sums = group.methods["Matmul"]
    assert (sums.calls_count, sums.timed_count, sums.planned_count) == (60, 30, 30)
    assert (sums.moved_bytes, sums.mib_per_s, sums.timed_ns) == (30 * 32, None, 15_000)
    assert np.isclose(sums.mean_bytes or 0.0, 16.0)


def test_nothing_is_left_of_a_trace_that_could_not_be_written(tmp_path: Path, no_space: None) -> None:
    with pytest.raises(StoreError, match=r"t-planned-0\.ipct: No space left on device; free blocks"):
        write_planned(tmp_path, "model", [("Matmul", 1, 2)])


def test_folders_of_a_trace_that_could_not_be_written_stay(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ipcbench.trace.record.planned.new_segment", full)
    with pytest.raises(StoreError, match="No space left"):
        write_planned(tmp_path / "one" / "two", "model", [("Matmul", 1, 2)])
    assert list(tmp_path.iterdir()) == []
    assert [*tmp_path.iterdir()] == []
