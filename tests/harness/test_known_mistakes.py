"""Known mistakes of messaging benchmarks, each as a property that a real run must have.

docs/method.md says how the figures are made; test_faults.py has what goes wrong in delivery.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import numpy as np
import pytest

import ipcbench
from ipcbench.results.store import Run
from ipcbench.stats.decisions import verdict
from ipcbench.stats.estimates import Estimate, noise_ratio
from tests.harness.small_runs import raw, sound

SECRET = "a-token-that-nobody-may-see"
PAYLOAD_BYTES = 5000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A paced and a saturated trial whose readers read every byte."""
    sweep = raw(PAYLOAD_BYTES, modes=("paced", "saturate"), touch="all", rate_per_s=2000.0, window_s=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPCBENCH_TEST_TOKEN", SECRET)
        patch.setattr("ipcbench.harness.digest.KEPT_SAMPLES", 2**20)  # so that no column is thinned
        return sound(sweep, tmp_path_factory.mktemp("mistakes"))


def trial_of(run: Run, mode: str):
    return next(trial for trial in run.trials if trial.spec.mode == mode)


def test_endpoints_are_processes_and_not_threads(run):
    for trial in run.trials:
        pids = {endpoint.process_id for endpoint in trial.endpoints}
        assert len(pids) == 3
        assert os.getpid() not in pids


def test_every_reader_receives_and_not_the_first_alone(run):
    for trial in run.trials:
        assert [reader.messages_count for reader in trial.readers] == [trial.writer.messages_count] * 2


def test_no_latency_is_rounded_to_milliseconds_and_none_is_dropped(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    for reader in trial.readers:
        latency = columns[f"{reader.role}.latency_ns"]
        assert latency.size == reader.messages_count
        assert np.count_nonzero(latency % 1_000_000) > latency.size * 0.99


def test_percentiles_are_of_the_whole_window_and_not_of_its_end(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    for reader in trial.readers:
        assert reader.latency.count == reader.messages_count
        assert reader.latency.p50_ns == pytest.approx(np.quantile(columns[f"{reader.role}.latency_ns"], 0.5))


def test_throughput_is_of_received_messages_which_have_n_minus_1_intervals(run):
    """In each turn, and in all together."""
    trial = trial_of(run, "saturate")
    columns = run.samples(trial.trial_id)
    sequences = [columns[f"{reader.role}.sequence"] for reader in trial.readers]
    received = [columns[f"{reader.role}.received_ns"] for reader in trial.readers]
    assert {reader.sample_stride // reader.stamp_stride for reader in trial.readers} == {1}, (
        "all stamped ones are there"
    )
    counts, spans_s = [], []
    ends = np.cumsum(trial.turn_counts)
    for first, last in zip(ends - trial.turn_counts, ends - 1, strict=True):
        counts.append(sequences[0][last] - sequences[0][first])
        spans_s.append((max(part[last] for part in received) - min(part[first] for part in received)) / 1e9)
    assert trial.throughput_per_s == pytest.approx(sum(counts) / sum(spans_s), rel=1e-9)
    rates = [count / span for count, span in zip(counts, spans_s, strict=True)]
    assert trial.turn_rates_per_s == pytest.approx(rates if len(rates) > 1 else [])  # on a busy machine, one may be all


def test_a_broadcast_is_timed_at_every_reader_against_one_clock(run):
    trial = trial_of(run, "paced")
    columns = run.samples(trial.trial_id)
    intended = columns["writer.intended_ns"]
    assert abs(np.diff(intended) - 500_000).max() <= 1
    for reader in trial.readers:
        received = columns[f"{reader.role}.received_ns"]
        assert np.array_equal(columns[f"{reader.role}.latency_ns"], received - intended)
        assert (received > intended).all()


def test_no_duration_is_taken_from_a_clock_that_can_be_set():
    """`time.time` is only for the date of a run or a file; no module of the hot path uses it."""
    package = Path(ipcbench.__file__).parent
    hot = [package / "harness" / f"{name}.py" for name in ("loops", "reading", "writing", "pingpong", "floor")]
    for path in [*(package / "backends").rglob("*.py"), *hot, package / "util" / "clock.py"]:
        names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))}
        assert names.isdisjoint({"time.time", "time.time_ns", "datetime.now"}), path.name


def test_a_message_has_the_size_that_was_asked_for(run):
    for trial in run.trials:
        assert trial.spec.size == trial.spec.payload_bytes == PAYLOAD_BYTES
        assert all(reader.integrity.hashed_count > 0 for reader in trial.readers)


def test_without_enough_rounds_nothing_is_significant():
    a, b = (Estimate(value, np.zeros(2), 0.0, 1.0, 2, {"0": np.log([value])}) for value in (1.0, 2.0))
    assert verdict(b, a) == "no clear difference"
    assert noise_ratio([[a, b]]) is None


def test_the_environment_is_not_stored(run):
    stored = [path.read_bytes() for path in run.path.rglob("*") if path.is_file()]
    assert stored
    assert all(SECRET.encode() not in content and b"IPCBENCH_TEST_TOKEN" not in content for content in stored)


def test_messages_are_checked_in_the_window_that_is_timed(run):
    for trial in run.trials:
        for reader in trial.readers:
            assert reader.integrity.received_count - reader.warmup_count >= reader.messages_count > 0
            assert reader.integrity.errors_count == 0
            assert reader.integrity.hashed_count > reader.warmup_count
