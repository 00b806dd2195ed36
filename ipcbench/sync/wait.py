"""Waiting for another process to change shared memory: spin, then yield, then block on a doorbell."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ipcbench.errors import TransportError
from ipcbench.spec import WaitStrategy
from ipcbench.util.clock import now_ns

SLICE_NS = 100_000_000
"""Longest single sleep on a doorbell: the delay until a lost peer is noticed, and the most that a lost ring costs."""

SPIN_NS = 40_000
"""How long `auto` polls without yielding, when there is a core for every endpoint and messages are small."""

_COPY_BYTES_PER_NS = 16
_MAX_SPIN_NS = 1_000_000

_FIRST_LOOKS = 500
_POLLS_PER_CLOCK = 32
_AUTO_YIELDS = 30

_CORES_COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
"""Cores that this process may use, 0 if unknown. Read once: a process that is later pinned to a core of its own does
not share it with its peers."""


class Doorbell:
    """A named pipe that wakes one sleeper; a byte in it only means "look again"."""

    __slots__ = ("_fd", "_poll")

    def __init__(self, path: Path) -> None:
        """Open the pipe at `path` (made by `make`), for ringing or for waiting.

        Raises:
            TransportError: there is no such pipe.
        """
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TransportError(f"no doorbell at {path}: {error.strerror}") from error
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    @staticmethod
    def make(path: Path) -> None:
        """Make the pipe that both sides will open."""
        os.mkfifo(path, 0o600)

    def ring(self) -> None:
        """Wake the sleeper; a full pipe has woken it already."""
        with suppress(BlockingIOError):
            os.write(self._fd, b"\0")

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until rung, at most for `timeout_ns` rounded up to a millisecond; discard all rings."""
        if self._poll.poll(-(-timeout_ns // 1_000_000)):
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)

    def close(self) -> None:
        """Release the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def spin_ns_for(message_bytes: int) -> int:
    """Return how long `auto` should poll for messages of up to that size: `SPIN_NS` plus the time of one copy.

    While one side copies a large message, the other has to wait; putting it to sleep and waking it costs both more.
    """
    return min(SPIN_NS + message_bytes // _COPY_BYTES_PER_NS, _MAX_SPIN_NS)


def has_core_each(count: int) -> bool:
    """Return whether there is a core for each of `count` busy processes."""
    return count <= _CORES_COUNT


class Waiter:
    """How one endpoint waits. `until` is the slow path: check the condition once before you call it.

    Args:
        strategy: `spin` never gives up the core; `yield` yields after every look; `block` sleeps at once; `auto` spins
            for `spin_ns` if there is a core for each of `endpoints`, yields a few times, then sleeps.
        endpoints: how many endpoints of the channel may be busy at the same time.
        doorbell: what to sleep on; without one, `block` and `auto` sleep for short, growing times.
        arm: called before sleeping: records in shared memory that this endpoint sleeps, with a barrier after it.
        disarm: undoes `arm`.
        spin_ns: how long `auto` spins.
        check_peers: called before every sleep and about every `SLICE_NS` while polling; raises if waiting is pointless.
    """

    __slots__ = ("_arm", "_check_peers", "_disarm", "_doorbell", "_spin_ns", "_strategy", "_yields")

    def __init__(
        self,
        strategy: WaitStrategy,
        endpoints: int,
        *,
        doorbell: Doorbell | None,
        arm: Callable[[], None],
        disarm: Callable[[], None],
        check_peers: Callable[[], None],
        spin_ns: int = SPIN_NS,
    ) -> None:
        self._strategy = strategy
        self._doorbell = doorbell
        self._arm = arm
        self._disarm = disarm
        self._check_peers = check_peers
        self._spin_ns = spin_ns if strategy == "auto" and has_core_each(endpoints) else 0
        self._yields = _AUTO_YIELDS if strategy == "auto" else 0

    @property
    def first_looks(self) -> int:
        """Return how many looks, of a few dozen ns each, may precede `until`; 0 if the strategy does not spin."""
        return _FIRST_LOOKS if self._spin_ns or self._strategy == "spin" else 0

    def until(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        """Return True as soon as `ready()` is true, False if it is not by `deadline` (ns on the clock)."""
        if ready():
            return True
        if self._strategy in {"spin", "yield"}:
            return self._poll(ready, deadline, None, yielding=self._strategy == "yield")
        if self._spin_ns:
            stop = now_ns() + self._spin_ns
            if self._poll(ready, deadline, stop, yielding=False):
                return True
        for _ in range(self._yields):
            os.sched_yield()
            if ready():
                return True
        return self._sleep(ready, deadline)

    def _poll(self, ready: Callable[[], bool], deadline: int | None, stop: int | None, *, yielding: bool) -> bool:
        """Poll until `deadline` or `stop`, whichever is earlier; read the clock once per `_POLLS_PER_CLOCK` looks."""
        end = min((end for end in (deadline, stop) if end is not None), default=None)
        next_check_ns = now_ns() + SLICE_NS
        while True:
            for _ in range(_POLLS_PER_CLOCK):
                if ready():
                    return True
                if yielding:
                    os.sched_yield()
            now = now_ns()
            if end is not None and now >= end:
                return ready()
            if now >= next_check_ns:
                self._check_peers()
                next_check_ns = now + SLICE_NS

    def _sleep(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        nap_ns = 50_000
        try:
            while True:
                self._arm()
                if ready():
                    return True
                now = now_ns()
                if deadline is not None and now >= deadline:
                    return False
                left = SLICE_NS if deadline is None else min(SLICE_NS, deadline - now)
                if self._doorbell is not None:
                    self._doorbell.sleep(left)
                else:
                    select.select([], [], [], min(nap_ns, left) / 1e9)
                    nap_ns = min(2 * nap_ns, 1_000_000)
                if ready():
                    return True
                if now_ns() - now >= left or self._doorbell is None:
                    self._check_peers()
        finally:
            self._disarm()
