"""The parts of a wait: sums over the calls whose server side is known."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipcbench.trace.buffers import wide_bytes
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Ints

_LONGEST_COUNT = 16


@dataclass(slots=True)
class Split:
    """Sums over the joined calls: those whose server side is known.

    A log may have a column of the server's own, which says how long it worked at least: what it did beside that, and
    how long the ways took, nobody knows. Then `is_whole` is False.

    Attributes:
        joined_count: joined calls; `total_ns`, `send_ns` and `wait_ns` are theirs.
        answered_count: joined calls with a reply; of the others, transit and queue come after the call's own time.
        request_ns, queue_ns, server_ns, reply_ns: the parts of `wait`.
        is_whole: whether all parts are known.
        longest: transport and total of the calls with the longest transport, ns.
        longest_queued: the same of the calls that queued longest.
        offset_error_ns: how far the clocks of the two sides may be apart after correction; 0 on one host.
        first_ns, last_ns: begin of the earliest and of the latest call; `origin_ns` is that of the first call added.
        moments: sums for a line through queue over time since `origin_ns`: t, t², t·queue, in s and ns.
        typed_bytes, wide_bytes: bytes moved by calls of known buffers, and those of four- or eight-byte floats.
    """

    joined_count: int = 0
    answered_count: int = 0
    total_ns: float = 0.0
    send_ns: float = 0.0
    wait_ns: float = 0.0
    request_ns: float = 0.0
    queue_ns: float = 0.0
    server_ns: float = 0.0
    reply_ns: float = 0.0
    is_whole: bool = False
    longest: list[tuple[int, int]] = field(default_factory=list)
    longest_queued: list[tuple[int, int]] = field(default_factory=list)
    offset_error_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    origin_ns: int = 0
    moments: tuple[float, float, float] = (0.0, 0.0, 0.0)
    typed_bytes: float = 0.0
    wide_bytes: float = 0.0

    @property
    def transport_ns(self) -> float:
        """The time in the transport: sending and waiting, less the server's queue and work."""
        return self.send_ns + self.wait_ns - self.queue_ns - self.server_ns

    @property
    def transport_ratio(self) -> float:
        """The transport's share of the joined calls' time."""
        return self.transport_ns / self.total_ns if self.total_ns > 0 else 0.0

    @property
    def usual_transport_ratio(self) -> float:
        """The same without the calls that took the longest to transport, see `_usual_ratio`."""
        return self._usual_ratio(self.transport_ns, self.longest)

    @property
    def usual_queue_ratio(self) -> float:
        """The share of queueing at the server, without the calls that queued longest."""
        return self._usual_ratio(self.queue_ns, self.longest_queued)

    def _usual_ratio(self, part_ns: float, longest: list[tuple[int, int]]) -> float:
        """Return a part's share without the calls where it is longest, 1 % of all, at least one and at most 16: a
        connection that was made first, or a server that had to start, says nothing of the other calls.
        """
        out = longest[: max(1, self.joined_count // 100)]
        rest_ns = self.total_ns - sum(total for _, total in out)
        return (part_ns - sum(part for part, _ in out)) / rest_ns if rest_ns > 0 else 0.0

    @property
    def span_s(self) -> float:
        """From the begin of the earliest call to that of the latest."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def growth_ratio(self) -> float:
        """Growth of the queueing time from first to last call as a multiple of its mean, by a linear fit."""
        count, (t, tt, tq) = self.joined_count, self.moments
        spread = count * tt - t * t
        if spread <= 0 or self.queue_ns <= 0:
            return 0.0
        return (count * tq - t * self.queue_ns) / spread * self.span_s / (self.queue_ns / count)

    def add(self, batch: Batch, chosen: Ints | slice) -> None:
        """Add those of the chosen calls whose server side is known."""
        known = _known_calls(batch)
        if batch.layout is not None:
            self._add_types(batch, chosen)
        if known is None:
            return
        rows = np.flatnonzero(known[chosen]) if isinstance(chosen, slice) else chosen[known[chosen]]
        if not len(rows):
            return

        def summed(column: Ints | None) -> float:
            return 0.0 if column is None else float(column[rows].sum(dtype=np.float64))

        self.joined_count += len(rows)
        self.total_ns += summed(batch.total_ns)
        if "wait" in batch.stages:
            self.answered_count += len(rows)
            self.wait_ns += summed(batch.stage_ns[:, batch.stages.index("wait")])
        if "send" in batch.stages:
            self.send_ns += summed(batch.stage_ns[:, batch.stages.index("send")])
        self.request_ns += summed(batch.request_ns)
        self.queue_ns += summed(batch.queue_ns)
        self.server_ns += summed(batch.server_ns)
        self.reply_ns += summed(batch.reply_ns)
        if batch.request_ns is not None:
            self.is_whole = True
            self.offset_error_ns = max(self.offset_error_ns, batch.offset_error_ns)
            self._add_moments(batch, rows)
            self._add_longest(batch, rows)

    def _add_moments(self, batch: Batch, rows: Ints) -> None:
        begin, queue = batch.begin_ns[rows], batch.queue_ns
        if not self.origin_ns:
            self.origin_ns = self.first_ns = int(begin[0])
        self.first_ns = min(self.first_ns, int(begin.min()))
        self.last_ns = max(self.last_ns, int(begin.max()))
        seconds = (begin - self.origin_ns) / 1e9
        weighted = 0.0 if queue is None else float((seconds * queue[rows]).sum())
        t, tt, tq = self.moments
        self.moments = (t + float(seconds.sum()), tt + float((seconds * seconds).sum()), tq + weighted)

    def _add_longest(self, batch: Batch, rows: Ints) -> None:
        if batch.reply_ns is None or batch.request_ns is None:
            return
        transport: Ints = batch.request_ns[rows] + batch.reply_ns[rows]
        if "send" in batch.stages:
            transport = transport + batch.stage_ns[rows, batch.stages.index("send")]
        self.longest = _with_longest(self.longest, transport, batch.total_ns[rows])
        if batch.queue_ns is not None:
            self.longest_queued = _with_longest(self.longest_queued, batch.queue_ns[rows], batch.total_ns[rows])

    def _add_types(self, batch: Batch, chosen: Ints | slice) -> None:
        if batch.layout is None:
            return
        wide = np.array([wide_bytes(text) for text in batch.layouts], dtype=np.float64)
        typed = np.array([bool(text) for text in batch.layouts])
        layout = batch.layout[chosen]
        moved = np.maximum((batch.sent_bytes + batch.recv_bytes)[chosen], 0).astype(np.float64)
        self.typed_bytes += float(moved[typed[layout]].sum())
        self.wide_bytes += float(np.minimum(wide[layout], moved).sum())


def _with_longest(known: list[tuple[int, int]], parts: Ints, totals: Ints) -> list[tuple[int, int]]:
    """Return those that are longest among the known and the new ones, with the time of the whole calls."""
    places = np.argsort(parts)[-_LONGEST_COUNT:]
    pairs = zip(parts[places].tolist(), totals[places].tolist(), strict=True)
    return heapq.nlargest(_LONGEST_COUNT, [*known, *pairs])


def _known_calls(batch: Batch) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the calls whose other side is known; None if the log has no such column."""
    column = batch.server_ns if batch.server_ns is not None else batch.request_ns
    return None if column is None else column != UNKNOWN
