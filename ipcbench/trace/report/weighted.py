"""What calls with records tell of calls that were only counted, as a budget leaves them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.stats.student import student_975
from ipcbench.trace.readers.batch import Batch, Ints

_LEAST_WEIGHING = 10
"""With fewer calls that stand for others, nobody knows how far an estimate may be off."""


@dataclass(slots=True)
class WeightedSums:
    """Estimates of one method's calls that were only counted. Each call with a record stands for those of its interval
    (ipcbench/trace/format.py): a budget takes more of the calls when there are few, so that all together are no fair
    sample.

    Attributes:
        count: for how many calls others stand.
        weighing_count: how many stand for them.
        total_ns, stage_ns, sent_bytes, recv_bytes: estimates of their sums; bytes that nobody noted count as 0.
        variance_ns2, fourth_ns4: of the estimate of their time, and the sum of the squares of its parts.
    """

    count: float = 0.0
    weighing_count: int = 0
    total_ns: float = 0.0
    stage_ns: list[float] = field(default_factory=list)
    sent_bytes: float = 0.0
    recv_bytes: float = 0.0
    variance_ns2: float = 0.0
    fourth_ns4: float = 0.0

    @property
    def error_ns(self) -> float:
        """How far the estimate of their time may be off (95 %); infinite if too few stand for them. Where a few of them
        make most of the variance, little is known of it, and it is larger.
        """
        if self.weighing_count < _LEAST_WEIGHING:
            return math.inf
        degrees = self.variance_ns2**2 / self.fourth_ns4 if self.fourth_ns4 else math.inf
        return student_975(degrees) * math.sqrt(self.variance_ns2)

    @property
    def unseen_ratio(self) -> float:
        """The largest share that calls may have of which none has a record (95 %, the rule of three)."""
        return min(1.0, 3.0 / self.weighing_count) if self.weighing_count else 1.0

    def add(self, batch: Batch, chosen: Ints, weights: npt.NDArray[np.float64]) -> None:
        """Add what the chosen calls tell, with their weights. How much calls differ is taken from one to the next: what
        changes slowly was seen.
        """
        times = batch.total_ns[chosen].astype(np.float64)
        self.count += float(weights.sum())
        self.weighing_count += int(np.count_nonzero(weights))
        self.total_ns += float(weights @ times)
        staged = (weights @ batch.stage_ns[chosen].astype(np.float64)).tolist()
        before = self.stage_ns or [0.0] * len(staged)
        self.stage_ns = [sum(pair) for pair in zip(before, staged, strict=True)]
        self.sent_bytes += float(weights @ np.maximum(batch.sent_bytes[chosen], 0))
        self.recv_bytes += float(weights @ np.maximum(batch.recv_bytes[chosen], 0))
        if len(times) > 1:
            steps = np.diff(times) ** 2
            variances = (np.concatenate([steps[:1], steps]) + np.concatenate([steps, steps[-1:]])) / 4.0
            parts = weights * (weights + 1.0) * variances
            self.variance_ns2 += float(parts.sum())
            self.fourth_ns4 += float(parts @ parts)
