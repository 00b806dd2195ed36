"""One thing that joins two processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "tcp",
    "unix",
    "pipe",
    "shared memory",
    "mapped file",
    "semaphore",
    "eventfd",
    "udp",
    "socket",
    "file",
    "terminal",
    "message queue",
]
Role = Literal[
    "data",
    "standard stream",
    "dialogue",
    "wake-up",
    "watch",
    "untouched",
    "shared",
    "inherited",
    "unclear",
    "handshake",
]
"""`data`: it can carry the messages. `standard stream`: a pipe or socket at descriptor 0, 1 or 2. `dialogue`: such a
one, where input and output of one process both lead to the other. `wake-up`: it only says "look again". `watch`: one of
the two pipes by which multiprocessing notices the end of a process. `untouched`: memory that is mapped in both, and in
one of them not resident now. `shared`: a third process holds an end of it, too, so that the data may pass between other
processes than the two. `inherited`: two children of one process hold both ends, as a fork leaves them. `unclear`: both
hold it and may pass data by it, which nothing shows: a file that both may write in memory, an open file, UDP, a message
queue.
`handshake`: it has carried no more than what its library says by itself, to begin and to keep it alive."""

MEMORY: frozenset[Kind] = frozenset({"shared memory", "mapped file"})
"""Kinds through which bytes pass without a call of the kernel."""


@dataclass(frozen=True, slots=True)
class Link:
    """A socket connection, a pipe, a segment … that two processes hold."""

    kind: Kind
    """What it is; `unix` is a Unix socket, `socket` one of another kind, or one that no list has."""
    address: str
    """As a user would name it: a path, `tcp://host:port` …; in words if it has no name."""
    first: int
    """Process that was asked for."""
    second: int
    """Process at the other side."""
    evidence: tuple[str, ...]
    """What shows it: descriptors, inodes, peers, one sentence each."""
    role: Role = "data"
    """What it can be for."""
    library: str | None = None
    """Library whose channel this is; None if nothing shows it."""
    sent_bytes: int | None = None
    """Payload that the first process has sent: 0 by a pipe that it only reads; None where the kernel does not count."""
    received_bytes: int | None = None
    """Payload that the first process has received."""
    rtt_us: int | None = None
    """Round-trip time as the kernel has measured it, TCP only."""
    others: tuple[int, ...] = ()
    """The third processes that hold an end of it, of those that this user may read; only if it is `shared`."""

    @property
    def carried_bytes(self) -> int | None:
        """Payload in both directions; None where the kernel does not count it."""
        if self.sent_bytes is None or self.received_bytes is None:
            return None
        return self.sent_bytes + self.received_bytes


@dataclass(frozen=True, slots=True)
class Relay:
    """A third process to which two are connected, so that it may pass data on from one to the other."""

    text: str
    """Who it is, and how both are connected to it."""
    legs: tuple[Link, ...]
    """What joins the two with it."""
    carried_bytes: int | None
    """The most that it can have passed on, in both directions; None if the kernel does not count it."""
    is_launcher: bool = False
    """Whether it has started both."""


def fds(descriptors: list[int]) -> str:
    """Return `fd 3` or `fds 3, 4`."""
    return f"fd{'s' * (len(descriptors) > 1)} {', '.join(map(str, descriptors))}"


def processes(pids: Iterable[int]) -> str:
    """Return `process 3`, or `processes 3, 4`."""
    numbers = sorted(pids)
    return f"process{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
