"""Sums of calls by segment and method: what is known of them, and how well."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ipcbench.stats.histogram import Histogram
from ipcbench.trace.readers.batch import Segment
from ipcbench.trace.report.split import Split
from ipcbench.trace.report.weighted import WeightedSums

OTHER = "(other)"
_MOST_METHODS = 1000

MOST_ERROR_RATIO = 0.5
"""By so much of it an estimate may be off that is still given."""


@dataclass(frozen=True, slots=True, order=True)
class Extreme:
    """A slowest or largest call, which is shown by itself; `order` is the key it was chosen by. Times are None if they
    are unknown.
    """

    order: int
    call_id: int
    method: str
    total_ns: int | None
    stage_ns: tuple[int | None, ...]
    sent_bytes: int | None
    recv_bytes: int | None


@dataclass(slots=True)
class MethodSums:
    """The calls of one method.

    Attributes:
        stages: names; `staged_ns` has a sum for each, of timed calls.
        histogram: of all timed calls; negative times count as 0.
        untimed_count: further calls that were counted but not timed.
        planned_count: further calls that nobody made: they have no time, and moved `planned_sent_bytes` and
            `planned_recv_bytes`.
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
    planned_count: int = 0
    planned_sent_bytes: float = 0.0
    planned_recv_bytes: float = 0.0
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
        return self.timed_count + self.untimed_count + self.planned_count

    @property
    def scale(self) -> float:
        """All calls that were made over those that were timed or for which timed ones stand: what their sums are short
        by.
        """
        known = self.timed_count + self._whole.count
        return (self.timed_count + self.untimed_count) / known if known else 0.0

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
        if not self.sized_count and not self.planned_count:
            return None
        return (self.sized_sent_bytes + self._whole.sent_bytes) * self.scale + self.planned_sent_bytes

    @property
    def recv_bytes(self) -> float | None:
        """What all calls received, as `sent_bytes` does."""
        if not self.sized_count and not self.planned_count:
            return None
        return (self.sized_recv_bytes + self._whole.recv_bytes) * self.scale + self.planned_recv_bytes

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
    def planned_count(self) -> int:
        """Calls that nobody made."""
        return sum(sums.planned_count for sums in self.methods.values())

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
        """How far the estimate of the total may be off, as a ratio to it (95 %): 0 if all calls were timed, infinite if
        none took any time and no record stands for others.
        """
        if self.total_ns <= 0.0:
            return max((sums.total_error_ratio for sums in self.methods.values()), default=0.0)
        return math.hypot(*(sums.total_error_ratio * sums.total_ns for sums in self.methods.values())) / self.total_ns

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
    if sums.planned_count:
        return None
    return moved / 2**20 / (ns / 1e9) if ns > 0 else None
