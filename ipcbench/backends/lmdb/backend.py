"""LMDB: a memory-mapped database; one write transaction per message, reads show the database's own pages.

every_message: message n is the value of key n modulo `depth`. A reader keeps a read transaction (a snapshot) until it
has read everything in the snapshot and asks for more. LMDB overwrites no page that a snapshot shows, so a view stays
unchanged while the writer continues. Large messages are deleted when all readers have finished with them, so that the
pages in use fit in the cache. Messages of bulk are in a database of their own (see `BULK_BYTES`).

latest_value: `readers + 2` keys; the hazard slots tell which one is free and which is the latest. A lasting snapshot
would keep every page that is freed while a slow reader looks at one value. A pinned key keeps only that value: LMDB
moves or frees the pages of a large value only when its own key is written. A small value shares its page with others
and is copied.

Durability: no call waits for the disk (`sync=False`). A committed message outlives every process, however it ends,
until `destroy`; a crash of the system may lose or damage it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

from ipcbench.backend import (
    PLAIN_TYPES,
    Address,
    Backend,
    Capabilities,
    Message,
    Reader,
    Writer,
    bytes_of,
    unavailable,
)
from ipcbench.backends.lmdb.database import Database, Layout, make_files
from ipcbench.backends.lmdb.store import TURN, Store, absence
from ipcbench.errors import BackendUnavailable, EndOfStream, MessageTooLarge, PeerLost, TransportError
from ipcbench.patterns import with_patterns
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import MAX_READERS, PUBLISHED, WRITER_SLEEPS, CursorsEndpoint, ReaderCursors, WriterCursors
from ipcbench.sync.directory import remove_directory
from ipcbench.sync.hazard import ReaderHazardSlots, WriterHazardSlots
from ipcbench.sync.interrupts import whole
from ipcbench.sync.ownership import keep_for_ever

_NOWHERE = memoryview(bytearray(8 * 64)).cast("Q")
"""Words of a closed reader: nothing arrives there and no peer sleeps, so `read` ends in `require_open`."""

_NOTHING = -(2**62)
"""How many messages readers have finished with, for a writer that may write no more."""


def _no_snapshot(key: bytes) -> None:
    """Find nothing."""


class _LmdbEndpoint(CursorsEndpoint):
    """What all four endpoints have in common."""

    _database: Database
    _view: memoryview | None = None
    """The last view that a reader returned."""

    def _drop(self) -> None:
        self._database.let_go(self._view)


class _LmdbWriter(_LmdbEndpoint, Writer):
    """State of both writers; a subclass chooses the next key."""

    _cursors: WriterCursors

    def __init__(self, address: Address, database: Database) -> None:
        channel = address.channel
        self._cursors = WriterCursors(database.words, address)
        self._database = database
        self._words = database.words
        self._layout = Layout(channel)
        self._keys = self._layout.keys()
        self._limit_bytes = channel.max_message_bytes
        bulk_bytes = self._layout.bulk_bytes
        self._bulk_bytes = channel.max_message_bytes if bulk_bytes is None else bulk_bytes
        self.opened()


class RingWriter(_LmdbWriter):
    """Writer of an every_message channel."""

    def __init__(self, address: Address, database: Database) -> None:
        super().__init__(address, database)
        self._put = database.near.put
        self._bulk: dict[bytes, int] = {}  # key → number of the bulk message that it holds or held
        self._count = len(self._keys)
        self._small_bytes, self._large_count = self._layout.small_bytes, self._layout.large_count
        self._fenced = self._cursors.fenced
        first, *self._more_sleep_words = self._cursors.sleep_words
        self._sleep_word = first
        self._sequence = self._room = self._consumed = 0
        self._oldest = 0  # number of the first message that may be in the database, and large
        self._keys_twice = 2 * self._keys

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        sequence = self._sequence
        size_bytes = len(message)
        stale: Sequence[bytes] = ()
        if sequence >= self._room or size_bytes > self._small_bytes:
            stale = self._make_room(size_bytes, timeout_s)
        key = self._keys[sequence % self._count]
        if size_bytes > self._bulk_bytes:
            self._put_bulk(key, message, stale, timeout_s)
        elif not self._put(key, message, stale):
            self._put_when_it_fits(self._database.near, key, message, self._consumed_keys, timeout_s)
        self._sequence = sequence + 1
        words = self._words
        if self._fenced:
            self._cursors.store_published(PUBLISHED, sequence + 1)
        else:
            words[PUBLISHED] = sequence + 1
        if words[self._sleep_word] or self._more_sleep_words:
            self._cursors.ring_sleepers()

    def _put_bulk(self, key: bytes, message: Message, stale: Sequence[bytes], timeout_s: float | None) -> None:
        """Store a message of bulk; without a value in the other database, readers look for it there."""
        near, bulk = self._database.near, self._database.bulk
        stale_bulk = self._consumed_bulk()
        self._bulk[key] = self._sequence
        if not bulk.put(key, message, stale_bulk):
            self._put_when_it_fits(bulk, key, message, self._consumed_bulk, timeout_s)
        for each in stale_bulk:
            if each != key:
                del self._bulk[each]
        if not near.delete((key, *stale)):
            self._put_when_it_fits(near, TURN, b"", lambda: (key, *self._consumed_keys()), timeout_s)

    def _consumed_bulk(self) -> Sequence[bytes]:
        consumed = self._cursors.slowest()
        return [key for key, sequence in self._bulk.items() if sequence < consumed]

    def _put_when_it_fits(
        self,
        store: Store,
        key: bytes,
        message: Message,
        consumed_keys: Callable[[], Sequence[bytes]],
        timeout_s: float | None,
    ) -> None:
        try:
            store.put_when_it_fits(key, message, consumed_keys, self._cursors.check_peers, timeout_s)
        except PeerLost:
            self._refuse()
            raise

    def _refuse(self) -> None:
        """Let every later write, also of a smaller message, look first whether it may."""
        self._room, self._consumed = 0, _NOTHING

    def _drop(self) -> None:
        super()._drop()
        self._refuse()

    def _make_room(self, size_bytes: int, timeout_s: float | None) -> Sequence[bytes]:
        """Wait until the message may be stored beside those still needed; return the keys to delete for it."""
        is_large = size_bytes > self._small_bytes
        sequence = self._sequence
        first = sequence + 1 - (self._large_count if is_large else self._count)
        if first > self._consumed or size_bytes > self._limit_bytes:
            self._cursors.require_open()
            if size_bytes > self._limit_bytes:
                raise MessageTooLarge(size_bytes, self._limit_bytes)
            try:
                self._consumed = self._cursors.wait_until_consumed(first, timeout_s)
            except PeerLost:
                self._refuse()
                raise
            self._room = self._consumed + self._count
        if not is_large or first <= self._oldest:
            return ()
        oldest = max(self._oldest, sequence - self._count)  # keys of older ones hold later messages
        self._oldest = first
        begin = oldest % self._count
        return self._keys_twice[begin : begin + first - oldest]

    def _consumed_keys(self) -> Sequence[bytes]:
        oldest = max(self._sequence - self._count, 0)
        count = max(min(self._cursors.slowest(), self._sequence) - oldest, 0)
        begin = oldest % self._count
        return self._keys_twice[begin : begin + count]


class LatestWriter(_LmdbWriter):
    """Writer of a latest_value channel; it waits only if a reader stops while taking a value and the database fills."""

    def __init__(self, address: Address, database: Database) -> None:
        super().__init__(address, database)
        self._hazard_slots = WriterHazardSlots(self._cursors, self._words, address.channel.readers, len(self._keys))

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._cursors.require_open()
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        slot = self._hazard_slots.free()
        key, near = self._keys[slot], self._database.near
        store = self._database.bulk if size_bytes > self._bulk_bytes else near
        if not store.put(key, message):
            store.put_when_it_fits(key, message, self._free_keys, self._cursors.check_peers, timeout_s)
        if store is not near and not near.delete((key,)):  # without a value there, readers look for it in bulk
            near.put_when_it_fits(TURN, b"", self._free_keys, self._cursors.check_peers, timeout_s)
        self._hazard_slots.announce(slot)

    def _free_keys(self) -> Sequence[bytes]:
        return [self._keys[slot] for slot in self._hazard_slots.all_free()]


class _LmdbReader(_LmdbEndpoint, Reader):
    """State of both readers."""

    _cursors: ReaderCursors

    def __init__(self, address: Address, database: Database, index: int) -> None:
        self._cursors = ReaderCursors(database.words, address, index)
        self._database = database
        self._words = database.words
        self._keys = Layout(address.channel).keys()
        self._get: Callable[[bytes], memoryview | None] = _no_snapshot
        self._get_bulk: Callable[[bytes], memoryview | None] = _no_snapshot
        self.opened()

    def fileno(self) -> int:
        return self._cursors.watch()

    def _find(self, key: bytes) -> memoryview:
        """Return the value of a key that the snapshot has not: one of bulk, with a new snapshot of its own.

        Raises:
            TransportError: there is none.
        """
        self._get_bulk = _no_snapshot  # drops the old one
        self._get_bulk = self._database.bulk.snapshot()
        view = self._get_bulk(key)
        if view is None:
            channel = self._cursors.channel.name
            raise TransportError(f"the next message is not in the database of channel {channel!r}")
        return view

    def _drop(self) -> None:
        if self._database.is_inherited:
            keep_for_ever(self._get)
            keep_for_ever(self._get_bulk)
        self._get = self._get_bulk = _no_snapshot
        super()._drop()


class RingReader(_LmdbReader):
    """Reader of an every_message channel; its views are the database's own pages, held by its snapshot."""

    def __init__(self, address: Address, database: Database, index: int) -> None:
        super().__init__(address, database, index)
        self._count = len(self._keys)
        self._fenced = self._cursors.fenced
        self._consumed_word = self._cursors.consumed_word
        self._sequence = self._covered = 0
        self._snapshot = database.near.snapshot

    def release(self) -> None:
        if not self.closed:
            self._cursors.done_with(self._sequence)
            self._covered = self._sequence
            self._get = self._get_bulk = _no_snapshot  # the last view must not keep pages

    def read(self, timeout_s: float | None = None) -> memoryview:
        sequence = self._sequence
        words = self._words
        if self._fenced:
            self._cursors.store_published(self._consumed_word, sequence)
        else:
            words[self._consumed_word] = sequence  # finished with the last view
        if words[WRITER_SLEEPS]:
            self._cursors.ring_writer()
        self._get_bulk = _no_snapshot  # the last view is no longer valid, and must not keep pages of bulk
        if sequence >= self._covered:
            self._get = _no_snapshot  # drops the last reference to the old snapshot, which ends it
            covered = words[PUBLISHED]
            if covered <= sequence:
                covered = self._await(sequence, timeout_s)
            if self._fenced:
                self._cursors.fence()
            self._get = self._snapshot()
            self._covered = covered
        view = self._get(self._keys[sequence % self._count])
        if view is None:
            view = self._find(self._keys[sequence % self._count])
        self._sequence = sequence + 1
        self._view = view
        return view

    def _await(self, sequence: int, timeout_s: float | None) -> int:
        """Wait for message `sequence`; return how many are published."""
        words, waiter = self._words, self._cursors.waiter
        waiter.begun_count += 1
        for _ in waiter.looks:
            if words[PUBLISHED] > sequence:
                return words[PUBLISHED]
        self._cursors.require_open()
        if not self._cursors.wait_until(lambda: words[PUBLISHED] > sequence, timeout_s, counted=True):
            raise EndOfStream(f"channel ended after {sequence} messages")
        return words[PUBLISHED]

    def _drop(self) -> None:
        self._covered = 0
        super()._drop()
        self._words, self._consumed_word = _NOWHERE, 0


class LatestReader(_LmdbReader):
    """Reader of a latest_value channel; its views are the pages of a value whose key is pinned, or a small copy."""

    def __init__(self, address: Address, database: Database, index: int) -> None:
        super().__init__(address, database, index)
        self._hazard_slots = ReaderHazardSlots(self._cursors, self._words)
        self._copied_bytes = database.near.page_bytes

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._cursors.require_open()
        slot = self._hazard_slots.take(timeout_s)
        self._get = self._database.near.snapshot()
        try:
            view = self._get(self._keys[slot])
            if view is None:
                view = self._find(self._keys[slot])
            if len(view) <= self._copied_bytes:
                view = memoryview(bytes(view))
        finally:
            self._get = self._get_bulk = _no_snapshot
        self._view = view
        self._hazard_slots.done()
        return view


@with_patterns
class Lmdb(Backend):
    """Memory-mapped database."""

    name: ClassVar[str] = "lmdb"
    summary: ClassVar[str] = "memory-mapped database (LMDB), one transaction per message, zero-copy reads"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**32 - 1,
        max_readers=MAX_READERS,
        zero_copy_read=True,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=True,
        detects_peer_exit=True,
        holds_one_of_max=True,
    )

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "lmdb", "pip install lmdb") from absence
        if sys.platform == "win32":
            raise BackendUnavailable(cls.name, "it needs POSIX named pipes and file locks", "use Linux or macOS")

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.probe()
        self.require(channel)
        return Address(self.name, channel, make_files(channel))

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        self.probe()
        kind = LatestWriter if address.channel.delivery == "latest_value" else RingWriter
        with Database.opened(address) as database:
            return kind(address, database)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        self.probe()
        kind = LatestReader if address.channel.delivery == "latest_value" else RingReader
        with Database.opened(address) as database:
            return kind(address, database, index)

    @whole
    def destroy(self, address: Address) -> None:
        remove_directory(address)
