"""Reads zmq_performance.log in all its sets of columns, which are recognised by their names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.trace.readers.batch import UNKNOWN, Batch, Claim, Notes, Segment
from ipcbench.trace.schema import CLIENT, RPC
from ipcbench.util.text import printable

_LONGEST_NAME, _MOST_ID_DIGITS = 128, 18
_MOST_CLIENTS, _MOST_CLAIMS, _MOST_VALUES = 500, 100, 200  # clients kept apart, summaries, values in one

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
_FRACTION = re.compile(r"-?\d+\.\d+")
HEADLESS = "rows that were not read, since their header is missing"
"""A key of `Notes.counts`."""

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
    _clients: list[Segment] = field(default_factory=list)
    _next_ids: dict[int, int] = field(default_factory=dict)  # of each client, by its number
    _silent: set[int] = field(default_factory=set)  # clients since the last began, which may be their restart
    _current: int = 0
    _last_id: int = 0  # of the current client
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
            self._claim, self._section = Claim(self._clients[self._current] if self._clients else None, {}), ""
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
            self.count_headless([line])

    def count_headless(self, lines: Iterable[str]) -> None:
        """Count the rows among lines before any header: an id, a method, and at least the times that all rows have."""
        for line in lines:
            if (
                line.lstrip()[:1].isdecimal()
                and (words := line.split())[0].isdecimal()
                and len(words) >= 2 + len(_NEEDED)
            ):
                self.notes.counts[HEADLESS] += all(map(_FRACTION.fullmatch, words[-len(_NEEDED) :]))

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
        owners: dict[int, list[int]] = {}
        for index, is_kept in enumerate(keep.tolist()):
            if is_kept:
                self._claim = None
                owners.setdefault(self._owner(heads[index][0]), []).append(index)
            else:
                self.notes.damaged(self.source, f"id {heads[index][0]}: a time or size that is no number")
        for client, chosen in owners.items():
            yield self._batch(self._clients[client], [heads[index] for index in chosen], table[chosen])

    def _owner(self, number: int) -> int:
        """Return which client wrote a row: the one whose next id it is, else the current one, or a new one."""
        waiting = [client for client, next_id in self._next_ids.items() if next_id == number] if number != 1 else []
        client = min(waiting, key=self._silent.__contains__, default=self._current)
        if not waiting and 1 <= self._last_id < number:
            self.notes.counts["missing ids"] += number - self._last_id - 1
        elif not waiting:
            self._silent = set(self._next_ids)
            client = min(len(self._clients), _MOST_CLIENTS)
            name, transport = f"segment {client + 1}", self._transport
            if client == _MOST_CLIENTS:
                name, transport = "(further segments)", ""
            is_partial = "SHM" in transport.upper()
            self._clients[client:] = [Segment(self.source, name, transport, "", CLIENT, is_partial)]
        self._silent.discard(client)
        self._next_ids.pop(client, None)
        self._next_ids[client] = number + 1  # last, since of those whose next id is the same the first to wait writes
        self._current, self._last_id = client, number
        return client

    def _batch(self, segment: Segment, heads: list[tuple[int, str]], table: npt.NDArray[np.float64]) -> Batch:
        ids, names = zip(*heads, strict=True)
        methods = {name: index for index, name in enumerate(dict.fromkeys(names))}
        columns = {name: np.rint(table[:, index] * (1024.0 if name in {"sent", "recv"} else 1e6)).astype(np.int64)
                   for name, index in self._columns.items() if name != "throughput"}  # fmt: skip
        none, unknown = np.zeros(len(ids), np.int64), np.full(len(ids), UNKNOWN, np.int64)
        if "server" in columns:  # a server that never took half a microsecond was not timed
            columns["server"] = np.where(columns["server"] == 0, UNKNOWN, columns["server"])
        sent, recv = columns.get("sent", unknown), columns.get("recv", unknown)
        is_sized = (sent >= 0) & (recv >= 0)
        batch = Batch(
            segment, RPC.stages, list(methods), np.array(ids, np.int64),
            np.array([methods[name] for name in names], np.int64), unknown,
            columns["total"], np.stack([columns[stage] for stage in RPC.stages], axis=1),
            np.where(is_sized, sent, UNKNOWN), np.where(is_sized, recv, UNKNOWN), none.astype(np.bool_),
            columns.get("server"), columns.get("outside"),
        )  # fmt: skip
        if "throughput" in self._columns:
            self._check_throughput(table[:, self._columns["throughput"]], batch)
        return batch

    def _check_throughput(self, printed: npt.NDArray[np.float64], batch: Batch) -> None:
        total_s = np.where(batch.total_ns > 0, batch.total_ns, np.inf) / 1e9
        with np.errstate(over="ignore", invalid="ignore"):
            computed = (batch.sent_bytes + batch.recv_bytes) / 2**20 / total_s
            slack = _THROUGHPUT_STEP + 20 / 2**20 / total_s + 0.02 * computed
            wrong = np.isfinite(printed) & (np.abs(printed - computed) > slack)
        self.notes.counts["rows with a printed throughput"] += len(printed)
        self.notes.counts["throughputs that differ by more than 2 %"] += int(np.count_nonzero(wrong))
