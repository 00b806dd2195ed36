"""Emulated hosts are what they are said to be: apart, as slow as asked, and gone afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from ipcbench.cli import main
from ipcbench.errors import ConfigError
from ipcbench.hosts.simulated.cluster import simulated_hosts
from ipcbench.hosts.simulated.links import Link
from ipcbench.testing.agents.client import until
from tests.hosts.talk import TALK

pytestmark = pytest.mark.usefixtures("namespaces")

_SOON_S = 30.0


def talk(cluster, sends_bytes: int = 0) -> tuple[float, float]:
    """Return the least round trip (s) from host b to host a, and the rate (bytes/s) at which a gets so many bytes."""
    command = [sys.executable, "-c", TALK]
    listening = subprocess.Popen(cluster.command([*command, "listen"], "a"), stdout=subprocess.PIPE, text=True)
    assert listening.stdout is not None
    listening.stdout.readline()
    said = subprocess.run(
        cluster.command([*command, "a", str(sends_bytes)], "b"), capture_output=True, text=True, check=True
    )
    listening.communicate()
    trip_s, rate = map(float, said.stdout.split())
    return trip_s, rate


@pytest.mark.parametrize("delays_s", [(0.0, 0.0), (0.005, 0.005), (0.005, 0.001)], ids=str)
def test_a_round_trip_takes_at_least_the_delays_of_both_ways(delays_s) -> None:
    with simulated_hosts(2, [*map(Link, delays_s), Link()]) as cluster:
        assert talk(cluster)[0] >= sum(delays_s)


def test_a_link_sends_no_faster_than_it_may() -> None:
    with simulated_hosts(2, Link(delay_s=0.001, bits_per_s=2e7)) as cluster:
        assert talk(cluster, 5_000_000)[1] <= 2e7 / 8


def test_what_is_lost_is_sent_again_by_tcp() -> None:
    with simulated_hosts(2, Link(loss_ratio=0.01)) as cluster:
        assert talk(cluster, 1_000_000)[1] > 0


def test_hosts_have_names_clocks_processes_and_folders_of_their_own() -> None:
    script = "hostname; cut -d. -f1 /proc/uptime; ls /tmp; ls /proc | grep -c '^[0-9]'; touch /dev/shm/mine"
    offsets_ns = (0, 100 * 10**9)
    with simulated_hosts(2, clock_offsets_ns=offsets_ns) as cluster:
        clock = "import time; print(time.monotonic_ns())"
        read_ns = [
            int(subprocess.check_output(cluster.command([sys.executable, "-c", clock], host))) for host in ("a", "b")
        ]
        assert read_ns[1] - read_ns[0] >= 100 * 10**9
        for host in cluster.names:
            lines = subprocess.check_output(cluster.command(["sh", "-c", script], host), text=True).split()
            assert lines[0] == host
            assert int(lines[-1]) < 10, "it sees its own processes"
        assert not os.path.exists("/dev/shm/mine")


def test_the_remote_shell_runs_a_command_with_few_variables(monkeypatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "1")
    with simulated_hosts(2) as cluster:
        shell = [str(cluster.remote_shell), "-o", "b"]
        said = subprocess.check_output([cluster.remote_shell, "-x", "b", "hostname; env; exit"], text=True)
        assert said.startswith("b\n")
        assert "OF_THE_CALLER" not in said
        unknown = subprocess.run([cluster.remote_shell, "z", "true"], capture_output=True, text=True, check=False)
        assert (unknown.returncode, unknown.stderr) == (255, "z: no such host\n"), shell


def test_all_end_with_the_process_that_holds_them() -> None:
    with simulated_hosts(2) as cluster:
        sleeper = subprocess.Popen(cluster.command(["sleep", "1000"], "b"))
        assert until(lambda: os.path.exists(f"/proc/{sleeper.pid}"), _SOON_S), "it runs"
        os.kill(cluster.station_pid, signal.SIGKILL)
        assert sleeper.wait() != 0
        for pid in cluster.pids:
            assert until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), _SOON_S), "a host has ended"


@pytest.mark.parametrize("count", [0, 27])
def test_a_number_of_hosts_that_is_none_is_refused(count) -> None:
    with pytest.raises(ConfigError, match="1 to 26"), simulated_hosts(count):
        pass


def test_a_killed_command_ends_as_in_a_shell() -> None:
    assert main(["hosts", "simulate", "--hosts", "1", "--", "sh", "-c", "kill -9 $$"]) == 128 + 9


def test_a_round_trip_beyond_all_measure_is_refused(capsys) -> None:
    assert main(["hosts", "simulate", "--rtt", "10001ms", "--", "true"]) == 2
    assert "--rtt: '10001ms' is not valid; allowed: at most 10 s" in capsys.readouterr().err


def test_the_command_says_what_it_emulates_and_ends_as_its_command_does() -> None:
    options = ["--hosts", "3", "--rtt", "4ms", "--rate", "1Gbit/s", "--loss", "0.1%"]
    command = ["--", "sh", "-c", "$IPCBENCH_RSH c hostname; exit 7"]
    done = subprocess.run(
        [sys.executable, "-m", "ipcbench", "hosts", "simulate", *options, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "c\n"), done.stderr
    assert re.search(r"hosts a, b, c \(4.* ms round trip, 1 Gbit/s out of each, 0.1 % lost\)", done.stderr)
