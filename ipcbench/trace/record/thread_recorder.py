"""A lane: where the calls of one thread go, and whether the next one is recorded. Standard library only.

Nothing here raises into the application: what cannot be stored is counted.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ipcbench.trace.format import CALL, MARKER, NAME, NAME_BYTES, PACK_HEAD, PACK_NAME
from ipcbench.trace.record.budget import Governor
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.counts import Late, Tally, TallyFile, in_memory
from ipcbench.trace.record.hot import HotSite
from ipcbench.trace.record.no_op import NOTHING
from ipcbench.trace.record.segment import FULL, Segment
from ipcbench.trace.record.served import ServerCall
from ipcbench.trace.schema import RPC, SERVER, Schema
from ipcbench.util.clock import now_ns

if TYPE_CHECKING:
    from ipcbench.trace.record.counts import Addition
    from ipcbench.trace.record.files import Store

MAX_NAMES = 4096
"""Different names that a lane keeps apart; later ones are one, so that names made of data cannot fill a disk."""

OTHER = "(other names)"

_DECIDE_EVERY_NS = 20_000_000
"""How often a budget's decision is looked at again; deciding costs more than a record does."""

_NEVER_NS = 2**63 - 1

_MAX_NAME_TEXT_BYTES = 4096


class Site(HotSite):
    """One method with its schema and peer, in one lane.

    Attributes:
        ids: of its names in the segment that its heads are of.
    """

    __slots__ = ("ids", "lane", "method", "peer", "schema")

    tally: Tally | None

    def __init__(self, lane: Lane, method: str, schema: Schema, peer: str) -> None:
        super().__init__(NOTHING, int.from_bytes(os.urandom(8), "little"))
        self.lane = lane
        self.method = method
        self.schema = schema
        self.peer = peer
        self.last = len(schema.stages) - 1
        self.kind = ServerCall if schema is SERVER else Call
        self.segment = FULL
        self.ids = (0, 0, 0)
        self.heads = ()
        self.tally = None
        self.always = lane.always
        self.period, self.blind = lane.period, lane.blind
        self.look_ns = _NEVER_NS if lane.governor is None else 0

    def plan(self, period: int, blind: bool, look_ns: int) -> None:
        """From now on record one call in `period`, on average, and count those between, or time them too."""
        changed = blind != self.blind or not self.period / 2 < period < self.period * 2
        self.period, self.blind, self.look_ns = period, blind, look_ns
        if changed:
            self.draw()

    def look(self) -> None:
        self.lane.decide(self)


class Lane:
    """What one thread records into.

    Attributes:
        sites: by (method, schema, peer).
        entries: the same as the hot path finds them quickly (see hot/recorder.py).
        always: whether every call is recorded.
        period: of how many calls of a method one is recorded, on average.
        blind: whether the calls between are to be counted without a look at the clock.
        lost_count: calls that could be neither recorded nor counted.
        boot: which clock this is, as contexts say it.
        served_ns: when its last call as a server ended.
        spans, trace_high: ids of calls to come, and the high half of trace ids that are new.
    """

    __slots__ = ("__weakref__", "_decide_ns", "_late", "_lock", "_making", "_name_ids", "_names", "_retry_ns",
                 "_rotating", "_store", "always", "blind", "boot", "entries", "files_count", "governor", "lost_count",
                 "period", "segment", "served_ns", "sites", "spans", "tally_file", "trace_high")  # fmt: skip

    def __init__(self, store: Store) -> None:
        self._store = store
        self.governor = Governor(store.costs, store.budget_ratio) if store.budget_ratio else None
        self.period = self.governor.period if self.governor else store.sample
        self.blind = self.governor is not None
        self.always = self.period == 1 and not self.blind
        self.lost_count = 0
        self._decide_ns = 0
        self.boot = store.boot
        self.served_ns = 0
        self.sites: dict[tuple[str, Schema, str], Site] = {}
        self.entries: dict[object, Site] = {}
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
        self._making = False
        self._late: deque[Addition] = deque()
        self.trace_high = int.from_bytes(os.urandom(8), "little")
        first = int.from_bytes(os.urandom(8), "little") >> 1 | 1  # counted up from here, it stays below 2⁶⁴
        self.spans = itertools.count(first)
        for site in list(self.sites.values()):
            site.segment = FULL
            site.passed()
            site.tally = None

    def decide(self, site: Site) -> None:
        """Let the budget decide how calls are taken from now on, if it is time to."""
        governor, at_ns = self.governor, now_ns()
        if governor is None or at_ns < self._decide_ns:
            site.look_ns = self._decide_ns
            return
        self._decide_ns = at_ns + _DECIDE_EVERY_NS
        governor.planned_count = self.tell()
        self.period, self.blind = governor.decide(at_ns)
        for one in list(self.sites.values()):
            one.plan(self.period, self.blind, self._decide_ns)

    def tell(self) -> int:
        """Put into the tallies how many calls were not timed; return how many calls there were since the last time."""
        calls_count = 0
        for site in list(self.sites.values()):
            passed_count, counted = site.passed()
            calls_count += passed_count
            if counted:
                try:
                    (site.tally or self.tally(site)).add_untimed(counted)
                except ValueError:  # another thread has just closed it
                    self.lost_count += counted
        return calls_count

    def site(self, method: str, schema: Schema, peer: str) -> Site:
        """Return the site of a method, made if this lane has not met it; from the next call on it has an entry."""
        key = (method, schema, peer)
        found = self.sites.get(key)
        if found is None:
            if len(self.sites) >= MAX_NAMES:
                others = (OTHER, schema, "")
                return self.sites.get(others) or self._new_site(others)
            found = self._new_site(key)
        if found.schema is schema:  # not another one that is equal: its id could become that of a third
            self.entries[method if schema is RPC and not peer else (method, id(schema), peer)] = found
        return found

    def _new_site(self, key: tuple[str, Schema, str]) -> Site:
        method, schema, peer = key
        return self.sites.setdefault(key, Site(self, str(method), schema, peer))  # a signal handler may be quicker

    def room(self, site: Site) -> int | None:
        """Return the offset of a free slot in `self.segment`, which then holds the site's names; None if none is."""
        with self._lock:
            offset: int | None = None
            if site.segment is self.segment:
                offset = self.segment.take()
                offset = offset if offset < self.segment.limit else None
            elif self.segment.limit:
                offset = self._introduce(site)
            return self._introduce(site) if offset is None and self._rotate() else offset

    def _introduce(self, site: Site) -> int | None:
        """Write the site's names where they are missing, and return the offset of the slot behind them."""
        segment = self.segment
        ids = [self.name_id(text) for text in (site.method, site.schema.text, site.peer)]
        offset = segment.take()
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
            offset = segment.take()
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
            for site in list(self.sites.values()):
                site.segment = FULL
            return True
        finally:
            self._rotating = False

    def _forget_names(self) -> None:
        self._names: dict[str, int] = {}
        self._name_ids = itertools.count(1)

    def tally(self, site: Site) -> Tally | Late:
        """Return the site's tally, made at its first need; amid the making of one, what keeps additions for later."""
        with self._lock:
            if self._making:  # this is a signal handler's call
                return Late(site, self._late)
            self._making = True
            try:
                made = site.tally = site.tally or self._store.new_tally(self, site)
            finally:
                self._making = False
            self._add_late()
            return made

    def _add_late(self) -> None:
        """Add what signal handlers' calls left, meanwhile."""
        with suppress(IndexError):
            while True:
                site, way, arguments = self._late.popleft()
                try:
                    getattr(site.tally or self.tally(site), way)(*arguments)
                except (ValueError, TypeError):
                    self.lost_count += 1

    def close(self) -> None:
        """Cut the files to what was used and unmap them; later calls are counted in memory."""
        self.tell()
        with self._lock:
            self._add_late()
            segment, self.segment = self.segment, FULL
            self._store.finish(segment)
            for site in list(self.sites.values()):
                tally, site.tally = site.tally, in_memory() if site.tally else None
                if tally is not None:
                    tally.close()
