"""The files under the LMDB backend: a channel's database, opened once in a process however many endpoints use it, and
its board.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from ipcbench.backend import Message
from ipcbench.errors import EndpointClosed, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import MAX_READERS, cursors_bytes, make_doorbells
from ipcbench.sync.locks import channel_directory, make_directory, remove_directory
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns
from ipcbench.util.units import format_bytes

try:
    import lmdb
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

_READER_SLOTS = 4 * MAX_READERS  # room for those of readers that were killed, until somebody notices

_DATABASE, _LOCKS, _BOARD = "data.mdb", "lock.mdb", "board"
_TURN = b"turn"
"""A key that holds nothing; writing it makes a transaction."""

_Key = tuple[int, int, int]

_open: dict[_Key, tuple[lmdb.Environment, int]] = {}
"""(process, device, inode) → the open database and how many endpoints of this process use it. LMDB must not open a file
twice in a process: its file locks belong to the process."""
_opening = threading.Lock()


def make_files(channel: ChannelSpec, map_bytes: int) -> None:
    """Make the channel's directory with all that endpoints need, and reserve the disk space of the database: touching a
    mapped page later can then not fail.

    Raises:
        TransportError: the name is in use, or there is not enough space.
    """
    directory = make_directory(channel.name)
    try:
        make_doorbells(directory, channel.readers)
        (directory / _BOARD).write_bytes(bytes(cursors_bytes(channel.readers)))
        _open_database(directory, map_bytes).close()
        for path in (directory / _DATABASE, directory / _LOCKS):
            with path.open("r+b") as file:
                if sys.platform != "darwin":  # which has no such call
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except (OSError, lmdb.Error) as error:
        remove_directory(channel.name)
        reason = error.strerror if isinstance(error, OSError) else error
        raise TransportError(
            f"no LMDB database of {format_bytes(map_bytes)} in {directory.parent}: {reason}; free disk space, or use "
            "smaller messages or a smaller depth"
        ) from error


def _open_database(directory: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.Environment(
        str(directory),
        map_size=map_bytes,
        mode=0o600,
        writemap=True,
        sync=False,
        max_readers=_READER_SLOTS,
        max_spare_txns=1,
    )


def _attach(channel: ChannelSpec, map_bytes: int) -> tuple[_Key, lmdb.Environment]:
    """Return the channel's database, opened now or shared with other endpoints of this process."""
    directory = channel_directory(channel.name)
    try:
        found = (directory / _DATABASE).stat()
    except OSError as error:
        raise TransportError(f"there is no LMDB channel {channel.name!r}: {error.strerror}") from error
    key = (os.getpid(), found.st_dev, found.st_ino)
    with _opening:
        if any(other[1:] == key[1:] and other[0] != key[0] for other in _open):
            raise TransportError(
                f"channel {channel.name!r} was open when this process was forked, which LMDB does not allow; open its "
                "endpoints after the fork, or start processes with the spawn method"
            )
        if key in _open:
            environment, users = _open[key]
        else:
            try:
                environment, users = _open_database(directory, map_bytes), 0
                environment.reader_check()  # forget the snapshots of processes that were killed
            except lmdb.Error as error:
                raise TransportError(f"cannot open the database of channel {channel.name!r}: {error}") from error
        _open[key] = environment, users + 1
    return key, environment


def _detach(key: _Key) -> None:
    with _opening:
        environment, users = _open.pop(key)
        if users > 1:
            _open[key] = environment, users - 1
        else:
            environment.close()


def _is_shared(view: memoryview) -> bool:
    """Return whether other views or arrays show the same memory as `view`. They all refer to one managed buffer, which
    is the only thing that a memoryview refers to; how many references nobody else accounts for, a new view tells.
    """

    def references(one: memoryview) -> int:
        return sum(sys.getrefcount(buffer) for buffer in gc.get_referents(one))

    return references(view) > references(memoryview(b" "))


def _refuse(*_: object) -> NoReturn:
    """Stand for `begin` after `close`."""
    raise EndpointClosed("this endpoint is closed")


def _do_nothing() -> None:
    """Be silent: this wait is seen by nobody."""


class Store:
    """One endpoint's hold on a channel's files.

    Attributes:
        words: the board.
    """

    __slots__ = ("_begin", "_environment", "_key", "_name", "words")

    def __init__(self, channel: ChannelSpec, map_bytes: int) -> None:
        """Open the files.

        Raises:
            TransportError: there is no such channel, or it cannot be opened here.
        """
        self._name = channel.name
        self._key, self._environment = _attach(channel, map_bytes)
        self._begin: Callable[..., Any] = self._environment.begin
        try:
            with (channel_directory(channel.name) / _BOARD).open("r+b") as file:
                self.words = memoryview(mmap.mmap(file.fileno(), cursors_bytes(channel.readers))).cast("Q")
        except (OSError, ValueError) as error:
            _detach(self._key)
            raise TransportError(f"there is no LMDB channel {channel.name!r}: {error}") from error

    @classmethod
    @contextmanager
    def opened(cls, channel: ChannelSpec, map_bytes: int) -> Iterator[Self]:
        """Give an open store for the block, which takes it over; if the block fails, close it."""
        store = cls(channel, map_bytes)
        try:
            yield store
        except BaseException:
            store.close()
            raise

    @property
    def page_bytes(self) -> int:
        """Return the size of a page: what is larger has pages of its own."""
        return self._environment.stat()["psize"]

    def put(self, key: bytes, message: Message, stale: Sequence[bytes] = ()) -> bool:
        """Commit one message, and delete the values of `stale`; return False, with nothing done, if there are no pages
        left for it.

        Raises:
            TransportError: the database refuses.
        """
        try:
            transaction = self._begin(None, None, True)  # by position, which is a tenth faster
            try:
                for one in stale:
                    transaction.delete(one)
                transaction.put(key, message)
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
        except lmdb.MapFullError:
            return False
        except lmdb.Error as error:
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
        """Commit one message once a reader has given up an old snapshot, which keeps all pages that were freed since:
        that of a reader that is many messages behind, or that was stopped at a bad moment, or that is dead.

        Args:
            key: as for `put`.
            message: as for `put`.
            consumed_keys: returns the keys whose values no reader needs any more.
            check_peers: raises if waiting is pointless.
            timeout_s: how long to wait.

        Raises:
            TransportTimeout: not by then.
            TransportError: the database refuses.
        """

        def fits() -> bool:
            self._forget_the_dead()
            # LMDB uses a page again in the second transaction after the one that has freed it: so have one more.
            return self.put(_TURN, b"", consumed_keys()) and self.put(key, message)

        waiter = Waiter(
            "auto", MAX_READERS + 1, doorbell=None, arm=_do_nothing, disarm=_do_nothing, check_peers=check_peers
        )
        if not waiter.until(fits, deadline_ns(timeout_s)):
            raise TransportTimeout(f"no room in channel {self._name!r} within {timeout_s} s: a reader is far behind")

    def _forget_the_dead(self) -> None:
        """Give up the snapshots of processes that were killed."""
        try:
            self._environment.reader_check()
        except lmdb.Error as error:
            raise self._failed(error) from error

    def snapshot(self) -> Callable[[bytes], memoryview | None]:
        """Return a function that gives the value of a key as it is now, in the database's own pages. The snapshot, and
        with it what those pages hold, lasts as long as the function.

        Raises:
            TransportError: the database refuses.
        """
        try:
            get: Callable[[bytes], memoryview | None] = self._begin(None, None, False, True).get
        except lmdb.Error as error:
            raise self._failed(error) from error
        return get

    def _failed(self, error: Exception) -> TransportError:
        return TransportError(f"the database of channel {self._name!r} refuses: {error}")

    def close(self, view: memoryview | None = None) -> None:
        """Close the files. `view` is the last view given out, which ends here: using it is an error, not a crash. If
        parts of it are still in use, the database stays open, or their memory would be gone.
        """
        in_use = False
        if view is not None:
            in_use = _is_shared(view)
            try:
                view.release()
            except BufferError:
                in_use = True
        self._begin = _refuse
        self.words.release()  # the mapping goes with its last view
        if not in_use:
            _detach(self._key)
