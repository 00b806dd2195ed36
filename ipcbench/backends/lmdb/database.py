"""The files of an LMDB channel: its databases and its cursors."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from ipcbench.backend import Address
from ipcbench.backends.lmdb.store import LOCKS_BYTES, Store, close_stores, locks_of, open_environment
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import cursors_bytes, make_doorbells
from ipcbench.sync.directory import new_directory, no_channel, open_directory
from ipcbench.util.files import advice_on, status_of
from ipcbench.util.units import format_bytes

with suppress(ModuleNotFoundError):  # as the backend's `probe` says
    import lmdb

RING_BYTES = 2**21
"""A channel holds `depth` messages if they fit in this, fewer if not, but at least two. The database is about twice as
large and should stay in the CPU cache: with eight times as much, a message of 256 KiB costs a third more."""

BULK_BYTES = 2**18
"""Larger messages have a database of their own. LMDB lists free pages by the transactions that freed them, in pages
that lie wherever there was one, so after many small messages no free run is longer than about 300 pages, for good."""

_MIN_MESSAGES = 2
_UNCOUNTED_BYTES = 2**10
_NODE_BYTES = 32  # overhead of a key and a value in the database, rounded up
_SPARE_TRANSACTIONS = 1024
_SPARE_BULK_TRANSACTIONS = 64
_PAGES_PER_TRANSACTION = 8  # of the tree and of the list of free pages, rounded up
_SPARE_BYTES = 2**20

_DATABASE_FILE, _BULK_FILE, _CURSORS_FILE = "data.mdb", "bulk.mdb", "cursors"


class Layout:
    """How many messages of which size a channel's databases hold, and under which keys.

    Attributes:
        small_bytes: up to this size, `depth` messages always fit; larger ones are called large.
        bulk_bytes: larger messages are stored in the database for bulk; None if there are none.
        large_count: how many messages, small ones included, may be stored when a large one is written.
        map_bytes: size of the database: for all messages that may be stored, for as many old ones kept by the snapshot
            of a slow reader, and for the pages of the tree, which each transaction writes anew. If a reader is more
            than about a thousand transactions behind, this may hold the writer before `depth` does.
        bulk_map_bytes: size of the database for bulk; 0 if there is none.
    """

    __slots__ = ("_key_count", "bulk_bytes", "bulk_map_bytes", "large_count", "map_bytes", "small_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        most_bytes = channel.max_message_bytes
        largest, near_largest = _in_pages(most_bytes), _in_pages(min(most_bytes, BULK_BYTES))
        self.bulk_bytes = BULK_BYTES if most_bytes > BULK_BYTES else None
        self.small_bytes = min(most_bytes, BULK_BYTES, max(RING_BYTES // channel.depth, _UNCOUNTED_BYTES))
        self.large_count = max(_MIN_MESSAGES, min(channel.depth, RING_BYTES // largest))
        if channel.delivery == "latest_value":
            self._key_count = channel.readers + 2
            tree, stored = 0, self._key_count
            transactions = _SPARE_TRANSACTIONS
        else:
            self._key_count = channel.depth
            tree = 4 * channel.depth * (self.small_bytes + _NODE_BYTES)  # twice, as its pages may be half empty
            stored = 2 * self.large_count
            transactions = min(channel.depth, _SPARE_TRANSACTIONS)
        self.map_bytes = tree + _map_bytes(stored, near_largest, transactions)
        self.bulk_map_bytes = 0
        if self.bulk_bytes is not None:
            self.bulk_map_bytes = _map_bytes(stored, largest, _SPARE_BULK_TRANSACTIONS)

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys, in order."""
        return tuple(number.to_bytes(4, "big") for number in range(self._key_count))


def _in_pages(message_bytes: int) -> int:
    """Return how much a message of its own pages takes, in bytes."""
    return -(-(message_bytes + _NODE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE


def _map_bytes(stored: int, largest: int, transactions: int) -> int:
    """Return the size of a database without its small messages."""
    return (stored + 4) * largest + transactions * _PAGES_PER_TRANSACTION * mmap.PAGESIZE + _SPARE_BYTES


def _files(directory: Path, layout: Layout) -> Iterator[tuple[Path, int]]:
    """Yield the files of a channel's databases, with their sizes."""
    yield directory / _DATABASE_FILE, layout.map_bytes
    if layout.bulk_map_bytes:
        yield directory / _BULK_FILE, layout.bulk_map_bytes


def make_files(channel: ChannelSpec) -> str:
    """Make the channel's directory and files, and reserve the databases' disk space, so that touching a mapped page
    later cannot fail; return the location for the address.

    Raises:
        TransportError: the name is in use, or there is not enough space.
    """
    layout = Layout(channel)
    with new_directory(channel.name) as (directory, location, _):
        try:
            make_doorbells(directory, channel.readers)
            (directory / _CURSORS_FILE).write_bytes(bytes(cursors_bytes(channel.readers)))
            for path, map_bytes in _files(directory, layout):
                _reserve(locks_of(path), LOCKS_BYTES)  # before LMDB maps it: where no page is free, a touch kills
                open_environment(path, map_bytes).close()
                _reserve(path, map_bytes)
        except (OSError, MemoryError, lmdb.Error) as error:
            reason = str(error) or "out of memory"
            remedy = "free disk space, or use smaller messages or a smaller depth"
            number = _number_of(error, reason)
            if number is not None:
                reason = os.strerror(number)
                if number not in {errno.ENOSPC, errno.EDQUOT}:
                    remedy = advice_on(OSError(number, reason)).lstrip("; ")
            size = format_bytes(layout.map_bytes + layout.bulk_map_bytes)
            what = f"no LMDB database of {size} in {directory.parent}: {reason}"
            raise TransportError("; ".join(filter(None, (what, remedy)))) from error
    return location


def _reserve(path: Path, size_bytes: int) -> None:
    """Give a file, made now or by LMDB, all its pages."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        if sys.platform != "darwin":  # which has no posix_fallocate
            os.posix_fallocate(file.fileno(), 0, size_bytes)


def _number_of(error: Exception, text: str) -> int | None:
    """Return the system's number of an error; LMDB's own errors only end with its text."""
    if isinstance(error, OSError):
        return error.errno
    numbers = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
    return next((number for number in numbers if text.endswith(os.strerror(number))), None)


class Database:
    """A channel's databases and cursors, opened by one endpoint.

    Attributes:
        directory: of the channel.
        words: the cursors.
        near: the database of all messages but bulk.
        bulk: the database of bulk; the same one if the channel carries none.
    """

    __slots__ = ("_stores", "bulk", "directory", "near", "words")

    def __init__(self, address: Address) -> None:
        """Open the files.

        Raises:
            TransportError: there is no such channel, or it cannot be opened here.
        """
        self.directory = open_directory(address)
        stores: list[Store] = []
        try:
            for path, map_bytes in _files(self.directory, Layout(address.channel)):
                stores.append(Store(path, map_bytes))
            status_of(self.directory / _CURSORS_FILE)
            with (self.directory / _CURSORS_FILE).open("r+b") as file:
                self.words = memoryview(mmap.mmap(file.fileno(), cursors_bytes(address.channel.readers))).cast("Q")
        except OSError as error:
            close_stores(stores, None)
            raise no_channel(str(self.directory), error) from error
        except ValueError as error:
            close_stores(stores, None)
            raise TransportError(f"the cursors in {self.directory} were cut short: {error}") from error
        except BaseException:
            close_stores(stores, None)
            raise
        self.near, self.bulk = stores[0], stores[-1]
        self._stores = stores

    @classmethod
    @contextmanager
    def opened(cls, address: Address) -> Iterator[Self]:
        """Give the block an open database to take over; close it if the block fails."""
        database = cls(address)
        try:
            yield database
        except BaseException:
            database.close()
            raise

    @property
    def is_inherited(self) -> bool:
        """Return whether a parent of this process opened it."""
        return self.near.is_inherited

    def let_go(self, view: memoryview | None = None) -> None:
        """Close the files, unless this process inherited them: the parent's databases must not be closed here."""
        if not self.is_inherited:
            self.close(view)
            return
        for store in self._stores:
            store.refuse()
        self.words.release()

    def close(self, view: memoryview | None = None) -> None:
        """Close the files, as `close_stores` does."""
        self.words.release()  # the mapping goes with its last view
        close_stores(self._stores, view)
