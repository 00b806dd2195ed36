"""How long all recorded calls would take after a change, from replays of a part of them.

What a replay shows is transport. Work is known from the recording, where both sides were recorded, and then needs no
replay: a call that took long outside of the part that was replayed stays as long as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipcbench.diagnose.attribution import floor_ns
from ipcbench.replay.latency_table import LatencyTable
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.trace.readers.batch import UNKNOWN

_STUCK_RATIO = 10


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a prediction begins with.

    Attributes:
        whole: all recorded calls.
        part: those of them that were replayed.
        floor: of the recorded transport, measured here; None if that is not known.
        lost_ns: what the slowest client of all waited for a core.
    """

    whole: Traffic
    part: Traffic
    floor: LatencyTable | None
    lost_ns: float

    @property
    def is_known(self) -> bool:
        """Whether all work of both sides is known."""
        return self.whole.is_timed and self.whole.server_known

    def times_all(self, client: int) -> float:
        """Return how many times the messages of the part all messages of a client cost."""
        whole, part = self.whole.threads[client], self.part.threads[client]
        cost = float(floor_ns(part, self.floor).sum())
        return float(floor_ns(whole, self.floor).sum()) / cost if cost else len(whole.method) / len(part.method)


def over_another_transport_ns(recorded: Recorded, changed: Traffic, part: Traffic, times_ns: Sequence[int]) -> float:
    """Return how long the slowest client would take over another transport: the work, as much of the transport as a
    replay of the part shows, and the wait for a core. What the recorded transport took beyond its floor is gone.

    Args:
        recorded: before the change; all work is known.
        changed: all calls after it.
        part: those replayed.
        times_ns: of their clients in one round.
    """
    ends = [
        work_ns(thread)
        + stuck_ns(thread)
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
        was_ns = before.recorded_ns - work_ns(before) - stuck_ns(before)
        rest_ns = max(0, usual_ns[client] - work_ns(before))
        more_ns = was_ns - rest_ns
        left_ns = float(max(0, times_ns[client] - work_ns(part.threads[client])))
        left_ratio = left_ns / rest_ns if rest_ns else 0.0
        left_ns += left_ratio * min(more_ns, rest_ns) + beyond * max(0, more_ns - rest_ns)
        whole = recorded.whole.threads[client]
        times_all = recorded.times_all(client)
        if was_ns > 0:
            times_all = (whole.recorded_ns - work_ns(whole) - stuck_ns(whole)) / was_ns
        ends.append(work_ns(thread) + stuck_ns(thread) + times_all * left_ns)
    return max(ends)


def with_unknown_work_ns(
    recorded: Recorded, part: Traffic, times_ns: Sequence[int], usual_ns: Sequence[int], *, is_once: bool
) -> float:
    """Return how long the slowest client would take, where the server's work is not known: what the recording takes
    beyond its replay may be that, and stays. A gain is that of the part, as many times as all its messages cost.

    Args:
        recorded, part, times_ns, usual_ns: as above.
        is_once: whether all of the traffic has the gain only once.
    """
    beyond = part.calls_count / recorded.part.calls_count
    before_ns = recorded.part.recorded_ns
    gain_ns = before_ns - changed_ns(max(times_ns), max(usual_ns), before_ns, beyond)
    slowest = max(range(len(usual_ns)), key=lambda client: recorded.whole.threads[client].recorded_ns)
    times_all = 1.0 if is_once else min(recorded.times_all(slowest), recorded.whole.recorded_ns / before_ns)
    return max(0.0, recorded.whole.recorded_ns - times_all * gain_ns)


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
    """Return the work of both sides in all calls of a client, and between them."""
    return int((thread.gap_ns + thread.before_ns + thread.after_ns + thread.server_ns).sum())


def stuck_ns(thread: ThreadCalls) -> int:
    """Return for how long calls waited for a server that was not there to take them: what a queue is beyond ten times
    the usual one. No transport changes that, and no replay shows it.
    """
    known = thread.queue_ns[thread.queue_ns != UNKNOWN]
    if not len(known):
        return 0
    usual_ns = _STUCK_RATIO * int(np.median(known))
    return int(np.maximum(known - usual_ns, 0).sum()) if usual_ns else 0


def moved_bytes(traffic: Traffic) -> int:
    """Return the bytes of all messages, at least 1."""
    return max(1, sum(int((each.sent_bytes + each.recv_bytes).sum()) for each in traffic.threads))
