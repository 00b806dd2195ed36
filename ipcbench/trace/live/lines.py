"""The formats of `ipcbench trace tail`: the lines of the two older tools, and JSON.

In the older formats, characters with a meaning are replaced in names.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Protocol

from ipcbench.trace.readers.calls import FAR_SIDES, ROLES, Row
from ipcbench.trace.schema import PIPELINE, RPC

_MIB = 2**20
_RULE = "=" * 140
_COLUMNS = ("Serialize(ms)", "Send(ms)", "Recv(ms)", "Deserialize(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)",
            "Throughput(MB/s)")  # fmt: skip


class Lines(Protocol):
    """A format."""

    left_out_count: int
    """Calls that it cannot express."""

    unsized_count: int
    """Calls whose bytes nobody noted, for which it has only 0."""

    def call(self, row: Row) -> Iterator[str]:
        """Yield the lines of one call; none if the format has none for such a call."""

    def end(self) -> Iterator[str]:
        """Yield what follows the last call."""


def plain(name: str) -> str:
    """Return the name for a line of the older formats: one line, without markers and separators."""
    text = "".join(char if char.isprintable() else " " for char in name)
    for marker, instead in (("[", "("), ("]", ")"), ("|", "/"), ("Performance Log", "performance log")):
        text = text.replace(marker, instead)
    return " ".join(text.split()) or "?"


class ZmqLines:
    """zmq_performance.log: a header, then one row per call with the four stages of a remote call, at its client, and a
    summary. Calls over another transport than those before begin anew, with a summary, a header and the first id.
    """

    def __init__(self) -> None:
        self.left_out_count = self.unsized_count = 0
        self._transport: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._number = 0
        self._sums_ns = [0] * (len(RPC.stages) + 1)
        self._moved_bytes = [0, 0]

    def _head(self) -> Iterator[str]:
        """Yield title and names of the columns."""
        yield f"ZeroMQ Performance Log - Transport: {self._transport or 'unknown'}"
        yield _RULE
        yield f"{'ID':<5} {'Method':<20} " + "".join(f"{name:<15} " for name in _COLUMNS)
        yield _RULE

    def call(self, row: Row) -> Iterator[str]:
        """Yield a row; times in ms to a microsecond, sizes in KiB."""
        if row.stages != RPC.stages or row.role in FAR_SIDES:
            self.left_out_count += 1
            return
        if row.transport != self._transport:
            if self._number:
                yield from self.end()
            self._transport = row.transport
            self._begin()
            yield from self._head()
        self._number += 1
        self.unsized_count += row.moved_bytes is None
        times_ns = (*row.stage_ns, row.total_ns)
        moved = (row.sent_bytes or 0, row.recv_bytes or 0)
        self._sums_ns = [whole + ns for whole, ns in zip(self._sums_ns, times_ns, strict=True)]
        self._moved_bytes = [whole + size for whole, size in zip(self._moved_bytes, moved, strict=True)]
        times = [ns / 1e6 for ns in times_ns]
        sizes = [*(size / 1024 for size in moved), row.mib_per_s or 0.0]
        yield (
            f"{self._number:<5} {plain(row.method):<20} "
            + "".join(f"{ms:<15.3f} " for ms in times)
            + "".join(f"{value:<15.2f} " for value in sizes)
        )

    def end(self) -> Iterator[str]:
        """Yield the summary of the calls since the header; without a call, only a header."""
        if not self._number:
            if self._transport is None:
                yield from self._head()
            return
        yield from ("", _RULE, "SUMMARY", _RULE, f"Total RPC Calls: {self._number}")
        for name, ns in zip(("Serialize", "Send", "Receive", "Deserialize", "Total"), self._sums_ns, strict=True):
            yield f"Average {name} Time: {ns / self._number / 1e6:.3f} ms"
        for name, size in zip(("Sent", "Received"), self._moved_bytes, strict=True):
            yield f"Total Data {name}: {size / _MIB:.2f} MB"
        total_s = self._sums_ns[-1] / 1e9
        yield f"Average Throughput: {sum(self._moved_bytes) / _MIB / total_s if total_s > 0 else 0:.2f} MB/s"
        yield _RULE


class TqLines:
    """[TQ-TRACE] lines: eight a call of the three stages get, compute, put; the bytes in [TQ-DETAIL] lines."""

    def __init__(self) -> None:
        self.left_out_count = self.unsized_count = 0

    def end(self) -> Iterator[str]:
        """Yield nothing."""
        yield from ()

    def call(self, row: Row) -> Iterator[str]:
        """Yield the lines; seconds to a microsecond, so that an end less its duration is its start exactly, and no
        stage ends after its function.
        """
        if row.stages != PIPELINE.stages:
            self.left_out_count += 1
            return
        begin = row.begin_ns // 1000
        total = max(0, (row.begin_ns + row.total_ns) // 1000 - begin)
        passed_ns = itertools.accumulate(row.stage_ns, initial=row.begin_ns)
        parts = [max(0, end // 1000 - start // 1000) for start, end in itertools.pairwise(passed_ns)]
        start = f"[TQ-TRACE] trace_id={row.trace_id or 'N/A'} | func={plain(row.method)} | "
        yield f"{start}pid={row.process.pid} | stage=FUNCTION_START | timestamp={_seconds(begin)}"
        at = begin
        for name, part in zip(PIPELINE.stages, parts, strict=True):
            yield f"{start}stage={name.upper()}_START | timestamp={_seconds(at)}"
            at += part
            yield f"{start}stage={name.upper()}_END | duration={_seconds(part)}s | timestamp={_seconds(at)}"
        ratios = " | ".join(
            f"{name}_ratio={100 * part / total if total else 0:.2f}%"
            for name, part in zip(PIPELINE.stages, parts, strict=True)
        )
        end = f"total_duration={_seconds(total)}s | {ratios} | timestamp={_seconds(begin + total)}"
        yield f"{start}stage=FUNCTION_END | {end}"
        yield from _details(row, begin, parts)


def _details(row: Row, begin: int, parts: list[int]) -> Iterator[str]:
    """Yield what was transferred, in MiB."""
    trace = row.trace_id or "N/A"
    for name, moved, part, at in (
        ("GET", row.recv_bytes, parts[0], begin),
        ("PUT", row.sent_bytes, parts[2], begin + parts[0] + parts[1]),
    ):
        if not moved:
            continue
        size = f"data_size_mb={moved / _MIB:.2f}"
        speed = moved / _MIB / (part / 1e6) if part else 0.0
        start = f"[TQ-DETAIL] trace_id={trace} | " + ("func=None | " if name == "PUT" else "")
        known = f" | {size}"
        yield (f"{start}stage=TQ_CLIENT_{name}_START{known if name == 'PUT' else ''} | timestamp={_seconds(at)}")
        yield (
            f"{start}stage=TQ_CLIENT_{name}_END | duration={_seconds(part)}s{known if name == 'GET' else ''} | "
            f"throughput_mbps={speed:.2f} | timestamp={_seconds(at + part)}"
        )


def _seconds(microseconds: int) -> str:
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


class JsonLines:
    """A JSON object a call: everything that is known of it."""

    left_out_count = unsized_count = 0

    def end(self) -> Iterator[str]:
        """Yield nothing."""
        yield from ()

    def call(self, row: Row) -> Iterator[str]:
        """Yield the object; times in ns, sizes in bytes."""
        process = row.process
        yield json.dumps({
            "method": row.method,
            "schema": row.schema,
            "role": ROLES[row.role],
            "service": process.service,
            "host": process.host,
            "pid": process.pid,
            "tid": process.tid,
            "peer": row.peer or None,
            "trace_id": row.trace_id or None,
            "span_id": f"{row.span:016x}" if row.trace_id else None,
            "begin_unix_ns": row.begin_unix_ns,
            "begin_ns": row.begin_ns if row.begin_ns >= 0 else None,
            "total_ns": row.known_total_ns,
            "stages_ns": row.stages_ns,
            "sent_bytes": row.sent_bytes,
            "recv_bytes": row.recv_bytes,
            "failed": row.failed,
            "error": row.error or None,
        })  # fmt: skip


FORMATS: dict[str, type[ZmqLines] | type[TqLines] | type[JsonLines]] = {
    "zmq": ZmqLines,
    "tq": TqLines,
    "jsonl": JsonLines,
}
"""By the name of the format."""
