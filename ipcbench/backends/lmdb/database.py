"""The files of an LMDB channel: its database, opened once per process for all its endpoints, and its cursors."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from ipcbench.backend import Address, Message
from ipcbench.errors import EndpointClosed, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import MAX_READERS, cursors_bytes, make_doorbells
from ipcbench.sync.directory import (
    channel_directory,
    new_directory,
    no_channel,
    require_ours,
)
from ipcbench.sync.interrupts import is_of_handler, no_fork
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns
from ipcbench.util.files import advice_on, status_of
from ipcbench.util.units import format_bytes

try:
    import lmdb
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

RING_BYTES = 2**21
"""A channel holds `depth` messages if they fit in this, fewer if not, but at least two. The database is about twice as
large and should stay in the CPU cache: with eight times as much, a message of 256 KiB costs a third more."""

_MIN_MESSAGES = 2
_UNCOUNTED_BYTES = 2**10
_NODE_BYTES = 32  # overhead of a key and a value in the database, rounded up
_SPARE_TRANSACTIONS = 1024
_PAGES_PER_TRANSACTION = 8  # of the tree and of the list of free pages, rounded up
_SPARE_BYTES = 2**20

_READER_SLOTS = 4 * MAX_READERS  # with room for the slots of killed readers until they are noticed
_LOCKS_BYTES = 64 * (_READER_SLOTS + 2)  # a cache line for each slot, and two more

_DATABASE_FILE, _LOCKS_FILE, _CURSORS_FILE = "data.mdb", "lock.mdb", "cursors"
_TURN = b"turn"
"""A key without a value; writing it makes a transaction."""

_Key = tuple[int, int, int]

_open: dict[_Key, tuple[lmdb.Environment, int]] = {}
"""(process, device, inode) → the open database and the number of endpoints of this process that use it. LMDB must not
open a file twice in a process, since its file locks belong to the process. To change it, hold `unforked`."""


def keep_for_ever(inherited: object) -> None:
    """Keep a database or a snapshot of the parent's in a forked child, until its process ends: to destroy it, also in
    the interpreter's last collection, would free the parent's places in the table of readers, which both share.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _keep_databases() -> None:
    for environment, _ in _open.values():
        keep_for_ever(environment)


os.register_at_fork(after_in_child=_keep_databases)


class Layout:
    """How many messages of which size a channel's database holds, and under which keys.

    Attributes:
        small_bytes: up to this size, `depth` messages always fit; larger ones are called large.
        large_count: how many messages, small ones included, may be stored when a large one is written.
        map_bytes: size of the database: for all messages that may be stored, for as many old ones kept by the snapshot
            of a slow reader, and for the pages of the tree, which each transaction writes anew. If a reader is more
            than about a thousand transactions behind, this may hold the writer before `depth` does.
    """

    __slots__ = ("_key_count", "large_count", "map_bytes", "small_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        page = mmap.PAGESIZE
        most_bytes = channel.max_message_bytes
        largest = -(-(most_bytes + _NODE_BYTES) // page) * page
        self.small_bytes = min(most_bytes, max(RING_BYTES // channel.depth, _UNCOUNTED_BYTES))
        self.large_count = max(_MIN_MESSAGES, min(channel.depth, RING_BYTES // largest))
        if channel.delivery == "latest_value":
            self._key_count = channel.readers + 2
            stored = self._key_count * largest
            transactions = _SPARE_TRANSACTIONS
        else:
            self._key_count = channel.depth
            tree = 2 * channel.depth * (self.small_bytes + _NODE_BYTES)  # twice, as its pages may be half empty
            stored = 2 * (tree + self.large_count * largest)
            transactions = min(channel.depth, _SPARE_TRANSACTIONS)
        total = stored + 4 * largest + transactions * _PAGES_PER_TRANSACTION * page + _SPARE_BYTES
        self.map_bytes = -(-total // page) * page

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys, in order."""
        return tuple(number.to_bytes(4, "big") for number in range(self._key_count))


def make_files(channel: ChannelSpec, map_bytes: int) -> Path:
    """Make the channel's directory and files, and reserve the database's disk space, so that touching a mapped page
    later cannot fail; return the directory.

    Raises:
        TransportError: the name is in use, or there is not enough space.
    """
    with new_directory(channel.name) as (directory, _):
        try:
            make_doorbells(directory, channel.readers)
            (directory / _CURSORS_FILE).write_bytes(bytes(cursors_bytes(channel.readers)))
            _reserve(directory / _LOCKS_FILE, _LOCKS_BYTES)  # before LMDB maps it: where no page is free, a touch kills
            _open_database(directory, map_bytes).close()
            _reserve(directory / _DATABASE_FILE, map_bytes)
        except (OSError, MemoryError, lmdb.Error) as error:
            reason = str(error) or "out of memory"
            remedy = "free disk space, or use smaller messages or a smaller depth"
            if isinstance(error, OSError):
                reason = str(error.strerror)
                remedy = remedy if error.errno in {errno.ENOSPC, errno.EDQUOT} else advice_on(error).lstrip("; ")
            what = f"no LMDB database of {format_bytes(map_bytes)} in {directory.parent}: {reason}"
            raise TransportError("; ".join(filter(None, (what, remedy)))) from error
    return directory


def _reserve(path: Path, size_bytes: int) -> None:
    """Give a file, made now or by LMDB, all its pages."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        if sys.platform != "darwin":  # which has no posix_fallocate
            os.posix_fallocate(file.fileno(), 0, size_bytes)


def _open_database(directory: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.Environment(
        str(directory),
        map_size=map_bytes,
        create=False,  # the directory: a channel that is destroyed meanwhile stays destroyed
        mode=0o600,
        writemap=True,
        sync=False,
        max_readers=_READER_SLOTS,
        max_spare_txns=1,
    )


def _attach(directory: Path, map_bytes: int) -> tuple[_Key, lmdb.Environment]:
    """Return the channel's database, opened now or shared with other endpoints of this process."""
    require_ours(directory)
    try:
        status = status_of(directory / _DATABASE_FILE)  # LMDB would wait for the other end of a pipe
    except OSError as error:
        raise no_channel(str(directory), error) from error
    key = (os.getpid(), status.st_dev, status.st_ino)
    with no_fork():
        if any(other[1:] == key[1:] and other[0] != key[0] for other in _open):
            raise TransportError(
                f"channel {directory.name!r} was open when this process was forked, which LMDB does not allow; open "
                "its endpoints after the fork, or start processes with the spawn method"
            )
        if key in _open:
            environment, users = _open[key]
        else:
            try:
                environment, users = _open_database(directory, map_bytes), 0
                environment.reader_check()  # drops the snapshots of killed processes
            except (OSError, lmdb.Error) as error:
                raise TransportError(f"cannot open the database of channel {directory.name!r}: {error}") from error
        _open[key] = environment, users + 1
    return key, environment


def _detach(key: _Key) -> None:
    with no_fork():
        environment, users = _open.pop(key)
        if users > 1:
            _open[key] = environment, users - 1
        else:
            environment.close()


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


class Database:
    """A channel's database and cursors, opened by one endpoint.

    Attributes:
        directory: of the channel.
        words: the cursors.
    """

    __slots__ = ("_begin", "_environment", "_is_detached", "_key", "directory", "words")

    def __init__(self, address: Address, map_bytes: int) -> None:
        """Open the files.

        Raises:
            TransportError: there is no such channel, or it cannot be opened here.
        """
        self.directory = channel_directory(address)
        self._is_detached = False
        self._key, self._environment = _attach(self.directory, map_bytes)
        self._begin: Callable[..., Any] = self._environment.begin
        try:
            status_of(self.directory / _CURSORS_FILE)
            with (self.directory / _CURSORS_FILE).open("r+b") as file:
                self.words = memoryview(mmap.mmap(file.fileno(), cursors_bytes(address.channel.readers))).cast("Q")
        except OSError as error:
            _detach(self._key)
            raise no_channel(str(self.directory), error) from error
        except ValueError as error:
            _detach(self._key)
            raise TransportError(f"the cursors in {self.directory} were cut short: {error}") from error

    @classmethod
    @contextmanager
    def opened(cls, address: Address, map_bytes: int) -> Iterator[Self]:
        """Give the block an open database to take over; close it if the block fails."""
        database = cls(address, map_bytes)
        try:
            yield database
        except BaseException:
            database.close()
            raise

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
            return self.put(_TURN, b"", consumed_keys()) and self.put(key, message)

        waiter = Waiter(
            "auto", MAX_READERS + 1, doorbell=None, arm=_do_nothing, disarm=_do_nothing, check_peers=check_peers
        )
        if not waiter.until(fits, deadline_ns(timeout_s)):
            raise TransportTimeout(
                f"no room in channel {self.directory.name!r} within {timeout_s} s: a reader is far behind"
            )

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
        return TransportError(f"the database of channel {self.directory.name!r} refuses: {error}")

    @property
    def is_inherited(self) -> bool:
        """Return whether a parent of this process opened it."""
        return self._key[0] != os.getpid()

    def let_go(self, view: memoryview | None = None) -> None:
        """Close the files, unless this process inherited them: the parent's database must not be closed here."""
        if not self.is_inherited:
            self.close(view)
        else:
            self._begin = _refuse
            self.words.release()

    def close(self, view: memoryview | None = None) -> None:
        """Close the files and release `view`, the last view returned: using it later is an error, not a crash. If other
        views share its memory, the database stays open.
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
        if not (in_use or self._is_detached):
            self._is_detached = True
            _detach(self._key)
