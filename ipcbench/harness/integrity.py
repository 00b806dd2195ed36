"""Whether every message was delivered as promised: counts of lost, duplicated, reordered and torn messages."""

from __future__ import annotations

from ipcbench.results.model import Integrity
from ipcbench.spec import Delivery
from ipcbench.workload.message import SEQUENCE, body_matches, is_whole, unpack_word

_REMEMBERED_GAPS = 100_000


class Tracker:
    """Follows the sequence numbers that one reader sees.

    Args:
        delivery: `every_message` requires every number once and in order; `latest_value` only that numbers rise.
        expected_bytes: size of every message.
    """

    def __init__(self, delivery: Delivery, expected_bytes: int) -> None:
        self._lossless = delivery == "every_message"
        self._expected_bytes = expected_bytes
        self._missing: set[int] = set()
        self.last = 0
        """Highest sequence number accepted so far."""
        self.received = self.hashed = 0
        self._lost = self._duplicated = self._reordered = self._torn = self._skipped = 0

    def accept(self, view: memoryview, *, hashing: bool) -> bool:
        """Check one message; return whether it is whole, intact and newer than all before it."""
        self.received += 1
        if not is_whole(view, self._expected_bytes):
            self._torn += 1
            if self._lossless:
                self.last += 1  # counted as the message that was due, so that it is not lost as well
            return False
        self.hashed += hashing
        if hashing and not body_matches(view):
            self._torn += 1
            self.last = max(self.last, unpack_word(view, 8 * SEQUENCE)[0])
            return False
        return self._order(unpack_word(view, 8 * SEQUENCE)[0])

    def _order(self, sequence: int) -> bool:
        if sequence > self.last:
            gap = sequence - self.last - 1
            if self._lossless:
                self._lost += gap
                self._missing.update(range(self.last + 1, min(sequence, self.last + 1 + _REMEMBERED_GAPS)))
            else:
                self._skipped += gap
            self.last = sequence
            return True
        if sequence in self._missing:
            self._missing.discard(sequence)
            self._lost -= 1
            self._reordered += 1
        elif self._lossless or sequence == self.last:
            self._duplicated += 1
        else:
            self._reordered += 1
        return False

    def advance(self, count: int, last: int, hashed: int) -> None:
        """Count `count` messages, up to number `last`, that the hot loop has checked."""
        if not self._lossless:
            self._skipped += last - self.last - count
        self.received += count
        self.hashed += hashed
        self.last = last

    def result(self, expected_count: int) -> Integrity:
        """Return the counts, given how many messages the writer says it sent."""
        tail = max(0, expected_count - self.last)
        return Integrity(
            expected_count=expected_count,
            received_count=self.received,
            lost_count=self._lost + (tail if self._lossless else 0),
            duplicated_count=self._duplicated,
            reordered_count=self._reordered,
            torn_count=self._torn,
            skipped_count=self._skipped,
            hashed_count=self.hashed,
        )
