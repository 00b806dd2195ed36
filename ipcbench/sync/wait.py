"""Waiting for another process to change shared memory: spin, then yield, then block on a doorbell."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ipcbench.errors import TransportError
from ipcbench.util.clock import now_ns

SLICE_NS = 100_000_000
"""Longest single sleep on a doorbell: how soon a lost peer is noticed, and the most that a lost ring could cost."""

SPIN_NS = 40_000
"""How long `auto` polls without giving up the core, when there is a core for every endpoint and messages are small."""

_COPY_BYTES_PER_NS = 16
_MAX_SPIN_NS = 1_000_000

_FIRST_LOOKS = 500
_POLLS_PER_CLOCK = 32
_AUTO_YIELDS = 30

_CORES_COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
"""Cores that this process may use, or 0 if nobody says. Read once: a process that is later pinned to a core of its own
does not share it with its peers."""

Strategy = Literal["auto", "spin", "yield", "block"]


class Doorbell:
    """A named pipe that wakes one sleeper; bytes in it mean "look again" and nothing else."""

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
        """Wake the sleeper. A pipe that is full has woken it already."""
        with suppress(BlockingIOError):
            os.write(self._fd, b"\0")

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until rung or for `timeout_ns`, rounded up to a millisecond; forget all rings."""
        if self._poll.poll(-(-timeout_ns // 1_000_000)):
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)

    def close(self) -> None:
        """Release the descriptor; twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def spin_ns_for(message_bytes: int) -> int:
    """Return how long `auto` should poll for messages of up to that size: `SPIN_NS`, and the time of one copy.

    While one side copies a large message the other has to wait that long, every time; putting it to sleep and waking it
    would cost both sides more.
    """
    return min(SPIN_NS + message_bytes // _COPY_BYTES_PER_NS, _MAX_SPIN_NS)


def has_core_each(count: int) -> bool:
    """Return whether `count` busy processes can have a core each."""
    return count <= _CORES_COUNT


class Waiter:
    """How one endpoint waits. `until` is the slow path; a fast endpoint looks at its word once before calling it.

    Args:
        strategy: `spin` never gives up the core; `yield` offers it after every look; `block` sleeps at once; `auto`
        spins
            for `spin_ns` if there is a core for each of `endpoints`, offers the core a few times, then sleeps.
        endpoints: how many endpoints of the channel may be busy at the same time.
        doorbell: what to sleep on; without one, `block` and `auto` sleep for short, growing times.
        arm: called before sleeping: says in shared memory that this endpoint sleeps, and orders that store before the
            next look.
        disarm: takes it back.
        spin_ns: how long `auto` spins.
        check_peers: called before every sleep and about every `SLICE_NS` while polling; raises if waiting is pointless.
    """

    __slots__ = ("_arm", "_check_peers", "_disarm", "_doorbell", "_spin_ns", "_strategy", "_yields")

    def __init__(
        self,
        strategy: Strategy,
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
        """Return how many looks, of a few dozen ns each, the strategy allows before all else; 0 without spinning."""
        return _FIRST_LOOKS if self._spin_ns or self._strategy == "spin" else 0

    def until(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        """Return True once `ready()` is true, False once the clock has passed `deadline` (ns) and it still is not."""
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
        """Look until `deadline` or `stop`, whichever is earlier; read the clock once per `_POLLS_PER_CLOCK` looks."""
        ends = [end for end in (deadline, stop) if end is not None]
        end = min(ends) if ends else None
        look_after_peers = now_ns() + SLICE_NS
        while True:
            for _ in range(_POLLS_PER_CLOCK):
                if ready():
                    return True
                if yielding:
                    os.sched_yield()
            now = now_ns()
            if end is not None and now >= end:
                return ready()
            if now >= look_after_peers:
                self._check_peers()
                look_after_peers = now + SLICE_NS

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
