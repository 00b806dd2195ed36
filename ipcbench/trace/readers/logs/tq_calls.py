"""Pairs the starts, parts and ends of one function's [TQ-TRACE] lines, also when many of its calls run at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from ipcbench.trace.readers.batch import UNKNOWN_NS, Notes

_SLACK_NS = 2_000
"""Times are printed to a microsecond, each rounded by itself."""

_SHARE_SLACK = 0.00006
"""Ratios are printed to 0.01 %."""

_SHARES_SLACK = 0.005
_LARGEST_SHARE = 1.001
_ALL_IN_ORDER = [True, True, True]

_MOST_FUNCTIONS = 10_000
_LONGEST_NAME = 300
_OTHERS = "(other functions)"

_MOST_OPEN_IN_ALL = 50_000

_MOST_OPEN = 4096
"""Starts of one function that wait for their ends; beyond, the older half is taken to have none."""


TqCall: TypeAlias = tuple[int, int, tuple[int, int, int], int, int]
"""One call: begin, duration, (get, compute, put), all in ns, bytes put, bytes got."""

_Start: TypeAlias = tuple[int | None, str]
"""When, and of which trace id."""

_Part: TypeAlias = tuple[int | None, int, str]
"""When it ended, how long it took, and of which trace id."""


class Function:
    """One function in one worker: what has begun, which parts have ended, which calls are complete.

    Parts are numbered as the stages of PIPELINE.
    """

    __slots__ = ("_done", "_in_order", "_latest_ns", "_notes", "_pairing", "_parts", "_starts", "name", "worker")

    def __init__(self, pairing: Pairing, notes: Notes, worker: str, name: str) -> None:
        self.worker = worker
        self.name = name
        self._pairing = pairing
        self._notes = notes
        self._starts: list[_Start] = []
        self._parts: tuple[list[_Part], list[_Part], list[_Part]] = ([], [], [])
        self._in_order = [True, True, True]
        self._latest_ns = [0, 0, 0]
        self._done: list[TqCall] = []

    def begin(self, at_ns: int | None, trace_id: str) -> None:
        """Take note that a call has begun."""
        self._starts.append((at_ns, trace_id))
        if len(self._starts) > _MOST_OPEN:
            self._settle(_MOST_OPEN // 2)

    def part(self, stage: int, at_ns: int | None, duration_ns: int, trace_id: str) -> None:
        """Take note that a part of some call has ended."""
        parts = self._parts[stage]
        if not parts:
            self._in_order[stage] = at_ns is not None
        elif at_ns is None or at_ns < self._latest_ns[stage]:
            self._in_order[stage] = False
        self._latest_ns[stage] = at_ns or 0
        parts.append((at_ns, duration_ns, trace_id))
        if len(parts) > 2 * _MOST_OPEN:
            del parts[:_MOST_OPEN]

    def end(self, at_ns: int | None, total_ns: int, trace_id: str, shares: tuple[float, float, float]) -> None:
        """Complete a call: find its start and its parts.

        Args:
            at_ns, total_ns: when it ended, and how long it took.
            trace_id: what it belongs to.
            shares: of get, compute and put in the total; NaN where the log says none.
        """
        begin_ns = None if at_ns is None else at_ns - total_ns
        if at_ns is not None and self._end_of_latest(at_ns, total_ns, trace_id, shares):
            return
        self._take_start(begin_ns, trace_id)
        slack_ns = _SLACK_NS + _SHARE_SLACK * total_ns
        durations = [0, 0, 0]
        before_ns = at_ns
        for stage in (2, 1, 0):
            share = shares[stage]
            part = self._take_part(stage, begin_ns, before_ns, trace_id, share * total_ns, slack_ns)
            if part is None and not self._starts:  # no other call is under way: the part is its own, the ratio is wrong
                part = self._take_part(stage, begin_ns, before_ns, trace_id, math.nan, slack_ns)
            if part is None:
                durations[stage] = round(share * total_ns) if 0.0 <= share <= _LARGEST_SHARE else 0
            else:
                part_ns = durations[stage] = part[1]
                before_ns = None if part[0] is None else part[0] - part_ns
        begin_ns = UNKNOWN_NS if begin_ns is None else begin_ns
        self._add_checked(begin_ns, total_ns, (durations[0], durations[1], durations[2]), shares)

    def _end_of_latest(self, at_ns: int, total_ns: int, trace_id: str, shares: tuple[float, float, float]) -> bool:
        """Complete the call that began last if its parts are the last ones, as `end` would; return whether they are."""
        starts, (gets, computes, puts) = self._starts, self._parts
        if not (starts and gets and computes and puts) or self._in_order != _ALL_IN_ORDER:
            return False
        start_ns, start_id = starts[-1]
        (get_at_ns, get_ns, get_id), (compute_at_ns, compute_ns, compute_id) = gets[-1], computes[-1]
        put_at_ns, put_ns, put_id = puts[-1]
        if start_ns is None or get_at_ns is None or compute_at_ns is None or put_at_ns is None:
            return False
        slack_ns = _SLACK_NS + _SHARE_SLACK * total_ns
        begin_ns = at_ns - total_ns
        if (
            not start_id == get_id == compute_id == put_id == trace_id
            or abs(start_ns - begin_ns) > _SLACK_NS
            or not begin_ns - _SLACK_NS <= get_at_ns - get_ns
            or not get_at_ns - _SLACK_NS <= compute_at_ns - compute_ns
            or not compute_at_ns - _SLACK_NS <= put_at_ns - put_ns
            or not put_at_ns - _SLACK_NS <= at_ns
            or not abs(get_ns - shares[0] * total_ns) <= slack_ns
            or not abs(compute_ns - shares[1] * total_ns) <= slack_ns
            or not abs(put_ns - shares[2] * total_ns) <= slack_ns
        ):
            return False
        del starts[-1], gets[-1], computes[-1], puts[-1]
        self._add_checked(begin_ns, total_ns, (get_ns, compute_ns, put_ns), shares)
        return True

    def _add_checked(
        self, begin_ns: int, total_ns: int, parts: tuple[int, int, int], shares: tuple[float, float, float]
    ) -> None:
        """Add a call whose shares are known."""
        if total_ns > 0 and abs(sum(shares) - sum(parts) / total_ns) > _SHARES_SLACK:  # False if one is NaN
            self._notes.counts["ratios that do not agree with durations"] += 1
        self._add(begin_ns, total_ns, parts)

    def _add(self, begin_ns: int, total_ns: int, parts: tuple[int, int, int]) -> None:
        self._done.append((begin_ns, total_ns, parts, 0, 0))
        self._pairing.done_count += 1

    def _take_start(self, begin_ns: int | None, trace_id: str) -> None:
        starts = self._starts
        if begin_ns is not None:
            for index in range(len(starts) - 1, -1, -1):
                at_ns, its_id = starts[index]
                if at_ns is not None and -_SLACK_NS <= at_ns - begin_ns <= _SLACK_NS and its_id == trace_id:
                    del starts[index]
                    return
        for index in range(len(starts) - 1, -1, -1):
            if starts[index] == (None, trace_id):
                self._notes.counts["calls paired by their order alone"] += trace_id == "N/A"
                del starts[index]
                return
        self._notes.counts["ends without a start"] += 1

    def _take_part(
        self,
        stage: int,
        begin_ns: int | None,
        before_ns: int | None,
        trace_id: str,
        expected_ns: float,
        slack_ns: float,
    ) -> _Part | None:
        """Return the part that ends last before the next one begins, and is as long as its ratio says; or None.

        Args:
            stage: its number.
            begin_ns, before_ns: between which it lies; None if the log has no times.
            trace_id: of the call.
            expected_ns, slack_ns: how long its ratio says that it took, give or take; NaN for no ratio.
        """
        parts = self._parts[stage]
        if begin_ns is None or before_ns is None:
            return self._first_part(parts, trace_id)
        earliest_ns, latest_ns = begin_ns - _SLACK_NS, before_ns + _SLACK_NS
        in_order = self._in_order[stage]
        best, best_ns = -1, earliest_ns
        for index in range(len(parts) - 1, -1, -1):
            at_ns, duration_ns, its_id = parts[index]
            if at_ns is None:
                continue
            if at_ns < earliest_ns and in_order:
                break
            inside = best_ns < at_ns <= latest_ns and at_ns - duration_ns >= earliest_ns
            if inside and its_id == trace_id and not abs(duration_ns - expected_ns) > slack_ns:  # True for NaN
                if in_order:
                    return parts.pop(index)
                best, best_ns = index, at_ns
        return parts.pop(best) if best >= 0 else None

    @staticmethod
    def _first_part(parts: list[_Part], trace_id: str) -> _Part | None:
        for index, part in enumerate(parts):
            if part[2] == trace_id:
                return parts.pop(index)
        return None

    def _settle(self, count: int) -> None:
        """Take the oldest starts to have no end: with a computed part they put nothing, else they are incomplete."""
        settled, self._starts = self._starts[:count], self._starts[count:]
        for at_ns, trace_id in settled:
            compute = None if at_ns is None else self._first_part_after(1, at_ns, trace_id)
            if at_ns is None or compute is None or compute[0] is None:
                self._notes.counts["functions without an end"] += 1
                continue
            got = self._first_part_after(0, at_ns, trace_id)
            self._notes.counts["functions that put nothing"] += 1
            got_ns = 0 if got is None else got[1]
            self._add(at_ns, compute[0] - at_ns, (got_ns, compute[1], 0))

    def _first_part_after(self, stage: int, begin_ns: int, trace_id: str) -> _Part | None:
        parts = self._parts[stage]
        for index, (at_ns, duration_ns, its_id) in enumerate(parts):
            if its_id == trace_id and at_ns is not None and at_ns - duration_ns >= begin_ns - _SLACK_NS:
                return parts.pop(index)
        return None

    @property
    def open_count(self) -> int:
        """Starts and parts that wait for an end."""
        return len(self._starts) + sum(map(len, self._parts))

    def settle_half(self) -> None:
        """Take the older half of what waits for an end to have none."""
        self._settle(len(self._starts) // 2)
        for parts in self._parts:
            del parts[: len(parts) // 2]

    def settle_all(self) -> None:
        """Nothing more will come."""
        self._settle(len(self._starts))

    def take(self) -> list[TqCall]:
        """Return the calls that are complete, once."""
        done, self._done = self._done, []
        return done

    @property
    def has_calls(self) -> bool:
        """Whether `take` would return any."""
        return bool(self._done)


class Pairing:
    """All functions of a log.

    Attributes:
        done_count: calls complete since `with_calls` was last asked.
    """

    __slots__ = ("_functions", "_lines_count", "_notes", "done_count")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._functions: dict[tuple[str, str], Function] = {}
        self._lines_count = 0
        self.done_count = 0

    def function(self, worker: str, name: str) -> Function:
        """Return the function of a worker; beyond ten thousand, all further ones are one."""
        key = (worker, name[:_LONGEST_NAME])
        found = self._functions.get(key)
        if found is None:
            if len(self._functions) >= _MOST_FUNCTIONS:
                key = ("", _OTHERS)
            found = self._functions.setdefault(key, Function(self, self._notes, *key))
        return found

    def bound(self, lines_count: int) -> None:
        """Keep what waits for ends within bounds, whatever the log holds; to be told how many lines were read."""
        self._lines_count += lines_count
        if self._lines_count < _MOST_OPEN_IN_ALL:
            return
        self._lines_count = 0
        if sum(one.open_count for one in self._functions.values()) > _MOST_OPEN_IN_ALL:
            for one in self._functions.values():
                one.settle_half()

    def with_calls(self) -> Iterator[Function]:
        """Yield the functions that have complete calls."""
        self.done_count = 0
        for function in self._functions.values():
            if function.has_calls:
                yield function

    def settle_all(self) -> None:
        """Nothing more will come."""
        for function in self._functions.values():
            function.settle_all()
