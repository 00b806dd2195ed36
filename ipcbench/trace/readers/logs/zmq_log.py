"""Reads zmq_performance.log in all its sets of columns, which are found by their names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Claim, Ints, Notes, Segment, printable
from ipcbench.trace.readers.logs.points import rows_by_points
from ipcbench.trace.readers.logs.rows import Floats, Rows, numbers, rows_at_once, rows_one_by_one
from ipcbench.trace.schema import CLIENT, RPC

_Line: TypeAlias = tuple[int, str]
"""Its number in its file, and itself."""

_FEW = 64
"""Rows that are not worth the overhead of reading them at once."""

_MOST_SEGMENTS = 500
_MOST_CLAIMS = 100
_MOST_EXPECTED = 1000
_MOST_WAITING = 20
"""Segments kept apart, summaries, ids that some client writes next, and clients that write the same one next; so that
memory is bounded."""

_TITLE = re.compile(r"ZeroMQ Performance Log.*?- Transport:\s*(.*)")
_ORDERED = re.compile(r"ZeroMQ|ID\s|SUMMARY")
"""What changes the meaning of the rows behind it, or is about those before it."""

_NAMED = re.compile(r"(\S+)\((\w+(?:/\w+)?)\)")
_VALUE = re.compile(r"\s*([^:]{1,80}):\s*(-?[\d.]+(?:[eE][-+]?\d+)?|-?inf|nan)?\s*(\S+)?(?:\s*\((-?[\d.]+)\s*MB\))?\s*")

_COLUMNS = {
    "serialize(ms)": "serialize", "ser(ms)": "serialize", "send(ms)": "send", "recv(ms)": "wait",
    "deserialize(ms)": "deserialize", "deser(ms)": "deserialize", "comm(ms)": "comm", "gpu(ms)": "server",
    "compute(ms)": "server", "offline(ms)": "outside", "total(ms)": "total", "sent(kb)": "sent", "recv(kb)": "recv",
    "throughput(mb/s)": "throughput",
}  # fmt: skip
_NEEDED = {"total", *RPC.stages}

_LARGEST = 9e15
"""ns and bytes that a record can hold exactly; a hundred days."""

_THROUGHPUT_TOLERANCE = 0.02
_THROUGHPUT_STEP = 0.02
"""Printed with two decimals, from times and sizes that are rounded too."""


class ZmqLog:
    """The state of reading one log: its columns, its clients, the summary being read."""

    def __init__(self, source: str, notes: Notes) -> None:
        self._source = source
        self._notes = notes
        self._columns: dict[str, int] = {}
        self._width = 0
        self._transport = ""
        self._segments_count = 0
        self._current: Segment | None = None
        self._expected: dict[int, list[Segment]] = {}
        self._last_id = 0
        self._claim: Claim | None = None
        self._section = ""
        self._others = Segment(source, "(further segments)", role=CLIENT)

    @property
    def active(self) -> bool:
        """Whether a header was seen."""
        return self._width > 0

    def feed(self, block: bytes, first_number: int) -> Iterator[Batch]:
        """Yield the calls of some lines; the first has that number in its file."""
        if self._width and (rows := rows_by_points(block, self._width - 2)):
            yield from self._accept(rows)
            return
        waiting: list[_Line] = []
        for number, line in enumerate(block.decode("utf-8", "replace").split("\n"), first_number):
            words = line.split(None, 1)
            if self._width and len(words) == 2 and words[0].isdecimal():  # a date is no id
                waiting.append((number, line))
            elif words:
                if waiting and (self._claim is not None or _ORDERED.search(line)):
                    yield from self._rows(waiting)
                    waiting = []
                self._odd(line, line.split(), number)
        if waiting:
            yield from self._rows(waiting)

    def _rows(self, lines: list[_Line]) -> Iterator[Batch]:
        """Yield the calls of lines that begin with a digit; one that is odd makes only those near it slow to read."""
        texts = [text for _, text in lines]
        count = self._width - 2
        rows = rows_by_points("\n".join(texts).encode(), count) if len(texts) >= _FEW else None
        rows = rows or rows_at_once(texts, count)
        if rows:
            yield from self._accept(rows)
        elif len(lines) <= _FEW:
            yield from self._one_by_one(lines)
        else:
            yield from self._rows(lines[: len(lines) // 2])
            yield from self._rows(lines[len(lines) // 2 :])

    def _one_by_one(self, lines: list[_Line]) -> Iterator[Batch]:
        rows: list[list[str]] = []
        for number, line in lines:
            parts = line.split()
            row = parts if len(parts) == self._width else self._spread(parts)
            if row is None or not parts[0].isdecimal():
                self._odd(line, parts, number)
            elif numbers(row[2:]) is None:
                self._notes.damaged(f"{self._source}:{number}", line.strip())
            else:
                rows.append(row)
        if rows:
            yield from self._accept(rows_one_by_one(rows, self._width - 2))

    def _odd(self, line: str, parts: list[str], number: int) -> None:
        """Take a line that is no row."""
        title = _TITLE.search(line)
        if title:
            self._transport = printable(title[1].strip()[:100])
            self._claim = None
        elif parts[:2] == ["ID", "Method"]:
            self._header(line, number)
        elif parts[0] == "SUMMARY":
            self._claim, self._section = Claim(self._current, {}), ""
            if len(self._notes.claims) < _MOST_CLAIMS:
                self._notes.claims.append(self._claim)
        elif set(line.strip()) == {"="} and len(parts[0]) >= 20:
            return
        elif self._claim is not None and (match := _VALUE.fullmatch(line)):
            self._take_value(self._claim, line, number, match)
        elif parts == ["..."]:
            self._notes.counts["left out by an ellipsis"] += 1
        elif self._width:
            self._notes.damaged(f"{self._source}:{number}", line.strip())
        else:
            self._notes.foreign_count += 1

    def _header(self, line: str, number: int) -> None:
        names = [f"{name}({unit})".lower() for name, unit in _NAMED.findall(line)]
        columns = {_COLUMNS.get(name, name): index + 2 for index, name in enumerate(names)}
        if not columns.keys() >= _NEEDED:
            self._notes.damaged(f"{self._source}:{number}", f"unknown columns: {' '.join(names)}")
            return
        self._columns, self._width, self._claim = columns, len(names) + 2, None

    def _spread(self, parts: list[str]) -> list[str] | None:
        """Return the row of a method whose name has blanks; None if there are too few words."""
        surplus = len(parts) - self._width
        return None if surplus <= 0 else [parts[0], " ".join(parts[1 : 2 + surplus]), *parts[2 + surplus :]]

    def _take_value(self, claim: Claim, line: str, number: int, match: re.Match[str]) -> None:
        if match[2] is None:
            self._section = printable(match[1].strip())
            return
        section = f"{self._section}: " if line[0].isspace() and self._section else ""
        value = numbers([match[2]])
        if value is None or not math.isfinite(value[0]):
            self._notes.damaged(f"{self._source}:{number}", line.strip())
        elif len(claim.values) < 200:
            claim.values[section + printable(match[1].strip())] = value[0]

    def _accept(self, rows: Rows) -> Iterator[Batch]:
        """Yield the rows whose times and sizes can be kept, those of one client together."""
        used = [index - 2 for name, index in self._columns.items() if name != "throughput"]
        keep = np.all(np.abs(rows.table[used]) < _LARGEST / 1e6, axis=0)  # False for what is no number, too
        if not keep.all():
            for index in np.flatnonzero(~keep).tolist():
                self._notes.damaged(self._source, f"id {rows.ids[index]}: a time or size that is no number")
            rows = rows.take(keep)
        ids = rows.ids
        if not len(ids):
            return
        self._claim = None
        if self._current is not None and ids[0] == self._last_id + 1 and (np.diff(ids) == 1).all():
            self._forget(self._last_id + 1, self._current)
            self._expected.setdefault(int(ids[-1]) + 1, []).append(self._current)
            self._last_id = int(ids[-1])
            yield self._batch(self._current, rows)
            return
        owners: dict[Segment, list[int]] = {}
        for index, number in enumerate(ids.tolist()):
            owners.setdefault(self._owner(number), []).append(index)
        for segment, chosen in owners.items():
            yield self._batch(segment, rows.take(chosen))

    def _owner(self, number: int) -> Segment:
        """Return the client that wrote a row: the one whose next id it is, else the current one, or a new one."""
        waiting = self._expected.get(number, []) if number != 1 else []
        segment = waiting[0] if waiting else None
        if segment is not None:
            self._forget(number, segment)
        if segment is None and self._current is not None and 1 <= self._last_id < number:
            segment = self._current
            self._notes.counts["missing ids"] += number - self._last_id - 1
            self._forget(self._last_id + 1, segment)
        if segment is None and self._segments_count >= _MOST_SEGMENTS:
            segment = self._others
        if segment is None:
            self._segments_count += 1
            shm = "SHM" in self._transport.upper()
            segment = Segment(self._source, f"segment {self._segments_count}", self._transport, role=CLIENT,
                              bytes_are_partial=shm)  # fmt: skip
        self._current, self._last_id = segment, number
        if len(self._expected) > _MOST_EXPECTED:
            self._expected.pop(next(iter(self._expected)))
        waiting = self._expected.setdefault(number + 1, [])
        waiting.append(segment)
        del waiting[:-_MOST_WAITING]
        return segment

    def _forget(self, number: int, segment: Segment) -> None:
        """Expect `number` no longer of `segment`."""
        waiting = self._expected.get(number, [])
        if segment in waiting:
            waiting.remove(segment)
        if not waiting:
            self._expected.pop(number, None)

    def _batch(self, segment: Segment, rows: Rows) -> Batch:
        ids, methods, method, table = rows

        def column(name: str, unit: float) -> Ints | None:
            index = self._columns.get(name)
            return None if index is None else np.rint(table[index - 2] * unit).astype(np.int64)

        def there(name: str, unit: float) -> Ints:
            found = column(name, unit)
            return np.zeros(len(ids), np.int64) if found is None else found

        batch = Batch(
            segment,
            RPC.stages,
            methods,
            ids,
            method,
            np.full(len(ids), UNKNOWN_NS, dtype=np.int64),
            there("total", 1e6),
            np.stack([there(stage, 1e6) for stage in RPC.stages], axis=1),
            there("sent", 1024.0),
            there("recv", 1024.0),
            np.zeros(len(ids), dtype=np.bool_),
            column("server", 1e6),
            column("outside", 1e6),
        )
        if "throughput" in self._columns:
            self._check_throughput(table, batch)
        return batch

    def _check_throughput(self, table: Floats, batch: Batch) -> None:
        printed = table[self._columns["throughput"] - 2]
        total_s = np.where(batch.total_ns > 0, batch.total_ns, np.inf) / 1e9
        moved = (batch.sent_bytes + batch.recv_bytes) / 2**20
        with np.errstate(over="ignore", invalid="ignore"):
            computed = moved / total_s
            slack = _THROUGHPUT_STEP + 20 / 2**20 / total_s + _THROUGHPUT_TOLERANCE * computed
            wrong = np.isfinite(printed) & (np.abs(printed - computed) > slack)
        self._notes.counts["rows with a printed throughput"] += len(printed)
        self._notes.counts["throughputs that differ by more than 2 %"] += int(np.count_nonzero(wrong))
