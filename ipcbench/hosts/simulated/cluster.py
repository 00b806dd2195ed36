"""Starting emulated hosts, and commands in them."""

from __future__ import annotations

import json
import os
import select
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ipcbench.errors import ConfigError, TrialError
from ipcbench.hosts.simulated.links import Link
from ipcbench.hosts.simulated.station import Plan, address_of
from ipcbench.processes.launch import own_environment
from ipcbench.util.clock import deadline_ns, remaining_s
from ipcbench.util.files import temporary_folder

MAX_HOSTS = len(string.ascii_lowercase)
_PROGRAMS = {"ip": "iproute2", "nsenter": "util-linux"}
"""Program → Debian's package."""
_LAST_BYTES = 500
_END_S = 10.0

_REMOTE_SHELL = """#!/bin/sh
# Run a command on an emulated host, as `ssh [OPTIONS] HOST COMMAND…` does: by a shell, with few variables.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case "$host" in
{cases}*) echo "$host: no such host" >&2; exit 255 ;;
esac
exec nsenter --target "$pid" --all --wd="$HOME" env -i HOME="$HOME" USER="${{USER:-root}}" PATH="$PATH" sh -c "$*"
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running emulated hosts.

    Attributes:
        names: the hosts' names: a, b, c …; each host, and the station, finds the others by name.
        pids: of the first process of each host.
        station_pid: of the process that holds them together; a process in its namespaces reaches all hosts.
        remote_shell: path of a program that runs a command on a host, as ssh does: `PROGRAM HOST COMMAND…`.
    """

    names: tuple[str, ...]
    pids: tuple[int, ...]
    station_pid: int
    remote_shell: Path
    addresses: tuple[str, ...] = field(init=False)
    """IPv4 address of each host."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", tuple(map(address_of, range(len(self.names)))))

    def command(self, command: Sequence[str], host: str | None = None) -> list[str]:
        """Return the command line that runs a command on a host, or at the station; the variables are the caller's."""
        if host is None:
            spaces = ["--target", str(self.station_pid), "--net", "--mount", *self._user()]
        else:
            spaces = ["--target", str(self.pids[self.names.index(host)]), "--all"]
        return ["nsenter", *spaces, "--wd=.", *command]

    def _user(self) -> list[str]:
        own, theirs = (Path(f"/proc/{pid}/ns/user").stat().st_ino for pid in ("self", self.station_pid))
        return [] if own == theirs else ["--user", "--preserve-credentials"]


@contextmanager
def simulated_hosts(
    count: int,
    links: Link | Sequence[Link] = Link(),  # noqa: B008 - frozen
    *,
    clock_offsets_ns: Sequence[int] = (),
    seed: int = 0,
) -> Iterator[Cluster]:
    """Start emulated hosts, and end them with all their processes when the block is left.

    Args:
        count: how many.
        links: how frames leave each host, and, as the last one, the station; a single link is for all of them.
        clock_offsets_ns: what each host's monotonic clock reads more than this machine's; nothing by default.
        seed: of what the links lose.

    Raises:
        ConfigError: this system does not let this user make namespaces, or a program is missing.
        TrialError: the hosts do not start; with the reason.
    """
    if not 1 <= count <= MAX_HOSTS:
        raise ConfigError("hosts", count, f"1 to {MAX_HOSTS}")
    for program, package in _PROGRAMS.items():
        if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin") is None and shutil.which(program) is None:
            raise ConfigError("emulated hosts", program, f"a machine with this program: apt install {package}")
    names = tuple(string.ascii_lowercase[:count])
    each = [links] * (count + 1) if isinstance(links, Link) else list(links)
    offsets = list(clock_offsets_ns) or [0] * count
    with tempfile.TemporaryDirectory(prefix="ipcbench-hosts-", dir=temporary_folder()) as folder:
        plan = Plan(folder, list(names), each, offsets, _kept(folder), seed)
        Path(folder, "plan").write_bytes(msgspec.json.encode(plan))
        station = subprocess.Popen(
            [sys.executable, "-m", "ipcbench.hosts.simulated.station", str(Path(folder, "plan"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=own_environment(),
            start_new_session=True,
        )
        with ExitStack() as ended:
            firsts: list[int] = []
            ended.callback(_await_ends, firsts)
            ended.callback(station.communicate)
            ended.callback(station.kill)  # the kernel ends what is in its namespaces
            pids = tuple(_started(station)["pids"])
            firsts += map(os.pidfd_open, pids)
            yield Cluster(names, pids, station.pid, _remote_shell(Path(folder), names, pids))


def _await_ends(firsts: Sequence[int]) -> None:
    """Wait until the first processes of all hosts have ended, and with them all others; close their descriptors."""
    deadline = deadline_ns(_END_S)
    for first in firsts:
        select.select([first], (), (), remaining_s(deadline))
        os.close(first)


def _started(station: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what the station says when the hosts are there."""
    assert station.stdout is not None and station.stderr is not None  # noqa: S101, PT018 - pipes
    line = station.stdout.readline()
    said: dict[str, Any] = json.loads(line) if line else {}
    if "pids" not in said:
        reason = said.get("error") or station.stderr.read()[-_LAST_BYTES:].decode(errors="replace").strip()
        raise TrialError(f"the emulated hosts do not start: {reason}")
    return said


def _kept(folder: str) -> list[str]:
    """Return what hosts need of this machine's folders, the shortest paths first."""
    package = Path(__file__).parents[3]
    kept = {Path(folder), package, Path.cwd(), Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(map(str, kept), key=len)


def _remote_shell(folder: Path, names: Sequence[str], pids: Sequence[int]) -> Path:
    cases = "".join(
        f"{name}|{address_of(port)}) pid={pid} ;;\n" for port, (name, pid) in enumerate(zip(names, pids, strict=True))
    )
    path = folder / "rsh"
    path.write_text(_REMOTE_SHELL.format(cases=cases))
    path.chmod(0o700)
    return path
