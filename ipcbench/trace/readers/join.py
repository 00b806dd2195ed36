"""Joins the records of the two sides of a call, so that the client's wait is split into its four parts.

On one host both sides read one clock. Between two, the server's clock is set by what NTP's formula says of the calls
themselves: offset = ((T2 − T1) + (T3 − T4)) / 2, from the call of each minute whose way there and back was shortest,
since the error is at most half of that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipcbench.errors import StoreError
from ipcbench.trace.format import CALL, HEADER_BYTES, MARKER, RECORD_BYTES, SEGMENT_MAGIC, unpack_header
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Ints, Keys, Notes
from ipcbench.trace.readers.own import RECORD, keys_of, longest_ns, read_segment, thread_of
from ipcbench.trace.schema import CLIENT, RECEIVER, SERVER_SIDE
from ipcbench.util.files import as_store_errors

_CHUNK_RECORDS = 8_192
_MINUTE_NS = 60_000_000_000


class _Clock(NamedTuple):
    """One server clock as one client clock sees it: at `at_ns` of the client it is `ahead_ns` ahead, ± `error_ns`."""

    at_ns: Ints
    ahead_ns: Ints
    error_ns: Ints


@dataclass(frozen=True, slots=True)
class Servers:
    """The server records of a trace, in order of their keys.

    Attributes:
        keys: shape (n,), each once.
        stamps_ns: shape (n, 3): arrived, begun, done. Of a receiver: asked, received, received.
        answers: shape (n,), False for a receiver.
        boot: shape (n,), into `boots`.
        thread: shape (n,), into `threads`, the processes and threads that served.
        clocks: by client's and server's boot, for pairs of two clocks.
    """

    keys: Keys
    stamps_ns: Ints
    answers: npt.NDArray[np.bool_]
    boot: Ints
    boots: Sequence[str]
    thread: Ints
    threads: Sequence[str]
    clocks: dict[tuple[str, str], _Clock] = field(default_factory=dict)

    def join(self, batch: Batch) -> Batch:
        """Return the calls with the parts of their wait, taken from their servers' records."""
        if batch.key is None or batch.segment.role != CLIENT or not len(self.keys):
            return batch
        at, known = self._find(batch)
        if not known.any():
            return batch
        begin, end, is_answered = _waited(batch)
        ahead, error_ns, known = self._ahead(batch, at, known, begin)
        arrived, begun, done = (self.stamps_ns[at] - ahead[:, None]).T
        if not is_answered:
            parts = {"request_ns": np.clip(begun - end, 0, None)}
        else:
            first = np.clip(arrived, begin, end)
            second = np.clip(begun, first, end)
            third = np.clip(done, second, end)
            parts = {"request_ns": first - begin, "queue_ns": second - first, "server_ns": third - second,
                     "reply_ns": end - third}  # fmt: skip
        columns: dict[str, Any] = {name: np.where(known, part, UNKNOWN) for name, part in parts.items()}
        return replace(batch, **columns, offset_error_ns=error_ns)

    def _find(self, batch: Batch) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return for each call the place of its server's record, and whether there is one."""
        keys: Any = batch.key
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.keys[at] == keys) & (keys != 0) & ~batch.failed
        if "wait" in batch.stages:
            known &= self.answers[at]
        return at, known

    def _ahead(
        self, batch: Batch, at: Ints, known: npt.NDArray[np.bool_], begin: Ints
    ) -> tuple[Ints, int, npt.NDArray[np.bool_]]:
        """Return how far each call's server clock is ahead, how wrong that may be, and for which calls it is known."""
        ahead = np.zeros(len(at), np.int64)
        error_ns = 0
        for number in np.unique(self.boot[at[known]]).tolist():
            if self.boots[number] == batch.boot:
                continue
            of_it = self.boot[at] == number
            clock = self.clocks.get((batch.boot, self.boots[number]))
            if clock is None:
                known = known & ~of_it
                continue
            since = clock.at_ns[0]
            ahead[of_it] = np.rint(
                np.interp((begin[of_it] - since).astype(np.float64), (clock.at_ns - since).astype(np.float64),
                          (clock.ahead_ns - clock.ahead_ns[0]).astype(np.float64))
            ).astype(np.int64) + clock.ahead_ns[0]  # fmt: skip
            error_ns = max(error_ns, int(clock.error_ns.max()))
        return ahead, error_ns, known


def _waited(batch: Batch) -> tuple[Ints, Ints, bool]:
    """Return the begin and end of each call's wait; without such a stage, those of the whole call, and False."""
    if "wait" not in batch.stages:
        return batch.begin_ns, batch.begin_ns + batch.total_ns, False
    index = batch.stages.index("wait")
    begin = batch.begin_ns + batch.stage_ns[:, :index].sum(axis=1)
    return begin, begin + batch.stage_ns[:, index], True


def find_servers(paths: Sequence[Path], notes: Notes) -> Servers:
    """Read the server records of segments; damaged files are reported where they are read whole."""
    boots: dict[str, int] = {}
    threads: dict[str, int] = {}
    parts: list[tuple[Keys, Ints, npt.NDArray[np.bool_], Ints, Ints]] = []
    every: set[str] = set()
    for path in paths:
        try:
            for boot, records in _served(path, every):
                number = np.full(len(records), boots.setdefault(boot, len(boots)), np.int64)
                server = np.full(len(records), threads.setdefault(thread_of(path), len(threads)), np.int64)
                parts.append((keys_of(records), _stamps(records), records["role"] == SERVER_SIDE, number, server))
        except StoreError:
            continue
    if not parts:
        none = np.zeros(0, np.int64)
        return Servers(np.zeros(0, np.uint64), np.zeros((0, 3), np.int64), np.zeros(0, bool), none, (), none, ())
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(~columns[2], kind="stable")  # of a server and a receiver of one call, the server
    only, first = np.unique(columns[0][order], return_index=True)
    notes.counts["further server records of one call"] += int(np.count_nonzero(columns[2])) - int(
        np.count_nonzero(columns[2][order[first]])
    )
    at = order[first]
    stamps, answers, number, server = (column[at] for column in columns[1:])
    servers = Servers(only, stamps, answers, number, tuple(boots), server, tuple(threads))
    if len(every) > 1 and len(servers.keys):
        _set_clocks(servers, paths)
    return servers


def _served(path: Path, every: set[str]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the boot and the server records of a segment, in pieces; `every` gets each boot, served in or not."""
    with as_store_errors(path), path.open("rb") as file:
        try:
            facts = unpack_header(file.read(HEADER_BYTES), SEGMENT_MAGIC)[1]
        except (ValueError, RecursionError):
            return
        boot, longest = str(facts.get("boot", "")), longest_ns(file, facts)
        every.add(boot)
        offset = HEADER_BYTES
        room = memoryview(bytearray(_CHUNK_RECORDS * RECORD_BYTES))
        while size := file.readinto(room):
            records = np.frombuffer(room, RECORD, size // RECORD_BYTES)
            at = np.flatnonzero(records["role"] >= SERVER_SIDE)  # the receivers' too
            if at.size:
                chosen = records[at]
                markers = (offset + at * RECORD_BYTES).astype(np.uint64) ^ np.uint64(MARKER)
                whole = (chosen["kind"] == CALL) & (chosen["marker"] == markers) & (chosen["ends"] >= 1)
                arrived, begun, done = _stamps(chosen).astype(np.float64).T
                whole &= (begun <= done) & (done - arrived <= longest)  # others are damage, told where calls are read
                yield boot, chosen[whole & (chosen["role"] <= RECEIVER) & (chosen["span"] != 0)]
            offset += size


def _stamps(records: npt.NDArray[Any]) -> Ints:
    """Return arrived, begun and done; a server that never began was done when its call ended."""
    stamps = records["stamps"][:, :3].astype(np.int64)
    short = records["ends"] < 2
    stamps[short, 2] = stamps[short, 1]
    return stamps


def _set_clocks(servers: Servers, paths: Sequence[Path]) -> None:
    """Find how far the clocks are apart, from all calls between two of them."""
    best: dict[tuple[str, str], dict[int, tuple[int, int, int]]] = {}
    for path in paths:
        try:
            for batch in read_segment(path, Notes()):
                _look(servers, batch, best)
        except StoreError:
            continue
    for pair, minutes in best.items():
        if minutes:
            rows = np.array([(at, ahead, way // 2 + 1) for _, (way, at, ahead) in sorted(minutes.items())], np.int64)
            servers.clocks[pair] = _Clock(*rows.T)


def _look(servers: Servers, batch: Batch, best: dict[tuple[str, str], dict[int, tuple[int, int, int]]]) -> None:
    """Keep of each minute the call with the shortest way there and back: way, time and offset, by pair of clocks."""
    if batch.key is None or batch.segment.role != CLIENT or "wait" not in batch.stages:
        return
    at, known = servers._find(batch)
    begin, end, _ = _waited(batch)
    for number in np.unique(servers.boot[at[known]]).tolist():
        boot = servers.boots[number]
        if boot == batch.boot:
            continue
        of_it = known & (servers.boot[at] == number)
        sent, back, stamps = begin[of_it], end[of_it], servers.stamps_ns[at[of_it]]
        way = (back - sent) - (stamps[:, 2] - stamps[:, 0])
        ahead = (stamps[:, 0] - sent + (stamps[:, 2] - back)) // 2
        minutes = best.setdefault((batch.boot, boot), {})
        order = np.lexsort((way, sent // _MINUTE_NS))
        minute, first = np.unique((sent // _MINUTE_NS)[order], return_index=True)
        for name, row in zip(minute.tolist(), order[first].tolist(), strict=True):
            seen = (int(way[row]), int(sent[row]), int(ahead[row]))
            if seen[0] >= 0:
                minutes[name] = min(minutes.get(name, seen), seen)
