"""Traces by method and side: totals of all calls, and the times of recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.trace.readers.batch import Ints, Notes
from ipcbench.trace.readers.by_method import MOST_METHODS, OTHER, MethodTotals
from ipcbench.trace.readers.calls import FAR_SIDES, Calls, method_name
from ipcbench.trace.readers.everything import find


@dataclass(slots=True)
class Method:
    """The calls of one method on one side.

    Attributes:
        name: followed by ` (server)` for the work of servers.
        has_histogram: whether some calls have no record.
    """

    name: str
    is_far: bool
    sums: MethodTotals = field(default_factory=MethodTotals)
    has_histogram: bool = False
    _times: list[Ints] = field(default_factory=list)
    _places: list[Ints] = field(default_factory=list)

    def keep(self, calls: Calls, number: int) -> None:
        """Keep the times of sampled calls; those recorded for being slow would bias them."""
        if not calls.batch.is_timed:
            return
        chosen = (calls.batch.method == number) & ~calls.kept
        self._times.append(np.maximum(calls.batch.total_ns[chosen], 0))
        begin = calls.batch.begin_ns[chosen]
        self._places.append(np.where(begin >= 0, begin + (calls.process.unix_ns or 0), -1))

    def times_ns(self) -> Ints:
        """Return the times in order of begin; in the order of the log if it has no clock."""
        if not self._times:
            return np.zeros(0, np.int64)
        order = np.argsort(np.concatenate(self._places), kind="stable")
        return np.concatenate(self._times)[order]


@dataclass(frozen=True, slots=True)
class Methods:
    """All methods of a trace, by descending total time."""

    paths: tuple[Path, ...]
    methods: dict[str, Method]
    notes: Notes

    @property
    def total_ns(self) -> int:
        """The time of all calls; the far side's work is part of it."""
        return sum(method.sums.total_ns for method in self.methods.values() if not method.is_far)

    def words(self) -> Iterator[str]:
        """Yield warnings about the figures."""
        if self.notes.damaged_count:
            yield f"{self.notes.damaged_count:,} damaged: {self.notes.examples[0]}"


def read_methods(paths: Sequence[Path], *, keep_times: bool) -> Methods:
    """Read traces and logs.

    Args:
        paths: files or folders.
        keep_times: whether to keep the time of each recorded call, for intervals; 16 bytes per call.

    Raises:
        StoreError: they cannot be read, or hold no call.
    """
    source = find(paths)
    methods: dict[str, Method] = {}

    def of(name: str, role: int) -> Method:
        full = method_name(name, role)
        if full not in methods and len(methods) >= MOST_METHODS:
            full = method_name(OTHER, role)
        return methods.setdefault(full, Method(full, role in FAR_SIDES))

    for calls in source.calls():
        for number, name in enumerate(calls.batch.methods):
            method = of(name, calls.batch.segment.role)
            method.sums.add_calls(calls, number)
            if keep_times:
                method.keep(calls, number)
    for bulk in source.bulks():
        method = of(bulk.method, bulk.segment.role)
        count = int(bulk.counts.sum())
        method.sums.add_histogram(bulk, count / bulk.summed_count if bulk.summed_count else 1.0)
        method.has_histogram = method.has_histogram or count > 0
    if not any(method.sums.calls_count for method in methods.values()):
        raise StoreError(f"{', '.join(map(str, paths))}: no calls found")
    ordered = sorted(methods.values(), key=lambda method: -method.sums.total_ns)
    return Methods(tuple(paths), {method.name: method for method in ordered}, source.notes)
