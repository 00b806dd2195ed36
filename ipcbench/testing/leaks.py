"""What is open or left over, as the operating system sees it, without the backend's own methods.

`traces` looks for everything that carries a channel's name; `counts` and `touched_by_import` look at the calling
process. Where a system has no /proc, `traces` sees only files; it sees threads of the calling process only.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ipcbench.util.files import temporary_folder

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only searched
_PROC = Path("/proc")
_OUTWARD_EVENTS = (
    "os.fork", "os.forkpty", "os.mkdir", "os.posix_spawn", "os.symlink", "os.system", "socket.bind", "socket.connect",
    "subprocess.Popen",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """One thing that carries a name."""

    kind: str
    """`shared memory`, `file`, `socket`, `process`, `thread`, `descriptor` or `mapping`."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"


def traces(prefix: str, pids: Iterable[int] = ()) -> list[Trace]:
    """Return everything on the host whose name begins with `prefix`, sorted.

    Args:
        prefix: the channel's name, or the beginning of several.
        pids: processes whose descriptors and mappings are searched too, deleted files included. A process that has
            ended has none.
    """
    every = {*files(prefix), *_sockets(prefix), *_processes(prefix)}
    every.update(Trace("thread", thread.name) for thread in threading.enumerate() if thread.name.startswith(prefix))
    for pid in pids:
        every.update(_descriptors(prefix, pid))
        targets = (line.partition("/")[2] for line in _maps(pid))
        every.update(Trace("mapping", f"/{path} of process {pid}") for path in targets if _carries(path, prefix))
    return sorted(every)


def remove_files(prefix: str) -> None:
    """Remove all files and folders whose name begins with `prefix`, so that a broken backend leaves nothing."""
    for path in _paths(prefix):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _paths(prefix: str) -> Iterator[Path]:
    for folder in dict.fromkeys((SHARED_MEMORY, temporary_folder())):
        if folder.is_dir():
            # POSIX semaphores are files too, with a prefix of the system's own.
            yield from (path for path in folder.iterdir() if path.name.removeprefix("sem.").startswith(prefix))


def files(prefix: str) -> Iterator[Trace]:
    """Yield the entries of the file system that belong to `traces`."""
    for path in _paths(prefix):
        yield Trace("shared memory" if path.parent == SHARED_MEMORY else "file", str(path))


def _sockets(prefix: str) -> Iterator[Trace]:
    """Yield bound Unix sockets, abstract ones included, of which some part of the path begins with the prefix."""
    table = _PROC / "net" / "unix"
    if table.exists():
        for line in table.read_text(errors="replace").splitlines()[1:]:
            path = "".join(line.split(maxsplit=7)[7:]).removeprefix("@")
            if _carries(path, prefix):
                yield Trace("socket", path)


def _processes(prefix: str) -> Iterator[Trace]:
    """Yield other processes with an argument of which some part of the path begins with the prefix."""
    for pid in os.listdir(_PROC) if _PROC.exists() else ():
        if not pid.isdecimal() or pid == str(os.getpid()):
            continue
        try:
            words = (_PROC / pid / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has ended meanwhile
            continue
        if any(_carries(word, prefix) for word in words):
            yield Trace("process", f"{pid}: {' '.join(words).strip()}")


def _maps(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:  # the process has ended
        return []


def _descriptors(prefix: str, pid: int) -> Iterator[Trace]:
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:  # the process has ended
        return
    for entry in entries:
        try:
            target = os.readlink(entry)
        except OSError:  # closed meanwhile
            continue
        if _carries(target, prefix):
            yield Trace("descriptor", f"{target} of process {pid}")


def _carries(target: str, prefix: str) -> bool:
    """Return whether some part of the path begins with the prefix."""
    return any(part.startswith(prefix) for part in target.split("/"))


def descriptors() -> dict[int, str]:
    """Return each open descriptor of this process and what it refers to, as far as the system tells."""
    targets: dict[int, str] = {}
    for entry in os.listdir("/dev/fd"):
        try:
            os.fstat(int(entry))
        except OSError:  # the descriptor that listed the folder
            continue
        try:
            targets[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            targets[int(entry)] = "unknown"
    return targets


def counts() -> dict[str, int]:
    """Return how many descriptors and Python threads this process has, once garbage is collected."""
    gc.collect()
    return {"descriptors": len(descriptors()), "threads": threading.active_count()}


def touched_by_import(module: str) -> list[str]:
    """Import `module` for the first time in this process and return what that touched: files opened for writing,
    folders, sockets, processes; and descriptors and threads that remain. The audit hook cannot be removed: call this
    in a process that ends afterwards.
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
    before, threads = descriptors(), set(threading.enumerate())
    sys.addaudithook(watch)
    importlib.import_module(module)
    watching = False
    touched += [f"descriptor of {what}" for fd, what in descriptors().items() if before.get(fd) != what]
    touched += [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    return touched
