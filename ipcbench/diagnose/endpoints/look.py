"""What a look at an endpoint gathers, and the looks that several kinds of endpoints have in common."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ipcbench.diagnose.endpoints.link import processes
from ipcbench.diagnose.endpoints.process import command_of, is_stopped, shortened

Level = Literal["ok", "note", "problem", "unknown"]

SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - only looked at
LISTEN_THERE: Final = "have it listen, or restart it"
SERVE: Final = "start the server first, or correct the address"
_MOST_STEPS: Final = 4096
_UNSEEN: Final = "a process that is not seen here (another user or PID namespace)"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """`ok`; `note`: worth knowing, and no problem by itself; `problem`; or `unknown`: the kernel here cannot tell."""
    text: str
    """What was found, in one sentence."""
    remedy: str | None = None
    """What to do about it; None if there is nothing to do."""


class Look:
    """What a look at an endpoint gathers."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.pids: set[int] = set()
        self.findings: list[Finding] = []

    def add(self, level: Level, text: str, remedy: str | None = None) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, text, remedy))

    def serve(self, what: str, pids: Iterable[int]) -> None:
        """Take these processes for those who serve; none means that they are not seen."""
        pids = set(pids)
        self.pids |= pids
        self.add("ok", f"{what}: {named(pids)}")
        stopped = [pid for pid in sorted(pids) if is_stopped(pid)]
        if stopped and len(stopped) == len(pids):
            numbers = " ".join(map(str, stopped))
            text = f"{processes(stopped)} {'are' if len(stopped) > 1 else 'is'} stopped, and answers nothing"
            self.add("problem", text, f"kill -CONT {numbers}; one that a debugger holds goes on there")


def look_at_queues(queues: Iterable[tuple[int, int] | None], pids: Iterable[int], look: Look) -> None:
    """Say it if a server does not accept: of each socket that listens, all places are taken where connections wait."""
    found = list(queues)
    full = [queue for queue in found if queue is not None and queue[0] > queue[1]]
    if full and len(full) == len(found):
        text = f"its queue of {sum(waiting for waiting, _ in full)} connections is full: {named(pids)} does not accept"
        look.add("problem", text, "see what the server waits for (py-spy, gdb), or restart it")


def named(pids: Iterable[int]) -> str:
    """Return the processes with their commands."""
    return ", ".join(f"process {pid} ({shortened(command_of(pid))})" for pid in sorted(pids)) or _UNSEEN


def exists(path: Path, look: Look, what: str, is_kind: Callable[[int], bool]) -> os.stat_result | None:
    """Look whether a file is there and of a kind; return its status, or None if it is not."""
    try:
        status = path.stat()
    except PermissionError:
        folder = _refuses(path)
        look.add("problem", f"user {os.geteuid()} may not look into {folder}", _rights(folder, "x"))
        return None
    except NotADirectoryError:
        file = next(parent for parent in path.parents if parent.exists())
        look.add("problem", f"{path} does not exist: {file} is a file, not a folder", "correct the address")
        return None
    except OSError as error:
        if path.is_symlink():
            text = f"{path} is a link to {os.readlink(path)}: {error.strerror}"
            look.add("problem", text, "correct or remove the link")
            return None
        missing = next((p for p in reversed(path.parents) if not p.exists()), None)
        text = f"{path} does not exist" + (f", nor does its folder {missing}" if missing else "")
        look.add("problem", text, SERVE)
        return None
    if not is_kind(status.st_mode):
        look.add("problem", f"{path} is there, and is not {what}", _instead(path, status.st_mode))
        return None
    look.add("ok", f"{path} exists, owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):03o}")
    return status


def _refuses(path: Path) -> Path:
    """Return the folder on the way to a path that this user may not enter, wherever links lead."""
    at, rest = Path("/"), [*reversed(path.parts[1:])]
    for _ in range(_MOST_STEPS):
        if not rest or not os.access(at, os.X_OK, effective_ids=True):
            break
        name = rest.pop()
        at = at.parent if name == ".." else at / name
        if at.is_symlink():
            try:
                target = at.readlink()
            except OSError:
                return at  # that of another user's process
            rest += reversed(target.parts[target.is_absolute() :])
            at = Path("/") if target.is_absolute() else at.parent
    return at


def _instead(path: Path, mode: int) -> str:
    """Return how to name what is at a path."""
    if stat.S_ISREG(mode) and path.parent == SEGMENTS:
        return f"correct the address; of a segment it is {shlex.quote(f'shm://{path.name}')}"
    if (path / "data.mdb").is_file() or Path(f"{path}-lock").is_file():
        return f"correct the address; of a database of LMDB it is {shlex.quote(f'lmdb://{path}')}"
    if stat.S_ISFIFO(mode):
        return "correct the address; it is a named pipe, which has none: look at its two processes with --pids"
    return "correct the address"


def may_use(path: Path, look: Look, rights: Literal["rw", "w"] = "rw") -> None:
    """Look whether this user may read and write a file; to connect to a socket, it is enough to write it."""
    needed = os.W_OK | (os.R_OK if rights == "rw" else 0)
    if os.access(path, needed, effective_ids=True):
        look.add("ok", f"user {os.geteuid()} may use {path}")
    else:
        what = "read and write" if rights == "rw" else "write"
        look.add("problem", f"user {os.geteuid()} may not {what} {path}", _rights(path, rights))


def command(name: str, path: Path | str) -> str:
    """Return in brackets the command to paste; nothing for a path that a line of a terminal cannot hold."""
    return f" ({name} {shlex.quote(str(path))})" if str(path).isprintable() else ""


def _rights(path: Path, rights: str) -> str:
    name = shlex.quote(str(path))
    return f"run as the owner of {name}, or give this user the right to (chmod o+{rights} {name}; g+ for a group)"
