"""The clock of every measurement: CLOCK_MONOTONIC, in integer nanoseconds.

On Linux and macOS all processes of a host share this clock (on Linux, those in one time namespace), so stamps taken by
the writer and by a reader can be subtracted. Between hosts it is not comparable.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

from ipcbench.errors import ConfigError

now_ns = time.monotonic_ns
"""Nanoseconds of the monotonic clock; only differences mean anything."""


_FOREVER_S = 2e6
"""The system's calls take milliseconds, of which a 32-bit number holds 24 days."""


def deadline_ns(timeout_s: float | None) -> int | None:
    """Return the clock's reading `timeout_s` seconds from now, in the past if that is negative; None (no deadline) for
    None and for weeks.

    Raises:
        ConfigError: it is not a number.
    """
    if timeout_s is None:
        return None
    try:
        return None if timeout_s >= _FOREVER_S else now_ns() + int(float(timeout_s) * 1e9)
    except OverflowError:  # only a negative one is that large
        return 0
    except (TypeError, ValueError) as error:  # ValueError: nan
        if isinstance(timeout_s, int | float) and not math.isnan(timeout_s):  # it is a signal handler's
            raise
        raise ConfigError("timeout_s", timeout_s, "seconds, or None to wait forever") from error


def remaining_s(deadline: int | None) -> float | None:
    """Return the seconds left until `deadline` (nanoseconds), at least 0.0; None for None."""
    return None if deadline is None else max(0.0, (deadline - now_ns()) / 1e9)


def slice_s(deadline: int | None, most_s: float) -> float:
    """Return the seconds left until `deadline` (nanoseconds), from 0.0 to `most_s`."""
    return most_s if deadline is None else min(most_s, max(0.0, (deadline - now_ns()) / 1e9))


def run_queue_wait_ns(thread: str = "/proc/thread-self") -> int | None:
    """Return for how long a thread has been ready to run without a core, in ns; None if the system does not say.

    Args:
        thread: its folder; that of the calling one if none is given.
    """
    try:
        with open(f"{thread}/schedstat", "rb") as file:
            words = file.read(100).split()  # ns on a core, ns waiting for one, number of turns on a core
    except OSError:
        return None
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else None


def run_queue_waits_ns() -> dict[str, int]:
    """Return thread → for how long it has been ready to run without a core, in ns; of all threads of this process."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return {}
    waits = {each: run_queue_wait_ns(f"/proc/self/task/{each}") for each in threads}
    return {thread: waited_ns for thread, waited_ns in waits.items() if waited_ns is not None}


def longest_wait_ns(before: Mapping[str, int], after: Mapping[str, int]) -> int | None:
    """Return how long the thread waited for a core that waited the most in between; None if the system does not say."""
    return max((waited_ns - before.get(thread, 0) for thread, waited_ns in after.items()), default=None)
