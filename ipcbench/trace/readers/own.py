"""Readers of this package's own trace files: segments (.ipct) and histograms (.ipch), also those of killed processes.

`read_segment` reads a whole segment as batches. `SegmentFile` reads one piece by piece while its process may go on
writing it, with the ids of its calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.format import (
    BIN_COUNT,
    CALL,
    EMPTY,
    ENDPOINT_MARK,
    FAILED,
    HEADER_BYTES,
    HISTOGRAMS_BYTES,
    HISTOGRAMS_MAGIC,
    KEPT,
    MARKER,
    NAME,
    NAME_BYTES,
    RECORD_BYTES,
    SAMPLED,
    SEGMENT_MAGIC,
    SUM_CELLS,
    SUMS_COUNT,
    due_bytes,
    has_loss,
    unpack_header,
    waited_ns,
)
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Bulk, Ints, Keys, Notes, Segment
from ipcbench.trace.readers.calls import Calls, Clocks, Process, Unsigned, transport_of
from ipcbench.trace.readers.weights import MOST_UNTIMED, weights_of
from ipcbench.trace.schema import CLIENT, COUNTED, MAX_STAGES, RECEIVER, SERVER_SIDE, TIMELESS, Schema, parse_schema
from ipcbench.util.files import as_store_errors, regular
from ipcbench.util.text import printable

_ROLES = {CLIENT: " (client)", SERVER_SIDE: " (server)", RECEIVER: " (receiver)"}

_ODD = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_RECORDS = 8_192
_CHUNK_SLOTS = 4096
_MOST_PENDING = 256
_LARGEST = 2**62
_DAY_NS = 86_400 * 10**9
_CHANCE = 50  # so few calls that sampling should have left out may all have a record
_MAX_BLOCK_BYTES = 2**20

_LONGEST_NAME_BYTES = 4096
_MOST_NAMES = 10_000
"""A recorder writes fewer and none longer; a damaged file may say anything."""

RECORD = np.dtype([
    ("kind", "u1"), ("flags", "u1"), ("ends", "u1"), ("role", "u1"), ("method", "<u2"), ("schema", "<u2"),
    ("peer", "<u2"), ("error", "<u2"), ("buffers", "<u4"), ("trace", "<u8", 2), ("span", "<u8"),
    ("stamps", "<i8", MAX_STAGES + 1), ("sent", "<u8"), ("recv", "<u8"), ("marker", "<u8"),
])  # fmt: skip
_NAME = np.dtype([
    ("kind", "u1"), ("spare", "u1"), ("id", "<u2"), ("piece", "<u2"), ("length", "<u2"), ("text", f"V{NAME_BYTES}"),
    ("marker", "<u8"),
])  # fmt: skip


Rows = npt.NDArray[Any]


def thread_of(path: Path) -> str:
    """Return the name of the process and thread that wrote a file: the file's own without its number."""
    return path.stem.rpartition("-")[0] or path.stem


def read_segment(path: Path, notes: Notes) -> Iterator[Batch]:
    """Yield the calls of a segment, at most 8,192 at a time; slots that were never finished are no calls.

    Raises:
        StoreError: it cannot be opened, or is not a segment of this version.
    """
    with as_store_errors(path), regular(path).open("rb") as file:
        facts = _header(file, path, SEGMENT_MAGIC, notes)[1]
        if not facts:
            return
        longest = longest_ns(file, facts)
        names: dict[int, str] = {0: ""}
        pieces: dict[int, bytes] = {}
        offset = HEADER_BYTES
        pending: dict[int, float] = {}
        room = memoryview(bytearray(_CHUNK_RECORDS * RECORD_BYTES))  # reused: new pages cost more than reading
        while size := file.readinto(room):
            records = np.frombuffer(room, RECORD, size // RECORD_BYTES)
            offsets = offset + np.arange(len(records), dtype=np.uint64) * RECORD_BYTES
            kinds = records["kind"]
            whole = records["marker"] == offsets ^ MARKER
            calls = whole & (kinds == CALL) & (records["ends"] >= 1) & (records["ends"] <= MAX_STAGES)
            possible = _are_possible(records, longest)
            if not possible[calls].all():
                notes.damaged(
                    path.name, f"{np.count_nonzero(calls & ~possible):,} calls with impossible times or sizes"
                )
                calls &= possible
            ids = ((offsets - HEADER_BYTES) // RECORD_BYTES).astype(np.int64)
            sampled = whole & (kinds == SAMPLED)
            notes.left_out[path] += _left_out(records, calls, sampled, facts)
            weights = weights_of(records, calls, sampled, pending)
            if not calls.all():
                notes.counts["torn records"] += int(np.count_nonzero(~whole & (kinds != 0)))
                _learn(records[whole & (kinds == NAME)], names, pieces)
                records, ids = records[calls], ids[calls]
            yield from _batches(path, facts, records, ids, names, None if weights is None else weights[calls])
            offset += size
        for text in names.values():
            if text.startswith(ENDPOINT_MARK):
                notes.endpoints[printable(text.removeprefix(ENDPOINT_MARK))] = None


def _header(file: IO[bytes], path: Path, magic: bytes, notes: Notes) -> tuple[int, dict[str, Any]]:
    """Return the size of a block and the facts; no facts for a file whose process was killed while making it."""
    data = file.read(HEADER_BYTES)
    if not data.strip(b"\0"):
        notes.counts["files never begun"] += 1
        return 0, {}
    try:
        block_bytes, facts = unpack_header(data, magic)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not a file of a trace: {error}") from error
    notes.facts.append({**facts, "waited_ns": waited_ns(data)} if magic == SEGMENT_MAGIC else facts)
    if has_loss(data):
        pid = facts.get("pid")
        notes.lost(str(facts.get("host", "")), pid if isinstance(pid, int) else 0)
    missing_bytes = due_bytes(data) - os.fstat(file.fileno()).st_size
    if missing_bytes > 0:
        notes.damaged(path.name, f"it was cut short: {missing_bytes:,} bytes are missing")
    return block_bytes, facts


def _learn(records: npt.NDArray[Any], names: dict[int, str], pieces: dict[int, bytes]) -> None:
    """Add the names that the records hold."""
    for row in records.view(_NAME):
        number, length = int(row["id"]), min(int(row["length"]), _LONGEST_NAME_BYTES)
        if (number not in names and len(names) >= _MOST_NAMES) or len(pieces) >= _MOST_NAMES:
            continue
        pieces[number] = (pieces.get(number, b"") if row["piece"] else b"") + bytes(row["text"])
        if len(pieces[number]) >= length:
            names[number] = pieces.pop(number)[:length].decode("utf-8", "replace")


def longest_ns(file: IO[bytes], facts: dict[str, Any]) -> int:
    """Return how long a call in a segment can have taken: from when it was made to its last change, and a day for
    clocks that were set, and changes that were noted late.
    """
    anchor = facts.get("anchor_ns")
    if not (isinstance(anchor, list) and len(anchor) == 2 and isinstance(anchor[1], int)):
        return _LARGEST
    return max(0, os.fstat(file.fileno()).st_mtime_ns - anchor[1]) + _DAY_NS


def _are_possible(records: npt.NDArray[Any], longest: int) -> npt.NDArray[np.bool_]:
    """Return which records have times in order, of at most `longest` ns together, and sizes that can be."""
    stamps, numbers = records["stamps"], np.arange(1, MAX_STAGES + 1)
    in_order = (np.diff(stamps, axis=1) >= 0) | (numbers > records["ends"][:, None])
    in_range = (stamps >= 0) & (stamps < _LARGEST)
    sizes = (records["sent"] < _LARGEST) & (records["recv"] < _LARGEST)
    last = stamps[np.arange(len(records)), np.clip(records["ends"], 0, MAX_STAGES)]
    short = last.astype(np.float64) - stamps[:, 0] <= longest
    possible: npt.NDArray[np.bool_] = in_order.all(axis=1) & in_range.all(axis=1) & sizes & short
    return possible


def _left_out(
    records: npt.NDArray[Any], calls: npt.NDArray[np.bool_], sampled: npt.NDArray[np.bool_], facts: dict[str, Any]
) -> int:
    """Return how many more calls the records tell of, at least: those that were only counted, and the half of what
    sampling must have left out by chance. Of calls that others ask for, these may have chosen.
    """
    told, period = int(np.minimum(records["sent"][sampled], MOST_UNTIMED).sum()), facts.get("sample")
    if not isinstance(period, int) or not 1 < period < MOST_UNTIMED or facts.get("budget"):
        return told
    roles = records["role"][calls]
    kept = (records["flags"][calls] & KEPT != 0)[(roles != SERVER_SIDE) & (roles != RECEIVER)]
    kept_count = int(kept.sum())
    return told + max(0, (len(kept) - kept_count) * (period - 1) // 2 - kept_count - _CHANCE)


def segment_of(path: Path, facts: dict[str, Any], role: int, transport: str = "") -> Segment:
    """Return the segment that a file's calls belong to: those of one service in one role and over one transport,
    whichever process.
    """
    worker = printable(f"{facts.get('host', '?')}:{facts.get('pid', '?')}")
    service = printable(str(facts.get("service") or "process"))
    return Segment(str(path.parent), f"{service}{_ROLES.get(role, '')}", transport, worker, role)


def _batches(
    path: Path,
    facts: dict[str, Any],
    records: npt.NDArray[Any],
    ids: Ints,
    names: dict[int, str],
    weights: npt.NDArray[np.float64] | None,
) -> Iterator[Batch]:
    """Yield the records, those of one schema, role and transport together."""
    transports, numbers = _transports(records["peer"], names)
    kinds = (records["schema"].astype(np.int64) * 4 + (records["role"] & 3)) * len(transports) + numbers
    same = len(kinds) > 0 and (kinds == kinds[0]).all()
    for kind in [int(kinds[0])] if same else np.unique(kinds).tolist():
        chosen = slice(None) if same else kinds == kind
        schema, transport = kind // len(transports), transports[kind % len(transports)]
        batch = _batch(segment_of(path, facts, schema % 4, transport), _schema(names.get(schema // 4, "")),
                       records[chosen], ids[chosen], names)  # fmt: skip
        more = _more(records[chosen], names)
        if weights is not None:
            more["weights"] = weights[chosen]
        yield replace(batch, boot=str(facts.get("boot", "")), **more)


def _transports(peers: npt.NDArray[Any], names: dict[int, str]) -> tuple[list[str], Ints]:
    """Return the transports over which the peers are reached, and the number of each record's."""
    if not peers.any():
        return [""], np.zeros(len(peers), np.int64)
    used, place = np.unique(peers, return_inverse=True)
    of_used = [transport_of(names.get(number, "")) for number in used.tolist()]
    transports = sorted(set(of_used))
    return transports, np.array([transports.index(name) for name in of_used], np.int64)[place]


def keys_of(records: npt.NDArray[Any]) -> Keys:
    """Return one number for trace id and span id of each record; 0 for those without a span id."""
    trace = records["trace"]
    mixed: Keys = (records["span"] * _ODD ^ trace[:, 0]) * _ODD ^ trace[:, 1]
    return np.where(records["span"] != 0, mixed | np.uint64(1), np.uint64(0))


def _more(records: npt.NDArray[Any], names: dict[int, str]) -> dict[str, Any]:
    """Return the columns that only some calls have."""
    more: dict[str, Any] = {}
    if records["span"].any():
        more["key"] = keys_of(records)
    if records["trace"].any():
        more["traces"] = records["trace"]
    if records["buffers"].any():
        used, layout = np.unique(records["buffers"], return_inverse=True)
        more["layouts"] = [names.get(number, "") for number in used.tolist()]
        more["layout"] = layout.astype(np.int64)
    return more


def _schema(text: str) -> Schema:
    try:
        return parse_schema(text)
    except ConfigError:
        return Schema("unknown", tuple(f"stage {number}" for number in range(1, MAX_STAGES + 1)))


def _batch(segment: Segment, schema: Schema, rows: npt.NDArray[Any], ids: Ints, names: dict[int, str]) -> Batch:
    count = len(schema.stages)
    stamps = rows["stamps"]
    ends = np.minimum(rows["ends"].astype(np.int64), count)
    stages: Ints = np.diff(stamps[:, : count + 1], axis=1)
    if (ends == count).all():
        total: Ints = stamps[:, count] - stamps[:, 0]
    else:
        stages[np.arange(count)[None, :] >= ends[:, None]] = 0
        total = np.take_along_axis(stamps, ends[:, None], axis=1)[:, 0] - stamps[:, 0]
    sent, recv = rows["sent"].astype(np.int64), rows["recv"].astype(np.int64)
    if schema.name not in COUNTED:
        unsized = (sent == 0) & (recv == 0) & (rows["flags"] & EMPTY == 0)
        sent, recv = np.where(unsized, UNKNOWN, sent), np.where(unsized, UNKNOWN, recv)
    used = np.flatnonzero(np.bincount(rows["method"]))
    places = np.zeros(2**16, np.int64)
    places[used] = np.arange(len(used))
    is_timed, begin = schema.name not in TIMELESS, stamps[:, 0].copy()
    if not is_timed:
        begin, total, stages = np.full_like(begin, UNKNOWN), np.zeros_like(total), np.zeros_like(stages)
    return Batch(
        segment,
        schema.stages,
        [names.get(number, f"(name {number})") for number in used.tolist()],
        ids,
        places[rows["method"]],
        begin,
        total,
        stages,
        sent,
        recv,
        (rows["flags"] & FAILED) != 0,
        is_timed=is_timed,
    )


class SegmentFile:
    """A segment that is read piece by piece while it may grow.

    Args:
        path: of the file.
        clocks: shared by all files that are read together.
        growing: whether a process may be writing it. A marker is written last, but one copy of a record may hold its
            marker and stale bytes before it, so records are read again once their markers were seen.
    """

    def __init__(self, path: Path, clocks: Clocks, *, growing: bool = False) -> None:
        self.path = path
        self.impossible_count = 0
        self._clocks = clocks
        self._growing = growing
        self._facts: dict[str, Any] = {}
        self._process: Process | None = None
        self._ids = (0, 0)
        self._names: dict[int, str] = {0: ""}
        self._pieces: dict[int, bytes] = {}
        self._offset = HEADER_BYTES
        self._pending: list[int] = []

    @property
    def unfinished_count(self) -> int:
        """Slots before a complete one that were never finished, so far."""
        return len(self._pending)

    def read_new(self) -> Iterator[Calls]:
        """Yield the calls that are complete and were not yielded before.

        Raises:
            StoreError: it cannot be read, or is not a segment of this version.
        """
        with as_store_errors(self.path), regular(self.path).open("rb", buffering=0) as file:
            process = self._process or self._begin(file)
            if process is None:
                return
            yield from self._late(file, process)
            while rows := self._next(file):
                yield from self._sorted(process, *rows)

    def _begin(self, file: IO[bytes]) -> Process | None:
        """Read the header; None while there is none."""
        data = file.read(HEADER_BYTES)
        if not data.strip(b"\0"):
            return None
        try:
            self._facts = unpack_header(data, SEGMENT_MAGIC)[1]
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.path}: not a file of a trace: {error}") from error
        ids = self._facts.get("ids")
        if isinstance(ids, list) and len(ids) == 2:
            self._ids = (_hexadecimal(ids[0]), _hexadecimal(ids[1]))
        self._process = self._clocks.process(self.path, self._facts)
        return self._process

    def _next(self, file: IO[bytes]) -> tuple[Rows, Ints] | None:
        """Return the next complete records and their offsets; None if there are none."""
        data = _read_at(file, self._offset, _CHUNK_SLOTS * RECORD_BYTES)
        rows, offsets, whole = _parse(data, self._offset)
        used = int(np.flatnonzero(whole)[-1]) + 1 if whole.any() else 0
        if not used:
            return None
        if self._growing:
            rows = _parse(_read_at(file, self._offset, used * RECORD_BYTES), self._offset)[0]
            used = min(used, len(rows))
        self._offset += used * RECORD_BYTES
        whole = whole[:used]
        self._pending = [*self._pending, *offsets[:used][~whole].tolist()][-_MOST_PENDING:]
        return rows[:used][whole], offsets[:used][whole]

    def _late(self, file: IO[bytes], process: Process) -> Iterator[Calls]:
        """Yield calls that were completed after later ones, as in a signal handler's caller."""
        for offset in self._pending if self._growing else ():
            rows, offsets, whole = _parse(_read_at(file, offset, RECORD_BYTES), offset)
            if whole.any():
                self._pending = [pending for pending in self._pending if pending != offset]
                yield from self._sorted(process, rows, offsets)

    def _sorted(self, process: Process, rows: Rows, offsets: Ints) -> Iterator[Calls]:
        """Yield the calls among some records, those of one schema and role together."""
        _learn(rows[rows["kind"] == NAME], self._names, self._pieces)
        calls = (rows["kind"] == CALL) & (rows["ends"] >= 1) & (rows["ends"] <= MAX_STAGES) & (rows["role"] < 4)
        possible = (rows["stamps"][:, 0] >= 0) & (rows["stamps"] < _LARGEST).all(axis=1)
        possible &= (rows["sent"] < _LARGEST) & (rows["recv"] < _LARGEST)
        self.impossible_count += int(np.count_nonzero(calls & ~possible))
        rows, offsets = rows[calls & possible], offsets[calls & possible]
        kinds = rows["schema"].astype(np.int64) * 4 + rows["role"]
        for kind in np.unique(kinds).tolist():
            chosen = kinds == kind
            yield self._calls(process, kind % 4, kind // 4, rows[chosen], offsets[chosen])

    def _calls(self, process: Process, role: int, schema_id: int, rows: Rows, offsets: Ints) -> Calls:
        schema = _schema(self._names.get(schema_id, ""))
        slots: Ints = (offsets - HEADER_BYTES) // RECORD_BYTES
        batch = _batch(segment_of(self.path, self._facts, role), schema, rows, slots, self._names)
        methods = [self._name(number) for number in np.unique(rows["method"]).tolist()]
        peers, errors = ([self._name(number) for number in rows[side].tolist()] for side in ("peer", "error"))
        return Calls(
            replace(batch, methods=methods, key=keys_of(rows), boot=process.boot),
            process, *self._identities(rows, slots), (rows["flags"] & KEPT) != 0, schema.name, peers, errors,
        )  # fmt: skip

    def _identities(self, rows: Rows, slots: Ints) -> tuple[Unsigned, Unsigned]:
        """Return trace and span ids; a 0 follows from the file's first ids and the slot's number."""
        own = np.uint64(self._ids[1]) + slots.astype(np.uint64)
        span: Unsigned = np.where(rows["span"] == 0, own, rows["span"])
        none = (rows["trace"] == 0).all(axis=1)
        trace: Unsigned = rows["trace"].copy()
        trace[none, 0], trace[none, 1] = np.uint64(self._ids[0]), own[none]
        return trace, span

    def _name(self, number: int) -> str:
        return self._names.get(number) or ("" if number == 0 else f"(name {number})")


def _read_at(file: IO[bytes], offset: int, size_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(size_bytes)


def _parse(data: bytes, offset: int) -> tuple[Rows, Ints, npt.NDArray[np.bool_]]:
    """Return slots, their offsets, and whether each was finished."""
    count = len(data) // RECORD_BYTES
    rows = np.frombuffer(data, RECORD, count)
    offsets: Ints = offset + np.arange(count, dtype=np.int64) * RECORD_BYTES
    return rows, offsets, rows["marker"] == offsets.astype(np.uint64) ^ np.uint64(MARKER)


def _hexadecimal(text: object) -> int:
    try:
        return int(str(text), 16) & (2**64 - 1)
    except ValueError:
        return 0


def read_histograms(path: Path, notes: Notes) -> Iterator[Bulk]:
    """Yield the histograms of a file; one that was killed while it was made is left out, and counted as damaged.

    Raises:
        StoreError: it cannot be opened, or is not a file of histograms of this version.
    """
    with as_store_errors(path), regular(path).open("rb") as file:
        block_bytes, facts = _header(file, path, HISTOGRAMS_MAGIC, notes)
        if not facts:
            return
        if not HISTOGRAMS_BYTES <= block_bytes <= _MAX_BLOCK_BYTES:
            raise StoreError(f"{path}: not a file of a trace: blocks of {block_bytes:,} bytes")
        file.seek(0)
        while block := file.read(block_bytes):
            try:
                facts = unpack_header(block, HISTOGRAMS_MAGIC)[1]
                cells = np.frombuffer(block, "<u8", SUM_CELLS + BIN_COUNT, HEADER_BYTES)
                if (cells >= _LARGEST).any() or cells[SUM_CELLS:].astype(np.float64).sum() >= _LARGEST:
                    notes.damaged(path.name, "a histogram with impossible numbers")
                    continue
                yield _bulk(path, facts, cells)
            except (ValueError, RecursionError):
                notes.damaged(path.name, "a histogram file that was never finished")


def _bulk(path: Path, facts: dict[str, Any], cells: npt.NDArray[np.uint64]) -> Bulk:
    schema = _schema(str(facts.get("schema", "")))
    role = facts.get("role")
    halves = [cells[at : at + SUMS_COUNT].astype(np.int64).tolist() for at in (1, SUM_CELLS // 2)]
    sums = max((half for half in halves if half[0] == half[-1]), default=[0] * SUMS_COUNT)
    if schema.name not in COUNTED and sums[2] == sums[3] == 0:
        sums[2] = sums[3] = UNKNOWN
    return Bulk(
        segment_of(path, facts, role if isinstance(role, int) else 0, transport_of(str(facts.get("peer", "")))),
        schema.stages,
        str(facts.get("method", "?")),
        cells[SUM_CELLS:].astype(np.int64),
        summed_count=sums[0],
        untimed_count=int(cells[0].astype(np.int64)),
        failed_count=sums[1],
        sent_bytes=sums[2],
        recv_bytes=sums[3],
        total_ns=sums[4],
        longest_ns=sums[5],
        stage_ns=np.array(sums[6 : 6 + len(schema.stages)], dtype=np.int64),
    )
