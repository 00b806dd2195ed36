"""The data of a trace's plots: totals by method, randomly chosen calls, and the calls of a few moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.trace.exporters.common import Track, Tracks, at_ns
from ipcbench.trace.readers.batch import PARTS, UNKNOWN, Batch, Ints
from ipcbench.trace.readers.by_method import MethodTotals
from ipcbench.trace.readers.calls import FAR_SIDES, Calls, Row, rows_of, take
from ipcbench.trace.readers.everything import Source

POINTS_COUNT = 250
"""Most calls of a method that are kept."""

WINDOW_CALLS = 200
"""Most calls of a moment that are kept."""

_MOST_METHODS = 200
_SEED = 1

_Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class MethodSample:
    """A method on one side.

    Attributes:
        times_ns, sizes_bytes: of a uniform random sample of the recorded calls whose bytes were noted.
        unsized_count: recorded calls whose bytes were not noted.
        known_count, known_wait_ns: calls whose server side is known, and their stage `wait`.
        parts_ns: the known parts of that wait, by the names in `PARTS`.
    """

    name: str
    role: int
    sums: MethodTotals = field(default_factory=MethodTotals)
    times_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes_bytes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    unsized_count: int = 0
    known_count: int = 0
    known_wait_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=dict)
    _keys: _Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, calls: Calls, number: int, generator: np.random.Generator) -> None:
        """Add the calls of the method with that number in the batch."""
        self.sums.add_calls(calls, number)
        batch = calls.batch
        if not batch.is_timed:
            return
        chosen = np.flatnonzero((batch.method == number) & ~calls.kept & batch.is_sized)
        self.unsized_count += int(np.count_nonzero((batch.method == number) & ~batch.is_sized))
        keys = np.concatenate([self._keys, generator.random(len(chosen))])
        times = np.concatenate([self.times_ns, batch.total_ns[chosen]])
        sizes = np.concatenate([self.sizes_bytes, batch.sent_bytes[chosen] + batch.recv_bytes[chosen]])
        if len(keys) > POINTS_COUNT:
            least = np.argpartition(keys, POINTS_COUNT)[:POINTS_COUNT]
            keys, times, sizes = keys[least], times[least], sizes[least]
        self._keys, self.times_ns, self.sizes_bytes = keys, times, sizes
        self._add_parts(batch, number)

    def _add_parts(self, batch: Batch, number: int) -> None:
        """Add the known parts of the wait."""
        if batch.server_ns is None or "wait" not in batch.stages:
            return
        known = (batch.method == number) & (batch.server_ns != UNKNOWN)
        self.known_count += int(np.count_nonzero(known))
        self.known_wait_ns += int(batch.stage_ns[known, batch.stages.index("wait")].sum())
        for name in PARTS:
            column: Ints | None = getattr(batch, f"{name}_ns")
            if column is not None:
                self.parts_ns[name] = self.parts_ns.get(name, 0) + int(np.maximum(column[known], 0).sum())


@dataclass(frozen=True, slots=True)
class Window:
    """The calls of one moment, on tracks.

    Attributes:
        kind: `all`, `slowest`, `first` or `last`.
    """

    kind: str
    calls: tuple[tuple[Row, Track], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """What the plots need; methods are sorted by descending time."""

    methods: tuple[MethodSample, ...]
    windows: tuple[Window, ...]


def callers(methods: Sequence[MethodSample]) -> tuple[MethodSample, ...]:
    """Return the methods as their callers saw them, so that a call recorded on both sides counts once.

    The far side of a method stands for it only where nobody recorded the near side.
    """
    known = {method.name for method in methods if method.role not in FAR_SIDES}
    return tuple(method for method in methods if method.role not in FAR_SIDES or method.name not in known)


def draw(source: Source) -> Sample:
    """Read a trace, twice if it has times on a clock."""
    generator = np.random.default_rng(_SEED)
    methods: dict[tuple[str, int], MethodSample] = {}
    timed_count, slowest_ns, centre_ns = 0, -1, 0

    def of(name: str, role: int) -> MethodSample:
        key = (name, role)
        if key not in methods and len(methods) >= _MOST_METHODS:
            key = ("(other)", role)
        return methods.setdefault(key, MethodSample(*key))

    for calls in source.joined():
        for number, name in enumerate(calls.batch.methods):
            of(name, calls.batch.segment.role).add(calls, number, generator)
        places = _timed(calls)
        timed_count += len(places)
        if len(places):
            longest = int(places[np.argmax(calls.batch.total_ns[places])])
            if calls.batch.total_ns[longest] > slowest_ns:
                slowest_ns = int(calls.batch.total_ns[longest])
                centre_ns = int(_begins(calls)[longest]) + slowest_ns // 2
    for bulk in source.bulks():
        count = int(bulk.counts.sum())
        sums = of(bulk.method, bulk.segment.role).sums
        sums.add_histogram(bulk, count / bulk.summed_count if bulk.summed_count else 1.0)
    ordered = sorted(methods.values(), key=lambda method: -method.sums.total_ns)
    return Sample(tuple(ordered), _windows(source, timed_count, centre_ns))


def _timed(calls: Calls) -> Ints:
    return np.flatnonzero((calls.batch.begin_ns >= 0) & (calls.batch.total_ns >= 0))


def _begins(calls: Calls) -> Ints:
    return calls.batch.begin_ns + (calls.process.unix_ns or 0)


def _windows(source: Source, timed_count: int, centre_ns: int) -> tuple[Window, ...]:
    """Return the calls of the moments to show."""
    if not timed_count:
        return ()
    orders: dict[str, Callable[[Ints, Ints], Ints]] = {
        "slowest": lambda begin, end: np.abs(begin // 2 + end // 2 - centre_ns),
        "first": lambda begin, end: begin,
        "last": lambda begin, end: -end,
    }
    if timed_count <= WINDOW_CALLS:
        orders = {"all": orders["first"]}
    kept: dict[str, list[tuple[int, Row]]] = {kind: [] for kind in orders}
    for calls in source.calls():
        places = _timed(calls)
        begin = _begins(calls)[places]
        end = begin + calls.batch.total_ns[places]
        for kind, order in orders.items():
            keys = order(begin, end)
            best = np.argsort(keys, kind="stable")[:WINDOW_CALLS]
            if len(kept[kind]) == WINDOW_CALLS:
                best = best[keys[best] < kept[kind][-1][0]]
            if len(best):
                rows = zip(keys[best].tolist(), rows_of(take(calls, places[best])), strict=True)
                kept[kind] = sorted([*kept[kind], *rows], key=lambda item: item[0])[:WINDOW_CALLS]
    return tuple(Window(kind, _on_tracks([row for _, row in rows])) for kind, rows in kept.items())


def _on_tracks(rows: list[Row]) -> tuple[tuple[Row, Track], ...]:
    return tuple(Tracks().place(sorted(rows, key=at_ns)))
