"""Which sockets, pipes, segments and mapped files join two processes, or a process with any others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ipcbench.diagnose.endpoints.link import Link
from ipcbench.diagnose.endpoints.memory import memory_links
from ipcbench.diagnose.endpoints.netlink import SocketList, TcpSocket, UnixSocket, parse_proc_tcp
from ipcbench.diagnose.endpoints.pipes import eventfd_links, pipe_links
from ipcbench.diagnose.endpoints.process import (
    NAMESPACES,
    Holders,
    Process,
    Unreadable,
    command_of,
    other_networks,
    pids,
    read_process,
    require_running,
    shortened,
)
from ipcbench.diagnose.endpoints.relays import Relays
from ipcbench.diagnose.endpoints.sockets import Sockets, common_servers, is_system, tcp_links, unix_links
from ipcbench.diagnose.endpoints.verdict import Agreement, State, agrees_with, judge
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.text import printable

_LAST_STREAM = 2
_BEYOND = "a third process may stand between them, or one may read the other's memory (process_vm_readv)"


@dataclass(frozen=True, slots=True)
class Links:
    """What joins two processes, or one with any others."""

    first: int
    """Process that was asked for."""
    second: int | None
    """The other one; None if any others were asked for."""
    commands: dict[int, str]
    """Process → how it was started, of all that are named here."""
    links: tuple[Link, ...]
    """All that was found; `role` says which can carry data."""
    carriers: tuple[Link, ...]
    """Those of them that carry the data, or may."""
    state: State
    """`in use`, or `cannot tell`."""
    verdict: str
    """The state with its evidence or its reason, in words; a line for each pair of processes."""
    notes: tuple[str, ...] = ()
    """What else helps to judge: other namespaces, a server that both are connected to."""


def links(first: int, second: int | None = None) -> Links:
    """Return what joins two processes, from the kernel alone.

    Own processes need no rights. Nothing is sent, opened or attached.

    Args:
        first: number of a process.
        second: number of the other; None looks for any that this user may read.

    Raises:
        ConfigError: there is no such process.
    """
    require_running("pid", first)
    if second is None:
        return _with_any(first)
    require_running("pid", second)
    if first == second:
        reason = f"both are process {first}; the kernel does not see what passes inside one process (threads, inproc)"
        return _unknown(first, second, reason)
    try:
        one, two = read_process(first), read_process(second)
        every, reasons = _socket_lists((one, two))
        holders = Holders()
        relays = Relays(every, holders, (one, two)).between(one, two)
        near, far = every.of(one), every.of(two)
        found, notes = _between(one, two, near, far, holders)
    except Unreadable as reason:
        return _unknown(first, second, str(reason))
    gone = [each.pid for each in (one, two) if not each.is_same()]
    if gone:
        return _unknown(first, second, f"process {gone[0]} ended while it was looked at")
    state, verdict, carriers = judge(found, _rivals(one, two, near, far), relays)
    beside = [relay.text for relay in relays if relay.text not in verdict]
    said = " ".join(relay.text for relay in relays)
    servers = [f"both are connected to {server}" for server in common_servers(near, far) if server not in said]
    notes = (*reasons, *servers, *notes, *beside)
    if state == "cannot tell" and not carriers:
        verdict = "; ".join((verdict, *notes, _BEYOND))
    commands = {each.pid: each.command for each in (one, two)}
    return Links(first, second, commands, found, carriers, state, verdict, notes)


def agrees(found: Links, word: str) -> Agreement:
    """Return whether a log's word for its transport (`IPC`, `TCP`, `shm`, `zmq`, `LMDB` …) is what was found.

    The answer is `agrees`, `contradicts` or `cannot tell`; the text says it in one line, with the reason.
    """
    return agrees_with(found.state, found.carriers, word)


def _unknown(first: int, second: int | None, reason: str) -> Links:
    commands = {pid: command_of(pid) for pid in (first, second) if pid is not None}
    return Links(first, second, commands, (), (), "cannot tell", f"cannot tell: {reason}")


def _with_any(first: int) -> Links:
    try:
        one = read_process(first)
    except Unreadable as reason:
        return _unknown(first, None, str(reason))
    others = []
    for pid in pids():
        if pid not in {first, os.getpid()}:
            with suppress(Unreadable):
                others.append(read_process(pid))
    listed, reasons = _socket_lists((one, *others))
    commands, every, carriers = {first: one.command}, list[Link](), list[Link]()
    lines, states, holders = list[str](), set[State](), Holders()
    near, relays = listed.of(one), Relays(listed, holders, (one, *others))
    for other in others:
        far = listed.of(other)
        found, _ = _between(one, other, near, far, holders)
        found = tuple(link for link in found if not (link.kind == "unix" and is_system(link.address)))
        if found:
            state, verdict, data = judge(found, _rivals(one, other, near, far), relays.between(one, other))
            every += found
            carriers += data
            states.add(state)
            commands[other.pid] = other.command
            lines.append(printable(f"with process {other.pid} ({shortened(other.command)}): {verdict}"))
    lines.sort(key=lambda line: "): in use" not in line)
    if not lines:
        nothing = f"nothing joins process {first} with another that user {os.geteuid()} may read"
        return _unknown(first, None, f"{nothing}; the kernel does not see what passes inside one process (inproc)")
    state_of_all: State = "in use" if "in use" in states else "cannot tell"
    return Links(first, None, commands, tuple(every), tuple(carriers), state_of_all, "\n".join(lines),
                 tuple(reasons))  # fmt: skip


def _socket_lists(processes: Iterable[Process]) -> tuple[Sockets, list[str]]:
    """Return all sockets of the processes' network namespaces, and what keeps some from being listed.

    Each network namespace has a list of its own. It need not be that of the process: a Unix socket that a server has
    accepted is in its client's. So the others are listed, too, if one is missing.
    """
    processes = list(processes)
    own = os.stat("/proc/self/ns/net").st_ino
    members = {process.namespaces["net"]: process.pid for process in processes if process.inodes}
    every, reasons = Sockets({}, {}), []
    for network, pid in members.items():
        try:
            with SocketList(None if network == own else pid) as sockets:
                every = Sockets({**every.unix, **sockets.unix()}, {**every.tcp, **sockets.tcp()})
        except PermissionError:
            every = Sockets(every.unix, {**every.tcp, **_tcp_of(pid)})
            what = "whose Unix sockets cannot be listed, and whose TCP is not counted"
            remedy = "run this inside it (`nsenter`, `docker exec`), or as root"
            reasons.append(f"process {pid} is in another network namespace, {what}; {remedy}")
        except OSError as error:
            reasons.append(f"the kernel lists no sockets here (netlink sock_diag: {error.strerror})")
    missing = {inode for process in processes for inode in process.inodes} - every.unix.keys() - every.tcp.keys()
    for pid, _ in other_networks("unix") if missing else ():
        with suppress(OSError), SocketList(pid) as sockets:  # it is left out where this user may not enter
            every = Sockets({**sockets.unix(), **every.unix}, {**sockets.tcp(), **every.tcp})
    return every, reasons


def _tcp_of(pid: int) -> dict[int, TcpSocket]:
    """Return inode → TCP connection in the network namespace of a process, without netlink."""
    tables = (Path(f"/proc/{pid}/net/{table}") for table in ("tcp", "tcp6"))
    return {each.inode: each for table in tables if table.exists() for each in parse_proc_tcp(table.read_text())}


def _between(
    one: Process, two: Process, near: Sockets, far: Sockets, holders: Holders
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Return what joins two processes, and notes."""
    found = [
        *memory_links(one, two),
        *unix_links(one, two, near, far, holders),
        *tcp_links(one, two, near, far, holders),
        *pipe_links(one, two, holders),
        *eventfd_links(one, two),
    ]
    apart = [kind for kind in NAMESPACES if one.namespaces[kind] != two.namespaces[kind]]
    notes = [f"the processes are in two {kind} namespaces" for kind in apart]
    return tuple(_with_libraries(found, one, two)), tuple(notes)


def _rivals(one: Process, two: Process, near: Sockets, far: Sockets) -> list[str]:
    """Return what could carry data besides links, in words: sockets of other kinds, and a file that one may write and
    the other reads.
    """
    found = []
    if all(each.inodes - listed.unix.keys() - listed.tcp.keys() for each, listed in ((one, near), (two, far))):
        found.append("both hold sockets of other kinds (UDP, for example)")
    if all(any(_is_alone(s) for s in listed.unix.values()) for listed in (near, far)):
        found.append("both hold Unix datagram sockets that are connected to nobody, and may send to anybody")
    for writer, reader in ((one, two), (two, one)):
        for each in writer.descriptors:
            if each.kind == "file" and each.writes and each.fd > _LAST_STREAM:
                reads = any(other.reads and other.fd > _LAST_STREAM for other in reader.by_key.get(each.key, ()))
                if reads and not any(map_.path == each.target for map_ in reader.mappings):
                    found.append(f"both have {each.target} open")
    return list(dict.fromkeys(found))


def _is_alone(found: UnixSocket) -> bool:
    return found.type == socket.SOCK_DGRAM and found.peer is None


def _with_libraries(found: list[Link], one: Process, two: Process) -> Iterator[Link]:
    """Yield the links; sockets and pipes get their library where something beside them shows it."""
    channels = _channels(one) & _channels(two)
    watched = any(link.role == "watch" for link in found)
    locks = any(link.kind == "semaphore" for link in found)
    for link in found:
        if link.library is None and link.kind in {"unix", "tcp", "pipe"} and link.role == "data":
            if channels:
                text = f"both hold files of ipcbench's channel {sorted(channels)[0]}"
                yield replace(link, library="ipcbench", evidence=(*link.evidence, text))
                continue
            if (link.kind == "pipe" and locks) or (
                link.kind == "unix" and watched and link.address.startswith("pair ")
            ):
                text = "multiprocessing's semaphores or watch pipes join the processes too"
                yield replace(link, library="multiprocessing", evidence=(*link.evidence, text))
                continue
        yield link


def _channels(process: Process) -> set[str]:
    """Return the folders of ipcbench's channels of which a process has files open."""
    folders = {PurePath(d.target).parent.name for d in process.descriptors if f"/{NAME_PREFIX}" in d.target}
    return {folder for folder in folders if folder.startswith(NAME_PREFIX)}
