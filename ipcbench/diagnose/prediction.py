"""How long all recorded calls would take after a change, from replays of a part of them.

What a replay shows is transport. Work is known from the recording, where both sides were recorded, and then needs no
replay: a call that took long outside of the part that was replayed stays as long as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ipcbench.diagnose.attribution import floor_ns
from ipcbench.diagnose.what_if import changed, usual_first_call
from ipcbench.replay.latency_table import LatencyTable
from ipcbench.replay.traffic import ThreadCalls, Traffic


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a prediction begins with.

    Attributes:
        whole: all recorded calls.
        part: those of them that were replayed, with a usual first call.
        floor: of the recorded transport, measured here; None if that is not known.
        lost_ns: what the slowest client of all waited for a core.
        warm: all calls with a usual first one: what the changes are made to.
    """

    whole: Traffic
    part: Traffic
    floor: LatencyTable | None
    lost_ns: float
    warm: Traffic = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "warm", changed(self.whole, usual_first_call))

    @property
    def is_known(self) -> bool:
        """Whether all work of both sides is known."""
        return self.whole.is_timed and self.whole.server_known

    def shares_server(self, client: int) -> bool:
        """Return whether a client waits for the work that its server does for others."""
        return any(client in clients and len(clients) > 1 for clients in self.whole.services)

    def times_all(self, client: int) -> float:
        """Return how many times the messages of the part all messages of a client cost."""
        whole, part = self.warm.threads[client], self.part.threads[client]
        cost = float(floor_ns(part, self.floor).sum())
        return float(floor_ns(whole, self.floor).sum()) / cost if cost else len(whole.method) / len(part.method)

    def kept_ns(self, client: int) -> int:
        """Return what stays of a client's time, whatever becomes of its messages and its work: what its first call took
        beyond a usual one, and all waiting for a server that was not there.
        """
        warm = self.warm.threads[client]
        return self.whole.threads[client].recorded_ns - warm.recorded_ns + int(warm.stuck_ns.sum())


def over_another_transport_ns(
    recorded: Recorded, changed: Traffic, part: Traffic, times_ns: Sequence[int], usual_ns: Sequence[int]
) -> float:
    """Return how long the slowest client would take over another transport: the work, as much of the transport as a
    replay of the part shows, and the wait for a core. What the recorded transport took beyond its floor is gone.

    If the calls as recorded are slower here than they were, so are the changed ones, and count for less. The wait for a
    core is at most what the recording has beyond its replay: work, which the replay has too, holds the rest. Of a
    server with several clients, the queue is most of what is replayed, and they wait for a core in it.

    Args:
        recorded: before the change; all work is known.
        changed: all calls after it, with a usual first one.
        part: those replayed.
        times_ns: of their clients in one round.
        usual_ns: of the clients in the replay of the calls as recorded.
    """
    ends = []
    for client, thread in enumerate(changed.threads):
        was_ns, rest_ns = rest_of_ns(recorded.part.threads[client]), _rest_ns(recorded, client, usual_ns)
        whole_ns, times_all = rest_of_ns(recorded.warm.threads[client]), recorded.times_all(client)
        left_ns: float = max(0, times_ns[client] - work_ns(part.threads[client]))
        if rest_ns and recorded.shares_server(client):
            left_ns *= max(0, whole_ns) / rest_ns
        else:
            left_ns *= times_all * (min(1.0, max(0, was_ns) / rest_ns) if rest_ns else 1.0)
            left_ns += min(recorded.lost_ns, max(0.0, whole_ns - times_all * rest_ns))
        ends.append(work_ns(thread) + recorded.kept_ns(client) + left_ns)
    return max(ends)


def rest_of_ns(thread: ThreadCalls) -> int:
    """Return what recorded calls have beyond all work and all waits for an absent server."""
    return thread.recorded_ns - work_ns(thread) - int(thread.stuck_ns.sum())


def _rest_ns(recorded: Recorded, client: int, usual_ns: Sequence[int]) -> int:
    """Return what the replay of a client's part has beyond all work."""
    return max(0, usual_ns[client] - work_ns(recorded.part.threads[client]))


def with_known_work_ns(
    recorded: Recorded, changed: Traffic, part: Traffic, times_ns: Sequence[int], usual_ns: Sequence[int]
) -> float:
    """Return how long the slowest client would take after another change, where all work of both sides is known.

    What the recorded calls have more of transport than their own replay in the same round stays in proportion to what
    is left of it, as long as it is not more than once again as much: a program's calls cost more than a replay's. What
    goes beyond is nothing that a replay shows, and stays with each call; not where several clients queue for a server:
    then it is the queue, and all of it stays in proportion.

    Args:
        recorded, changed, part, times_ns, usual_ns: as above.
    """
    beyond = part.calls_count / recorded.part.calls_count
    ends = []
    for client, thread in enumerate(changed.threads):
        was_ns, rest_ns = rest_of_ns(recorded.part.threads[client]), _rest_ns(recorded, client, usual_ns)
        more_ns = was_ns - rest_ns
        left_ns = float(max(0, times_ns[client] - work_ns(part.threads[client])))
        left_ratio = left_ns / rest_ns if rest_ns else 0.0
        more_in_ratio_ns = more_ns if recorded.shares_server(client) else min(more_ns, rest_ns)
        left_ns += left_ratio * more_in_ratio_ns + beyond * (more_ns - more_in_ratio_ns)
        times_all = recorded.times_all(client)
        if was_ns > 0:
            times_all = rest_of_ns(recorded.warm.threads[client]) / was_ns
        ends.append(work_ns(thread) + recorded.kept_ns(client) + times_all * left_ns)
    return max(ends)


def with_unknown_work_ns(recorded: Recorded, times_ns: Sequence[int], usual_ns: Sequence[int]) -> float:
    """Return how long the slowest client would take, where the server's work is not known: what the recording takes
    beyond its replay may be that, and stays, however few calls remain: it may be work on each item. A gain is that of
    the part, as many times as all its messages cost.

    Args:
        recorded, times_ns, usual_ns: as above.
    """
    before_ns = recorded.part.recorded_ns
    gain_ns = before_ns - changed_ns(max(times_ns), max(usual_ns), before_ns)
    slowest = max(range(len(usual_ns)), key=lambda client: recorded.whole.threads[client].recorded_ns)
    times_all = min(recorded.times_all(slowest), recorded.warm.recorded_ns / before_ns)
    return recorded.whole.recorded_ns - times_all * gain_ns


def changed_ns(time_ns: float, usual_ns: float, recorded_ns: float) -> float:
    """Return how long the calls of the part would take, from their replay and that of the recorded ones in one round.

    Args:
        time_ns: of the replay after the change.
        usual_ns: of the replay of the calls as recorded: if that was quicker than the recording, there was more than a
            replay shows; if it was slower, so is the other one.
        recorded_ns: of the recording.
    """
    return time_ns * min(1.0, recorded_ns / usual_ns) + max(0.0, recorded_ns - usual_ns)


def of_planned_ns(recorded: Recorded, times_ns: Sequence[int]) -> float:
    """Return how long calls that nobody made would take: as their part, by bytes."""
    return max(times_ns) * moved_bytes(recorded.whole) / moved_bytes(recorded.part)


def work_ns(thread: ThreadCalls) -> int:
    """Return the work of both sides in all calls of a client, and between them, as far as it is known."""
    return int((thread.gap_ns + thread.before_ns + thread.after_ns + np.maximum(thread.server_ns, 0)).sum())


def least_ns(recorded: Recorded, changed: Traffic) -> int:
    """Return what calls after a change take at least: the known work of any client, and of any server, which has one
    call at a time.
    """
    servers = recorded.whole.in_turn_ns([int(np.maximum(each.server_ns, 0).sum()) for each in changed.threads])
    return max(*servers, *map(work_ns, changed.threads))


def moved_bytes(traffic: Traffic) -> int:
    """Return the bytes of all messages, at least 1."""
    return max(1, sum(int((each.sent_bytes + each.recv_bytes).sum()) for each in traffic.threads))
