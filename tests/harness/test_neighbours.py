"""Busy neighbours: what others leave in a run, those that a sweep asks for, and how endpoints waited."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.summary import summarise
from ipcbench.processes.neighbours import busy_neighbours
from ipcbench.util.clock import run_queue_wait_ns
from tests.harness.small_runs import single, sound, tiny


@pytest.fixture
def busy_loops():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) + 2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.skipif(run_queue_wait_ns() is None, reason="the system does not report waits for a core")
@pytest.mark.usefixtures("busy_loops")
def test_every_trial_beside_busy_loops_is_stamped(tmp_path):
    sweep = tiny(backends=("shm", "pipe"), readers=1, modes=("paced", "saturate", "pingpong"), window_s=0.15)
    run = sound(sweep, tmp_path, stall_s=30.0)
    assert len(run.trials) == 8
    for trial in run.trials:
        label = f"{trial.spec.backend} {trial.spec.mode}: {trial.notes}"
        assert trial.conditions.others_cpu_ratio > 0.05, label
        waited = any(note.startswith("noisy: ") and note.endswith(" waiting for a core") for note in trial.notes)
        assert waited or trial.spec.mode == "paced", f"{label}; a light load may hardly wait"
        assert all(part.usage.run_queue_wait_s >= 0 for part in trial.endpoints), label


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_neighbours_are_busy_for_the_length_of_the_block():
    with busy_neighbours(2) as pids:
        assert len(set(pids)) == 2
        for pid in pids:
            start_s = psutil.Process(pid).cpu_times().user
            while psutil.Process(pid).cpu_times().user < start_s + 0.02:  # the test's time-out ends an idle one
                os.sched_yield()
    assert not any(map(psutil.pid_exists, pids))


def test_neighbours_end_after_an_error():
    with pytest.raises(ValueError, match="in the block"), busy_neighbours(1) as pids:
        raise ValueError("in the block")
    assert not psutil.pid_exists(pids[0])


_STARTER = """
import os, signal
from ipcbench.processes.neighbours import busy_neighbours
with busy_neighbours(2) as pids:
    print(*pids, flush=True)
    signal.pause()
"""


def test_neighbours_end_with_a_coordinator_that_is_killed():
    starter = subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE)
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    starter.kill()
    starter.communicate()
    while any(map(alive, pids)):  # the test's time-out ends one that goes on
        os.sched_yield()


def test_each_number_of_neighbours_is_a_setting_of_its_own(tmp_path):
    sweep = tiny(
        backends=("pipe",),
        readers=1,
        modes=("paced", "pingpong"),
        window_s=0.15,
        neighbours=(0, 1),
        control=True,
        rounds=3,
    )
    run = sound(sweep, tmp_path, stall_s=30.0)
    assert {(trial.spec.backend, trial.spec.mode, trial.spec.neighbours) for trial in run.trials} == {
        ("pipe", mode, count) for mode in ("paced", "pingpong") for count in (0, 1)
    }
    assert {trial.spec.neighbours for trial in run.controls} == {0}
    assert [setting.setting.neighbours for setting in summarise(run).settings] == [0, 1]
    shown = tables(run)
    assert ["beside 1 busy neighbour" in table.title for table in shown.payload_tables] == [False, True]
    for trial in run.trials:
        if trial.spec.neighbours:
            assert trial.conditions.probe_before_ns is None
            waiting = [note for note in trial.notes if "waiting for a core" in note]
            assert all(note.endswith("not only for the 1 neighbour asked for") for note in waiting)


def test_cpu_time_of_the_neighbours_asked_for_is_not_that_of_others(tmp_path):
    """Beside twice as many neighbours as cores, others would seem to take nearly all of the time."""
    sweep = tiny(readers=1, modes=("paced",), window_s=0.5, neighbours=(2 * (os.cpu_count() or 1),), rate_per_s=1000.0)
    _, trial = single(sweep, tmp_path)
    assert trial.conditions.others_cpu_ratio < 0.9


def test_what_the_endpoints_did_while_they_waited_is_stored(tmp_path):
    sweep = tiny(backends=("shm", "pipe"), readers=1, modes=("pingpong",), wait="block")
    run = sound(sweep, tmp_path)
    for trial in run.trials:
        for part in trial.endpoints:
            if trial.spec.backend == "pipe":
                assert part.usage.waits == "block"
            else:
                waits = part.usage.waits
                assert waits.yielded_count == 0
                assert 0 < waits.slept_count <= 2 * part.messages_count + 2
    spinning = sound(replace(sweep, backends=("shm",), wait="spin"), tmp_path).trials[0]
    assert all(part.usage.waits.slept_count == 0 for part in spinning.endpoints)
    assert all(part.usage.waits.spun_count > 0 for part in spinning.endpoints)
