"""Where the time of recorded calls went, as far as the recording and the transport's floor here tell.

The floor is what messages of these sizes take on an idle channel, measured here: a fixed time for each message, and
what grows with its bytes. What a call took beyond it is *excess* if the server's work is known, and else *unknown*: it
may have been the server's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ipcbench.replay.latency_table import LatencyTable
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.stats.estimates import FloatArray
from ipcbench.trace.readers.batch import UNKNOWN, Ints

SMALL_BYTES: Final = 4096
"""Messages below carry no arrays to speak of: what they cost is the price of a message."""

PARTS: Final = ("serialize", "fixed", "bytes", "excess", "queue", "server", "unknown", "deserialize", "other")
"""In the order of time: the client packs; the floor of both messages, its fixed part and that of their bytes; more than
the floor; the request waits for the server; the server works; what may be any of these; the client unpacks; outside all
stages."""

AWAY: Final = ("fixed", "bytes", "excess", "queue", "server", "unknown")
"""Those between the request and its reply."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where the time of some calls went.

    Attributes:
        name: their method; empty for all calls.
        calls_count: how many they are.
        moved_bytes: of requests and replies.
        total_ns: of all these calls together.
        parts_ns: by the names of `PARTS`; they add up to the total.
        quicker_count: calls that took less than the floor here.
    """

    name: str
    calls_count: int
    moved_bytes: int
    total_ns: int
    parts_ns: Mapping[str, float]
    quicker_count: int

    def share(self, *parts: str) -> float:
        """Return the share of some parts in the total; 0 of nothing."""
        return sum(self.parts_ns[part] for part in parts) / self.total_ns if self.total_ns else 0.0


def attribute(traffic: Traffic, floor: LatencyTable | None) -> tuple[Attribution, ...]:
    """Return where the time of all calls went, and then that of each method, the longest in all first.

    Args:
        traffic: the calls, with known times.
        floor: of the transport that they were recorded over, measured here; None if that is not known: then all of the
            floor is unknown, too.
    """
    parts = [_parts(thread, floor) for thread in traffic.threads]
    columns = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    method, total, moved = (
        np.concatenate(each)
        for each in zip(
            *((one.method, one.total_ns, one.sent_bytes + one.recv_bytes) for one in traffic.threads), strict=True
        )
    )
    every = np.ones(len(method), np.bool_)
    groups = [("", every), *((name, method == number) for number, name in enumerate(traffic.methods))]
    found = [
        Attribution(
            name=name,
            calls_count=int(chosen.sum()),
            moved_bytes=int(moved[chosen].sum()),
            total_ns=int(total[chosen].sum()),
            parts_ns={part: float(columns[part][chosen].sum()) for part in PARTS},
            quicker_count=int(columns["quicker"][chosen].sum()),
        )
        for name, chosen in groups
        if chosen.any()
    ]
    return (found[0], *sorted(found[1:], key=lambda each: -each.total_ns))


def _parts(thread: ThreadCalls, floor: LatencyTable | None) -> dict[str, FloatArray]:
    """Return each call's parts, and whether it was quicker than the floor."""
    wait = np.maximum(thread.total_ns - thread.before_ns - thread.after_ns, 0)
    queue = np.minimum(np.maximum(thread.queue_ns, 0), wait)
    server = np.minimum(np.maximum(thread.server_ns, 0), wait - queue)  # what it does after its reply costs no call
    away = (wait - queue - server).astype(np.float64)
    whole = floor_ns(thread, floor)
    taken = np.minimum(whole, away)
    fixed = np.minimum(0.0 if floor is None else 2 * floor.one_way_ns[0], taken)
    is_known = (thread.server_ns == thread.server_most_ns) & (thread.server_ns != UNKNOWN)
    rest = away - taken
    client = thread.before_ns + thread.after_ns
    return {
        "serialize": thread.before_ns.astype(np.float64),
        "fixed": fixed,
        "bytes": taken - fixed,
        "excess": np.where(is_known, rest, 0.0),
        "queue": queue.astype(np.float64),
        "server": server.astype(np.float64),
        "unknown": np.where(is_known, 0.0, rest),
        "deserialize": (thread.after_ns - thread.other_ns).astype(np.float64),
        "other": thread.other_ns + (thread.total_ns - client - wait),
        "quicker": whole > away,
    }


def floor_ns(thread: ThreadCalls, floor: LatencyTable | None) -> FloatArray:
    """Return the floor of each call's request and reply together; 0 without a table."""
    if floor is None:
        return np.zeros(len(thread.method))
    return floor.times_ns(thread.sent_bytes) + floor.times_ns(thread.recv_bytes)


def floors_ns(traffic: Traffic, tables: Sequence[LatencyTable]) -> list[float]:
    """Return the floor of all calls together by each table, one of each round."""
    return [float(sum(floor_ns(thread, table).sum() for thread in traffic.threads)) for table in tables]


def own_serialization(thread: ThreadCalls) -> tuple[Ints, Ints]:
    """Return how long the server probably took to unpack each request and to pack each reply: as long as the client
    takes for as many bytes of a large message; 0 for small ones, and if the client has no large ones. They are at most
    its work; where that is less in some calls of a method, what they lack was taken by the slower ones.
    """
    packing = _ns_per_byte(thread.before_ns, thread.sent_bytes)
    unpacking = _ns_per_byte(thread.after_ns - thread.other_ns, thread.recv_bytes)
    unpack = _of_large(unpacking, thread.sent_bytes)
    expected = unpack + _of_large(packing, thread.recv_bytes)
    work = np.maximum(thread.server_ns, 0)
    took = np.minimum(expected, work)
    spare = np.where(expected > 0, work - took, 0)
    _, methods = np.unique(thread.method, return_inverse=True)
    lacking_all, spare_all = np.bincount(methods, expected - took), np.bincount(methods, spare)
    took += (spare * np.minimum(1.0, lacking_all / np.maximum(spare_all, 1))[methods]).astype(np.int64)
    unpacked = took * unpack // np.maximum(expected, 1)
    return unpacked, took - unpacked


def _ns_per_byte(times_ns: Ints, sizes: Ints) -> float:
    is_large = sizes >= SMALL_BYTES
    return float(times_ns[is_large].sum()) / int(sizes[is_large].sum()) if is_large.any() else 0.0


def _of_large(ns_per_byte: float, sizes: Ints) -> Ints:
    return np.where(sizes >= SMALL_BYTES, (ns_per_byte * sizes).astype(np.int64), 0)
