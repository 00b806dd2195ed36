"""Which sockets, pipes, segments and mapped files join two processes, or a process with any others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from threading import Event
from typing import Final, Literal

from ipcbench.diagnose.endpoints.link import MEMORY, Link, Relay
from ipcbench.diagnose.endpoints.memory import memory_links
from ipcbench.diagnose.endpoints.netlink import SocketList, TcpSocket, UnixSocket, parse_proc_tcp
from ipcbench.diagnose.endpoints.pipes import eventfd_links, pipe_links
from ipcbench.diagnose.endpoints.process import (
    NAMESPACES,
    Holders,
    Process,
    Unreadable,
    command_of,
    leader,
    other_networks,
    pids,
    read_process,
    require_running,
    shortened,
)
from ipcbench.diagnose.endpoints.relays import Relays, streams_to
from ipcbench.diagnose.endpoints.rivals import rival_links
from ipcbench.diagnose.endpoints.sockets import Sockets, common_servers, is_system, tcp_links, unix_links
from ipcbench.diagnose.endpoints.verdict import Agreement, State, agrees_with, counted, judge, unless_elsewhere
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.text import printable

_BETWEEN_LOOKS_S: Final = 0.02
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
        return _with_any(leader(first))
    require_running("pid", second)
    threads = "".join(f" ({pid} is one of its threads)" for pid in (first, second) if pid != leader(pid))
    first, second = leader(first), leader(second)
    if first == second:
        inside = "the kernel does not see what passes inside one process (threads, inproc)"
        return _unknown(first, second, f"both are process {first}{threads}; {inside}")
    try:
        one, two = read_process(first), read_process(second)
        every, reasons = _socket_lists((one, two))
        holders = Holders()
        between = Relays(every, holders, (one, two))
        relays = between.between(one, two)
        near, far = every.of(one), every.of(two)
        found, notes = _between(one, two, every, holders)
        state, verdict, carriers = _judged(one, two, found, relays, between)
    except Unreadable as reason:
        return _unknown(first, second, str(reason))
    gone = [each.pid for each in (one, two) if not each.is_same()]
    if gone:
        return _unknown(first, second, f"process {gone[0]} ended while it was looked at")
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
    relays = Relays(listed, holders, (one, *others))
    for other in others:
        found, _ = _between(one, other, listed, holders)
        found = tuple(link for link in found if not (link.kind == "unix" and is_system(link.address)))
        if any(link.role != "unclear" or link.kind in MEMORY for link in found):  # UDP joins everybody
            state, verdict, data = _judged(one, other, found, relays.between(one, other), relays)
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
    every, reasons = Sockets({}, {}, {}), []
    for network, pid in members.items():
        try:
            with SocketList(None if network == own else pid) as sockets:
                every = _merged(every, network, sockets.unix(), sockets.tcp())
        except PermissionError:
            every = _merged(every, network, {}, _table(pid, "tcp"))
            what = "whose Unix sockets cannot be listed, and whose TCP is not counted"
            remedy = "run this inside it (`nsenter`, `docker exec`), or as root"
            reasons.append(f"process {pid} is in another network namespace, {what}; {remedy}")
        except OSError as error:
            reasons.append(f"the kernel lists no sockets here (netlink sock_diag: {error.strerror})")
    missing = {inode for process in processes for inode in process.inodes} - every.unix.keys() - every.tcp.keys()
    others = {own: None, **{network: pid for pid, network, _ in other_networks("unix")}} if missing else {}
    for network, inside in others.items():
        if network not in members:
            with suppress(OSError), SocketList(inside) as sockets:  # it is left out where this user may not enter
                every = _merged(every, network, sockets.unix(), sockets.tcp())
    udp = {inode: each for pid in members.values() for inode, each in _table(pid, "udp").items()} if missing else {}
    return replace(every, udp=udp), reasons


def _merged(every: Sockets, network: int, unix: dict[int, UnixSocket], tcp: dict[int, TcpSocket]) -> Sockets:
    networks = {**dict.fromkeys(tcp, network), **every.networks}
    return Sockets({**unix, **every.unix}, {**tcp, **every.tcp}, networks)


def _table(pid: int, protocol: Literal["tcp", "udp"]) -> dict[int, TcpSocket]:
    """Return inode → socket in the network namespace of a process, without netlink."""
    tables = (Path(f"/proc/{pid}/net/{table}") for table in (protocol, f"{protocol}6"))
    return {each.inode: each for table in tables if table.exists() for each in parse_proc_tcp(table.read_text())}


def _judged(
    one: Process, two: Process, found: Sequence[Link], relays: Sequence[Relay], between: Relays
) -> tuple[State, str, tuple[Link, ...]]:
    """Return what is in use; where a third process could be, too, only after a second look at what moves."""
    state, verdict, carriers = judge(found, relays)
    if state == "cannot tell" or not relays or not counted(carriers):
        return state, verdict, carriers
    Event().wait(_BETWEEN_LOOKS_S)  # what is in use moves meanwhile, if it ever does
    every, _ = _socket_lists((one, two))
    moved = [link for link in _between(one, two, every, between.holders)[0] if link.kind == "tcp"]
    again = between.with_sockets(every).between(one, two)
    reason = unless_elsewhere((carriers, relays), (moved, again))
    if reason is None:
        return state, verdict, carriers
    return "cannot tell", reason, (*carriers, *(leg for relay in again for leg in relay.legs))


def _between(one: Process, two: Process, every: Sockets, holders: Holders) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Return what joins two processes, and notes."""
    near, far = every.of(one), every.of(two)
    found = [
        *memory_links(one, two),
        *unix_links(one, two, near, far, holders),
        *tcp_links(one, two, near, far, holders),
        *pipe_links(one, two, holders),
        *eventfd_links(one, two),
    ]
    apart = [kind for kind in NAMESPACES if one.namespaces[kind] != two.namespaces[kind]]
    notes = [f"the processes are in two {kind} namespaces" for kind in apart]
    if any(streams_to(each, other, every) == {0, 1} for each, other in ((one, two), (two, one))):
        found = [replace(link, role="dialogue") if link.role == "standard stream" else link for link in found]
    found += rival_links(one, two, every, found)
    return tuple(_with_libraries(found, one, two)), tuple(notes)


def _with_libraries(found: list[Link], one: Process, two: Process) -> Iterator[Link]:
    """Yield the links; sockets and pipes get their library where something beside them shows it."""
    channels = _channels(one) & _channels(two)
    watched = any(link.role == "watch" for link in found)
    locks = any(link.kind == "semaphore" for link in found)
    for link in found:
        library, text = None, ""
        if link.library is None and link.role in {"data", "shared"}:
            parents = one.parent == two.parent and one.parent in link.others
            if link.role == "shared" and not (parents and link.address.startswith(("pipe without", "pair "))):
                pass  # a third process, of which nothing is known
            elif link.role == "shared" and "MPI" in one.libraries & two.libraries:
                library, text = "MPI", "the launcher of MPI, which has started both, holds it, too"
            elif link.others and link.others != (one.parent,):
                pass
            elif channels and (link.kind == "tcp" or f"/{NAME_PREFIX}" in link.address) and link.kind not in MEMORY:
                library, text = "ipcbench", f"both hold files of ipcbench's channel {sorted(channels)[0]}"
            elif (link.kind == "pipe" and locks) or (
                link.kind == "unix" and watched and link.address.startswith("pair ")
            ):
                library, text = "multiprocessing", "multiprocessing's semaphores or watch pipes join the processes too"
        yield link if library is None else replace(link, library=library, evidence=(*link.evidence, text))


def _channels(process: Process) -> set[str]:
    """Return the folders of ipcbench's channels of which a process has files open."""
    folders = {PurePath(d.target).parent.name for d in process.descriptors if f"/{NAME_PREFIX}" in d.target}
    return {folder for folder in folders if folder.startswith(NAME_PREFIX)}
