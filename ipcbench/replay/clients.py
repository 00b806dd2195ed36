"""Reads traffic from a trace or a log: who called what, in which order, and what each call's server did.

The segments of a log are one client after another: one that starts again has ended before. A server's record belongs
to the call with the same trace id and span id; a log may state the server's share itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.replay.traffic import COLUMNS, ThreadCalls, Traffic
from ipcbench.trace.format import HISTOGRAMS_SUFFIX, SEGMENT_MAGIC, SEGMENT_SUFFIX
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Ints, Notes
from ipcbench.trace.readers.join import Servers, find_servers
from ipcbench.trace.readers.logs.text import grouped, read_log
from ipcbench.trace.readers.own import read_histograms, read_segment, thread_of
from ipcbench.trace.schema import CLIENT, RECEIVER, SERVER_SIDE
from ipcbench.util.files import as_store_errors, regular
from ipcbench.util.units import format_duration_ns

_TRANSPORT_STAGES = frozenset({"send", "wait"})
_WAITING_STAGE = "wait"
_ROLES_OF_SERVERS = frozenset({SERVER_SIDE, RECEIVER})

_LARGEST_BYTES = 2**30
_MOST_COMPARED, _LEAST_EXPECTED, _FEW_RATIO = 10_000, 10, 0.1
"""Calls of others that each client's are compared with; of these so many must overlap by chance, and less than this
share of that number does.
"""
_TURNS = (
    "No two clients' calls overlap: they wait for one another, and how much of the time between their calls is that is "
    "unknown. A replay takes it for work."
)
_MOST_SPREAD_RATIO = 0.1
"""Of the recorded time: how far apart the clients of a server may begin without a remark."""


_OF_ONE = {
    "calls of runs before the last one in the log are left out.":
        "call of runs before the last one in the log is left out.",
    "calls failed and are not replayed.": "call failed and is not replayed.",
    "calls have impossible times or sizes, or more than 1 GiB, and are not replayed.":
        "call has impossible times or sizes, or more than 1 GiB, and is not replayed.",
    "calls have unknown sizes, and are not replayed: note them when recording.":
        "call has unknown sizes, and is not replayed: note them when recording.",
    "calls began before the one before them ended; they follow it at once.":
        "call began before the one before it ended; it follows it at once.",
    "calls are the inside of other calls, and are not replayed again.":
        "call is the inside of another call, and is not replayed again.",
    "calls have no record, so they are not replayed.": "call has no record, so it is not replayed.",
    "damaged lines or records are left out.": "damaged line or record is left out.",
}  # fmt: skip
"""Remark on several calls or lines → on one."""


@dataclass(slots=True)
class _Reading:
    """The state while the files are read."""

    servers: Servers
    calls: dict[str, list[Batch]] = field(default_factory=dict)
    """By client: a thread of a process, or a log."""
    places: dict[str, Ints] = field(default_factory=dict)
    """By client: the place of each call's record in `servers`, UNKNOWN if it has none."""
    spans_ns: dict[str, Ints] = field(default_factory=dict)
    """By client: begin and end of each call, shape (n, 2); none where a begin is unknown."""
    layouts: dict[str, Counter[str]] = field(default_factory=dict)
    """By method: what its messages consist of."""
    waited_ns: dict[str, list[int | None]] = field(default_factory=dict)
    """By thread, of each of its segments: for how long it waited for a core."""
    transports: Counter[str] = field(default_factory=Counter)
    """Calls over each, by its name."""
    unrecorded_count: int = 0
    """Calls without a record."""
    has_begins: bool = True
    """Whether the begin of every call is known."""
    is_timed: bool = True
    """Whether the times of every call are known."""
    notes: Notes = field(default_factory=Notes)
    counts: Counter[str] = field(default_factory=Counter)
    """Calls that need a remark, by its text."""


def read_traffic(path: Path, *, last_run: bool = False) -> Traffic:
    """Return the traffic in a folder of a trace, in one of its segments, or in a log.

    Args:
        path: of the trace or log.
        last_run: of a log in which a client started again, take only what came after that: before it were warm-ups.

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
                if last_run and batch.segment.role == CLIENT:
                    _begin_run(batch, state)
                _take(batch.segment.source, batch, state)
    return _make(str(path), state)


def _begin_run(batch: Batch, state: _Reading) -> None:
    """Forget the calls of a log before its client started again, and count them."""
    before = state.calls.get(batch.segment.source, [])
    if before and before[-1].segment.name != batch.segment.name:
        state.counts["calls of runs before the last one in the log are left out."] += sum(
            len(each.ids) for each in state.calls.pop(batch.segment.source)
        )


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
    begun_count = len(state.notes.facts)
    for batch in read_segment(path, state.notes):
        _take(thread_of(path), batch, state)
    for facts in state.notes.facts[begun_count:]:
        state.waited_ns.setdefault(thread_of(path), []).append(facts["waited_ns"])


def _take(client: str, batch: Batch, state: _Reading) -> None:
    if batch.segment.role in _ROLES_OF_SERVERS or _WAITING_STAGE not in batch.stages:
        return
    state.calls.setdefault(client, []).append(batch)
    state.transports[batch.segment.transport] += len(batch.ids)
    state.is_timed = state.is_timed and batch.is_timed
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
    gaps_known = not state.unrecorded_count and state.has_begins
    if not gaps_known:
        threads = [replace(thread, gap_ns=np.zeros_like(thread.gap_ns)) for thread in threads]
    remarks = list(_remarks(state, gaps_known=gaps_known))
    served_by = _served_by(state)
    threads = [replace(thread, server=served_by.get(thread.name, "")) for thread in threads]
    remarks += _spread(threads, state)
    takes_turns = gaps_known and _take_turns(list(state.spans_ns.values()))
    if takes_turns:
        remarks.append(_TURNS)
    return Traffic(
        source=source,
        methods=tuple(methods),
        threads=tuple(threads),
        gaps_known=gaps_known,
        recorded_calls_count=sum(len(thread.method) for thread in threads),
        remarks=tuple(remarks),
        layouts={name: counter.most_common(1)[0][0] for name, counter in state.layouts.items()},
        is_sampled=bool(state.unrecorded_count),
        transports=tuple(name for name, _ in state.transports.most_common() if name),
        waited_ns={name: sum(filter(None, parts)) for name, parts in state.waited_ns.items() if None not in parts},
        takes_turns=takes_turns,
        is_timed=state.is_timed,
    )


def _remarks(state: _Reading, *, gaps_known: bool) -> Iterator[str]:
    """Yield what is left out, and what is not known."""
    yield from (_counted(count, what) for what, count in state.counts.items() if count)
    if state.notes.damaged_count:
        yield _counted(state.notes.damaged_count, "damaged lines or records are left out.")
    if state.unrecorded_count:
        yield _counted(state.unrecorded_count, "calls have no record, so they are not replayed.")
    if not state.is_timed:
        yield (
            "Nobody made these calls: their messages are sent, without any work of the client or the server. The "
            "end-to-end time is at least what they take."
        )
    elif not gaps_known:
        yield "The client's work between calls is unknown: calls follow one another at once, here as there."


def _counted(count: int, what: str) -> str:
    """Return a remark on so many calls or lines."""
    return f"{count:,} {_OF_ONE[what] if count == 1 else what}"


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
    before, after, other = (np.concatenate(columns) for columns in zip(*map(_work, chosen), strict=True))
    queue, server, server_most, places = (
        np.concatenate(columns) for columns in zip(*[_server(batch, state.servers) for batch in chosen], strict=True)
    )
    gap = np.zeros_like(total)
    order = np.arange(len(total))
    if (begin != UNKNOWN).all():
        order = np.argsort(begin, kind="stable")
        ends = np.maximum.accumulate((begin + total)[order])
        gap[order[1:]] = begin[order][1:] - ends[:-1]
    else:
        state.has_begins = False
    sized = np.minimum(sent, recv) >= 0
    stages = np.concatenate([(batch.stage_ns >= UNKNOWN).all(axis=1) for batch in chosen])
    sound = (total >= 0) & stages & (np.maximum(sent, recv) <= _LARGEST_BYTES)
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
    state.places[client] = places[good]
    if state.has_begins:
        state.spans_ns[client] = np.stack((begin, begin + total), axis=1)[good]
    columns = (method, np.maximum(gap, 0), before, after, other, queue, server, server_most, total, sent, recv)
    return ThreadCalls(client, **{name: column[good] for name, column in zip(COLUMNS, columns, strict=True)})


def _method_numbers(batch: Batch, methods: dict[str, int]) -> Ints:
    numbers = np.array([methods.setdefault(name, len(methods)) for name in batch.methods], dtype=np.int64)
    return np.asarray(numbers[batch.method], dtype=np.int64)


def _work(batch: Batch) -> tuple[Ints, Ints, Ints]:
    """Return the client's work in each call before and after its transport stages, and the unaccounted part of that."""
    in_transport = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    stages = np.maximum(batch.stage_ns, 0)
    before = stages[:, : in_transport[0]].sum(axis=1)
    after = np.maximum(batch.total_ns - before - stages[:, in_transport].sum(axis=1), 0)
    return before, after, np.clip(batch.total_ns - stages.sum(axis=1), 0, after)


def _server(batch: Batch, servers: Servers) -> tuple[Ints, Ints, Ints, Ints]:
    """Return how long each call waited for its server, the server's work, the most that it can have been, and the place
    of its record.

    The work is at most the call's transport stages. It is the whole work as the server saw it: a quick server may have
    begun before its client had finished sending. What a log states is a part: a kernel's time, for example.
    """
    away = [index for index, name in enumerate(batch.stages) if name in _TRANSPORT_STAGES]
    longest = np.maximum(batch.stage_ns[:, away].sum(axis=1), 0)
    places = np.full(len(batch.ids), UNKNOWN, dtype=np.int64)
    server = places if batch.server_ns is None else batch.server_ns
    if batch.key is not None and len(servers.keys):
        at = np.minimum(np.searchsorted(servers.keys, batch.key), len(servers.keys) - 1)
        known = (servers.keys[at] == batch.key) & (batch.key != 0) & servers.answers[at]
        places = np.where(known, at, UNKNOWN)
        server = np.where(known, servers.stamps_ns[at, 2] - servers.stamps_ns[at, 1], server)
    server = np.where(server == UNKNOWN, UNKNOWN, np.minimum(server, longest))
    joined_ns, left = servers.join(batch).queue_ns, longest - np.maximum(server, 0)
    unknown = np.full_like(server, UNKNOWN)
    queue = unknown if joined_ns is None else np.where(joined_ns == UNKNOWN, UNKNOWN, np.minimum(joined_ns, left))
    return queue, server, np.where(places == UNKNOWN, longest, server), places


def _served_by(state: _Reading) -> dict[str, str]:
    """Return the server of each client whose calls were all served by one thread, which worked on one at a time."""
    servers, clients = state.servers, dict[int, list[str]]()
    for client, places in state.places.items():
        threads = np.unique(servers.thread[places[places != UNKNOWN]])
        if len(threads) == 1:
            clients.setdefault(int(threads[0]), []).append(client)
    result: dict[str, str] = {}
    for thread, names in clients.items():
        places = np.concatenate([state.places[name] for name in names])
        work = servers.stamps_ns[places[places != UNKNOWN], 1:]
        begun, done = work[np.argsort(work[:, 0], kind="stable")].T
        if (begun[1:] >= done[:-1]).all():
            result |= dict.fromkeys(names, servers.threads[thread])
    return result


def _take_turns(spans_ns: Sequence[Ints]) -> bool:
    """Return whether far fewer calls of different clients overlap than if none took account of the others. Only calls
    count that began between another client's first and last: clients that ran one after another take no turns.
    """
    expected = seen = 0.0
    for number, own in enumerate(spans_ns):
        others = [each for place, each in enumerate(spans_ns) if place != number and len(each)]
        if not len(own) or not others:
            continue
        begin, end = own.T
        every = np.concatenate(others)
        every = every[(every[:, 0] >= begin[0]) & (every[:, 0] < end[-1])]
        every = every[:: len(every) // _MOST_COMPARED + 1]
        at = np.searchsorted(end, every[:, 0], side="right")  # the first call that ends later
        seen += int((begin[np.minimum(at, len(begin) - 1)] < every[:, 1]).sum())
        expected += len(every) * float((end - begin).sum() / max(1, end[-1] - begin[0]))
    return expected >= _LEAST_EXPECTED and seen < _FEW_RATIO * expected


def _spread(threads: Sequence[ThreadCalls], state: _Reading) -> list[str]:
    """Return a remark if clients of one server began far apart, since a replay begins all at once."""
    begins: dict[str, list[int]] = {}
    for thread in threads:
        if thread.server:
            places = state.places[thread.name]
            begins.setdefault(thread.server, []).append(int(state.servers.stamps_ns[places[places != UNKNOWN][0], 0]))
    spread_ns = max((max(times) - min(times) for times in begins.values()), default=0)
    if spread_ns <= _MOST_SPREAD_RATIO * max(thread.recorded_ns for thread in threads):
        return []
    return [
        f"The clients of one server began up to {format_duration_ns(spread_ns)} apart; here they begin at once, and "
        "may wait for one another more than they did."
    ]
