"""Pipes, named or not, and eventfds that join two processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from ipcbench.diagnose.endpoints.link import Link, Role, fds
from ipcbench.diagnose.endpoints.process import PIPES, Descriptor, Holders, Key, Process, Unreadable, read_process
from ipcbench.diagnose.endpoints.sharing import unless_shared

_BELL = re.compile(r"/(writer|reader-\d+)\.bell$")
"""A named pipe by which a channel of ipcbench wakes."""
_COMMAND = re.compile(r"multiprocessing[.-](spawn|fork)")
"""In the command of every process that multiprocessing starts but by a fork."""
_FORK_SERVER = "multiprocessing.forkserver"
"""In the command of every process that comes from such a server."""


def pipe_links(first: Process, second: Process, holders: Holders) -> Iterator[Link]:
    """Yield a link for each pipe that one of the processes can write and the other can read."""
    shared = [key for key, held in first.by_key.items() if held[0].kind == "pipe" and key in second.by_key]
    watch = _watch_pipes(first, second, shared) | _copied_watch_pipes(first, second, shared)
    for key in shared:
        mine, others = first.by_key[key], second.by_key[key]
        ways: dict[int, str] = {
            writer.pid: f"process {writer.pid} writes ({fds(writes)}), process {reader.pid} reads ({fds(reads)})"
            for writer, reader, ends in ((first, second, (mine, others)), (second, first, (others, mine)))
            for writes, reads in (([d.fd for d in ends[0] if d.writes], [d.fd for d in ends[1] if d.reads]),)
            if writes and reads
        }
        if not ways:
            continue  # both have the same end, as the output of two processes that go to one place
        named = not mine[0].target.startswith("pipe:")
        both_ends = all(any(d.reads for d in side) and any(d.writes for d in side) for side in (mine, others))
        loop = both_ends and not any(p.is_blocking(s[0].fd) for p, s in ((first, mine), (second, others)))
        if loop and not named:
            continue  # what wakes an event loop, copied by a fork
        is_bell = loop and _BELL.search(mine[0].target) is not None
        role: Role = "wake-up" if is_bell else "watch" if key in watch else _role(mine, others)
        address = mine[0].target.removesuffix(" (deleted)") if named else _words(mine, others)
        if role == "data" and both_ends and not named and first.parent == second.parent:
            role = "inherited"
        more = ("both processes hold both ends",) if both_ends else ()
        kind = "named pipe" if named else "pipe"
        sent, received = (None if process.pid in ways else 0 for process in (first, second))
        link = Link("pipe", address, first.pid, second.pid,
                    (*(f"{kind}, inode {key[1]}: {way}" for way in ways.values()), *more), role,
                    sent_bytes=sent, received_bytes=received)  # fmt: skip
        yield unless_shared(link, holders, {key}) if role in {"data", "standard stream", "inherited"} else link


def _role(mine: list[Descriptor], others: list[Descriptor]) -> Role:
    return "standard stream" if any(d.fd <= 2 for d in (*mine, *others)) else "data"


def _words(mine: list[Descriptor], others: list[Descriptor]) -> str:
    names = {0: "standard input", 1: "standard output", 2: "standard error"}
    ends = sorted({names[d.fd] for d in (*mine, *others) if d.fd in names})
    return f"pipe without a name ({', '.join(ends)})" if ends else "pipe without a name"


def _watch_pipes(first: Process, second: Process, keys: list[Key]) -> set[Key]:
    """Return the pipes that multiprocessing opens with each child, if these are such: one to the parent, and the next
    one from it; each process holds one end of each. A fork server keeps the child's end of one.
    """
    for parent, child in ((first, second), (second, first)):
        served = _FORK_SERVER in child.command
        if (parent.pid != child.parent and not served) or not _is_started_so(parent, child):
            continue
        downs = [key for key in keys if _is_one_way(parent.by_key[key], child.by_key[key])]
        devices = {down[0] for down in downs}
        ups = [key for key in parent.by_key
               if key[0] in devices and (key in child.by_key or served)
               and _is_one_way(child.by_key.get(key, []), parent.by_key[key])]  # fmt: skip
        pairs = [(up, down) for down in downs for up in ups if _are_next(parent, child, up, down)]
        if pairs:
            return set(pairs[0])
    return set()


def _is_started_so(parent: Process, child: Process) -> bool:
    """Return whether multiprocessing has started the child: its command says so, or, where a fork has copied that, it
    has opened another standard input than its parent's, an empty one. Two pipes of a program's own look the same else.
    """
    if child.command != parent.command:
        return _COMMAND.search(child.command) is not None
    return "Python" in child.libraries and bool(child.own_empty_inputs() - parent.own_empty_inputs())


def _copied_watch_pipes(first: Process, second: Process, keys: list[Key]) -> set[Key]:
    """Return the pipes by which multiprocessing watches one of two children of a process, and of which a fork has left
    the parent's ends in the other.
    """
    found: set[Key] = set()
    if first.parent == second.parent and keys:
        with suppress(Unreadable):
            parent = read_process(first.parent)
            for child, sibling in ((first, second), (second, first)):
                both = [key for key in parent.by_key if key[0] == PIPES and key in child.by_key]
                watch = _watch_pipes(parent, child, both)
                found |= {key for key in watch if _ends(sibling.by_key.get(key, [])) == _ends(parent.by_key[key])}
    return found


def _ends(held: list[Descriptor]) -> set[tuple[bool, bool]]:
    return {(each.reads, each.writes) for each in held}


def _are_next(parent: Process, child: Process, up: Key, down: Key) -> bool:
    """Return whether the two were made one after the other, as the kernel's numbers show, or, if the process changed
    its core in between, those of the descriptors: the parent's end of the first, the child's two, the parent's other.
    """
    if up[1] + 1 == down[1]:
        return True
    held = parent.by_key[up], child.by_key.get(up, []), child.by_key[down], parent.by_key[down]
    numbers = [each.fd for ends in held for each in ends[:1]]
    return len(numbers) == len(held) and numbers == sorted(numbers)


def _is_one_way(writer: list[Descriptor], reader: list[Descriptor]) -> bool:
    writes = all(d.writes and not d.reads and d.fd > 2 for d in writer)
    return writes and bool(reader) and all(d.reads and not d.writes and d.fd > 2 for d in reader)


def eventfd_links(first: Process, second: Process) -> Iterator[Link]:
    """Yield a link for each eventfd that both processes hold; those of a library that a fork has copied are its own."""
    is_zmq = "ZeroMQ" in first.libraries & second.libraries
    for key, held in first.by_key.items():
        if held[0].kind == "eventfd" and key in second.by_key:
            mine, others = (fds([d.fd for d in side]) for side in (held, second.by_key[key]))
            text = f"eventfd {key[1]}: process {first.pid} {mine}, process {second.pid} {others}"
            blocks = (p.is_blocking(d[0].fd) for p, d in ((first, held), (second, second.by_key[key])))
            library = "ZeroMQ" if is_zmq and not any(blocks) else None
            yield Link("eventfd", f"eventfd {key[1]}", first.pid, second.pid, (text,), "wake-up", library)
