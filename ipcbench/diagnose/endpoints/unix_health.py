"""Whether somebody serves a Unix socket, as this network namespace and the others list their sockets."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ipcbench.diagnose.endpoints.look import LISTEN_THERE, SERVE, Look, command, exists, look_at_queues, may_use, named
from ipcbench.diagnose.endpoints.netlink import CLOSED, LISTEN, SocketList, UnixSocket
from ipcbench.diagnose.endpoints.process import holders, other_networks
from ipcbench.diagnose.endpoints.url import Endpoint

_ACCEPTS: Final = 0x10000  # in the flags of /proc/net/unix
_KINDS: Final[dict[int, str]] = {
    socket.SOCK_DGRAM: " (datagram socket)",
    socket.SOCK_SEQPACKET: " (socket of sequenced packets)",
}


def look_at_unix(endpoint: Endpoint, look: Look) -> None:
    """Look at the file of a Unix socket, and at who listens on it."""
    path, file = endpoint.address, None
    if not path.startswith("@"):
        if _is_missing(path) and (pids := _removed(path)):
            text = f"{path} does not exist: {named(pids)} listens, and its file was removed or moved"
            look.add("problem", text, "restart the server")
            return
        file = exists(Path(path), look, "a socket", stat.S_ISSOCK)
        if file is None:
            return
        may_use(Path(path), look, "w")
    try:
        with SocketList() as sockets:
            every = [s for s in sockets.unix().values() if s.name is not None or s.file is not None]
    except OSError as error:
        look.add("unknown", f"the kernel lists no sockets here ({error.strerror}): who listens cannot be told")
        return
    is_at = _at(path, file)
    found = [s for s in every if is_at(s) and _is_bound(s)]
    if any(_is_served(s) for s in found):
        _served(endpoint, look, [s for s in found if _is_served(s)])
    elif found:
        pids = _holders(s.inode for s in found)
        look.add("problem", f"{path} is bound, and not listened on: {named(pids)}", LISTEN_THERE)
    elif not _in_another_network(path, is_at, look):
        _unserved(path, look, [s for s in every if file is not None and s.name == path and _is_served(s)])


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _removed(path: str) -> set[int]:
    """Return the processes that listen on a file of this name, which is not there any more."""
    with suppress(OSError), SocketList() as sockets:
        pids = _holders(s.inode for s in sockets.unix().values() if s.name == path and _is_served(s))
        return {pid for pid in pids if _sees(pid, "mnt")}
    return set()


def _at(path: str, file: os.stat_result | None) -> Callable[[UnixSocket], bool]:
    """Return what tells a path's sockets: its file, and its name where the kernel has no other word for it."""
    kind = None if file is None else _file_systems().get(file.st_dev)

    def is_at(found: UnixSocket) -> bool:
        if file is None or found.file is None:
            return found.name == path
        if kind is None or kind == "overlay":  # its inodes, or its device, are not those of the kernel's list
            return found.name == path or found.file == file.st_ino
        return (found.file, found.device) == (file.st_ino, file.st_dev)

    return is_at


def _file_systems() -> dict[int, str]:
    """Return device → kind of file system, of all that are mounted here."""
    kinds = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        major, _, minor = before.split()[2].partition(":")
        kinds[os.makedev(int(major), int(minor))] = after.split()[0]
    return kinds


def _is_bound(found: UnixSocket) -> bool:
    return found.state in {LISTEN, CLOSED} and found.peer is None


def _is_served(found: UnixSocket) -> bool:
    return found.state == LISTEN or (found.type == socket.SOCK_DGRAM and _is_bound(found))  # that has only a name


def _holders(inodes: Iterable[int]) -> set[int]:
    return {pid for pids in holders(set(inodes)).values() for pid in pids}


def _served(endpoint: Endpoint, look: Look, found: list[UnixSocket]) -> None:
    kinds = {s.type for s in found}
    what = "".join(_KINDS.get(kind, "") for kind in sorted(kinds))
    pids = _holders(s.inode for s in found)
    look.serve(f"{endpoint.address} is served by{what}", pids)
    look_at_queues((s.queue for s in found), pids, look)
    if endpoint.url.startswith("ipc://") and socket.SOCK_STREAM not in kinds:
        text = f"{endpoint.address} is no stream{what}, and ZeroMQ (ipc://) needs one"
        look.add("problem", text, "have the server bind a stream, or name it unix://")


def _unserved(path: str, look: Look, removed: list[UnixSocket]) -> None:
    """Say that nobody serves it; somebody may still listen on a file of this name that is no longer this one."""
    if path.startswith("@"):
        look.add("problem", f"nobody in this network namespace listens on {path}", SERVE)
        return
    pids = _holders(s.inode for s in removed)
    if pids and all(_sees(pid, "mnt") for pid in pids):
        text = f"{path} is stale: {named(pids)} listens on a file of this name that was removed or moved"
        look.add("problem", text, "restart the server; the file that is there belongs to no server")
        return
    text = f"{path} is stale: the file is there, and nobody listens on it"
    if removed:
        text += f"; {named(pids)} listens on another file of this name (removed, moved, or in another mount namespace)"
    remedy = f"remove it{command('rm', path)} and start the server; one that died leaves its file behind"
    look.add("problem", text, remedy)


def _sees(pid: int, kind: str) -> bool:
    """Return whether a process is in a namespace of this one."""
    try:
        return os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}")
    except OSError:
        return False


def _in_another_network(path: str, is_at: Callable[[UnixSocket], bool], look: Look) -> bool:
    """Look whether it is served in another network namespace, and say so: a file is reached from here, a name is not.

    Its sockets are known by their names alone where this user may not enter.
    """
    for pid, _, table in other_networks("unix"):
        try:
            with SocketList(pid) as sockets:
                inodes = {s.inode for s in sockets.unix().values() if is_at(s) and _is_served(s)}
            is_sure = True
        except OSError:
            inodes, is_sure = set(_listening(table, path)), False
        if not inodes:
            continue
        pids = _holders(inodes)
        if path.startswith("@"):
            text = f"{path} is served in another network namespace ({named(pids)}), and not seen in this one"
            look.add("problem", text, "share the network (docker run --network host), or use a path that both can see")
        elif is_sure:
            look.serve(f"{path} is served in another network namespace by", pids)
        else:
            text = f"{named(pids)} listens on a file of this name in another network namespace"
            look.add("unknown", f"{text}; whether it is this one cannot be told", "run this as root")
        return True
    return False


def _listening(table: str, path: str) -> Iterator[int]:
    """Yield the inodes of the sockets that listen on a path, from a table /proc/PID/net/unix."""
    for line in table.splitlines():
        words = line.split(None, 7)
        if len(words) == 8 and words[7] == path and int(words[3], 16) & _ACCEPTS:
            yield int(words[6])
