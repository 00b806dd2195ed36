"""Hosts of a real Slurm, whose srun starts what runs there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import Cluster, simulated_hosts
from ipcbench.results.store import load_run
from ipcbench.testing.agents.client import until
from tests.hosts.coordinators import SHORT_RUN, Coordinator, kill_descendant, require_lost, start

_SBIN = f"/usr/sbin:{os.environ['PATH']}"
_SOON_S = 60.0
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")

pytestmark = [
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(
        not all(shutil.which(program, path=_SBIN) for program in _PROGRAMS),
        reason="no Slurm here: apt install slurmctld slurmd slurm-client munge",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts programs only as root"),
    pytest.mark.skipif(importlib.util.find_spec("cryptography") is None, reason="pip install 'ipcbench[hosts]'"),
]

_CONFIGURATION = """
ClusterName=ipcb
SlurmctldHost=a
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmdSpoolDir=/tmp/slurmd
SlurmctldLogFile=/dev/null
SlurmdLogFile=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName={nodes} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_on(cluster: Cluster, folder: Path) -> Iterator[dict[str, str]]:
    """Run Slurm on all hosts, its controller on the first; yields the variables with which its programs find it."""
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    nodes = ",".join(cluster.names)
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, nodes=nodes))
    variables = {**os.environ, "PATH": _SBIN, "SLURM_CONF": f"{folder}/slurm.conf"}
    files = {"key-file": "key", "socket": "munge.sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    commands = [
        ["munged", "-F", "--force", *(f"--{option}={folder}/{name}" for option, name in files.items())],
        cluster.command(["slurmctld", "-D"], "a"),
        *(cluster.command(["slurmd", "-D", "-N", name], name) for name in cluster.names),
    ]

    def is_idle() -> bool:
        sinfo = cluster.command(["sinfo", "--noheader", "--format=%t %D"])
        done = subprocess.run(sinfo, env=variables, capture_output=True, text=True, check=False)
        return done.stdout.split() == ["idle", str(len(cluster.names))]

    with ExitStack() as held:
        for command in commands:
            server = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            held.callback(server.wait)
            held.callback(server.kill)
            if command[0] == "munged":
                assert until((folder / "munge.sock").exists, _SOON_S)
        assert until(is_idle, _SOON_S)
        yield variables


def started(cluster: Cluster, variables: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    """Start `ipcbench run` in an allocation of all hosts."""
    allocation = ["salloc", "--quiet", f"--nodes={len(cluster.names)}"]
    command = cluster.command([*allocation, *SHORT_RUN, "--backends", "tcp", *options])
    return start(command, {**variables, SHELL_VARIABLE: str(cluster.remote_shell)})


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that emulated hosts see: /tmp is their own."""
    made = Path(sys.prefix) / f"slurm-{os.getpid()}"
    made.mkdir(mode=0o711)
    yield made
    shutil.rmtree(made)


def test_a_run_in_an_allocation_has_the_same_cells_as_over_a_remote_shell(folder, tmp_path) -> None:
    with simulated_hosts(2) as cluster, slurm_on(cluster, folder) as variables:
        for launcher in ("srun", "ssh"):
            out = ("--launch", launcher, "--out", str(tmp_path / launcher))
            process = started(cluster, variables, "--hosts", "slurm", *out)
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said
    first, second = (
        {(trial.spec.backend, trial.spec.mode, trial.status) for trial in load_run(tmp_path / launcher).trials}
        for launcher in ("srun", "ssh")
    )
    assert first == second
    assert {status for *_, status in first} == {"ok"}


@pytest.mark.parametrize("victim", ["srun", "ipcbench.hosts.agent"])
def test_when_it_dies_the_run_ends_with_the_reason_and_nothing_is_left(folder, tmp_path, victim) -> None:
    with simulated_hosts(2) as cluster, slurm_on(cluster, folder) as variables:
        out = ("--out", str(tmp_path / "run"), "--window", "1s", "--rounds", "9")
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = started(cluster, variables, "--hosts", "slurm", *out)
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        if victim == "srun":
            kill_descendant(process, "--nodelist=b")
        else:
            coordinator.kill("b", 9, victim)
        require_lost(coordinator, process, _SOON_S)


def test_without_slurm_it_is_said(tmp_path) -> None:
    with simulated_hosts(1) as cluster:
        command = [sys.executable, "-m", "ipcbench", "run", "--hosts", "slurm", "--backends", "tcp"]
        done = subprocess.run(cluster.command(command), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "SLURM_JOB_NODELIST is not set" in done.stderr
