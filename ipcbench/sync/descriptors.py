"""Files that libraries have open: whether this process may open as many more as one will want, since a library that may
not may abort the process, wait for ever, or not say why; and sockets that a forked child is not to keep.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Expecting(Protocol):
    """What peers will connect to."""

    def expected_descriptors(self) -> int:
        """Return how many descriptors its library has still to open in this process."""


_expecting: WeakSet[Expecting] = WeakSet()


def expect_descriptors(endpoint: Expecting) -> None:
    """From now on, count what an endpoint expects with what is open."""
    _expecting.add(endpoint)


def require_descriptors(count: int) -> None:
    """Make sure that this process may open so many more files, beside what its endpoints expect. To open them for a try
    would take them from the threads of other endpoints.

    Raises:
        OSError: it may not.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        open_count = len(os.listdir("/dev/fd"))
    except FileNotFoundError:  # a namespace without /proc does not tell
        return
    expected_count = sum(endpoint.expected_descriptors() for endpoint in list(_expecting))
    if limit != resource.RLIM_INFINITY and open_count + expected_count + count > limit:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def close_sockets(places: Set[str]) -> None:
    """Close the sockets of this process that join one of these places: "path", "host:port" or "[host]:port". It is for
    forked children, where a library without its threads cannot: the end of a connection shows when nobody has it.
    """
    with suppress(FileNotFoundError):
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):  # what listed the folder is open no longer
                if stat.S_ISSOCK(os.fstat(fd).st_mode) and not places.isdisjoint(_places_of(fd)):
                    os.close(fd)


def _places_of(fd: int) -> Iterator[str]:
    with socket.socket(fileno=os.dup(fd)) as held:
        for find in held.getsockname, held.getpeername:
            with suppress(OSError):  # a socket that listens has no peer
                place = find()
                if held.family == socket.AF_UNIX:
                    yield place
                elif held.family in {socket.AF_INET, socket.AF_INET6}:
                    host, port = place[:2]
                    yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
