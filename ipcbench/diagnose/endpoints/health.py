"""Whether an endpoint can be used from here: it exists, somebody serves it, this user may, and all mean the same place.

Nothing is sent and nothing is connected.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ipcbench.diagnose.endpoints.netlink import CLOSED, ESTABLISHED, LISTEN, SocketList, TcpSocket
from ipcbench.diagnose.endpoints.process import (
    NAMESPACES,
    Unreadable,
    command_of,
    environment_of,
    holders,
    mappers,
    other_networks,
    require_running,
    shortened,
)
from ipcbench.diagnose.endpoints.sockets import written
from ipcbench.diagnose.endpoints.url import Endpoint, parse_endpoint
from ipcbench.errors import ConfigError

Level = Literal["ok", "problem", "unknown"]

_SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - only looked at
_OTHERS_VARIABLES: Final = re.compile(r"DOCKER_|CONTAINER_|PODMAN_|DBUS_|SSH_|XDG_|BUILDKIT_")
_ANY_HOST: Final = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
_SERVE = "start the server first, or correct the address"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """`ok`, `problem`, or `unknown`: the kernel here cannot tell."""
    text: str
    """What was found, in one sentence."""
    remedy: str | None = None
    """What to do about it; None if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Health:
    """How an endpoint is."""

    endpoint: Endpoint
    """What was asked for."""
    listeners: tuple[tuple[int, str], ...]
    """Process and command of each that serves or maps it, of those that this user may read."""
    findings: tuple[Finding, ...]
    """All that was looked at."""

    @property
    def is_healthy(self) -> bool | None:
        """Whether all findings are `ok`; False if one is a problem; None if none is, and something is not known."""
        levels = {finding.level for finding in self.findings}
        return False if "problem" in levels else None if "unknown" in levels else True


class _Look:
    """What a look at an endpoint gathers."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.findings: list[Finding] = []

    def add(self, level: Level, text: str, remedy: str | None = None) -> None:
        self.findings.append(Finding(level, text, remedy))

    def serve(self, what: str, inodes: set[int]) -> None:
        """Take the holders of these listening sockets for those who serve."""
        found = {pid for pids in holders(inodes).values() for pid in pids}
        self.pids |= found
        names = ", ".join(f"process {pid} ({shortened(command_of(pid))})" for pid in sorted(found))
        self.add("ok", f"{what}: {names or 'a process that this user may not read'}")


def health(url: str, pid: int | None = None) -> Health:
    """Return how an endpoint is.

    Args:
        url: see `ipcbench.diagnose.endpoints.url`.
        pid: a process that is to use it: its environment and namespaces are looked at; None means this process.

    Raises:
        ConfigError: it is no such URL, or there is no such process.
    """
    endpoint = parse_endpoint(url)
    if pid is not None:
        require_running("pid", pid)
    look = _Look()
    {"unix": _unix, "tcp": _tcp, "shm": _shm, "lmdb": _lmdb}[endpoint.kind](endpoint, look)
    if pid is not None:
        look.findings += _namespaces(endpoint, pid)
    look.findings += _environment(endpoint, pid)
    listeners = tuple((each, command_of(each)) for each in sorted(look.pids))
    return Health(endpoint, listeners, tuple(look.findings))


def _unix(endpoint: Endpoint, look: _Look) -> None:
    path = endpoint.address
    file = None
    if not path.startswith("@"):
        file = _exists(Path(path), look, "a socket", stat.S_ISSOCK)
        if file is None:
            return
        _may_use(Path(path), look)
    try:
        with SocketList() as sockets:
            found = {
                s.inode
                for s in sockets.unix().values()
                if (s.name == path or (file is not None and s.file == file.st_ino)) and _is_served(s.state, s.peer)
            }
    except OSError as error:
        look.add("unknown", f"the kernel lists no sockets here ({error.strerror}): who listens cannot be told")
        return
    if found:
        look.serve(f"{path} is served by", found)
    elif elsewhere := _in_another_network(path):
        look.pids.add(elsewhere)
        look.add("ok", f"{path} is served in another network namespace, as process {elsewhere} sees it")
    elif file is None:
        look.add("problem", f"nobody in this network namespace listens on {path}", _SERVE)
    else:
        text = f"{path} is stale: the file is there, and nobody listens on it"
        look.add("problem", text, f"remove it (rm {path}) and start the server; one that died leaves its file behind")


def _is_served(state: int, peer: int | None) -> bool:
    return state == LISTEN or (state == CLOSED and peer is None)  # a datagram socket has only a name


def _in_another_network(path: str) -> int | None:
    """Return a process in whose network namespace somebody listens on a path."""
    for pid, listing in other_networks("unix"):
        for line in listing.splitlines():
            words = line.split(None, 7)
            if len(words) == 8 and words[7] == path and int(words[3], 16) & 0x10000:  # it accepts connections
                return pid
    return None


def _exists(path: Path, look: _Look, what: str, is_kind: Callable[[int], bool]) -> os.stat_result | None:
    try:
        status = path.stat()
    except PermissionError:
        look.add("problem", f"user {os.geteuid()} may not look into {path.parent}", _rights(path.parent, "x"))
        return None
    except OSError:
        missing = next((p for p in reversed(path.parents) if not p.exists()), None)
        text = f"{path} does not exist" + (f", nor does its folder {missing}" if missing else "")
        look.add("problem", text, _SERVE)
        return None
    if not is_kind(status.st_mode):
        look.add("problem", f"{path} is there, and is not {what}", "correct the address")
        return None
    look.add("ok", f"{path} exists, owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):03o}")
    return status


def _may_use(path: Path, look: _Look) -> None:
    if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        look.add("ok", f"user {os.geteuid()} may use {path}")
    else:
        look.add("problem", f"user {os.geteuid()} may not read and write {path}", _rights(path, "rw"))


def _rights(path: Path, rights: str) -> str:
    return (
        f"run as the owner of {path}, or give this user the right to (chmod o+{rights}; chmod g+{rights} for a group)"
    )


def _tcp(endpoint: Endpoint, look: _Look) -> None:
    port = endpoint.port or 0
    try:
        hosts = _hosts(endpoint.address, port)
    except (OSError, UnicodeError) as error:
        text = f"host {endpoint.address} has no address ({error})"
        look.add("problem", text, "correct the host, or enter it in /etc/hosts")
        return
    if not any(_is_local(host) for host in hosts):
        text = f"{endpoint.address} ({', '.join(sorted(hosts))}) is not an address of this host"
        look.add(
            "unknown", f"{text}: the kernel here cannot tell who listens", "look at it there, with the same command"
        )
    try:
        with SocketList() as sockets:
            every = list(sockets.tcp().values())
    except OSError as error:
        look.add("unknown", f"the kernel lists no sockets here ({error.strerror}): who listens cannot be told")
        return
    links = sum(s.state == ESTABLISHED and s.remote[1] == port and s.remote[0] in hosts for s in every)
    if not any(_is_local(host) for host in hosts):
        look.add("ok" if links else "unknown", f"connections from this network namespace to it: {links}")
        return
    _listening(endpoint, look, hosts, [s for s in every if s.state == LISTEN and s.local[1] == port])


def _listening(endpoint: Endpoint, look: _Look, hosts: set[str], found: list[TcpSocket]) -> None:
    served = {s.inode for s in found if s.local[0] in hosts | _ANY_HOST or hosts & _ANY_HOST}
    if served:
        look.serve(f"{endpoint.url} is served by", served)
        users = {s.uid for s in found if s.inode in served} - {os.geteuid()}
        if users:
            look.add("ok", f"its socket belongs to user {', '.join(map(str, sorted(users)))}")
    elif found:
        others = ", ".join(written(s.local) for s in found)
        text = f"nobody listens on {endpoint.url}, but on {others}"
        look.add("problem", text, f"connect to tcp://{others}, or bind the server to tcp://*:{endpoint.port}")
    else:
        look.add("problem", f"nobody in this network namespace listens on {endpoint.url}", _SERVE)


def _hosts(host: str, port: int) -> set[str]:
    if host == "*":
        return set(_ANY_HOST)
    return {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}


def _is_local(host: str) -> bool:
    """Return whether this host has an address: only then a socket can be bound to it. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _shm(endpoint: Endpoint, look: _Look) -> None:
    path = _SEGMENTS / endpoint.address
    file = _exists(path, look, "a segment", stat.S_ISREG)
    if file is not None:
        _may_use(path, look)
        if file.st_size == 0:
            look.add("problem", f"{path} is empty: whoever made it has not given it a size", _SERVE)
        _mapped(path, file, look)


def _lmdb(endpoint: Endpoint, look: _Look) -> None:
    folder = Path(endpoint.address)
    plain = folder.is_file()  # opened with subdir=False
    data, lock = (folder, Path(f"{folder}-lock")) if plain else (folder / "data.mdb", folder / "lock.mdb")
    file = _exists(data, look, "a file", stat.S_ISREG)
    if file is None:
        return
    _may_use(data, look)
    if _exists(lock, look, "a file", stat.S_ISREG) is not None:
        _may_use(lock, look)
    _mapped(data, file, look)


def _mapped(path: Path, file: os.stat_result, look: _Look) -> None:
    pids = mappers(file.st_dev, file.st_ino)
    look.pids |= set(pids)
    if pids:
        names = ", ".join(f"process {pid} ({shortened(command_of(pid))})" for pid in pids)
        look.add("ok", f"{path} is mapped by {names}")
    else:
        text = f"no process that user {os.geteuid()} may read maps {path}"
        look.add("unknown", text, f"start the server; if it has died, remove what it left (rm {path})")


def _namespaces(endpoint: Endpoint, pid: int) -> Iterator[Finding]:
    for kind in NAMESPACES:
        try:
            differs = os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino
        except OSError:
            text = f"the {kind} namespace of process {pid} cannot be read"
            yield Finding("unknown", text, "run this as its user, or as root")
            return
        if not differs:
            continue
        text = f"process {pid} is in another {kind} namespace"
        if kind == "net" and endpoint.kind == "tcp":
            yield Finding("problem", f"{text}: {endpoint.url} is not the same place there",
                          "publish the port, or share the network (docker run --network host)")  # fmt: skip
        elif kind == "net" and endpoint.address.startswith("@"):
            yield Finding("problem", f"{text}: abstract names are not seen there", "use a path that both can see")
        elif kind == "mnt" and endpoint.kind != "tcp" and not _sees_the_same(endpoint, pid):
            yield Finding("problem", f"{text}, and does not see the same {endpoint.address}",
                          "mount that folder into both (docker run -v; for segments --ipc)")  # fmt: skip
        else:
            yield Finding("ok", text)


def _sees_the_same(endpoint: Endpoint, pid: int) -> bool:
    path = str(_SEGMENTS / endpoint.address) if endpoint.kind == "shm" else endpoint.address
    try:
        return os.path.samefile(path, f"/proc/{pid}/root{path}")
    except OSError:
        return False


def _environment(endpoint: Endpoint, pid: int | None) -> Iterator[Finding]:
    """Yield a finding for each variable that names an endpoint."""
    try:
        variables: Mapping[str, str] = os.environ if pid is None else environment_of(pid)
    except Unreadable as reason:
        yield Finding("unknown", f"environment: {reason}")
        return
    whose = "this process" if pid is None else f"process {pid}"
    for name, value in sorted(variables.items()):
        if "://" not in value or _OTHERS_VARIABLES.match(name):
            continue
        try:
            named = parse_endpoint(value.strip(), name)
        except ConfigError:
            continue  # a proxy, a page
        if named.is_same(endpoint):
            yield Finding("ok", f"{name} of {whose} names it")
        else:
            yield Finding("problem", f"{name} of {whose} names another address, {value}",
                          f"if the program reads {name}, set it to {endpoint.url} on both sides")  # fmt: skip
