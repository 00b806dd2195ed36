"""Adding calls to their sums in bounded memory, by segment and method."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.stats.histogram import Histogram
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Bulk, Ints, Segment
from ipcbench.trace.report.sums import OTHER, Extreme, GroupSums, MethodSums, Room
from ipcbench.util.bins import bin_bounds
from ipcbench.util.text import printable

_FIRST_COUNT = 5
_PAIRS_COUNT = 2000
_MOST_GROUPS = 200
_MOST_WORKERS = 2000
_TOP_COUNT = 5


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
        if not batch.is_timed:
            _add_planned(group, _folded(group, batch))
            _add_extremes(group.largest, batch, batch.sent_bytes + batch.recv_bytes)
            return
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


def _add_planned(group: GroupSums, batch: Batch) -> None:
    """Add calls that nobody made to the sums of their methods."""
    counts = np.bincount(batch.method, minlength=len(batch.methods)).tolist()
    sent, recv = _summed(batch, batch.sent_bytes), _summed(batch, batch.recv_bytes)
    for number, name in enumerate(batch.methods):
        if counts[number]:
            sums = method_of(group, name)
            sums.planned_count += counts[number]
            sums.planned_sent_bytes += sent[number]
            sums.planned_recv_bytes += recv[number]


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
            int(batch.total_ns[index]) if batch.is_timed else None,
            tuple(batch.stage_ns[index].tolist() if batch.is_timed else [None] * len(batch.stages)),
            int(batch.sent_bytes[index]) if batch.is_sized[index] else None,
            int(batch.recv_bytes[index]) if batch.is_sized[index] else None,
        )
        for index in chosen.tolist()
    ]
    kept[:] = heapq.nsmallest(_TOP_COUNT, kept, key=lambda extreme: (-extreme.order, extreme.call_id))
