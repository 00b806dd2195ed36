"""The endpoints of a latest_value channel: the hazard slots tell which slot is free and which is the latest."""

from __future__ import annotations

from ipcbench.backend import PLAIN_TYPES, Address, Message, bytes_of, require_size
from ipcbench.backends.shm.mapping import Mapping
from ipcbench.errors import MessageTooLarge
from ipcbench.sync.hazard import ReaderHazardSlots, WriterHazardSlots
from ipcbench.sync.ring import RingMemoryReader, RingMemoryWriter


class LatestWriter(RingMemoryWriter):
    """Writer of a latest_value channel; it never waits."""

    _slot = 0

    def __init__(self, address: Address, mapping: Mapping) -> None:
        super().__init__(address, mapping)
        self._hazard_slots = WriterHazardSlots(self._cursors, mapping.words, address.channel.readers, self._count)

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        del timeout_s  # there is always a free slot
        self._cursors.require_open()
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        slot = self._hazard_slots.free()
        self._entries[slot][0][:size_bytes] = message
        self._announce(slot, size_bytes)

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        self._cursors.require_open()
        require_size(size_bytes)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        self._give_up_reserved()
        self._slot = self._hazard_slots.free()
        self._reserved = self._entries[self._slot][0][:size_bytes]
        return self._reserved

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        self._cursors.require_open()
        self._announce(self._slot, len(self._committed(size_bytes)))

    def _announce(self, slot: int, size_bytes: int) -> None:
        """Make a slot the latest; what is reserved may be the same one, or be needed by no reader any more."""
        self._give_up_reserved()
        self._words[self._entries[slot][1] + 1] = size_bytes
        self._hazard_slots.announce(slot)


class LatestReader(RingMemoryReader):
    """Reader of a latest_value channel; its views are the slot's own memory, pinned."""

    def __init__(self, address: Address, mapping: Mapping, index: int) -> None:
        super().__init__(address, mapping, index)
        self._hazard_slots = ReaderHazardSlots(self._cursors, mapping.words)

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._cursors.require_open()
        payload, head = self._entries[self._hazard_slots.take(timeout_s)]
        view = payload[: self._words[head + 1]]
        self._hazard_slots.done()
        return view
