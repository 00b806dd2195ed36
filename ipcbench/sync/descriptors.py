"""Whether this process may open as many more files as a library will want. A library that may not may abort the
process, wait for ever, or not say why.
"""

from __future__ import annotations

import errno
import os
import resource
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
