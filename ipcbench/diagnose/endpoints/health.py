"""Whether an endpoint can be used from here: it exists, somebody serves it, this user may, and all mean the same place.

Nothing is sent and nothing is connected.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipcbench.diagnose.endpoints.look import (
    LISTEN_THERE,
    SEGMENTS,
    SERVE,
    Finding,
    Level,
    Look,
    command,
    exists,
    look_at_queues,
    may_use,
    named,
)
from ipcbench.diagnose.endpoints.netlink import CLOSED, ESTABLISHED, LISTEN, SocketList, TcpSocket, parse_proc_tcp
from ipcbench.diagnose.endpoints.process import (
    NAMESPACES,
    command_of,
    holders,
    mappers,
    other_networks,
    require_running,
    shortened,
)
from ipcbench.diagnose.endpoints.sockets import written
from ipcbench.diagnose.endpoints.unix_health import look_at_unix
from ipcbench.diagnose.endpoints.url import Endpoint, parse_endpoint, plain_host
from ipcbench.diagnose.endpoints.variables import variables

__all__ = ["Finding", "Health", "Level", "health"]

_INTERFACE_ADDRESS: Final = 0x8915  # SIOCGIFADDR
_ANY_V4: Final = "0.0.0.0"  # noqa: S104 - compared with, never bound
_ANY_V6: Final = "::"
_LOOPBACK: Final = {"*": "127.0.0.1", _ANY_V4: "127.0.0.1", _ANY_V6: "::1"}
"""Where a connection to all addresses goes; `*` is all of IPv4 for ZeroMQ."""


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
        """Whether all is well; False if something is a problem; None if nothing is, and something is not known."""
        levels = {finding.level for finding in self.findings}
        return False if "problem" in levels else None if "unknown" in levels else True


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
    look = Look()
    {"unix": look_at_unix, "tcp": _tcp, "shm": _shm, "lmdb": _lmdb}[endpoint.kind](endpoint, look)
    if pid is not None:
        look.findings += _namespaces(endpoint, pid)
    look.findings += variables(endpoint, pid)
    listeners = tuple((each, command_of(each)) for each in sorted(look.pids))
    return Health(endpoint, listeners, tuple(look.findings))


def _tcp(endpoint: Endpoint, look: Look) -> None:
    port = endpoint.port or 0
    try:
        hosts = _hosts(endpoint.address, port)
    except (OSError, UnicodeError) as error:
        text = f"host {endpoint.address} has no address ({error})"
        look.add("problem", text, "correct the host, or enter it in /etc/hosts")
        return
    if not any(_is_local(host) for host in hosts):
        text = f"{endpoint.address} ({', '.join(sorted(hosts))}) is not an address of this host: the kernel here cannot"
        look.add("unknown", f"{text} tell who listens", "look at it there, with the same command")
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
    _local_tcp(endpoint, look, hosts, [s for s in every if s.local[1] == port])


def _local_tcp(endpoint: Endpoint, look: Look, hosts: set[str], at_port: list[TcpSocket]) -> None:
    """Add who listens at a port of this host, or what keeps a client from it."""
    port = endpoint.port or 0
    served = [s for s in at_port if s.state == LISTEN]
    hosts = {host.partition("%")[0] for host in hosts}  # the kernel's list has no scopes
    taken = [s for s in served if _takes(s, hosts)]
    bound = [s for s in at_port if s.state == CLOSED and _takes(s, hosts)]
    if taken:
        _served(endpoint, look, taken)
        if endpoint.address == "*" or _address_of_interface(endpoint.address):
            places = " or ".join(f"tcp://{written((host, port))}" for host in sorted(hosts))
            text = f"{endpoint.address} is for bind only: a client that connects to it reaches nobody"
            look.add("note", text, f"connect to {places}")
    elif bound:
        pids = {pid for pids in holders({s.inode for s in bound}).values() for pid in pids}
        look.add("problem", f"{endpoint.url} is bound, and not listened on: {named(pids)}", LISTEN_THERE)
    elif served:
        others = ", ".join(f"tcp://{written(s.local)}" for s in served)
        look.add("problem", f"nobody listens on {endpoint.url}, but on {others}", _instead(served, port, hosts))
    elif elsewhere := _in_another_network(port, hosts):
        text = f"{endpoint.url} is served in another network namespace ({named(elsewhere)}), and not in this one"
        look.add("problem", text, "publish the port, or share the network (docker run --network host)")
    else:
        look.add("problem", f"nobody in this network namespace listens on {endpoint.url}", SERVE)


def _takes(found: TcpSocket, hosts: set[str]) -> bool:
    """Return whether a socket of the port takes what is sent to one of these addresses."""
    is_v4 = any(":" not in host for host in hosts)
    if found.local[0] in hosts or (is_v4 and found.local[0] == _ANY_V4):
        return True
    is_only_v4 = all(":" not in host for host in hosts)
    return found.local[0] == _ANY_V6 and not (found.is_v6_only and is_only_v4)  # it takes IPv4, unless told not to


def _served(endpoint: Endpoint, look: Look, found: list[TcpSocket]) -> None:
    pids = {pid for pids in holders({s.inode for s in found}).values() for pid in pids}
    look.serve(f"{endpoint.url} is served by", pids)
    look_at_queues((s.queue for s in found), pids, look)
    users = {s.uid for s in found} - {os.geteuid()}
    if users:
        look.add("ok", f"its socket belongs to user {', '.join(map(str, sorted(users)))}")


def _in_another_network(port: int, hosts: set[str]) -> set[int]:
    """Return the processes that serve this address in other network namespaces, where these may be read."""
    inodes = set()
    for pid, _, table in other_networks("tcp"):
        try:
            with SocketList(pid) as sockets:
                every = list(sockets.tcp().values())
        except OSError:
            every = list(parse_proc_tcp(table))
        inodes |= {s.inode for s in every if s.state == LISTEN and s.local[1] == port and _takes(s, hosts)}
    return {pid for pids in holders(inodes).values() for pid in pids}


def _instead(found: list[TcpSocket], port: int, asked: set[str]) -> str:
    """Return what to do where the listeners of a port do not take the address: one on all of IPv4 takes no IPv6, and
    may not take IPv4.
    """
    places = " or ".join(f"tcp://{written((_LOOPBACK.get(s.local[0], s.local[0]), port))}" for s in found)
    hosts = {s.local[0] for s in found}
    if _ANY_V4 in hosts:
        return f"connect to {places}, or have the server take IPv6, too (dual stack; ZeroMQ: ZMQ_IPV6 before bind)"
    if _ANY_V6 in hosts:
        return f"connect to {places}, or have the server take IPv4, too (IPV6_V6ONLY off before bind)"
    if all(":" in host for host in asked):  # for ZeroMQ, * is all of IPv4
        return f"connect to {places}, or bind the server to tcp://[::]:{port} (ZeroMQ: ZMQ_IPV6 before bind)"
    return f"connect to {places}, or bind the server to tcp://*:{port}"


def _hosts(host: str, port: int) -> set[str]:
    """Return the addresses to which a client connects."""
    if host in _LOOPBACK:
        return {_LOOPBACK[host]}
    if address := _address_of_interface(host):
        return {address}
    found = [info[4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    scopes = [f"%{place[3]}" if len(place) > 3 and place[3] else "" for place in found]
    return {f"{plain_host(str(place[0]))}{scope}" for place, scope in zip(found, scopes, strict=True)}


def _address_of_interface(name: str) -> str | None:
    """Return the IPv4 address of a network interface, which ZeroMQ takes for a host; None if it is none."""
    if name not in {each for _, each in socket.if_nameindex()}:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            found = fcntl.ioctl(probe, _INTERFACE_ADDRESS, struct.pack("256s", name.encode()))
    except OSError:
        return None  # it has none
    return socket.inet_ntoa(found[20:24])


def _is_local(host: str) -> bool:
    """Return whether this host has an address: only then a socket can be bound to it. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain, _, scope = host.partition("%")  # the number of an interface
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((plain, 0, 0, int(scope)) if scope else (plain, 0))
    except OSError:
        return False
    return True


def _shm(endpoint: Endpoint, look: Look) -> None:
    path = SEGMENTS / endpoint.address
    file = exists(path, look, "a segment", stat.S_ISREG)
    if file is not None:
        may_use(path, look)
        if file.st_size == 0:
            look.add("problem", f"{path} is empty: whoever made it has not given it a size", SERVE)
        _mapped(path, file, look)


def _lmdb(endpoint: Endpoint, look: Look) -> None:
    folder = Path(endpoint.address)
    plain = folder.is_file()  # opened with subdir=False
    data, lock = (folder, Path(f"{folder}-lock")) if plain else (folder / "data.mdb", folder / "lock.mdb")
    file = exists(data, look, "a file", stat.S_ISREG)
    if file is None:
        return
    may_use(data, look)
    if exists(lock, look, "a file", stat.S_ISREG) is not None:
        may_use(lock, look)
    _mapped(data, file, look)


def _mapped(path: Path, file: os.stat_result, look: Look) -> None:
    pids = mappers(file.st_dev, file.st_ino)
    look.pids |= set(pids)
    if pids:
        names = ", ".join(f"process {pid} ({shortened(command_of(pid))})" for pid in pids)
        look.add("ok", f"{path} is mapped by {names}")
    else:
        text = f"no process that user {os.geteuid()} may read maps {path}"
        remedy = "start the program that opens it"
        if path.parent == SEGMENTS:  # a database is to stay when nobody has it open
            remedy = f"start the server; if it has died, remove what it left{command('rm', path)}"
        look.add("unknown", text, remedy)


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
    path = str(SEGMENTS / endpoint.address) if endpoint.kind == "shm" else endpoint.address
    try:
        return os.path.samefile(path, f"/proc/{pid}/root{path}")
    except OSError:
        return False
