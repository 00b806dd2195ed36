"""What calls with records tell of calls that were only counted, as a budget leaves them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ipcbench.stats.student import student_975
from ipcbench.trace.readers.batch import Batch, Ints

_LATEST = 4
"""How many of the latest calls of a process tell what those were for which no record stands."""

_LEAST_WEIGHING = 20
"""With fewer calls that stand for others, all others may be as long as the longest."""


@dataclass(slots=True)
class Variance:
    """Of an estimated sum.

    Attributes:
        parts, squares: the sums of its parts and of their squares.
    """

    parts: float = 0.0
    squares: float = 0.0

    def add(self, values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> None:
        """Add calls with their weights. How much they differ is taken from one to the next: what changes slowly was
        seen.
        """
        if len(values) > 1:
            steps = np.diff(values) ** 2
            variances = (np.concatenate([steps[:1], steps]) + np.concatenate([steps, steps[-1:]])) / 4.0
            parts = weights * (weights + 1.0) * variances
            self.parts += float(parts.sum())
            self.squares += float(parts @ parts)

    @property
    def error(self) -> float:
        """How far the sum may be off (95 %). Where a few calls make most of the variance, little is known of it, and it
        is larger.
        """
        degrees = self.parts**2 / self.squares if self.squares else math.inf
        return student_975(degrees) * math.sqrt(self.parts)


@dataclass(slots=True)
class WeightedSums:
    """Estimates of one method's calls that were only counted. Each call with a record stands for those of its interval
    (ipcbench/trace/format.py): a budget takes more of the calls when there are few, so that all together are no fair
    sample.

    Attributes:
        count: for how many calls others stand.
        squares: the sum of the squares of the weights of those that stand for them.
        total_ns, stage_ns, sent_bytes, recv_bytes: estimates of their sums; bytes that nobody noted count as 0.
        time, moved: variances of the estimates of their time (ns) and of what they moved (bytes).
        stage_times: the same of the time in each stage.
        longest_stage_ns: the longest time that one of them spent in each stage.
        most_moved_bytes: the most that one of them moved.
        latest: by process, means of its latest calls: ns, bytes sent, bytes received, ns of each stage; and how much
            these calls differ, in ns and in bytes.
        more_ns, more_bytes: how far calls that were taken to be like the latest may be off.
    """

    count: float = 0.0
    squares: float = 0.0
    total_ns: float = 0.0
    stage_ns: list[float] = field(default_factory=list)
    sent_bytes: float = 0.0
    recv_bytes: float = 0.0
    time: Variance = field(default_factory=Variance)
    moved: Variance = field(default_factory=Variance)
    stage_times: list[Variance] = field(default_factory=list)
    longest_stage_ns: list[float] = field(default_factory=list)
    most_moved_bytes: float = 0.0
    latest: dict[str, list[float]] = field(default_factory=dict)
    more_ns: float = 0.0
    more_bytes: float = 0.0

    def with_more(self, count: float) -> WeightedSums:
        """Return the sums with so many more calls, those for which no record was said to stand when their process
        ended: they are as its latest ones.
        """
        if count <= 0.0 or not self.latest:
            return self
        means = [sum(column) / len(self.latest) for column in zip(*self.latest.values(), strict=True)]
        return replace(
            self,
            count=self.count + count,
            squares=self.squares * (1.0 + count / self.count) ** 2 if self.count else 0.0,  # they tell nothing more
            total_ns=self.total_ns + count * means[0],
            sent_bytes=self.sent_bytes + count * means[1],
            recv_bytes=self.recv_bytes + count * means[2],
            stage_ns=[ns + count * mean for ns, mean in zip(self.stage_ns, means[3:-2], strict=True)],
            more_ns=count * means[-2],
            more_bytes=count * means[-1],
        )

    def error_ns(self, longest_ns: float) -> float:
        """How far the estimate of their time may be off (95 %), if none was longer. As many as may be of a kind that
        was not seen count as long as that: `unseen_ratio` says how rare longer ones would have to be.
        """
        return math.hypot(self._error(self.time, longest_ns), self.more_ns)

    @property
    def stage_errors_ns(self) -> list[float]:
        """The same for their time in each stage."""
        pairs = zip(self.stage_times, self.longest_stage_ns, strict=True)
        return [math.hypot(self._error(variance, longest_ns), self.more_ns) for variance, longest_ns in pairs]

    @property
    def error_bytes(self) -> float:
        """The same for what they moved."""
        return math.hypot(self._error(self.moved, self.most_moved_bytes), self.more_bytes)

    def _error(self, variance: Variance, largest: float) -> float:
        unseen_ratio = self.unseen_ratio if self.weighing_count >= _LEAST_WEIGHING else 1.0
        return math.hypot(variance.error, unseen_ratio * self.count * largest)

    @property
    def unseen_ratio(self) -> float:
        """The largest share that calls may have of which none has a record (95 %, the rule of three)."""
        return min(1.0, 3.0 / self.weighing_count) if self.weighing_count else 1.0

    @property
    def weighing_count(self) -> float:
        """How many calls stand for others: as many of equal weights as would tell as much (Kish's effective size)."""
        return self.count**2 / self.squares if self.squares else 0.0

    def add(self, batch: Batch, chosen: Ints, weights: npt.NDArray[np.float64]) -> None:
        """Add what the chosen calls tell, with their weights."""
        times = batch.total_ns[chosen].astype(np.float64)
        self.count += float(weights.sum())
        self.squares += float(weights @ weights)
        self.total_ns += float(weights @ times)
        self._add_stages(batch.stage_ns[chosen].astype(np.float64), weights)
        sent, recv = np.maximum(batch.sent_bytes[chosen], 0), np.maximum(batch.recv_bytes[chosen], 0)
        moved = (sent + recv).astype(np.float64)
        self.sent_bytes += float(weights @ sent)
        self.recv_bytes += float(weights @ recv)
        if len(chosen):
            end = chosen[-_LATEST:]
            columns = (times[-_LATEST:], sent[-_LATEST:], recv[-_LATEST:], *batch.stage_ns[end].T)
            means = [float(np.average(column, weights=weights[-_LATEST:] + 1.0)) for column in columns]
            spreads = [float(np.ptp(column[-2 * _LATEST :])) for column in (times, moved)]
            self.latest[batch.segment.worker] = means + spreads
        self.time.add(times, weights)
        self.moved.add(moved, weights)
        self.most_moved_bytes = max(self.most_moved_bytes, float(moved.max(initial=0.0)))

    def _add_stages(self, times: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> None:
        stages = times.shape[1]
        if not self.stage_times:
            self.stage_times = [Variance() for _ in range(stages)]
            self.stage_ns, self.longest_stage_ns = [0.0] * stages, [0.0] * stages
        for stage, column in enumerate(times.T):
            self.stage_ns[stage] += float(weights @ column)
            self.longest_stage_ns[stage] = max(self.longest_stage_ns[stage], float(column.max(initial=0.0)))
            self.stage_times[stage].add(column, weights)
