"""What traffic would be if the application were changed: each remedy turns the recorded calls into others.

Changed traffic is then replayed between real processes beside the recorded one, so that a gain is measured and not
argued. What a change costs by itself (packing out of band, halving the precision) is measured here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ipcbench.diagnose.attribution import SMALL_BYTES, own_serialization
from ipcbench.diagnose.costs import Costs
from ipcbench.replay.traffic import COLUMNS, ThreadCalls, Traffic
from ipcbench.trace.readers.batch import UNKNOWN, Ints

SERVER, FEWER_CALLS = "server", "fewer calls"
_LEAST_SHARE = 0.01
"""Of the recorded time: a remedy against less is not tried."""
_LEAST_OTHERS, _SLOW_FIRST = 5, 10.0
"""A first call is late if it took so many times as long as the usual one of at least so many others, and so many times
more as it has bytes more.
"""
_LEAST_TINY_CALLS = 50
_MERGED_CALLS = 100
_MOST_TIMES_SLOWER = 2.0
_LEAST_RETURNED_BYTES = 65_536
_MOST_RETURNED_RATIO = 1.25
_HANDLE_BYTES = 64
"""Of a name in place of a tensor that stays where it is."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change of the recorded calls, or of a part of them.

    Attributes:
        key: of the remedy (words.py has its words).
        change: returns a client's calls after it.
        note: what was assumed; empty for nothing.
        condition: what nobody can tell from sizes alone, and must hold; empty for nothing.
    """

    key: str
    change: Callable[[ThreadCalls], ThreadCalls]
    note: str = ""
    condition: str = ""

    def changed(self, traffic: Traffic) -> Traffic:
        """Return traffic after the change."""
        return changed(traffic, self.change)


def what_ifs(traffic: Traffic, costs: Costs) -> Iterator[WhatIf]:
    """Yield the changes that could matter, each by itself."""
    least_ns = _LEAST_SHARE * traffic.recorded_ns
    own_ns = _most_own_work_ns(traffic) if traffic.server_known else 0
    if own_ns > least_ns:
        what, is_most = "all of the server's work but serialization is gone", own_ns > traffic.recorded_ns / 2
        yield WhatIf(SERVER, without_own_work, what if is_most else "", "" if is_most else what)
    packed_ns = sum(int((each.before_ns + each.after_ns - each.other_ns).sum()) for each in traffic.threads)
    if packed_ns > least_ns * len(traffic.threads):
        note = "the transport still makes its copies; without them, more is saved"
        note = f"the server is taken to serialize as the client does; {note}" if traffic.server_known else note
        yield WhatIf("out of band", partial(out_of_band, costs=costs), note)
    if any(bool((_large(thread) > 0).any()) for thread in traffic.threads):
        condition = "the messages are arrays of float32, and half of their digits are enough"
        yield WhatIf("half precision", partial(half_precision, costs=costs), condition=condition)
    if any(_tiny(thread).sum() >= _LEAST_TINY_CALLS for thread in traffic.threads):
        whose = "on both sides" if traffic.server_known else "as far as it is known"
        note = f"{_MERGED_CALLS} calls become one; all work on what is in them stays, {whose}"
        unknown = "" if costs.empty_call.away_ns else ", and what an empty call takes, which could not be measured"
        yield WhatIf(FEWER_CALLS, partial(fewer_calls, costs=costs), note + unknown)
    returned = sum(int(_returns(thread).sum()) for thread in traffic.threads)
    if returned:
        condition = f"the {returned:,} replies that are followed by a request about as large are sent back in it"
        yield WhatIf("stay on one side", stay_on_one_side, condition=condition)


def changed(traffic: Traffic, change: Callable[[ThreadCalls], ThreadCalls]) -> Traffic:
    """Return traffic with a change of each client's calls."""
    return replace(traffic, threads=tuple(map(change, traffic.threads)))


def _own_work(thread: ThreadCalls) -> Ints:
    """Return the server's work in each call that is no serialization, without what a first call takes beyond others."""
    unpack, pack = own_serialization(thread)
    own = np.maximum(thread.server_ns, 0) - unpack - pack
    if late_ns(thread):
        own[0] = min(int(own[0]), int(np.median(own[1:])))
    return own


def _most_own_work_ns(traffic: Traffic) -> int:
    """Return the own work of the busiest server's thread, in the calls of all its clients."""
    own_ns = [int(_own_work(each).sum()) for each in traffic.threads]
    return max(traffic.in_turn_ns(own_ns))


def without_own_work(thread: ThreadCalls) -> ThreadCalls:
    """Return calls to a server that only unpacks requests and packs replies."""
    return replace(thread, server_ns=thread.server_ns - _own_work(thread))


def _others(thread: ThreadCalls) -> tuple[Ints, float]:
    """Return which calls the first one is compared with, of its method if they are enough, and how many times as long
    it may take, for its bytes.
    """
    others = 1 + np.flatnonzero(thread.method[1:] == thread.method[0])
    if len(others) < _LEAST_OTHERS:
        others = np.arange(1, len(thread.method))
    moved = thread.sent_bytes + thread.recv_bytes
    return others, max(1.0, int(moved[0]) / max(1.0, float(np.median(moved[others])))) if len(others) else 1.0


def late_ns(thread: ThreadCalls) -> float:
    """Return how much longer the first call took than the usual one; 0 if it is not far from that."""
    others, scale = _others(thread)
    if len(others) < _LEAST_OTHERS:
        return 0.0
    first, usual = float(thread.total_ns[0]), scale * float(np.median(thread.total_ns[others]))
    return first - usual if first > _SLOW_FIRST * usual else 0.0


def usual_first_call(thread: ThreadCalls) -> ThreadCalls:
    """Return the calls with a first one that, if it was late, takes and waits no longer than the usual one."""
    if not late_ns(thread):
        return thread
    (others, scale), columns = _others(thread), {}
    for name in ("before_ns", "after_ns", "other_ns", "server_ns", "server_most_ns", "queue_ns", "total_ns"):
        column = getattr(thread, name).copy()
        column[0] = max(min(int(column[0]), int(scale * np.median(column[others]))), UNKNOWN)
        columns[name] = column
    return replace(thread, **columns)


def _large(thread: ThreadCalls) -> Ints:
    """Return the bytes of the messages of each call that are large."""
    return sum(np.where(sizes >= SMALL_BYTES, sizes, 0) for sizes in (thread.sent_bytes, thread.recv_bytes))  # type: ignore[return-value] # the sum of arrays is one


def out_of_band(thread: ThreadCalls, costs: Costs) -> ThreadCalls:
    """Return calls whose arrays travel beside a small head, and are not serialized."""
    unpack, pack = own_serialization(thread)
    is_large = _large(thread) > 0
    after = thread.other_ns + np.int64(costs.unpack_ns)
    server = np.where(
        thread.server_ns == UNKNOWN,
        UNKNOWN,
        thread.server_ns - unpack - pack + np.int64(costs.pack_ns + costs.unpack_ns),
    )
    return replace(
        thread,
        before_ns=np.where(is_large, np.minimum(thread.before_ns, np.int64(costs.pack_ns)), thread.before_ns),
        after_ns=np.where(is_large, np.minimum(thread.after_ns, after), thread.after_ns),
        server_ns=np.where(is_large, np.minimum(thread.server_ns, server), thread.server_ns),
    )


def half_precision(thread: ThreadCalls, costs: Costs) -> ThreadCalls:
    """Return calls whose large messages have half the bytes; both sides convert both messages."""
    unpack, pack = own_serialization(thread)
    sent, recv = (np.where(sizes >= SMALL_BYTES, sizes, 0) for sizes in (thread.sent_bytes, thread.recv_bytes))
    to_half, from_half = costs.to_half_ns_per_byte, costs.from_half_ns_per_byte
    saved = np.where(
        thread.server_ns == UNKNOWN, 0, np.where(sent > 0, unpack // 2, 0) + np.where(recv > 0, pack // 2, 0)
    )
    server = thread.server_ns - saved + (from_half * sent + to_half * recv).astype(np.int64)
    unpacked = thread.after_ns - thread.other_ns
    return replace(
        thread,
        before_ns=thread.before_ns - np.where(sent > 0, thread.before_ns // 2, 0) + (to_half * sent).astype(np.int64),
        after_ns=thread.after_ns - np.where(recv > 0, unpacked // 2, 0) + (from_half * recv).astype(np.int64),
        server_ns=np.where(thread.server_ns == UNKNOWN, UNKNOWN, server),
        sent_bytes=thread.sent_bytes - sent // 2,
        recv_bytes=thread.recv_bytes - recv // 2,
    )


def _tiny(thread: ThreadCalls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    is_tiny: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.maximum(thread.sent_bytes, thread.recv_bytes) < SMALL_BYTES
    return is_tiny


def fewer_calls(thread: ThreadCalls, costs: Costs) -> ThreadCalls:
    """Return the calls with runs of small ones of one method merged. Their bytes stay, and all work: nobody knows that
    what is done for each call is not done for each item. Only what an empty call takes of either side here goes, in
    proportion if the transport of these calls was slower, too, and at most what one in twenty took.
    """
    is_tiny, slower = _tiny(thread), _times_slower(thread, costs)
    begins = np.ones(len(is_tiny), np.bool_)
    same = is_tiny[1:] & is_tiny[:-1] & (thread.method[1:] == thread.method[:-1])
    begins[1:] = ~same
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
    begins |= (np.arange(len(begins)) - starts) % _MERGED_CALLS == 0
    places = np.flatnonzero(begins)
    sums = {}
    for name in (each for each in COLUMNS if each != "method"):
        column = getattr(thread, name)
        fixed = min(_least_cost(column[is_tiny]), int(slower * getattr(costs.empty_call, name, 0)))
        spared = np.where(~begins & (column >= fixed), fixed, 0)  # a merged call pays it once
        sums[name] = np.add.reduceat(np.maximum(column, 0) - spared, places)
    for name in ("server_ns", "server_most_ns", "queue_ns"):
        unknown = np.add.reduceat((getattr(thread, name) == UNKNOWN).astype(np.int64), places)
        sums[name] = np.where(unknown > 0, UNKNOWN, sums[name])
    return replace(thread, method=thread.method[places], **sums)  # type: ignore[arg-type] # all are columns


def _times_slower(thread: ThreadCalls, costs: Costs) -> float:
    """Return how many times as long as an empty call small ones are under way; at most twice, and 1 if that may be the
    server's work. Who waits finds colder caches in a larger program.
    """
    known = thread.away_ns[_tiny(thread) & (thread.server_ns != UNKNOWN)]
    empty_ns = costs.empty_call.away_ns
    return min(max(float(np.median(known)) / empty_ns, 1.0), _MOST_TIMES_SLOWER) if len(known) and empty_ns else 1.0


def _least_cost(column: Ints) -> int:
    known = column[column != UNKNOWN]
    return int(np.quantile(known, 0.05)) if len(known) else 0


def _returns(thread: ThreadCalls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which replies are followed by a request that may hold them."""
    returned = np.zeros(len(thread.method), np.bool_)
    reply, request = thread.recv_bytes[:-1], thread.sent_bytes[1:]
    returned[:-1] = (reply >= _LEAST_RETURNED_BYTES) & (request >= reply) & (request <= _MOST_RETURNED_RATIO * reply)
    return returned


def stay_on_one_side(thread: ThreadCalls) -> ThreadCalls:
    """Return the calls with a name in place of each reply that the next request sends back, and of what it sends."""
    returned = _returns(thread)
    back = np.zeros(len(returned), np.bool_)
    back[1:] = returned[:-1]
    unsent = np.where(back, np.roll(thread.recv_bytes, 1), 0)
    sent = thread.sent_bytes - unsent + np.where(back, _HANDLE_BYTES, 0)
    recv = np.where(returned, _HANDLE_BYTES, thread.recv_bytes)
    unpacked = thread.after_ns - thread.other_ns
    unpack, pack = own_serialization(thread)
    saved = unpack * unsent // np.maximum(thread.sent_bytes, 1) + np.where(returned, pack, 0)
    return replace(
        thread,
        before_ns=thread.before_ns * sent // np.maximum(thread.sent_bytes, 1),
        after_ns=thread.after_ns - np.where(returned, unpacked, 0),
        server_ns=np.where(thread.server_ns == UNKNOWN, UNKNOWN, thread.server_ns - saved),
        sent_bytes=sent,
        recv_bytes=recv,
    )
