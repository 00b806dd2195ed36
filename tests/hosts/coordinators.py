"""`ipcbench run` at the station of emulated hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import Cluster
from ipcbench.results.store import Run, load_run
from ipcbench.testing.agents.client import until

_KILL = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <$process/cmdline | grep -q '{words}'; then kill -{signal} ${{process#/proc/}}; fi
done
"""

_PIDS = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <$process/cmdline | grep -q '{words}'; then echo ${{process#/proc/}}; fi
done
"""

SHORT_RUN = (
    *(sys.executable, "-m", "ipcbench", "run"),
    *("--payload", "bytes", "--sizes", "521", "--readers", "1", "--rounds", "1", "--window", "100ms"),
)


def start(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command with further variables, whose output is kept."""
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_descendant(process: subprocess.Popen[str], words: str) -> None:
    """Kill those processes that it has started whose command lines have these words."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.ZombieProcess):
            if words in " ".join(child.cmdline()):
                child.kill()


def require_lost(coordinator: Coordinator, process: subprocess.Popen[str], within_s: float) -> None:
    """Wait until a run has ended because host 2 is lost, and nothing of it is left on any host."""
    _, said = process.communicate(timeout=100)
    assert (process.returncode, "is lost with host 2: the agent" in said) == (1, True), said
    for host in coordinator.cluster.names:
        assert until(lambda host=host: not coordinator.left_on(host), within_s), coordinator.left_on(host)


@dataclass
class Coordinator:
    """Starts runs over all hosts of a cluster."""

    cluster: Cluster
    folder: Path
    """Of the run's results."""

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a short run."""
        command = [*SHORT_RUN, "--hosts", ",".join(self.cluster.names), "--out", str(self.folder), *options]
        return start(self.cluster.command(command), {SHELL_VARIABLE: str(self.cluster.remote_shell)})

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        """Press Ctrl-C at a run that was started."""
        process.send_signal(signal.SIGINT)

    def resume(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Try to go on with the run."""
        command = [sys.executable, "-m", "ipcbench", "run", "--resume", str(self.folder), *options]
        variables = {**os.environ, SHELL_VARIABLE: str(self.cluster.remote_shell)}
        return subprocess.run(
            self.cluster.command(command), env=variables, capture_output=True, text=True, timeout=240, check=False
        )

    def pids(self, host: str, words: str) -> list[int]:
        """Return the process IDs, on a host, of what has these words in its command line."""
        found = self.on(host, _PIDS.format(words=f"[{words[0]}]{words[1:]}"))
        return [*map(int, found.split())]

    def run(self, *options: str) -> tuple[Run, str]:
        """Carry out a short run; return it, and what was said on stderr."""
        process = self.start(*options)
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        return load_run(self.folder), said

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials that are stored by now."""
        path = self.folder / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def on(self, host: str, script: str) -> str:
        """Return what a shell script prints on a host."""
        command = self.cluster.command(["sh", "-c", script], host)
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def kill(self, host: str, number: int, words: str) -> None:
        """Send a signal to the processes of a host whose command lines match a pattern."""
        self.on(host, _KILL.format(signal=number, words=f"[{words[0]}]{words[1:]}"))  # does not match itself

    def left_on(self, host: str) -> list[str]:
        """Return what is left on a host: processes of ipcbench, and files with its names."""
        processes = self.on(host, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").count(" ipcbench.") - 1  # its first one
        files = self.on(host, "ls -A /tmp /dev/shm").split()
        return [f"{processes} processes"] * (processes > 0) + [
            name for name in files if name.startswith(("ipcb-", "hydra_", "mpich_"))
        ]
