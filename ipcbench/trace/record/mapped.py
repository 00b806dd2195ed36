"""Files mapped into memory, without a descriptor.

Python's own `mmap` keeps one until it is closed. A program may close all descriptors meanwhile, as daemons do, and open
its own: their numbers must not be closed in its place. Functions of the system are bound here once, whatever the
program puts into the place of those of `os` later.
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
except ImportError:  # an isolated interpreter of Python 3.12 has none: `mmap` it is
    ctypes = None
else:
    _LIBC = ctypes.CDLL(None, use_errno=True)
    _MMAP, _MUNMAP = _LIBC.mmap, _LIBC.munmap
    _MMAP.restype = ctypes.c_void_p
    _MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t]
    _MUNMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _FAILED = ctypes.c_void_p(-1).value


def make_file(path: Path, size_bytes: int) -> memoryview:
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


def extend_file(path: Path, offset: int, size_bytes: int) -> memoryview:
    """Return the bytes of a part of a file, allocated before they are mapped.

    Raises:
        OSError: no room, no permission, or no such file.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _mapped(descriptor, offset, size_bytes)
    finally:
        close(descriptor)


def _mapped(descriptor: int, offset: int, size_bytes: int) -> memoryview:
    if sys.platform == "linux":
        posix_fallocate(descriptor, offset, size_bytes)
    else:
        pwrite(descriptor, bytes(size_bytes), offset)
    if ctypes is None:
        return memoryview(mmap.mmap(descriptor, size_bytes, offset=offset))
    address = _MMAP(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, offset)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


def unmap(view: memoryview) -> bool:
    """Unmap what a function here has returned; return whether it was mapped until now. Nobody may use it any more.

    What is never given back stays mapped: while an interpreter ends, calls may come after all else.
    """
    try:
        size_bytes, memory = view.nbytes, view.obj
    except ValueError:  # it is released
        return False
    view.release()
    if isinstance(memory, mmap.mmap):
        memory.close()
    else:
        _MUNMAP(ctypes.addressof(memory), size_bytes)
    return True
