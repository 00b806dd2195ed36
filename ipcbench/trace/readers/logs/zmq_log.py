"""Reads zmq_performance.log in all its sets of columns, which are recognised by their names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Claim, Notes, Segment, printable
from ipcbench.trace.schema import CLIENT, RPC

_MOST_SEGMENTS, _MOST_CLAIMS, _MOST_VALUES, _MOST_EXPECTED, _MOST_WAITING = 500, 100, 200, 1000, 20
"""Segments kept apart, summaries, values in one, ids that some client writes next, and clients that write the same."""

_LONGEST_NAME, _MOST_ID_DIGITS = 128, 18

_TITLE = re.compile(r"ZeroMQ Performance Log.*?- Transport:\s*(.*)")
_ORDERED = re.compile(r"ZeroMQ|ID\s|SUMMARY")
"""Lines that change the meaning of the rows behind them, or are about those before them."""

_NAMED = re.compile(r"(\S+)\((\w+(?:/\w+)?)\)")
_VALUE = re.compile(r"\s*([^:]{1,80}):\s*(-?[\d.]+(?:[eE][-+]?\d+)?|-?inf|nan)?\s*(\S+)?(?:\s*\((-?[\d.]+)\s*MB\))?\s*")

_COLUMNS = {
    "serialize(ms)": "serialize", "ser(ms)": "serialize", "send(ms)": "send", "recv(ms)": "wait",
    "deserialize(ms)": "deserialize", "deser(ms)": "deserialize", "comm(ms)": "comm", "gpu(ms)": "server",
    "compute(ms)": "server", "offline(ms)": "outside", "total(ms)": "total", "sent(kb)": "sent", "recv(kb)": "recv",
    "throughput(mb/s)": "throughput",
}  # fmt: skip
_NEEDED = {"total", *RPC.stages}

_Row: TypeAlias = tuple[int, str, list[float]]
"""Its id, its method, and its columns."""

_LARGEST = 9e15  # ns and bytes that a record can hold exactly; a hundred days
_THROUGHPUT_STEP = 0.02  # they are printed with two decimals, from times and sizes that are rounded too


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
        self.active = False  # until a header was seen

    def feed(self, lines: Iterable[tuple[int, str]]) -> Iterator[Batch]:
        """Yield the calls of some lines, each with its number in its file.

        A row is an id, a method whose name may have blanks, and a number a column.
        """
        rows: list[_Row] = []
        for number, line in lines:
            words = line.split()
            is_row = self._width and len(words) > 1 and words[0].isdecimal()  # a date is no id
            surplus = len(words) - self._width
            if is_row and surplus >= 0:
                try:
                    values = list(map(float, words[2 + surplus :]))
                except ValueError:
                    self._notes.damaged(f"{self._source}:{number}", line.strip())
                    continue
                name = " ".join(words[1 : 2 + surplus]) if surplus else words[1]
                rows.append((int(words[0][:_MOST_ID_DIGITS]), name[:_LONGEST_NAME], values))
            elif words:
                if rows and not is_row and (self._claim is not None or _ORDERED.search(line)):
                    yield from self._accept(rows)
                    rows = []
                self._take_other(line, words, number)
        if rows:
            yield from self._accept(rows)

    def _take_other(self, line: str, words: list[str], number: int) -> None:
        """Take a line that is not a row."""
        if title := _TITLE.search(line):
            self._transport = printable(title[1].strip()[:100])
            self._claim = None
        elif words[:2] == ["ID", "Method"]:
            self._take_header(line, number)
        elif words[0] == "SUMMARY":
            self._claim, self._section = Claim(self._current, {}), ""
            if len(self._notes.claims) < _MOST_CLAIMS:
                self._notes.claims.append(self._claim)
        elif set(line.strip()) == {"="} and len(words[0]) >= 20:
            return
        elif self._claim is not None and (match := _VALUE.fullmatch(line)):
            self._take_value(self._claim, line, number, match)
        elif words == ["..."]:
            self._notes.counts["left out by an ellipsis"] += 1
        elif self._width:
            self._notes.damaged(f"{self._source}:{number}", line.strip())
        else:
            self._notes.foreign_count += 1

    def _take_header(self, line: str, number: int) -> None:
        names = [f"{name}({unit})".lower() for name, unit in _NAMED.findall(line)]
        columns = {_COLUMNS.get(name, name): index for index, name in enumerate(names)}
        if not columns.keys() >= _NEEDED:
            self._notes.damaged(f"{self._source}:{number}", f"unknown columns: {' '.join(names)}")
            return
        self._columns, self._width, self._claim, self.active = columns, len(names) + 2, None, True

    def _take_value(self, claim: Claim, line: str, number: int, match: re.Match[str]) -> None:
        if match[2] is None:
            self._section = printable(match[1].strip())
            return
        section = f"{self._section}: " if line[0].isspace() and self._section else ""
        try:
            value = float(match[2])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self._notes.damaged(f"{self._source}:{number}", line.strip())
        elif len(claim.values) < _MOST_VALUES:
            claim.values[section + printable(match[1].strip())] = value

    def _accept(self, rows: list[_Row]) -> Iterator[Batch]:
        """Yield the rows whose times and sizes can be kept, those of one client together."""
        used = [index for name, index in self._columns.items() if name != "throughput"]
        keep = np.all(np.abs(np.array([values for _, _, values in rows])[:, used]) < _LARGEST / 1e6, axis=1)  # not NaN
        for index in np.flatnonzero(~keep).tolist():
            self._notes.damaged(self._source, f"id {rows[index][0]}: a time or size that is no number")
        kept = [rows[index] for index in np.flatnonzero(keep).tolist()]
        if not kept:
            return
        self._claim = None
        first, last = self._last_id + 1, kept[-1][0]
        owners: dict[Segment, list[_Row]] = {}
        if self._current is not None and [row[0] for row in kept] == list(range(first, first + len(kept))):
            self._forget(first, self._current)
            self._expected.setdefault(last + 1, []).append(self._current)
            self._last_id = last
            owners[self._current] = kept
        else:
            for row in kept:
                owners.setdefault(self._owner(row[0]), []).append(row)
        for segment, chosen in owners.items():
            yield self._batch(segment, chosen)

    def _owner(self, number: int) -> Segment:
        """Return the client that wrote a row: the one whose next id it is, else the current one, or a new one."""
        waiting = self._expected.get(number, []) if number != 1 else []
        if waiting:
            segment = waiting[0]
            self._forget(number, segment)
        elif self._current is not None and 1 <= self._last_id < number:
            segment = self._current
            self._notes.counts["missing ids"] += number - self._last_id - 1
            self._forget(self._last_id + 1, segment)
        elif self._segments_count >= _MOST_SEGMENTS:
            segment = self._others
        else:
            self._segments_count += 1
            name, is_partial = f"segment {self._segments_count}", "SHM" in self._transport.upper()
            segment = Segment(self._source, name, self._transport, role=CLIENT, bytes_are_partial=is_partial)
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

    def _batch(self, segment: Segment, rows: list[_Row]) -> Batch:
        ids, names, values = zip(*rows, strict=True)
        table = np.array(values)
        methods = {name: index for index, name in enumerate(dict.fromkeys(names))}
        columns = {name: np.rint(table[:, index] * (1024.0 if name in {"sent", "recv"} else 1e6)).astype(np.int64)
                   for name, index in self._columns.items() if name != "throughput"}  # fmt: skip
        none = np.zeros(len(rows), np.int64)
        batch = Batch(
            segment, RPC.stages, list(methods), np.array(ids, np.int64),
            np.array([methods[name] for name in names], np.int64), np.full(len(rows), UNKNOWN_NS, np.int64),
            columns["total"], np.stack([columns[stage] for stage in RPC.stages], axis=1), columns.get("sent", none),
            columns.get("recv", none), none.astype(np.bool_), columns.get("server"), columns.get("outside"),
        )  # fmt: skip
        if "throughput" in self._columns:
            self._check_throughput(table[:, self._columns["throughput"]], batch)
        return batch

    def _check_throughput(self, printed: npt.NDArray[np.float64], batch: Batch) -> None:
        total_s = np.where(batch.total_ns > 0, batch.total_ns, np.inf) / 1e9
        moved = (batch.sent_bytes + batch.recv_bytes) / 2**20
        with np.errstate(over="ignore", invalid="ignore"):
            computed = moved / total_s
            slack = _THROUGHPUT_STEP + 20 / 2**20 / total_s + 0.02 * computed
            wrong = np.isfinite(printed) & (np.abs(printed - computed) > slack)
        self._notes.counts["rows with a printed throughput"] += len(printed)
        self._notes.counts["throughputs that differ by more than 2 %"] += int(np.count_nonzero(wrong))
