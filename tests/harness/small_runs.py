"""Runs of about a second, for the tests of the harness."""

from __future__ import annotations

from pathlib import Path

from ipcbench.harness.sweep import Progress, run_sweep
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run, load_run
from ipcbench.spec import SweepSpec

FATAL = [
    ("KilledReader", ["reader-", "killed by signal 9"]),
    ("KilledWriter", ["writer", "killed by signal 9"]),
    ("KilledParent", ["the parent of the endpoints' processes", "killed by signal 15"]),
    ("RaisingReader", ["reader-", "ValueError: a bug in the backend (broken.py:"]),
    ("HangingReader", ["writer: TransportTimeout", "waiting for reader 0, 1"]),
    ("DiesAtStart", ["writer", "exit code 1", "no licence for this transport"]),
]
"""Broken backends of which a process dies or hangs, and words of the reason that their trials give."""


def tiny(**changes) -> SweepSpec:
    """Return a sweep that takes about a second."""
    plain = {
        "backends": ("shm",),
        "readers": 2,
        "sizes": (10,),
        "modes": ("saturate",),
        "rounds": 1,
        "control": False,
        "look": False,
    }
    return SweepSpec(**{**plain, "warmup_s": 0.01, "window_s": 0.05, **changes})


def raw(*sizes: int, **changes) -> SweepSpec:
    """Return such a sweep of bytes that nothing decodes."""
    return tiny(payload="bytes", codec="raw", sizes=sizes, **changes)


def measure(sweep: SweepSpec, folder: Path, stall_s: float = 5.0) -> tuple[Run, list[Progress]]:
    """Run the sweep and return the stored run and what was told meanwhile."""
    told: list[Progress] = []
    return load_run(run_sweep(sweep, folder, on_progress=told.append, stall_s=stall_s)), told


def sound(sweep: SweepSpec, folder: Path, stall_s: float = 5.0) -> Run:
    """Run the sweep, require that all went well, and return the stored run."""
    run, _ = measure(sweep, folder, stall_s)
    bad = [(*trial.spec.cell, trial.reason) for trial in run.trials + run.controls if trial.status != "ok"]
    assert not bad, bad  # pytest rewrites no assertion of this module
    return run


def single(sweep: SweepSpec, folder: Path) -> tuple[Run, TrialResult]:
    """Return a sound run of one trial, but for one for the tail, and the trial."""
    run = sound(sweep, folder)
    (trial,) = [trial for trial in run.trials if not trial.spec.tail]
    return run, trial


def failure(sweep: SweepSpec, folder: Path, stall_s: float = 1.0) -> TrialResult:
    """Return the trial of a run of one, but for one for the tail, which must fail."""
    (trial,) = [trial for trial in measure(sweep, folder, stall_s)[0].trials if not trial.spec.tail]
    assert trial.status == "failed"
    return trial
