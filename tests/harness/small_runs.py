"""Runs of about a second, for the tests of the harness."""

from __future__ import annotations

from pathlib import Path

from ipcbench.harness.sweep import Progress, run_sweep
from ipcbench.spec import SweepSpec
from ipcbench.store import Run, load_run


def tiny(**changes) -> SweepSpec:
    """Return a sweep that takes about a second."""
    plain = {
        "backends": ("shm",),
        "readers": 2,
        "sizes": (10,),
        "modes": ("saturate",),
        "rounds": 1,
        "warmup_s": 0.01,
        "window_s": 0.05,
        "control": False,
    }
    return SweepSpec(**{**plain, **changes})


def measure(sweep: SweepSpec, folder: Path, stall_s: float = 5.0) -> tuple[Run, list[Progress]]:
    """Run the sweep and return the stored run and what was told meanwhile."""
    told: list[Progress] = []
    return load_run(run_sweep(sweep, folder, on_progress=told.append, stall_s=stall_s)), told
