"""Third processes that two are connected to: brokers, proxies, managers, which may pass the data on between the two."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

from ipcbench.diagnose.endpoints.link import Link, Relay, processes
from ipcbench.diagnose.endpoints.netlink import LISTEN, TcpSocket
from ipcbench.diagnose.endpoints.pipes import pipe_links
from ipcbench.diagnose.endpoints.process import (
    SOCKETS,
    Holders,
    Key,
    Process,
    Unreadable,
    command_of,
    read_process,
    shortened,
)
from ipcbench.diagnose.endpoints.sockets import (
    Sockets,
    bound_name,
    is_system,
    may_reach,
    tcp_links,
    udp_links,
    unix_links,
    written,
)
from ipcbench.diagnose.endpoints.verdict import listed
from ipcbench.util.units import format_bytes

_CARRIES = {"data", "shared", "handshake"}
_STDERR = 2
_HERE = "here"
"""Where the other end of a TCP connection is, if it is listed and no process of it is seen."""


class Relays:
    """What may stand between processes; each is looked at once."""

    def __init__(self, every: Sockets, holders: Holders, known: Iterable[Process]) -> None:
        """Begin.

        Args:
            every: all sockets of the network namespaces of the processes.
            holders: who holds them.
            known: processes that were looked at already.
        """
        self._every, self.holders = every, holders
        self._known: dict[int, Process | None] = {process.pid: process for process in known}

    def with_sockets(self, every: Sockets) -> Relays:
        """Return the same with a new list of sockets."""
        return Relays(every, self.holders, [process for process in self._known.values() if process is not None])

    def between(self, one: Process, two: Process) -> list[Relay]:
        """Return the third processes to which both are connected, if the connections lead from one to the other."""
        pids = set(self.holders.of(self._reached(one))) & set(self.holders.of(self._reached(two)))
        found = [self._relay(one, two, pid) for pid in sorted(pids - {one.pid, two.pid})]
        relays = [relay for relay in found if relay]
        for more in (self._served, self._unseen):  # one may be known in two ways
            told = {leg.address for relay in relays for leg in relay.legs}
            relays += [relay for relay in more(one, two) if not told.issuperset(leg.address for leg in relay.legs)]
        return [relay for relay in relays if relay.carried_bytes != 0]

    def _relay(self, one: Process, two: Process, pid: int) -> Relay | None:
        if pid not in self._known:
            self._known[pid] = None
            with suppress(Unreadable):  # it has just ended
                self._known[pid] = read_process(pid)
        third = self._known[pid]
        if third is None:
            return None
        near, far = self._legs(one, third, two.pid), self._legs(two, third, one.pid)
        if not near or not far:
            return None
        text = f"both are connected to process {pid} ({shortened(third.command)}) by {listed((*near, *far))}"
        return _relay(text, near, far, pid in {one.parent, two.parent})

    def _legs(self, process: Process, third: Process, pid: int) -> list[Link]:
        """Return what joins a process with a third one, unless the other one has it, too: then it joins the two."""
        mine, others = (self._every.of(each) for each in (process, third))
        carries = _CARRIES | ({"standard stream"} if streams_to(third, process, self._every) else set())
        links = (
            *unix_links(process, third, mine, others, self.holders),
            *tcp_links(process, third, mine, others, self.holders),
            *pipe_links(process, third, self.holders),
        )
        found = [link for link in links if link.role in carries and pid not in link.others
                 and not (link.kind == "unix" and is_system(link.address))]  # fmt: skip
        return [*found, *udp_links(process, third, mine, others)]

    def _reached(self, process: Process) -> set[Key]:
        """Return the other ends of a process's connections, and its pipes."""
        own = self._every.of(process)
        unix = {peer for each in own.unix for peer in self._unix_peers(each)}
        tcp = {inode for each in own.tcp.values() for inode in self._tcp_ends.get((each.remote, each.local), ())}
        udp = {far.inode for far in self._every.udp.values() if any(may_reach(near, far) for near in own.udp.values())}
        pipes = {key for key, held in process.by_key.items() if held[0].kind == "pipe"}
        return {(SOCKETS, inode) for inode in unix | tcp | udp} | pipes

    def _unix_peers(self, inode: int) -> Iterator[int]:
        """Yield the sockets at the other side of one, but not those of a system's services."""
        own = self._every.unix[inode]
        for peer in {own.peer, *self._unix_clients.get(inode, ())} - {None}:
            far = self._every.unix.get(peer) if peer is not None else None
            if peer is not None and not any(s is not None and is_system(s.name) for s in (own, far)):
                yield peer

    @cached_property
    def _unix_clients(self) -> dict[int, list[int]]:
        """Return inode → those that name it as their peer: a datagram socket itself names none."""
        found: dict[int, list[int]] = defaultdict(list)
        for each in self._every.unix.values():
            if each.peer is not None:
                found[each.peer].append(each.inode)
        return found

    @cached_property
    def _tcp_ends(self) -> dict[tuple[tuple[str, int], tuple[str, int]], list[int]]:
        """Return local and remote address → sockets; namespaces have addresses in common."""
        found: dict[tuple[tuple[str, int], tuple[str, int]], list[int]] = defaultdict(list)
        for each in self._every.tcp.values():
            if each.state != LISTEN:
                found[each.local, each.remote].append(each.inode)
        return found

    def _served(self, one: Process, two: Process) -> Iterator[Relay]:
        """Yield the addresses to which both are connected: a server may have a process for each client."""
        near, far = self._clients(one), self._clients(two)
        for address in sorted(near.keys() & far.keys()):
            ends = {(SOCKETS, end) for side in (near, far) for _, ends in side[address] for end in ends}
            pids = self.holders.of(ends)
            if pids and set(pids) <= {one.pid, two.pid}:
                continue  # one of the two serves it
            who = f"{processes(pids)} ({shortened(command_of(pids[0]))})" if pids else "a process that is not seen here"
            mine, others = ([leg for leg, _ in side[address]] for side in (near, far))
            yield _relay(f"both are connected to {address}, served by {who}", mine, others)

    def _clients(self, process: Process) -> dict[str, list[tuple[Link, list[int]]]]:
        """Return address → links to the server there, and the other ends of them."""
        found: dict[str, list[tuple[Link, list[int]]]] = defaultdict(list)
        own = self._every.of(process)
        listening = {s.local[1] for s in own.tcp.values() if s.state == LISTEN}
        for tcp in own.tcp.values():
            if tcp.state != LISTEN and tcp.remote[1] and tcp.local[1] not in listening:
                leg = _tcp_leg(process, tcp)
                found[leg.address].append((leg, self._tcp_ends.get((tcp.remote, tcp.local), [])))
        for inode in own.unix:
            for peer in self._unix_peers(inode):
                far = self._every.unix.get(peer)
                if far is not None and far.name:
                    name = bound_name(far.name, process)
                    found[name].append((Link("unix", name, process.pid, 0, ()), [peer]))
        return found

    def _unseen(self, one: Process, two: Process) -> Iterator[Relay]:
        """Yield what both are connected to where the process at the other side is not seen: it may be the same."""
        sides = [{peer for inode in self._every.of(each).unix for peer in self._unix_peers(inode)
                  if not self.holders.of({(SOCKETS, peer)})} for each in (one, two)]  # fmt: skip
        if all(sides):
            names = {self._every.unix[peer].name for side in sides for peer in side if peer in self._every.unix}
            served = ", ".join(sorted(name for name in names if name)) or "without a name"
            text = (
                f"both have Unix sockets ({served}) whose other ends are of processes that user {os.geteuid()} may not "
                "read, and may be of one"
            )
            legs = (Link("unix", served, one.pid, 0, ()), Link("unix", served, two.pid, 0, ()))
            yield Relay(text, legs, None)
        near, far = self._unseen_tcp(one), self._unseen_tcp(two)
        for place in sorted(near.keys() & far.keys()):
            mine, others = ([_tcp_leg(each, s) for s in ends[place]] for each, ends in ((one, near), (two, far)))
            at = {written(s.remote) for ends in (near, far) for s in ends[place]}
            where = ", ".join(f"tcp://{address}" for address in sorted(at))
            text = f"both are connected to {where}, where the process at the other side is not seen"
            yield _relay(text, mine, others)

    def _unseen_tcp(self, process: Process) -> dict[str, list[TcpSocket]]:
        """Return host → connections of which the other end is there, and held by no process that is seen."""
        found: dict[str, list[TcpSocket]] = defaultdict(list)
        for each in self._every.of(process).tcp.values():
            if each.state != LISTEN and each.remote[1]:
                ends = self._tcp_ends.get((each.remote, each.local), [])
                if not self.holders.of({(SOCKETS, inode) for inode in ends}):
                    found[_HERE if ends else each.remote[0]].append(each)
        return found


def _tcp_leg(process: Process, socket: TcpSocket) -> Link:
    sent, received = socket.sent_bytes, socket.received_bytes
    return Link("tcp", f"tcp://{written(socket.remote)}", process.pid, 0, (), sent_bytes=sent, received_bytes=received)


def _relay(text: str, near: list[Link], far: list[Link], is_launcher: bool = False) -> Relay:
    """Return a relay; what one has sent to it, and the other has received, is the most that it can have passed on."""
    ways = [
        _lesser(_sum(link.sent_bytes for link in sender), _sum(link.received_bytes for link in receiver))
        for sender, receiver in ((near, far), (far, near))
    ]
    carried = _sum(ways)
    if carried is not None:
        text = f"{text}, by which it can have passed on {format_bytes(carried)} at most"
    return Relay(text, (*near, *far), carried, is_launcher)


def _sum(counts: Iterable[int | None]) -> int | None:
    counts = list(counts)
    return None if None in counts else sum(count for count in counts if count is not None)


def _lesser(one: int | None, two: int | None) -> int | None:
    return min((count for count in (one, two) if count is not None), default=None)


def streams_to(process: Process, other: Process, every: Sockets) -> set[int]:
    """Return which of a process's input (0) and output (1) lead to another one, as those of a tool or a filter; not
    what it gets from a child's output.
    """
    found = set()
    for mine in process.descriptors:
        if mine.fd < _STDERR and mine.kind == "socket" and (socket := every.unix.get(mine.key[1])):
            if socket.peer is not None and other.sockets(socket.peer):
                found.add(mine.fd)
        elif mine.fd < _STDERR and mine.kind == "pipe":
            ends = [d for d in other.by_key.get(mine.key, ()) if d.reads != d.writes]
            if any((mine.reads and d.writes) or (mine.writes and d.reads) for d in ends):
                found.add(mine.fd)
    return found
