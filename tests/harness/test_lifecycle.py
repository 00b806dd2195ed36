"""A run is killed, interrupted, crowded or starved: it keeps what it measured and leaves nothing on the host."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from ipcbench.processes.cleanup import find
from ipcbench.results.store import load_run

LIMIT_S = 60
LONG_RUN = (
    "run", "--backends", "shm,pipe", "--readers", "2", "--sizes", "10,20", "--mode", "saturate", "--rounds", "200",
    "--budget", "600s", "--window", "50ms", "--warmup", "10ms",
)  # fmt: skip
SHORT_RUN = (*LONG_RUN, "--rounds", "1")


@pytest.fixture
def start():
    """Start the command; at the end of the test, kill what still runs."""
    with ExitStack() as started:

        def begin(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
            process = started.enter_context(
                subprocess.Popen(
                    [*prefix, sys.executable, "-m", "ipcbench", *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            started.callback(process.kill)
            return process

        yield begin


def wait_for_trials(process: subprocess.Popen[str], count: int) -> None:
    """Read the run's progress until `count` trials have ended."""
    while count:
        line = process.stderr.readline()
        assert line, "the run ended before it had measured that much"
        count -= bool(re.match(r"\[ *\d+/\d+\] round", line))


def family(process: subprocess.Popen[str]) -> tuple[str, list[psutil.Process]]:
    """Return the token of a run and all its processes but the coordinator."""
    members = psutil.Process(process.pid).children(recursive=True)
    lines = []
    for member in members:
        with suppress(psutil.NoSuchProcess):  # some end while the run goes on
            lines.append(" ".join(member.cmdline()))
    return re.search(r"ipcb-[0-9a-f]{8}", " ".join(lines))[0], members


def assert_gone(token: str, members: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(members, timeout=LIMIT_S)
    assert alive == []
    assert find(token) == []


@pytest.mark.parametrize("backends", ["shm,pipe", "mpi-buffer"])
def test_a_killed_coordinator_leaves_no_process_and_no_file_and_its_trials_can_be_resumed(backends, tmp_path, start):
    if "mpi" in backends:
        pytest.importorskip("mpi4py")
    process = start(*LONG_RUN, "--backends", backends, "--out", str(tmp_path / "run"))
    wait_for_trials(process, 3)
    token, members = family(process)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert_gone(token, members)
    run = load_run(tmp_path / "run")
    assert len(run.trials + run.controls) >= 3
    assert run.info.status == "running"


def test_an_interrupted_run_keeps_its_trials_and_says_how_to_resume(tmp_path, start):
    process = start(*LONG_RUN, "--out", str(tmp_path / "run"))
    wait_for_trials(process, 3)
    token, members = family(process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert_gone(token, members)
    assert load_run(tmp_path / "run").info.status == "interrupted"


def test_two_runs_at_once_do_not_meet(tmp_path, start):
    both = [start(*SHORT_RUN, "--out", str(tmp_path / name)) for name in ("a", "b")]
    for process in both:
        _, stderr = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, stderr
    for name in ("a", "b"):
        assert [trial.status for trial in load_run(tmp_path / name).trials] == ["ok"] * 4


def test_a_full_dev_shm_fails_the_trials_that_need_it_and_no_other(tmp_path, start):
    """In a mount namespace of its own, /dev/shm is made too small for the larger of two messages."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1) to give a process a small /dev/shm of its own")
    mount = 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", mount, "sh")
    sweep = ("run", "--backends", "shm,pipe", "--readers", "1", "--payload", "bytes", "--codec", "raw", "--mode",
             "saturate", "--sizes", "64,1MiB", "--rounds", "1", "--window", "50ms")  # fmt: skip
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    process = start(*sweep, "--out", str(tmp_path / "run"), prefix=prefix)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    trials = {(trial.spec.backend, trial.spec.size): trial for trial in load_run(tmp_path / "run").trials}
    full = trials.pop(("shm", 2**20))
    assert [trial.status for trial in trials.values()] == ["ok"] * 3
    assert full.status == "failed"
    assert "/dev/shm" in full.reason


def test_trials_are_on_disk_as_they_end(tmp_path, start):
    process = start(*LONG_RUN, "--out", str(tmp_path / "run"))
    wait_for_trials(process, 2)
    lines = Path(tmp_path / "run" / "trials.jsonl").read_text().splitlines()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert len(lines) >= 2
    assert all(json.loads(line)["status"] == "ok" for line in lines[:2])
