"""python in_time_namespace.py WORKER OFFSET_NS COMMAND…: run the command; if it is that worker, with its clock offset.

The kernel offsets CLOCK_MONOTONIC for the processes of a time namespace: a wrong clock of which ipcbench knows nothing.
Needs CAP_SYS_ADMIN, or user namespaces.
"""

import ctypes
import os
import sys
from pathlib import Path

_NEW_TIME, _NEW_USER = 0x80, 0x10000000


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter(offset_ns: int) -> None:
    """Move this process to a new time namespace."""
    try:
        _call("unshare", _NEW_TIME)
    except PermissionError:
        _call("unshare", _NEW_USER | _NEW_TIME)
    seconds, rest_ns = divmod(offset_ns, 10**9)
    Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} {rest_ns}\n")
    _call("setns", os.open("/proc/self/ns/time_for_children", os.O_RDONLY), _NEW_TIME)


if __name__ == "__main__":
    worker, offset, *command = sys.argv[1:]
    if f"--index {worker} " in " ".join([*command, ""]):
        enter(int(offset))
    os.execv(command[0], command)
