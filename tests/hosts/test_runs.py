"""Runs over several hosts: what they measure, what they say, and that nothing is left when something dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from ipcbench.analysis.summary.summary import summarise
from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import Cluster, simulated_hosts
from ipcbench.hosts.simulated.links import Link
from ipcbench.registry import status
from ipcbench.results.store import load_run
from ipcbench.testing.agents.client import until
from tests.hosts.coordinators import SHORT_RUN, Coordinator, start

pytestmark = pytest.mark.usefixtures("namespaces")

_SOON_S = 60.0
MS = 10**6


def test_cells_are_those_of_one_host_and_the_record_names_no_host(tmp_path) -> None:
    with simulated_hosts(2) as cluster:
        run, said = Coordinator(cluster, tmp_path / "run").run("--backends", "tcp,zmq-tcp,shm", "--readers", "2")
    assert {trial.spec.backend for trial in run.trials} == {"tcp", "zmq-tcp"}
    assert {trial.spec.mode for trial in run.trials} == {"paced", "pingpong", "saturate"}
    assert all(trial.status == "ok" for trial in run.trials), said
    assert "shm is left out: host 1: backend 'shm' does not offer channels between hosts" in said
    assert len(run.info.hosts) == 2
    assert run.info.hosts[1]["machine"]["usable_cores"] > 0
    assert run.info.hosts[1]["floor"]["writer_ns"] > 0
    assert run.info.place == "spread"
    text = "".join(path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix in {".json", ".jsonl"})
    for secret in ("a,b", "10.77.0.", "rsh"):
        assert secret not in text
    shown = subprocess.run(
        [sys.executable, "-m", "ipcbench", "analyze", str(tmp_path / "run"), "--no-report"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "hosts: the endpoints ran on 2 hosts (spread)" in shown
    assert "HOSTS" in json.loads((tmp_path / "run" / "run.json").read_text())["command"]


@pytest.mark.parametrize(
    "backend", ["grpc-tcp", "redis", "zenoh", "hybrid", "mpi", "mpi-pkl5", "mpi-buffer", "mpi-p2p"]
)
def test_a_reader_on_the_writers_host_and_one_on_another_get_the_same(backend, tmp_path) -> None:
    if not (available := status(backend)).available:
        pytest.skip(available.reason)
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        run, said = coordinator.run("--backends", backend, "--readers", "2")
        assert not any(coordinator.left_on(host) for host in cluster.names)
    assert {trial.spec.mode for trial in run.trials} == {"paced", "pingpong", "saturate"}
    assert [trial.reason for trial in run.trials if trial.status != "ok"] == [], said


def test_a_killed_server_of_a_channel_between_hosts_fails_its_trial(tmp_path) -> None:
    if not (available := status("redis")).available:
        pytest.skip(available.reason)
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "redis", "--rounds", "2", "--window", "1s")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        assert "requirepass" not in coordinator.on("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        coordinator.kill("a", 9, "redis-server")
        _, said = process.communicate(timeout=200)
        failed = [trial["reason"] for trial in coordinator.trials() if trial["status"] != "ok"]
        assert process.returncode == 0, said
        assert any("server of channel" in reason for reason in failed), failed
        assert coordinator.trials()[-1]["status"] == "ok"
        assert not any(coordinator.left_on(host) for host in cluster.names)


@pytest.mark.parametrize("victim", ["-P -m ipcbench.processes.worker", "hydra_pmi_proxy", "mpiexec"])
def test_ranks_on_several_hosts_end_together_and_the_run_goes_on(victim, tmp_path) -> None:
    if not (available := status("mpi-p2p")).available:
        pytest.skip(available.reason)
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "mpi-p2p,tcp", "--rounds", "2", "--window", "1s")
        assert until(lambda: any(trial["spec"]["backend"] == "mpi-p2p" for trial in coordinator.trials()), _SOON_S)
        coordinator.kill("a" if victim == "mpiexec" else "b", 9, victim)
        _, said = process.communicate(timeout=200)
        failed = [trial["reason"] for trial in coordinator.trials() if trial["status"] != "ok"]
        assert process.returncode == 0, said
        assert len(failed) <= 2, failed
        assert {trial["spec"]["backend"] for trial in coordinator.trials()[-4:]} == {"mpi-p2p", "tcp"}
        assert coordinator.trials()[-1]["status"] == "ok"
        assert not any(coordinator.left_on(host) for host in cluster.names)


def test_a_named_server_counts_on_all_hosts_or_is_refused(tmp_path, monkeypatch) -> None:
    """It was passed over in silence, and a server of the channel's own was measured."""
    if not (available := status("redis")).available:
        pytest.skip(available.reason)
    monkeypatch.setenv("IPCBENCH_REDIS_URL", "redis://127.0.0.1:1")
    with simulated_hosts(2) as cluster:
        process = Coordinator(cluster, tmp_path / "run").start("--backends", "redis")
        _, said = process.communicate(timeout=100)
    assert (process.returncode, len(said.strip().splitlines())) == (2, 1), said
    assert "IPCBENCH_REDIS_URL names none that serves" in said


@pytest.mark.parametrize(
    ("offsets_ns", "delays_s"),
    [
        ((0, 0), (0.0, 0.0)),
        ((0, 3 * MS), (0.0, 0.0)),
        ((-3 * MS, 0), (0.005, 0.005)),
        ((0, 100_000 * MS), (0.005, 0.001)),
    ],
    ids=str,
)
def test_one_way_latency_is_right_within_its_error_or_refused(offsets_ns, delays_s, tmp_path) -> None:
    links = [*map(Link, delays_s), Link()]
    with simulated_hosts(2, links, clock_offsets_ns=offsets_ns) as cluster:
        run, _ = Coordinator(cluster, tmp_path / "run").run("--backends", "tcp", "--mode", "paced,pingpong")
    truth_ns = offsets_ns[1] - offsets_ns[0]
    for trial in run.trials:
        conditions = trial.conditions
        assert trial.status == "ok"
        assert abs(conditions.clock_offsets_ns[1] - truth_ns) <= conditions.clock_error_ns
        if trial.spec.mode == "paced" and trial.main_figure is not None:
            assert conditions.clocks_agree
            assert trial.main_figure >= 1e9 * delays_s[0] - conditions.clock_error_ns


def test_a_run_goes_on_between_the_same_hosts_only(tmp_path) -> None:
    """Without --hosts it went on upon one host, and its trials were in the same cells."""
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "tcp", "--rounds", "3")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        coordinator.interrupt(process)
        _, said = process.communicate(timeout=100)
        assert "--hosts a,b --place spread" in said
        kept = len(coordinator.trials())
        for options, words in (
            ((), "with --hosts only a run between hosts; this was between 2 hosts"),
            (("--hosts", "a,b", "--place", "writer=b"), "place: spread / writer=host 2"),
            (("--hosts", "a"), "hosts: 2 / 1"),
        ):
            done = coordinator.resume(*options)
            assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
            assert words in done.stderr
        assert len(coordinator.trials()) == kept
        assert coordinator.resume("--hosts", "a,b").returncode == 0
    assert len(coordinator.trials()) > kept


def test_paced_round_trips_rank_hosts_far_from_each_other(tmp_path) -> None:
    with simulated_hosts(2, Link(delay_s=0.010)) as cluster:
        options = ("--backends", "tcp,zmq-tcp-insecure", "--mode", "pingpong", "--rate", "200/s", "--rounds", "3")
        run, said = Coordinator(cluster, tmp_path / "run").run(*options)
    for trial in run.trials:
        assert trial.status == "ok", said
        assert trial.spec.rate_per_s == 200.0
        assert trial.writer.round_trip.p50_ns >= 20 * MS, "nothing is faster than the link"
        assert trial.writer.round_trip.count == trial.spec.rate_per_s * trial.spec.window_s, "also on a long way"
    (setting,) = summarise(run).settings
    assert setting.ranked_by == "round trip"
    assert setting.words("round trip") == "paced round trip"


@pytest.mark.parametrize(
    "options", [("--neighbours", "1"), ("--pin", "auto"), ("--pattern", "queue"), ("--payload", "mine:make")], ids=str
)
def test_what_there_is_only_on_one_host_is_refused(options, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def make(size):\n    return b'x' * size\n")
    command = [
        "run",
        "--hosts",
        "a,b",
        "--backends",
        "tcp",
        "--readers",
        "1",
        "--rounds",
        "1",
        *options,
        "--out",
        "run",
    ]
    if "--pattern" in options:
        command = ["run", "--hosts", "a,b", "--backends", "tcp", *options, "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "ipcbench", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert options[0] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "--hosts" in done.stderr


def test_a_host_without_room_is_said_before_the_first_trial(tmp_path) -> None:
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        coordinator.on("b", "mount -o remount,size=1m /tmp; head -c 2m /dev/zero >/tmp/full")
        process = coordinator.start("--backends", "tcp")
        _, said = process.communicate(timeout=100)
    assert (process.returncode, len(said.strip().splitlines()), coordinator.trials()) == (2, 1, []), said
    assert "host b" in said
    assert "No space left on device" in said


def test_what_a_host_says_before_its_agent_is_passed_over(tmp_path, monkeypatch) -> None:
    """A login message was taken for the size of a frame, which was awaited for ever."""
    with simulated_hosts(1) as cluster:
        shell = tmp_path / "rsh"
        shell.write_text(f'#!/bin/sh\necho "Welcome to the host"\nexec {cluster.remote_shell} "$@"\n')
        shell.chmod(0o700)
        noisy = Cluster(cluster.names, cluster.pids, cluster.station_pid, shell)
        run, said = Coordinator(noisy, tmp_path / "run").run("--backends", "tcp", "--mode", "saturate")
    assert [trial.status for trial in run.trials] == ["ok"], said


def test_two_names_of_one_host_are_refused(tmp_path) -> None:
    with simulated_hosts(1) as cluster:
        process = Coordinator(cluster, tmp_path / "run").start("--backends", "tcp", "--hosts", "a,10.77.0.1")
        _, said = process.communicate(timeout=100)
    assert (process.returncode, len(said.strip().splitlines())) == (2, 1), said
    assert "host 10.77.0.1: is the same host as a; name each host once" in said


def test_the_coordinators_own_host_takes_part(tmp_path) -> None:
    """Its agent found the coordinator's folder there, and ended."""
    shell = tmp_path / "rsh"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o700)
    inventory = tmp_path / "lab.toml"
    inventory.write_text('[hosts.here]\naddress = "127.0.0.1"\n')
    process = start(
        [*SHORT_RUN, "--backends", "tcp", "--hosts", str(inventory), "--out", str(tmp_path / "run")],
        {SHELL_VARIABLE: str(shell)},
    )
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert {trial.status for trial in load_run(tmp_path / "run").trials} == {"ok"}


def test_a_host_that_is_lost_between_two_trials_ends_the_run_and_its_name_is_not_stored(tmp_path) -> None:
    """All other trials failed one by one, with the host's name as the reason."""
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "tcp,zmq-tcp-insecure", "--rounds", "9", "--window", "20ms")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        coordinator.kill("b", 9, "ipcbench.hosts.agent")
        _, said = process.communicate(timeout=100)
        assert (process.returncode, "lost with host 2" in said) == (1, True), said
        failed = [trial["reason"] for trial in coordinator.trials() if trial["status"] != "ok"]
        assert len(failed) <= len(("tcp", "zmq-tcp-insecure")), failed
        assert not any("host b" in reason for reason in failed)


@pytest.mark.parametrize("backend", ["tcp", "zmq-tcp", "zmq-tcp-insecure"])
def test_hosts_are_reached_by_ipv6(backend, tmp_path) -> None:
    inventory = tmp_path / "lab.toml"
    inventory.write_text("".join(f'[hosts.{name}]\naddress = "fd00::{n}"\n' for n, name in enumerate("ab", 1)))
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        for number, name in enumerate("ab", 1):
            coordinator.on(
                name,
                "for link in /sys/class/net/*; do [ ${link##*/} = lo ] || "
                f"ip -6 address add fd00::{number}/64 nodad dev ${{link##*/}}; done",
            )
        options = ("--hosts", str(inventory), "--backends", f"{backend},mpi-buffer", "--mode", "saturate")
        run, said = coordinator.run(*options)
    assert [trial.status for trial in run.trials] == ["ok"], (said, run.trials[0].reason)
    assert "mpiexec does not start across IPv6 addresses" in run.info.skipped["mpi-buffer"]


def test_processes_of_other_hosts_with_the_same_ids_survive(tmp_path) -> None:
    count = 200
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        coordinator.on("a", f"for i in $(seq {count}); do sleep 1000 >/dev/null 2>&1 & done")
        process = coordinator.start("--backends", "tcp", "--rounds", "2")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        workers, bystanders = coordinator.pids("b", "ipcbench.processes"), coordinator.pids("a", "sleep 1000")
        process.communicate(timeout=200)
        assert {*workers} & {*bystanders}
        assert coordinator.pids("a", "sleep 1000") == bystanders
    assert len(bystanders) == count


def test_a_killed_worker_fails_its_trial_and_the_run_goes_on(tmp_path) -> None:
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "tcp", "--rounds", "2", "--window", "1s")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        coordinator.kill("b", 9, "ipcbench.processes.worker .*--fork 1")
        _, said = process.communicate(timeout=200)
        failed = [trial["reason"] for trial in coordinator.trials() if trial["status"] != "ok"]
        assert process.returncode == 0, said
        assert any("on host 2 was killed by signal 9" in reason for reason in failed), failed
        assert coordinator.trials()[-1]["status"] == "ok"


@pytest.mark.parametrize("victim", ["agent", "coordinator", "link"])
def test_whatever_dies_nothing_is_left_on_any_host(victim, tmp_path) -> None:
    with simulated_hosts(2) as cluster:
        coordinator = Coordinator(cluster, tmp_path / "run")
        process = coordinator.start("--backends", "tcp", "--rounds", "9", "--window", "1s")
        assert until(lambda: len(coordinator.trials()) > 0, _SOON_S)
        if victim == "agent":
            coordinator.kill("b", 9, "ipcbench.hosts.agent")
        elif victim == "link":
            coordinator.kill("b", 19, "ipcbench.hosts.agent")  # it says nothing any more
        else:
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=100)
        if victim != "coordinator":
            assert process.returncode == 1
            assert "is lost with host 2: the agent" in said
        if victim == "link":
            coordinator.kill("b", 18, "ipcbench.hosts.agent")
        for host in cluster.names:
            assert until(lambda host=host: not coordinator.left_on(host), _SOON_S), coordinator.left_on(host)
