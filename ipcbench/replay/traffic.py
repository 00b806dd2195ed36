"""Traffic: the calls of a trace as each client made them, in its order, with the work before, inside and between them.

In a recorded call, `serialize`, `deserialize` and time outside all stages are the client's own work; `send` and `wait`
hold the transport, and `wait` the server's work as well. Begin times are used only to get the *gap*, the client's work
between two calls: begin − previous end. They are never replayed, since the recorded transport's delays are in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ipcbench.trace.readers.batch import UNKNOWN, Ints

COLUMNS = (
    "method", "gap_ns", "before_ns", "after_ns", "other_ns", "queue_ns", "server_ns", "server_most_ns", "total_ns",
    "sent_bytes", "recv_bytes",
)  # fmt: skip
"""Of a client's calls."""

_ENOUGH_CALLS = 20
_FAR_RATIO = 10
"""A wait that is so many times as long as the usual one is another wait."""
_MOST_CORE_WAIT_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class ThreadCalls:
    """One client's calls in program order. Columns have shape (n,).

    Attributes:
        name: the client: a process and thread, or a log.
        method: index into `Traffic.methods`.
        gap_ns: work before the call; 0 before the first, and where it is unknown.
        before_ns: work inside the call before its request leaves: serialize.
        after_ns: work inside the call after its reply is here: deserialize, and what no stage accounts for.
        other_ns: the part of `after_ns` that no stage accounts for.
        queue_ns: how long the request waited for the server; UNKNOWN where it is not recorded.
        server_ns: the server's work; UNKNOWN where it is not recorded. The least it was, if a log tells only a part.
        server_most_ns: the most it can have been: `server_ns` where that is the whole, else all of `send` and `wait`.
        total_ns: the whole call as it was recorded.
        sent_bytes, recv_bytes: request and reply.
        server: the process and thread that served all its calls, and any other client's, one at a time; empty if that
            is not known.
    """

    name: str
    method: Ints
    gap_ns: Ints
    before_ns: Ints
    after_ns: Ints
    other_ns: Ints
    queue_ns: Ints
    server_ns: Ints
    server_most_ns: Ints
    total_ns: Ints
    sent_bytes: Ints
    recv_bytes: Ints
    server: str = ""

    @property
    def recorded_ns(self) -> int:
        """From the first call's begin to the last one's end; without gaps, the calls alone."""
        return int(self.gap_ns.sum() + self.total_ns.sum())

    @property
    def stuck_ns(self) -> Ints:
        """For how long each call waited for a server that was not there to take it: what its queue is beyond ten times
        the usual one, or, where that is 0, beyond ten times what calls usually have between request and reply; 0 up to
        50 ms, since on a busy machine a server that is there may wait as long for a core. No transport changes that,
        and no replay shows it.
        """
        known = self.queue_ns[self.queue_ns != UNKNOWN]
        if not len(known):
            return np.zeros_like(self.total_ns)
        usual_ns = _FAR_RATIO * int(np.median(known) or np.median(self.away_ns))
        return np.where(self.queue_ns > max(usual_ns, _MOST_CORE_WAIT_NS), self.queue_ns - usual_ns, 0)

    @property
    def replay_ns(self) -> Ints:
        """What a replay of each call takes at most: all known work, and what it had between request and reply, that at
        most ten times the usual, or as many times more as it has bytes more. What a call waited beyond it, for a server
        that came late, no replay waits.
        """
        away, moved = self.away_ns, self.sent_bytes + self.recv_bytes
        usual = np.median(moved) if len(moved) else 0
        most = _FAR_RATIO * np.median(away) * np.maximum(1, moved / max(1, usual)) if len(away) else away
        work = self.gap_ns + self.before_ns + self.after_ns + np.maximum(self.server_ns, 0)
        return np.asarray(work + np.minimum(away, most).astype(np.int64), dtype=np.int64)

    @property
    def away_ns(self) -> Ints:
        """What each call had between its request and its reply beyond the server's work, as far as that is known."""
        work = self.before_ns + self.after_ns + np.maximum(self.server_ns, 0)
        return np.maximum(self.total_ns - work, 0)

    def first(self, count: int) -> ThreadCalls:
        """Return the first `count` calls."""
        return replace(self, **{name: getattr(self, name)[:count] for name in COLUMNS})


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic to replay.

    Attributes:
        source: where it was read from.
        methods: names, into which `ThreadCalls.method` points.
        threads: the clients; all run at once.
        gaps_known: whether the time between calls is known; else calls follow one another at once.
        recorded_calls_count: calls in the trace that could be replayed; `threads` may hold fewer.
        remarks: what the reader of the result must know, one sentence each.
        layouts: by method, what its messages usually consist of, as text; only for methods where it is known.
        is_sampled: whether the trace has no records of some calls.
        transports: over which the trace or log says that calls were made, as it names them, the most frequent first.
        waited_ns: by thread, of clients and servers: for how long it was ready to run and had no core; only those
            whose segments all tell.
        takes_turns: whether the clients' calls never overlap where they would by chance: they wait for one another, and
            nobody knows how much of the time between calls is that.
        is_timed: whether the calls were made, and so took a time that is known; else all times are 0 and mean nothing.
    """

    source: str
    methods: tuple[str, ...]
    threads: tuple[ThreadCalls, ...]
    gaps_known: bool
    recorded_calls_count: int
    remarks: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    is_sampled: bool = False
    waited_ns: Mapping[str, int] = field(default_factory=dict)
    transports: tuple[str, ...] = ()
    takes_turns: bool = False
    is_timed: bool = True

    @property
    def calls_count(self) -> int:
        """How many calls the threads hold."""
        return sum(len(thread.method) for thread in self.threads)

    @property
    def recorded_ns(self) -> int:
        """The longest thread's time, as it was recorded."""
        return max(thread.recorded_ns for thread in self.threads)

    @property
    def server_known(self) -> bool:
        """Whether the server's whole work is known for every call."""
        return all(bool((thread.server_ns == thread.server_most_ns).all()) for thread in self.threads)

    @property
    def services(self) -> list[list[int]]:
        """The clients of each server, by their numbers; a client without a known server has one of its own."""
        services: dict[str | int, list[int]] = {}
        for index, thread in enumerate(self.threads):
            services.setdefault(thread.server or index, []).append(index)
        return list(services.values())

    def in_turn_ns(self, works_ns: Sequence[int]) -> list[int]:
        """Return for how long each server's thread is busy with this work of its clients, one at a time. If that is
        more than the recording took, its clients did not call at the same time: then with that of its busiest one.
        """
        sums = [[works_ns[client] for client in clients] for clients in self.services]
        return [sum(each) if sum(each) <= self.recorded_ns else max(each) for each in sums]

    @property
    def largest_bytes(self) -> int:
        """The largest message of either way."""
        return max(int(max(thread.sent_bytes.max(), thread.recv_bytes.max())) for thread in self.threads)

    def limited(self, duration_ns: float, calls_count: int | None = None) -> Traffic:
        """Return the beginning of every thread: `calls_count` calls of each, else what takes `duration_ns` to replay.

        For 20 calls it may be four times as long; each thread keeps at least one call.
        """
        threads = []
        for thread in self.threads:
            if calls_count is None:
                ends = np.cumsum(thread.replay_ns)
                usual, most = np.searchsorted(ends, (duration_ns, 4 * duration_ns), side="right").tolist()
                count = max(usual, min(most, _ENOUGH_CALLS), 1)
            else:
                count = calls_count
            threads.append(thread.first(count))
        return replace(self, threads=tuple(threads))

    def without_think(self) -> Traffic:
        """Return the same with a server that does no work."""
        return replace(
            self, threads=tuple(replace(thread, server_ns=np.zeros_like(thread.server_ns)) for thread in self.threads)
        )
