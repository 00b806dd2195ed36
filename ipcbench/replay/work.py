"""Stands in for the application's own work: it touches memory as that did, for as long or as much.

Work is copying pieces to and fro, within as much memory as the call's messages have, so that caches are left as real
work leaves them; waiting for the clock alone would leave them warm, and the transport would look too good. It is asked
for by time, or by pieces: the same pieces take longer in a process that was just woken than in one that kept its core.
"""

from __future__ import annotations

from typing import Final

from ipcbench.util.clock import now_ns

PIECE_BYTES: Final = 4096
WALK_BYTES: Final = 2**16
BY_TIME: Final = -1
"""Instead of a number of pieces."""

_LEAST_BYTES = 2**16
_MOST_BYTES = 2**22
_MOST_DEBT_NS = 20_000
"""A longer debt is not rounding: the process was not running."""


class Work:
    """One process's memory to work in.

    Attributes:
        pieces_count: how many the last work had.
    """

    __slots__ = ("_debt_ns", "_from", "_to", "pieces_count")

    def __init__(self) -> None:
        size = _MOST_BYTES + WALK_BYTES
        self._from = memoryview(bytearray(b"\1") * size)
        self._to = memoryview(bytearray(b"\1") * size)
        self._debt_ns = self.pieces_count = 0

    def walk(self, view: memoryview, begin: int) -> int:
        """Copy the next `WALK_BYTES` of a message, from `begin` on; return where they end."""
        part, at = view[begin : begin + WALK_BYTES], begin % _MOST_BYTES
        self._to[at : at + len(part)] = part
        return begin + len(part)

    def do(self, pieces: int, deadline_ns: int, span_bytes: int, target: memoryview | None = None) -> int:
        """Copy this many pieces, or with `BY_TIME` until the clock reads `deadline_ns`; return the clock.

        By time, the overrun of earlier work is made up for.

        Args:
            span_bytes: in how much memory; at least 64 KiB, at most 4 MiB.
            target: what is copied to; without it, memory of this process's own.
        """
        clock, piece, source = now_ns, PIECE_BYTES, self._from
        to = self._to if target is None or len(target) < piece else target
        by_time = pieces == BY_TIME
        deadline, left = deadline_ns - self._debt_ns, pieces
        span = min(max(span_bytes, _LEAST_BYTES), _MOST_BYTES)
        span_to = min(span, len(to)) - piece
        at = at_to = count = 0
        now = clock()
        while now < deadline if by_time else count < left:
            to[at_to : at_to + piece] = source[at : at + piece]
            at = at + piece if at < span - piece else 0
            at_to = at_to + piece if at_to < span_to - piece else 0
            count += 1
            now = clock()
        if by_time:
            self._debt_ns = min(now - deadline, _MOST_DEBT_NS)
        self.pieces_count = count
        return now
