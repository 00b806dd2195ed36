"""A POSIX shared memory segment whose life is the channel's: no resource tracker, all memory reserved at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

from ipcbench.errors import TransportError
from ipcbench.sync.directory import is_still, require_ours
from ipcbench.sync.interrupts import no_fork

SEGMENTS = Path("/dev/shm")  # noqa: S108 - where Linux shows them; elsewhere they have no path


@contextmanager
def _untracked(ours: str) -> Iterator[None]:
    """Keep a segment from the resource tracker, which would start a process and unlink it while it is in use. Python
    3.13 has `track=False` for this; as long as older ones are supported, the tracker's two functions are replaced,
    which other threads may call meanwhile.
    """

    def unless_ours(act: Callable[[Any, str], None]) -> Any:
        return lambda name, rtype: None if name.lstrip("/") == ours else act(name, rtype)

    with no_fork():  # a fork finds them as they were
        register, unregister = resource_tracker.register, resource_tracker.unregister
        resource_tracker.register, resource_tracker.unregister = unless_ours(register), unless_ours(unregister)
        try:
            yield
        finally:
            resource_tracker.register, resource_tracker.unregister = register, unregister


class SharedSegment(shared_memory.SharedMemory):
    """A segment that no resource tracker unlinks, and that can be closed while views of it exist."""

    _fd: int  # of the base class, which does not declare them
    _mmap: object
    _buf: object
    _is_attaching = False

    def __init__(self, name: str, create_bytes: int = 0) -> None:
        """Attach, or create it with all memory reserved, so that touching a page later cannot fail."""
        self._is_attaching = not create_bytes
        try:
            with _untracked(name):
                super().__init__(name, create=bool(create_bytes), size=create_bytes)
        except OSError:
            self.close()  # the base class leaves the descriptor to the garbage collector
            raise
        self._is_attaching = False
        if create_bytes:
            try:
                os.posix_fallocate(self._fd, 0, create_bytes)
            except OSError:
                self.close()
                self.unlink()
                raise

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._fd

    def unlink_made(self, made: os.stat_result) -> None:
        """Remove the name if it is still that of the segment that was made, where that can be found out."""
        if not SEGMENTS.is_dir() or is_still(SEGMENTS / self.name, made):
            with suppress(FileNotFoundError):
                self.unlink()

    def require_ours(self) -> None:
        """Close it and raise TransportError if it is not this user's alone."""
        try:
            require_ours(self._fd)
        except TransportError:
            self.close()
            raise

    def close(self) -> None:
        """Unmap; memory that a caller still has a view of stays mapped until the view is gone."""
        with no_fork():
            try:
                super().close()
            except BufferError:
                os.close(self._fd)
                self._fd, self._mmap, self._buf = -1, None, None

    def unlink(self) -> None:
        """Remove the name. The base class does so, too, if it cannot map a segment, even one that it did not make: then
        the name stays.
        """
        if not self._is_attaching:
            with _untracked(self.name):
                super().unlink()
