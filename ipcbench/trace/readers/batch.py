"""Batches: calls as columns, the form that all readers produce, and what a reader notes beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ipcbench.util.text import printable

Ints: TypeAlias = "npt.NDArray[np.int64]"
Keys: TypeAlias = "npt.NDArray[np.uint64]"

UNKNOWN = -1
"""Stands for a time that was not logged, and for bytes that nobody noted: those of both ways of a call, or of none."""

PARTS = ("request", "queue", "server", "reply")
"""The parts of `wait`, in order."""

_MAX_SHOWN = 5


LOSING = "processes that could not write all their calls"
"""A key of `Notes.counts`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Calls that belong together: one process, or one client from its start to its restart.

    Attributes:
        source: the file, or the folder, that they come from.
        name: unique in its source.
        transport: as the log names it; empty if it does not.
        worker: the process.
        role: LOCAL, CLIENT or SERVER_SIDE of schema.py.
        bytes_are_partial: whether payloads also took another way, which the log does not count.
    """

    source: str
    name: str
    transport: str = ""
    worker: str = ""
    role: int = 0
    bytes_are_partial: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls of one segment and one set of stages. Columns have shape (n,).

    Attributes:
        stages: names, in order of time; the rest of the total is unaccounted.
        methods: names, into which `method` points.
        begin_ns: monotonic clock of its host; UNKNOWN where it was not logged.
        total_ns: may be negative in a damaged log.
        sent_bytes, recv_bytes: UNKNOWN where they were not noted.
        stage_ns: shape (n, number of stages).
        server_ns: the server's part of the stage `wait`; UNKNOWN for a call without a server's record, None if no
            call has one.
        outside_ns: work beside the call, not part of the total; None if the log gives none.
        failed: whether the call raised.
        request_ns, queue_ns, reply_ns: the other parts of `wait`: the way there, the wait for the server, the way back;
            unknown as in server_ns. The four add up to `wait`. Without such a stage: the way of a one-way message,
            and its wait for the receiver, after the call's own time.
        key: a hash of trace id and span id, the same at both sides; 0 for a call without; None if no call has one.
        boot: the clock of `begin_ns`.
        layouts: texts of buffers (ipcbench/trace/buffers.py), into which `layout` points; "" for unknown.
        layout: None if no call's buffers are known.
        offset_error_ns: how far the clocks of the two sides may be apart after correction; 0 on one host.
        trace_ids: as a log has them, "" for none; empty if it has none at all.
        traces: the ids that somebody gave, shape (n, 2), the high half first, 0 for none; None if there are none.
        weights: for how many calls each stands that were only counted; None if for none.
        is_timed: whether their times are known; else `total_ns` and `stage_ns` hold zeros, which mean nothing.
    """

    segment: Segment
    stages: tuple[str, ...]
    methods: Sequence[str]
    ids: Ints
    method: Ints
    begin_ns: Ints
    total_ns: Ints
    stage_ns: Ints
    sent_bytes: Ints
    recv_bytes: Ints
    failed: npt.NDArray[np.bool_]
    server_ns: Ints | None = None
    outside_ns: Ints | None = None
    request_ns: Ints | None = None
    queue_ns: Ints | None = None
    reply_ns: Ints | None = None
    key: Keys | None = None
    boot: str = ""
    layouts: Sequence[str] = ()
    layout: Ints | None = None
    offset_error_ns: int = 0
    trace_ids: Sequence[str] = ()
    traces: Keys | None = None
    weights: npt.NDArray[np.float64] | None = None
    is_timed: bool = True

    @property
    def is_sized(self) -> npt.NDArray[np.bool_]:
        """Whether the bytes of each call were noted, shape (n,)."""
        return self.sent_bytes >= 0


@dataclass(frozen=True, slots=True)
class Bulk:
    """Calls of one method without records: a histogram and sums.

    Attributes:
        counts: shape (bins,), by bin of ipcbench/util/bins.py.
        summed_count: the calls that the sums hold, at most as many as the histogram's.
        untimed_count: calls that were only counted.
        sent_bytes, recv_bytes: UNKNOWN if they were not noted.
        stage_ns: sums.
    """

    segment: Segment
    stages: tuple[str, ...]
    method: str
    counts: Ints
    summed_count: int
    untimed_count: int
    failed_count: int
    sent_bytes: int
    recv_bytes: int
    total_ns: int
    longest_ns: int
    stage_ns: Ints

    @property
    def is_sized(self) -> bool:
        """Whether its bytes were noted."""
        return self.sent_bytes >= 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The summary that a log gives of itself.

    Attributes:
        segment: the calls before it.
        values: by the log's own names.
    """

    segment: Segment | None
    values: dict[str, float]


@dataclass(slots=True)
class Notes:
    """What a reader noted beside the calls.

    Attributes:
        lines_count, foreign_count: all lines, and those in no known form.
        damaged_count: lines, records or files that should have been readable.
        examples: the first damaged ones, with their places.
        counts: all other counts, by name.
        claims: summaries.
        facts: headers of the package's own files.
        processes_count: Python processes of a program that was recorded unmodified.
        unseen: programs that were started and not recorded, by name.
        endpoints: descriptions of sockets, in order of appearance.
        left_out: by segment of this package, how many more calls its records tell of, at least.
    """

    lines_count: int = 0
    foreign_count: int = 0
    damaged_count: int = 0
    examples: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    claims: list[Claim] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    processes_count: int = 0
    unseen: Counter[str] = field(default_factory=Counter)
    endpoints: dict[str, None] = field(default_factory=dict)
    left_out: Counter[Path] = field(default_factory=Counter)
    _losing: set[tuple[str, int]] = field(default_factory=set)

    @property
    def unseen_names(self) -> str:
        """The most frequent of `unseen`, with their counts."""
        return ", ".join(f"{name} × {count}" for name, count in self.unseen.most_common(5))

    def lost(self, host: str, pid: int) -> None:
        """Count a process that could not write all its calls, once."""
        self._losing.add((host, pid))
        self.counts[LOSING] = len(self._losing)

    def damaged(self, place: str, what: str) -> None:
        """Count a damaged line, and keep the first few."""
        self.damaged_count += 1
        if len(self.examples) < _MAX_SHOWN:
            shown = what if len(what) <= 80 else f"{what[:80]}…"
            self.examples.append(printable(f"{place}: {shown.encode('ascii', 'backslashreplace').decode()}"))
