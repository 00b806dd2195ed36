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


def over_another_transport_ns(recorded: Recorded, changed: Traffic, part: Traffic, times_ns: Sequence[int]) -> float:
    """Return how long the slowest client would take over another transport: the work, as much of the transport as a
    replay of the part shows, and the wait for a core. What the recorded transport took beyond its floor is gone.

    Args:
        recorded: before the change; all work is known.
        changed: all calls after it, with a usual first one.
        part: those replayed.
        times_ns: of their clients in one round.
    """
    ends = [
        work_ns(thread)
        + recorded.kept_ns(client)
        + recorded.times_all(client) * max(0, times_ns[client] - work_ns(part.threads[client]))
        for client, thread in enumerate(changed.threads)
    ]
    return max(ends) + recorded.lost_ns


def with_known_work_ns(
    recorded: Recorded, changed: Traffic, part: Traffic, times_ns: Sequence[int], usual_ns: Sequence[int]
) -> float:
    """Return how long the slowest client would take after another change, where all work of both sides is known.

    What the recorded calls have more of transport than their own replay in the same round stays in proportion to what
    is left of it, as long as it is not more than once again as much: a program's calls cost more than a replay's. What
    goes beyond is nothing that a replay shows, and stays with each call.

    Args:
        recorded, changed, part, times_ns: as above.
        usual_ns: of the clients in the replay of the calls as recorded.
    """
    beyond = part.calls_count / recorded.part.calls_count
    ends = []
    for client, thread in enumerate(changed.threads):
        before = recorded.part.threads[client]
        was_ns = before.recorded_ns - work_ns(before) - int(before.stuck_ns.sum())
        rest_ns = max(0, usual_ns[client] - work_ns(before))
        more_ns = was_ns - rest_ns
        left_ns = float(max(0, times_ns[client] - work_ns(part.threads[client])))
        left_ratio = left_ns / rest_ns if rest_ns else 0.0
        left_ns += left_ratio * min(more_ns, rest_ns) + beyond * max(0, more_ns - rest_ns)
        whole = recorded.warm.threads[client]
        times_all = recorded.times_all(client)
        if was_ns > 0:
            times_all = (whole.recorded_ns - work_ns(whole) - int(whole.stuck_ns.sum())) / was_ns
        ends.append(work_ns(thread) + recorded.kept_ns(client) + times_all * left_ns)
    return max(ends)


def with_unknown_work_ns(recorded: Recorded, part: Traffic, times_ns: Sequence[int], usual_ns: Sequence[int]) -> float:
    """Return how long the slowest client would take, where the server's work is not known: what the recording takes
    beyond its replay may be that, and stays. A gain is that of the part, as many times as all its messages cost.

    Args:
        recorded, part, times_ns, usual_ns: as above.
    """
    beyond = part.calls_count / recorded.part.calls_count
    before_ns = recorded.part.recorded_ns
    gain_ns = before_ns - changed_ns(max(times_ns), max(usual_ns), before_ns, beyond)
    slowest = max(range(len(usual_ns)), key=lambda client: recorded.whole.threads[client].recorded_ns)
    times_all = min(recorded.times_all(slowest), recorded.warm.recorded_ns / before_ns)
    return recorded.whole.recorded_ns - times_all * gain_ns


def changed_ns(time_ns: float, usual_ns: float, recorded_ns: float, beyond: float) -> float:
    """Return how long the calls of the part would take, from their replay and that of the recorded ones in one round.

    Args:
        time_ns: of the replay after the change.
        usual_ns: of the replay of the calls as recorded: if that was quicker than the recording, each call took more
            than a replay shows; if it was slower, so is the other one.
        recorded_ns: of the recording.
        beyond: calls after the change over calls before it.
    """
    return time_ns * min(1.0, recorded_ns / usual_ns) + beyond * max(0.0, recorded_ns - usual_ns)


def of_planned_ns(recorded: Recorded, times_ns: Sequence[int]) -> float:
    """Return how long calls that nobody made would take: as their part, by bytes."""
    return max(times_ns) * moved_bytes(recorded.whole) / moved_bytes(recorded.part)


def work_ns(thread: ThreadCalls) -> int:
    """Return the work of both sides in all calls of a client, and between them, as far as it is known."""
    return int((thread.gap_ns + thread.before_ns + thread.after_ns + np.maximum(thread.server_ns, 0)).sum())


def least_ns(recorded: Recorded, changed: Traffic) -> int:
    """Return what calls after a change take at least: the known work of any client, and of any server, which has one
    call at a time. If that of a server is more than the recording took, its clients did not call at the same time.
    """
    servers = [
        sum(int(np.maximum(changed.threads[client].server_ns, 0).sum()) for client in clients)
        for clients in changed.services
    ]
    together = [each for each in servers if each <= recorded.whole.recorded_ns]
    return max([0, *together, *map(work_ns, changed.threads)])


def moved_bytes(traffic: Traffic) -> int:
    """Return the bytes of all messages, at least 1."""
    return max(1, sum(int((each.sent_bytes + each.recv_bytes).sum()) for each in traffic.threads))
