"""Queues and fan-in on real processes: every message once, figures, a worker killed on purpose, and what goes wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ipcbench.analysis.patterns.cells import pattern_cells
from ipcbench.errors import IntegrityError
from ipcbench.harness.patterns.calls import Calling
from ipcbench.harness.sweep import run_sweep
from ipcbench.results.model import TrialResult
from ipcbench.results.store import INFO_FILE, Run, RunWriter, load_run
from ipcbench.spec import SweepSpec
from tests.harness.small_runs import measure, raw


def tiny_pattern(pattern: str, **changes) -> SweepSpec:
    """Return a sweep of a queue or fan-in with two peers, whose trials take a few hundredths of a second."""
    window_s = 0.03 if pattern == "queue" else 0.1  # all writers must be at it at once
    plain = {"name": pattern, "pattern": pattern, "peers": (2,), "loads": (0.5,), "window_s": window_s, "readers": 1}
    return raw(64, **{**plain, **changes})


def sound_trials(run: Run) -> tuple[TrialResult, ...]:
    assert [(trial.spec.backend, trial.reason) for trial in run.pattern_trials if trial.status != "ok"] == []
    assert run.trials == run.controls == ()
    return run.pattern_trials


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq", "null"])
def test_a_queue_works_on_every_task_once_and_survives_a_kill(tmp_path, name: str):
    run, told = measure(tiny_pattern("queue", backends=(name,), peers=(1, 2)), tmp_path)
    *plain, last = sound_trials(run)
    assert [trial.spec.peers for trial in run.pattern_trials if not trial.spec.kill] in ([1, 2], [2, 1])
    for trial in plain:
        flat_out, paced = trial.windows
        assert flat_out.rate_per_s == trial.throughput_per_s > 0
        assert len(flat_out.peer_counts) == trial.spec.readers
        assert paced.offered_per_s == pytest.approx(0.5 * flat_out.rate_per_s)
        assert paced.wait.count > 0
        assert 0 < paced.wait.p50_ns <= paced.wait.p99_ns
        assert [end.role for end in trial.endpoints] == ["writer", *(f"worker-{i}" for i in range(trial.spec.readers))]
    if name == "null":  # all in one process
        assert not last.spec.kill
        return
    assert last.spec.kill, "after it, the processes are started anew"
    assert last.recovery.lost_count == 0
    assert last.recovery.redelivered_count >= 1
    assert last.recovery.repeated_count >= 1, "the task at which the worker died"
    assert "worker-0" not in {end.role for end in last.endpoints}
    assert told[-1].warning == ""


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq", "null"])
def test_a_fan_in_gets_every_message_once(tmp_path, name: str):
    run, _ = measure(tiny_pattern("fan_in", backends=(name,), peers=(1, 3)), tmp_path)
    for trial in sound_trials(run):
        flat_out, paced = trial.windows
        assert len(flat_out.peer_counts) == trial.spec.writers
        assert sum(flat_out.peer_counts) == pytest.approx(flat_out.rate_per_s * trial.spec.window_s / trial.spec.turns)
        assert paced.offered_per_s == pytest.approx(0.5 * flat_out.rate_per_s)
        assert paced.rate_per_s <= 1.001 * paced.offered_per_s
        assert paced.wait.count > 0
        assert [end.role for end in trial.endpoints] == ["reader", *(f"writer-{i}" for i in range(trial.spec.writers))]


@pytest.mark.parametrize("pattern", ["queue", "fan_in"])
def test_batches_go_together(tmp_path, pattern: str):
    run, _ = measure(tiny_pattern(pattern, backends=("shm", "pipe"), batches=(1, 16)), tmp_path)
    trials = [trial for trial in sound_trials(run) if not trial.spec.kill]
    assert sorted((trial.spec.backend, trial.spec.batch) for trial in trials) == [
        *(("pipe", 1), ("pipe", 16)),
        *(("shm", 1), ("shm", 16)),
    ]
    for trial in trials:
        if trial.spec.batch > 1:
            assert trial.windows[1].wait.count % trial.spec.batch == 0
    assert {cell.setting.batch for cell in pattern_cells(run)} == {1, 16}


def test_a_window_into_which_few_batches_fit_is_longer(tmp_path):
    """A rate counts whole batches: of one or two in a window, nobody could tell it."""
    sweep = raw(2**18, name="queue", pattern="queue", backends=("pipe",), peers=(1,), batches=(64,), loads=(0.5,),
                window_s=0.01, readers=1)  # fmt: skip
    run, _ = measure(sweep, tmp_path)
    (trial,) = sound_trials(run)
    flat_out, paced = trial.windows
    assert sum(flat_out.peer_counts) >= 20 * 64
    assert sum(paced.peer_counts) >= 9 * 64, "as long"
    assert paced.offered_per_s == pytest.approx(0.5 * flat_out.rate_per_s)


def test_a_backend_without_the_pattern_says_so_and_the_others_go_on(tmp_path):
    run, told = measure(tiny_pattern("queue", backends=("shm", "mpi")), tmp_path)
    sound_trials(run)
    assert "does not offer pattern queue" in run.info.skipped["mpi"]
    assert any(progress.warning.startswith("mpi is left out") for progress in told)
    assert [cell.status for cell in pattern_cells(run)] == ["ok", "skipped"]


FAULTS = [
    ("queue", "KilledReader", ["worker-", "killed by signal 9"]),
    ("queue", "KilledWriter", ["writer", "killed by signal 9"]),
    ("queue", "RaisingReader", ["worker-", "a bug in the backend"]),
    ("queue", "HangingReader", ["writer", "TransportTimeout"]),
    ("queue", "LosingWriter", ["1 lost"]),
    ("queue", "DuplicatingWriter", ["1 duplicated"]),
    ("queue", "TearingReader", ["[12] torn"]),
    ("fan_in", "KilledReader", ["reader", "killed by signal 9"]),
    ("fan_in", "KilledWriter", ["writer-", "killed by signal 9"]),
    ("fan_in", "LosingWriter", ["[12] lost"]),
    ("fan_in", "TearingReader", ["1 torn"]),
]


@pytest.mark.usefixtures("broken_on_path")
@pytest.mark.parametrize(("pattern", "name", "words"), FAULTS)
def test_what_goes_wrong_fails_the_trial_with_its_reason(tmp_path, pattern: str, name: str, words: list[str]):
    sweep = tiny_pattern(pattern, backends=(f"broken:{name}",), window_s=0.05)
    run, _ = measure(sweep, tmp_path, stall_s=2.0)
    trial = next(trial for trial in run.pattern_trials if not trial.spec.kill)
    assert trial.status == "failed"
    assert [word for word in words if not re.search(word, trial.reason)] == [], trial.reason
    assert pattern_cells(run)[0].status == "failed"


def test_an_interrupted_run_keeps_its_trials_and_goes_on(tmp_path, monkeypatch):
    sweep = tiny_pattern("queue", backends=("shm", "pipe"), rounds=2)
    append = RunWriter.append

    def interrupted(self, result, samples=None) -> None:
        append(self, result, samples)
        if result.trial_id == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunWriter, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path)
    monkeypatch.setattr(RunWriter, "append", append)
    (folder,) = (path.parent for path in tmp_path.glob(f"*/{INFO_FILE}"))
    before = load_run(folder)
    assert before.info.status == "interrupted"
    assert pattern_cells(before)
    run_sweep(sweep, tmp_path, resume=folder)
    run = load_run(folder)
    assert run.info.status == "complete"
    assert run.pattern_trials[: len(before.pattern_trials)] == before.pattern_trials
    specs = [replace(trial.spec, turns=1) for trial in sound_trials(run)]
    assert len(specs) == len(set(specs)) == 8, "two rounds, two backends, one plain trial and one with a kill"


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq"])
def test_calls_are_measured_beside_plain_round_trips(tmp_path, name: str):
    run, _ = measure(tiny_pattern("rpc", backends=(name,), peers=(2,), reply_sizes=(5000,)), tmp_path)
    (trial,) = sound_trials(run)
    assert [end.role for end in trial.endpoints] == ["server", "client-0", "client-1"]
    flat_out, paced = trial.windows
    assert flat_out.rate_per_s == trial.throughput_per_s > 0
    assert len(flat_out.peer_counts) == 2
    assert flat_out.wait.p50_ns > 0, "each call is timed, also flat out"
    assert paced.offered_per_s > 0
    assert paced.wait.count > 0
    assert trial.cost.plain.count > 0
    assert trial.cost.call.p50_ns > trial.cost.plain.p50_ns * 0.5
    (cell,) = pattern_cells(run)
    assert (cell.setting.peers, cell.setting.in_flight, cell.setting.reply_bytes) == (2, 1, 5000)


def test_several_calls_in_flight_and_work_in_the_method(tmp_path):
    sweep = tiny_pattern("rpc", backends=("shm",), peers=(1,), in_flight=(1, 4), services_s=(0.001,), window_s=0.1)
    run, _ = measure(sweep, tmp_path)
    one, four = sorted(sound_trials(run), key=lambda trial: trial.spec.in_flight)
    for trial in (one, four):
        assert trial.throughput_per_s < 1000, "the method works for a millisecond"
        assert trial.cost.plain.p50_ns >= 1e6, "and so it does between plain messages"
    assert four.windows[0].wait.p50_ns > 2 * one.windows[0].wait.p50_ns, "those in flight wait for each other"


@pytest.mark.usefixtures("broken_on_path")
def test_a_process_of_rpc_that_dies_fails_its_trial(tmp_path):
    run, _ = measure(tiny_pattern("rpc", backends=("broken:DiesAtStart",), peers=(1,)), tmp_path, stall_s=2.0)
    (trial,) = run.pattern_trials
    assert (trial.status, pattern_cells(run)[0].status) == ("failed", "failed")
    assert re.search("server|client-0", trial.reason)


@pytest.mark.parametrize("result", [(2, b"abc"), (1, b"ab")])
def test_the_result_of_another_call_is_found(result: tuple[int, bytes]):
    client = Calling.__new__(Calling)
    client._reply_bytes = 3
    with pytest.raises(IntegrityError, match="the result of call 1"):
        client._check(1, result)


def test_a_backend_that_rpc_cannot_use_says_so(tmp_path):
    run, _ = measure(tiny_pattern("rpc", backends=("shm", "mpi"), peers=(1,)), tmp_path)
    sound_trials(run)
    assert run.info.skipped["mpi"].startswith("rpc takes")
    assert [cell.status for cell in pattern_cells(run)] == ["ok", "skipped"]
