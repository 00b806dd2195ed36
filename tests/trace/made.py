"""Traces for tests: written record by record, at times that a test chooses, or recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipcbench import trace
from ipcbench.trace.format import CALL, FAILED, MARKER, NAME, NAME_BYTES, PACK_HEAD, PACK_NAME, PACKERS, SAMPLED
from ipcbench.trace.record.segment import SegmentWriter, new_segment
from ipcbench.trace.schema import RPC, SERVER, Schema

UNIX_NS = 1_700_000_000_000_000_000
TRACE = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
HOSTILE = '</script><script>document.title="owned"</script>|[TQ-TRACE] "quoted"\\\n\x1b[31m'


def rpc(recorder: trace.Recorder, method: str = "Matmul", sent: int = 10, recv: int = 20, **options: Any) -> None:
    with recorder.call(method, **options) as call:
        call.serialized(sent)
        call.sent()
        call.received(recv)


def record(folder: Path, count: int, sample: int = 1, methods: Sequence[str] = ("Matmul",), sent: int = 1000,
           recv: int = 500) -> None:  # fmt: skip
    """Record as many calls of a client, whose methods take turns."""
    recorder = trace.start(folder, sample=sample, service="client")
    for number in range(count):
        rpc(recorder, methods[number % len(methods)], sent, recv)
    trace.stop()


@dataclass
class Made:
    """One segment of one process."""

    folder: Path
    service: str
    pid: int = 100
    tid: int = 100
    segment: SegmentWriter = field(init=False)
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        facts = {"service": self.service, "host": "somewhere", "boot": "b", "pid": self.pid, "tid": self.tid,
                 "anchor_ns": [0, UNIX_NS], "ids": ["00000000000000aa", f"{self.pid:08x}00000000"]}  # fmt: skip
        path = self.folder / f"t-somewhere-b-{self.pid}-{self.tid}-0.ipct"
        self.segment = new_segment(path, 2**20, facts)

    def name(self, text: str) -> int:
        if not text:
            return 0
        if text not in self.names:
            data = text.encode()
            self.names[text] = number = len(self.names) + 1
            for piece in range(-(-len(data) // NAME_BYTES)):
                offset = self.segment.take()
                part = data[piece * NAME_BYTES : (piece + 1) * NAME_BYTES]
                PACK_NAME(self.segment.buffer, offset, NAME, 0, number, piece, len(data), part, offset ^ MARKER)
        return self.names[text]

    def call(self, method: str, stamps: list[int], schema: Schema = RPC, *, sent: int = 0, recv: int = 0,
             span: int = 0, error: str = "", peer: str = "", trace: tuple[int, int] | None = None) -> None:  # fmt: skip
        """Write a call of a schema by its begin and the ends of its stages."""
        ids = [self.name(text) for text in (method, schema.text, peer, error)]
        ends = len(stamps) - 1
        head = PACK_HEAD(CALL, FAILED if error else 0, ends, schema.role, *ids, 0)
        high, low = trace or (TRACE if span else (0, 0))
        offset = self.segment.take()
        PACKERS[ends](self.segment.buffer, offset, head, high, low, span, *stamps, sent, recv, offset ^ MARKER)

    def sampled(self, method: str, count: int, schema: Schema = RPC, ending: int = 0) -> None:
        """Write that the latest records of a method stand for so many calls that were only counted, and how this
        interval ends: 0, `ENDS` or `ENDS_LATE`.
        """
        head = PACK_HEAD(SAMPLED, 0, 1, schema.role, self.name(method), self.name(schema.text), 0, 0, 0)
        offset = self.segment.take()
        PACKERS[1](self.segment.buffer, offset, head, 0, 0, 0, 1, 1, count, ending, offset ^ MARKER)


def both_sides(folder: Path, count: int = 20) -> None:
    """Write `count` calls of a client that overlap in pairs, and the work of its server; the last call fails."""
    client, server = Made(folder, "client", 100, 101), Made(folder, "server", 200, 201)
    for number in range(count):
        begin = 1_000_000 + number * 1_000_000
        error = "ValueError" if number == count - 1 else ""
        stamps = [begin, begin + 100_000, begin + 150_000, begin + 1_400_000, begin + 1_500_000]
        client.call("Matmul", stamps, sent=1_000_000, recv=2_000_000, span=number + 1, error=error, peer="ipc:///x")
        stamps = [begin + 300_000, begin + 350_000, begin + 1_150_000, begin + 1_200_000]
        server.call("Matmul", stamps, SERVER, span=number + 1)
    client.call(HOSTILE, [50_000_000, 50_001_000, 50_002_000, 50_003_000, 50_005_000], sent=5)
    client.segment.close()
    server.segment.close()
