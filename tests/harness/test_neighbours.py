"""What busy neighbours leave in a run: a stamp on every trial, and no trial fails for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ipcbench.machine.usage import run_queue_wait_s
from tests.harness.small_runs import sound, tiny


@pytest.fixture
def busy_loops():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) + 2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.skipif(run_queue_wait_s() is None, reason="the system does not report waits for a core")
@pytest.mark.usefixtures("busy_loops")
def test_every_trial_beside_busy_loops_is_stamped(tmp_path):
    sweep = tiny(backends=("shm", "pipe"), readers=1, modes=("paced", "saturate", "pingpong"), window_s=0.15)
    run = sound(sweep, tmp_path, stall_s=30.0)
    assert len(run.trials) == 8
    for trial in run.trials:
        label = f"{trial.spec.backend} {trial.spec.mode}: {trial.notes}"
        assert trial.conditions.others_cpu_ratio > 0.05, label
        assert any(note.startswith("noisy: ") and note.endswith(" waiting for a core") for note in trial.notes), label
        assert all(part.usage.run_queue_wait_s >= 0 for part in trial.endpoints), label
