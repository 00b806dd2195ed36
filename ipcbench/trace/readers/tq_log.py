"""Reads [TQ-TRACE], [TQ-DETAIL] and [TQ-LOG] lines wherever they stand in a noisy log, and pairs them into calls.

What does not live here: files and lines (text.py); the pairing itself (tq_calls.py).

A trace id groups calls and does not tell them apart: `N/A` never does, and many calls may share one. What tells them
apart is the clock: an end's timestamp less its duration is its start's timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Ints, Notes, Segment
from ipcbench.trace.readers.tq_calls import Pairing, TqCall
from ipcbench.trace.schema import PIPELINE

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")
_WORKER = re.compile(r"(\S+) pid=(\d+)(?:, ip=([\w.:]+))?")
_NUMBER = r"(\d{1,9}(?:\.\d{1,12})?)"
_USUAL = re.compile(
    r"TRACE\] trace_id=(\S+) \| func=(\S+)(?: \| pid=\d+)? \| stage="
    r"(GET_START|COMPUTE_START|PUT_START|FUNCTION_START|"
    r"(?:GET|COMPUTE|PUT)_END(?= \| duration)|FUNCTION_END(?= \| tot))"
    rf"(?: \| batch_size=\d+)?(?: \| (?:total_)?duration={_NUMBER}s)?"
    rf"(?: \| get_ratio={_NUMBER}% \| compute_ratio={_NUMBER}% \| put_ratio={_NUMBER}%)?(?: \| timestamp={_NUMBER})?\s*"
)
_SECONDS = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3}
_DURATION = re.compile(r"(-?[\d.]+(?:[eE][-+]?\d+)?)\s*(s|ms|us|µs)?")

_BATCH_CALLS = 8192
_MOST_NAMES = 10_000
_LARGEST = 9e18
_SKIPPED = {"GET_START", "COMPUTE_START", "PUT_START", "TQ_CLIENT_GET_START"}


class TqLog:
    """The state of reading one log: open functions, by worker, and calls not yet handed out."""

    def __init__(self, source: str, notes: Notes) -> None:
        self._source = source
        self._notes = notes
        self._pairing = Pairing(notes)
        self._sizes: dict[str, list[int]] = {}
        self._transfers: dict[tuple[str, str], list[TqCall]] = {}
        self._workers: dict[str, Segment] = {}
        self._names: dict[str, str] = {}
        self._ids = 0

    def feed(self, lines: Sequence[str], foreign: list[str]) -> Iterator[Batch]:
        """Yield the calls that some lines complete, and add those without a marker to `foreign`."""
        known = 0
        for line in lines:
            head, marker, piece = line.partition("[TQ-")
            if not marker:
                foreign.append(line)
                continue
            worker = self._worker(head) if "pid=" in head else ""
            match = _USUAL.match(piece)
            if match is not None and match.end() == len(piece):
                known += 1
                if match[3] not in _SKIPPED:
                    self._usual(worker, *match.groups())
                continue
            for one in piece.split(marker):
                self._take(worker, _ANSI.sub("", one) if "\x1b" in one else one)
        self._notes.counts["TQ lines"] += known
        if self._pairing.done_count >= _BATCH_CALLS or len(self._transfers) > 64:
            yield from self._flush()

    def _worker(self, head: str) -> str:
        """Return the worker that a line's beginning names, as Ray does: `(name pid=1, ip=2)`."""
        at = head.find("pid=")
        token = head[head.rfind("(", 0, at) + 1 : head.find(")", at)]
        worker = self._names.get(token)
        if worker is None:
            match = _WORKER.fullmatch(token)
            worker = "" if match is None else f"{match[1]} pid={match[2]}" + (f" ip={match[3]}" if match[3] else "")
            if len(self._names) < _MOST_NAMES:
                self._names[token] = worker
        return worker

    def _usual(self, worker: str, trace_id: str, func: str, stage: str, duration: str | None, get: str | None,
               compute: str | None, put: str | None, timestamp: str | None) -> None:  # fmt: skip
        """Take a [TQ-TRACE] line whose fields are in their usual order."""
        function = self._pairing.function(worker, func)
        at_ns = None if timestamp is None else round(float(timestamp) * 1e9)
        if stage == "FUNCTION_START":
            function.begin(at_ns, trace_id)
            return
        duration_ns = round(float(duration or 0) * 1e9)
        if stage == "FUNCTION_END":
            ratios = (float(get or "nan") / 100, float(compute or "nan") / 100, float(put or "nan") / 100)
            function.end(at_ns, duration_ns, trace_id, ratios)
        else:
            function.part(stage[:-4], at_ns, duration_ns, trace_id)

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
            duration = _duration_ns(fields["duration"])
            self._transfer(worker, fields["op"].strip(), TqCall(UNKNOWN_NS, duration, (duration, 0, 0), 0, 0))
            return True
        return False

    def _trace(self, worker: str, stage: str, fields: dict[str, str]) -> bool:
        function = self._pairing.function(worker, fields["func"])
        trace_id = fields.get("trace_id", "N/A")
        at_ns = _time_ns(fields.get("timestamp"))
        if stage == "FUNCTION_START":
            function.begin(at_ns, trace_id)
        elif stage in {"GET_END", "COMPUTE_END", "PUT_END"}:
            function.part(stage[:-4], at_ns, _duration_ns(fields["duration"]), trace_id)
        elif stage == "FUNCTION_END":
            shares = tuple(
                float(fields.get(f"{one}_ratio", "nan").strip().rstrip("%")) / 100.0 for one in PIPELINE.stages
            )
            function.end(at_ns, _duration_ns(fields["total_duration"]), trace_id, shares)
        else:
            return stage in _SKIPPED
        return True

    def _detail(self, worker: str, stage: str, fields: dict[str, str]) -> bool:
        if stage.endswith("_START"):
            if "data_size_mb" in fields:
                waiting = self._sizes.setdefault(worker, [])
                waiting.append(_bytes(fields["data_size_mb"]))
                del waiting[:-1024]
            return stage in {"TQ_CLIENT_GET_START", "TQ_CLIENT_PUT_START"}
        duration = _duration_ns(fields["duration"])
        at_ns = _time_ns(fields.get("timestamp"))
        begin = UNKNOWN_NS if at_ns is None else at_ns - duration
        if stage == "TQ_CLIENT_GET_END":
            size = _bytes(fields.get("data_size_mb", "0"))
            self._transfer(worker, "TQ_CLIENT_GET", TqCall(begin, duration, (duration, 0, 0), 0, size))
        elif stage == "TQ_CLIENT_PUT_END":
            waiting = self._sizes.get(worker, [])
            size = waiting.pop(0) if waiting else 0
            if not size:
                size = int(float(fields.get("throughput_mbps", "0")) * 2**20 * duration / 1e9)
            self._transfer(worker, "TQ_CLIENT_PUT", TqCall(begin, duration, (0, 0, duration), size, 0))
        else:
            return False
        return True

    def _transfer(self, worker: str, name: str, call: TqCall) -> None:
        calls = self._transfers.setdefault((worker, name), [])
        calls.append(call)
        self._pairing.done_count += 1

    def _flush(self) -> Iterator[Batch]:
        for (worker, name), calls in self._transfers.items():
            yield self._batch(self._segment(worker, "transfers"), name, calls, ("transfer",))
        self._transfers.clear()
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
