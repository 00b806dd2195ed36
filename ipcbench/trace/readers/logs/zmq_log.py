"""Reads zmq_performance.log in all its sets of columns, which are recognised by their names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Claim, Notes, Segment, printable
from ipcbench.trace.schema import CLIENT, RPC

_LONGEST_NAME, _MOST_ID_DIGITS = 128, 18
_MOST_SEGMENTS, _MOST_CLAIMS, _MOST_VALUES, _MOST_EXPECTED, _MOST_WAITING = 500, 100, 200, 1000, 20
"""Segments kept apart, summaries, values in one, ids that some client writes next, and clients that write the same."""

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

_LARGEST = 9e15  # ns and bytes that a record can hold exactly; a hundred days
_THROUGHPUT_STEP = 0.02  # they are printed with two decimals, from times and sizes that are rounded too


@dataclass(slots=True)
class ZmqLog:
    """The state of reading one log: its columns, its clients, the summary being read."""

    source: str
    notes: Notes
    width: int = 0  # words in a row; 0 until a header was seen
    _columns: dict[str, int] = field(default_factory=dict)
    _transport: str = ""
    _segments_count: int = 0
    _current: Segment | None = None
    _expected: dict[int, list[Segment]] = field(default_factory=dict)
    _last_id: int = 0
    _claim: Claim | None = None
    _section: str = ""

    def feed(self, lines: Iterable[tuple[int, str]]) -> Iterator[Batch]:
        """Yield the calls of some lines, each with its number in its file.

        A row is an id, a method whose name may have blanks, and a number a column.
        """
        heads: list[tuple[int, str]] = []
        values: list[float] = []
        for number, line in lines:
            words = line.split()
            is_row = self.width and len(words) > 1 and words[0].isdecimal()  # a date is no id
            surplus = len(words) - self.width
            if is_row and surplus >= 0:
                try:
                    values += list(map(float, words[2 + surplus :]))
                except ValueError:
                    self.notes.damaged(f"{self.source}:{number}", line.strip())
                else:
                    name = " ".join(words[1 : 2 + surplus]) if surplus else words[1]
                    heads.append((int(words[0][:_MOST_ID_DIGITS]), name[:_LONGEST_NAME]))
            elif words:
                if heads and not is_row and (self._claim is not None or _ORDERED.search(line)):
                    yield from self._accept(heads, values)
                    heads, values = [], []
                self._take_other(line, words, number)
        if heads:
            yield from self._accept(heads, values)

    def _take_other(self, line: str, words: list[str], number: int) -> None:
        """Take a line that is not a row."""
        if title := _TITLE.search(line):
            self._transport, self._claim = printable(title[1].strip()[:100]), None
        elif words[:2] == ["ID", "Method"]:
            self._take_header(line, number)
        elif words[0] == "SUMMARY":
            self._claim, self._section = Claim(self._current, {}), ""
            if len(self.notes.claims) < _MOST_CLAIMS:
                self.notes.claims.append(self._claim)
        elif set(line.strip()) == {"="} and len(words[0]) >= 20:
            return
        elif self._claim is not None and (match := _VALUE.fullmatch(line)):
            self._take_value(self._claim, line, number, match)
        elif words == ["..."]:
            self.notes.counts["left out by an ellipsis"] += 1
        elif self.width:
            self.notes.damaged(f"{self.source}:{number}", line.strip())
        else:
            self.notes.foreign_count += 1

    def _take_header(self, line: str, number: int) -> None:
        names = [f"{name}({unit})".lower() for name, unit in _NAMED.findall(line)]
        columns = {_COLUMNS.get(name, name): index for index, name in enumerate(names)}
        if columns.keys() >= _NEEDED:
            self._columns, self.width, self._claim = columns, len(names) + 2, None
        else:
            self.notes.damaged(f"{self.source}:{number}", f"unknown columns: {' '.join(names)}")

    def _take_value(self, claim: Claim, line: str, number: int, match: re.Match[str]) -> None:
        name = printable(match[1].strip())
        if match[2] is None:
            self._section = name
            return
        section = f"{self._section}: " if line[0].isspace() and self._section else ""
        try:
            value = float(match[2])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.notes.damaged(f"{self.source}:{number}", line.strip())
        elif len(claim.values) < _MOST_VALUES:
            claim.values[section + name] = value

    def _accept(self, heads: list[tuple[int, str]], values: list[float]) -> Iterator[Batch]:
        """Yield the rows whose times and sizes can be kept, those of one client together."""
        table = np.array(values).reshape(len(heads), -1)
        used = [index for name, index in self._columns.items() if name != "throughput"]
        keep = np.all(np.abs(table[:, used]) < _LARGEST / 1e6, axis=1)  # False for NaN too
        for index in np.flatnonzero(~keep).tolist():
            self.notes.damaged(self.source, f"id {heads[index][0]}: a time or size that is no number")
        kept = np.flatnonzero(keep).tolist()
        if not kept:
            return
        self._claim = None
        ids, first = [heads[index][0] for index in kept], self._last_id + 1
        owners: dict[Segment, list[int]] = {}
        if self._current is not None and ids == list(range(first, first + len(ids))):
            self._forget(first, self._current)
            self._expected.setdefault(ids[-1] + 1, []).append(self._current)
            self._last_id = ids[-1]
            owners[self._current] = kept
        else:
            for number, index in zip(ids, kept, strict=True):
                owners.setdefault(self._owner(number), []).append(index)
        for segment, chosen in owners.items():
            yield self._batch(segment, [heads[index] for index in chosen], table[chosen])

    def _owner(self, number: int) -> Segment:
        """Return the client that wrote a row: the one whose next id it is, else the current one, or a new one."""
        waiting = self._expected.get(number, []) if number != 1 else []
        if waiting:
            segment = waiting[0]
            self._forget(number, segment)
        elif self._current is not None and 1 <= self._last_id < number:
            segment = self._current
            self.notes.counts["missing ids"] += number - self._last_id - 1
            self._forget(self._last_id + 1, segment)
        elif self._segments_count >= _MOST_SEGMENTS:
            segment = Segment(self.source, "(further segments)", role=CLIENT)
        else:
            self._segments_count += 1
            name, is_partial = f"segment {self._segments_count}", "SHM" in self._transport.upper()
            segment = Segment(self.source, name, self._transport, role=CLIENT, bytes_are_partial=is_partial)
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

    def _batch(self, segment: Segment, heads: list[tuple[int, str]], table: npt.NDArray[np.float64]) -> Batch:
        ids, names = zip(*heads, strict=True)
        methods = {name: index for index, name in enumerate(dict.fromkeys(names))}
        columns = {name: np.rint(table[:, index] * (1024.0 if name in {"sent", "recv"} else 1e6)).astype(np.int64)
                   for name, index in self._columns.items() if name != "throughput"}  # fmt: skip
        none = np.zeros(len(ids), np.int64)
        batch = Batch(
            segment, RPC.stages, list(methods), np.array(ids, np.int64),
            np.array([methods[name] for name in names], np.int64), np.full(len(ids), UNKNOWN_NS, np.int64),
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
        self.notes.counts["rows with a printed throughput"] += len(printed)
        self.notes.counts["throughputs that differ by more than 2 %"] += int(np.count_nonzero(wrong))
