"""Whole traces in lists, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipcbench.trace.readers.batch import Bulk, Notes
from ipcbench.trace.readers.own import read_segment, read_tally


@dataclass(frozen=True, slots=True)
class Record:
    method: str
    stages: dict[str, int]
    total_ns: int
    sent_bytes: int
    recv_bytes: int
    failed: bool


def records(folder: Path, notes: Notes | None = None) -> list[Record]:
    found = []
    for path in sorted(folder.glob("*.ipct")):
        for batch in read_segment(path, notes or Notes()):
            rows: Any = zip(
                batch.method.tolist(), batch.stage_ns.tolist(), batch.total_ns.tolist(), batch.sent_bytes.tolist(),
                batch.recv_bytes.tolist(), batch.failed.tolist(), strict=True,
            )  # fmt: skip
            found += [
                Record(batch.methods[method], dict(zip(batch.stages, stages, strict=True)), *rest)
                for method, stages, *rest in rows
            ]
    return found


def tallies(folder: Path) -> list[Bulk]:
    return [bulk for path in sorted(folder.glob("*.ipch")) for bulk in read_tally(path, Notes())]


def calls_count(folder: Path) -> int:
    """Return how many calls the files of a folder hold, with and without records."""
    return len(records(folder)) + sum(int(one.counts.sum()) + one.untimed_count for one in tallies(folder))
