"""Reads [TQ-TRACE], [TQ-DETAIL] and [TQ-LOG] messages wherever they stand in a noisy log, in two steps.

`parse_event` reads one message into an `Event`; `CallPairing` pairs events into calls. A trace id groups calls and does
not tell them apart: `N/A` never does, and many calls may share one. What tells them apart is the clock: an end's
timestamp less its duration is its start's timestamp.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Notes, Segment
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

_START = 3
_WAITING = {"GET_END": 0, "COMPUTE_END": 1, "PUT_END": 2, "FUNCTION_START": _START}
_IGNORED = {"GET_START", "COMPUTE_START", "PUT_START", "TQ_CLIENT_GET_START"}
_NO_SHARES = (math.nan, math.nan, math.nan)
_SLACK_NS = 2_000  # times are printed to a microsecond, each rounded by itself
_SHARE_SLACK = 0.00006  # ratios are printed to 0.01 %
_SHARES_SLACK, _LARGEST_SHARE, _LARGEST = 0.005, 1.001, 9e18

_BATCH_CALLS, _MOST_OPEN, _MOST_OPEN_IN_ALL = 8192, 4096, 50_000
_MOST_WORKERS, _MOST_FUNCTIONS, _MOST_OPERATIONS, _MOST_SIZES = 10_000, 10_000, 1000, 1024
_LONGEST_NAME, _LONGEST_TRACE_ID = 300, 100
"""Bounds on memory. Beyond `_MOST_OPEN` starts of one function, the older half is taken to have no ends."""

Event: TypeAlias = tuple[str, str, str, str, int | None, int, tuple[float, float, float], int]
"""What one message says has begun or ended: its stage by the log's own name (END for an operation of [TQ-LOG], SIZE for
what the next put sends); the process, empty if the log does not name it; the function or operation; the trace id; when,
None if the log does not say; how long it took; the shares of get, compute and put, NaN if the log does not say; and the
bytes of a transfer, at the end of a put what its speed tells. Times are in ns."""

_Part: TypeAlias = tuple[int | None, int, str]
"""When it ended, how long it took, and of which trace id."""

_Call: TypeAlias = tuple[int, int, tuple[int, int, int], int, int]
"""When it began, how long it took, its parts get, compute and put, all in ns; bytes sent and received."""


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
        return stage, worker, name, "", None, _duration_ns(fields["duration"]), _NO_SHARES, 0
    size = fields.get("throughput_mbps" if stage == "TQ_CLIENT_PUT_END" else "data_size_mb")
    if kind == "DETAIL" and stage in {"TQ_CLIENT_GET_START", "TQ_CLIENT_PUT_START"}:
        return None if size is None else ("SIZE", worker, "", "", None, 0, _NO_SHARES, round(_bytes(size)))
    size_bytes, duration_ns = _bytes("0" if size is None else size), _duration_ns(fields["duration"])
    if stage == "TQ_CLIENT_PUT_END":
        size_bytes = int(size_bytes * duration_ns / 1e9)
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
    if func is None or (stage not in _WAITING and stage != "FUNCTION_END"):
        raise ValueError(stage)
    duration_ns, shares = 0, _NO_SHARES
    if stage == "FUNCTION_END":
        duration_ns = _duration_ns(total_duration)
        get, compute, put = [math.nan if text is None else float(text.strip().rstrip("%")) / 100.0 for text in ratios]
        shares = (get, compute, put)
    elif stage != "FUNCTION_START":
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

    def add(self, event: Event) -> None:
        """Take an event; it may complete a call."""
        stage, worker, name, trace_id, at_ns, duration_ns, shares, size_bytes = event
        if stage in _WAITING:
            self._function(worker, name).wait(_WAITING[stage], (at_ns, duration_ns, trace_id))
        elif stage == "FUNCTION_END":
            self._function(worker, name).end(at_ns, duration_ns, trace_id, shares)
        elif stage == "SIZE":
            self._sizes[worker].append(size_bytes)
        else:
            sent_bytes = 0
            if stage == "TQ_CLIENT_PUT_END":
                sizes = self._sizes[worker]
                sent_bytes, size_bytes = (sizes.popleft() if sizes else 0) or size_bytes, 0
            key = (worker, name)
            if key not in self._transfers and len(self._transfers) >= _MOST_OPERATIONS:
                key = ("", "(other operations)")
            begin_ns = UNKNOWN_NS if at_ns is None else at_ns - duration_ns
            self._transfers.setdefault(key, []).append((begin_ns, duration_ns, (0, 0, 0), sent_bytes, size_bytes))

    def _function(self, worker: str, name: str) -> _Function:
        if (function := self._functions.get((worker, name))) is None:
            key = (worker, name) if len(self._functions) < _MOST_FUNCTIONS else ("", "(other functions)")
            function = self._functions.setdefault(key, _Function(self.notes))
        return function

    def take(self, is_end: bool) -> Iterator[tuple[str, str, bool, list[_Call]]]:
        """Yield worker, name, whether it is a function, and its complete calls, when they are many or all is read."""
        functions = self._functions.values()
        if is_end:
            for function in functions:
                function.settle(_MOST_OPEN)
        elif sum(len(parts) for function in functions for parts in function.waiting) > _MOST_OPEN_IN_ALL:
            for function in functions:
                function.settle_half()
        done_count = sum(map(len, self._transfers.values())) + sum(len(function.done) for function in functions)
        if is_end or done_count >= _BATCH_CALLS:
            transfers, self._transfers = self._transfers, {}
            yield from ((worker, name, False, calls) for (worker, name), calls in transfers.items())
            for (worker, name), function in self._functions.items():
                if function.done:
                    calls, function.done = function.done, []
                    yield worker, name, True, calls


@dataclass(slots=True)
class _Function:
    """One function in one worker. Its parts are numbered as the stages of PIPELINE; behind them are its starts."""

    notes: Notes
    done: list[_Call] = field(default_factory=list)
    waiting: tuple[list[_Part], ...] = field(default_factory=lambda: ([], [], [], []))
    in_order: list[bool] = field(default_factory=lambda: [True] * 4)

    def wait(self, what: int, part: _Part) -> None:
        """Keep a start or a part until the end."""
        parts, at_ns = self.waiting[what], part[0]
        if at_ns is None or not parts or at_ns < (parts[-1][0] or 0):
            self.in_order[what] = at_ns is not None and not parts
        parts.append(part)
        if what == _START and len(parts) > _MOST_OPEN:
            self.settle(_MOST_OPEN // 2)
        elif len(parts) > 2 * _MOST_OPEN:
            del parts[:_MOST_OPEN]

    def end(self, at_ns: int | None, total_ns: int, trace_id: str, shares: tuple[float, float, float]) -> None:
        """Complete a call: find its start and its parts."""
        begin_ns = None if at_ns is None else at_ns - total_ns
        self._take_start(begin_ns, trace_id)
        durations, before_ns = [0, 0, 0], at_ns
        for stage in (2, 1, 0):
            expected_ns, slack_ns = shares[stage] * total_ns, _SLACK_NS + _SHARE_SLACK * total_ns
            part = self._take_part(stage, trace_id, (begin_ns, before_ns), expected_ns, slack_ns)
            if part is None and not self.waiting[_START]:  # no other call is under way: it is its own, the ratio wrong
                part = self._take_part(stage, trace_id, (begin_ns, before_ns), expected_ns, math.inf)
            if part is not None:
                durations[stage] = part[1]
                before_ns = None if part[0] is None else part[0] - part[1]
            elif 0.0 <= shares[stage] <= _LARGEST_SHARE:
                durations[stage] = round(expected_ns)
        get, compute, put = durations
        if total_ns > 0 and abs(sum(shares) - sum(durations) / total_ns) > _SHARES_SLACK:  # False if one is NaN
            self.notes.counts["ratios that do not agree with durations"] += 1
        self.done.append((UNKNOWN_NS if begin_ns is None else begin_ns, total_ns, (get, compute, put), 0, 0))

    def _take_start(self, begin_ns: int | None, trace_id: str) -> None:
        starts = self.waiting[_START]
        if begin_ns is not None:
            for index in range(len(starts) - 1, -1, -1):
                at_ns, _, its_id = starts[index]
                if at_ns is not None and -_SLACK_NS <= at_ns - begin_ns <= _SLACK_NS and its_id == trace_id:
                    del starts[index]
                    return
        if (None, 0, trace_id) in starts:
            self.notes.counts["calls paired by their order alone"] += trace_id == "N/A"
            starts.remove((None, 0, trace_id))
        else:
            self.notes.counts["ends without a start"] += 1

    def _take_part(
        self, stage: int, trace_id: str, between: tuple[int | None, int | None], expected_ns: float, slack_ns: float
    ) -> _Part | None:
        """Return the part that ends last before the next one begins, and is as long as its ratio says; or None.

        It lies `between` two times, None if not logged, and takes `expected_ns` ± `slack_ns`, NaN if not logged.
        """
        parts, in_order, (begin_ns, before_ns) = self.waiting[stage], self.in_order[stage], between
        if begin_ns is None or before_ns is None:
            return self._take_first(stage, trace_id, -math.inf)
        earliest_ns, latest_ns = begin_ns - _SLACK_NS, before_ns + _SLACK_NS
        best, best_ns = -1, earliest_ns
        for index in range(len(parts) - 1, -1, -1):
            at_ns, duration_ns, its_id = parts[index]
            inside = at_ns is not None and best_ns < at_ns <= latest_ns and at_ns - duration_ns >= earliest_ns
            if inside and its_id == trace_id and not abs(duration_ns - expected_ns) > slack_ns:  # True for NaN
                best, best_ns = index, at_ns or 0
            if in_order and (best >= 0 or (at_ns or 0) < earliest_ns):
                break
        return parts.pop(best) if best >= 0 else None

    def _take_first(self, stage: int, trace_id: str, earliest_ns: float) -> _Part | None:
        for index, (at_ns, duration_ns, its_id) in enumerate(self.waiting[stage]):
            if its_id == trace_id and (-math.inf if at_ns is None else at_ns - duration_ns) >= earliest_ns:
                return self.waiting[stage].pop(index)
        return None

    def settle(self, count: int) -> None:
        """Take the oldest starts to have no end: with a computed part they put nothing, else they are incomplete."""
        starts = self.waiting[_START]
        settled, starts[:] = starts[:count], starts[count:]
        for at_ns, _, trace_id in settled:
            compute = None if at_ns is None else self._take_first(1, trace_id, at_ns - _SLACK_NS)
            if at_ns is None or compute is None or compute[0] is None:
                self.notes.counts["functions without an end"] += 1
                continue
            get = self._take_first(0, trace_id, at_ns - _SLACK_NS)
            self.notes.counts["functions that put nothing"] += 1
            self.done.append((at_ns, compute[0] - at_ns, (get[1] if get else 0, compute[1], 0), 0, 0))

    def settle_half(self) -> None:
        """Take the older half of what waits for an end to have none."""
        self.settle(len(self.waiting[_START]) // 2)
        for parts in self.waiting[:_START]:
            del parts[: len(parts) // 2]


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
            columns = (np.array(column, np.int64) for column in zip(*calls, strict=True))
            begin_ns, total_ns, parts_ns, sent_bytes, recv_bytes = columns
            stages, stage_ns = (PIPELINE.stages, parts_ns) if is_function else (("transfer",), total_ns[:, None])
            zeros = np.zeros(len(calls), np.int64)
            ids = np.arange(len(calls), dtype=np.int64) + self._calls_count + 1
            self._calls_count += len(calls)
            yield Batch(segment, stages, [method], ids, zeros, begin_ns, total_ns, stage_ns, sent_bytes, recv_bytes,
                        zeros.astype(np.bool_))  # fmt: skip
