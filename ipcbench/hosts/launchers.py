"""What starts a program on another host, with its standard input and output here: ssh, Hydra or srun.

ssh encrypts what it carries. Hydra and srun carry it over connections of their own, which do not: see `hosts.sealed`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ipcbench.errors import ConfigError
from ipcbench.hosts.inventory import Host

SHELL_VARIABLE = "IPCBENCH_RSH"
"""Program that runs a command on another host, `PROGRAM HOST COMMAND`; by default ssh, which asks nobody anything."""

LAUNCHERS = ("ssh", "hydra", "srun")
UNENCRYPTED = ("hydra", "srun")

_OPTION = "--launch"
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_SRUN = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--mpi=none", "--unbuffered", "--quiet", "--chdir=/")
_HYDRA_EXTRA = "HYDRA_LAUNCHER_EXTRA_ARGS"
_SOME_PORT = 9


class Start(NamedTuple):
    """How to start a program on a host."""

    command: list[str]
    variables: dict[str, str]
    """To add to the environment."""


def remote_shell() -> list[str]:
    """Return the beginning of a command line that runs a command on the host that is named next."""
    named = os.environ.get(SHELL_VARIABLE, "").strip()
    try:
        words = shlex.split(named) or [*_SSH]
    except ValueError as error:
        raise ConfigError(SHELL_VARIABLE, named, f"a command line ({error})") from error
    if shutil.which(words[0]) is None:
        hint = "" if named else f"; apt install openssh-client, or name another in {SHELL_VARIABLE}"
        raise ConfigError(SHELL_VARIABLE if named else "--hosts", words[0], f"a program that is installed here{hint}")
    return words


def start_of(launcher: str, host: Host, program: Sequence[str]) -> Start:
    """Return how a launcher starts a program on a host.

    Raises:
        ConfigError: there is no such launcher here.
    """
    if launcher == "ssh":
        return Start([*remote_shell(), host.name, f"exec {shlex.join(program)}"], {})
    if launcher == "srun":
        if shutil.which(_SRUN[0]) is None:
            raise ConfigError(_OPTION, launcher, "this only where Slurm's srun is installed")
        return Start([*_SRUN, f"--nodelist={host.name}", *program], {})
    return _hydra(host, program)


def _hydra(host: Host, program: Sequence[str]) -> Start:
    hydra, shell = hydra_here(), remote_shell()
    words = ["-launcher", "ssh", "-launcher-exec", shutil.which(shell[0]) or shell[0], "-wdir", "/"]
    if own := _own_address(host.name):  # the host need not know our name
        words += ["-localhost", own]
    return Start(
        [hydra, *words, "-hosts", host.name, "-n", "1", *program],
        {_HYDRA_EXTRA: shlex.join(shell[1:])} if shell[1:] else {},
    )


@cache
def hydra_here() -> str:
    """Return the path of MPICH's mpiexec.

    Raises:
        ConfigError: there is none here.
    """
    for place in (str(Path(sys.executable).parent), None):
        path = shutil.which("mpiexec", path=place)
        if path and "HYDRA" in subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout:
            return path
    raise ConfigError(_OPTION, "hydra", "this only with an mpiexec of MPICH: pip install 'ipcbench[mpi]'")


@cache
def _own_address(name: str) -> str:
    """Return by which address a host reaches this one; empty if its name is unknown here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(name, _SOME_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
