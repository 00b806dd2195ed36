"""Traffic: the calls of a trace as each client made them, in its order, with the work before, inside and between them.

Of a recorded call, `serialize`, `deserialize` and whatever is in no stage are the client's own work; `send` and `wait`
hold the transport, and `wait` the server's work as well. Begin times are used only to get the *gap*, the client's work
between two calls: begin − previous end. They are never replayed, since the recorded transport's delays are in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN_NS, Ints

_ENOUGH_CALLS = 20


@dataclass(frozen=True, slots=True)
class Lane:
    """One client's calls in program order. Columns have shape (n,).

    Attributes:
        name: the client: a process and thread, or a log.
        method: index into `Traffic.methods`.
        gap_ns: work before the call; 0 before the first, and where it is unknown.
        before_ns: work inside the call before its request leaves: serialize.
        after_ns: work inside the call after its reply is here: deserialize, and what no stage accounts for.
        server_ns: the server's work; UNKNOWN_NS where nothing tells.
        total_ns: the whole call as it was recorded.
        sent_bytes, recv_bytes: request and reply.
    """

    name: str
    method: Ints
    gap_ns: Ints
    before_ns: Ints
    after_ns: Ints
    server_ns: Ints
    total_ns: Ints
    sent_bytes: Ints
    recv_bytes: Ints

    @property
    def recorded_ns(self) -> int:
        """From the first call's begin to the last one's end; without gaps, the calls alone."""
        return int(self.gap_ns.sum() + self.total_ns.sum())

    def first(self, count: int) -> Lane:
        """Return the first `count` calls."""
        columns = ("method", "gap_ns", "before_ns", "after_ns", "server_ns", "total_ns", "sent_bytes", "recv_bytes")
        return replace(self, **{name: getattr(self, name)[:count] for name in columns})


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is replayed.

    Attributes:
        source: where it was read from.
        methods: names, into which `Lane.method` points.
        lanes: the clients; all of them run at once.
        gaps_known: whether the time between calls is known; else calls follow one another at once.
        recorded_calls_count: calls in the trace that could be replayed; the lanes may hold fewer.
        remarks: what the reader of the result must know, one sentence each.
        layouts: by method, of what its messages usually are made, as text; for those that say so.
    """

    source: str
    methods: tuple[str, ...]
    lanes: tuple[Lane, ...]
    gaps_known: bool
    recorded_calls_count: int
    remarks: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)

    @property
    def calls_count(self) -> int:
        """How many calls the lanes hold."""
        return sum(len(lane.method) for lane in self.lanes)

    @property
    def recorded_ns(self) -> int:
        """The longest lane's time, as it was recorded."""
        return max(lane.recorded_ns for lane in self.lanes)

    @property
    def server_known(self) -> bool:
        """Whether the server's work is known for every call."""
        return all(bool((lane.server_ns != UNKNOWN_NS).all()) for lane in self.lanes)

    @property
    def largest_bytes(self) -> int:
        """The largest message of either way."""
        return max(int(max(lane.sent_bytes.max(), lane.recv_bytes.max())) for lane in self.lanes)

    def limited(self, duration_ns: float, calls_count: int | None = None) -> Traffic:
        """Return the beginning of every lane: `calls_count` calls of each, else what took `duration_ns`.

        For 20 calls it may be four times as much; each lane keeps one call at least.
        """
        lanes = []
        for lane in self.lanes:
            if calls_count is None:
                ends = np.cumsum(lane.gap_ns + lane.total_ns)
                usual, most = np.searchsorted(ends, (duration_ns, 4 * duration_ns), side="right").tolist()
                count = max(usual, min(most, _ENOUGH_CALLS), 1)
            else:
                count = calls_count
            lanes.append(lane.first(count))
        return replace(self, lanes=tuple(lanes))

    def without_think(self) -> Traffic:
        """Return the same with a server that does no work."""
        return replace(self, lanes=tuple(replace(one, server_ns=np.zeros_like(one.server_ns)) for one in self.lanes))
