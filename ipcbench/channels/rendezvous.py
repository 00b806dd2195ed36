"""The folder where the processes of a name meet: notes in JSON, and locks that end with their processes.

The folder lies in the temporary folder and belongs to one user alone (mode 700): whoever took the name first would
otherwise get the messages. `ipcbench clean` removes what dead processes leave: the locks are named as endpoint locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Self

from ipcbench.errors import ConfigError, TransportError, TransportTimeout
from ipcbench.spec import NAME_PREFIX
from ipcbench.sync.directory import as_transport_errors, require_ours
from ipcbench.sync.interrupts import no_fork
from ipcbench.sync.locks import LOCK_SUFFIX, is_locked
from ipcbench.sync.ownership import own
from ipcbench.util.clock import now_ns
from ipcbench.util.files import temporary_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")
LOOK_S = 0.005
"""Interval of looks at what another process has yet to do."""


class Lock:
    """A file lock, held until `release` or the end of the process; a forked child does not hold it."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        own(self)

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Take a lock; None if somebody holds it, or the folder is gone.

        Raises:
            TransportError: the file cannot be made.
        """
        with as_transport_errors(f"cannot lock {path}"), no_fork():
            while True:
                try:
                    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                except FileNotFoundError:
                    return None
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(fd), os.stat(path)):
                        return cls(path, fd)
                except BlockingIOError:
                    os.close(fd)
                    return None
                except FileNotFoundError:
                    pass
                os.close(fd)  # it was removed in between

    def release(self, remove: bool = False) -> None:
        """Release it, after the removal of its file if nobody is to know of it; a second call does nothing."""
        with no_fork():
            if self._fd >= 0:
                if remove:
                    self._path.unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = -1

    def let_go(self) -> None:
        """Close an inherited descriptor: the lock stays the parent's."""
        self.release()


class Rendezvous:
    """The folder of a name.

    Attributes:
        path: the folder; it need not exist.
        name: as the user gave it.
    """

    def __init__(self, kind: str, name: str) -> None:
        """Name it; nothing is made.

        Raises:
            ConfigError: the name is not valid.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError("name", name, "1 to 24 letters, digits, '-' or '_', not beginning with a sign")
        self.name = name
        self.path = temporary_folder() / f"{NAME_PREFIX}{name}.{kind}"

    def make(self) -> None:
        """Make the folder unless it is there.

        Raises:
            TransportError: it cannot be made, or is not this user's alone.
        """
        with as_transport_errors(f"cannot make {self.path}"), suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        self._require_ours()

    def exists(self) -> bool:
        """Return whether it is there.

        Raises:
            TransportError: it is not this user's alone.
        """
        return os.path.lexists(self.path) and self._require_ours()

    def _require_ours(self) -> bool:
        """Return whether it is still there; whoever leaves last removes it at any moment.

        Raises:
            TransportError: it is not this user's alone.
        """
        try:
            require_ours(self.path)
        except TransportError:
            if os.path.lexists(self.path):
                raise
            return False
        return True

    def remove(self) -> None:
        """Remove it if nothing is in it, and it is ours."""
        with suppress(OSError, TransportError):
            require_ours(self.path)
            self.path.rmdir()

    @contextmanager
    def locked(self, deadline: int | None) -> Iterator[None]:
        """Make the folder and hold its lock while what is in it is looked at and changed.

        Raises:
            TransportTimeout: another process holds the lock for too long; it may be stopped.
            TransportError: as `make`.
        """
        fd = -1
        try:
            with as_transport_errors(f"cannot lock {self.path}"):
                while fd < 0:
                    self.make()
                    with suppress(FileNotFoundError):
                        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                        self._await_lock(fd, deadline)
                        if not os.path.samestat(os.fstat(fd), os.stat(self.path)):
                            raise FileNotFoundError
                        break
                    if fd >= 0:
                        os.close(fd)
                        fd = -1
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    def _await_lock(self, fd: int, deadline: int | None) -> None:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"another process holds the lock of {self.path}; it may be stopped")
            Event().wait(LOOK_S / 5)

    def lock(self, role: str) -> Lock | None:
        """Take the lock of a role; None if another process holds it."""
        return Lock.take(self.path / f"{role}{LOCK_SUFFIX}")

    def was_taken(self, role: str) -> bool:
        """Return whether the lock of a role is held, or was and has not been removed."""
        return (self.path / f"{role}{LOCK_SUFFIX}").exists()

    def is_held(self, role: str) -> bool:
        """Return whether a living process holds the lock of a role. The look takes it for a moment, and shared: only
        whoever holds the folder's lock may take it meanwhile.
        """
        return is_locked(self.path / f"{role}{LOCK_SUFFIX}")

    def forget(self, role: str) -> None:
        """Remove the lock and the note of a role that nobody holds."""
        (self.path / f"{role}{LOCK_SUFFIX}").unlink(missing_ok=True)
        (self.path / f"{role}.json").unlink(missing_ok=True)

    def notes(self, prefix: str) -> list[str]:
        """Return the roles that begin with a prefix and have a note, sorted."""
        return sorted(path.stem for path in self.path.glob(f"{prefix}*.json"))

    def write(self, role: str, values: dict[str, Any]) -> None:
        """Write the note of a role; readers see all of it or nothing."""
        temporary = self.path / f".{secrets.token_hex(4)}"
        with as_transport_errors(f"cannot write to {self.path}"):
            try:
                temporary.write_text(json.dumps(values))
                temporary.rename(self.path / f"{role}.json")
            finally:
                temporary.unlink(missing_ok=True)

    def is_noted(self, role: str) -> bool:
        """Return whether there is a note of a role; only whoever reads it learns whether it is damaged."""
        return (self.path / f"{role}.json").exists()

    def life(self, role: str) -> tuple[int, int]:
        """Return what tells the note of a role from an earlier or a later one; zeros if there is none."""
        try:
            found = (self.path / f"{role}.json").stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def read(self, role: str) -> dict[str, Any] | None:
        """Return the note of a role; None if there is none.

        Raises:
            TransportError: it cannot be read, or is damaged.
        """
        path = self.path / f"{role}.json"
        with as_transport_errors(f"cannot read {path}"):
            try:
                values = json.loads(path.read_text())
            except FileNotFoundError:
                return None
            except ValueError as error:
                raise TransportError(f"{path} is damaged; remove the folder {self.path}") from error
        if not isinstance(values, dict):
            raise TransportError(f"{path} is damaged; remove the folder {self.path}")
        return values
