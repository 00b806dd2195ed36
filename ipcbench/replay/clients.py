"""From the files of a trace or a log to traffic: who called what, in which order, and what each call's server did.

What does not live here: the files' formats (ipcbench/trace/readers).

The segments of a log come one after the other: who starts again has ended before. A server's record belongs to the
call during which it begins, of the same method and on the same host, whose clock they share; a call's own record may
also hold the server's share already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.files import as_store_errors
from ipcbench.replay.traffic import Lane, Traffic
from ipcbench.trace.layout import SEGMENT_MAGIC
from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Ints, Notes
from ipcbench.trace.readers.own import read_segment, read_tally
from ipcbench.trace.readers.text import grouped, read_log
from ipcbench.trace.schema import SERVER_SIDE
from ipcbench.trace.store import SEGMENT_SUFFIX, TALLY_SUFFIX

_TRANSPORT_STAGES = frozenset({"send", "wait", "recv"})
_WAITING_STAGES = frozenset({"wait", "recv"})
_SERVER_STAGE = "work"

_COLUMNS = ("gap_ns", "before_ns", "after_ns", "server_ns", "total_ns", "sent_bytes", "recv_bytes")


@dataclass(slots=True)
class _Found:
    """What is found while the files are read."""

    calls: dict[str, list[Batch]] = field(default_factory=dict)
    """By client: a thread of a process, or a log."""
    served: dict[tuple[str, str], list[tuple[Ints, Ints]]] = field(default_factory=dict)
    """By host and method: begin and length of the servers' work."""
    untold_count: int = 0
    """Calls without a record."""
    notes: Notes = field(default_factory=Notes)


def read_traffic(path: Path) -> Traffic:
    """Return the traffic in a folder of a trace, in one of its segments, or in a log.

    Raises:
        StoreError: there is no such path, it cannot be read, or it holds no call with a request and a reply.
    """
    found = _Found()
    with as_store_errors(path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        own = [one for one in files if one.suffix in {SEGMENT_SUFFIX, TALLY_SUFFIX} or _is_segment(one)]
        logs = [one for one in files if ".log" in one.name or one == path]
    for one in own:
        _read_own(one, found)
    if not own:
        for parts in grouped(logs):
            for batch in read_log(parts, found.notes):
                _take(batch.segment.source, batch, found)
    return _make(str(path), found)


def _is_segment(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SEGMENT_MAGIC)) == SEGMENT_MAGIC


def _read_own(path: Path, found: _Found) -> None:
    if path.suffix == TALLY_SUFFIX:
        for bulk in read_tally(path, found.notes):
            if bulk.segment.role != SERVER_SIDE:
                found.untold_count += int(bulk.counts.sum()) + bulk.untimed_count
        return
    for batch in read_segment(path, found.notes):
        _take(path.stem.rpartition("-")[0], batch, found)


def _take(client: str, batch: Batch, found: _Found) -> None:
    if batch.segment.role == SERVER_SIDE:
        host = batch.segment.worker.rpartition(":")[0]
        work = batch.stage_ns[:, batch.stages.index(_SERVER_STAGE)] if _SERVER_STAGE in batch.stages else batch.total_ns
        for index, method in enumerate(batch.methods):
            chosen = batch.method == index
            found.served.setdefault((host, method), []).append((batch.begin_ns[chosen], work[chosen]))
    elif _WAITING_STAGES & set(batch.stages):
        found.calls.setdefault(client, []).append(batch)


def _make(source: str, found: _Found) -> Traffic:
    methods: dict[str, int] = {}
    remarks: list[str] = []
    lanes, failed_count, overlaps_count = [], 0, 0
    gaps_known = not found.untold_count
    for client, batches in found.calls.items():
        lane, failed, overlaps, has_begins = _lane(client, batches, methods, found)
        gaps_known = gaps_known and has_begins
        failed_count, overlaps_count = failed_count + failed, overlaps_count + overlaps
        if len(lane.method):
            lanes.append(lane)
    if not lanes:
        raise StoreError(
            f"{source}: no calls to replay: none has a request and a reply ({found.notes.lines_count:,} lines, "
            f"{found.notes.damaged_count:,} of them damaged)"
        )
    if found.untold_count:
        remarks.append(f"{found.untold_count:,} calls have no record, so they are not replayed; record with sample=1.")
    if failed_count:
        remarks.append(f"{failed_count:,} calls failed and are not replayed.")
    if overlaps_count:
        remarks.append(f"{overlaps_count:,} calls began before the one before them ended; they follow it at once.")
    if not gaps_known:
        lanes = [_without_gaps(lane) for lane in lanes]
        remarks.append("The client's work between calls is unknown: calls follow one another at once, here as there.")
    calls_count = sum(len(lane.method) for lane in lanes)
    return Traffic(source, tuple(methods), tuple(lanes), gaps_known, calls_count, tuple(remarks))


def _without_gaps(lane: Lane) -> Lane:
    columns = {name: getattr(lane, name) for name in Lane.__dataclass_fields__}
    return Lane(**{**columns, "gap_ns": np.zeros_like(lane.gap_ns)})


def _lane(client: str, batches: Sequence[Batch], methods: dict[str, int], found: _Found) -> tuple[Lane, int, int, bool]:
    """Return a client's calls, how many failed, how many overlap the one before, and whether their begins are known."""
    method = np.concatenate([_method_numbers(one, methods) for one in batches])
    begin, total, failed = (
        np.concatenate([getattr(one, name) for one in batches]) for name in ("begin_ns", "total_ns", "failed")
    )
    before, after = (np.concatenate(columns) for columns in zip(*map(_work, batches), strict=True))
    server = np.concatenate([_server(one, found) for one in batches])
    sent, recv = (np.concatenate([getattr(one, name) for one in batches]) for name in ("sent_bytes", "recv_bytes"))
    has_begins = bool((begin != UNKNOWN_NS).all())
    gap, overlaps = np.zeros_like(total), 0
    if has_begins:
        order = np.argsort(begin, kind="stable")
        method, begin, total, failed, before, after, server, sent, recv = (
            column[order] for column in (method, begin, total, failed, before, after, server, sent, recv)
        )
        gap[1:] = begin[1:] - np.maximum.accumulate(begin + total)[:-1]
        overlaps = int(np.count_nonzero(gap < 0))
    good = ~failed & (total >= 0)
    columns = (np.maximum(gap, 0), before, after, server, total, sent, recv)
    lane = Lane(client, method[good], **{name: one[good] for name, one in zip(_COLUMNS, columns, strict=True)})
    return lane, int(np.count_nonzero(~good)), overlaps, has_begins


def _method_numbers(batch: Batch, methods: dict[str, int]) -> Ints:
    numbers = np.array([methods.setdefault(name, len(methods)) for name in batch.methods], dtype=np.int64)
    return np.asarray(numbers[batch.method], dtype=np.int64)


def _work(batch: Batch) -> tuple[Ints, Ints]:
    """Return the client's work in each call before its transport stages, and after them, the unaccounted included."""
    in_transport = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    stages = np.maximum(batch.stage_ns, 0)
    before = stages[:, : in_transport[0]].sum(axis=1)
    after = np.maximum(batch.total_ns - before - stages[:, in_transport].sum(axis=1), 0)
    return before, after


def _server(batch: Batch, found: _Found) -> Ints:
    """Return the server's work in each call, UNKNOWN_NS where nothing tells; never more than it was away."""
    server = np.full(len(batch.ids), UNKNOWN_NS, dtype=np.int64)
    if batch.server_ns is not None:
        server = batch.server_ns.copy()
    host = batch.segment.worker.rpartition(":")[0]
    for index, method in enumerate(batch.methods):
        served = found.served.get((host, method))
        if served:
            chosen = np.flatnonzero((batch.method == index) & (server == UNKNOWN_NS))
            server[chosen] = _contained(batch.begin_ns[chosen], batch.total_ns[chosen], served)
    away = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    longest = np.maximum(batch.stage_ns[:, away].sum(axis=1), 0)
    return np.where(server == UNKNOWN_NS, UNKNOWN_NS, np.minimum(server, longest))


def _contained(begin: Ints, total: Ints, served: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Return, for each call, the length of the first server's record that begins during it; each record counts once."""
    starts, lengths = (np.concatenate(columns) for columns in zip(*served, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    result = np.full(len(begin), UNKNOWN_NS, dtype=np.int64)
    free = _pairs(begin, total, starts)
    for call, record in free:
        result[call] = lengths[record]
    return result


def _pairs(begin: Ints, total: Ints, starts: Ints) -> Iterator[tuple[int, int]]:
    """Yield (call, record) pairs in the order of time."""
    at = 0
    ends = (begin + total).tolist()
    all_starts = starts.tolist()
    for call in np.argsort(begin, kind="stable").tolist():
        while at < len(all_starts) and all_starts[at] < begin[call]:
            at += 1
        if at < len(all_starts) and all_starts[at] <= ends[call]:
            yield call, at
            at += 1
