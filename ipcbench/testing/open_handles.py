"""What the calling process holds: descriptors and threads; and what importing a module touches."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading

_OUTWARD_EVENTS = (
    "os.fork",
    "os.forkpty",
    "os.mkdir",
    "os.posix_spawn",
    "os.symlink",
    "os.system",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def descriptors() -> dict[int, str]:
    """Return each open descriptor and what it leads to, as far as the system tells."""
    found: dict[int, str] = {}
    for entry in os.listdir("/dev/fd"):
        try:
            os.fstat(int(entry))
        except OSError:  # the one that listed the folder
            continue
        try:
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            found[int(entry)] = "unknown"
    return found


def counts() -> dict[str, int]:
    """Return how many descriptors and Python threads this process has, once garbage is collected."""
    gc.collect()
    return {"descriptors": len(descriptors()), "threads": threading.active_count()}


def touched_by_import(module: str) -> list[str]:
    """Import `module`, for the first time in this process, and return what that touched: files opened for writing,
    folders, sockets, processes; and descriptors and threads that are still there. Watches the process for its whole
    life: call it in one that ends afterwards.
    """
    touched: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if not watching:
            return
        flags = arguments[2] if event == "open" else None
        writes = isinstance(flags, int) and flags & _WRITING and arguments[0] != os.devnull
        if writes or event in _OUTWARD_EVENTS:
            touched.append(f"{event} {arguments[0]!r}")

    sys.dont_write_bytecode = True
    files, threads = descriptors(), set(threading.enumerate())
    sys.addaudithook(watch)
    importlib.import_module(module)
    watching = False
    touched += [f"descriptor of {what}" for fd, what in descriptors().items() if files.get(fd) != what]
    touched += [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    return touched
