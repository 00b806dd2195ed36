"""Waiting for another process to change shared memory: spin, then yield, then block on a doorbell."""

from __future__ import annotations

import itertools
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

from ipcbench.backend import Waits
from ipcbench.errors import TransportError
from ipcbench.spec import WaitStrategy
from ipcbench.sync.interrupts import is_of_handler, no_fork
from ipcbench.util.clock import now_ns
from ipcbench.util.files import advice_on

SLICE_NS = 100_000_000
"""Longest single sleep on a doorbell: the delay until a lost peer is noticed, and the most that a lost ring costs."""

YIELD_NS = 40_000
"""How long `auto` yields in vain before it sleeps, when messages are small."""

_COPY_BYTES_PER_NS = 16
_MAX_YIELD_NS = 1_000_000

_LOOKS, _NO_LOOKS = range(250), range(0)
"""About 10 µs. Two endpoints that poll for longer without yielding, on one core, would each keep the other waiting."""
_LEAST_YIELDS = 30
"""Before `auto` sleeps; on a core that several share, a yield takes as long as the others run."""

_POLLS_PER_CLOCK = 32

_CREDIT_NS, _MOST_CREDIT_NS = 10_000_000, 20_000_000
"""For how long `auto` polls in vain before it pauses, to begin with and at most. Two endpoints that sleep and wake on
one core stay there, even beside an idle core; the scheduler moves one of them only when it sees both busy for some
ms."""

_GAIN_NS = 500
"""What a wait that ends while polling adds to the credit. It gains more, some µs that one side takes to sleep and be
woken; but where one wait in a hundred polls in vain, p99 is longer than with sleeping at once."""

_SHARED_GAIN_NS = 5_000
"""The same where the endpoints share cores: one that slept would soon be woken again, and that takes the core from the
others. Polling in vain costs only what peers did not run for: nothing came meanwhile. Whoever keeps the core for
longer than `_MAX_LOST_NS` is taken for a stranger, beside whom to sleep is quicker."""

_MAX_LOST_NS = 500_000
"""An attempt to poll that took longer than polling and this lost the core to another process, and did not pay, unless
the endpoints share the cores: then its peers have probably run, and what it waited for has come."""

_SWITCH_NS = 4_000
"""A yield that takes longer has let another process run. If what the endpoint waited for is then there, its peer has
probably run on this very core, and came later than if the endpoint had slept at once."""

_MOST_SHARED_NS, _APART_NS = 40_000_000, 5_000
"""For how long that is tried, and what a wait that ends while polling otherwise takes from it. Two that poll on one
core beside an idle one are moved apart sooner or later, and polling pays then."""

_FIRST_PAUSE, _LONGEST_PAUSE = 65_536, 524_288
"""Waits without polling after the credit is used up, at first and at most. If a wait takes 20 µs, that is a second and
more; waits that poll in vain are then 0.4 % of all at first, for each side, and soon 0.05 %."""

_NEVER = 2**62

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
            raise TransportError(f"no doorbell at {path}: {error.strerror}{advice_on(error)}") from error
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    @staticmethod
    def make(path: Path) -> None:
        """Make the pipe that both sides will open."""
        os.mkfifo(path, 0o600)

    def fileno(self) -> int:
        """Return the descriptor, which is readable from a ring until the next `sleep`."""
        return self._fd

    def ring(self) -> None:
        """Wake the sleeper; a full pipe has woken it already, and without a ring it looks again by itself."""
        try:
            os.write(self._fd, b"\0")
        except OSError as error:
            if is_of_handler(error):
                raise

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until rung, at most for `timeout_ns` rounded up to a millisecond; discard all rings."""
        if self._poll.poll(-(-timeout_ns // 1_000_000)):
            try:
                os.read(self._fd, 4096)
            except BlockingIOError as error:
                if is_of_handler(error):
                    raise

    def close(self) -> None:
        """Release the descriptor; a second call does nothing."""
        with no_fork():
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class Watch:
    """A descriptor that is readable while one of several sockets is; a socket that is closed leaves it."""

    __slots__ = ("_poll",)

    def __init__(self) -> None:
        """Make it; OSError if there is no descriptor left."""
        self._poll: Any
        if sys.platform == "linux":
            self._poll = select.epoll()
        else:
            self._poll = select.kqueue()

    def fileno(self) -> int:
        """Return the descriptor."""
        return int(self._poll.fileno())

    def add(self, socket: socket | int) -> None:
        """Watch a socket, or a descriptor, too."""
        if sys.platform == "linux":
            with suppress(FileExistsError):  # it is watched already
                self._poll.register(socket, select.EPOLLIN)
        else:
            self._poll.control([select.kevent(socket, select.KQ_FILTER_READ, select.KQ_EV_ADD)], 0)

    def close(self) -> None:
        """Release the descriptor."""
        self._poll.close()


def yield_ns_for(message_bytes: int) -> int:
    """Return how long `auto` should yield for messages of up to that size: `YIELD_NS` plus the time of one copy.

    While one side copies a large message, the other has to wait; putting it to sleep and waking it costs both more.
    """
    return min(YIELD_NS + message_bytes // _COPY_BYTES_PER_NS, _MAX_YIELD_NS)


def has_core_each(count: int) -> bool:
    """Return whether there is a core for each of `count` busy processes."""
    return count <= _CORES_COUNT


class Attempts:
    """Whether an endpoint should poll before it sleeps, judged from how its last waits ended.

    Polling pays if the peer runs on another core meanwhile. It does not if the peer waits for this very core, or comes
    late anyway. Each success adds what it gains to a credit, and polling in vain takes the time that it took from it.
    When the credit is used up, the endpoint pauses polling, and tries again after pauses that double.

    Attributes:
        skips_count: how many waits should sleep at once before the next attempt to poll; 0 while polling pays. The
            caller subtracts one for each.
    """

    __slots__ = ("_credit_ns", "_gain_ns", "_pause", "_shared_ns", "skips_count")

    def __init__(self, skips_count: int = 0, gain_ns: int = _GAIN_NS) -> None:
        self._credit_ns = _CREDIT_NS
        self._gain_ns = gain_ns
        self._pause = self._shared_ns = 0
        self.skips_count = skips_count

    def succeeded(self, count: int = 1) -> None:
        """Record that `count` waits ended while the endpoint polled."""
        if count > 0:
            self._credit_ns = min(_MOST_CREDIT_NS, self._credit_ns + count * self._gain_ns)
            self._shared_ns = max(0, self._shared_ns - count * _APART_NS)
            if self._credit_ns == _MOST_CREDIT_NS:  # and not after a few lucky waits
                self._pause = 0

    def yielded(self, took_ns: int, last_ns: int) -> None:
        """Record that a wait ended after yields that took `took_ns` in all, and the last one `last_ns`."""
        if last_ns <= _SWITCH_NS:
            self.succeeded()
            return
        self._shared_ns += took_ns
        if self._shared_ns > _MOST_SHARED_NS:
            self._begin_pause()

    def failed(self, took_ns: int) -> None:
        """Record that a wait polled in vain for `took_ns`, or lost its core for that long."""
        self._credit_ns -= took_ns
        if self._credit_ns <= 0:
            self._begin_pause()

    def _begin_pause(self) -> None:
        self._pause = self.skips_count = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._credit_ns, self._shared_ns = _CREDIT_NS, 0


class Waiter:
    """How one endpoint waits. `until` is the slow path: check the condition once before you call it.

    Args:
        strategy: `spin` never gives up the core; `yield` yields after every look; `block` sleeps at once; `auto` spins
            for about 10 µs if there is a core for each of `endpoints`, then yields for `yield_ns`, then sleeps; it
            sleeps at once while polling has not paid lately, see `Attempts`.
        endpoints: how many endpoints of the channel may be busy at the same time.
        doorbell: what to sleep on; without one, `block` and `auto` sleep for short, growing times.
        arm: called before sleeping: records in shared memory that this endpoint sleeps, with a barrier after it.
        disarm: undoes `arm`.
        yield_ns: how long `auto` yields; without a core for each endpoint not longer than `YIELD_NS`, since one that
            yields still competes with one that copies.
        adapts: whether `auto` stops to poll if that does not pay. It never does without a doorbell, since a nap takes
            longer than polling.
        check_peers: called about every `SLICE_NS`; raises if waiting is pointless.

    Attributes:
        looks: a range of the looks that may precede `until`; empty if the endpoint should not spin now.
        begun_count: number of waits so far; the caller adds one to it before it looks, or calls `until`.
        yielded_count: number of those that ended while the endpoint yielded; a caller that yields by itself adds to it.
    """

    __slots__ = (
        "_adapts",
        "_arm",
        "_attempts",
        "_check_peers",
        "_disarm",
        "_doorbell",
        "_judged_count",
        "_longest_ns",
        "_looks_early",
        "_next_check_ns",
        "_slept_count",
        "_strategy",
        "_yield_ns",
        "begun_count",
        "looks",
        "yielded_count",
    )

    def __init__(
        self,
        strategy: WaitStrategy,
        endpoints: int,
        *,
        doorbell: Doorbell | None,
        arm: Callable[[], None],
        disarm: Callable[[], None],
        check_peers: Callable[[], None],
        yield_ns: int = YIELD_NS,
        adapts: bool = True,
    ) -> None:
        self._strategy = strategy
        self._doorbell = doorbell
        self._arm = arm
        self._disarm = disarm
        self._check_peers = check_peers
        self._yield_ns = yield_ns if has_core_each(endpoints) else min(yield_ns, YIELD_NS)
        self._looks_early = strategy == "spin" or (strategy == "auto" and has_core_each(endpoints))
        self._adapts = adapts and doorbell is not None
        self._longest_ns = yield_ns + _MAX_LOST_NS
        self._attempts = Attempts(
            skips_count=_NEVER if strategy == "block" else 0, gain_ns=_GAIN_NS if self._looks_early else _SHARED_GAIN_NS
        )
        self.looks = _LOOKS if self._looks_early else _NO_LOOKS
        self._next_check_ns = 0
        self.begun_count = self._judged_count = self.yielded_count = self._slept_count = 0

    @property
    def waits(self) -> Waits:
        """Return how the waits so far have ended."""
        yielded, slept = self.yielded_count, self._slept_count
        return Waits(max(0, self.begun_count - yielded - slept), yielded, slept)

    def take_skips(self, most: int) -> int:
        """Return how many of the next waits, this one first, should sleep and not poll; they are over with that."""
        attempts = self._attempts
        taken = min(most, max(0, attempts.skips_count - 1))
        attempts.skips_count -= taken or bool(attempts.skips_count)
        return taken

    def until(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        """Return True as soon as `ready()` is true, False if it is not by `deadline` (ns on the clock)."""
        if self._until(ready, deadline):
            return True
        now = now_ns()
        if now >= self._next_check_ns:  # waits may all be too short to get to it, or not wait at all
            self._next_check_ns = now + SLICE_NS
            self._check_peers()
        return False

    def _until(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        if ready():
            return True
        attempts = self._attempts
        if attempts.skips_count:
            attempts.skips_count -= 1
        elif self._strategy != "auto":
            yielding = self._strategy == "yield"
            self.yielded_count += yielding
            return self._poll(ready, deadline, None, yielding=yielding)
        elif self._attempt(ready, deadline):
            return True
        self._slept_count += 1
        return self._sleep(ready, deadline)

    def _attempt(self, ready: Callable[[], bool], deadline: int | None) -> bool:
        """Yield for a short time; return whether `ready()` became true, and judge whether that paid."""
        attempts, start = self._attempts, now_ns()
        if self.looks:  # else nobody has looked early
            attempts.succeeded(self.begun_count - self._judged_count - 1)
        ended, yielded_ns, peers_ns = self._yield_briefly(ready, deadline, start)
        took_ns = now_ns() - start
        if ended and not self._looks_early:
            attempts.succeeded()
        elif ended and took_ns <= self._longest_ns:
            attempts.yielded(took_ns, yielded_ns)
        elif self._adapts:
            attempts.failed(took_ns if self._looks_early else took_ns - peers_ns)
        self._judged_count = self.begun_count
        if self._looks_early:
            self.looks = _NO_LOOKS if attempts.skips_count else _LOOKS
        return ended

    def _yield_briefly(self, ready: Callable[[], bool], deadline: int | None, start: int) -> tuple[bool, int, int]:
        """Let others run between looks, for `yield_ns` and a few yields at least; return whether `ready()` became true,
        how long the last yield took, and for how long peers ran, probably.

        A peer that shares this core runs meanwhile; where nobody does, a yield costs a fraction of a µs.
        """
        enough_ns = start + self._yield_ns
        longest_ns = start + self._longest_ns if deadline is None else min(deadline, start + self._longest_ns)
        now, peers_ns = start, 0
        for count in itertools.count(1):
            os.sched_yield()
            before, now = now, now_ns()
            if _SWITCH_NS < now - before < _MAX_LOST_NS:
                peers_ns += now - before
            if ready():
                self.yielded_count += 1
                return True, now - before, peers_ns
            if now > longest_ns or (now > enough_ns and count >= _LEAST_YIELDS):
                break
        return False, 0, peers_ns

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
        nap_ns, next_check_ns = 50_000, now_ns() + SLICE_NS
        try:
            while True:
                self._arm()
                if ready():
                    return True
                now = now_ns()
                if deadline is not None and now >= deadline:
                    return False
                if now >= next_check_ns:  # also if a peer that lives rings again and again, and another one has died
                    self._check_peers()
                    next_check_ns = now + SLICE_NS
                left = (next_check_ns if deadline is None else min(next_check_ns, deadline)) - now
                if self._doorbell is not None:
                    self._doorbell.sleep(left)
                else:
                    select.select([], [], [], min(nap_ns, left) / 1e9)
                    nap_ns = min(2 * nap_ns, 1_000_000)
                if ready():
                    return True
        finally:
            self._disarm()
