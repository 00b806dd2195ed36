"""A side door to the operating system: what exists under a channel's name, seen without the backend's own methods.

Where a system has no /proc, only files are seen. Threads are seen by name in the calling process alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder itself is what is looked at
_PROC = Path("/proc")


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
        pids: processes whose descriptors and mappings are looked at too, deleted files included. A process that has
            ended has none.
    """
    found = {*files(prefix), *_sockets(prefix), *_processes(prefix), *_threads(prefix)}
    for pid in pids:
        found.update(_descriptors(prefix, pid))
        found.update(_mappings(prefix, pid))
    return sorted(found)


def remove_files(prefix: str) -> None:
    """Remove all files and folders whose name begins with `prefix`, so that a broken backend leaves no rubbish."""
    for path in _paths(prefix):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _paths(prefix: str) -> Iterator[Path]:
    for folder in dict.fromkeys((SHARED_MEMORY, Path(tempfile.gettempdir()))):
        if folder.is_dir():
            # POSIX semaphores are files too, with a prefix of the system's own.
            yield from (p for p in folder.iterdir() if p.name.removeprefix("sem.").startswith(prefix))


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
    for entry in _PROC.glob("[0-9]*/cmdline"):
        if entry.parent.name == str(os.getpid()):
            continue
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(_carries(word, prefix) for word in words):
            yield Trace("process", f"{entry.parent.name}: {' '.join(words).strip()}")


def _threads(prefix: str) -> Iterator[Trace]:
    yield from (Trace("thread", t.name) for t in threading.enumerate() if t.name.startswith(prefix))


def shared_memory_of(pid: int) -> set[Path]:
    """Return the shared memory that a process has mapped and that still has a name."""
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:  # the process has ended
        return set()
    paths = {Path(f"/{line.partition('/')[2]}") for line in lines}
    return {path for path in paths if path.parent == SHARED_MEMORY and path.exists()}


def _descriptors(prefix: str, pid: int) -> Iterator[Trace]:
    for entry in _listing(_PROC / str(pid) / "fd"):
        try:
            target = os.readlink(entry)
        except OSError:  # closed meanwhile
            continue
        if _carries(target, prefix):
            yield Trace("descriptor", f"{target} of process {pid}")


def _mappings(prefix: str, pid: int) -> Iterator[Trace]:
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:  # the process has ended
        return
    for line in lines:
        target = line.partition("/")[2]
        if _carries(target, prefix):
            yield Trace("mapping", f"/{target} of process {pid}")


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # the process has ended
        return []


def _carries(target: str, prefix: str) -> bool:
    """Return whether some part of the path begins with the prefix."""
    return any(part.startswith(prefix) for part in target.split("/"))
