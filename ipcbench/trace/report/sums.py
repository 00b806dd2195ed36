"""Totals of calls in bounded memory: by segment and method, with histograms and a few extreme calls."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.stats.histogram import Histogram
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Bulk, Ints, Segment, printable
from ipcbench.trace.report.split import Split
from ipcbench.trace.report.weighted import WeightedSums
from ipcbench.util.bins import bin_bounds

_FIRST_COUNT = 5
_PAIRS_COUNT = 2000
_MOST_GROUPS = 200
_MOST_METHODS = 1000
_MOST_WORKERS = 2000
_TOP_COUNT = 5
OTHER = "(other)"

MOST_ERROR_RATIO = 0.5
"""By so much of it an estimate may be off that is still given."""


@dataclass(frozen=True, slots=True, order=True)
class Extreme:
    """A slowest or largest call, which is shown by itself; `order` is the key it was chosen by."""

    order: int
    call_id: int
    method: str
    total_ns: int
    stage_ns: tuple[int, ...]
    sent_bytes: int | None
    recv_bytes: int | None


@dataclass(slots=True)
class MethodSums:
    """The calls of one method.

    Attributes:
        stages: names; `staged_ns` has a sum for each, of timed calls.
        histogram: of all timed calls; negative times count as 0.
        untimed_count: further calls that were counted but not timed.
        weighted: what is told of those by calls with records.
        timed_ns: the time of the timed calls.
        square_ns2: sum of the squares of the times of calls with records.
        spreads: of each stage, sums over the calls with records: ns, ns², and of the sized ones ns · bytes.
        spread_bytes: of those sized calls, bytes and bytes².
        noted_count, noted_ns: calls with records whose bytes were noted, and their time.
        bulk_count, bulk_ns: calls without records of which some noted their bytes, and their time.
        sized_sent_bytes, sized_recv_bytes: what all those moved.
        first_ns: times of the first few calls.
        pairs: time and bytes of the first sized calls with records.
        workers: calls and ns by process.
        split: of its calls with both sides known.
    """

    stages: tuple[str, ...]
    staged_ns: list[float]
    histogram: Histogram = field(default_factory=Histogram)
    untimed_count: int = 0
    weighted: WeightedSums = field(default_factory=WeightedSums)
    failed_count: int = 0
    timed_ns: float = 0.0
    square_ns2: float = 0.0
    squared_count: int = 0
    squared_ns: float = 0.0
    spreads: list[list[float]] = field(default_factory=list)
    spread_bytes: list[float] = field(default_factory=lambda: [0.0, 0.0])
    noted_count: int = 0
    noted_ns: float = 0.0
    bulk_count: int = 0
    bulk_ns: float = 0.0
    sized_sent_bytes: float = 0.0
    sized_recv_bytes: float = 0.0
    first_ns: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    workers: dict[str, list[float]] = field(default_factory=dict)
    split: Split = field(default_factory=Split)

    @property
    def timed_count(self) -> int:
        """Calls whose time is known."""
        return self.histogram.total_count

    @property
    def sized_count(self) -> int:
        """Timed calls whose bytes were noted; of those without records, as large a share as of those with."""
        return self.noted_count + round(self.bulk_count * self._noted_ratio)

    @property
    def sized_ns(self) -> float:
        """Their time."""
        return self.noted_ns + self.bulk_ns * self._noted_ratio

    @property
    def _noted_ratio(self) -> float:
        return self.noted_count / self.squared_count if self.noted_count else 1.0

    @property
    def calls_count(self) -> int:
        """All calls."""
        return self.timed_count + self.untimed_count

    @property
    def scale(self) -> float:
        """All calls over those that were timed or for which timed ones stand: what their sums are short by."""
        known = self.timed_count + self._whole.count
        return self.calls_count / known if known else 0.0

    @property
    def _whole(self) -> WeightedSums:
        return self.weighted.with_more(self.untimed_count - self.weighted.count)

    @property
    def total_ns(self) -> float:
        """The time of all calls; where some were only counted, an estimate."""
        return (self.timed_ns + self._whole.total_ns) * self.scale

    @property
    def total_error_ratio(self) -> float:
        """How far the estimate of the total may be off, as a ratio to it (95 %): 0 if all calls were timed, infinite if
        no record stands for others.
        """
        if not self.untimed_count:
            return 0.0
        if not self._whole.count:
            return math.inf
        error_ns = self._whole.error_ns(self.histogram.max) * self.scale
        return error_ns / self.total_ns if self.total_ns > 0.0 else math.inf

    @property
    def least_ns(self) -> float:
        """What the total is at least (97.5 %)."""
        error = self.total_error_ratio
        return max(self.timed_ns, self.total_ns * (1.0 - error))

    @property
    def unseen_ratio(self) -> float:
        """A kind of call that is rarer may be missing from the estimates; 0 if all calls were timed."""
        return self.weighted.unseen_ratio if self.untimed_count else 0.0

    @property
    def stage_ns(self) -> list[float]:
        """The time of all calls in each stage, estimated as `total_ns` is."""
        more = self._whole.stage_ns or [0.0] * len(self.staged_ns)
        return [(ns + weighted) * self.scale for ns, weighted in zip(self.staged_ns, more, strict=True)]

    @property
    def stage_errors_ns(self) -> list[float]:
        """How far each of these may be off (95 %): 0 if all calls were timed, infinite if nobody knows."""
        if not self.untimed_count:
            return [0.0] * len(self.stages)
        return [error * self.scale for error in self._whole.stage_errors_ns] or [math.inf] * len(self.stages)

    @property
    def sent_bytes(self) -> float | None:
        """What all sized calls sent, estimated as `total_ns` is; None if there are none."""
        return (self.sized_sent_bytes + self._whole.sent_bytes) * self.scale if self.sized_count else None

    @property
    def recv_bytes(self) -> float | None:
        """What all calls received, as `sent_bytes` does."""
        return (self.sized_recv_bytes + self._whole.recv_bytes) * self.scale if self.sized_count else None

    @property
    def moved_bytes(self) -> float | None:
        """Both."""
        return None if self.sent_bytes is None or self.recv_bytes is None else self.sent_bytes + self.recv_bytes

    @property
    def moved_error_bytes(self) -> float:
        """How far `moved_bytes` may be off (95 %): 0 if all calls were timed, infinite if nobody knows."""
        if not self.untimed_count:
            return 0.0
        return self._whole.error_bytes * self.scale if self._whole.count else math.inf

    @property
    def moved_is_known(self) -> bool:
        """Whether `moved_bytes` is that of all calls, and not only of those that were timed or noted it."""
        return _moved_is_known(self)

    @property
    def mean_bytes(self) -> float | None:
        """What a sized call moved; None if there are none, or too little is known of calls that were only counted."""
        return _mean_bytes(self)

    @property
    def mib_per_s(self) -> float | None:
        """What the sized calls moved in their time; None as `mean_bytes`."""
        return _mib_per_s(self)

    @property
    def mean_ns(self) -> float:
        """Of all calls, as `total_ns` is."""
        return self.total_ns / self.calls_count if self.timed_count else 0.0

    @property
    def has_all_records(self) -> bool:
        """Whether all timed calls have records. If not, those that have are no fair sample: each failed one is among
        them, and each that was the slowest so far.
        """
        return self.squared_count == self.timed_count

    @property
    def variation_ratio(self) -> float:
        """Standard deviation over mean, of all timed calls."""
        if not self.has_all_records:
            return self.histogram.variation_ratio()
        if not self.squared_count or not self.squared_ns:
            return 0.0
        mean = self.squared_ns / self.squared_count
        return math.sqrt(max(0.0, self.square_ns2 / self.squared_count - mean * mean)) / mean

    def stage(self, *names: str) -> float:
        """Return the time of the stages with these names, ns; absent stages count as 0."""
        return sum(ns for name, ns in zip(self.stages, self.stage_ns, strict=True) if name in names)

    def stage_variation(self, stage: int) -> tuple[float, float | None]:
        """Return a stage's standard deviation over its mean, and what is left of that when a line through time over
        bytes has explained what it can; None if not all calls with records are sized, or all have one size.
        """
        count, (total, squares, products) = self.squared_count, self.spreads[stage]
        if count < 2 or total <= 0:
            return 0.0, None
        variance = max(0.0, squares / count - (total / count) ** 2)
        whole, (size, sizes) = math.sqrt(variance) / (total / count), self.spread_bytes
        spread = sizes / count - (size / count) ** 2
        if self.sized_count < self.timed_count or spread <= 1e-9 * (size / count) ** 2 or not variance:
            return whole, None
        shared = products / count - total / count * size / count
        return whole, whole * math.sqrt(max(0.0, 1.0 - shared * shared / (spread * variance)))


@dataclass(slots=True)
class Room:
    """How many more methods all groups together may add; each takes a histogram."""

    methods_count: int = _MOST_METHODS


@dataclass(slots=True)
class GroupSums:
    """The calls of one segment with one set of stages.

    Attributes:
        server_ns, outside_ns: sums; None where the log has no such column.
        workers: calls and ns by process.
        split: of the calls with both sides known.
        room: shared by all groups of a report.
        negative_count, impossible_count: calls with a negative time; calls whose stages exceed the whole.
    """

    segment: Segment
    stages: tuple[str, ...]
    methods: dict[str, MethodSums] = field(default_factory=dict)
    server_ns: float | None = None
    outside_ns: float | None = None
    slowest: list[Extreme] = field(default_factory=list)
    largest: list[Extreme] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    negative_count: int = 0
    impossible_count: int = 0
    odd_example: str = ""
    split: Split = field(default_factory=Split)
    room: Room = field(default_factory=Room)

    @property
    def calls_count(self) -> int:
        """All calls."""
        return sum(sums.calls_count for sums in self.methods.values())

    @property
    def timed_count(self) -> int:
        """Calls whose time is known."""
        return sum(sums.timed_count for sums in self.methods.values())

    @property
    def total_ns(self) -> float:
        """The time of all calls; where some were only counted, an estimate."""
        return sum(sums.total_ns for sums in self.methods.values())

    @property
    def timed_ns(self) -> float:
        """The time of the timed calls."""
        return sum(sums.timed_ns for sums in self.methods.values())

    @property
    def total_error_ratio(self) -> float:
        """How far the estimate of the total may be off, as a ratio to it (95 %); 0 if all calls were timed."""
        error_ns = math.hypot(*(sums.total_error_ratio * sums.total_ns for sums in self.methods.values()))
        return error_ns / self.total_ns if self.total_ns > 0 else 0.0

    @property
    def unseen_ratio(self) -> float:
        """A kind of call that is rarer in its method may be missing from the estimates, where there are any; 0 if all
        calls were timed.
        """
        estimated = [sums.unseen_ratio for sums in self.methods.values() if sums.total_error_ratio <= MOST_ERROR_RATIO]
        return max(estimated, default=1.0)

    @property
    def least_ns(self) -> float:
        """What the total is at least: for methods with too few timed calls for an estimate, the time of those."""
        return sum(sums.least_ns for sums in self.methods.values())

    @property
    def stage_ns(self) -> list[float]:
        """The time in each stage."""
        return [sum(column) for column in zip(*(sums.stage_ns for sums in self.methods.values()), strict=True)]

    @property
    def staged_ns(self) -> list[float]:
        """The same of the timed calls."""
        return [sum(column) for column in zip(*(sums.staged_ns for sums in self.methods.values()), strict=True)]

    @property
    def stage_errors_ns(self) -> list[float]:
        """How far `stage_ns` may be off (95 %), see `MethodSums.stage_errors_ns`."""
        columns = zip(*(sums.stage_errors_ns for sums in self.methods.values()), strict=True)
        return [math.hypot(*column) for column in columns]

    @property
    def moved_bytes(self) -> float | None:
        """Sent and received by the methods whose bytes were noted; None if there are none."""
        moved = [sums.moved_bytes for sums in self.methods.values() if sums.moved_bytes is not None]
        return sum(moved) if moved else None

    @property
    def moved_error_bytes(self) -> float:
        """How far that may be off (95 %): 0 if all calls were timed, infinite if nobody knows."""
        return math.hypot(*(sums.moved_error_bytes for sums in self.methods.values() if sums.sized_count))

    @property
    def sized_count(self) -> int:
        """Timed calls whose bytes were noted."""
        return sum(sums.sized_count for sums in self.methods.values())

    @property
    def sized_sent_bytes(self) -> float:
        """What they sent."""
        return sum(sums.sized_sent_bytes for sums in self.methods.values())

    @property
    def sized_recv_bytes(self) -> float:
        """What they received."""
        return sum(sums.sized_recv_bytes for sums in self.methods.values())

    @property
    def sized_ns(self) -> float:
        """Their time."""
        return sum(sums.sized_ns for sums in self.methods.values())

    @property
    def moved_is_known(self) -> bool:
        """See `MethodSums.moved_is_known`."""
        return _moved_is_known(self)

    @property
    def mean_bytes(self) -> float | None:
        """See `MethodSums.mean_bytes`."""
        return _mean_bytes(self)

    @property
    def mib_per_s(self) -> float | None:
        """See `MethodSums.mib_per_s`."""
        return _mib_per_s(self)

    def stage(self, *names: str) -> float:
        """Return the time of the stages with these names, ns; absent stages count as 0."""
        return sum(ns for name, ns in zip(self.stages, self.stage_ns, strict=True) if name in names)


def _moved_is_known(sums: MethodSums | GroupSums) -> bool:
    moved = sums.moved_bytes
    return (
        sums.sized_count == sums.timed_count
        and moved is not None
        and sums.moved_error_bytes <= MOST_ERROR_RATIO * moved
    )


def _mean_bytes(sums: MethodSums | GroupSums) -> float | None:
    if sums.calls_count > sums.timed_count:
        return (sums.moved_bytes or 0.0) / sums.calls_count if sums.moved_is_known else None
    return (sums.sized_sent_bytes + sums.sized_recv_bytes) / sums.sized_count if sums.sized_count else None


def _mib_per_s(sums: MethodSums | GroupSums) -> float | None:
    moved, ns = sums.sized_sent_bytes + sums.sized_recv_bytes, sums.sized_ns
    if sums.calls_count > sums.timed_count:
        if not (sums.moved_is_known and sums.total_error_ratio <= MOST_ERROR_RATIO):
            return None
        moved, ns = sums.moved_bytes or 0.0, sums.total_ns
    return moved / 2**20 / (ns / 1e9) if ns > 0 else None


class TrafficTotals:
    """Groups by source, segment, transport and stages. Beyond 200, one group per set of stages; beyond 400, a single
    one.
    """

    def __init__(self) -> None:
        self._room = Room()
        self._groups: dict[tuple[str, str, str, tuple[str, ...]], GroupSums] = {}

    @property
    def groups(self) -> list[GroupSums]:
        """All groups with calls, in order of appearance."""
        return [group for group in self._groups.values() if group.methods]

    def _group(self, segment: Segment, stages: tuple[str, ...]) -> GroupSums:
        key = (segment.source, segment.name, segment.transport, stages)
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            segment = Segment(segment.source, OTHER, segment.transport, role=segment.role)
            key = ("", OTHER, "", stages)
        if key not in self._groups and len(self._groups) >= 2 * _MOST_GROUPS:
            key, stages = ("", OTHER, "", ()), ()
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = GroupSums(segment, stages, room=self._room)
        return group

    def add(self, batch: Batch) -> None:
        """Add calls."""
        if not len(batch.ids):
            return
        group = self._group(batch.segment, batch.stages)
        if group.stages != batch.stages:
            batch = replace(batch, stages=(), stage_ns=batch.stage_ns[:, :0])
        self._check(group, batch)
        group.split.add(batch, slice(None))
        if batch.server_ns is not None and group.split.joined_count:
            group.server_ns = group.split.server_ns
        if batch.outside_ns is not None:
            group.outside_ns = (group.outside_ns or 0.0) + float(batch.outside_ns.sum(dtype=np.float64))
        _add_methods(group, _folded(group, batch))
        _add_extremes(group.slowest, batch, batch.total_ns)
        _add_extremes(group.largest, batch, np.where(batch.is_sized, batch.sent_bytes + batch.recv_bytes, -1))

    def add_bulk(self, bulk: Bulk) -> None:
        """Add calls without records."""
        group = self._group(bulk.segment, bulk.stages)
        sums = method_of(group, bulk.method)
        count = int(bulk.counts.sum())
        sums.untimed_count += bulk.untimed_count
        if not count:
            return
        scale = count / bulk.summed_count if bulk.summed_count else 0.0
        histogram = Histogram()
        histogram.counts[: len(bulk.counts)] = bulk.counts
        histogram.total_count = count
        used = np.flatnonzero(bulk.counts)
        histogram.min, histogram.max = bin_bounds(int(used[0]))[0], max(bulk.longest_ns, bin_bounds(int(used[-1]))[0])
        sums.histogram.merge(histogram)
        sums.failed_count += bulk.failed_count
        sums.timed_ns += bulk.total_ns * scale
        if bulk.is_sized:
            sums.bulk_count += count
            sums.bulk_ns += bulk.total_ns * scale
            sums.sized_sent_bytes += bulk.sent_bytes * scale
            sums.sized_recv_bytes += bulk.recv_bytes * scale
        for index, ns in enumerate(bulk.stage_ns[: len(group.stages)].tolist()):
            sums.staged_ns[index] += ns * scale
        _add_worker(group, sums, bulk.segment.worker, count, bulk.total_ns * scale)

    def _check(self, group: GroupSums, batch: Batch) -> None:
        """Count calls with impossible times."""
        negative = (batch.total_ns < 0) | (batch.stage_ns < 0).any(axis=1)
        slack = 1000 * (len(batch.stages) + 1)  # the columns are rounded separately, in logs to a microsecond
        impossible = batch.stage_ns.sum(axis=1) > batch.total_ns + slack
        if batch.server_ns is not None and "wait" in batch.stages:
            negative |= (batch.server_ns < 0) & (batch.server_ns != UNKNOWN)
            impossible |= batch.server_ns > batch.stage_ns[:, batch.stages.index("wait")] + slack
        if batch.outside_ns is not None:
            negative |= batch.outside_ns < 0
        group.negative_count += int(np.count_nonzero(negative))
        group.impossible_count += int(np.count_nonzero(impossible))
        odd = np.flatnonzero(negative | impossible)
        if odd.size and not group.odd_example:
            first = int(odd[0])
            group.odd_example = printable(f"{batch.methods[int(batch.method[first])]} {int(batch.ids[first])}")


def _no_sums(stages: tuple[str, ...]) -> MethodSums:
    return MethodSums(stages, [0.0] * len(stages), spreads=[[0.0, 0.0, 0.0] for _ in stages])


def method_of(group: GroupSums, name: str) -> MethodSums:
    """Return the sums of a method; beyond 1,000 in all groups, the further methods of a group share one entry."""
    if name not in group.methods:
        name = printable(name)
    if name not in group.methods:
        if not group.room.methods_count:
            name = OTHER
        else:
            group.room.methods_count -= 1
        group.methods.setdefault(name, _no_sums(group.stages))
    return group.methods[name]


def _folded(group: GroupSums, batch: Batch) -> Batch:
    """Return the batch with the methods that exceed the room merged into one."""
    if len(batch.methods) <= group.room.methods_count:
        return batch
    room = group.room.methods_count
    kept: dict[str, int] = {}
    places = []
    for name in map(printable, batch.methods):
        if name not in kept and name not in group.methods:
            room -= 1
        key = name if room >= 0 or name in kept or name in group.methods else OTHER
        places.append(kept.setdefault(key, len(kept)))
    return replace(batch, methods=list(kept), method=np.array(places, np.int64)[batch.method])


def _add_worker(group: GroupSums, sums: MethodSums, worker: str, count: int, total_ns: float) -> None:
    if worker not in group.workers:
        if len(group.workers) >= _MOST_WORKERS:
            return
        group.workers.add(worker)
    of_worker = sums.workers.setdefault(worker, [0.0, 0.0])
    of_worker[0] += count
    of_worker[1] += total_ns


def _add_methods(group: GroupSums, batch: Batch) -> None:
    """Add the calls to the sums of their methods."""
    exact, counts = batch.total_ns.astype(np.float64), np.bincount(batch.method, minlength=len(batch.methods))
    ends = np.cumsum(counts).tolist()
    order = np.argsort(batch.method.astype(np.uint16), kind="stable")  # NumPy sorts two-byte integers fastest
    total, squares, failed = _summed(batch, exact), _summed(batch, exact * exact), _summed(batch, batch.failed)
    sizes, spreads = _sizes(batch, exact), _spreads(batch)
    for number, name in enumerate(batch.methods):
        count = int(counts[number])
        if not count:
            continue
        sums = method_of(group, name)
        chosen = order[ends[number] - count : ends[number]]
        sums.histogram.record(np.maximum(batch.total_ns[chosen], 0))
        sums.timed_ns += total[number]
        sums.square_ns2 += squares[number]
        sums.squared_count += count
        sums.squared_ns += total[number]
        for index, columns in enumerate(spreads):
            sums.staged_ns[index] += columns[0][number]
            _add_to(sums.spreads[index], columns, number)
        _add_to(sums.spread_bytes, sizes[4:], number)
        sums.noted_count += int(sizes[0][number])
        sums.noted_ns += sizes[1][number]
        sums.sized_sent_bytes += sizes[2][number]
        sums.sized_recv_bytes += sizes[3][number]
        sums.failed_count += int(failed[number])
        sums.split.add(batch, chosen)
        if batch.weights is not None:
            sums.weighted.add(batch, chosen, batch.weights[chosen])
        _add_worker(group, sums, batch.segment.worker, count, total[number])
        _keep_first(sums, batch, chosen)


def _summed(batch: Batch, values: npt.NDArray[Any]) -> list[float]:
    """Return the sum of the values by method."""
    sums: list[float] = np.bincount(batch.method, values, len(batch.methods)).tolist()
    return sums


def _add_to(sums: list[float], columns: Sequence[list[float]], number: int) -> None:
    sums[:] = [whole + column[number] for whole, column in zip(sums, columns, strict=True)]


def _sizes(batch: Batch, exact: npt.NDArray[np.float64]) -> list[list[float]]:
    """Return by method how many calls noted their bytes, their time, what they sent and received, and sums of the bytes
    of both ways and of their squares.
    """
    sized = batch.is_sized
    sent, recv = np.maximum(batch.sent_bytes, 0), np.maximum(batch.recv_bytes, 0)
    moved = (sent + recv).astype(np.float64)
    return [_summed(batch, column) for column in (sized, exact * sized, sent, recv, moved, moved * moved)]


def _spreads(batch: Batch) -> list[list[list[float]]]:
    """Return of each stage, by method, the sums of times, of their squares, and of their products with the bytes."""
    moved = np.where(batch.is_sized, batch.sent_bytes + batch.recv_bytes, 0).astype(np.float64)
    columns = batch.stage_ns.T.astype(np.float64)
    return [[_summed(batch, part) for part in (column, column * column, column * moved)] for column in columns]


def _keep_first(sums: MethodSums, batch: Batch, chosen: Ints) -> None:
    """Keep the first times, and the first pairs of time and size."""
    if len(sums.first_ns) < _FIRST_COUNT:
        sums.first_ns += batch.total_ns[chosen[: _FIRST_COUNT - len(sums.first_ns)]].tolist()
    room = _PAIRS_COUNT - len(sums.pairs)
    if room > 0:
        some = chosen[:room][batch.is_sized[chosen[:room]]]
        moved = batch.sent_bytes[some] + batch.recv_bytes[some]
        sums.pairs += zip(batch.total_ns[some].tolist(), moved.tolist(), strict=True)


def _add_extremes(kept: list[Extreme], batch: Batch, order: Ints) -> None:
    """Keep the calls that are largest in `order`; of equals, those with the smaller id."""
    if order.max() < 0 or (len(kept) >= _TOP_COUNT and order.max() <= kept[-1].order):
        return
    least = np.partition(order, -min(_TOP_COUNT, len(order)))[-min(_TOP_COUNT, len(order))]
    chosen = np.concatenate([np.flatnonzero(order > least), np.flatnonzero(order == least)[:_TOP_COUNT]])
    kept += [
        Extreme(
            int(order[index]),
            int(batch.ids[index]),
            printable(batch.methods[int(batch.method[index])]),
            int(batch.total_ns[index]),
            tuple(batch.stage_ns[index].tolist()),
            int(batch.sent_bytes[index]) if batch.is_sized[index] else None,
            int(batch.recv_bytes[index]) if batch.is_sized[index] else None,
        )
        for index in chosen.tolist()
    ]
    kept[:] = heapq.nsmallest(_TOP_COUNT, kept, key=lambda extreme: (-extreme.order, extreme.call_id))
