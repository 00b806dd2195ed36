"""Readers of our own trace files: segments (.ipct) and histograms (.ipch), also of killed processes."""

from __future__ import annotations

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
    FAILED,
    HEADER_BYTES,
    MARKER,
    NAME,
    NAME_BYTES,
    RECORD_BYTES,
    SEGMENT_MAGIC,
    SUM_CELLS,
    SUMS_COUNT,
    TALLY_BYTES,
    TALLY_MAGIC,
    unpack_header,
)
from ipcbench.trace.readers.batch import Batch, Bulk, Ints, Keys, Notes, Segment, printable
from ipcbench.trace.schema import CLIENT, MAX_STAGES, RECEIVER, SERVER_SIDE, Schema, parse_schema
from ipcbench.util.files import as_store_errors

_ROLES = {CLIENT: " (client)", SERVER_SIDE: " (server)", RECEIVER: " (receiver)"}

_ODD = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_RECORDS = 8_192
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


def read_segment(path: Path, notes: Notes) -> Iterator[Batch]:
    """Yield the calls of a segment, at most 8,192 at a time; slots that were never finished are no calls.

    Raises:
        StoreError: it cannot be opened, or is not a segment of this version.
    """
    with as_store_errors(path), path.open("rb") as file:
        facts = _header(file, path, SEGMENT_MAGIC, notes)[1]
        if not facts:
            return
        names: dict[int, str] = {0: ""}
        pieces: dict[int, bytes] = {}
        offset = HEADER_BYTES
        room = memoryview(
            bytearray(_CHUNK_RECORDS * RECORD_BYTES)
        )  # the same for all: new pages cost more than reading
        while size := file.readinto(room):
            records = np.frombuffer(room, RECORD, size // RECORD_BYTES)
            offsets = offset + np.arange(len(records), dtype=np.uint64) * RECORD_BYTES
            kinds = records["kind"]
            whole = records["marker"] == offsets ^ MARKER
            calls = whole & (kinds == CALL) & (records["ends"] >= 1) & (records["ends"] <= MAX_STAGES)
            ids = ((offsets - HEADER_BYTES) // RECORD_BYTES).astype(np.int64)
            if not calls.all():
                notes.counts["torn records"] += int(np.count_nonzero(~whole & (kinds != 0)))
                _learn(records[whole & (kinds == NAME)], names, pieces)
                records, ids = records[calls], ids[calls]
            yield from _batches(path, facts, records, ids, names)
            offset += size


def _header(file: IO[bytes], path: Path, magic: bytes, notes: Notes) -> tuple[int, dict[str, Any]]:
    """Return the size of what follows, and the facts; none for a file whose process was killed while it made it."""
    data = file.read(HEADER_BYTES)
    if not data.strip(b"\0"):
        notes.counts["files never begun"] += 1
        return 0, {}
    try:
        block_bytes, facts = unpack_header(data, magic)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not a file of a trace: {error}") from error
    notes.facts.append(facts)
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


def segment_of(path: Path, facts: dict[str, Any], role: int) -> Segment:
    """Return the segment that a file's calls belong to: those of one service in one role, whichever process."""
    worker = printable(f"{facts.get('host', '?')}:{facts.get('pid', '?')}")
    service = printable(str(facts.get("service") or "process"))
    return Segment(str(path.parent), f"{service}{_ROLES.get(role, '')}", worker=worker, role=role)


def _batches(
    path: Path, facts: dict[str, Any], records: npt.NDArray[Any], ids: Ints, names: dict[int, str]
) -> Iterator[Batch]:
    """Yield the records, those of one schema and role together."""
    kinds = records["schema"].astype(np.int64) * 4 + (records["role"] & 3)
    same = len(kinds) > 0 and (kinds == kinds[0]).all()
    for kind in [int(kinds[0])] if same else np.unique(kinds).tolist():
        chosen = slice(None) if same else kinds == kind
        batch = _batch(segment_of(path, facts, kind % 4), _schema(names.get(kind // 4, "")), records[chosen],
                       ids[chosen], names)  # fmt: skip
        yield replace(batch, boot=str(facts.get("boot", "")), **_more(records[chosen], names))


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
    used = np.flatnonzero(np.bincount(rows["method"]))
    places = np.zeros(2**16, np.int64)
    places[used] = np.arange(len(used))
    return Batch(
        segment,
        schema.stages,
        [names.get(number, f"(name {number})") for number in used.tolist()],
        ids,
        places[rows["method"]],
        stamps[:, 0].copy(),
        total,
        stages,
        rows["sent"].astype(np.int64),
        rows["recv"].astype(np.int64),
        (rows["flags"] & FAILED) != 0,
    )


def read_tally(path: Path, notes: Notes) -> Iterator[Bulk]:
    """Yield the tallies of a file; one that was killed while it was made is left out, and counted as damaged.

    Raises:
        StoreError: it cannot be opened, or is not a file of tallies of this version.
    """
    with as_store_errors(path), path.open("rb") as file:
        block_bytes, facts = _header(file, path, TALLY_MAGIC, notes)
        if not facts:
            return
        if not TALLY_BYTES <= block_bytes <= _MAX_BLOCK_BYTES:
            raise StoreError(f"{path}: not a file of a trace: blocks of {block_bytes:,} bytes")
        file.seek(0)
        while block := file.read(block_bytes):
            try:
                facts = unpack_header(block, TALLY_MAGIC)[1]
                yield _bulk(path, facts, np.frombuffer(block, "<u8", SUM_CELLS + BIN_COUNT, HEADER_BYTES))
            except (ValueError, RecursionError):
                notes.damaged(path.name, "a tally that was never finished")


def _bulk(path: Path, facts: dict[str, Any], cells: npt.NDArray[np.uint64]) -> Bulk:
    schema = _schema(str(facts.get("schema", "")))
    role = facts.get("role")
    halves = [cells[at : at + SUMS_COUNT].astype(np.int64).tolist() for at in (1, SUM_CELLS // 2)]
    sums = max((half for half in halves if half[0] == half[-1]), default=[0] * SUMS_COUNT)
    return Bulk(
        segment_of(path, facts, role if isinstance(role, int) else 0),
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
