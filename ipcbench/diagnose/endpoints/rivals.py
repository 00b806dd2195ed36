"""What two processes both hold and may pass data by, though nothing shows it: UDP, datagrams, files, queues."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ipcbench.diagnose.endpoints.link import Kind, Link
from ipcbench.diagnose.endpoints.netlink import UnixSocket
from ipcbench.diagnose.endpoints.process import Descriptor, Key, Process, device_of
from ipcbench.diagnose.endpoints.sockets import Sockets, is_system
from ipcbench.spec import NAME_PREFIX

_LAST_STREAM = 2
_PRIVATE = "mapped for itself"
_LATELY_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_TO_THE_KERNEL = re.compile(r"NETLINK|ALG")
_NETLINK = {"2", "16"}
"""NETLINK_USERSOCK and NETLINK_GENERIC."""
_LISTED = re.compile(r"UNIX|TCP|MPTCP")
"""What the lists of sockets have, each of one network namespace."""
_UNNAMED = re.compile(r"@[0-9a-f]{5}")
"""The name that the kernel chooses for a datagram socket which asks for any, as those of MPI's transports (UCX) do."""


def rival_links(one: Process, two: Process, every: Sockets, found: list[Link]) -> Iterator[Link]:
    """Yield a link for each thing of which nothing shows whether the two use it.

    Args:
        one: a process.
        two: another.
        every: all sockets that are listed.
        found: what joins the two otherwise.
    """
    yield from _other_sockets(one, two, every)
    yield from _datagrams(one, two, every)
    yield from _files(one, two, {link.address for link in found})
    yield from _terminals(one, two)
    yield from _queues(one, two)


def _link(kind: Kind, address: str, one: Process, two: Process, text: str) -> Link:
    return Link(kind, address, one.pid, two.pid, (text,), "unclear")


def _other_sockets(one: Process, two: Process, every: Sockets) -> Iterator[Link]:
    """Yield UDP, and sockets that no list has: of other protocols, or made in another network namespace."""
    unlisted = [each.inodes - every.unix.keys() - every.tcp.keys() for each in (one, two)]
    if not all(unlisted):
        return
    both = unlisted[0] & unlisted[1]
    near, far = (_protocols(each, inodes, both) for each, inodes in zip((one, two), unlisted, strict=True))
    for name in sorted(near.keys() & far.keys()):
        counts = f"process {one.pid}: {near[name]}, process {two.pid}: {far[name]}"
        if name == "UDP":
            yield _link("udp", f"sockets ({counts})", one, two, f"both hold UDP sockets: {counts}")
        elif name:
            yield _link("socket", f"{name} sockets ({counts})", one, two, f"both hold {name} sockets: {counts}")
        else:
            text = f"sockets that no network namespace which is seen here lists ({counts})"
            yield _link("socket", text, one, two, f"both hold {text}")


def _protocols(process: Process, inodes: set[int], both: set[int]) -> dict[str, int]:
    """Return protocol → number of sockets; those that are in a list of another network namespace have no name. No
    list has a TCP socket that was never bound or connected, either; one that both hold (a fork has copied it) is no
    connection between them.
    """
    found: dict[str, int] = defaultdict(int)
    for inode in inodes:
        name = process.protocol(process.sockets(inode)[0].fd)
        if name == "NETLINK" and inode in _between_programs(process):
            found[name] += 1
        if name and not _TO_THE_KERNEL.match(name) and not (name.startswith("TCP") and inode in both):
            found["" if _LISTED.match(name) else name.removesuffix("v6")] += 1
    return found


def _between_programs(process: Process) -> set[int]:
    """Return the netlink sockets by whose protocol programs reach each other, not only the kernel."""
    with suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{process.pid}/net/netlink").read_text().splitlines()[1:]]
        return {int(row[-1]) for row in rows if row[1] in _NETLINK}
    return set()


def _datagrams(one: Process, two: Process, every: Sockets) -> Iterator[Link]:
    """Yield the datagram sockets of the two that are no pair of theirs: they may send to anybody, or to one who passes
    it on.
    """
    own = one.inodes | two.inodes
    is_mpi = "MPI" in one.libraries & two.libraries
    sides = [[s for inode in each.inodes if (s := every.unix.get(inode)) and _is_free(s, every, own)
              and not (is_mpi and _UNNAMED.fullmatch(s.name or ""))] for each in (one, two)]  # fmt: skip
    if all(sides):
        names = sorted({s.name or "without a name" for side in sides for s in side})
        text = f"unix datagram sockets whose peer is not one of the two ({', '.join(names)})"
        yield _link("unix", text, one, two, f"both hold {text}")


def _is_free(found: UnixSocket, every: Sockets, own: set[int]) -> bool:
    if found.type != socket.SOCK_DGRAM or found.is_shut or found.peer in own or is_system(found.name):
        return False
    peer = every.unix.get(found.peer) if found.peer is not None else None
    return peer is None or not is_system(peer.name)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way of a process to a file."""

    key: Key
    shown: str
    """Path, with the kernel's mark of a deleted file."""
    text: str = "mapped"
    descriptor: Descriptor | None = None
    """None if it is a mapping."""

    def leads_to(self, other: _Way) -> bool:
        """Return whether both are of one file: some file systems have two devices for it, as overlay does."""
        return self.key[1] == other.key[1] and (self.key == other.key or self.shown == other.shown)


def _ways_to_write(process: Process) -> Iterator[_Way]:
    opened = (d for d in process.descriptors if d.kind == "file" and d.writes and d.fd > _LAST_STREAM)
    yield from (_Way(d.key, d.target, f"fd {d.fd}", d) for d in opened)
    yield from (_Way((device_of(m.key[0]), m.key[1]), m.shown) for m in process.mappings if m.writable)


def _ways_to_read(process: Process) -> Iterator[_Way]:
    opened = (d for d in process.descriptors if d.kind == "file" and d.reads and d.fd > _LAST_STREAM)
    yield from (_Way(d.key, d.target, f"fd {d.fd}", d) for d in opened)
    yield from (_Way((device_of(m.key[0]), m.key[1]), m.shown) for m in process.mappings)
    yield from (_Way((device_of(device), inode), path, _PRIVATE) for device, inode, path in process.private)


def _files(one: Process, two: Process, taken: set[str]) -> Iterator[Link]:
    """Yield each file that one can write and the other read, open or mapped: also a queue (mqueue), or a segment that
    only one maps (memfd). What both share in memory is no matter of this, nor are standard streams.
    """
    for writer, reader in ((one, two), (two, one)):
        writes = [way for way in _ways_to_write(writer) if f"/{NAME_PREFIX}" not in way.shown]
        inodes = {way.key[1] for way in writes}
        reads = [way for way in _ways_to_read(reader) if way.key[1] in inodes] if inodes else []
        for way in writes:
            path = way.shown.removesuffix(" (deleted)")
            other = next((each for each in reads if way.leads_to(each) and _may_pass(writer, way, reader, each)), None)
            if other is not None and path not in taken:
                taken = {*taken, path}
                text = f"process {writer.pid} may write it ({way.text}), and process {reader.pid} read it"
                yield _link("file", path, one, two, f"open file, inode {way.key[1]}: {text} ({other.text})")


def _may_pass(writer: Process, way: _Way, reader: Process, other: _Way) -> bool:
    """Return whether a file can carry data: not an empty one that is open, which is for locks, unless both may write
    it, and it was written lately, as one that is emptied after each message.
    """
    if way.descriptor is None or other.descriptor is None:
        return way.descriptor is not None or other.descriptor is not None or other.text == _PRIVATE
    fd = way.descriptor.fd
    return _has_bytes(writer, fd) or (other.descriptor.writes and _is_in_use(writer, reader, fd))


def _has_bytes(process: Process, fd: int) -> bool:
    with suppress(OSError):  # it was closed meanwhile
        return os.stat(f"/proc/{process.pid}/fd/{fd}").st_size > 0
    return False


def _is_in_use(one: Process, two: Process, fd: int) -> bool:
    """Return whether a file was written within the last minute, and a tick after both processes began at least."""
    with suppress(OSError):  # it was closed meanwhile
        written_s = os.stat(f"/proc/{one.pid}/fd/{fd}").st_mtime
        now_s = time.time()
        began_s = now_s - time.clock_gettime(time.CLOCK_BOOTTIME) + (max(one.started, two.started) + 1) / _TICKS
        return written_s > max(began_s, now_s - _LATELY_S)
    return False


def _terminals(one: Process, two: Process) -> Iterator[Link]:
    """Yield each terminal of which one holds the side of the program, and the other that of the user."""
    for master, slave in ((one, two), (two, one)):
        for key, held in master.by_key.items():
            if held[0].kind == "terminal" and any(d.target.endswith("ptmx") for d in held):
                ends = [d for d in slave.by_key.get(key, ()) if not d.target.endswith("ptmx")]
                if ends:
                    text = (
                        f"process {master.pid} holds its master (fd {held[0].fd}), process {slave.pid} fd {ends[0].fd}"
                    )
                    yield _link("terminal", ends[0].target, one, two, f"terminal: {text}")


def _queues(one: Process, two: Process) -> Iterator[Link]:
    """Yield the message queues of System V in which both were the last to send or to receive; the kernel names no
    others.
    """
    try:
        rows = [line.split() for line in Path("/proc/sysvipc/msg").read_text().splitlines()[1:]]
    except OSError:
        return
    own = os.stat("/proc/self/ns/ipc").st_ino
    used = {pid: [row[1] for row in rows if str(pid) in row[5:7]] for pid in (one.pid, two.pid)}
    if all(used.values()) and one.namespaces["ipc"] == two.namespaces["ipc"] == own:
        names = ", ".join(sorted({name for found in used.values() for name in found}, key=int))
        yield _link("message queue", names, one, two, f"both were the last to send to or receive from one: {names}")
