"""Reads [TQ-TRACE], [TQ-DETAIL] and [TQ-LOG] messages wherever they stand in a noisy log, in two steps.

`parse_event` reads one message into an `Event`; `CallPairing` pairs events into calls. A trace id groups calls and does
not tell them apart: `N/A` never does, and many calls may share one. What tells them apart is the clock: an end's
timestamp less its duration is its start's timestamp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Notes, Segment
from ipcbench.trace.schema import PIPELINE

MARKER: Final = "[TQ-"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")
_WORKER = re.compile(r"\((\S{1,100}) pid=(\d{1,20})(?:, ip=([\w.:]{1,100}))?\)")
_DURATION = re.compile(r"(-?[\d.]+(?:[eE][-+]?\d+)?)\s*(s|ms|us|µs)?")
_UNIT_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3}
_PART_ENDS = {"GET_END": 0, "COMPUTE_END": 1, "PUT_END": 2}
_IGNORED = {"TRACE": {"GET_START", "COMPUTE_START", "PUT_START", "TQ_CLIENT_GET_START"}, "LOG": {"START"}}
_BATCH_CALLS = 8192
_LARGEST = 9e18
_SLACK_NS = 2_000  # times are printed to a microsecond, each rounded by itself
_SHARE_SLACK = 0.00006  # ratios are printed to 0.01 %
_SHARES_SLACK = 0.005
_LARGEST_SHARE = 1.001

_LONGEST_NAME = 300
_LONGEST_TRACE_ID = 100

_MOST_WORKERS = _MOST_FUNCTIONS = 10_000
_MOST_OPERATIONS = 1000
_MOST_SIZES = 1024
_MOST_OPEN = 4096
_MOST_OPEN_IN_ALL = 50_000
"""Bounds on memory. Beyond `_MOST_OPEN` starts of one function, the older half is taken to have no ends."""


class Event(NamedTuple):
    """What one message says has begun or ended."""

    stage: str  # by the log's own name; END for an operation of [TQ-LOG]
    worker: str  # the process; empty if the log does not name it
    name: str = ""  # of the function or the operation
    trace_id: str = ""
    at_ns: int | None = None  # None if the log does not say
    duration_ns: int = 0  # of what has ended
    shares: tuple[float, float, float] = (math.nan,) * 3  # of get, compute and put; NaN if the log does not say
    size_bytes: int = 0  # of a transfer; at the end of a put, what its speed tells


def parse_event(worker: str, kind: str, fields: dict[str, str]) -> Event | None:
    """Return what a message of a kind (TRACE, DETAIL, LOG) says; None if nothing that matters.

    Raises:
        KeyError, ValueError, OverflowError: it is damaged.
    """
    stage = fields["stage"].strip()
    if kind == "DETAIL":
        return _parse_detail(worker, stage, fields)
    if kind == "LOG" and stage == "END":
        return Event(stage, worker, fields["op"].strip(), duration_ns=_duration_ns(fields["duration"]))
    if kind == "TRACE":
        at_ns = _time_ns(fields)
        trace_id = fields.get("trace_id", "N/A")[:_LONGEST_TRACE_ID]
        if stage in _PART_ENDS:
            return Event(stage, worker, fields["func"], trace_id, at_ns, _duration_ns(fields["duration"]))
        if stage == "FUNCTION_START":
            return Event(stage, worker, fields["func"], trace_id, at_ns)
        if stage == "FUNCTION_END":
            total_ns = _duration_ns(fields["total_duration"])
            shares = _share(fields, "get_ratio"), _share(fields, "compute_ratio"), _share(fields, "put_ratio")
            return Event(stage, worker, fields["func"], trace_id, at_ns, total_ns, shares)
    if stage not in _IGNORED[kind]:
        raise ValueError(stage)
    return None


def _parse_detail(worker: str, stage: str, fields: dict[str, str]) -> Event | None:
    if stage in {"TQ_CLIENT_GET_START", "TQ_CLIENT_PUT_START"}:
        size = fields.get("data_size_mb")
        return None if size is None else Event("TQ_CLIENT_PUT_START", worker, size_bytes=round(_bytes(size)))
    duration_ns, size_bytes = _duration_ns(fields["duration"]), 0
    if stage == "TQ_CLIENT_GET_END":
        size_bytes = round(_bytes(fields.get("data_size_mb", "0")))
    elif stage == "TQ_CLIENT_PUT_END":
        size_bytes = int(_bytes(fields.get("throughput_mbps", "0")) * duration_ns / 1e9)
    if stage not in {"TQ_CLIENT_GET_END", "TQ_CLIENT_PUT_END"} or not abs(size_bytes) < _LARGEST:
        raise ValueError(stage)
    return Event(stage, worker, stage.removesuffix("_END"), "", _time_ns(fields), duration_ns, size_bytes=size_bytes)


def _scaled(text: str, unit: float) -> float:
    if not abs(value := float(text) * unit) < _LARGEST:
        raise ValueError(text)
    return value


def _duration_ns(text: str) -> int:
    text = text.rstrip()
    if text[-1:] == "s" and text[-2:-1].isdecimal():
        return round(_scaled(text[:-1], 1e9))
    if (match := _DURATION.fullmatch(text)) is None:
        raise ValueError(text)
    return round(_scaled(match[1], _UNIT_NS[match[2] or "s"]))


def _time_ns(fields: dict[str, str]) -> int | None:
    return round(_scaled(fields["timestamp"], 1e9)) if "timestamp" in fields else None


def _share(fields: dict[str, str], key: str) -> float:
    return float(fields.get(key, "nan").strip().rstrip("%")) / 100.0


def _bytes(mib: str) -> float:
    if (value := _scaled(mib, 2**20)) < 0:
        raise ValueError(mib)
    return value


_NO_PARTS = (0, 0, 0)


class _Call(NamedTuple):
    begin_ns: int
    total_ns: int
    parts_ns: tuple[int, int, int]  # get, compute and put
    sent_bytes: int = 0
    recv_bytes: int = 0


class CallPairing:
    """Pairs the events of one log into calls."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._functions: dict[tuple[str, str], _Function] = {}
        self._operations: dict[tuple[str, str], list[_Call]] = {}
        self._sizes: dict[str, list[int]] = {}
        self._lines_count = 0

    def add(self, event: Event) -> None:
        """Take an event; it may complete a call."""
        stage, worker, name, trace_id, at_ns, duration_ns, shares, size_bytes = event
        if stage == "FUNCTION_START":
            self._function(worker, name).begin(at_ns, trace_id)
        elif stage in _PART_ENDS:
            self._function(worker, name).end_part(_PART_ENDS[stage], (at_ns, duration_ns, trace_id))
        elif stage == "FUNCTION_END":
            self._function(worker, name).end(at_ns, duration_ns, trace_id, shares)
        elif stage == "TQ_CLIENT_PUT_START":
            sizes = self._sizes.setdefault(worker, [])
            sizes.append(size_bytes)
            del sizes[:-_MOST_SIZES]
        else:
            is_put = stage == "TQ_CLIENT_PUT_END"
            if is_put and self._sizes.get(worker):
                size_bytes = self._sizes[worker].pop(0) or size_bytes
            key = (worker, name[:_LONGEST_NAME])
            if key not in self._operations and len(self._operations) >= _MOST_OPERATIONS:
                key = ("", "(other operations)")
            begin_ns, sent_bytes = UNKNOWN_NS if at_ns is None else at_ns - duration_ns, size_bytes * is_put
            call = _Call(begin_ns, duration_ns, _NO_PARTS, sent_bytes, size_bytes - sent_bytes)
            self._operations.setdefault(key, []).append(call)

    def _function(self, worker: str, name: str) -> _Function:
        key = (worker, name[:_LONGEST_NAME])
        if key not in self._functions:
            if len(self._functions) >= _MOST_FUNCTIONS:
                key = ("", "(other functions)")
            self._functions.setdefault(key, _Function(self._notes))
        return self._functions[key]

    @property
    def done_count(self) -> int:
        """Complete calls that were not yet taken."""
        return sum(map(len, (*self._operations.values(), *(function.done for function in self._functions.values()))))

    def bound(self, lines_count: int) -> None:
        """Keep what waits for ends within bounds; to be called with the number of lines that were read."""
        self._lines_count += lines_count
        if self._lines_count >= _MOST_OPEN_IN_ALL:
            self._lines_count = 0
            if sum(function.open_count for function in self._functions.values()) > _MOST_OPEN_IN_ALL:
                for function in self._functions.values():
                    function.settle_half()

    def settle_all(self) -> None:
        """Settle all calls that have begun: nothing more will come."""
        for function in self._functions.values():
            function.settle(_MOST_OPEN)

    def take(self) -> Iterator[tuple[str, str, bool, list[_Call]]]:
        """Yield worker, name, whether it is a function, and the complete calls, each once."""
        operations, self._operations = self._operations, {}
        for (worker, name), calls in operations.items():
            yield worker, name, False, calls
        for (worker, name), function in self._functions.items():
            if function.done:
                calls, function.done = function.done, []
                yield worker, name, True, calls


_Part: TypeAlias = tuple[int | None, int, str]
"""When it ended, how long it took, and of which trace id."""


class _Function:
    """One function in one worker. Its parts are numbered as the stages of PIPELINE."""

    def __init__(self, notes: Notes) -> None:
        self.done: list[_Call] = []
        self._notes = notes
        self._starts: list[tuple[int | None, str]] = []
        self._parts: tuple[list[_Part], list[_Part], list[_Part]] = ([], [], [])
        self._in_order = [True, True, True]

    def begin(self, at_ns: int | None, trace_id: str) -> None:
        self._starts.append((at_ns, trace_id))
        if len(self._starts) > _MOST_OPEN:
            self.settle(_MOST_OPEN // 2)

    def end_part(self, stage: int, part: _Part) -> None:
        parts, at_ns = self._parts[stage], part[0]
        if not parts:
            self._in_order[stage] = at_ns is not None
        elif at_ns is None or at_ns < (parts[-1][0] or 0):
            self._in_order[stage] = False
        parts.append(part)
        if len(parts) > 2 * _MOST_OPEN:
            del parts[:_MOST_OPEN]

    def end(self, at_ns: int | None, total_ns: int, trace_id: str, shares: tuple[float, float, float]) -> None:
        """Complete a call: find its start and its parts."""
        begin_ns = None if at_ns is None else at_ns - total_ns
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
                durations[stage] = part[1]
                before_ns = None if part[0] is None else part[0] - part[1]
        if total_ns > 0 and abs(sum(shares) - sum(durations) / total_ns) > _SHARES_SLACK:  # False if one is NaN
            self._notes.counts["ratios that do not agree with durations"] += 1
        begin_ns = UNKNOWN_NS if begin_ns is None else begin_ns
        self.done.append(_Call(begin_ns, total_ns, (durations[0], durations[1], durations[2])))

    def _take_start(self, begin_ns: int | None, trace_id: str) -> None:
        starts = self._starts
        if begin_ns is not None:
            for index in range(len(starts) - 1, -1, -1):
                at_ns, its_id = starts[index]
                if at_ns is not None and -_SLACK_NS <= at_ns - begin_ns <= _SLACK_NS and its_id == trace_id:
                    del starts[index]
                    return
        if (None, trace_id) in starts:
            self._notes.counts["calls paired by their order alone"] += trace_id == "N/A"
            starts.remove((None, trace_id))
        else:
            self._notes.counts["ends without a start"] += 1

    def _take_part(
        self, stage: int, begin_ns: int | None, before_ns: int | None, trace_id: str, expected_ns: float,
        slack_ns: float,
    ) -> _Part | None:  # fmt: skip
        """Return the part that ends last before the next one begins, and is as long as its ratio says; or None.

        It lies between `begin_ns` and `before_ns`, None if the log has no times, and takes `expected_ns` give or take
        `slack_ns`, NaN if the log has no ratio.
        """
        parts = self._parts[stage]
        if begin_ns is None or before_ns is None:
            return next((parts.pop(index) for index, part in enumerate(parts) if part[2] == trace_id), None)
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
                best, best_ns = index, at_ns
                if in_order:
                    break
        return parts.pop(best) if best >= 0 else None

    def settle(self, count: int) -> None:
        """Take the oldest starts to have no end: with a computed part they put nothing, else they are incomplete."""
        settled, self._starts = self._starts[:count], self._starts[count:]
        for at_ns, trace_id in settled:
            compute = None if at_ns is None else self._take_part_after(1, at_ns, trace_id)
            if at_ns is None or compute is None or compute[0] is None:
                self._notes.counts["functions without an end"] += 1
                continue
            get = self._take_part_after(0, at_ns, trace_id)
            self._notes.counts["functions that put nothing"] += 1
            self.done.append(_Call(at_ns, compute[0] - at_ns, (0 if get is None else get[1], compute[1], 0)))

    def _take_part_after(self, stage: int, begin_ns: int, trace_id: str) -> _Part | None:
        parts = self._parts[stage]
        for index, (at_ns, duration_ns, its_id) in enumerate(parts):
            if its_id == trace_id and at_ns is not None and at_ns - duration_ns >= begin_ns - _SLACK_NS:
                return parts.pop(index)
        return None

    @property
    def open_count(self) -> int:
        return len(self._starts) + sum(map(len, self._parts))

    def settle_half(self) -> None:
        """Take the older half of what waits for an end to have none."""
        self.settle(len(self._starts) // 2)
        for parts in self._parts:
            del parts[: len(parts) // 2]


class TqLog:
    """The state of reading one log: its workers, and events that are not yet calls."""

    def __init__(self, source: str, notes: Notes) -> None:
        self._source = source
        self._notes = notes
        self._pairing = CallPairing(notes)
        self._workers: dict[str, str] = {}
        self._segments: dict[tuple[str, str], Segment] = {}
        self._calls_count = 0

    def feed(self, lines: Iterable[str], lines_count: int) -> Iterator[Batch]:
        """Yield the calls that lines with a marker complete; `lines_count` includes the foreign lines among them."""
        for line in lines:
            head, _, messages = line.partition(MARKER)
            worker = self._worker(head) if "pid=" in head else ""
            for message in messages.split(MARKER):
                self._take(worker, _ANSI.sub("", message) if "\x1b" in message else message)
        self._pairing.bound(lines_count)
        if self._pairing.done_count >= _BATCH_CALLS:
            yield from self._flush()

    def finish(self) -> Iterator[Batch]:
        """Yield what is left, functions without an end included."""
        self._pairing.settle_all()
        yield from self._flush()

    def _worker(self, head: str) -> str:
        """Return the worker that a line's beginning names, as Ray does: `(name pid=1, ip=2)`; empty if none."""
        if (match := _WORKER.search(head)) is None:
            return ""
        if match[0] not in self._workers:
            if len(self._workers) >= _MOST_WORKERS:
                return "(other workers)"
            self._workers[match[0]] = f"{match[1]} pid={match[2]}" + (f" ip={match[3]}" if match[3] else "")
        return self._workers[match[0]]

    def _take(self, worker: str, message: str) -> None:
        """Take one message: its kind, `] `, and its fields."""
        kind, _, body = message.partition("] ")
        if "[repeated" in body and (match := _REPEATED.search(body)):
            self._notes.counts["repeated lines not in the log"] += max(0, min(int(match[1][:9]), 10**9) - 1)
            body = body[: match.start()]
        fields = {(part := field.partition("="))[0]: part[2] for field in body.rstrip().split(" | ")}
        try:
            event = parse_event(worker, kind, fields)
        except (KeyError, ValueError, OverflowError):
            self._notes.damaged(self._source, f"{MARKER}{message.strip()}")
            return
        self._notes.counts["TQ lines"] += 1
        if event is not None:
            self._pairing.add(event)

    def _flush(self) -> Iterator[Batch]:
        for worker, method, is_function, calls in self._pairing.take():
            key = ("functions" if is_function else "transfers", worker)
            segment = self._segments.setdefault(key, Segment(self._source, key[0], worker=worker))
            begin_ns, total_ns, parts_ns, sent_bytes, recv_bytes = (
                np.array(column, np.int64) for column in zip(*calls, strict=True)
            )
            stages, stage_ns = (PIPELINE.stages, parts_ns) if is_function else (("transfer",), total_ns[:, None])
            zeros = np.zeros(len(calls), np.int64)
            ids = np.arange(len(calls), dtype=np.int64) + self._calls_count + 1
            self._calls_count += len(calls)
            yield Batch(segment, stages, [method], ids, zeros, begin_ns, total_ns, stage_ns, sent_bytes, recv_bytes,
                        zeros.astype(np.bool_))  # fmt: skip
