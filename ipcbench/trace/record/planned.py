"""Writes a trace of calls that nobody made: their order, methods and bytes are known, and no time is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

from ipcbench.errors import StoreError
from ipcbench.trace.format import (
    CALL,
    HEADER_BYTES,
    HISTOGRAMS_SUFFIX,
    MARKER,
    NAME,
    NAME_BYTES,
    OWN_TRACE,
    PACK_HEAD,
    PACK_NAME,
    PACKERS,
    RECORD_BYTES,
    SEGMENT_SUFFIX,
)
from ipcbench.trace.record.segment import SegmentWriter, new_segment
from ipcbench.trace.schema import PLANNED
from ipcbench.util.files import as_store_errors

PlannedCall = tuple[str, int, int]
"""Method, bytes sent and bytes received, of which one may be 0."""

_STEM = "t-planned-0"


def write_planned(folder: Path, service: str, calls: Sequence[PlannedCall]) -> Path:
    """Write calls into the folder of a trace, which is made if there is none, in their order; return the file.

    Args:
        folder: without files of a trace, since calls that were made and calls that were not would be mixed up.
        service: who would make the calls; reports show it.
        calls: at least one.

    Raises:
        StoreError: there is a trace in the folder, or the file cannot be written; nothing is left behind then.
    """
    path = folder / f"{_STEM}{SEGMENT_SUFFIX}"
    with as_store_errors(path), _made(folder):
        if any(name.endswith((SEGMENT_SUFFIX, HISTOGRAMS_SUFFIX)) for name in os.listdir(folder)):
            raise StoreError(f"{folder}: holds a trace already; name a new folder, or remove this one")
        names = {name: number for number, name in enumerate(_names(calls), 1)}
        pieces_count = sum(len(_pieces(name)) for name in names)
        facts = {"service": service, "ids": [f"{crc32(service.encode(errors='replace')):016x}", f"{1:016x}"]}
        segment = new_segment(path, HEADER_BYTES + RECORD_BYTES * (pieces_count + len(calls)), facts)
        _fill(segment, names, calls)
        segment.close()
    return path


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder with those around it; remove what was made if the block fails."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
        raise


def _names(calls: Iterable[PlannedCall]) -> Iterable[str]:
    return dict.fromkeys((PLANNED.text, *(method for method, _, _ in calls)))


def _pieces(name: str) -> list[bytes]:
    data = name.encode()
    return [data[at : at + NAME_BYTES] for at in range(0, len(data), NAME_BYTES)]


def _fill(segment: SegmentWriter, names: dict[str, int], calls: Iterable[PlannedCall]) -> None:
    for name, number in names.items():
        for place, piece in enumerate(_pieces(name)):
            at = segment.take()
            PACK_NAME(segment.buffer, at, NAME, 0, number, place, len(name.encode()), piece, at ^ MARKER)
    for method, sent_bytes, recv_bytes in calls:
        head = PACK_HEAD(CALL, 0, 1, PLANNED.role, names[method], names[PLANNED.text], 0, 0, 0)
        at = segment.take()
        PACKERS[1](segment.buffer, at, head, *OWN_TRACE, 0, 0, 0, sent_bytes, recv_bytes, at ^ MARKER)
