"""Files mapped into memory, without a descriptor.

Python's own `mmap` keeps one until it is closed. A program may close all descriptors meanwhile, as daemons do, and open
its own: their numbers must not be closed in its place. So an anonymous mapping is made, which has none, and the file is
put into its place. Functions of the system are bound here once, whatever the program puts into the place of those of
`os` later.
"""

from __future__ import annotations

import mmap
import os
import sys
from os import close, posix_fallocate, pwrite
from os import open as open_file
from pathlib import Path
from typing import Any

ctypes: Any
try:
    import ctypes
except ImportError:  # an isolated interpreter of Python 3.12 has none: the descriptor is kept
    ctypes = None
else:
    _MMAP = ctypes.CDLL(None, use_errno=True).mmap
    _MMAP.restype = ctypes.c_void_p
    _MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t]

_MAP_FIXED = 0x10


def make_file(path: Path, size_bytes: int) -> mmap.mmap:
    """Make a file, and return its bytes, all of them allocated.

    Raises:
        OSError: no room, no permission, no such folder, or the file exists; nothing is left behind.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        return _mapped(descriptor, 0, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        close(descriptor)


def extend_file(path: Path, offset: int, size_bytes: int) -> mmap.mmap:
    """Return the bytes of a part of a file, allocated before they are mapped.

    Raises:
        OSError: no room, no permission, or no such file.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _mapped(descriptor, offset, size_bytes)
    finally:
        close(descriptor)


def _mapped(descriptor: int, offset: int, size_bytes: int) -> mmap.mmap:
    if sys.platform == "linux":
        posix_fallocate(descriptor, offset, size_bytes)
    else:
        pwrite(descriptor, bytes(size_bytes), offset)
    if ctypes is None:
        return mmap.mmap(descriptor, size_bytes, offset=offset)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    how = mmap.MAP_SHARED | _MAP_FIXED
    if _MMAP(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, how, descriptor, offset) != address:
        number = ctypes.get_errno()
        memory.close()
        raise OSError(number, os.strerror(number))
    return memory
