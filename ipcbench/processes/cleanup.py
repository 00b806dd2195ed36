"""What runs leave on the host, found by name, and the removal of what no living process holds.

Everything that ipcbench makes begins with `ipcb-` and lies in the temporary folder or, for shared memory, in /dev/shm
under the name of its channel's directory. Two kinds of lock tell whether it is in use, and the kernel releases both
with the process: the lock of a run (`<token>-run/run.lock`, where `<token>` begins the names of all its channels) and
the locks of a channel's endpoints. A program with another temporary folder has locks that cannot be seen; its mapped
segments can. A channel's services (`ipcbench.sync.service`) end before its directory goes. A channel outside any run
that was made moments ago and was never opened may be about to be: it stays. Where shared memory cannot be listed
(macOS), only the temporary folder is searched.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipcbench.processes.worker import LAUNCH_VARIABLE
from ipcbench.spec import NAME_PREFIX
from ipcbench.sync.locks import LOCK_SUFFIX, is_locked
from ipcbench.sync.service import end_services
from ipcbench.util.files import temporary_folder

if TYPE_CHECKING:
    import psutil

SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory

RUN_SUFFIX = "-run"
"""What the name of a run's directory ends with, after the run's token."""

RUN_LOCK = "run.lock"
"""File in a run's directory that is locked as long as the run lives."""

_WORKER = "ipcbench.processes.worker"
_MPI_PREFIXES = ("mpich_shm_", "mpich_shar_tmp", "ucx_shm_posix_")
"""Of MPICH; of its windows and of the library below it, which go at once unless a process is killed in between."""
_HYDRA_PROXY, _HYDRA_FILES = "hydra_pmi_proxy", "hydra_hwloc_xmlfile_*"
"""What starts ranks by Hydra, and what it leaves in /tmp, whatever TMPDIR says, if it is killed."""
_TICK_S = 0.01
"""By so much the times of files may lag behind the clock: Linux stamps them with that of its last timer tick."""
_KILLING_S = 10.0

GRACE_S = 60.0
"""How long a channel that was never opened, and belongs to no run, may wait for its first endpoint."""


def find(prefix: str) -> list[Path]:
    """Return every segment and every entry of the temporary folder whose name begins with `prefix`, sorted."""
    folders = {SHM_FOLDER, temporary_folder()}
    return sorted(path for folder in folders if folder.is_dir() for path in folder.glob(f"{prefix}*"))


def remove(prefix: str) -> None:
    """Remove what `find` finds; an entry that disappears meanwhile is fine."""
    for path in find(prefix):
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                end_services(path)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Resource:
    """A file, folder or segment whose name begins with our prefix."""

    path: Path
    size_bytes: int
    """Apparent size of all its files."""
    kept_because: str
    """Why it must stay; empty if it is stale: no living process holds it."""


def survey() -> tuple[Resource, ...]:
    """Return all our resources on this host, in the order in which to remove them; changes nothing."""
    entries = find(NAME_PREFIX)
    runs = {path.name.removesuffix(RUN_SUFFIX): path for path in entries if path.name.endswith(RUN_SUFFIX)}
    judge = _Judge(
        living_runs=tuple(token for token, path in runs.items() if is_locked(path / RUN_LOCK)),
        ended_runs=tuple(token for token, path in runs.items() if (path / RUN_LOCK).is_file()),
        open_channels=tuple(path.name for path in entries if any(map(is_locked, path.glob(f"*{LOCK_SUFFIX}")))),
        closed_channels=tuple(path.name for path in entries if any(path.glob(f"*{LOCK_SUFFIX}"))),
        mapped=mapped_segments(NAME_PREFIX) if any(path.parent == SHM_FOLDER for path in entries) else (),
        now_s=time.time(),
    )
    # Runs last: if the removal is stopped, what marks the rest as dead is still there.
    ordered = [*(path for path in entries if path not in runs.values()), *runs.values()]
    judged = ((path, judge.kept_because(path)) for path in ordered)
    return tuple(Resource(path, _size_bytes(path), reason) for path, reason in judged if reason is not None)


def clean(resources: tuple[Resource, ...]) -> tuple[Resource, ...]:
    """Remove the stale resources; return all resources, with the reason for each that could not be removed."""
    return tuple(resource if resource.kept_because else _removed(resource) for resource in resources)


def _removed(resource: Resource) -> Resource:
    path = resource.path
    try:
        if path.is_dir() and not path.is_symlink():
            end_services(path)
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return resource  # another process has removed it: that is what was wanted
    except OSError as error:
        return Resource(path, resource.size_bytes, f"cannot be removed: {error.strerror}")
    except RecursionError:
        return Resource(path, resource.size_bytes, "cannot be removed: its folders are too deep")
    return resource


@dataclass(frozen=True, slots=True)
class _Judge:
    """What is known of runs and channels, by name."""

    living_runs: tuple[str, ...]
    ended_runs: tuple[str, ...]
    """Tokens of all runs that once had their lock, including the living ones, which `kept_because` tests first."""
    open_channels: tuple[str, ...]
    closed_channels: tuple[str, ...]
    """Names of all channels that were once opened, including the open ones, which `kept_because` tests first."""
    mapped: tuple[str, ...]
    """Names of the segments that some process has mapped."""
    now_s: float

    def kept_because(self, path: Path) -> str | None:
        """Return why the entry must stay, or an empty text; None if it has gone meanwhile.

        An entry whose name begins with that of a living run or an open channel stays too.
        """
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        name, age_s = path.name, self.now_s - status.st_mtime
        young = age_s < GRACE_S and not name.startswith(self.ended_runs + self.closed_channels)
        reasons = (
            (os.geteuid() not in {0, status.st_uid}, "it belongs to another user"),
            (name.startswith(self.living_runs), "its run is alive"),
            (name.startswith(self.open_channels), "a process has it open"),
            (name.startswith(self.mapped), "a process has its segment mapped"),
            (name in self._runs_with_open_channels(), "a process has a channel of this run open"),
            (young, f"it is {age_s:.0f} s old and may be about to be opened"),
        )
        return next((reason for applies, reason in reasons if applies), "")

    def _runs_with_open_channels(self) -> set[str]:
        tokens = (token for token in self.ended_runs if any(name.startswith(token) for name in self.open_channels))
        return {f"{token}{RUN_SUFFIX}" for token in tokens}


def kill_workers(mark: str) -> None:
    """Kill all workers of this host with `mark` in their command lines, and the launchers that start such, until there
    are none.
    """
    _kill_all(lambda process: _is_worker(process, mark))


def kill_launched(token: str) -> None:
    """Kill all processes of this host that bear the token of a launch, until there are none. A process's number would
    not do: it may be that of a worker on another host, or of a later process.
    """
    _kill_all(lambda process: process.environ().get(LAUNCH_VARIABLE) == token)


def _kill_all(is_meant: Callable[[psutil.Process], bool]) -> None:
    import psutil

    def found() -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if is_meant(process) and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    end_s = time.monotonic() + _KILLING_S
    while time.monotonic() < end_s and (processes := list(found())):
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1.0)


def _is_worker(process: psutil.Process, mark: str) -> bool:
    line = " ".join(process.cmdline())
    return _WORKER in line and mark in line


def remove_mpi_segments(since_s: float) -> None:
    """Remove the segments of MPI that are this user's, were made since then (Unix time), and that no process has
    mapped: those of ranks that were killed; and the files of Hydra, when none of its proxies runs that began after this
    process.
    """
    for prefix in _MPI_PREFIXES:
        paths = [path for path in SHM_FOLDER.glob(f"{prefix}*") if _made_by_us(path, since_s)]
        mapped = mapped_segments(prefix) if paths else ()
        for path in paths:
            if path.name not in mapped:
                path.unlink(missing_ok=True)
    paths = [path for path in Path("/tmp").glob(_HYDRA_FILES) if _made_by_us(path, since_s)]  # noqa: S108 - Hydra's
    if paths and not _runs(_HYDRA_PROXY):
        for path in paths:
            path.unlink(missing_ok=True)


def _runs(program: str) -> bool:
    """Return whether a process of this host that this user may see and that began after this one, which it may have
    started, runs that program; one that was killed does not, although nobody may have asked for its exit code yet.
    """
    import psutil

    begun_s = psutil.Process().create_time()
    found = (each.info for each in psutil.process_iter(["name", "status", "create_time"]))
    later = (each for each in found if each["name"] == program and each["create_time"] > begun_s)
    return any(each["status"] != psutil.STATUS_ZOMBIE for each in later)


def _made_by_us(path: Path, since_s: float) -> bool:
    with suppress(FileNotFoundError):
        status = path.lstat()
        return status.st_uid == os.geteuid() and status.st_mtime >= since_s - _TICK_S
    return False


def mapped_segments(prefix: str) -> tuple[str, ...]:
    """Return the names of the segments that any process has mapped, as far as this user may see (Linux)."""
    pattern = re.compile(rf"{re.escape(str(SHM_FOLDER))}/({prefix}\S+)")
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            names.update(pattern.findall(maps.read_text(errors="replace")))
        except OSError:
            continue  # the process has ended, or is another user's
    return tuple(names)


def _size_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder; files that disappear meanwhile do not count."""
    total_bytes, left = 0, [path]
    while left:
        entry = left.pop()
        try:
            status = entry.lstat()
            left += entry.iterdir() if stat.S_ISDIR(status.st_mode) else ()
        except OSError:  # another user's, or one so deep that its name is too long
            continue
        total_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total_bytes
