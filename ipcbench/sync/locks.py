"""A channel's directory and the seats in it: which endpoint is taken, and whether its process still lives.

A seat is a file lock. The kernel drops it when the process dies, however it dies, so nothing can be stale: no process
numbers that may be reused, no heartbeat.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from ipcbench.errors import TransportError


def channel_directory(name: str) -> Path:
    """Return the directory of the channel called `name`, in the temporary folder; it need not exist."""
    return Path(tempfile.gettempdir()) / name


def make_directory(name: str) -> Path:
    """Make the channel's directory, for this user only.

    Raises:
        TransportError: the name is in use, or the folder cannot be made.
    """
    path = channel_directory(name)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        raise TransportError(f"channel {name!r} exists already ({path}); destroy it or take another name") from error
    except OSError as error:
        raise TransportError(f"cannot make {path}: {error.strerror}") from error
    return path


def remove_directory(name: str) -> None:
    """Remove the channel's directory and all in it; one that is not there is fine."""
    shutil.rmtree(channel_directory(name), ignore_errors=True)


class Seat:
    """One endpoint's place, held until `leave` or the end of the process."""

    __slots__ = ("_fd",)

    def __init__(self, directory: Path, role: str) -> None:
        """Take the seat `role` (`writer`, `reader-0` …).

        Raises:
            TransportError: another endpoint holds it, or there is no such channel.
        """
        path = directory / f"{role}.seat"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TransportError(f"there is no channel at {directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise TransportError(f"channel {directory.name!r} already has its {role}") from error

    def leave(self) -> None:
        """Free the seat; twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_held(directory: Path, role: str) -> bool:
    """Return whether a living process holds the seat. Ask only about seats that were taken once: the question itself
    takes the lock for a moment.
    """
    return is_locked(directory / f"{role}.seat")


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock on a file; one that does not exist is not locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
