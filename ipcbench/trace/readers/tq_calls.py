"""Pairs the starts, parts and ends of one function's [TQ-TRACE] lines, also when many of its calls run at once.

What does not live here: lines and their fields (tq_log.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ipcbench.trace.readers.batch import UNKNOWN_NS, Notes
from ipcbench.trace.schema import PIPELINE

_SLACK_NS = 2_000
"""Times are printed to a microsecond, each rounded by itself."""

_SHARE_SLACK = 0.00006
"""Ratios are printed to 0.01 %."""

_MOST_OPEN = 4096
"""Starts of one function that wait for their ends; beyond, the older half is taken to have none."""


class TqCall(NamedTuple):
    """One call: begin, duration, get, compute and put (all ns), bytes put and got."""

    begin_ns: int
    total_ns: int
    parts_ns: tuple[int, int, int]
    sent_bytes: int
    recv_bytes: int


class _Start(NamedTuple):
    at_ns: int | None
    trace_id: str


class _Part(NamedTuple):
    at_ns: int | None
    duration_ns: int
    trace_id: str


class Function:
    """One function in one worker: what has begun, which parts have ended, which calls are complete."""

    __slots__ = ("_done", "_notes", "_pairing", "_parts", "_starts", "name", "worker")

    def __init__(self, pairing: Pairing, notes: Notes, worker: str, name: str) -> None:
        self.worker = worker
        self.name = name
        self._pairing = pairing
        self._notes = notes
        self._starts: list[_Start] = []
        self._parts: dict[str, list[_Part]] = {stage.upper(): [] for stage in PIPELINE.stages}
        self._done: list[TqCall] = []

    def begin(self, at_ns: int | None, trace_id: str) -> None:
        """Take note that a call has begun."""
        self._starts.append(_Start(at_ns, trace_id))
        if len(self._starts) > _MOST_OPEN:
            self._settle(_MOST_OPEN // 2)

    def part(self, stage: str, at_ns: int | None, duration_ns: int, trace_id: str) -> None:
        """Take note that a part of some call has ended."""
        parts = self._parts[stage]
        parts.append(_Part(at_ns, duration_ns, trace_id))
        if len(parts) > 2 * _MOST_OPEN:
            del parts[:_MOST_OPEN]

    def end(self, at_ns: int | None, total_ns: int, trace_id: str, shares: tuple[float, ...]) -> None:
        """Complete a call: find its start and its parts."""
        begin_ns = None if at_ns is None else at_ns - total_ns
        self._take_start(begin_ns, trace_id)
        durations = []
        before_ns = at_ns
        for stage, share in zip(reversed(PIPELINE.stages), reversed(shares), strict=True):
            part = self._take_part(self._parts[stage.upper()], begin_ns, before_ns, trace_id, total_ns, share)
            if part is None:
                durations.append(0 if math.isnan(share) else round(share * total_ns))
            else:
                durations.append(part.duration_ns)
                before_ns = None if part.at_ns is None else part.at_ns - part.duration_ns
        parts = durations[::-1]
        known = [share for share in shares if not math.isnan(share)]
        if len(known) == 3 and total_ns > 0 and abs(sum(known) - sum(parts) / total_ns) > 0.005:
            self._notes.counts["ratios that do not agree with durations"] += 1
        self._add(UNKNOWN_NS if begin_ns is None else begin_ns, total_ns, (parts[0], parts[1], parts[2]))

    def _add(self, begin_ns: int, total_ns: int, parts: tuple[int, int, int]) -> None:
        self._done.append(TqCall(begin_ns, total_ns, parts, 0, 0))
        self._pairing.done_count += 1

    def _take_start(self, begin_ns: int | None, trace_id: str) -> None:
        starts = self._starts
        if begin_ns is not None:
            for index in range(len(starts) - 1, -1, -1):
                start = starts[index]
                if start.at_ns is not None and abs(start.at_ns - begin_ns) <= _SLACK_NS and start.trace_id == trace_id:
                    del starts[index]
                    return
        for index in range(len(starts) - 1, -1, -1):
            if starts[index].at_ns is None and starts[index].trace_id == trace_id:
                self._notes.counts["calls paired by their order alone"] += trace_id == "N/A"
                del starts[index]
                return
        self._notes.counts["ends without a start"] += 1

    def _take_part(
        self,
        parts: list[_Part],
        begin_ns: int | None,
        before_ns: int | None,
        trace_id: str,
        total_ns: int,
        share: float,
    ) -> _Part | None:
        """Return the part that ends last before the next one begins, and is as long as its ratio says; or None.

        Args:
            parts: those of this stage that no call has taken.
            begin_ns, before_ns: between which it lies; None if the log has no times.
            trace_id: of the call.
            total_ns, share: of the call, and of it this part; NaN if there is no ratio.
        """
        expected_ns = share * total_ns
        slack_ns = _SLACK_NS + _SHARE_SLACK * total_ns
        best = -1
        for index, part in enumerate(parts):
            if part.trace_id != trace_id:
                continue
            if begin_ns is None or before_ns is None or part.at_ns is None:
                best = index
                break
            if part.at_ns > before_ns + _SLACK_NS or part.at_ns - part.duration_ns < begin_ns - _SLACK_NS:
                continue
            fits = math.isnan(expected_ns) or abs(part.duration_ns - expected_ns) <= slack_ns
            if fits and (best < 0 or part.at_ns > (parts[best].at_ns or 0)):
                best = index
        return parts.pop(best) if best >= 0 else None

    def _settle(self, count: int) -> None:
        """Take the oldest starts to have no end: with a computed part they put nothing, else they are incomplete."""
        settled, self._starts = self._starts[:count], self._starts[count:]
        for start in settled:
            compute = self._first_part_after("COMPUTE", start)
            if compute is None or compute.at_ns is None or start.at_ns is None:
                self._notes.counts["functions without an end"] += 1
                continue
            got = self._first_part_after("GET", start)
            self._notes.counts["functions that put nothing"] += 1
            got_ns = 0 if got is None else got.duration_ns
            self._add(start.at_ns, compute.at_ns - start.at_ns, (got_ns, compute.duration_ns, 0))

    def _first_part_after(self, stage: str, start: _Start) -> _Part | None:
        parts = self._parts[stage]
        for index, part in enumerate(parts):
            if part.trace_id != start.trace_id or part.at_ns is None or start.at_ns is None:
                continue
            if part.at_ns - part.duration_ns >= start.at_ns - _SLACK_NS:
                return parts.pop(index)
        return None

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

    __slots__ = ("_functions", "_notes", "done_count")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._functions: dict[tuple[str, str], Function] = {}
        self.done_count = 0

    def function(self, worker: str, name: str) -> Function:
        """Return the function of a worker."""
        found = self._functions.get((worker, name))
        if found is None:
            found = self._functions[worker, name] = Function(self, self._notes, worker, name)
        return found

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
