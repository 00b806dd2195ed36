"""Endpoint locks: which endpoints of a channel are open, and whether their processes still live.

An endpoint lock is a file lock. The kernel releases it however the process dies, so it is never stale: there are no
process IDs that may be reused, and no heartbeat. A byte in the file says that the endpoint was open once. It then opens
no more (law C20): whoever took the place of a dead endpoint would lose messages without a word.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ipcbench.backend import Address
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory, no_channel, open_directory
from ipcbench.sync.interrupts import is_of_handler, no_fork
from ipcbench.sync.ownership import own
from ipcbench.util.files import advice_on

LOCK_SUFFIX = ".endpoint"
"""Suffix of the files that are locked; the stem is the endpoint's role."""


def reader_role(channel: ChannelSpec, index: int) -> str:
    """Return the role of reader `index`.

    Raises:
        TransportError: the channel has no such reader.
    """
    if isinstance(index, bool) or not hasattr(index, "__index__") or not 0 <= index < channel.readers:
        raise TransportError(f"channel {channel.name!r} has readers 0 to {channel.readers - 1}, not {index!r}")
    return f"reader-{index}"


def reader_roles(channel: ChannelSpec) -> list[str]:
    """Return the roles of all readers, in order."""
    return [f"reader-{index}" for index in range(channel.readers)]


def lock_endpoint(address: Address, role: str) -> EndpointLock:
    """Lock an endpoint, for good.

    Raises:
        TransportError: there is no such channel (any more), or the endpoint is open or was open before.
    """
    lock = EndpointLock(open_directory(address), role)
    try:
        open_directory(address)  # in between, the channel may have been destroyed, and another made
    except TransportError:
        lock.abandon()
        raise
    return lock


class EndpointLock:
    """The lock of one endpoint, held until `release` or the end of the process."""

    __slots__ = ("__weakref__", "_fd", "_path")

    def __init__(self, directory: Path, role: str) -> None:
        """Lock the endpoint `role` (`writer`, `reader-0` …), for good.

        Raises:
            TransportError: the endpoint is open or was open before, or there is no such channel.
        """
        self._path = lock_path(directory, role)
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise no_channel(str(directory), error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            why = "already has its" if isinstance(error, BlockingIOError) else f"cannot lock ({error.strerror}) its"
            raise TransportError(f"channel {directory.name!r} {why} {role}") from error
        if os.fstat(self._fd).st_size:
            self.release()
            raise TransportError(
                f"the {role} of channel {directory.name!r} was open before and has closed or died; an endpoint opens "
                "once: destroy the channel and make another"
            )
        try:
            os.write(self._fd, b"1")
        except OSError as error:
            self.abandon()
            what = f"cannot open the {role} of the channel in {directory}: {error.strerror}{advice_on(error)}"
            raise TransportError(what) from error
        own(self)

    def is_current(self) -> bool:
        """Return whether the channel is still the one that the endpoint was opened in: neither destroyed, nor made anew
        under the same name. The number of a file that is open is no other file's.
        """
        try:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError as error:
            if is_of_handler(error):
                raise
            return not isinstance(error, FileNotFoundError | NotADirectoryError)

    def abandon(self) -> None:
        """Release the lock of an endpoint that could not be opened; it may be tried again."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
        self.release()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with no_fork():  # or a child would close what another file's number may be by then
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def let_go(self) -> None:
        """Close an inherited descriptor: the lock stays the parent's, and ends with the parent."""
        self.release()


def lock_path(directory: Path, role: str) -> Path:
    """Return the file of the endpoint lock `role` of the channel in `directory`; the lock creates it."""
    return directory / f"{role}{LOCK_SUFFIX}"


def is_held(directory: Path, role: str) -> bool:
    """Return whether a living process holds the endpoint lock. Ask only about locks that were taken before: asking
    takes the lock for a moment.
    """
    return is_locked(lock_path(directory, role))


def is_open(address: Address, role: str) -> bool:
    """Return whether a living process has that endpoint open; False of a backend that keeps no endpoint locks."""
    try:
        path = lock_path(channel_directory(address), role)
        return path.stat().st_size > 0 and is_locked(path)  # who opens it just now must find the lock free
    except (OSError, TransportError) as error:
        if is_of_handler(error):
            raise
        return False


def was_released(directory: Path, role: str) -> bool:
    """Return whether an endpoint was open and is not any more, or the channel was destroyed. A refused opening leaves
    an empty file, and may be tried again; while one is under way, nobody else may take the lock, even for a moment.
    """
    path = lock_path(directory, role)
    try:
        if not path.stat().st_size:
            return False
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if is_of_handler(error):
            raise
        return isinstance(error, FileNotFoundError) and not directory.exists()
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.fstat(fd).st_size > 0  # which nobody changes now
    except OSError as error:
        if is_of_handler(error):
            raise
        return False
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock on a file; a file that does not exist is not locked, and one that
    cannot be opened may be.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if is_of_handler(error):
            raise
        return not isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if is_of_handler(error):
            raise
        return True
    finally:
        os.close(fd)
    return False
