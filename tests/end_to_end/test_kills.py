"""A process of a run is killed, or the run is told to end, at a random moment: the run ends, what it measured is kept,
can be analyzed and gone on with, and nothing is left.
"""

from __future__ import annotations

import json
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ipcbench.analysis.report.render import as_json
from ipcbench.analysis.report.tables import tables
from ipcbench.processes.launch import MPIEXEC_VARIABLE
from ipcbench.results.store import load_run
from tests.end_to_end.private_run import LIMIT_S, PrivateRuns
from tests.end_to_end.shell import TINY
from tests.selection import one_in

BACKENDS = ("shm", "zmq", "lmdb", "pipe", *(("mpi-buffer",) if find_spec("mpi4py") else ()))
MODES = ("paced", "pingpong", "saturate", "paced,saturate", "pingpong,saturate")
SWEEP = (*TINY, "--rounds", "2", "--budget", "600s", "--out", "run")
LONGEST_S = 0.6
VICTIMS = {
    "coordinator": "ipcbench run",
    "writer": "--index 0",
    "reader": "--index 1",
    "rank": "ipcbench.processes.worker",
    "mpiexec": "mpiexec",
    "proxy": "hydra_pmi_proxy",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wait_for_moment(process: subprocess.Popen[str], source: random.Random) -> None:
    """Wait until some trials have been reported, and a little longer."""
    reports = source.randrange(4)
    while reports:
        line = process.stderr.readline()
        if not line:
            return
        reports -= bool(re.match(r"round \d+/\d+, trial", line))
    select.select((), (), (), source.uniform(0, LONGEST_S))


def find(processes: Sequence[psutil.Process], mark: str) -> psutil.Process | None:
    for process in processes:
        with suppress(psutil.Error):
            if mark in " ".join(process.cmdline()):
                return process
    return None


def has_our_traceback(said: str) -> bool:
    """Return whether there is a traceback of our program, and not of Python on its way there."""
    return re.search(r"ipcbench/__main__\.py\", line \d+, in main", said) is not None


def check_stored(runs: PrivateRuns, modes: str, *, complete: bool) -> None:
    """Check that all trials that were begun are recorded, that they can be analyzed, and that the run can go on."""
    if not (runs.folder / "run" / "run.json").exists():
        return
    assert json.loads(as_json(tables(load_run(runs.folder / "run"))))
    if not complete:
        resumed = runs("run", "--resume", "run")
        assert resumed.returncode == 0, resumed.stderr
    lines = (runs.folder / "run" / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    specs = [json.loads(line)["spec"] for line in lines]
    assert sorted(spec["mode"] for spec in specs if not spec["tail"]) == sorted(2 * modes.split(","))
    assert runs.left() == []


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[PrivateRuns]:
    with PrivateRuns(tmp_path) as made:
        yield made


@pytest.mark.parametrize("seed", one_in(40, range(200)))
def test_a_run_ends_by_itself_whoever_is_killed(seed: int, runs: PrivateRuns) -> None:
    source = random.Random(seed)
    backend = source.choice(BACKENDS)
    of_mpi = ("coordinator", "rank", "mpiexec", "proxy")
    who = source.choice(of_mpi if backend.startswith("mpi") else ("coordinator", "writer", "reader"))
    hydra = str(Path(sys.executable).with_name("mpiexec.hydra"))  # it alone has proxies
    launcher = {MPIEXEC_VARIABLE: hydra} if who == "proxy" else {}
    modes = source.choice(MODES)
    with runs.start("run", "--backends", backend, *SWEEP, "--mode", modes, **launcher) as process:
        wait_for_moment(process, source)
        victim = find(runs.processes(), VICTIMS[who])
        if victim is not None:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        _, said = process.communicate(timeout=LIMIT_S)
    assert not has_our_traceback(said)
    assert runs.all_end(), runs.processes()
    killed = process.returncode == -signal.SIGKILL
    assert killed or process.returncode in {0, 1}, said
    left = runs.left()
    assert killed or left == [], f"{left} left after {who} of {backend}"
    if left:
        assert runs("clean").returncode == 0
        assert runs.left() == []
    check_stored(runs, modes, complete=not killed)


@pytest.mark.parametrize("by", SIGNALS, ids=lambda by: by.name)
@pytest.mark.parametrize("seed", one_in(50, range(100)))
def test_a_run_that_is_told_to_end_leaves_nothing(seed: int, by: signal.Signals, runs: PrivateRuns) -> None:
    source = random.Random(f"{by} {seed}")
    modes = source.choice(MODES)
    with runs.start("run", "--backends", source.choice(BACKENDS), *SWEEP, "--mode", modes) as process:
        wait_for_moment(process, source)
        process.send_signal(by)
        _, said = process.communicate(timeout=LIMIT_S)
    assert not has_our_traceback(said)
    assert process.returncode in {0, 1, 130, -by}, said
    assert runs.all_end(), runs.processes()
    assert runs.left() == []
    check_stored(runs, modes, complete=process.returncode in {0, 1})
