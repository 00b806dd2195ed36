"""What dead runs left behind: finding it, judging that nobody holds it, removing it.

Everything that ipcbench makes begins with `ipcb-` and lies in the temporary folder or, for shared memory, in /dev/shm
under the name of its channel's directory. Two locks tell whether it lives, and the kernel drops both with the process:
the lock of a run (`<token>-run/run.lock`, where `<token>` begins the names of all its channels) and the seats of a
channel. Locks of a program with another temporary folder cannot be seen, but that it has a segment mapped can. What was
made moments ago and never had a seat, outside any run, may be about to be opened: it stays.
Where shared memory cannot be listed (macOS), only the temporary folder is looked at.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from ipcbench.processes import leftovers
from ipcbench.spec import NAME_PREFIX
from ipcbench.sync.locks import LOCK_SUFFIX, is_held

RUN_SUFFIX = "-run"
RUN_LOCK = "run.lock"

GRACE_S = 60.0
"""How long a channel that was never opened, and belongs to no run, may wait for its first endpoint."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One entry whose name begins as ours do."""

    path: Path
    size_bytes: int
    """Apparent size of all its files."""
    kept_because: str
    """Why it must stay; empty if nothing living holds it."""


def survey() -> tuple[Leftover, ...]:
    """Return every entry of ours on this host, in the order in which to remove them; changes nothing."""
    entries = leftovers.find(NAME_PREFIX)
    runs = {path.name.removesuffix(RUN_SUFFIX): path for path in entries if path.name.endswith(RUN_SUFFIX)}
    judge = _Judge(
        living_runs=tuple(token for token, path in runs.items() if _is_locked(path / RUN_LOCK)),
        ended_runs=tuple(token for token, path in runs.items() if (path / RUN_LOCK).is_file()),
        open_channels=tuple(path.name for path in entries if _has_open_seat(path)),
        closed_channels=tuple(path.name for path in entries if any(path.glob(f"*{LOCK_SUFFIX}"))),
        mapped=_mapped_segments() if any(one.parent == leftovers.SHM_FOLDER for one in entries) else (),
        now_s=time.time(),
    )
    # Runs last: whatever stops the removal, what marks the rest as dead is still there.
    ordered = [*(path for path in entries if path not in runs.values()), *runs.values()]
    return tuple(Leftover(path, _size_bytes(path), judge.kept_because(path)) for path in ordered)


def clean(leftovers: tuple[Leftover, ...]) -> tuple[Leftover, ...]:
    """Remove those that nothing holds; return all of them again, with the reason for any that could not be removed."""
    return tuple(one if one.kept_because else _removed(one) for one in leftovers)


def _removed(leftover: Leftover) -> Leftover:
    path = leftover.path
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return leftover  # somebody else has removed it: that is what was wanted
    except OSError as error:
        return Leftover(path, leftover.size_bytes, f"cannot be removed: {error.strerror}")
    return leftover


@dataclass(frozen=True, slots=True)
class _Judge:
    """What is known of runs and channels, by name."""

    living_runs: tuple[str, ...]
    ended_runs: tuple[str, ...]
    """Tokens of all runs that once had their lock; those still living are asked about first."""
    open_channels: tuple[str, ...]
    closed_channels: tuple[str, ...]
    """Names of all channels that once had a seat; those still open are asked about first."""
    mapped: tuple[str, ...]
    """Names of the segments that some process has in its memory."""
    now_s: float

    def kept_because(self, path: Path) -> str:
        """Return why the entry must stay, or an empty text. What is named as a living one, and longer, stays too."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return ""
        name, age_s = path.name, self.now_s - status.st_mtime
        young = age_s < GRACE_S and not name.startswith(self.ended_runs + self.closed_channels)
        reasons = (
            (os.geteuid() not in {0, status.st_uid}, "it belongs to another user"),
            (name.startswith(self.living_runs), "its run is alive"),
            (name.startswith(self.open_channels), "a process has its channel open"),
            (name.startswith(self.mapped), "a process has its segment mapped"),
            (name in self._runs_with_open_channels(), "a process has a channel of this run open"),
            (young, f"it is {age_s:.0f} s old and may be about to be opened"),
        )
        return next((reason for applies, reason in reasons if applies), "")

    def _runs_with_open_channels(self) -> set[str]:
        return {f"{one}{RUN_SUFFIX}" for one in self.ended_runs if any(c.startswith(one) for c in self.open_channels)}


def _has_open_seat(directory: Path) -> bool:
    try:
        return any(is_held(directory, lock.stem) for lock in directory.glob(f"*{LOCK_SUFFIX}"))
    except PermissionError:
        return False  # another user's, which stays for that reason


def _mapped_segments() -> tuple[str, ...]:
    """Return the names of our segments that any process has mapped, as far as this user may see (Linux)."""
    pattern = re.compile(rf"{re.escape(str(leftovers.SHM_FOLDER))}/({NAME_PREFIX}\S+)")
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            found.update(pattern.findall(maps.read_text(errors="replace")))
        except OSError:
            continue  # it has ended, or is another user's
    return tuple(found)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _size_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder; what vanishes meanwhile counts nothing."""
    total_bytes = 0
    for one in (path, *path.rglob("*")):
        try:
            status = one.lstat()
        except OSError:
            continue
        total_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total_bytes
