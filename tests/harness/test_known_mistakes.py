"""Mistakes that other benchmarks of messages are known for, each as a property that a real run of ours must have.

docs/method.md says how the figures are made; what is found to go wrong in a message is in test_faults.py.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import numpy as np
import pytest

import ipcbench
from ipcbench.results.store import Run
from ipcbench.stats.decisions import compare
from ipcbench.stats.estimates import Interval, noise_floor_ratio
from tests.harness.small_runs import measure, tiny

SECRET = "a-token-that-nobody-may-see"
PAYLOAD_BYTES = 5000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A paced and a saturated trial whose readers read every byte."""
    sweep = tiny(
        modes=("paced", "saturate"),
        payload="bytes",
        codec="raw",
        sizes=(PAYLOAD_BYTES,),
        touch="all",
        rate_per_s=2000.0,
        window_s=0.1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPCBENCH_TEST_TOKEN", SECRET)
        found, _ = measure(sweep, tmp_path_factory.mktemp("mistakes"))
    assert [one.status for one in found.trials] == ["ok", "ok"]
    return found


def trial_of(run: Run, mode: str):
    return next(one for one in run.trials if one.spec.mode == mode)


def test_endpoints_are_processes_and_not_threads(run):
    for trial in run.trials:
        numbers = {one.process_id for one in trial.endpoints}
        assert len(numbers) == 3
        assert os.getpid() not in numbers


def test_every_reader_receives_and_not_the_first_alone(run):
    for trial in run.trials:
        assert [one.messages_count for one in trial.readers] == [trial.writer.messages_count] * 2


def test_no_latency_is_rounded_to_milliseconds_and_none_is_dropped(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    for one in trial.readers:
        latency = columns[f"{one.role}.latency_ns"]
        assert latency.size == one.messages_count
        assert np.count_nonzero(latency % 1_000_000) > latency.size * 0.99


def test_percentiles_are_of_the_whole_window_and_not_of_its_end(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    for one in trial.readers:
        assert one.latency.count == one.messages_count
        assert one.latency.p50_ns == pytest.approx(np.quantile(columns[f"{one.role}.latency_ns"], 0.5))


def test_throughput_is_what_readers_have_received_and_not_what_was_handed_over(run):
    trial = trial_of(run, "saturate")
    received_s = (max(one.last_ns for one in trial.readers) - min(one.first_ns for one in trial.readers)) / 1e9
    assert trial.throughput_per_s == pytest.approx((trial.writer.messages_count - 1) / received_s)


def test_n_messages_have_n_minus_1_intervals(run):
    trial = trial_of(run, "saturate")
    received_s = (max(one.last_ns for one in trial.readers) - min(one.first_ns for one in trial.readers)) / 1e9
    assert trial.throughput_per_s < trial.writer.messages_count / received_s


def test_a_broadcast_is_timed_at_every_reader_against_one_clock(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    for one in trial.readers:
        received, intended = columns[f"{one.role}.received_ns"], columns["writer.intended_ns"]
        assert np.array_equal(columns[f"{one.role}.latency_ns"], received - intended)
        assert (received > intended).all()


def test_no_duration_is_taken_from_a_clock_that_can_be_set():
    """`time.time` is for the date of a run or a file alone; no module of the hot path has it."""
    package = Path(ipcbench.__file__).parent
    for path in [*(package / "backends").glob("*.py"), *(package / "harness").glob("*loops.py"), package / "clock.py"]:
        names = {ast.unparse(one) for one in ast.walk(ast.parse(path.read_text(encoding="utf-8")))}
        assert names.isdisjoint({"time.time", "time.time_ns", "datetime.now"}), path.name


def test_a_message_is_as_long_as_was_asked_for_and_said(run):
    for trial in run.trials:
        assert trial.spec.size == trial.spec.payload_bytes == PAYLOAD_BYTES
        assert all(one.integrity.hashed_count > 0 for one in trial.readers)


def test_what_cannot_be_tested_is_not_significant():
    assert compare(Interval(1.5, 0.0, float("inf")), 0.0) == "no clear difference"
    assert noise_floor_ratio([(1.0,), (2.0,)]) is None


def test_the_environment_is_not_stored(run):
    stored = [one.read_bytes() for one in run.path.rglob("*") if one.is_file()]
    assert stored
    assert all(SECRET.encode() not in one and b"IPCBENCH_TEST_TOKEN" not in one for one in stored)


def test_messages_are_checked_in_the_very_window_that_is_timed(run):
    for trial in run.trials:
        for one in trial.readers:
            assert one.integrity.received_count - one.warmup_count >= one.messages_count > 0
            assert one.integrity.errors_count == 0
            assert one.integrity.hashed_count > one.warmup_count
