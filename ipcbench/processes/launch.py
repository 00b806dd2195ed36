"""Starting and ending a worker group: plain processes, an MPI launcher, or one process for all endpoints."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ipcbench.backend import Launcher
from ipcbench.errors import BackendUnavailable

MPIEXEC_VARIABLE = "IPCBENCH_MPIEXEC"
"""A launcher command of the user's own, such as `srun` or `mpiexec -hosts a,b`; `-n COUNT PROGRAM` is appended."""

CONTROL_HOST_VARIABLE = "IPCBENCH_CONTROL_HOST"
"""Interface on which the coordinator listens for workers on other hosts; unset: a Unix socket."""

_STDERR_LINES = 4
_STDERR_BYTES = 20_000
_END_S = 5.0


def find_mpiexec() -> list[str]:
    """Return the MPI launcher as the beginning of a command line.

    The one beside the Python interpreter comes before those on PATH: a launcher must be of the same MPI as mpi4py uses.

    Raises:
        BackendUnavailable: there is none.
    """
    own = os.environ.get(MPIEXEC_VARIABLE)
    if own:
        return shlex.split(own)
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise BackendUnavailable("mpi", "no mpiexec found", "pip install 'ipcbench[mpi]'")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return [found, "--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else [found]


@dataclass(slots=True)
class Processes:
    """The processes that were started for one group, and the file with what they wrote to stderr."""

    launcher: Launcher
    started: list[subprocess.Popen[bytes]]
    stderr_path: Path
    worker_pids: list[int] = field(default_factory=list)
    """Process numbers that the workers of this host gave; under `mpiexec` they are not our children."""

    def dead(self) -> list[tuple[int, int]]:
        """Return (index of the process, exit code) of those that have ended."""
        return [(i, one.returncode) for i, one in enumerate(self.started) if one.poll() is not None]

    def last_words(self) -> str:
        """Return the last lines of the group's stderr, as one line; empty if it said nothing."""
        try:
            raw = self.stderr_path.read_bytes()[-_STDERR_BYTES:]
        except OSError:
            return ""
        lines = [line.strip() for line in raw.decode(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-_STDERR_LINES:])

    def wait(self) -> None:
        """Wait a moment for processes that were told to exit; kill those that do not."""
        for one in self.started:
            with suppress(subprocess.TimeoutExpired):
                one.wait(_END_S)
        self.kill()

    def kill(self) -> None:
        """Kill every process of the group, and what they started, and collect our children."""
        for one in self.started:
            if one.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
        if self.launcher == "mpiexec":
            for pid in self.worker_pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        for one in self.started:
            one.wait()
        self.worker_pids.clear()


def start_group(launcher: Launcher, count: int, control: str, extra: dict[str, str], stderr_path: Path) -> Processes:
    """Start `count` workers that will connect to `control`.

    Args:
        launcher: how.
        count: endpoints: the writer and the readers.
        control: the switchboard's address.
        extra: environment variables besides our own.
        stderr_path: file that takes the group's stdout and stderr.

    Raises:
        BackendUnavailable: the launcher is missing.
    """
    worker = [sys.executable, "-m", "ipcbench.harness.worker", "--control", control]
    commands = {
        "spawn": lambda: [[*worker, "--index", str(index)] for index in range(count)],
        "inline": lambda: [[*worker, "--together", str(count)]],
        "mpiexec": lambda: [[*find_mpiexec(), "-n", str(count), *worker]],
    }[launcher]()
    environment = {**os.environ, **extra}
    if launcher == "mpiexec" and os.geteuid() == 0:  # Open MPI refuses to run as root unless told twice
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with stderr_path.open("ab") as log:
        started = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
            for command in commands
        ]
    return Processes(launcher, started, stderr_path)
