"""What the endpoints of shared memory have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from ipcbench.backend import PLAIN_TYPES, Address, Message, Reader, Writer, bytes_of
from ipcbench.backends.shm.mapping import Mapping
from ipcbench.sync.cursors import CursorsEndpoint, ReaderCursors, WriterCursors

_NOWHERE = memoryview(bytearray(8 * 64)).cast("Q")
"""Words of a closed endpoint: nothing arrives there and no peer sleeps, so the fast path ends in the slow one."""
_NO_ENTRIES = ((memoryview(b""), 8),)


class _ShmEndpoint(CursorsEndpoint):
    _map: Mapping
    _entries: tuple[tuple[memoryview, int], ...]

    def _drop(self) -> None:
        self._words, self._entries, self._count = _NOWHERE, _NO_ENTRIES, 1
        self._map.close()


class ShmWriter(_ShmEndpoint, Writer):
    """State of both writers; a subclass chooses the next entry, and has room for a message there."""

    _cursors: WriterCursors

    def __init__(self, address: Address, mapping: Mapping) -> None:
        self._cursors = WriterCursors(mapping.words, address)
        self._map = mapping
        self._words = mapping.words
        self._entries = mapping.entries
        self._count = len(mapping.entries)
        self._limit_bytes = address.channel.max_message_bytes
        self._fenced = self._cursors.fenced
        self._sequence = 0
        self.opened()

    def _nothing_reserved(self) -> NoReturn:
        self._cursors.require_open()
        super()._nothing_reserved()

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        pieces = [part if type(part) in PLAIN_TYPES else bytes_of(part) for part in parts]
        room, end = self.reserve(sum(map(len, pieces)), timeout_s), 0
        for piece in pieces:
            begin, end = end, end + len(piece)
            room[begin:end] = piece
        self.commit()

    def _drop(self) -> None:
        self._give_up_reserved()
        super()._drop()


class ShmReader(_ShmEndpoint, Reader):
    """State of both readers."""

    _cursors: ReaderCursors

    def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
        self._cursors = ReaderCursors(mapping.words, address, index)
        self._map = mapping
        self._words = mapping.words
        self._entries = mapping.entries
        self._count = len(mapping.entries)
        self._consumed_word = self._cursors.consumed_word
        self._fenced = self._cursors.fenced
        self._waiter = self._cursors.waiter
        self._sequence = 0
        self.opened()

    def fileno(self) -> int:
        return self._cursors.watch()

    def _drop(self) -> None:
        super()._drop()
        self._consumed_word = 0
