"""Waking whoever sleeps on a word of shared memory (futex(2), Linux): what a ring in C sleeps on.

It is cheaper than a doorbell, and cannot be waited on together with others.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAKE, _ALL = 1, 2**31 - 1

_NUMBER = _SYS_FUTEX.get(platform.machine()) if sys.platform == "linux" else None

HAS_FUTEX = _NUMBER is not None and sys.maxsize > 2**32


def address_of(words: memoryview) -> int:
    """Return the address of shared memory, which is valid as long as it is mapped."""
    return ctypes.addressof(ctypes.c_char.from_buffer(words))


def wake(address: int) -> None:
    """Wake all who sleep on the 32-bit word there, in any process."""
    _SYSCALL(_NUMBER, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0)


if HAS_FUTEX:
    _SYSCALL = ctypes.CDLL(None).syscall
