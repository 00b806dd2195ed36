"""Reads a segment (.ipct) piece by piece while its process may go on writing it, with the ids of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.format import (
    CALL,
    FAILED,
    HEADER_BYTES,
    KEPT,
    MARKER,
    NAME,
    NAME_BYTES,
    RECORD_BYTES,
    SEGMENT_MAGIC,
    unpack_header,
)
from ipcbench.trace.readers.batch import Batch, Ints
from ipcbench.trace.readers.calls import Calls, Clocks, Process, Unsigned
from ipcbench.trace.readers.own import RECORD, keys_of, segment_of
from ipcbench.trace.schema import MAX_STAGES, Schema, parse_schema
from ipcbench.util.files import as_store_errors

_NAME = np.dtype([
    ("kind", "u1"), ("spare", "u1"), ("id", "<u2"), ("piece", "<u2"), ("length", "<u2"), ("text", f"V{NAME_BYTES}"),
    ("marker", "<u8"),
])  # fmt: skip

_CHUNK_RECORDS = 4096
_MOST_PENDING = 256
_LARGEST = 2**62

Rows = npt.NDArray[Any]


class SegmentFile:
    """A segment that is read piece by piece while it may grow.

    Args:
        path: of the file.
        clocks: shared by all files that are read together.
        growing: whether somebody may be writing: records are then read again after their markers were seen, since a
            marker is written last, but a copy may have met the rest before.
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
        with as_store_errors(self.path), self.path.open("rb", buffering=0) as file:
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
        data = _read_at(file, self._offset, _CHUNK_RECORDS * RECORD_BYTES)
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
                self._pending = [one for one in self._pending if one != offset]
                yield from self._sorted(process, rows, offsets)

    def _sorted(self, process: Process, rows: Rows, offsets: Ints) -> Iterator[Calls]:
        """Yield the calls among some records, those of one schema and role together."""
        self._learn(rows[rows["kind"] == NAME])
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
        count = len(schema.stages)
        stamps = rows["stamps"]
        ends = np.minimum(rows["ends"].astype(np.int64), count)
        stages: Ints = np.diff(stamps[:, : count + 1], axis=1)
        stages[np.arange(count)[None, :] >= ends[:, None]] = 0
        total: Ints = np.take_along_axis(stamps, ends[:, None], axis=1)[:, 0] - stamps[:, 0]
        used, method = np.unique(rows["method"], return_inverse=True)
        slots: Ints = (offsets - HEADER_BYTES) // RECORD_BYTES
        batch = Batch(
            segment_of(self.path, self._facts, role), schema.stages, [self._name(one) for one in used.tolist()], slots,
            method.astype(np.int64), stamps[:, 0].copy(), total, stages, rows["sent"].astype(np.int64),
            rows["recv"].astype(np.int64), (rows["flags"] & FAILED) != 0, key=keys_of(rows), boot=process.boot,
        )  # fmt: skip
        return Calls(
            batch, process, *self._identities(rows, slots), (rows["flags"] & KEPT) != 0, schema.name,
            [self._name(one) for one in rows["peer"].tolist()], [self._name(one) for one in rows["error"].tolist()],
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

    def _learn(self, rows: Rows) -> None:
        """Keep the names that records hold."""
        for row in rows.view(_NAME):
            number, length = int(row["id"]), int(row["length"])
            text = (self._pieces.get(number, b"") if row["piece"] else b"") + bytes(row["text"])
            self._pieces[number] = text
            if len(text) >= length:
                self._names[number] = self._pieces.pop(number)[:length].decode("utf-8", "replace")


def _read_at(file: IO[bytes], offset: int, size_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(size_bytes)


def _parse(data: bytes, offset: int) -> tuple[Rows, Ints, npt.NDArray[np.bool_]]:
    """Return slots, their offsets, and whether each was finished."""
    count = len(data) // RECORD_BYTES
    rows = np.frombuffer(data, RECORD, count)
    offsets: Ints = offset + np.arange(count, dtype=np.int64) * RECORD_BYTES
    return rows, offsets, rows["marker"] == offsets.astype(np.uint64) ^ np.uint64(MARKER)


def _schema(text: str) -> Schema:
    try:
        return parse_schema(text)
    except ConfigError:
        return Schema("unknown", tuple(f"stage {number}" for number in range(1, MAX_STAGES + 1)))


def _hexadecimal(text: object) -> int:
    try:
        return int(str(text), 16) & (2**64 - 1)
    except ValueError:
        return 0
