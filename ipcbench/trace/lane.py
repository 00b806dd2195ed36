"""A lane: where the calls of one thread go, and whether the next one is recorded. Standard library only.

What does not live here: the calls (call.py), their files (segment.py, tally.py), and what all lanes share (store.py).

Nothing here raises into the application: what cannot be stored is counted.
"""

from __future__ import annotations

import itertools
import os
import threading
from itertools import repeat
from operator import length_hint
from random import Random
from typing import TYPE_CHECKING

from ipcbench.clock import now_ns
from ipcbench.trace.budget import Governor
from ipcbench.trace.call import Call, RpcCall
from ipcbench.trace.layout import CALL, MARKER, NAME, NAME_BYTES, PACK_HEAD, PACK_NAME
from ipcbench.trace.nothing import NOTHING, Nothing
from ipcbench.trace.schema import RPC, SERVER, Schema
from ipcbench.trace.segment import FULL, Segment
from ipcbench.trace.served import ServerCall
from ipcbench.trace.tally import Tally, TallyFile, in_memory

if TYPE_CHECKING:
    from ipcbench.trace.store import Store

MAX_NAMES = 4096
"""Different names that a lane keeps apart; later ones are one, so that names made of data cannot fill a disk."""

OTHER = "(other names)"

_DECIDE_EVERY_NS = 2_000_000
"""How often a budget's decision is looked at again; deciding costs more than a record does."""

_MAX_NAME_TEXT_BYTES = 4096


class Site:
    """One method with its schema and peer, in one lane.

    Attributes:
        kind: the class of its calls, and `free`, those that are not under way.
        segment: the one that `ids` and `heads` are of.
        heads: the beginnings of its ordinary records, by the number of stage ends.
        always: as the lane's.
        slowest_ns: the longest call so far.
        tally: of its calls without a record; None before the first.
        nothings: NOTHING for each next call that is counted without a look at the clock; taking one from an iterator is
            quicker than any arithmetic.
        left: calls behind those until the next recorded one, that one included.
        blind_count, left_count: what was left of both when the lane last looked.
    """

    __slots__ = ("always", "blind_count", "free", "heads", "ids", "key", "kind", "lane", "last", "left", "left_count",
                 "method", "nothings", "peer", "schema", "segment", "slowest_ns", "tally")  # fmt: skip

    def __init__(self, lane: Lane, key: object, method: str, schema: Schema, peer: str) -> None:
        self.lane = lane
        self.key = key
        self.method = method
        self.schema = schema
        self.peer = peer
        self.last = len(schema.stages) - 1
        self.kind: type[Call] = RpcCall if schema is RPC else ServerCall if schema is SERVER else Call
        self.free: list[Call] = []
        self.segment = FULL
        self.ids = (0, 0, 0)
        self.heads: tuple[bytes, ...] = ()
        self.always = lane.always
        self.slowest_ns = 0
        self.tally: Tally | None = None
        self.plan(1, blind=False)

    def plan(self, calls_count: int, blind: bool) -> None:
        """Record the call of that number, and count those before it, or time them too."""
        self.blind_count = calls_count - 1 if blind else 0
        self.left = self.left_count = 1 if blind else calls_count
        self.nothings = repeat(NOTHING, self.blind_count)
        self.lane.entries[self.key] = self.nothings if blind else self

    def passed(self) -> tuple[int, int]:
        """Return how many calls there were since this was last asked, and how many of them were only counted."""
        blind_count = length_hint(self.nothings)
        counted = self.blind_count - blind_count
        timed = self.left_count - self.left
        self.blind_count, self.left_count = blind_count, self.left
        return counted + timed, counted


class Lane:
    """What one thread records into.

    Attributes:
        sites: by method alone for RPC without a peer, else by (method, schema, peer).
        entries: the same, but for a site that has them its `nothings`: most calls then need nothing else.
        always: whether every call is recorded.
        period: of how many calls of a method one is recorded, on average.
        blind: whether the calls between are to be counted without a look at the clock.
        lost_count: calls that could be neither recorded nor counted.
        boot: which clock this is, as contexts say it.
        served_ns: when its last call as a server ended.
        spans, trace_high: ids of calls to come, and the high half of trace ids that are new.
    """

    __slots__ = ("__weakref__", "_calls_count", "_decide_ns", "_lock", "_name_ids", "_names", "_random",
                 "_retry_ns", "_rotating", "_store", "always", "blind", "boot", "entries", "files_count", "governor",
                 "lost_count", "period", "segment", "served_ns", "sites", "spans", "tally_file",
                 "trace_high")  # fmt: skip

    def __init__(self, store: Store) -> None:
        self._store = store
        self._random = Random()  # noqa: S311 # which calls are recorded is no secret
        self.governor = Governor(store.costs, store.budget_ratio) if store.budget_ratio else None
        self.period = self.governor.period if self.governor else store.sample
        self.blind = self.governor is not None
        self.always = self.period == 1 and not self.blind
        self.lost_count = 0
        self._decide_ns = self._calls_count = 0
        self.boot = store.boot
        self.served_ns = 0
        self.sites: dict[object, Site] = {}
        self.entries: dict[object, Site | repeat[Nothing]] = {}
        self.renew()

    def renew(self) -> None:
        """Begin anew, with new files and new ids: in a new thread, and in the child after a fork."""
        self._lock = threading.RLock()  # a signal handler may make a call inside this thread's own
        self.segment: Segment = FULL
        self._rotating = False
        self._retry_ns = 0
        self._forget_names()
        self.files_count = 0
        self.tally_file: TallyFile | None = None
        self.trace_high = int.from_bytes(os.urandom(8), "little")
        first = int.from_bytes(os.urandom(8), "little") >> 1 | 1  # counted up from here, it stays below 2⁶⁴
        self.spans = itertools.count(first)
        for site in self.sites.values():
            site.segment = FULL
            site.passed()
            site.tally = None

    def draw(self, site: Site) -> None:
        """Choose after how many calls of a method the next one is recorded; a varying number, so that no rhythm is hit.

        With a budget, its decision may change how the calls of all methods are taken from now on.
        """
        every = [site]
        governor = self.governor
        if governor is not None:
            self._calls_count += 1 + self._tell_of(site)
            at_ns = now_ns()
            if at_ns >= self._decide_ns:
                self._decide_ns = at_ns + _DECIDE_EVERY_NS
                governor.planned_count = self._calls_count + self.tell()
                self._calls_count = 0
                before = self.period, self.blind
                self.period, self.blind = governor.decide(at_ns)
                if self.blind != before[1] or not before[0] / 2 < self.period < before[0] * 2:
                    every = list(self.sites.values())
        for one in every:
            one.plan(1 + int(self._random.random() * (2 * self.period - 1)), self.blind)

    def tell(self) -> int:
        """Put into the tallies how many calls were not timed; return how many calls there were since the last time."""
        return sum([self._tell_of(site) for site in self.sites.values()])

    def _tell_of(self, site: Site) -> int:
        passed_count, counted = site.passed()
        if counted:
            (site.tally or self.tally(site)).cells[0] += counted
        return passed_count

    def new_site(self, key: object, method: str, schema: Schema, peer: str) -> Site:
        """Return the site of a method that this lane has not met."""
        if len(self.sites) >= MAX_NAMES:
            method, peer = OTHER, ""
            key = (method, schema, peer)
            if key in self.sites:
                return self.sites[key]
        site = self.sites[key] = Site(self, key, str(method), schema, peer)
        return site

    def room(self, site: Site) -> int | None:
        """Return the offset of a free slot in `self.segment`, which then holds the site's names; None if none is."""
        with self._lock:
            offset: int | None = None
            if site.segment is self.segment:
                offset = next(self.segment.offsets)
                offset = offset if offset < self.segment.limit else None
            elif self.segment.limit:
                offset = self._introduce(site)
            return self._introduce(site) if offset is None and self._rotate() else offset

    def _introduce(self, site: Site) -> int | None:
        """Write the site's names where they are missing, and return the offset of the slot behind them."""
        segment = self.segment
        ids = [self.name_id(text) for text in (site.method, site.schema.text, site.peer)]
        offset = next(segment.offsets)
        if None in ids or offset >= segment.limit:
            return None
        method_id, schema_id, peer_id = (one or 0 for one in ids)
        site.ids = (method_id, schema_id, peer_id)
        site.heads = tuple(
            PACK_HEAD(CALL, 0, ends, site.schema.role, method_id, schema_id, peer_id, 0, 0)
            for ends in range(site.last + 2)
        )
        site.segment = segment
        return offset

    def name_id(self, text: str) -> int | None:
        """Return the id of a name in the current segment, written into it if new; None if there is no room for it."""
        if not text:
            return 0
        found = self._names.get(text)
        if found is None:
            if len(self._names) >= MAX_NAMES:
                text = OTHER
            found = self._names.get(text) or self._write_name(text)
        return found

    def _write_name(self, text: str) -> int | None:
        segment = self.segment
        data = text.encode("utf-8", "replace")[:_MAX_NAME_TEXT_BYTES]
        number = next(self._name_ids)  # a signal handler's call between takes another one
        for piece in range(-(-len(data) // NAME_BYTES)):
            offset = next(segment.offsets)
            if offset >= segment.limit:
                return None
            part = data[piece * NAME_BYTES : (piece + 1) * NAME_BYTES]
            PACK_NAME(segment.buffer, offset, NAME, 0, number, piece, len(data), part, offset ^ MARKER)
        self._names[text] = number
        return number

    def _rotate(self) -> bool:
        """Begin the next segment; return whether there is one."""
        if self._rotating or self._store.closed or now_ns() < self._retry_ns:
            return False
        self._rotating = True  # until names and segment match again, a signal handler's call makes no segment
        try:
            full, self.segment = self.segment, FULL
            made = self._store.new_segment(self, full)
            if made is None:
                self._retry_ns = now_ns() + 1_000_000_000
                return False
            self._forget_names()
            self.segment = made
            for site in self.sites.values():
                site.segment = FULL
            return True
        finally:
            self._rotating = False

    def _forget_names(self) -> None:
        self._names: dict[str, int] = {}
        self._name_ids = itertools.count(1)

    def tally(self, site: Site) -> Tally:
        """Return the site's tally, made at its first need."""
        with self._lock:
            if site.tally is None:
                made = self._store.new_tally(self, site)
                site.tally = site.tally or made  # a signal handler may have been quicker
            return site.tally

    def close(self) -> None:
        """Cut the files to what was used and unmap them; later calls are counted in memory."""
        self.tell()
        with self._lock:
            segment, self.segment = self.segment, FULL
            self._store.finish(segment)
            for site in self.sites.values():
                tally, site.tally = site.tally, in_memory() if site.tally else None
                if tally is not None:
                    tally.close()
