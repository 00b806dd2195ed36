"""Reads [TQ-TRACE], [TQ-DETAIL] and [TQ-LOG] messages wherever they stand in a noisy log, in two steps.

`parse_event` reads one message into an `Event`; `CallPairing` pairs events into calls. A trace id groups calls and does
not tell them apart: `N/A` never does, and many calls may share one. What tells them apart is the clock: an end's
timestamp less its duration is its start's timestamp.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN, Batch, Notes, Segment
from ipcbench.trace.schema import PIPELINE

MARKER: Final = "[TQ-"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")
_WORKER = re.compile(r"\((\S{1,100} pid=\d{1,20}(?:, ip=[\w.:]{1,100})?)\)")
_DURATION = re.compile(r"(-?[\d.]+(?:[eE][-+]?\d+)?)\s*(s|ms|us|µs)?")
_UNIT_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, None: 1e9}

_TRACE_FIELDS = ("trace_id", "func", "stage", "duration", "total_duration", "get_ratio", "compute_ratio", "put_ratio",
                 "timestamp")  # fmt: skip
_USUAL_TRACE = re.compile(
    r"TRACE\] trace_id=<> \| func=<> \| (?:pid=\d+ \| )?stage=<>(?: \| duration=<>| \| total_duration=<> \| "
    r"get_ratio=<> \| compute_ratio=<> \| put_ratio=<>| \| batch_size=\d+|) \| timestamp=([0-9.]+)"
    .replace("<>", r"([^|[\x1b]*)")
)  # fmt: skip
"""These fields in their usual order, each once; any other message is taken apart at its bars, which takes longer."""

_STAGE_STARTS = {"GET_START": 0, "COMPUTE_START": 1, "PUT_START": 2}
_STAGE_ENDS = {"GET_END": 0, "COMPUTE_END": 1, "PUT_END": 2}
_WHOLE, _COMPUTED = 3, 4
_STARTS = {*_STAGE_STARTS, "FUNCTION_START"}
_IGNORED = {"TQ_CLIENT_GET_START"}
_NO_BYTES = (UNKNOWN, UNKNOWN)
_NO_SHARES = (math.nan, math.nan, math.nan)
_SLACK_NS = 2_000  # times are printed to a microsecond, each rounded by itself
_DISORDER_NS, _MOST_LATE = 1_000_000, 256
_SHIFTS_US = (0, -1, 1, -2, 2)
_SHARE_SLACK = 0.00006  # ratios are printed to 0.01 %
_SHARES_SLACK, _LARGEST_SHARE, _LARGEST = 0.005, 1.001, 9e18

_BATCH_CALLS, _MOST_OPEN, _MOST_OPEN_IN_ALL, _MOST_LOOKED_AT = 8192, 4096, 50_000, 512
_MOST_WORKERS, _MOST_FUNCTIONS, _MOST_OPERATIONS, _MOST_SIZES = 10_000, 10_000, 1000, 1024
_LONGEST_NAME, _LONGEST_TRACE_ID = 300, 100
"""Bounds on memory. Beyond `_MOST_OPEN` starts of one function, the older half is taken to have no ends."""

Event: TypeAlias = tuple[str, str, str, str, int | None, int, tuple[float, float, float], int]
"""What one message says has begun or ended: its stage by the log's own name (END for an operation of [TQ-LOG], SIZE for
what the next put sends); the process, empty if the log does not name it; the function or operation; the trace id; when,
None if the log does not say; how long it took; the shares of get, compute and put, NaN if the log does not say; and the
bytes of a transfer, UNKNOWN if the log does not say, at the end of a put what its speed tells. Times are in ns."""

_Key: TypeAlias = tuple[str, int, int]
"""What has begun: its trace id, its stage, _WHOLE for the whole call, and when, in µs."""

_Call: TypeAlias = tuple[int, int, tuple[int, int, int], int, int, str]
"""When it began, how long it took, its parts get, compute and put, all in ns; bytes sent and received; its trace id."""


def parse_event(worker: str, kind: str, fields: dict[str, str]) -> Event | None:
    """Return what a message of a kind (TRACE, DETAIL, LOG) says; None if nothing that matters.

    Raises:
        KeyError, ValueError: it is damaged.
    """
    if kind == "TRACE":
        return parse_trace(worker, [fields.get(key) for key in _TRACE_FIELDS])
    stage = fields["stage"].strip()
    if kind == "LOG" and stage == "START":
        return None
    if kind == "LOG" and stage == "END":
        name = fields["op"].strip()[:_LONGEST_NAME]
        return stage, worker, name, "", None, _duration_ns(fields["duration"]), _NO_SHARES, UNKNOWN
    size = fields.get("throughput_mbps" if stage == "TQ_CLIENT_PUT_END" else "data_size_mb")
    if kind == "DETAIL" and stage in {"TQ_CLIENT_GET_START", "TQ_CLIENT_PUT_START"}:
        return None if size is None else ("SIZE", worker, "", "", None, 0, _NO_SHARES, round(_bytes(size)))
    size_bytes, duration_ns = _bytes("0" if size is None else size), _duration_ns(fields["duration"])
    if stage == "TQ_CLIENT_PUT_END":
        size_bytes = int(size_bytes * duration_ns / 1e9)
    size_bytes = size_bytes or UNKNOWN  # it prints 0.00 for what it does not know
    if kind != "DETAIL" or stage not in {"TQ_CLIENT_GET_END", "TQ_CLIENT_PUT_END"} or not abs(size_bytes) < _LARGEST:
        raise ValueError(stage)
    at_ns = _ns(fields["timestamp"]) if "timestamp" in fields else None
    return stage, worker, stage.removesuffix("_END"), "", at_ns, duration_ns, _NO_SHARES, round(size_bytes)


def parse_trace(worker: str, values: Sequence[str | None]) -> Event | None:
    """Return what the values of `_TRACE_FIELDS` say, as `parse_event` does; None stands for a missing one."""
    trace_id, func, stage, duration, total_duration, *ratios, timestamp = values
    at_ns, stage = None if timestamp is None else _ns(timestamp), (stage or "").strip()
    if stage in _IGNORED:
        return None
    if func is None or not (stage in _STARTS or stage in _STAGE_ENDS or stage == "FUNCTION_END"):
        raise ValueError(stage)
    duration_ns, shares = 0, _NO_SHARES
    if stage == "FUNCTION_END":
        duration_ns = _duration_ns(total_duration)
        get, compute, put = [math.nan if text is None else float(text.strip().rstrip("%")) / 100.0 for text in ratios]
        shares = (get, compute, put)
    elif stage not in _STARTS:
        duration_ns = _duration_ns(duration)
    trace_id = "N/A" if trace_id is None else trace_id[:_LONGEST_TRACE_ID]
    return stage, worker, func[:_LONGEST_NAME], trace_id, at_ns, duration_ns, shares, 0


def _ns(text: str, unit: float = 1e9) -> int:
    if abs(value := float(text) * unit) < _LARGEST:
        return round(value)
    raise ValueError(text)


def _duration_ns(text: str | None) -> int:
    text = (text or "").rstrip()
    if text[-1:] == "s" and text[-2:-1].isdecimal():
        return _ns(text[:-1])
    if match := _DURATION.fullmatch(text):
        return _ns(match[1], _UNIT_NS[match[2]])
    raise ValueError(text)


def _bytes(mib: str) -> float:
    if 0 <= (value := float(mib) * 2**20) < _LARGEST:
        return value
    raise ValueError(mib)


@dataclass(slots=True)
class CallPairing:
    """Pairs the events of one log into calls."""

    notes: Notes
    _functions: dict[tuple[str, str], _Function] = field(default_factory=dict)
    _transfers: dict[tuple[str, str], list[_Call]] = field(default_factory=dict)
    _sizes: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_MOST_SIZES)))
    _late: dict[str, list[tuple[int, int, Event]]] = field(default_factory=dict)
    _latest_ns: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def add(self, event: Event) -> None:
        """Take an event, which may complete a call. A worker's events up to 1 ms out of order are put right."""
        worker, at_ns = event[1], event[4]
        late = self._late.setdefault(worker, [])
        if at_ns is None or at_ns < self._latest_ns.get(worker, 0) - _DISORDER_NS:  # no clock, or another one
            self._let_go(late, None)
            self._latest_ns[worker] = at_ns or 0
        if at_ns is None:
            self._pair(event)
            return
        self._count += 1
        heapq.heappush(late, (at_ns, self._count, event))
        latest_ns = self._latest_ns[worker] = max(at_ns, self._latest_ns.get(worker, 0))
        if late[0][0] < latest_ns - _DISORDER_NS or len(late) > _MOST_LATE:
            self._let_go(late, latest_ns - _DISORDER_NS)

    def _let_go(self, late: list[tuple[int, int, Event]], before_ns: int | None) -> None:
        while late and (before_ns is None or late[0][0] < before_ns or len(late) > _MOST_LATE):
            self._pair(heapq.heappop(late)[2])

    def _pair(self, event: Event) -> None:
        stage, worker, name, trace_id, at_ns, duration_ns, shares, size_bytes = event
        if (number := _STAGE_STARTS.get(stage)) is not None:
            self._function(worker, name).start(number, at_ns, trace_id)
        elif (number := _STAGE_ENDS.get(stage)) is not None:
            self._function(worker, name).end(number, at_ns, duration_ns, trace_id)
        elif stage == "FUNCTION_START":
            self._function(worker, name).begin(at_ns, trace_id)
        elif stage == "FUNCTION_END":
            self._function(worker, name).complete(at_ns, duration_ns, trace_id, shares)
        elif stage == "SIZE":
            self._sizes[worker].append(size_bytes)
        else:
            sent_bytes = 0 if size_bytes >= 0 else UNKNOWN
            if stage == "TQ_CLIENT_PUT_END":
                sizes = self._sizes[worker]
                sent_bytes = (sizes.popleft() if sizes else 0) or size_bytes
                size_bytes = 0 if sent_bytes >= 0 else UNKNOWN
            key = (worker, name)
            if key not in self._transfers and len(self._transfers) >= _MOST_OPERATIONS:
                key = ("", "(other operations)")
            begin_ns = UNKNOWN if at_ns is None else at_ns - duration_ns
            self._transfers.setdefault(key, []).append((begin_ns, duration_ns, (0, 0, 0), sent_bytes, size_bytes, ""))

    def _function(self, worker: str, name: str) -> _Function:
        if (function := self._functions.get((worker, name))) is None:
            key = (worker, name) if len(self._functions) < _MOST_FUNCTIONS else ("", "(other functions)")
            function = self._functions.setdefault(key, _Function(self.notes))
        return function

    def take(self, is_end: bool) -> Iterator[tuple[str, str, bool, list[_Call]]]:
        """Yield worker, name, whether it is a function, and its complete calls, when they are many or all is read."""
        functions = self._functions.values()
        if is_end:
            for late in self._late.values():
                self._let_go(late, None)
            for function in functions:
                function.settle(len(function.under_way))
        elif sum(len(function.under_way) for function in functions) > _MOST_OPEN_IN_ALL:
            for function in functions:
                function.settle(len(function.under_way) // 2)
        done_count = sum(map(len, self._transfers.values())) + sum(len(function.done) for function in functions)
        if is_end or done_count >= _BATCH_CALLS:
            transfers, self._transfers = self._transfers, {}
            yield from ((worker, name, False, calls) for (worker, name), calls in transfers.items())
            for (worker, name), function in self._functions.items():
                if function.done:
                    calls, function.done = function.done, []
                    yield worker, name, True, calls


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A call that has not ended.

    Attributes:
        begin_ns: None if its start has no time, or is not in the log; then `is_begun` is False.
        first_ns, last_ns: when its first and its last event were; None without times.
        place: 2 · the number of its next stage, or 1 more than 2 · that of the stage it is in.
        durations_ns: of its stages, None for those that are not in the log.
        keys: under which it stands in the `starts` of its function.
    """

    trace_id: str
    is_begun: bool
    begin_ns: int | None
    first_ns: int | None
    last_ns: int | None
    place: int = 0
    durations_ns: list[int | None] = field(default_factory=lambda: [None, None, None])
    keys: list[_Key] = field(default_factory=list)


@dataclass(slots=True)
class _Function:
    """One function in one worker.

    A call goes through its stages without a pause between them, whatever other calls do: what begins belongs to the
    call of its trace id whose last event was the latest, what ends to the one that began as long ago as it took. So
    a call that broke off keeps nothing of those after it.

    Attributes:
        under_way: the calls that have not ended, in the order of their starts.
        active: by trace id, in the order of their last events.
        starts: the calls by what has begun and not ended.
    """

    notes: Notes
    done: list[_Call] = field(default_factory=list)
    under_way: dict[_UnderWay, None] = field(default_factory=dict)
    active: dict[str, dict[_UnderWay, None]] = field(default_factory=dict)
    starts: dict[_Key, list[_UnderWay]] = field(default_factory=dict)

    def begin(self, at_ns: int | None, trace_id: str) -> None:
        """Take the start of a call."""
        self._add(_UnderWay(trace_id, True, at_ns, at_ns, at_ns))

    def start(self, stage: int, at_ns: int | None, trace_id: str) -> None:
        """Take the start of a stage."""
        call = self._latest(stage, at_ns, trace_id)
        if call is None:
            call = _UnderWay(trace_id, False, None, at_ns, None)
            self._add(call)
        call.place = 2 * stage + 1
        self._await(call, stage, at_ns)
        self._touch(call, at_ns)

    def end(self, stage: int, at_ns: int | None, duration_ns: int, trace_id: str) -> None:
        """Take the end of a stage; if its start is not in the log, it is taken to be where the end says."""
        begin_ns = None if at_ns is None else at_ns - duration_ns
        call = self._started(stage, begin_ns, trace_id)
        if call is None:
            self.start(stage, begin_ns, trace_id)
            call = self._started(stage, begin_ns, trace_id)
        if call is not None:
            call.durations_ns[stage], call.place = duration_ns, max(call.place, 2 * stage + 2)
            self._touch(call, at_ns)

    def complete(self, at_ns: int | None, total_ns: int, trace_id: str, shares: tuple[float, float, float]) -> None:
        """Take the end of a call."""
        begin_ns = None if at_ns is None else at_ns - total_ns
        call = self._started(_WHOLE, begin_ns, trace_id) or self._without_start(begin_ns, trace_id)
        if call is None or not call.is_begun:
            self.notes.counts["ends without a start"] += 1
        elif call.begin_ns is None and trace_id == "N/A":
            self.notes.counts["calls paired by their order alone"] += 1
        alone = len(self.under_way) == 1
        found = [None, None, None] if call is None else call.durations_ns
        durations: list[int] = []
        for duration_ns, share in zip(found, shares, strict=True):
            expected_ns, slack_ns = share * total_ns, _SLACK_NS + _SHARE_SLACK * total_ns
            is_doubtful = duration_ns is None or (not alone and abs(duration_ns - expected_ns) > slack_ns)
            durations.append(round(expected_ns) if is_doubtful and 0.0 <= share <= _LARGEST_SHARE else duration_ns or 0)
        if call is not None:
            self._remove(call)
        if total_ns > 0 and abs(sum(shares) - sum(durations) / total_ns) > _SHARES_SLACK:  # False if one is NaN
            self.notes.counts["ratios that do not agree with durations"] += 1
        get, compute, put = durations
        at_ns = UNKNOWN if begin_ns is None else begin_ns
        self.done.append((at_ns, total_ns, (get, compute, put), *_NO_BYTES, _given(trace_id)))

    def settle(self, count: int) -> None:
        """Take the oldest calls to have no end: one that computed and went no further put nothing, else it is
        incomplete.
        """
        for call in list(self.under_way)[:count]:
            self._remove(call)
            if call.place == _COMPUTED and call.begin_ns is not None and call.last_ns is not None:
                self.notes.counts["functions that put nothing"] += 1
                get, compute, _ = call.durations_ns
                total_ns = call.last_ns - call.begin_ns
                self.done.append(
                    (call.begin_ns, total_ns, (get or 0, compute or 0, 0), *_NO_BYTES, _given(call.trace_id))
                )
            elif call.is_begun:
                self.notes.counts["functions without an end"] += 1
            else:
                self.notes.counts["stages without a function"] += 1

    def _latest(self, stage: int, at_ns: int | None, trace_id: str) -> _UnderWay | None:
        """Return the call that was the last to do something before it could begin that stage; one that is within
        another stage, whose end is then not in the log, only if there is no other.
        """
        within = None
        for call in islice(reversed(self.active.get(trace_id, {})), _MOST_LOOKED_AT):
            if at_ns is not None and call.last_ns is not None and call.last_ns > at_ns + _SLACK_NS:
                continue
            if call.place <= 2 * stage:
                if not call.place % 2:
                    return call
                within = within or call
        return within

    def _started(self, stage: int, begin_ns: int | None, trace_id: str) -> _UnderWay | None:
        """Return the call that began that stage at a time, or if there are no times, the latest that began it."""
        if begin_ns is None:
            if stage == _WHOLE:
                return None
            latest = islice(reversed(self.active.get(trace_id, {})), _MOST_LOOKED_AT)
            return next((call for call in latest if call.place == 2 * stage + 1), None)
        at_us = begin_ns // 1000
        for shift_us in _SHIFTS_US:
            key = (trace_id, stage, at_us + shift_us)
            if key in self.starts:
                call = self.starts[key][-1]
                self._forget(call, key)
                return call
        return None

    def _without_start(self, begin_ns: int | None, trace_id: str) -> _UnderWay | None:
        """Return the latest call that may have begun at a time, of those whose own start says no time."""
        for call in islice(reversed(self.active.get(trace_id, {})), _MOST_LOOKED_AT):
            first_ns = call.first_ns
            if begin_ns is None or (call.begin_ns is None and (first_ns is None or first_ns >= begin_ns - _SLACK_NS)):
                return call
        return None

    def _add(self, call: _UnderWay) -> None:
        if len(self.under_way) >= _MOST_OPEN:
            self.settle(_MOST_OPEN // 2)
        self.under_way[call] = None
        self.active.setdefault(call.trace_id, {})[call] = None
        self._await(call, _WHOLE, call.begin_ns)

    def _await(self, call: _UnderWay, stage: int, begin_ns: int | None) -> None:
        """Keep what has begun until its end, by its time."""
        if begin_ns is not None:
            key = (call.trace_id, stage, begin_ns // 1000)
            self.starts.setdefault(key, []).append(call)
            call.keys.append(key)

    def _forget(self, call: _UnderWay, key: _Key) -> None:
        call.keys.remove(key)
        calls = self.starts[key]
        calls.remove(call)
        if not calls:
            del self.starts[key]

    def _touch(self, call: _UnderWay, at_ns: int | None) -> None:
        """Note that a call has done something."""
        call.last_ns = at_ns
        active = self.active[call.trace_id]
        del active[call]
        active[call] = None

    def _remove(self, call: _UnderWay) -> None:
        for key in tuple(call.keys):
            self._forget(call, key)
        del self.under_way[call]
        active = self.active[call.trace_id]
        del active[call]
        if not active:
            del self.active[call.trace_id]


def _given(trace_id: str) -> str:
    """Return a trace id; empty for what stands for none."""
    return "" if trace_id in {"N/A", "None"} else trace_id


class TqLog:
    """The state of reading one log: its workers, and events that are not yet calls."""

    def __init__(self, source: str, notes: Notes) -> None:
        self.source, self.notes = source, notes
        self._pairing = CallPairing(notes)
        self._workers: set[str] = set()
        self._segments: dict[tuple[str, str], Segment] = {}
        self._calls_count = 0

    def feed(self, lines: Iterable[str], is_end: bool = False) -> Iterator[Batch]:
        """Yield the calls that lines with a marker complete; at the end of the log also functions without an end."""
        read_count, add = 0, self._pairing.add
        for line in lines:
            head, _, messages = line.partition(MARKER)
            worker = self._worker(head) if "pid=" in head else ""
            for message in messages.split(MARKER):
                try:
                    usual = _USUAL_TRACE.fullmatch(message)
                    event = parse_trace(worker, usual.groups()) if usual else self._parse_unusual(worker, message)
                except (KeyError, ValueError):
                    self.notes.damaged(self.source, f"{MARKER}{_ANSI.sub('', message).strip()}")
                    continue
                read_count += 1
                if event is not None:
                    add(event)
        self.notes.counts["TQ lines"] += read_count
        yield from self._batches(is_end)

    def _worker(self, head: str) -> str:
        """Return the worker that a line's beginning names, as Ray does: `(name pid=1, ip=2)`; empty if none."""
        name = match[1].replace(", ip=", " ip=") if (match := _WORKER.search(head)) else ""
        if len(self._workers) < _MOST_WORKERS:
            self._workers.add(name)
        return name if name in self._workers else "(other workers)"

    def _parse_unusual(self, worker: str, message: str) -> Event | None:
        """Parse one message: its kind, `] `, its fields, and how many such lines Ray left out, which are counted."""
        kind, _, body = (_ANSI.sub("", message) if "\x1b" in message else message).partition("] ")
        if "[repeated" in body and (match := _REPEATED.search(body)):
            self.notes.counts["repeated lines not in the log"] += max(0, min(int(match[1][:9]), 10**9) - 1)
            body = body[: match.start()]
        fields = {(part := text.partition("="))[0]: part[2] for text in body.rstrip().split(" | ")}
        return parse_event(worker, kind, fields)

    def _batches(self, is_end: bool) -> Iterator[Batch]:
        for worker, method, is_function, calls in self._pairing.take(is_end):
            key = ("functions" if is_function else "transfers", worker)
            segment = self._segments.setdefault(key, Segment(self.source, key[0], worker=worker))
            *numbers, trace_ids = zip(*calls, strict=True)
            begin_ns, total_ns, parts_ns, sent_bytes, recv_bytes = (np.array(column, np.int64) for column in numbers)
            stages, stage_ns = (PIPELINE.stages, parts_ns) if is_function else (("transfer",), total_ns[:, None])
            zeros = np.zeros(len(calls), np.int64)
            ids = np.arange(len(calls), dtype=np.int64) + self._calls_count + 1
            self._calls_count += len(calls)
            yield Batch(segment, stages, [method], ids, zeros, begin_ns, total_ns, stage_ns, sent_bytes, recv_bytes,
                        zeros.astype(np.bool_), trace_ids=trace_ids if is_function else ())  # fmt: skip
