"""Fences for plain loads and stores of shared memory, from pure Python.

Two orders matter. *Publishing*: the payload must be visible before the word that announces it, and a reader must see
the word before it loads the payload. x86 keeps both orders by itself; elsewhere both sides need a fence a message.
*Falling asleep*: a waiter stores "I sleep" and then looks for news once more; a waker stores news and then looks for
sleepers. Store-then-load is reordered by every processor, so each side needs a full barrier. The barrier is put
where it is cheap: the waiter, about to sleep anyway, makes all registered processes pass one (membarrier(2), Linux ≥
4.16), and the waker's fast path has none. Where membarrier is missing, the waker pays a fence a message.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable

_MACHINE = platform.machine().lower()

STRONG_ORDER = _MACHINE in {"x86_64", "amd64", "i686", "i386"}
"""True where stores become visible in order and loads happen in order (x86-TSO)."""

_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_QUERY, _GLOBAL_EXPEDITED, _REGISTER = 0, 1 << 1, 1 << 2


def make_fence() -> Callable[[], None]:
    """Return a full barrier for the one thread that will call it.

    It releases a lock that it holds and takes it again: locked instructions on x86; on ARMv8 a store-release
    followed by a load-acquire, which that architecture keeps in order (RCsc), so nothing passes the pair in either
    direction.
    """
    lock = threading.Lock()
    lock.acquire()
    release, acquire = lock.release, lock.acquire

    def fence() -> None:
        release()
        acquire()

    return fence


def _membarrier() -> Callable[[], None] | None:
    """Register this process; return a call that makes every registered process pass a barrier, or None."""
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
    """Return the barrier of a process about to sleep, and whether its wakers need a fence of their own.

    Every process that opens an endpoint calls this once before it publishes anything, which registers it.
    """
    barrier = _membarrier()
    return (make_fence(), True) if barrier is None else (barrier, False)
