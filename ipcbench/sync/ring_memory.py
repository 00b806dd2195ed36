"""Where the messages of a channel lie in its segment, and the segment as an endpoint sees it.

latest_value: `readers + 2` slots of `[…][size][payload …]`.

every_message: an entry of `[sequence + 1][size][place][payload …]` for each of `depth` messages. If `depth` messages of
maximum size fit in `RING_BYTES`, an entry has room for one. If not, entries are short, and a longer message lies in the
arena behind them: in one piece, behind the one before it, or at the beginning if it does not fit there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ipcbench.backend import Address
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import Cursors, cursors_bytes

RING_BYTES = 2**22
"""Staying in the CPU cache is worth more than holding many large messages."""

_MOST_ARENA_MESSAGES = 4
"""How many messages of maximum size an arena holds if they are large; larger still, it holds one and 12 MiB."""

_Cursors = TypeVar("_Cursors", bound=Cursors)

HEAD_BYTES = 24
_SHORT_ENTRY_BYTES = 128
LINE_BYTES = 64


def in_lines(size_bytes: int) -> int:
    """Return the size rounded up to whole cache lines."""
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


class Layout:
    """Where the entries and the arena of a channel lie.

    Attributes:
        count: number of entries, or of slots.
        entry_bytes: size of each.
        inline_bytes: longer messages lie in the arena.
        start_bytes: where the entries begin.
        arena_bytes: size of the arena; 0 if there is none.
        total_bytes: size of the segment.
    """

    __slots__ = ("arena_bytes", "count", "entry_bytes", "inline_bytes", "start_bytes", "total_bytes")

    def __init__(self, channel: ChannelSpec) -> None:
        most_bytes = channel.max_message_bytes
        self.count = channel.readers + 2 if channel.delivery == "latest_value" else channel.depth
        self.entry_bytes = in_lines(HEAD_BYTES + most_bytes)
        self.arena_bytes = 0
        if channel.delivery == "every_message" and self.count * self.entry_bytes > RING_BYTES:
            self.entry_bytes = min(self.entry_bytes, _SHORT_ENTRY_BYTES)
            if most_bytes > self.entry_bytes - HEAD_BYTES:
                largest = in_lines(most_bytes)
                few = min(_MOST_ARENA_MESSAGES * largest, largest + 3 * RING_BYTES)
                self.arena_bytes = min(self.count * largest, max(RING_BYTES, few))
        self.inline_bytes = min(most_bytes, self.entry_bytes - HEAD_BYTES)
        self.start_bytes = cursors_bytes(channel.readers)
        self.total_bytes = self.start_bytes + self.count * self.entry_bytes + self.arena_bytes


class RingMemory(ABC):
    """The memory of a channel as an endpoint sees it.

    Attributes:
        layout: where everything lies.
        memory: all of it.
        words: the same, as 8-byte words.
        entries: for each, its payload, and the index of the first word of its head.
        arena: empty if there is none.
    """

    layout: Layout

    def _lay_out(self, buffer: memoryview) -> None:
        layout = self.layout
        self.memory = buffer[: layout.total_bytes]
        self.words = self.memory.cast("Q")
        end = layout.total_bytes - layout.arena_bytes
        self.entries = tuple(
            (buffer[start + HEAD_BYTES : start + HEAD_BYTES + layout.inline_bytes], start // 8)
            for start in range(layout.start_bytes, end, layout.entry_bytes)
        )
        self.arena = buffer[end : layout.total_bytes]

    def cursors(self, kind: Callable[..., _Cursors], address: Address, *index: int) -> _Cursors:
        """Return the cursors of an endpoint of that kind."""
        return kind(self.words, address, *index)

    @abstractmethod
    def close(self) -> None:
        """Let go of the memory; what a caller still has a view of stays mapped until the view is gone."""

    def _let_go(self) -> None:
        for payload, _ in self.entries:
            payload.release()
        self.arena.release()
        self.words.release()
        with suppress(BufferError):  # a caller still has a view
            self.memory.release()
