"""Shared segments and mapped files that join two processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import Literal

from ipcbench.diagnose.endpoints.link import Kind, Link, Role
from ipcbench.diagnose.endpoints.process import PAGE_BYTES, Mapping, Process
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.units import format_bytes

_SEGMENT = re.compile(r"/dev/shm/|/run/shm/|/memfd:|/SYSV|/dev/zero$|/anon_hugepage$|/dev/hugepages/")  # noqa: S108 - names to compare with
_SEMAPHORE = re.compile(r"/(dev|run)/shm/sem\.")
_SEMAPHORE_BYTES = 32
"""Of a sem_t, at most: any more is memory by such a name."""
_NOTHING = re.compile(r"^/dev/(?!shm/|zero$|hugepages/)|/dconf/user$")
"""Devices, and a file that every program of a desktop maps."""
_LIBRARY = (
    (re.compile(rf"/{re.escape(NAME_PREFIX)}"), "ipcbench"),
    (re.compile(r"/psm_[0-9a-f]{8}$|/pym-\d+-|/sem\.mp-"), "multiprocessing"),
    (re.compile(r"/torch_\d+_"), "PyTorch"),
)
_LMDB = re.compile(r"(?P<data>.*/data\.mdb|.*)-lock$|(?P<folder>.*/)lock\.mdb$")
_MPI = re.compile(r"/(mpich|psm|vader|sm_|ompi|impi|Intel_MPI)[^/]*$|openmpi|/ucx_|/SYSV0{8}$", re.IGNORECASE)


def memory_links(first: Process, second: Process) -> Iterator[Link]:
    """Yield a link for each file or segment that both processes map, and at least one of them may write."""
    mine, others = _by_key(first), _by_key(second)
    databases = _lmdb_files({m.path for side in (mine, others) for maps in side.values() for m in maps})
    for key in sorted(mine.keys() & others.keys(), key=lambda key: mine[key][0].path):
        path = mine[key][0].path
        if _NOTHING.search(path):
            continue
        sides = ((first, mine[key]), (second, others[key]))
        as_file = databases.get(path) == "data"
        if not any(_writes(process, maps, as_file) for process, maps in sides):
            continue  # a library's tables, a cache
        texts = [f"process {process.pid} maps it{_writes(process, maps, as_file) or ''}" for process, maps in sides]
        kind, role = _kind(first, mine[key])
        if databases.get(path) == "control" or any(_is_sqlite_index(process, path) for process in (first, second)):
            role = "wake-up"  # its locks and cursors
        touched = [first.has_touched(key), second.has_touched(key)] if role == "data" else []
        for process, answer in zip((first, second), touched, strict=False):
            if answer is False:
                role = "untouched"
                texts.append(f"it is not resident in process {process.pid} now")
        library = "LMDB" if path in databases else _library(path, first, second)
        if role == "data" and kind == "mapped file" and not library and all(_is_writable(maps) for _, maps in sides):
            role = "unclear"  # as weights that two programs have opened alike
        name = path if not path.endswith("/dev/zero") else f"anonymous segment {key[1]}"
        inode = f"{kind} {key[0]} inode {key[1]}, {format_bytes(_size_bytes(mine[key]))}"
        yield Link("mapped file" if library == "LMDB" else kind, name, first.pid, second.pid,
                   (f"{inode}: {texts[0]}, {texts[1]}", *texts[2:]), role, library)  # fmt: skip


def _by_key(process: Process) -> dict[tuple[str, int], list[Mapping]]:
    ordered = sorted((m for m in process.mappings if m.key[1] or m.path.startswith("/SYSV")), key=lambda m: m.key)
    return {key: list(maps) for key, maps in groupby(ordered, key=lambda m: m.key)}


def _size_bytes(maps: list[Mapping]) -> int:
    return sum(each.end - each.start for each in maps)


def _is_writable(maps: list[Mapping]) -> bool:
    return any(each.writable for each in maps)


def _writes(process: Process, maps: list[Mapping], as_file: bool) -> str | None:
    """Return how a process can write what it maps, in words; None if it cannot.

    Only LMDB maps its data to read it, and writes them as a file: others that have a file open write for other ends.
    """
    if _is_writable(maps):
        return " writable"
    for each in process.descriptors if as_file else ():
        if each.kind == "file" and each.writes and each.key[1] == maps[0].key[1] and each.target == maps[0].shown:
            return f", and writes it as a file (fd {each.fd})"
    return None


def _is_sqlite_index(process: Process, path: str) -> bool:
    """Return whether this is the index of a database of SQLite: its data and their log are open beside it."""
    data = path.removesuffix("-shm")
    return data != path and {data, f"{data}-wal"} <= {each.target for each in process.descriptors}


def _kind(process: Process, maps: list[Mapping]) -> tuple[Kind, Role]:
    if not _SEGMENT.match(maps[0].path):
        return "mapped file", "data"
    return ("semaphore", "wake-up") if _is_semaphore(process, maps[0]) else ("shared memory", "data")


def _is_semaphore(process: Process, mapping: Mapping) -> bool:
    """Return whether a mapping is a semaphore by name and size. Where this user cannot learn the size, as the file was
    removed, only one of multiprocessing is, which removes its own at once.
    """
    if not _SEMAPHORE.match(mapping.path):
        return False
    for path in (f"map_files/{mapping.start:x}-{mapping.end:x}", f"root{mapping.path}"):
        with suppress(OSError):
            status = os.stat(f"/proc/{process.pid}/{path}")
            if status.st_ino == mapping.key[1]:
                return status.st_size <= _SEMAPHORE_BYTES
    return "/sem.mp-" in mapping.path and mapping.end - mapping.start == PAGE_BYTES


def _library(path: str, first: Process, second: Process) -> str | None:
    for form, library in _LIBRARY:
        if form.search(path):
            return library
    return "MPI" if _MPI.search(path) and "MPI" in first.libraries & second.libraries else None


def _lmdb_files(paths: set[str]) -> dict[str, Literal["data", "control"]]:
    """Return the files of LMDB databases: a data file and its lock file, of the same folder, and what ipcbench's
    channels have beside them.
    """
    found: dict[str, Literal["data", "control"]] = {}
    for path in paths:
        match = _LMDB.match(path)
        if match:
            data = f"{match['folder']}data.mdb" if match["folder"] else match["data"]
            if data in paths:
                found |= {path: "control", data: "data"}
    folders = {path.removesuffix("/bulk.mdb") for path in found if path.endswith("/bulk.mdb")}
    beside = {f"{folder}/cursors" for folder in folders} & paths
    return {**found, **dict.fromkeys(beside, "control")}
