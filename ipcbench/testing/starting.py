"""How a process of agents is started: the command, what it can import, and the MPI launcher in front of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ipcbench.errors import Unsupported
from ipcbench.testing.agents.process import KEY_VARIABLE
from ipcbench.testing.door import Door

MPIEXEC_VARIABLE = "IPCBENCH_MPIEXEC"
"""Environment variable with the MPI launcher's command line, to which `-n COUNT PROGRAM` is added; by default the
`mpiexec` beside this Python, or the first one in PATH.
"""


def mpiexec_command() -> list[str]:
    """Return the MPI launcher's command.

    Raises:
        Unsupported: there is none.
    """
    chosen = shlex.split(os.environ.get(MPIEXEC_VARIABLE, ""))
    if chosen:
        return chosen
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if found is None:
        raise Unsupported(f"no mpiexec beside {sys.executable} or in PATH; set {MPIEXEC_VARIABLE}")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return [found, "--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else [found]


def agent_command(door: Door, number: str) -> list[str]:
    """Return the command that starts the agent of that number."""
    return [sys.executable, "-m", "ipcbench.testing.agents.process", str(door.path), number]


def import_path() -> str:
    """Return what this process can import, as PYTHONPATH."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


def start(command: Sequence[str], door: Door, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command that can import what this process can import."""
    environment = {**os.environ, KEY_VARIABLE: door.key.hex(), "PYTHONPATH": import_path()}
    if os.geteuid() == 0:  # Open MPI refuses to run as root unless told twice
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment, close_fds=True
    )
