"""Reads [TQ-TRACE], [TQ-DETAIL] and [TQ-LOG] lines wherever they stand in a noisy log, and pairs them into calls.

A trace id groups calls and does not tell them apart: `N/A` never does, and many calls may share one. What tells them
apart is the clock: an end's timestamp less its duration is its start's timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ipcbench.trace.readers.batch import Batch, Ints, Notes, Segment
from ipcbench.trace.readers.logs.tq_calls import Pairing, TqCall
from ipcbench.trace.readers.logs.tq_quick import LONGEST_TRACE_ID, MARKER, QuickLines
from ipcbench.trace.readers.logs.tq_transfers import Transfers
from ipcbench.trace.schema import PIPELINE

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")
_SECONDS = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3}
_DURATION = re.compile(r"(-?[\d.]+(?:[eE][-+]?\d+)?)\s*(s|ms|us|µs)?")

_BATCH_CALLS = 8192
_LARGEST = 9e18
_PARTS = {"GET_END": 0, "COMPUTE_END": 1, "PUT_END": 2}
_SKIPPED = {"GET_START", "COMPUTE_START", "PUT_START", "TQ_CLIENT_GET_START"}


class TqLog:
    """The state of reading one log: open functions, by worker, and calls not yet handed out."""

    def __init__(self, source: str, notes: Notes) -> None:
        self._source = source
        self._notes = notes
        self._pairing = Pairing(notes)
        self._transfers = Transfers()
        self._quick = QuickLines(self._pairing, self._transfers, self._odd)
        self._workers: dict[str, Segment] = {}
        self._ids = 0

    def feed(self, block: bytes, lines_count: int, foreign: list[bytes]) -> Iterator[Batch]:
        """Yield the calls that so many lines complete, and add those without a marker to `foreign`."""
        self._notes.counts["TQ lines"] += self._quick.feed(block, foreign)
        self._pairing.bound(lines_count)
        if self._pairing.done_count + self._transfers.done_count >= _BATCH_CALLS:
            yield from self._flush()

    def _odd(self, head: str, rest: str) -> None:
        """Take a line that is not as usual: its beginning, and what is behind its first marker."""
        worker = self._quick.worker(head)
        for piece in rest.split(MARKER):
            self._take(worker, _ANSI.sub("", piece) if "\x1b" in piece else piece)

    def finish(self) -> Iterator[Batch]:
        """Yield what is left, functions without an end included."""
        self._pairing.settle_all()
        yield from self._flush()

    def _take(self, worker: str, piece: str) -> None:
        """Take one message: its kind, `] `, and its fields."""
        kind, _, body = piece.partition("] ")
        if "[repeated" in body and (match := _REPEATED.search(body)):
            self._notes.counts["repeated lines not in the log"] += max(0, min(int(match[1][:9]), 10**9) - 1)
            body = body[: match.start()]
        fields = dict([part.partition("=")[::2] for part in body.rstrip().split(" | ")])
        try:
            known = self._dispatch(kind, worker, fields)
        except (KeyError, ValueError, OverflowError):
            known = False
        if known:
            self._notes.counts["TQ lines"] += 1
        else:
            self._notes.damaged(self._source, f"[TQ-{piece.strip()}")

    def _dispatch(self, kind: str, worker: str, fields: dict[str, str]) -> bool:
        stage = fields["stage"].strip()
        if kind == "TRACE":
            return self._trace(worker, stage, fields)
        if kind == "DETAIL":
            return self._detail(worker, stage, fields)
        if kind == "LOG" and stage == "START":
            return True
        if kind == "LOG" and stage == "END":
            self._transfers.done(worker, fields["op"].strip(), _duration_ns(fields["duration"]))
            return True
        return False

    def _trace(self, worker: str, stage: str, fields: dict[str, str]) -> bool:
        function = self._pairing.function(worker, fields["func"])
        trace_id = fields.get("trace_id", "N/A")[:LONGEST_TRACE_ID]
        at_ns = _time_ns(fields.get("timestamp"))
        if stage == "FUNCTION_START":
            function.begin(at_ns, trace_id)
        elif stage in _PARTS:
            function.part(_PARTS[stage], at_ns, _duration_ns(fields["duration"]), trace_id)
        elif stage == "FUNCTION_END":
            get, compute, put = (
                float(fields.get(f"{one}_ratio", "nan").strip().rstrip("%")) / 100.0 for one in PIPELINE.stages
            )
            function.end(at_ns, _duration_ns(fields["total_duration"]), trace_id, (get, compute, put))
        else:
            return stage in _SKIPPED
        return True

    def _detail(self, worker: str, stage: str, fields: dict[str, str]) -> bool:
        if stage in {"TQ_CLIENT_GET_START", "TQ_CLIENT_PUT_START"}:
            if "data_size_mb" in fields:
                self._transfers.size(worker, _bytes(fields["data_size_mb"]))
            return True
        duration_ns, at_ns = _duration_ns(fields["duration"]), _time_ns(fields.get("timestamp"))
        if stage == "TQ_CLIENT_GET_END":
            self._transfers.got(worker, at_ns, duration_ns, _bytes(fields.get("data_size_mb", "0")))
        elif stage == "TQ_CLIENT_PUT_END":
            self._transfers.put(worker, at_ns, duration_ns, _bytes(fields.get("throughput_mbps", "0")) / 2**20)
        else:
            return False
        return True

    def _flush(self) -> Iterator[Batch]:
        for worker, name, calls in self._transfers.take():
            yield self._batch(self._segment(worker, "transfers"), name, calls, ("transfer",))
        for function in self._pairing.with_calls():
            yield self._batch(
                self._segment(function.worker, "functions"), function.name, function.take(), PIPELINE.stages
            )

    def _segment(self, worker: str, name: str) -> Segment:
        key = f"{name} {worker}"
        if key not in self._workers:
            self._workers[key] = Segment(self._source, name, worker=worker)
        return self._workers[key]

    def _batch(self, segment: Segment, method: str, calls: list[TqCall], stages: tuple[str, ...]) -> Batch:
        count = len(calls)
        begin, total, parts, sent, recv = zip(*calls, strict=True)
        ids: Ints = np.arange(self._ids + 1, self._ids + count + 1, dtype=np.int64)
        self._ids += count
        total_ns: Ints = np.array(total, dtype=np.int64)
        stage_ns: Ints = np.array(parts, dtype=np.int64)
        return Batch(
            segment, stages, [method], ids, np.zeros(count, np.int64), np.array(begin, dtype=np.int64), total_ns,
            total_ns[:, None] if stages == ("transfer",) else stage_ns, np.array(sent, dtype=np.int64),
            np.array(recv, dtype=np.int64), np.zeros(count, np.bool_),
        )  # fmt: skip


def _duration_ns(text: str) -> int:
    text = text.rstrip()
    if text[-1:] == "s" and text[-2:-1].isdecimal():
        value = float(text[:-1]) * 1e9
    else:
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ValueError(text)
        value = float(match[1]) * _SECONDS[match[2] or "s"]
    if not abs(value) < _LARGEST:
        raise ValueError(text)
    return round(value)


def _time_ns(text: str | None) -> int | None:
    if text is None:
        return None
    value = float(text) * 1e9
    if not abs(value) < _LARGEST:
        raise ValueError(text)
    return round(value)


def _bytes(text: str) -> int:
    value = float(text) * 2**20
    if not 0 <= value < _LARGEST:
        raise ValueError(text)
    return round(value)
