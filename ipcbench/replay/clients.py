"""Reads traffic from a trace or a log: who called what, in which order, and what each call's server did.

The segments of a log are one client after another: one that starts again has ended before. A server's record belongs
to the call with the same trace id and span id; a log may state the server's share itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.trace.format import HISTOGRAMS_SUFFIX, SEGMENT_MAGIC, SEGMENT_SUFFIX
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Ints, Notes
from ipcbench.trace.readers.join import Servers, find_servers
from ipcbench.trace.readers.logs.text import grouped, read_log
from ipcbench.trace.readers.own import read_histograms, read_segment
from ipcbench.trace.schema import RECEIVER, SERVER_SIDE
from ipcbench.util.files import as_store_errors, regular

_TRANSPORT_STAGES = frozenset({"send", "wait"})
_WAITING_STAGE = "wait"
_ROLES_OF_SERVERS = frozenset({SERVER_SIDE, RECEIVER})

_LARGEST_BYTES = 2**30

_COLUMNS = ("gap_ns", "before_ns", "after_ns", "server_ns", "total_ns", "sent_bytes", "recv_bytes")


@dataclass(slots=True)
class _Reading:
    """The state while the files are read."""

    servers: Servers
    calls: dict[str, list[Batch]] = field(default_factory=dict)
    """By client: a thread of a process, or a log."""
    layouts: dict[str, Counter[str]] = field(default_factory=dict)
    """By method: what its messages consist of."""
    unrecorded_count: int = 0
    """Calls without a record."""
    has_begins: bool = True
    """Whether the begin of every call is known."""
    notes: Notes = field(default_factory=Notes)
    counts: Counter[str] = field(default_factory=Counter)
    """Calls that need a remark, by its text."""


def read_traffic(path: Path) -> Traffic:
    """Return the traffic in a folder of a trace, in one of its segments, or in a log.

    Raises:
        StoreError: there is no such path, it cannot be read, or it holds no call with a request and a reply.
    """
    with as_store_errors(path):
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [regular(path)]
        own = [file for file in files if file.suffix in {SEGMENT_SUFFIX, HISTOGRAMS_SUFFIX} or _is_segment(file)]
        logs = [file for file in files if file == path or (".log" in file.name and file.is_file())]
    notes = Notes()
    state = _Reading(find_servers([file for file in own if file.suffix != HISTOGRAMS_SUFFIX], notes), notes=notes)
    for file in own:
        _read_own(file, state)
    if not own:
        for parts in grouped(logs):
            for batch in read_log(parts, state.notes):
                _take(batch.segment.source, batch, state)
    return _make(str(path), state)


def _is_segment(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SEGMENT_MAGIC)) == SEGMENT_MAGIC


def _read_own(path: Path, state: _Reading) -> None:
    if path.suffix == HISTOGRAMS_SUFFIX:
        for bulk in read_histograms(path, state.notes):
            if bulk.segment.role not in _ROLES_OF_SERVERS:
                state.unrecorded_count += int(bulk.counts.sum()) + bulk.untimed_count
        return
    for batch in read_segment(path, state.notes):
        _take(path.stem.rpartition("-")[0], batch, state)


def _take(client: str, batch: Batch, state: _Reading) -> None:
    if batch.segment.role in _ROLES_OF_SERVERS or _WAITING_STAGE not in batch.stages:
        return
    state.calls.setdefault(client, []).append(batch)
    if batch.layout is not None:
        for method, layout in zip(batch.method.tolist(), batch.layout.tolist(), strict=True):
            state.layouts.setdefault(batch.methods[method], Counter())[batch.layouts[layout]] += 1


def _make(source: str, state: _Reading) -> Traffic:
    methods: dict[str, int] = {}
    threads = [_thread_calls(client, batches, methods, state) for client, batches in state.calls.items()]
    threads = [thread for thread in threads if len(thread.method)]
    if not threads:
        raise StoreError(
            f"{source}: no calls to replay: none has a request and a reply ({state.notes.lines_count:,} lines, "
            f"{state.notes.damaged_count:,} of them damaged)"
        )
    remarks = [f"{count:,} {what}" for what, count in state.counts.items() if count]
    gaps_known = not state.unrecorded_count and state.has_begins
    if state.unrecorded_count:
        remarks.append(
            f"{state.unrecorded_count:,} calls have no record, so they are not replayed; record with sample=1."
        )
    if not gaps_known:
        threads = [replace(thread, gap_ns=np.zeros_like(thread.gap_ns)) for thread in threads]
        remarks.append("The client's work between calls is unknown: calls follow one another at once, here as there.")
    return Traffic(
        source=source,
        methods=tuple(methods),
        threads=tuple(threads),
        gaps_known=gaps_known,
        recorded_calls_count=sum(len(thread.method) for thread in threads),
        remarks=tuple(remarks),
        layouts={name: counter.most_common(1)[0][0] for name, counter in state.layouts.items()},
    )


def _thread_calls(client: str, batches: Sequence[Batch], methods: dict[str, int], state: _Reading) -> ThreadCalls:
    """Return a client's calls; remarks on them are counted in `state.counts`."""
    most = max(len(batch.stages) for batch in batches)
    chosen = [batch for batch in batches if len(batch.stages) == most]
    inner = sum(len(batch.ids) for batch in batches) - sum(len(batch.ids) for batch in chosen)
    begin, total, failed, sent, recv = (
        np.concatenate([getattr(batch, name) for batch in chosen])
        for name in ("begin_ns", "total_ns", "failed", "sent_bytes", "recv_bytes")
    )
    method = np.concatenate([_method_numbers(batch, methods) for batch in chosen])
    before, after = (np.concatenate(columns) for columns in zip(*map(_work, chosen), strict=True))
    server = np.concatenate([_server(batch, state.servers) for batch in chosen])
    gap = np.zeros_like(total)
    order = np.arange(len(total))
    if (begin != UNKNOWN).all():
        order = np.argsort(begin, kind="stable")
        ends = np.maximum.accumulate((begin + total)[order])
        gap[order[1:]] = begin[order][1:] - ends[:-1]
    else:
        state.has_begins = False
    sized = np.minimum(sent, recv) >= 0
    sound = (total >= 0) & (np.maximum(sent, recv) <= _LARGEST_BYTES)
    good = order[(~failed & sound & sized)[order]]
    state.counts["calls failed and are not replayed."] += int(failed.sum())
    state.counts["calls have impossible times or sizes, or more than 1 GiB, and are not replayed."] += int(
        (~sound & ~failed).sum()
    )
    state.counts["calls have unknown sizes, and are not replayed: note them when recording."] += int(
        (sound & ~sized & ~failed).sum()
    )
    state.counts["calls began before the one before them ended; they follow it at once."] += int((gap < 0).sum())
    state.counts["calls are the inside of other calls, and are not replayed again."] += inner
    columns = (np.maximum(gap, 0), before, after, server, total, sent, recv)
    return ThreadCalls(
        client, method[good], **{name: column[good] for name, column in zip(_COLUMNS, columns, strict=True)}
    )


def _method_numbers(batch: Batch, methods: dict[str, int]) -> Ints:
    numbers = np.array([methods.setdefault(name, len(methods)) for name in batch.methods], dtype=np.int64)
    return np.asarray(numbers[batch.method], dtype=np.int64)


def _work(batch: Batch) -> tuple[Ints, Ints]:
    """Return the client's work in each call before and after its transport stages, unaccounted time included."""
    in_transport = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    stages = np.maximum(batch.stage_ns, 0)
    before = stages[:, : in_transport[0]].sum(axis=1)
    after = np.maximum(batch.total_ns - before - stages[:, in_transport].sum(axis=1), 0)
    return before, after


def _server(batch: Batch, servers: Servers) -> Ints:
    """Return the server's work in each call, UNKNOWN where it is not recorded; at most the call's transport stages.

    It is the whole work as the server saw it: a quick server may have begun before its client had finished sending.
    """
    server = np.full(len(batch.ids), UNKNOWN, dtype=np.int64)
    if batch.server_ns is not None:
        server = batch.server_ns.copy()
    if batch.key is not None and len(servers.keys):
        at = np.minimum(np.searchsorted(servers.keys, batch.key), len(servers.keys) - 1)
        known = (servers.keys[at] == batch.key) & (batch.key != 0) & servers.answers[at]
        server = np.where(known, servers.stamps_ns[at, 2] - servers.stamps_ns[at, 1], server)
    away = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    longest = np.maximum(batch.stage_ns[:, away].sum(axis=1), 0)
    return np.where(server == UNKNOWN, UNKNOWN, np.minimum(server, longest))
