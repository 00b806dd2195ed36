"""From the endpoints' answers to the record of a queue or fan-in: rates, counts by peer, times, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.harness.digest import MAX_BACKLOG_RATIO, quantiles
from ipcbench.harness.patterns.parts import Offered
from ipcbench.results.model import PatternWindow, Recovery
from ipcbench.stats.estimates import has_quantile

Column = npt.NDArray[np.int64]

_LEAST_ARRIVED_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Step:
    """One window of a trial, as the writers saw it."""

    load_ratio: float | None
    """None for the one that is flat out."""
    offered: tuple[Offered, ...]
    """By writer."""
    window_ns: float
    """Its planned length."""
    offered_per_s: float | None = None
    """By all of them together; None flat out."""

    @property
    def is_together(self) -> bool:
        """Whether all writers were at it for half of the window at least: what less shows is too little for a rate."""
        is_flat_out = self.load_ratio is None  # at a lower rate, a writer's last message may be due long before the end
        ends = [each.end_ns if is_flat_out else each.begin_ns + self.window_ns for each in self.offered]
        return 2 * (min(ends) - max(each.begin_ns for each in self.offered)) >= self.window_ns

    @property
    def capacity_per_s(self) -> float:
        """Return the rate flat out, of all writers together: what they began to write within the planned window.

        What a writer is at when the window begins does not count, what it is at when the window ends does; so a long
        wait at either end makes no difference, and channels that are full at both add nothing. When the writers really
        began and ended would not do: one that waits for room would shorten or lengthen the time of all.
        """
        return 1e9 * self.count / self.window_ns

    @property
    def count(self) -> int:
        """Return how many messages belong to the window."""
        return sum(each.count for each in self.offered)


@dataclass(frozen=True, slots=True)
class Receipts:
    """All messages that one trial's readers or workers took, in the order of each."""

    numbers: Column
    intended_ns: Column
    received_ns: Column
    taker: Column
    """Index of the worker; 0 for the reader of a fan-in."""

    @classmethod
    def of(cls, columns: Sequence[Mapping[str, bytes]]) -> Receipts:
        """Join the columns of `Taken`, in the order of the workers."""
        names = ("number", "intended_ns", "received_ns")
        parts = [[np.frombuffer(each[name], dtype=np.int64) for each in columns] for name in names]
        taker = np.repeat(np.arange(len(columns)), [len(part) for part in parts[0]])
        numbers, intended, received = map(np.concatenate, parts)
        return cls(numbers, intended, received, taker)

    def window(self, step: Step, batch: int, *, by_writer: bool, times_all: bool = False) -> PatternWindow:
        """Return the record of a window.

        Args:
            step: the window.
            batch: messages that a writer wrote together.
            by_writer: whether the peers are the writers (fan-in), not the workers (queue).
            times_all: whether the window flat out has times, too.
        """
        writers = len(step.offered)
        peer = self.numbers % writers if by_writer else self.taker
        peers = writers if by_writer else int(self.taker.max(initial=0)) + 1
        last = np.array([each.first + writers * each.count for each in step.offered])
        first = np.array([each.first for each in step.offered])
        writer = self.numbers % writers
        own = (self.numbers >= first[writer]) & (self.numbers < last[writer])
        is_flat_out = step.load_ratio is None
        in_order = np.flatnonzero(own)[np.argsort(self.intended_ns[own], kind="stable")]
        times = (self.received_ns - self.intended_ns)[in_order]
        batch_ns = 1e9 * batch * writers / step.offered_per_s if step.offered_per_s else 0.0
        end_ns = np.array([each.begin_ns for each in step.offered])[writer] + step.window_ns
        timely_count = int(np.count_nonzero(own & (self.received_ns < end_ns)))
        due_count = step.count - batch * writers
        arrived_ratio = timely_count / due_count if due_count > 0 else 1.0
        return PatternWindow(
            load_ratio=step.load_ratio,
            offered_per_s=step.offered_per_s,
            rate_per_s=step.capacity_per_s if is_flat_out else 1e9 * timely_count / step.window_ns,
            is_held=is_flat_out or is_held(times, step.window_ns, batch_ns, arrived_ratio),
            peer_counts=tuple(map(int, np.bincount(peer[own], minlength=peers))),
            wait=None if is_flat_out and not times_all else quantiles(times),
            slowest_p99_ns=None if is_flat_out or not by_writer else slowest_p99_ns(times, peer[in_order], peers),
        )


def is_held(times_ns: Column, window_ns: float, batch_ns: float, arrived_ratio: float) -> bool:
    """Return whether an offered rate was held: nearly all messages of the window arrived in it, and of the last
    quarter of the messages, at least one had hardly to wait.

    A backlog that is still there at the end, in the channel or before it, would grow with the window.

    Args:
        times_ns: receipt − intended send time, in the order of the latter.
        window_ns: length of the window.
        batch_ns: from one batch of a writer to the next; what takes less is no backlog.
        arrived_ratio: messages of the window that arrived in it over all of them less a batch of each writer, which
            may be under way at its end.
    """
    last = times_ns[-max(1, len(times_ns) // 4) :]
    hardly_waits = not len(last) or last.min() <= MAX_BACKLOG_RATIO * window_ns + batch_ns
    return bool(hardly_waits) and arrived_ratio >= _LEAST_ARRIVED_RATIO


def slowest_p99_ns(times: Column, writer: Column, writers: int) -> float | None:
    """Return the p99 of the writer with the highest; None if one has too few messages for a p99."""
    parts = [times[writer == index] for index in range(writers)]
    if not all(has_quantile(len(part), 0.99) for part in parts):
        return None
    return max(float(np.percentile(part, 99)) for part in parts)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Which of the messages that were sent arrived, by their numbers."""

    sent_count: int
    lost_count: int
    repeated_count: int
    """Receipts of a message beyond the first."""
    unknown_count: int
    """Receipts of numbers that nobody sent."""
    reordered_count: int
    """Receipts after one with a higher number, of the same writer at the same reader or worker."""

    @classmethod
    def of(cls, receipts: Receipts, total_counts: Sequence[int], began: Sequence[int] = ()) -> Delivered:
        """Count.

        Args:
            receipts: of all that reported.
            total_counts: messages sent by each writer, all phases together.
            began: numbers of the messages that a worker that was killed had begun.
        """
        writers = len(total_counts)
        numbers = np.concatenate([receipts.numbers, np.asarray(began, dtype=np.int64)])
        limits = np.asarray(total_counts)[numbers % writers]
        known = (numbers >= 0) & (numbers // writers < limits)
        seen = np.bincount(numbers[known], minlength=writers * max(total_counts))
        sent = sum(total_counts)
        line = receipts.taker * writers + receipts.numbers % writers
        order = np.argsort(line, kind="stable")
        same = np.diff(line[order]) == 0
        return cls(
            sent_count=sent,
            lost_count=sent - int(np.count_nonzero(seen)),
            repeated_count=int(np.maximum(seen - 1, 0).sum()),
            unknown_count=int(np.count_nonzero(~known)),
            reordered_count=int(np.count_nonzero(same & (np.diff(receipts.numbers[order]) < 0))),
        )

    def fault(self, torn_count: int) -> str:
        """Return what was not as promised while nobody died; empty if all was."""
        counts = {
            "lost": self.lost_count,
            "duplicated": self.repeated_count,
            "reordered": self.reordered_count,
            "torn": torn_count + self.unknown_count,
        }
        if not any(counts.values()):
            return ""
        return f"of {self.sent_count} messages, " + ", ".join(f"{count} {what}" for what, count in counts.items())

    def recovery(self, redelivered_count: int | None) -> Recovery:
        """Return what became of the messages of a queue of which a worker was killed."""
        return Recovery(self.sent_count, self.lost_count, self.repeated_count, redelivered_count)


def offered_of(answer: Mapping[str, Any]) -> Offered:
    """Return what a writer said of a window."""
    return Offered(**{name: answer[name] for name in Offered.__dataclass_fields__})
