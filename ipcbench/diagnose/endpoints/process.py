"""One process as /proc shows it: its descriptors, its shared mappings, its namespaces."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from ipcbench.errors import ConfigError

NAMESPACES: Final = ("pid", "net", "ipc", "mnt")
_LIBRARIES: Final = {
    "ZeroMQ": re.compile(rb"/libzmq[^/]*$|/zmq/backend/"),
    "Python": re.compile(rb"/(lib)?python\d[^/]*$"),
    "MPI": re.compile(rb"/libmpi[^/]*$|/libmpich[^/]*$"),
}
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MOST_PAGES: Final = 2**16
"""Of a mapping, how many pages are looked at: 256 MiB of small ones."""
_MOST_CHARACTERS: Final = 80
_PRESENT: Final = 0x80  # in the last byte of a page's entry
_NON_BLOCKING: Final = os.O_NONBLOCK

Key = tuple[int, int]
"""Device and inode: what makes two descriptors the same thing. What has a number of its own in the kernel, and lies on
no device that could be told from another, has one of the devices below."""
EVENTFDS: Final = -1
SOCKETS: Final = -2
PIPES: Final = -3
TERMINALS: Final = -4
_TERMINAL: Final = re.compile(r"/dev/ptmx|/dev/pts/(?:ptmx|(\d+))")
_NUMBERED: Final = re.compile(r"(socket|pipe):\[(\d+)\]")
"""What a descriptor of such a thing leads to: it tells as much as a look at the thing itself, for less."""


class Unreadable(Exception):
    """A process cannot be looked at; the text says why, and what helps."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open descriptor."""

    fd: int
    """Its number."""
    kind: Literal["socket", "pipe", "eventfd", "file", "terminal"]
    """`pipe` is a named one too; `terminal` is either side of one that programs make (pty)."""
    key: Key
    """What it leads to; of a socket, a pipe without a name and an eventfd its number in the kernel."""
    reads: bool
    """Whether it is open for reading."""
    writes: bool
    """Whether it is open for writing."""
    target: str
    """Path, or `pipe:[inode]` and the like."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A shared mapping of a file or a segment."""

    key: tuple[str, int]
    """Device and inode, as the kernel writes them."""
    start: int
    """First address."""
    end: int
    """Address behind the last one."""
    writable: bool
    """Whether the process may write there."""
    path: str
    """File, without the kernel's mark of a deleted one."""
    shown: str
    """The same with that mark, if there is one."""


@dataclass(frozen=True, slots=True)
class Process:
    """What one process holds."""

    pid: int
    """Its number, here."""
    command: str
    """How it was started, as one line."""
    parent: int
    """Number of the process that started it; 0 if that lies outside this PID namespace."""
    started: int
    """When, in clock ticks since the boot: tells it from a later process of the same number."""
    namespaces: dict[str, int]
    """Kind → number."""
    libraries: frozenset[str]
    """Which of the libraries that can be told by their name are mapped."""
    descriptors: tuple[Descriptor, ...]
    """All that are open, by number."""
    mappings: tuple[Mapping, ...]
    """All shared ones of files and segments."""
    private: frozenset[tuple[str, int, str]]
    """Device, inode and path, as the kernel writes them, of all files that are mapped for itself alone: it sees there
    what others write, until it writes itself."""
    by_key: dict[Key, list[Descriptor]] = field(repr=False, default_factory=dict)
    """Sockets, pipes and files by what they lead to."""

    @property
    def inodes(self) -> set[int]:
        """Inodes of its sockets."""
        return {each.key[1] for each in self.descriptors if each.kind == "socket"}

    def sockets(self, inode: int) -> list[Descriptor]:
        """Return the descriptors of a socket."""
        return self.by_key.get((SOCKETS, inode), [])

    def protocol(self, fd: int) -> str | None:
        """Return what the kernel calls the protocol of a socket (`UDP`, `UNIX-STREAM` …); None if it is gone."""
        try:
            name = os.getxattr(f"/proc/{self.pid}/fd/{fd}", "system.sockprotoname")
        except OSError:
            return None
        return name.rstrip(b"\0").decode(errors="replace")

    def has_touched(self, key: tuple[str, int]) -> bool | None:
        """Return whether this process has a page of a mapping in its page table; None if the kernel does not say, or
        none of those that are looked at is.
        """
        own = [each for each in self.mappings if each.key == key]
        try:
            with open(f"/proc/{self.pid}/pagemap", "rb", buffering=0) as pages:
                if any(_any_present(pages.fileno(), each) for each in own):
                    return True
        except OSError:
            return None
        return None if any(each.end - each.start > _MOST_PAGES * PAGE_BYTES for each in own) else False

    def is_blocking(self, fd: int) -> bool | None:
        """Return whether a descriptor blocks; None if it is gone."""
        for line in _text(f"/proc/{self.pid}/fdinfo/{fd}").splitlines():
            if line.startswith("flags:"):
                return not int(line.split()[1], 8) & _NON_BLOCKING
        return None

    def own_empty_inputs(self) -> set[int]:
        """Return the descriptors that lead to /dev/null to read, and that end with the program (close-on-exec)."""
        found = set()
        for path, target in _targets(self.pid):
            name = path.rpartition("/")[2]
            flags = int(_info(self.pid, name, "flags") or "0", 8) if target == os.devnull else 0
            if flags & os.O_CLOEXEC and flags & os.O_ACCMODE == os.O_RDONLY:
                found.add(int(name))
        return found

    def is_same(self) -> bool:
        """Return whether it still runs."""
        try:
            return _status(self.pid)[2] == self.started
        except Unreadable:
            return False


def read_process(pid: int) -> Process:
    """Look at a process.

    Raises:
        Unreadable: it belongs to another user, or ends meanwhile.
    """
    _, parent, started = _status(pid)
    try:
        descriptors = _descriptors(pid)
        libraries, mappings, private = _maps(pid)
        namespaces = {kind: os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in NAMESPACES}
    except (FileNotFoundError, ProcessLookupError) as error:
        raise Unreadable(f"process {pid} ended while it was looked at") from error
    except PermissionError as error:
        _status(pid)  # that of one that has just ended is readable by nobody
        raise Unreadable(_refused(pid)) from error
    if _status(pid)[2] != started:
        raise Unreadable(f"process {pid} ended while it was looked at")
    by_key = defaultdict(list)
    for each in descriptors:
        by_key[each.key].append(each)
    return Process(pid, command_of(pid), parent, started, namespaces, libraries, descriptors, mappings, private,
                   dict(by_key))  # fmt: skip


def require_running(field_name: str, pid: int) -> None:
    """Do nothing if there is such a process.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0 or not Path("/proc", str(pid)).exists():
        raise ConfigError(field_name, pid, "the number of a running process, as `ps` shows it here")


def leader(pid: int) -> int:
    """Return the process to which a thread belongs; a process's own number is that of its first thread."""
    match = re.search(r"^Tgid:\s*(\d+)", _text(f"/proc/{pid}/status"), re.MULTILINE)
    return int(match[1]) if match else pid


def pids() -> list[int]:
    """Return the numbers of all processes that are visible here."""
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def holders(inodes: set[int]) -> dict[int, list[int]]:
    """Return inode of a socket → processes that hold it, of those that this user may read."""
    every = Holders()
    return {inode: found for inode in inodes if (found := every.of({(SOCKETS, inode)}))}


class Holders:
    """Which processes hold a socket or a pipe, of those that this user may read; /proc is read once, when first
    asked.
    """

    def of(self, keys: set[Key]) -> list[int]:
        """Return the processes that hold one of these."""
        found = (self._numbered if key[0] in {SOCKETS, PIPES} else self._named for key in keys)
        return sorted({pid for key, held in zip(keys, found, strict=True) for pid in held.get(key, ())})

    @cached_property
    def _numbered(self) -> dict[Key, set[int]]:
        found: dict[Key, set[int]] = defaultdict(set)
        for pid in pids():
            for _, target in _targets(pid):
                if match := _NUMBERED.fullmatch(target):
                    found[_key(match)].add(pid)
        return found

    @cached_property
    def _named(self) -> dict[Key, set[int]]:
        """Return those of named pipes: a path may differ from process to process, so each is looked at."""
        found: dict[Key, set[int]] = defaultdict(set)
        for pid in pids():
            for path, target in _targets(pid):
                if target.startswith("/"):
                    with suppress(OSError):  # it was closed meanwhile
                        status = os.stat(path)
                        if stat.S_ISFIFO(status.st_mode):
                            found[status.st_dev, status.st_ino].add(pid)
        return found


def _key(match: re.Match[str]) -> Key:
    return SOCKETS if match[1] == "socket" else PIPES, int(match[2])


def mappers(device: int, inode: int) -> list[int]:
    """Return the processes that map a file, of those that this user may read."""
    found = []
    for pid in pids():
        for line in _bytes(f"/proc/{pid}/maps").splitlines():
            words = line.split(None, 5)
            if len(words) == 6 and words[4] == b"%d" % inode and device_of(words[3].decode()) == device:
                found.append(pid)
                break
    return found


def command_of(pid: int) -> str:
    """Return a process's command as one line, its name in brackets if it has none, `?` if it is gone."""
    words = _bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    line = " ".join(words.split())
    return line or f"[{_text(f'/proc/{pid}/comm').strip() or '?'}]"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or by a debugger; False if it is gone."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])


def shortened(command: str) -> str:
    """Return a command for a sentence: its beginning, and `…` if that is not all."""
    return command if len(command) <= _MOST_CHARACTERS else f"{command[: _MOST_CHARACTERS - 1]}…"


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with.

    Raises:
        Unreadable: it belongs to another user, or has ended.
    """
    _status(pid)
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise Unreadable(_refused(pid)) from error
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def _refused(pid: int) -> str:
    try:
        owner = f"user {os.stat(f'/proc/{pid}').st_uid}"
    except OSError:
        owner = "another user"
    who = os.geteuid()
    remedy = "run this as its user, or as root" if who else "run this where root may (outside of a container)"
    return f"process {pid} ({owner}) cannot be read by user {who}; {remedy}"


def _status(pid: int) -> tuple[str, int, int]:
    """Return state, parent, time of start."""
    text = _text(f"/proc/{pid}/stat")
    words = text.rpartition(")")[2].split()
    if not words or words[0] in "ZX":
        raise Unreadable(f"process {pid} has ended")
    return words[0], int(words[1]), int(words[19])


def _descriptors(pid: int) -> tuple[Descriptor, ...]:
    folder = f"/proc/{pid}/fd"
    found = []
    for name in sorted(os.listdir(folder), key=int):
        path = f"{folder}/{name}"
        try:
            target = os.readlink(path)
            if target.startswith("socket:["):
                found.append(Descriptor(int(name), "socket", (SOCKETS, int(target[8:-1])), True, True, target))
                continue
            seen = _look_at(pid, name, target)
            rights = os.lstat(path).st_mode
        except FileNotFoundError:
            continue  # it was closed meanwhile
        if seen is not None:
            found.append(Descriptor(int(name), *seen, bool(rights & 0o400), bool(rights & 0o200), target))
    return tuple(found)


def _look_at(pid: int, name: str, target: str) -> tuple[Literal["pipe", "eventfd", "file", "terminal"], Key] | None:
    """Return what a descriptor that is no socket leads to; None for /dev/null, a folder, an epoll instance …

    Raises:
        FileNotFoundError: it was closed meanwhile.
    """
    if target.startswith("pipe:["):
        return "pipe", (PIPES, int(target[6:-1]))
    if target == "anon_inode:[eventfd]":
        return "eventfd", (EVENTFDS, _eventfd(pid, name))
    if not target.startswith("/"):
        return None
    if match := _TERMINAL.fullmatch(target):
        number = match[1] or _info(pid, name, "tty-index")
        return None if number is None else ("terminal", (TERMINALS, int(number)))
    status = os.stat(f"/proc/{pid}/fd/{name}")
    key = status.st_dev, status.st_ino
    return ("pipe", key) if stat.S_ISFIFO(status.st_mode) else ("file", key) if stat.S_ISREG(status.st_mode) else None


def _eventfd(pid: int, name: str) -> int:
    """Return the number of an eventfd; a kernel before 5.2 has none, and then it is like no other."""
    number = _info(pid, name, "eventfd-id")
    return -pid * 2**20 - int(name) if number is None else int(number)


def _info(pid: int, name: str, what: str) -> str | None:
    """Return a number that the kernel has beside a descriptor."""
    match = re.search(rf"^{what}:\s*(\d+)", _text(f"/proc/{pid}/fdinfo/{name}"), re.MULTILINE)
    return match[1] if match else None


def _maps(pid: int) -> tuple[frozenset[str], tuple[Mapping, ...], frozenset[tuple[str, int, str]]]:
    libraries, mappings, private = set(), [], set()
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file.read().splitlines():
            libraries |= {name for name, path in _LIBRARIES.items() if path.search(line)}
            words = line.split(None, 5)
            if len(words) < 6 or not words[5].startswith(b"/"):
                continue
            path = os.fsdecode(words[5])
            if words[1].endswith(b"p"):
                private.add((words[3].decode(), int(words[4]), path))
            else:
                start, _, end = words[0].partition(b"-")
                mapping = Mapping((words[3].decode(), int(words[4])), int(start, 16), int(end, 16), b"w" in words[1],
                                  path.removesuffix(" (deleted)"), path)  # fmt: skip
                mappings.append(mapping)
    return frozenset(libraries), tuple(mappings), frozenset(private)


def _any_present(pages: int, mapping: Mapping) -> bool:
    count = min((mapping.end - mapping.start) // PAGE_BYTES, _MOST_PAGES)
    entries = os.pread(pages, count * 8, mapping.start // PAGE_BYTES * 8)
    return any(entry & _PRESENT for entry in entries[7::8])


def device_of(text: str) -> int:
    """Return a device as `os.stat` gives it, from what the kernel writes for a mapping."""
    major, _, minor = text.partition(":")
    return os.makedev(int(major, 16), int(minor, 16))


def _targets(pid: int) -> Iterator[tuple[str, str]]:
    """Yield each descriptor of a process, and what it leads to; nothing of another user's."""
    with suppress(OSError):  # it ends just now
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it was closed meanwhile
                path = f"/proc/{pid}/fd/{name}"
                yield path, os.readlink(path)


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _text(path: str) -> str:
    return _bytes(path).decode(errors="replace")


def other_networks(table: str) -> Iterator[tuple[int, int, str]]:
    """Yield a process of each other network namespace, that namespace, and a table of /proc/PID/net there, where it may
    be read.
    """
    known = {os.stat("/proc/self/ns/net").st_ino}
    for pid in pids():
        try:
            network = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            continue
        if network not in known:
            known.add(network)
            yield pid, network, _text(f"/proc/{pid}/net/{table}")
