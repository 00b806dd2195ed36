"""One LMDB environment of a channel: a file and its locks, opened once per process for all endpoints that use it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ipcbench.backend import Message
from ipcbench.errors import EndpointClosed, TransportError, TransportTimeout
from ipcbench.sync.cursors import MAX_READERS
from ipcbench.sync.directory import no_channel
from ipcbench.sync.interrupts import is_of_handler, no_fork
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns
from ipcbench.util.files import status_of

try:
    import lmdb
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

_READER_SLOTS = 4 * MAX_READERS  # with room for the slots of killed readers until they are noticed
LOCKS_BYTES = 64 * (_READER_SLOTS + 2)
"""Size of the file of locks: a cache line for each slot, and two more."""

TURN = b"turn"
"""A key without a value; writing it makes a transaction."""

_Key = tuple[int, int, int]

_open: dict[_Key, tuple[lmdb.Environment, int]] = {}
"""(process, device, inode) → the open environment and the number of endpoints of this process that use it. LMDB must
not open a file twice in a process, since its file locks belong to the process. To change it, hold `no_fork`."""

_viewed: list[tuple[memoryview, list[_Key]]] = []
"""The last views of closed endpoints whose memory something still shares, and the environments to close after that."""


def _keep_environments() -> None:
    for environment, _ in _open.values():
        keep_for_ever(environment)


os.register_at_fork(after_in_child=_keep_environments)


def open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    """Open a file, or make it.

    Raises:
        lmdb.Error: it cannot be opened.
    """
    return lmdb.Environment(
        str(path),
        subdir=False,
        map_size=map_bytes,
        mode=0o600,
        writemap=True,
        sync=False,
        max_readers=_READER_SLOTS,
        max_spare_txns=1,
    )


def locks_of(path: Path) -> Path:
    """Return where LMDB keeps the locks of a file."""
    return path.with_name(f"{path.name}-lock")


def _attach(path: Path, map_bytes: int) -> tuple[_Key, lmdb.Environment]:
    """Return a file's environment, opened now or shared with other endpoints of this process."""
    channel = path.parent.name
    try:
        status = status_of(path)  # LMDB would wait for the other end of a pipe, and would make a file that is not there
    except OSError as error:
        raise no_channel(str(path.parent), error) from error
    key = (os.getpid(), status.st_dev, status.st_ino)
    with no_fork():
        _close_unseen()
        if any(other[1:] == key[1:] and other[0] != key[0] for other in _open):
            raise TransportError(
                f"channel {channel!r} was open when this process was forked, which LMDB does not allow; open "
                "its endpoints after the fork, or start processes with the spawn method"
            )
        if key in _open:
            environment, users = _open[key]
        else:
            try:
                environment, users = open_environment(path, map_bytes), 0
                environment.reader_check()  # drops the snapshots of killed processes
            except (OSError, lmdb.Error) as error:
                raise TransportError(f"cannot open the database of channel {channel!r}: {error}") from error
        _open[key] = environment, users + 1
    return key, environment


def _detach(key: _Key) -> None:
    with no_fork():
        environment, users = _open.pop(key)
        if users > 1:
            _open[key] = environment, users - 1
        else:
            environment.close()


def close_stores(stores: Sequence[Store], view: memoryview | None) -> None:
    """Close an endpoint's environments and release `view`, the last one that it returned: using it later is an error,
    not a crash. If other views share its memory, they stay open until those are gone and LMDB is used again.
    """
    keys = [store.close() for store in stores if not store.is_closed]
    with no_fork():
        if view is not None:
            _viewed.append((view, keys))
        else:
            for key in keys:
                _detach(key)
        _close_unseen()


def _close_unseen() -> None:
    for place in reversed(range(len(_viewed))):
        view, keys = _viewed[place]
        if _is_shared(view):
            continue
        try:
            view.release()
        except BufferError:
            continue
        del _viewed[place]
        for key in keys:
            if key[0] == os.getpid():  # else the parent's
                _detach(key)


def _is_shared(view: memoryview) -> bool:
    """Return whether other views or arrays share the memory of `view`. All refer to one managed buffer, the only
    thing that a memoryview refers to; comparing with a new view's buffer shows whether it has further references.
    """

    def references(view: memoryview) -> int:
        return sum(sys.getrefcount(buffer) for buffer in gc.get_referents(view))

    return references(view) > references(memoryview(b" "))


def _refuse(*_: object) -> NoReturn:
    """Replace `begin` after `close`."""
    raise EndpointClosed("this endpoint is closed")


def _do_nothing() -> None:
    """Arm and disarm a wait that no peer sees."""


class Store:
    """An environment, opened by one endpoint.

    Attributes:
        is_closed: whether `close` was called.
    """

    __slots__ = ("_begin", "_channel", "_environment", "_key", "is_closed")

    def __init__(self, path: Path, map_bytes: int) -> None:
        """Open the file.

        Raises:
            TransportError: it is not there, or cannot be opened here.
        """
        self._channel = path.parent.name
        self.is_closed = False
        self._key, self._environment = _attach(path, map_bytes)
        self._begin: Callable[..., Any] = self._environment.begin

    @property
    def page_bytes(self) -> int:
        """Return the size of a page; a larger value has pages of its own."""
        return self._environment.stat()["psize"]

    def put(self, key: bytes, message: Message, stale: Sequence[bytes] = ()) -> bool:
        """Commit one message and delete the values of `stale`; return False, with nothing done, if no pages are left.

        Raises:
            TransportError: the database refuses.
        """
        try:
            transaction = self._begin(None, None, True)  # by position, which is a tenth faster
            try:
                for stale_key in stale:
                    transaction.delete(stale_key)
                transaction.put(key, message)
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
        except lmdb.Error as error:
            if is_of_handler(error):
                raise
            if isinstance(error, lmdb.MapFullError):
                return False
            raise self._failed(error) from error
        return True

    def put_when_it_fits(
        self,
        key: bytes,
        message: Message,
        consumed_keys: Callable[[], Sequence[bytes]],
        check_peers: Callable[[], None],
        timeout_s: float | None,
    ) -> None:
        """Commit one message as soon as pages are free. An old snapshot keeps all pages that were freed after it: that
        of a reader that is many messages behind, was stopped while reading, or is dead.

        Args:
            key: as for `put`.
            message: as for `put`.
            consumed_keys: returns the keys whose values no reader needs any more.
            check_peers: raises if waiting is pointless.
            timeout_s: how long to wait.

        Raises:
            TransportTimeout: there was no room within `timeout_s`.
            TransportError: the database refuses.
        """

        def fits() -> bool:
            self._forget_the_dead()
            # LMDB reuses a page in the second transaction after the one that freed it, so make an extra transaction.
            return self.put(TURN, b"", consumed_keys()) and self.put(key, message)

        waiter = Waiter(
            "auto", MAX_READERS + 1, doorbell=None, arm=_do_nothing, disarm=_do_nothing, check_peers=check_peers
        )
        if not waiter.until(fits, deadline_ns(timeout_s)):
            raise TransportTimeout(f"no room in channel {self._channel!r} within {timeout_s} s: a reader is far behind")

    def _forget_the_dead(self) -> None:
        """Drop the snapshots of killed processes."""
        try:
            self._environment.reader_check()
        except lmdb.Error as error:
            raise self._failed(error) from error

    def snapshot(self) -> Callable[[bytes], memoryview | None]:
        """Return a function that returns the present value of a key, in the database's own pages. The snapshot, which
        keeps those pages unchanged, lasts as long as the function.

        Raises:
            TransportError: the database refuses.
        """
        try:
            get: Callable[[bytes], memoryview | None] = self._begin(None, None, False, True).get
        except lmdb.Error as error:
            if is_of_handler(error):
                raise
            raise self._failed(error) from error
        return get

    def _failed(self, error: Exception) -> TransportError:
        return TransportError(f"the database of channel {self._channel!r} refuses: {error}")

    def delete(self, keys: Sequence[bytes]) -> bool:
        """Delete the values of keys, as `put` does."""
        return self.put(TURN, b"", keys)

    @property
    def is_inherited(self) -> bool:
        """Return whether a parent of this process opened it."""
        return self._key[0] != os.getpid()

    def close(self) -> _Key:
        """Use it no more; return what has to be detached. Only `close_stores` calls this."""
        self.is_closed = True
        self._begin = _refuse
        return self._key

    def refuse(self) -> None:
        """Use it no more in a process that inherited it: the parent's environment must not be closed here."""
        self._begin = _refuse
