"""The recorder of one thread: where its calls go, and whether the next one is recorded.

Nothing here raises into the application: what cannot be stored is counted.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ipcbench.trace.format import (
    CALL,
    ENDPOINT_MARK,
    ENDS,
    ENDS_LATE,
    MARKER,
    NAME,
    NAME_BYTES,
    OWN_TRACE,
    PACK_HEAD,
    PACK_NAME,
    PACKERS,
    SAMPLED,
)
from ipcbench.trace.record.budget import Governor
from ipcbench.trace.record.files import OTHER, ThreadFiles, TraceFiles
from ipcbench.trace.record.histograms import MethodHistograms, in_memory
from ipcbench.trace.record.hot import HotCall, HotCallSite
from ipcbench.trace.record.segment import FULL, SegmentWriter
from ipcbench.trace.schema import RPC, Schema
from ipcbench.util.clock import now_ns

MAX_NAMES = 4096
"""How many names a thread keeps apart; later ones share one, so that names made of data cannot fill a disk."""

_MOST_ENDPOINTS = 256
"""How many endpoints a thread describes."""

_DECIDE_EVERY_NS = 20_000_000
"""Time between two decisions of a budget; deciding costs more than a record does."""

_RETRY_NS = 1_000_000_000
"""Time until a segment is tried again after one could not be made."""

_NEVER_NS = 2**63 - 1
_FOR_EVER = 2**50
"""A number of calls."""

_MAX_NAME_TEXT_BYTES = 4096


class CallSite(HotCallSite):
    """One method with its schema and peer, in one thread.

    Attributes:
        ids: of its names in the segment that its heads belong to.
        unweighted_count: calls that were only counted, and for which no records are said to stand yet.
    """

    __slots__ = ("ids", "method", "peer", "schema", "thread", "unweighted_count")

    histograms: MethodHistograms | None

    def __init__(self, thread: ThreadRecorder, method: str, schema: Schema, peer: str) -> None:
        super().__init__(thread.no_op, int.from_bytes(os.urandom(8), "little"))
        self.thread = thread
        self.method = method
        self.schema = schema
        self.peer = peer
        self.last_stage = len(schema.stages) - 1
        self.kind = thread.call_kind(schema)
        self.segment = FULL
        self.ids = (0, 0, 0)
        self.unweighted_count = 0
        self.heads = ()
        self.histograms = None
        self.always = thread.always
        self.period, self.untimed = thread.period, thread.untimed
        self.look_ns = _NEVER_NS if thread.governor is None else 0

    def plan(self, period: int, untimed: bool, look_ns: int) -> None:
        """From now on record one call in `period`, on average, and only count those between, or time them too."""
        changed = untimed != self.untimed or not self.period / 2 < period < self.period * 2
        self.period, self.untimed, self.look_ns = period, untimed, look_ns
        self.late_ns = look_ns + _DECIDE_EVERY_NS if untimed and look_ns < _NEVER_NS else 0
        if changed:
            self.draw()

    def look(self) -> None:
        self.thread.decide(self)
        if self.untimed and self.histograms is None:  # so that a count is in a file at once: the process may be killed
            self.thread.make_histograms(self)

    def be_late(self) -> None:
        self.thread.end_interval(self)


class _LateHistograms:
    """Stands for a call site's histograms while its thread makes some, and keeps what is to be added to them.

    Only a signal handler's call can meet it. If that made histograms itself, the next signal could come during that,
    and so on.
    """

    __slots__ = ("_call_site", "_late")

    def __init__(self, call_site: CallSite, late: deque[tuple[CallSite, str, tuple[Any, ...]]]) -> None:
        self._call_site = call_site
        self._late = late

    def add(self, *call: Any) -> None:
        """Keep one call."""
        self._late.append((self._call_site, "add", call))

    def add_untimed(self, calls_count: int) -> None:
        """Keep a number of calls that were not timed."""
        self._late.append((self._call_site, "add_untimed", (calls_count,)))


class ThreadRecorder:
    """What one thread records into.

    Attributes:
        call_sites: by (method, schema, peer).
        entries: the same, by the keys of the hot path (see hot/python.py).
        always: whether every call is recorded.
        period: one in `period` calls of a method is recorded, on average.
        untimed: whether the calls between are counted without reading the clock.
        lost_count: calls that could be neither recorded nor counted.
        boot: identifies the clock, as contexts do.
        served_ns: when its last call as a server ended.
        spans, trace_high: ids of calls to come, and the high half of new trace ids.

    Args:
        files: those of the process.
        no_op: stands for calls that are only counted.
        call_kind: returns the class of the calls of a schema.
    """

    __slots__ = ("__weakref__", "_decide_ns", "_endpoints", "_files", "_late", "_lock", "_making", "_name_ids",
                 "_names", "_passed_count", "_retry_ns", "_rotating", "_thread_files", "always", "boot", "call_kind",
                 "call_sites", "entries", "governor", "lost_count", "no_op", "period", "segment", "served_ns",
                 "spans", "trace_high", "untimed")  # fmt: skip

    def __init__(self, files: TraceFiles, no_op: HotCall, call_kind: Callable[[Schema], type[HotCall]]) -> None:
        self._files = files
        self.no_op = no_op
        self.call_kind = call_kind
        self.governor = Governor(files.costs, files.budget_ratio) if files.budget_ratio else None
        self.period = self.governor.period if self.governor else files.sample
        self.untimed = self.governor is not None
        self.always = self.period == 1 and not self.untimed
        self.lost_count = 0
        self._decide_ns = self._passed_count = 0
        self.boot = files.boot
        self.served_ns = 0
        self.call_sites: dict[tuple[str, Schema, str], CallSite] = {}
        self.entries: dict[object, CallSite] = {}
        self._endpoints: dict[str, None] = {}
        self.renew()

    def renew(self) -> None:
        """Begin anew, with new files and new ids: in a new thread, and in the child after a fork."""
        self._lock = threading.RLock()  # a signal handler may make a call inside this thread's own
        self.segment: SegmentWriter = FULL
        self._rotating = False
        self._retry_ns = 0
        self._forget_names()
        self._thread_files = ThreadFiles()
        self._making = False
        self._late: deque[tuple[CallSite, str, tuple[Any, ...]]] = deque()
        self.trace_high = int.from_bytes(os.urandom(8), "little")
        first = int.from_bytes(os.urandom(8), "little") >> 1 | 1  # counted up from here, ids stay below 2⁶⁴
        self.spans = itertools.count(first)
        for call_site in list(self.call_sites.values()):
            call_site.segment = FULL
            call_site.unweighted_count = 0
            call_site.restart()
            call_site.look_ns = 0 if self.governor is not None else _NEVER_NS
            call_site.histograms = None

    def decide(self, call_site: CallSite) -> None:
        """Let the budget decide how calls are taken from now on, if it is time to."""
        governor, at_ns = self.governor, now_ns()
        if governor is None or at_ns < self._decide_ns:
            call_site.look_ns = self._decide_ns
            return
        self._decide_ns = at_ns + _DECIDE_EVERY_NS
        governor.planned_count = self._passed_count + self.count_untimed()
        self._passed_count = 0
        self.period, self.untimed = governor.decide(at_ns)
        for each in list(self.call_sites.values()):
            each.plan(self.period, self.untimed, self._decide_ns)

    def end_interval(self, late: CallSite) -> None:
        """Separate the calls so far from those to come: no record of these stands for those. The next one of a call
        site is late: it is chosen for the time that has passed, and so stands only for the few that it is chosen from.
        """
        self._passed_count += self.count_untimed(is_end=True, late=late)

    def count_untimed(self, is_end: bool = False, late: CallSite | None = None) -> int:
        """Say for how many calls the latest records stand; return how many calls there were since the last time.

        Args:
            is_end: say so also where there is no record since the last time: those before stand for them.
            late: the call site whose next record is late, see `end_interval`.
        """
        calls_count = 0
        for call_site in list(self.call_sites.values()):
            passed_count, untimed_count = call_site.passed()
            calls_count += passed_count
            unstored_count = call_site.take_unstored()
            if unstored_count:
                try:
                    (call_site.histograms or self.make_histograms(call_site)).add_untimed(unstored_count)
                except ValueError:  # another thread has just closed them
                    self.lost_count += unstored_count
            call_site.unweighted_count += untimed_count
            has_timed = passed_count > untimed_count
            # Also for none: records that stand for no others must not stand for those of the next interval.
            is_due = (has_timed and self.governor is not None) or (is_end and call_site.unweighted_count)
            if is_due or call_site is late:
                self._weigh(call_site, ENDS_LATE if call_site is late else ENDS if is_end else 0)
        return calls_count

    def _weigh(self, call_site: CallSite, ending: int) -> None:
        """Say for how many calls the latest records of a call site stand, and how this interval ends."""
        offset = self.take_slot(call_site)
        if offset is None:
            return
        head, at_ns = PACK_HEAD(SAMPLED, 0, 1, call_site.schema.role, *call_site.ids, 0, 0), now_ns()
        with suppress(ValueError):  # another thread has just closed the segment
            PACKERS[1](self.segment.buffer, offset, head, *OWN_TRACE, 0, at_ns, at_ns, call_site.unweighted_count,
                       ending, offset ^ MARKER)  # fmt: skip
            call_site.unweighted_count = 0

    def call_site(self, method: str, schema: Schema, peer: str) -> CallSite:
        """Return the call site of a method, made if it is new; the next call finds it in `entries`."""
        key = (method, schema, peer)
        call_site = self.call_sites.get(key)
        if call_site is None:
            if not self._files.chosen.takes(method):
                return self._ignored(key)
            if len(self.call_sites) >= MAX_NAMES:
                others = (OTHER, schema, "")
                return self.call_sites.get(others) or self._new_call_site(others)
            call_site = self._new_call_site(key)
        if call_site.schema is schema:  # not another schema that is equal: a third could get its id
            self.entries[method if schema is RPC and not peer else (method, id(schema), peer)] = call_site
        return call_site

    def lose(self, error: BaseException) -> None:
        """Note that a call could not begin."""
        self.lost_count += 1
        self._files.lose(self._thread_files, error)

    def _ignored(self, key: tuple[str, Schema, str]) -> CallSite:
        """Return a call site all of whose calls are the no-op, and that nobody counts."""
        method, schema, peer = key
        call_site = CallSite(self, method, schema, peer)
        call_site.always = False
        call_site.plan(_FOR_EVER, True, _NEVER_NS)
        if len(self.entries) < MAX_NAMES:
            self.entries[method if schema is RPC and not peer else (method, id(schema), peer)] = call_site
        return call_site

    def _new_call_site(self, key: tuple[str, Schema, str]) -> CallSite:
        method, schema, peer = key
        made = CallSite(self, str(method), schema, peer)
        return self.call_sites.setdefault(key, made)  # a signal handler may be first

    def take_slot(self, call_site: CallSite) -> int | None:
        """Return the offset of a free slot in the call site's segment, which then holds its names; None if there is no
        room.
        """
        with self._lock:
            offset: int | None = None
            if call_site.segment is self.segment:
                offset = self.segment.take()
                offset = offset if offset < self.segment.limit else None
            elif self.segment.limit:
                offset = self._introduce(call_site)
            return self._introduce(call_site) if offset is None and self._rotate() else offset

    def _introduce(self, call_site: CallSite) -> int | None:
        """Write the call site's names where they are missing, and return the offset of the next slot."""
        segment = self.segment
        for text in list(self._endpoints):
            self.name_id(text)
        ids = [self.name_id(text) for text in (call_site.method, call_site.schema.text, call_site.peer)]
        offset = segment.take()
        if None in ids or offset >= segment.limit:
            return None
        method_id, schema_id, peer_id = (name_id or 0 for name_id in ids)
        call_site.ids = (method_id, schema_id, peer_id)
        call_site.heads = tuple(
            PACK_HEAD(CALL, 0, ends, call_site.schema.role, method_id, schema_id, peer_id, 0, 0)
            for ends in range(call_site.last_stage + 2)
        )
        call_site.segment = segment
        return offset

    def describe(self, text: str) -> None:
        """Write a text about an endpoint into each segment from the next new method on."""
        if len(self._endpoints) < _MOST_ENDPOINTS:
            self._endpoints[f"{ENDPOINT_MARK}{text}"] = None

    def name_id(self, text: str) -> int | None:
        """Return the id of a name in the current segment, written into it if new; None if there is no room for it."""
        if not text:
            return 0
        name_id = self._names.get(text)
        if name_id is None:
            if len(self._names) >= MAX_NAMES:
                text = OTHER
            name_id = self._names.get(text) or self._write_name(text)
        return name_id

    def _write_name(self, text: str) -> int | None:
        segment = self.segment
        data = text.encode("utf-8", "replace")[:_MAX_NAME_TEXT_BYTES]
        number = next(self._name_ids)  # a signal handler's call in between takes another one
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
        if self._rotating or self._files.closed or now_ns() < self._retry_ns:
            return False
        self._rotating = True  # until names and segment match again, a signal handler's call makes no segment
        try:
            full, self.segment = self.segment, FULL
            segment = self._files.new_segment(self._thread_files, len(full.buffer))
            if segment is None:
                self._retry_ns = now_ns() + _RETRY_NS
                return False
            self._forget_names()
            self.segment = segment
            for call_site in list(self.call_sites.values()):
                call_site.segment = FULL
            return True
        finally:
            self._rotating = False

    def _forget_names(self) -> None:
        self._names: dict[str, int] = {}
        self._name_ids = itertools.count(1)

    def make_histograms(self, call_site: CallSite) -> MethodHistograms | _LateHistograms:
        """Return the call site's histograms, made when first needed; while any are being made, a stand-in that keeps
        additions.
        """
        with self._lock:
            if self._making:  # this is a signal handler's call
                return _LateHistograms(call_site, self._late)
            self._making = True
            try:
                histograms = call_site.histograms = call_site.histograms or self._files.new_histograms(
                    self._thread_files, call_site.method, call_site.schema, call_site.peer
                )
            finally:
                self._making = False
            self._add_late()
            return histograms

    def _add_late(self) -> None:
        """Add what signal handlers' calls left meanwhile."""
        with suppress(IndexError):
            while True:
                call_site, method, arguments = self._late.popleft()
                try:
                    getattr(call_site.histograms or self.make_histograms(call_site), method)(*arguments)
                except (ValueError, TypeError):
                    self.lost_count += 1

    def close(self) -> None:
        """Truncate the files to their used part and unmap them; later calls are counted in memory."""
        self.count_untimed()
        with self._lock:
            self._add_late()
            segment, self.segment = self.segment, FULL
            self._files.close_segment(segment)
            for call_site in list(self.call_sites.values()):
                histograms, call_site.histograms = call_site.histograms, in_memory() if call_site.histograms else None
                if histograms is not None:
                    histograms.close()
