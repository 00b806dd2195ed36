"""Reads zmq_performance.log in all its sets of columns, which are recognised by their names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import UNKNOWN_NS, Batch, Claim, Ints, Notes, Segment, printable
from ipcbench.trace.schema import CLIENT, RPC

_MOST_SEGMENTS = 500
_MOST_CLAIMS = 100
_MOST_VALUES = 200
_MOST_EXPECTED = 1000
_MOST_WAITING = 20
"""Segments kept apart, summaries, values in one, ids that some client writes next, and clients that write the same."""

_LONGEST_NAME = 128
_MOST_ID_DIGITS = 18

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
        ids: list[int] = []
        names: list[str] = []
        table: list[list[float]] = []
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
                ids.append(int(words[0][:_MOST_ID_DIGITS]))
                names.append((" ".join(words[1 : 2 + surplus]) if surplus else words[1])[:_LONGEST_NAME])
                table.append(values)
            elif words:
                if ids and not is_row and (self._claim is not None or _ORDERED.search(line)):
                    yield from self._accept(ids, names, table)
                    ids, names, table = [], [], []
                self._take_other(line, words, number)
        if ids:
            yield from self._accept(ids, names, table)

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

    def _accept(self, ids: list[int], names: list[str], rows: list[list[float]]) -> Iterator[Batch]:
        """Yield the rows whose times and sizes can be kept, those of one client together."""
        table = np.array(rows)
        used = [index for name, index in self._columns.items() if name != "throughput"]
        keep = np.all(np.abs(table[:, used]) < _LARGEST / 1e6, axis=1)  # False for NaN too
        for index in np.flatnonzero(~keep).tolist():
            self._notes.damaged(self._source, f"id {ids[index]}: a time or size that is no number")
        kept = np.flatnonzero(keep).tolist()
        if not kept:
            return
        self._claim = None
        first, last = self._last_id + 1, ids[kept[-1]]
        owners: dict[Segment, list[int]] = {}
        if self._current is not None and [ids[index] for index in kept] == list(range(first, first + len(kept))):
            self._forget(first, self._current)
            self._expected.setdefault(last + 1, []).append(self._current)
            self._last_id = last
            owners[self._current] = kept
        else:
            for index in kept:
                owners.setdefault(self._owner(ids[index]), []).append(index)
        for segment, chosen in owners.items():
            chosen_ids, chosen_names = [ids[index] for index in chosen], [names[index] for index in chosen]
            yield self._batch(segment, chosen_ids, chosen_names, table[chosen])

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

    def _batch(self, segment: Segment, ids: list[int], names: list[str], table: npt.NDArray[np.float64]) -> Batch:
        methods = {name: index for index, name in enumerate(dict.fromkeys(names))}

        def column(name: str, unit: float = 1e6) -> Ints:
            index = self._columns.get(name)
            return np.zeros(len(ids), np.int64) if index is None else np.rint(table[:, index] * unit).astype(np.int64)

        batch = Batch(
            segment, RPC.stages, list(methods), np.array(ids, np.int64),
            np.array([methods[name] for name in names], np.int64), np.full(len(ids), UNKNOWN_NS, np.int64),
            column("total"), np.stack([column(stage) for stage in RPC.stages], axis=1), column("sent", 1024.0),
            column("recv", 1024.0), np.zeros(len(ids), np.bool_),
            server_ns=column("server") if "server" in self._columns else None,
            outside_ns=column("outside") if "outside" in self._columns else None,
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
