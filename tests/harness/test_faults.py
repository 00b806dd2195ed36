"""Whatever breaks during a trial: that trial fails with its reason, the rest is measured, and nothing is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from ipcbench.analysis.summary.summary import summarise
from ipcbench.harness.trial import Trial
from ipcbench.processes.cleanup import SHM_FOLDER, kill_launched
from ipcbench.processes.launch import MPIEXEC_VARIABLE, launch
from ipcbench.processes.run_dir import RunDir
from ipcbench.processes.worker import LAUNCH_VARIABLE
from ipcbench.spec import SweepSpec
from ipcbench.testing.agents.client import until
from ipcbench.testing.faults.stalled import stalled_name, tail_ns
from tests.harness.small_runs import FATAL, failure, measure, sound, tiny

pytestmark = pytest.mark.usefixtures("broken_on_path")


def one_broken(name: str, folder, stall_s: float = 1.0, module: str = "broken", **changes):
    """Measure a broken backend beside a sound one; return its trial, which must fail while the other is ok."""
    run, told = measure(tiny(backends=("shm", f"{module}:{name}"), **changes), folder, stall_s)
    by_backend = {trial.spec.backend: trial for trial in run.trials if not trial.spec.tail}
    assert len(by_backend) == len([trial for trial in run.trials if not trial.spec.tail]) == 2
    assert by_backend["shm"].status == "ok", by_backend["shm"].reason
    assert run.info.status == "complete"
    assert by_backend[f"{module}:{name}"].status == "failed"
    return by_backend[f"{module}:{name}"], told


@pytest.mark.parametrize(("name", "words"), FATAL)
def test_a_process_that_dies_or_hangs_fails_its_trial_alone(name, words, tmp_path):
    trial, told = one_broken(name, tmp_path)
    assert [word for word in words if word not in trial.reason] == []
    assert any(trial.reason in progress.warning for progress in told)


def test_a_backend_that_hangs_on_opening_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("ipcbench.harness.trial._ANSWER_S", 3.0)
    trial, _ = one_broken("HangsOnOpen", tmp_path)
    assert "did not answer 'open' within 3 s" in trial.reason


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("LosingWriter", "1 lost, 0 duplicated, 0 reordered, 0 torn"),
        ("DuplicatingWriter", "0 lost, 1 duplicated, 0 reordered, 0 torn"),
        ("SwappingWriter", "0 lost, 0 duplicated, 1 reordered, 0 torn"),
        ("TearingReader", "0 lost, 0 duplicated, 0 reordered, 1 torn"),
    ],
)
def test_messages_that_go_wrong_are_counted_and_fail_the_trial(name, count, tmp_path):
    trial, _ = one_broken(name, tmp_path)
    assert count in trial.reason
    assert trial.endpoints, "the record keeps what was measured"


def test_a_wrong_body_in_a_whole_message_is_found_by_hashing(tmp_path):
    trial, _ = one_broken("BitFlippingReader", tmp_path)
    assert " torn" in trial.reason
    assert " 0 torn" not in trial.reason


def test_a_stall_shows_in_p99_as_the_theory_says_and_a_closed_loop_hides_it(tmp_path):
    """A stall of S in a window of T delays the share S/T of an open loop's messages, evenly from S down to 0."""
    stall_s, window_s = 0.2, 1.0
    sweep = tiny(backends=("broken:StallingReader",), readers=1, modes=("paced", "pingpong"), rate_per_s=1000.0)
    run = sound(replace(sweep, window_s=window_s), tmp_path)
    paced, pingpong = sorted(run.trials, key=lambda trial: trial.spec.mode)
    expected_ns = stall_s * (1 - 0.01 * window_s / stall_s) * 1e9
    (reader,) = paced.readers
    assert reader.latency.p99_ns == pytest.approx(expected_ns, rel=0.15)
    assert pingpong.writer.round_trip.max_ns > stall_s * 1e9
    assert pingpong.writer.round_trip.p99_ns < expected_ns / 5


def test_a_stall_shows_in_paced_round_trips_as_the_theory_says(tmp_path):
    stall_s, window_s = 2 * 0.2, 1.0  # the reader of the replies stalls, too, at the same message
    sweep = tiny(backends=("broken:StallingReader",), readers=1, modes=("pingpong",), rate_per_s=1000.0)
    run = sound(replace(sweep, window_s=window_s, trips="paced"), tmp_path)
    (trial,) = run.trials
    expected_ns = stall_s * (1 - 0.01 * window_s / stall_s) * 1e9
    assert trial.writer.round_trip.p99_ns == pytest.approx(expected_ns, rel=0.15)
    assert trial.writer.round_trip.count == 1000, "an open loop has as many whatever happens"


@pytest.mark.parametrize("side", ["writer", "reader"])
def test_the_default_paced_trials_show_a_stall_as_the_theory_says(side, tmp_path):
    """The stalls are long, so that a busy machine's own do not hide them."""
    name = stalled_name("shm", side, stall_ms=200, every=400)
    sweep = SweepSpec(backends=("shm", name), readers=1, sizes=(10,), modes=("paced",), rounds=1, control=False)
    run = sound(sweep, tmp_path)
    stalling = [trial for trial in run.trials if trial.spec.backend == name]
    (tail,) = [trial for trial in stalling if trial.spec.tail]
    (latency,) = run.samples(tail.trial_id, (".latency_ns",)).values()
    for share in (0.95, 0.99):
        assert np.quantile(latency, share) == pytest.approx(tail_ns(share, 200, 400), rel=0.15)
    (setting,) = summarise(run).settings
    (cell,) = [cell for cell in setting.cells if cell.backend == name]
    assert cell.latency_p50_ns.estimate < 20e6, "the median comes from the turns"


def test_a_rate_that_cannot_be_held_fails_with_the_rate_that_was(tmp_path):
    trial = failure(tiny(modes=("paced",), sizes=(1000,), rate_per_s=1e6), tmp_path, stall_s=30.0)
    assert "rate was not held" in trial.reason
    assert trial.achieved_rate_per_s < 1e6


def test_a_rate_that_a_slow_write_cannot_hold_fails_in_turns_too(tmp_path):
    trial, _ = one_broken("SlowWriter", tmp_path, modes=("paced",), window_s=0.15)
    assert trial.spec.turns > 1
    held_per_s, offered_per_s = re.search(
        r"rate was not held: ([\d.e+]+) of ([\d.e+]+) messages/s", trial.reason
    ).groups()
    assert float(held_per_s) < float(offered_per_s) / 2


def test_a_stall_too_late_to_catch_up_is_a_mark_and_no_failure(tmp_path):
    sweep = tiny(backends=("broken:LateStallingWriter",), readers=1, modes=("paced",), rate_per_s=1000.0)
    (trial,) = sound(replace(sweep, window_s=0.15), tmp_path).trials
    (mark,) = [note for note in trial.notes if note.startswith("ended behind its schedule after a stall: ")]
    assert float(mark.split()[-2]) > 150, "ms: of 200 ms, ten messages later"
    assert max(reader.latency.max_ns for reader in trial.readers) > 0.2e9, "the stall stays in the latencies"


def test_a_rate_that_is_far_too_high_is_named(tmp_path):
    trial = failure(tiny(modes=("paced",), sizes=(10_000,), rate_per_s=1_000_000.0), tmp_path)
    assert "cannot sustain 1,000,000 messages/s" in trial.reason


def test_a_stale_segment_of_the_same_name_fails_one_trial_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDir, "channel_name", lambda run_dir: f"{run_dir.token}-stale")
    stale = []
    open_ = Trial.open

    def open_with_stale_segment(trial_run, *arguments):
        path = SHM_FOLDER / trial_run._run_dir.channel_name()
        if stale:
            open_(trial_run, *arguments)
            return
        path.write_bytes(bytes(64))
        stale.append(path)
        open_(trial_run, *arguments)
        path.unlink(missing_ok=True)

    monkeypatch.setattr(Trial, "open", open_with_stale_segment)
    run, _ = measure(tiny(sizes=(10, 20)), tmp_path)
    assert sorted(trial.status for trial in run.trials) == ["failed", "ok"]
    assert any("exists already" in trial.reason for trial in run.trials)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("KillsMpiexec", r"is gone: mpiexec was killed by signal 9"),
        ("KillsProxy", r"is gone: mpiexec ended with exit code \d+"),
        ("KilledRank", r"is gone: mpiexec ended with exit code \d+; last words: .*Killed"),
        ("KilledInStart", r"is gone: mpiexec ended with exit code \d+; last words: .*Killed"),
    ],
)
def test_an_mpi_launch_that_loses_a_process_says_so_and_leaves_no_segment(name, words, tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    if name == "KillsProxy":
        monkeypatch.setenv(MPIEXEC_VARIABLE, str(Path(sys.executable).with_name("mpiexec.hydra")))
    before = set(SHM_FOLDER.iterdir())
    trial, _ = one_broken(name, tmp_path, module="broken_mpi", window_s=0.3)
    assert re.search(words, trial.reason)
    assert not {path.name for path in set(SHM_FOLDER.iterdir()) - before if "shm" in path.name}


def test_only_processes_that_bear_its_token_are_killed_with_a_launch():
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(waits, **pipes) as bystander:
        with subprocess.Popen(waits, env={**os.environ, LAUNCH_VARIABLE: "ours"}, **pipes) as ours:
            assert ours.stdout.readline() == bystander.stdout.readline() == b"\n"
            kill_launched("ours")
            assert not psutil.pid_exists(ours.pid)
        assert bystander.poll() is None
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_ranks_that_outlive_their_launcher_join_no_later_launch(tmp_path, monkeypatch):
    """They reported to the coordinator while the next group started, which then had one worker too many, and so on."""
    pytest.importorskip("mpi4py")
    killed = []

    def launch_and_kill(*arguments, **options):
        made = launch(*arguments, **options)
        if made.launcher == "mpiexec" and len(killed) < 2:  # a start is tried twice
            (mpiexec,) = made.started
            assert until(lambda: psutil.Process(mpiexec.pid).children(), 60.0)
            mpiexec.kill()
            mpiexec.wait()
            killed.append(mpiexec.pid)
        return made

    monkeypatch.setattr("ipcbench.harness.group.launch", launch_and_kill)
    sweep = tiny(backends=("mpi-buffer", "shm"), readers=1, rounds=3)
    run, _ = measure(sweep, tmp_path)
    assert [trial.spec.backend for trial in run.trials if trial.status != "ok"] == ["mpi-buffer"]
