"""Calls with all that is known of them, as rows: ids, the other side, errors, process and clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipcbench.trace.ids import format_trace_id
from ipcbench.trace.readers.batch import PARTS, UNKNOWN, Batch, Ints
from ipcbench.trace.schema import RECEIVER, SERVER_SIDE
from ipcbench.util.text import printable

Unsigned = npt.NDArray[np.uint64]

ROLES = ("local", "client", "server", "receiver")
"""By the role of a schema."""

FAR_SIDES = (SERVER_SIDE, RECEIVER)
"""The roles whose work is part of another process's call."""


def method_name(method: str, role: int) -> str:
    """Return the name of a method, with the side behind it if that is the far one."""
    return f"{method} ({ROLES[role]})" if role in FAR_SIDES else method


def transport_of(peer: str) -> str:
    """Return over which transport a peer is reached: the scheme of its endpoint (`TCP`, `IPC`), or a backend's name;
    empty if it says nothing.
    """
    scheme, has_scheme, _ = peer.partition("://")
    return printable(scheme[:40].upper() if has_scheme else "" if any(mark in peer for mark in ":/ ") else peer[:40])


@dataclass(frozen=True, slots=True)
class Process:
    """Who made a call.

    Attributes:
        boot: tells one boot of one host from every other; empty if unknown.
        unix_ns: the offset from its clock to the time since 1970; None if unknown.
    """

    source: str
    service: str
    host: str = ""
    pid: int = 0
    tid: int = 0
    boot: str = ""
    unix_ns: int | None = None

    @property
    def identity(self) -> tuple[str, str, int]:
        """The same for all threads of a process."""
        return self.service, self.host, self.pid


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Calls of one process and one set of stages, in the order in which they ended.

    Attributes:
        trace, span: shapes (n, 2), the high half first, and (n,); None in a log.
        kept: whether a call was recorded out of turn, shape (n,).
        peers, errors: n texts.
    """

    batch: Batch
    process: Process
    trace: Unsigned | None
    span: Unsigned | None
    kept: npt.NDArray[np.bool_]
    schema: str
    peers: Sequence[str]
    errors: Sequence[str]


class Row(NamedTuple):
    """One call; times in ns of its host's monotonic clock, `begin_ns` below 0 if the log has no times.

    Attributes:
        sent_bytes, recv_bytes: None if they were not noted.
        parts_ns: what its wait is made of (`PARTS`); None for what is not known.
        logged_transport: as its log names it; empty if it does not.
        is_timed: whether its times are known; else `total_ns` and `stage_ns` hold zeros, which mean nothing.
    """

    process: Process
    schema: str
    stages: tuple[str, ...]
    role: int
    number: int
    method: str
    peer: str
    error: str
    trace_id: str
    span: int
    begin_ns: int
    total_ns: int
    stage_ns: list[int]
    sent_bytes: int | None
    recv_bytes: int | None
    failed: bool
    parts_ns: tuple[int | None, ...] = (None,) * len(PARTS)
    logged_transport: str = ""
    is_timed: bool = True

    @property
    def known_total_ns(self) -> int | None:
        """How long it took; None if that is unknown."""
        return self.total_ns if self.is_timed else None

    @property
    def stages_ns(self) -> dict[str, int]:
        """Stage → its time; empty if that is unknown."""
        return dict(zip(self.stages, self.stage_ns, strict=True)) if self.is_timed else {}

    @property
    def transport(self) -> str:
        """Over which transport its peer is reached; empty if unknown."""
        return transport_of(self.peer) or self.logged_transport

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.begin_ns + self.total_ns

    @property
    def begin_unix_ns(self) -> int | None:
        """When it began, in ns since 1970; None if that is unknown."""
        return None if self.process.unix_ns is None or self.begin_ns < 0 else self.process.unix_ns + self.begin_ns

    @property
    def moved_bytes(self) -> int | None:
        """Bytes both ways; None if they were not noted."""
        return None if self.sent_bytes is None or self.recv_bytes is None else self.sent_bytes + self.recv_bytes

    @property
    def mib_per_s(self) -> float | None:
        """Bytes both ways by the whole time; None if they were not noted, or it took none."""
        moved = self.moved_bytes
        return moved / 2**20 / (self.total_ns / 1e9) if moved is not None and self.total_ns > 0 else None


def rows_of(calls: Calls) -> Iterator[Row]:
    """Yield calls one by one."""
    batch = calls.batch
    count = len(batch.ids)
    ids: Sequence[str] = batch.trace_ids or [""] * count
    if calls.trace is not None:
        ids = [format_trace_id(*halves) for halves in calls.trace.tolist()]
    spans = [0] * count if calls.span is None else calls.span.tolist()
    columns = zip(
        batch.ids.tolist(), batch.method.tolist(), calls.peers, calls.errors, ids, spans, batch.begin_ns.tolist(),
        batch.total_ns.tolist(), batch.stage_ns.tolist(), _or_none(batch.sent_bytes), _or_none(batch.recv_bytes),
        batch.failed.tolist(), _parts(batch), [batch.segment.transport] * count,
        [batch.is_timed] * count, strict=True,
    )  # fmt: skip
    for number, method, *rest in columns:
        yield Row(calls.process, calls.schema, batch.stages, batch.segment.role, number, batch.methods[method], *rest)


def _parts(batch: Batch) -> Iterable[tuple[int | None, ...]]:
    columns = (batch.request_ns, batch.queue_ns, batch.server_ns, batch.reply_ns)
    count = len(batch.ids)
    return zip(
        *(repeat(None, count) if column is None else _or_none(column) for column in columns),
        strict=True,
    )


def _or_none(column: Ints) -> list[int | None]:
    """Return the numbers, None for those that are unknown."""
    return [None if number == UNKNOWN else number for number in column.tolist()]


def log_calls(batch: Batch) -> Calls:
    """Return calls of a text log."""
    count = len(batch.ids)
    process = Process(batch.segment.source, batch.segment.name, batch.segment.worker)
    kept = np.zeros(count, np.bool_)
    return Calls(batch, process, None, None, kept, ",".join(batch.stages), [""] * count, [""] * count)


@dataclass(slots=True)
class Clocks:
    """The offset from each boot's monotonic clock to the time since 1970: one for all its processes, the first found,
    so that the order of their calls stays what it was.
    """

    offsets: dict[str, int] = field(default_factory=dict)

    def process(self, path: Path, facts: dict[str, Any]) -> Process:
        """Return the process that a file's header names."""
        boot = str(facts.get("boot") or "")
        anchor = facts.get("anchor_ns")
        if isinstance(anchor, list) and len(anchor) == 2 and all(isinstance(ns, int) for ns in anchor):
            self.offsets.setdefault(boot, anchor[1] - anchor[0])
        pid, tid = (
            fact if isinstance(fact, int) and 0 <= fact < 2**31 else 0 for fact in map(facts.get, ("pid", "tid"))
        )
        service, host = str(facts.get("service") or "process"), str(facts.get("host") or "")
        return Process(str(path.parent), service, host, pid, tid, boot, self.offsets.get(boot))


def take(calls: Calls, chosen: npt.NDArray[np.int64]) -> Calls:
    """Return the calls at these places, in this order."""
    count = len(calls.batch.ids)
    columns: dict[str, Any] = {}
    for attribute in fields(calls.batch):
        column = getattr(calls.batch, attribute.name)
        if isinstance(column, np.ndarray) and len(column) == count:
            columns[attribute.name] = column[chosen]
    batch = replace(calls.batch, **columns)
    places = chosen.tolist()
    if batch.trace_ids:
        batch = replace(batch, trace_ids=[batch.trace_ids[place] for place in places])
    return replace(
        calls,
        batch=batch,
        trace=None if calls.trace is None else calls.trace[chosen],
        span=None if calls.span is None else calls.span[chosen],
        kept=calls.kept[chosen],
        peers=[calls.peers[place] for place in places],
        errors=[calls.errors[place] for place in places],
    )
