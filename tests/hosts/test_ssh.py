"""Hosts that are reached by a real sshd."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import Cluster, simulated_hosts
from ipcbench.hosts.simulated.links import Link
from ipcbench.results.store import load_run
from ipcbench.testing.agents.client import until
from tests.hosts.coordinators import SHORT_RUN, Coordinator, kill_descendant, require_lost, start

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""
_SOON_S = 30.0

pytestmark = [
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(not SSHD or shutil.which("ssh") is None, reason="no sshd here: apt install openssh-server"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd lets this user in only as root"),
]
hydra = pytest.mark.skipif(importlib.util.find_spec("cryptography") is None, reason="pip install 'ipcbench[hosts]'")


@contextmanager
def sshd_on(cluster: Cluster, folder: Path, hosts: str) -> Iterator[str]:
    """Run an sshd on each of the hosts; yields the remote shell that reaches them."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    config, authorized, known, client = (folder / name for name in ("sshd", "authorized", "known", "client"))
    shutil.copy(folder / "user.pub", authorized)
    config.write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {authorized}\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
    )
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    known.write_text("".join(f"{name} {key}\n" for name in hosts))
    client.write_text(
        f"Host *\nIdentityFile {folder}/user\nUserKnownHostsFile {known}\nBatchMode yes\nLogLevel ERROR\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    servers = [
        subprocess.Popen(cluster.command([SSHD, "-D", "-q", "-f", str(config)], name), stderr=subprocess.DEVNULL)
        for name in hosts
    ]
    shell = ["ssh", "-F", str(client)]
    try:
        for name in hosts:
            true = cluster.command([*shell, name, "true"])
            assert until(
                lambda true=true: subprocess.run(true, capture_output=True, check=False).returncode == 0, _SOON_S
            )
        yield " ".join(shell)
    finally:
        for server in servers:
            server.kill()
            server.wait()


def started(cluster: Cluster, shell: str, *options: str) -> subprocess.Popen[str]:
    """Start `ipcbench run` at the station."""
    return start(cluster.command([*SHORT_RUN, "--backends", "tcp", *options]), {SHELL_VARIABLE: shell})


def run(cluster: Cluster, shell: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Wait for such a run."""
    process = started(cluster, shell, *options)
    output, said = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, output, said)


@pytest.fixture
def keys() -> Iterator[Path]:
    """A folder that emulated hosts see: /tmp is their own."""
    folder = Path(sys.prefix) / f"keys-{os.getpid()}"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


def test_a_run_over_ssh_has_the_cells_of_any_other_and_refuses_latency_on_a_long_way(keys, tmp_path) -> None:
    with simulated_hosts(2, Link(delay_s=0.005)) as cluster, sshd_on(cluster, keys, "ab") as shell:
        done = run(cluster, shell, "--hosts", "a,b", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    trials = load_run(tmp_path / "run").trials
    assert {trial.status for trial in trials} == {"ok"}
    assert {trial.spec.mode for trial in trials} == {"paced", "pingpong", "saturate"}
    assert all(trial.conditions.clock_error_ns >= 4e6 for trial in trials), "asked over the same long way"


def cells(folder: Path) -> set[tuple[str, str, str]]:
    """Return what was measured, and how it ended."""
    return {(trial.spec.backend, trial.spec.mode, trial.status) for trial in load_run(folder).trials}


@hydra
def test_a_run_over_hydra_has_the_same_cells_as_over_ssh(keys, tmp_path) -> None:
    with simulated_hosts(2) as cluster, sshd_on(cluster, keys, "ab") as shell:
        for launcher in ("hydra", "ssh"):
            done = run(cluster, shell, "--hosts", "a,b", "--launch", launcher, "--out", str(tmp_path / launcher))
            assert done.returncode == 0, done.stderr
    assert cells(tmp_path / "hydra") == cells(tmp_path / "ssh")
    assert {status for *_, status in cells(tmp_path / "ssh")} == {"ok"}


@hydra
@pytest.mark.parametrize("victim", ["mpiexec", "hydra_pmi_proxy", "ipcbench.hosts.agent"])
def test_when_hydra_dies_the_run_ends_with_the_reason_and_nothing_is_left(keys, tmp_path, victim) -> None:
    with simulated_hosts(2) as cluster, sshd_on(cluster, keys, "ab") as shell:
        out = ("--out", str(tmp_path / "run"), "--window", "1s", "--rounds", "9")
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = started(cluster, shell, "--hosts", "a,b", "--launch", "hydra", *out)
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        if victim == "mpiexec":
            kill_descendant(process, "-hosts b")
        else:
            coordinator.kill("b", 9, victim)
        require_lost(coordinator, process, _SOON_S)


@hydra
def test_what_is_wrong_with_hydra_is_said(keys, tmp_path) -> None:
    with simulated_hosts(2) as cluster, sshd_on(cluster, keys, "a") as shell:
        done = run(cluster, shell, "--hosts", "a,b", "--launch", "hydra", "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "host b: ssh: connect to host b port 22: Connection refused" in done.stderr


@pytest.mark.parametrize("launcher", ["ssh", pytest.param("hydra", marks=hydra)])
def test_a_cut_cable_ends_the_run_with_the_reason_and_each_host_cleans_up(keys, tmp_path, launcher) -> None:
    with simulated_hosts(2) as cluster, sshd_on(cluster, keys, "ab") as shell:
        out = ("--out", str(tmp_path / "run"), "--window", "1s", "--rounds", "9")
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = started(cluster, shell, "--hosts", "a,b", "--launch", launcher, *out)
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        coordinator.on("b", "for link in /sys/class/net/*; do ip link set ${link##*/} down; done")
        _, said = process.communicate(timeout=100)
        assert process.returncode == 1
        assert "is lost with host 2: the agent gave no sign of life for 5 s" in said
        for host in cluster.names:
            assert until(lambda host=host: not coordinator.left_on(host), _SOON_S), coordinator.left_on(host)
    assert coordinator.trials()[0]["status"] == "ok"


def test_what_is_wrong_with_a_host_is_one_line_before_the_first_trial(keys, tmp_path) -> None:
    out = ("--out", str(tmp_path / "run"))
    inventory = tmp_path / "lab.toml"
    inventory.write_text('[hosts.a]\n[hosts.b]\npython = "/no/such/python"\n')
    with simulated_hosts(3) as cluster, sshd_on(cluster, keys, "ab") as shell:
        known = keys / "known"
        for hosts, words in {
            "a,c": "host c: ssh: connect to host c port 22: Connection refused",
            "a,nowhere": "host nowhere: ",
            str(inventory): "host b: has no program '/no/such/python'",
        }.items():
            done = run(cluster, shell, "--hosts", hosts, *out)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert words in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1
        known.write_text("")
        done = run(cluster, shell, "--hosts", "a", *out)
        assert "host a: its key is not known here: connect once by hand" in done.stderr
    assert not (tmp_path / "run").exists()
