"""A run of which a process is killed at a named point: before the n-th call of one kind, on a file or a socket.

The calls that go to other processes are the steps of a trial: each question of the coordinator and each answer.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ipcbench.spec import NAME_PREFIX
from tests.end_to_end.private_run import PrivateRuns
from tests.end_to_end.shell import TINY

Step = tuple[str, str, str]
"""Who is killed, at which call, and a part of the file's path or `socket`."""
KILL = -1
COORDINATOR, WRITER, READER = "ipcbench run", "--index 0", "--index 1"
STEPS = [
    (COORDINATOR, "write", "socket"),
    *((COORDINATOR, call, "results/") for call in ("mkdir", "open", "write", "fsync", "rename")),
    *((COORDINATOR, call, NAME_PREFIX) for call in ("mkdir", "open", "flock", "ftruncate", "mmap", "unlink")),
    *((worker, "write", "socket") for worker in (WRITER, READER)),
    *((worker, call, NAME_PREFIX) for worker in (WRITER, READER) for call in ("open", "mmap", "flock")),
]
SOME = [
    ((COORDINATOR, "write", "socket"), 7),
    ((COORDINATOR, "rename", "results/"), 2),
    ((WRITER, "write", "socket"), 5),
    ((READER, "mmap", NAME_PREFIX), 1),
]
"""What is tried without the mark `soak`."""


def kill_at(runs: PrivateRuns, backend: str, step: Step, number: int) -> subprocess.CompletedProcess[str] | None:
    """Run until the process is killed there, and on to the end; None if it does not come so far."""
    who, call, word = step
    mark = runs.folder / f"mark-{number}"
    sweep = ("run", "--backends", backend, *TINY, "--mode", "paced,pingpong,saturate", "--out", f"results/{number}")
    done = runs(*sweep, INJECT=f"{call}:{number}:{KILL}:{word}:{who}:{mark}")
    if mark.exists():
        return done
    assert done.returncode == 0, done.stderr
    return None


def check(run: PrivateRuns, who: str, number: int, done: subprocess.CompletedProcess[str]) -> None:
    """Check that nothing is left, and that what is stored can be read and gone on with."""
    assert run.all_end(), run.processes()
    assert "Traceback" not in done.stderr
    folder, stored = f"results/{number}", run.folder / "results" / str(number)
    if who == COORDINATOR:
        assert done.returncode == -9
        if run.left():
            assert run("clean").returncode == 0
            assert run.left() == []
        if (stored / "run.json").exists():
            resumed = run("run", "--resume", folder)
            assert resumed.returncode == 0, resumed.stderr
    else:
        assert run.left() == []
        assert done.returncode in {0, 1}, done.stderr
    analyzed = run("analyze", folder, "--format", "json", "--no-report")
    if (stored / "run.json").exists():
        assert analyzed.returncode == 0, analyzed.stderr
        assert json.loads(analyzed.stdout)
        trials = [json.loads(line) for line in (stored / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
        assert sorted(trial["spec"]["mode"] for trial in trials if not trial["spec"]["tail"]) == [
            "paced", "pingpong", "saturate",
        ]  # fmt: skip
        assert who != COORDINATOR or {trial["status"] for trial in trials} == {"ok"}
    else:
        assert analyzed.returncode == 2
        assert analyzed.stderr.startswith("ipcbench: error: ")
        assert analyzed.stderr.count("\n") == 1


@pytest.mark.parametrize(("step", "number"), SOME)
def test_a_run_that_is_killed_leaves_nothing_and_goes_on(
    step: Step, number: int, loaded: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with PrivateRuns(tmp_path, loaded()) as runs:
        done = kill_at(runs, "shm", step, number)
        assert done is not None
        check(runs, step[0], number, done)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["shm", "pipe", "zmq", "lmdb"])
@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_a_run_that_is_killed_at_any_call_leaves_nothing_and_goes_on(
    backend: str, step: Step, loaded: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with PrivateRuns(tmp_path, loaded()) as runs:
        number = 1
        while (done := kill_at(runs, backend, step, number)) is not None:
            check(runs, step[0], number, done)
            number += 1 + number // 10  # some transports send each message by a call
