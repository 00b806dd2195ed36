"""Unix sockets and TCP connections that join two processes."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ipcbench.diagnose.endpoints.link import Link, Role, fds
from ipcbench.diagnose.endpoints.netlink import LISTEN, TcpSocket, UnixSocket
from ipcbench.diagnose.endpoints.process import SOCKETS, Descriptor, Holders, Process
from ipcbench.diagnose.endpoints.sharing import unless_shared

_SYSTEM = re.compile(
    r"(/var)?/run/(systemd|dbus|nscd|avahi-daemon|cups|containerd|pcscd|screen)/|(/var)?/run/(docker|snapd)[^/]*\.(sock|socket)$"
    r"|/dev/log$|/var/lib/sss/pipes/|.*/\.gnupg/S\.|@?.*/ibus/dbus-"
    r"|(/var)?/run/user/\d+/(bus$|at-spi/|systemd/|keyring|gnupg/|pulse|pipewire|wayland)"
    r"|@?/tmp/(\.X11-unix|\.ICE-unix|dbus-|tmux-\d+|ssh-[^/]+/agent)"
)
"""Where the services of a desktop and of a system listen: log, buses, name service, display, agents of keys,
multiplexers of terminals. Everybody is connected to them."""

ZMTP_HANDSHAKE_BYTES: Final = 1536
"""What a connection of ZeroMQ carries before the first message, both ways, at most. libzmq 4.3.5 takes 195 B without
security (91 B and 104 B: greetings of 64 B, READY), 220 B with PLAIN, 849 B with CURVE, and 1385 B with CURVE and
routing ids of 255 B. Ids, passwords and subscriptions vary."""
_RESOLVER_PORT: Final = 53
_ANY_HOST: Final = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
HEARTBEAT_BYTES: Final = 64
"""What a segment of heartbeats has at most: PING and PONG take 9 B and 7 B (ZMTP 3.1), and 41 B each with CURVE."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Sockets, as the kernel lists those of a network namespace."""

    unix: Mapping[int, UnixSocket]
    """Inode → socket."""
    tcp: Mapping[int, TcpSocket]
    """Inode → socket."""
    networks: Mapping[int, int] = field(default_factory=dict)
    """Inode of a TCP socket → the network namespace that lists it: a process need not be in that of its sockets."""
    udp: Mapping[int, TcpSocket] = field(default_factory=dict)
    """Inode → UDP socket, of those that have a port."""

    def of(self, process: Process) -> Sockets:
        """Return those that a process holds."""
        inodes = process.inodes
        return Sockets({inode: self.unix[inode] for inode in inodes if inode in self.unix},
                       {inode: self.tcp[inode] for inode in inodes if inode in self.tcp}, self.networks,
                       {inode: self.udp[inode] for inode in inodes if inode in self.udp})  # fmt: skip


def is_system(name: str | None) -> bool:
    """Return whether a Unix socket is that of a service which everybody talks to: journal, bus, display."""
    return name is not None and _SYSTEM.match(name) is not None


def unix_links(first: Process, second: Process, one: Sockets, two: Sockets, holders: Holders) -> Iterator[Link]:
    """Yield a link for each pair of Unix sockets that are each other's peers, one held by each process; not for one
    that is shut down.
    """
    seen = set()
    for near, far in _pairs(one.unix, two.unix):
        mine, others = first.sockets(near), second.sockets(far)
        both = frozenset((near, far))
        if both in seen or not mine or not others:
            continue
        seen.add(both)
        ends = [s for s in (one.unix.get(near), two.unix.get(far)) if s is not None]
        if any(s.is_shut for s in ends):
            continue  # nothing passes any more
        copied = bool(first.sockets(far) and second.sockets(near))
        if copied and not any(p.is_blocking(d.fd) for p, d in ((first, mine[0]), (second, others[0]))):
            continue  # what wakes an event loop, copied by a fork
        names = [s.name for s in ends if s.name]
        text = (
            f"Unix socket, process {first.pid} {_at(mine)} inode {near}; its peer is inode {far}, "
            f"process {second.pid} {_at(others)}"
        )
        more = ("both processes hold both ends: a fork copied them",) if copied else ()
        role: Role = "standard stream" if _is_stream(mine, others) else "data"
        if role == "data" and copied and not names and first.parent == second.parent:
            role = "inherited"
        address = bound_name(names[0], first, second) if names else "pair without a name"
        link = Link("unix", address, first.pid, second.pid, (text, *more), role,
                    _zmq(first, second, mine, others))  # fmt: skip
        anybodys = not names and (copied or first.parent == second.parent)
        yield (
            link
            if link.role == "standard stream" and not anybodys
            else unless_shared(link, holders, {(SOCKETS, near), (SOCKETS, far)})
        )


def bound_name(name: str, *processes: Process) -> str:
    """Return the name of a socket, and of a path that is not there any more (renamed, removed) that it once was."""
    if not name.startswith("/") or is_system(name):
        return name
    for process in processes:
        try:
            os.lstat(f"/proc/{process.pid}/root{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return name  # this user may not look
        return name
    return f"(bound as {name}; no such file now)"


def _pairs(one: Mapping[int, UnixSocket], two: Mapping[int, UnixSocket]) -> Iterator[tuple[int, int]]:
    for socket in one.values():
        if socket.peer is not None:
            yield socket.inode, socket.peer
    for socket in two.values():  # of a datagram socket, only the side that connected names a peer
        if socket.peer is not None:
            yield socket.peer, socket.inode


def tcp_links(first: Process, second: Process, one: Sockets, two: Sockets, holders: Holders) -> Iterator[Link]:
    """Yield a link for each TCP connection of which each process holds one end."""
    ends = {(s.local, s.remote): s for s in two.tcp.values() if s.state != LISTEN and s.remote[1]}
    for near in one.tcp.values():
        far = ends.get((near.remote, near.local))
        if near.state == LISTEN or far is None or near.inode == far.inode:
            continue
        apart = one.networks.get(near.inode) != two.networks.get(far.inode)
        if apart and _is_loopback(near.remote[0]):
            continue  # two namespaces have two loopback interfaces
        mine, others = first.sockets(near.inode), second.sockets(far.inode)
        if not mine or not others:
            continue
        text = (
            f"TCP, process {first.pid} {_at(mine)} {written(near.local)} inode {near.inode}; the other end "
            f"{written(near.remote)} is inode {far.inode}, process {second.pid} {_at(others)}"
        )
        library = _zmq(first, second, mine, others)
        role: Role = "handshake" if library and _is_handshake(near) else "data"
        link = Link("tcp", f"tcp://{written(_served(near, one, two))}", first.pid, second.pid, (text,),
                    "standard stream" if _is_stream(mine, others) else role, library,
                    near.sent_bytes, near.received_bytes, near.rtt_us)  # fmt: skip
        yield (
            link
            if link.role == "standard stream"
            else unless_shared(link, holders, {(SOCKETS, near.inode), (SOCKETS, far.inode)})
        )


def udp_links(first: Process, second: Process, one: Sockets, two: Sockets) -> Iterator[Link]:
    """Yield a link for each UDP socket of the first process that may send to one of the second, or receive from it."""
    for near in one.udp.values():
        far = next((each for each in two.udp.values() if each.inode != near.inode and may_reach(near, each)), None)
        if far is not None:
            text = f"UDP, process {first.pid} {written(near.local)}, process {second.pid} {written(far.local)}"
            yield Link("udp", f"udp://{written(far.local)}", first.pid, second.pid, (text,), "unclear")


def may_reach(near: TcpSocket, far: TcpSocket) -> bool:
    """Return whether two UDP sockets may send to each other: each is connected to the other, or to nobody. Everybody
    asks a resolver.
    """
    if _RESOLVER_PORT in {near.local[1], near.remote[1], far.local[1], far.remote[1]}:
        return False
    return all(
        not each.remote[1] or (each.remote[1] == other.local[1] and other.local[0] in {each.remote[0], *_ANY_HOST})
        for each, other in ((near, far), (far, near))
    )


def _is_handshake(near: TcpSocket) -> bool:
    """Return whether a connection of ZeroMQ has carried something, and no more than its handshake and heartbeats may
    be: these are segments of a few bytes. Messages of a few bytes look the same.
    """
    if near.sent_bytes is None or near.received_bytes is None:
        return False
    carried_bytes = near.sent_bytes + near.received_bytes
    if carried_bytes <= ZMTP_HANDSHAKE_BYTES:
        return carried_bytes > 0
    segments = near.segments_count
    return segments is not None and carried_bytes - ZMTP_HANDSHAKE_BYTES <= segments * HEARTBEAT_BYTES


def _served(near: TcpSocket, one: Sockets, two: Sockets) -> tuple[str, int]:
    """Return the address that a server listened on: the lower port if neither listens any more."""
    listening = {s.local[1] for side in (one, two) for s in side.tcp.values() if s.state == LISTEN}
    return min((near.local, near.remote), key=lambda address: (address[1] not in listening, address[1]))


def written(address: tuple[str, int]) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _at(descriptors: list[Descriptor]) -> str:
    return fds([each.fd for each in descriptors])


def _is_stream(mine: list[Descriptor], others: list[Descriptor]) -> bool:
    return any(d.fd <= 2 for side in (mine, others) for d in side)


def _zmq(first: Process, second: Process, mine: list[Descriptor], others: list[Descriptor]) -> str | None:
    """Return ZeroMQ if it is loaded in both, and neither socket blocks, as its sockets never do."""
    if "ZeroMQ" not in first.libraries & second.libraries:
        return None
    blocking = first.is_blocking(mine[0].fd), second.is_blocking(others[0].fd)
    return "ZeroMQ" if blocking == (False, False) else None


def common_servers(one: Sockets, two: Sockets) -> list[str]:
    """Return the addresses to which both processes are connected: whoever serves them may stand between the two."""
    return sorted(_served_to(one) & _served_to(two))


def _served_to(sockets: Sockets) -> set[str]:
    listening = {s.local for s in sockets.tcp.values() if s.state == LISTEN}
    return {f"tcp://{written(s.remote)}" for s in sockets.tcp.values() if s.remote[1] and s.local not in listening}
