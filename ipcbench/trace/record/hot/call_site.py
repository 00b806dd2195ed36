"""One method in one thread, and which of its calls are recorded. Standard library only."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from ipcbench.util.clock import now_ns

if TYPE_CHECKING:
    from ipcbench.trace.record.call import Call
    from ipcbench.trace.record.hot.call import HotCall
    from ipcbench.trace.record.hot.files import Slots, Sums


class HotSite:
    """One method in one thread: what its calls need at once.

    Attributes:
        kind: the class of its calls.
        segment: the one that `heads` are of.
        heads: the beginnings of its ordinary records, by the number of stage ends.
        tally: of its calls without a record; None before the first.
        last: the number of the last stage.
        always: whether every call is recorded; if not, the next ones are about one in `period`.
        blind: whether the calls between those are to be counted without a look at the clock.
        look_ns: when to `look` at the next call that is recorded.
        slowest_ns: the longest call so far.

    Args:
        nothing: stands for calls that are counted.
        seed: which calls are recorded follows from it.
    """

    __slots__ = ("_counted", "_free", "_left", "_nothing", "_passed", "_random", "_unseen", "always", "blind", "heads",
                 "kind", "last", "look_ns", "period", "segment", "slowest_ns", "tally")  # fmt: skip

    kind: type[Call]
    segment: Slots
    heads: tuple[bytes, ...]
    tally: Sums | None
    last: int

    def __init__(self, nothing: Call, seed: int) -> None:
        self._nothing = nothing
        self._random = Random(seed).random  # noqa: S311 # it is no secret
        self._free: list[HotCall] = []
        self._unseen = 0  # calls from here that are counted
        self._left = 0  # calls behind those until the next recorded one, that one included
        self._passed = self._counted = 0  # as `passed` says, plus what is left of both
        self.always = self.blind = False
        self.period = 1
        self.look_ns = self.slowest_ns = 0

    def begin(self) -> Any:
        """Return a call that was not under way, and decide whether it is recorded; or what stands for one counted."""
        if self._unseen:
            self._unseen -= 1
            return self._nothing
        call = self._free.pop() if self._free else self.kind(self)  # type: ignore[arg-type] # this is a Site
        if self.always:
            call._recorded = True
            return call
        self._left -= 1
        call._recorded = self._left <= 0
        if call._recorded:
            if now_ns() >= self.look_ns:
                self.look()
            if self._left <= 0:
                self.draw()
        return call

    def draw(self) -> None:
        """Choose how many calls it is until the next recorded one: a varying number, so that no rhythm is hit."""
        count = 1 + int(self._random() * (2 * self.period - 1))
        unseen = count - 1 if self.blind else 0
        self._passed += count - self._unseen - self._left
        self._counted += unseen - self._unseen
        self._unseen, self._left = unseen, count - unseen

    def passed(self) -> tuple[int, int]:
        """Return how many calls there were since this was last asked, and how many of them were only counted."""
        passed, counted = self._passed - self._unseen - self._left, self._counted - self._unseen
        self._passed -= passed
        self._counted -= counted
        return passed, counted

    def look(self) -> None:
        """Say when to look again, at least."""
        raise NotImplementedError
