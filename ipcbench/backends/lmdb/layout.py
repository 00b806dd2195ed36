"""How much of what the database of one LMDB channel holds, and under which keys."""

from __future__ import annotations

import mmap

from ipcbench.spec import ChannelSpec

RING_BYTES = 2**21
"""A channel holds `depth` messages if they fit in this, and fewer large ones, but at least two. The database takes
about twice as much, and should stay in the processor's cache: with eight times as much, a message of 256 KiB costs a
third more."""

_MIN_MESSAGES = 2
_UNCOUNTED_BYTES = 2**10
_NODE_BYTES = 32  # what the database adds to a key and a value, rounded up
_SPARE_TRANSACTIONS = 1024
_PAGES_PER_TRANSACTION = 8  # of the tree and of the list of free pages, rounded up
_SPARE_BYTES = 2**20


class Layout:
    """What a channel's database holds.

    Attributes:
        small_bytes: up to this size, `depth` messages always fit; what is larger is called large.
        large_count: how many messages, small ones included, there may be when a large one is written.
        map_bytes: size of the database: for all messages that may be stored, for as many old ones that the snapshot of
            a slow reader keeps, and for the pages of the tree, which each transaction writes anew. If a reader is
            more than about a thousand transactions behind, this may hold the writer before `depth` does.
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
