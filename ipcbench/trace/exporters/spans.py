"""Calls as spans, for the formats of tracing systems: ids, parents, kinds, stages.

A call's server side has the same trace id and span id as its client side; here it becomes a child of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from ipcbench.trace.exporters.common import at_ns, scan, stages_of
from ipcbench.trace.readers.calls import FAR_SIDES, ROLES, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT, QUEUE_PUT, RECEIVER, SEND, SERVER_SIDE

WANTED: Final = "call with a record that can be placed in time since 1970; logs have none"
"""What a trace must hold, for `require`."""

_KINDS = {CLIENT: "CLIENT", SERVER_SIDE: "SERVER", RECEIVER: "CONSUMER"}
_ONE_WAY = frozenset({SEND.name, QUEUE_PUT.name})


@dataclass(frozen=True, slots=True)
class Span:
    """One side of a call.

    Attributes:
        span_id, parent_id: 16 hexadecimal digits; a parent's are empty if it has none.
    """

    row: Row
    span_id: str
    parent_id: str

    @property
    def begin_ns(self) -> int:
        """When it began, in ns since 1970."""
        return at_ns(self.row)

    @property
    def end_ns(self) -> int:
        """When it ended, in ns since 1970."""
        return self.begin_ns + self.row.total_ns

    @property
    def kind(self) -> str:
        """CLIENT, SERVER, PRODUCER or CONSUMER; empty for a call without sides."""
        if self.row.role == CLIENT and self.row.schema in _ONE_WAY:
            return "PRODUCER"
        return _KINDS.get(self.row.role, "")

    def stages(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, begin and end of each stage, in ns since 1970; none if it is the only one."""
        offset = self.begin_ns - self.row.begin_ns
        for name, begin, end in stages_of(self.row) if len(self.row.stages) > 1 else ():
            yield name, begin + offset, end + offset

    def facts(self) -> dict[str, str | int]:
        """Return what else is known."""
        row = self.row
        values: dict[str, str | int | None] = {
            "ipcbench.schema": row.schema, "ipcbench.sent_bytes": row.sent_bytes, "ipcbench.recv_bytes": row.recv_bytes,
            "ipcbench.peer": row.peer, "error.type": row.error, "thread.id": row.process.tid,
        }  # fmt: skip
        return {key: value for key, value in values.items() if value is not None and value != ""}


def spans(source: Source) -> Iterator[Span]:
    """Yield the calls that can be placed in time since 1970.

    Raises:
        StoreError: no call has a time on a clock.
    """
    linked = scan(source).linked
    for row in source.in_order():
        if row.process.unix_ns is None or row.begin_ns < 0 or row.total_ns < 0:
            continue
        near_id = f"{row.span:016x}"
        if row.role not in FAR_SIDES:
            yield Span(row, near_id, "")
        else:
            yield Span(row, derived_id(row, ROLES[row.role]), near_id if (row.trace_id, row.span) in linked else "")


def derived_id(row: Row, what: str) -> str:
    """Return a span id that follows from that of a call."""
    return blake2b(f"{row.trace_id} {row.span} {what}".encode(errors="replace"), digest_size=8).hexdigest()
