"""Memory fences for plain loads and stores of shared memory, from pure Python.

Two orders matter. *Publishing*: the payload must be visible before the word that announces it, and a reader must see
the word before it loads the payload. x86 keeps both orders by itself; elsewhere both sides need a fence per message.
*Falling asleep*: a waiter stores "I sleep" and then checks for news once more; a waker stores news and then checks for
sleepers. Every processor reorders a store with a later load, so each side needs a full barrier. The barrier goes where
it is cheap: the waiter, about to sleep anyway, makes all registered processes execute one (membarrier(2), Linux ≥
4.16), and the waker's fast path has none. Without membarrier, the waker pays for a fence per message.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable

from ipcbench.sync.interrupts import is_of_handler

_MACHINE = platform.machine().lower()

STRONG_ORDER = _MACHINE in {"x86_64", "amd64", "i686", "i386"}
"""True where stores become visible in order and loads happen in order (x86-TSO)."""

_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_QUERY, _GLOBAL_EXPEDITED, _REGISTER = 0, 1 << 1, 1 << 2


def make_fence() -> Callable[[], None]:
    """Return a full barrier, for use by one thread.

    It releases a lock that it holds and takes it again: locked instructions on x86; on ARMv8 a store-release followed
    by a load-acquire, which that architecture keeps in order (RCsc), so nothing is reordered across the pair. If an
    exception of a signal handler came between the two last time, the lock is free, and only taken.
    """
    lock = threading.Lock()
    lock.acquire()
    release, acquire = lock.release, lock.acquire

    def fence() -> None:
        try:
            release()
        except RuntimeError as error:
            acquire(blocking=False)
            if is_of_handler(error):
                raise
            release()
        acquire()

    return fence


def _membarrier() -> Callable[[], None] | None:
    """Register this process; return a function that makes every registered process execute a barrier, or None."""
    number = _SYS_MEMBARRIER.get(_MACHINE)
    if not sys.platform.startswith("linux") or number is None:
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    offered = syscall(number, _QUERY, 0)
    if offered < 0 or not (offered & _GLOBAL_EXPEDITED and offered & _REGISTER):
        return None
    if syscall(number, _REGISTER, 0) != 0:
        return None

    def barrier() -> None:
        syscall(number, _GLOBAL_EXPEDITED, 0)

    return barrier


def sleeper_barrier() -> tuple[Callable[[], None], bool]:
    """Return the barrier that a process executes before it sleeps, and whether its wakers need a fence too.

    Every process that opens an endpoint must call this before it publishes anything: the call registers the process.
    """
    barrier = _membarrier()
    return (make_fence(), True) if barrier is None else (barrier, False)
